"""Non-blocking messages of plain arrays, which compiled code starts and completes: whatever else a program does with their handles."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime
from ncclx_mpi.operations.transfer import Bound, Ticket
from numba_kernels.pyslots import slot_offset


def is_native(request: Any) -> bool:
    return type(request._state) is Ticket


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("container", [list, tuple])
@pytest.mark.parametrize("count", [0, 1, 3, 1000, 200_001])
def test_ring(comm: Any, count: int, container: Callable[[Any], Any]) -> None:
    above, below = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    boxes = [np.zeros(count) for _ in range(4)]
    for turn in range(3):
        base = 100.0 * comm.rank + 10 * turn
        requests = [comm.Irecv(box, below, tag) for tag, box in enumerate(boxes)]
        requests += [comm.Isend(np.full(count, base + tag), above, tag) for tag in (3, 0, 2, 1)]
        requests += [MPI.REQUEST_NULL, requests[2]]
        assert all(is_native(request) for request in requests[:8])
        assert MPI.Request.Waitall(container(requests)) and not any(requests)
        assert all((box == 100.0 * below + 10 * turn + tag).all() for tag, box in enumerate(boxes))


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("mode", ["Isend", "Issend", "Irsend"])
def test_one_by_one(comm: Any, mode: str) -> None:
    other, status, box = (comm.rank + 1) % comm.size, MPI.Status(), np.zeros(5, np.int32)
    receiving = comm.Irecv(box, other, 4)
    assert not receiving.Test(status) and receiving
    comm.Barrier()
    sending = getattr(comm, mode)([np.full(5, comm.rank + 7, np.int32), MPI.INT], other, 4)
    assert is_native(sending) and receiving.Wait(status) and not receiving
    assert (status.source, status.tag, status.Get_count(MPI.INT)) == (other, 4, 5) and (box == other + 7).all()
    while not MPI.Request.Testall([sending, receiving]):
        pass
    assert not sending and sending.Test() and sending.test() == (True, None)
    status.source = 99
    assert comm.Isend(box, MPI.PROC_NULL).Wait(status) and status.source == MPI.PROC_NULL


@pytest.mark.ranks(1)
def test_a_test_that_comes_too_early_changes_nothing(comm: Any) -> None:
    box = np.zeros(2)
    early, sent = comm.Irecv(box, 0, 8), comm.Isend(np.ones(2), 0, 9)
    assert not MPI.Request.Testall([sent, early]) and sent and early and early.test() == (False, None)
    comm.Send(np.full(2, 5.0), 0, 8)
    assert MPI.Request.Testall([sent, early]) and (box == 5).all() and not sent and not early
    comm.Recv(box, 0, 9)


@pytest.mark.ranks(1)
def test_copies_of_a_handle(comm: Any) -> None:
    """A copy ends with its operation, and does not come to life again when the ticket could be used for the next one."""
    request = comm.Irecv(np.zeros(1), 0)
    copies, number = [MPI.Request(request) for _ in range(3)], request.handle
    other = comm.Irecv(np.zeros(1), 0)
    assert copies[0] == request and request != other and MPI.Request.fromhandle(number) == request
    comm.Send(np.ones(1), 0)
    comm.Send(np.ones(1), 0)
    assert MPI.Request.Waitall([request, other]) and not request and not other
    later = comm.Irecv(np.zeros(1), 0)
    waitall = MPI.Request.Waitall
    for stale in (copies[0].Wait, copies[1].Test, lambda: waitall([copies[2]])):
        with pytest.raises(MPI.Exception) as failure:
            stale()
        assert failure.value.Get_error_class() == MPI.ERR_REQUEST
    later.Cancel()
    assert later.Wait()


@pytest.mark.ranks(1)
def test_a_number_alone_keeps_a_ticket_from_being_used_again(comm: Any) -> None:
    request = comm.Irecv(np.zeros(1), 0)
    number = request.handle
    comm.Send(np.ones(1), 0)
    request.Wait()
    later = comm.Irecv(np.zeros(1), 0)
    with pytest.raises(MPI.Exception):
        MPI.Request.fromhandle(number)
    later.Cancel()
    later.Wait()


@pytest.mark.ranks(1)
def test_arrays_are_let_go(comm: Any) -> None:
    sent, received = np.ones(3), np.zeros(3)
    gone = [weakref.ref(sent), weakref.ref(received)]
    requests = [comm.Irecv([received, MPI.DOUBLE], 0), comm.Isend(sent, 0)]
    del sent, received
    gc.collect()
    assert all(array() is not None for array in gone)
    MPI.Request.Waitall(requests)
    assert all(array() is None for array in gone)


@pytest.mark.ranks(1)
def test_tickets_are_used_again(comm: Any) -> None:
    box, message = np.zeros(1), np.ones(1)

    def exchange() -> set[int]:
        pair = [comm.Irecv(box, 0), comm.Isend(message, 0)]
        used = {id(request._state) for request in pair}
        MPI.Request.Waitall(pair)
        return used

    first = exchange()
    assert all(exchange() == first for _ in range(10))


@pytest.mark.ranks(1, 2)
def test_forgotten_ones(comm: Any) -> None:
    """Sends that nobody waits for arrive; a receive that is let go of, or freed, still lands."""
    other, box = (comm.rank + 1) % comm.size, np.zeros(40)
    comm.Irecv(box, other, 1)
    comm.Irecv(box[20:], other, 2).Free()
    comm.Barrier()
    for tag in (1, 2):
        comm.Isend(np.full(20, comm.rank + tag + 1.0), other, tag)
        comm.Isend(np.zeros(100_000), other, 3)
    large = np.ones(100_000)
    for _ in range(2):
        comm.Recv(large, other, 3)
        assert not large.any()
    assert (box[:20] == other + 2).all() and (box[20:] == other + 3).all()
    comm.Barrier()


@pytest.mark.ranks(1)
def test_errors_without_statuses(comm: Any) -> None:
    box = np.zeros(9)
    requests = [comm.Irecv(np.zeros(1), 0, 3), comm.Irecv(box, 0, 4)]
    comm.Send(np.ones(2), 0, 3)
    comm.Send(np.ones(9), 0, 4)
    with pytest.raises(
        MPI.Exception, match=r"rank 0 <- 0, tag 3 \(receive from rank 0, tag 3\).* 8 bytes, the message 16"
    ) as failure:
        MPI.Request.Waitall(requests)
    assert failure.value.Get_error_class() == MPI.ERR_IN_STATUS and not any(requests) and (box == 1).all()
    request = comm.Irecv(np.zeros(1))
    comm.Send(np.ones(2), 0, 3)
    with pytest.raises(MPI.Exception) as failure:
        while not request.Test():
            pass
    assert failure.value.Get_error_class() == MPI.ERR_TRUNCATE and not request


@pytest.mark.ranks(1)
def test_cancelled(comm: Any) -> None:
    status, requests = MPI.Status(), [comm.Irecv(np.zeros(1), 0, tag) for tag in range(3)]
    for request in requests:
        request.Cancel()
    assert requests[0].Get_status(status) and status.Is_cancelled() and requests[0]
    assert requests[0].Wait(status) and status.Is_cancelled()
    assert MPI.Request.Waitall(requests) and not any(requests)


@pytest.mark.ranks(1)
def test_mixed_with_all_others(comm: Any) -> None:
    box, matrix = np.zeros(2), np.zeros((3, 3))
    column = MPI.DOUBLE.Create_vector(3, 1, 3).Commit()
    requests = [
        comm.Irecv(box, 0, 1), comm.irecv(source=0, tag=2), comm.Ibarrier(), comm.Irecv([matrix, 1, column], 0, 3),
        comm.Isend(np.full(2, 4.0), 0, 1), comm.isend("text", 0, 2), MPI.Grequest.Start(), comm.Isend(np.full(3, 6.0), 0, 3),
    ]  # fmt: skip
    requests[6].Complete()
    assert MPI.Request.waitall(requests)[1] == "text" and not any(requests)
    assert (box == 4).all() and (matrix[:, 0] == 6).all() and not matrix[:, 1:].any()
    column.Free()


@pytest.mark.ranks(1)
def test_wrong_lists(comm: Any) -> None:
    request = comm.Irecv(np.zeros(1), 0)
    for wrong in ([request, None], [request, 5], (request, "request")):
        with pytest.raises(TypeError):
            MPI.Request.Waitall(wrong)
        with pytest.raises(TypeError):
            MPI.Request.Testall(wrong)
    assert MPI.Request.Waitall([]) and MPI.Request.Testall([]) and request
    comm.Send(np.zeros(1), 0)
    assert MPI.Request.Waitall([request]) and not request


@pytest.mark.ranks(2)
def test_another_thread_takes_the_list_away(comm: Any) -> None:
    """While a thread waits without the GIL, its list is emptied and a handle is copied: nothing dies under it, and what was posted lands."""
    if comm.rank == 1:
        for tag in range(4):
            comm.Recv(np.zeros(1), 0, 9)
            comm.Send(np.full(1, float(tag)), 0, tag)
        return
    boxes = [np.zeros(1) for _ in range(4)]
    requests = [comm.Irecv(box, 1, tag) for tag, box in enumerate(boxes)]
    thread = threading.Thread(target=MPI.Request.Waitall, args=(requests,))
    thread.start()
    time.sleep(0.02)
    copy = MPI.Request(requests[1])
    requests.clear()
    gc.collect()
    for _ in range(4):
        comm.Send(np.zeros(1), 1, 9)
    thread.join(20)
    end = time.monotonic() + 20
    while [box[0] for box in boxes] != [0, 1, 2, 3] and time.monotonic() < end:
        comm.Iprobe()
    assert not thread.is_alive() and [box[0] for box in boxes] == [0, 1, 2, 3]
    assert copy.Wait() and not copy


@pytest.mark.ranks(2)
def test_threads_with_requests_of_their_own(comm: Any) -> None:
    other, failures = 1 - comm.rank, []

    def exchange(tag: int) -> None:
        box = np.zeros(50)
        for turn in range(100):
            pair = [comm.Irecv(box, other, tag), comm.Isend(np.full(50, 1000.0 * tag + turn + other), other, tag)]
            MPI.Request.Waitall(pair)
            if not (box == 1000.0 * tag + turn + comm.rank).all():
                failures.append((tag, turn))

    threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures and not any(thread.is_alive() for thread in threads)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("is_list", [True, False])
def test_a_signal_ends_a_wait(comm: Any, is_list: bool) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    box = np.zeros(1)
    request = comm.Irecv(box, 0, 5)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            MPI.Request.Waitall([request]) if is_list else request.Wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not request
    comm.Isend(np.ones(1), 0, 5)
    assert comm.Iprobe(0, 5) and not box.any(), "the receive was withdrawn"
    comm.Recv(box, 0, 5)


@pytest.mark.ranks(1)
def test_slots_are_found(comm: Any) -> None:
    runtime.engine()
    offsets = [slot_offset(Ticket, name) for name in ("request", "owner", "comm")]
    assert len({*offsets, Ticket.__weakrefoffset__}) == 4  # type: ignore[attr-defined]
    assert all(16 <= offset < Ticket.__basicsize__ for offset in offsets)


# Persistent messages ----------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("count", [0, 2, 200_001])
def test_persistent_ring(comm: Any, count: int) -> None:
    above, below = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out, box, status = np.zeros(count), np.zeros(count), MPI.Status()
    requests = [comm.Recv_init(box, below, 3), comm.Send_init(out, above, 3)]
    assert all(type(request._state) is Bound for request in requests)
    for turn in range(6):
        out[:] = 10 * comm.rank + turn
        if turn % 2:
            MPI.Prequest.Startall(requests)
            assert MPI.Request.Waitall(requests)
        else:
            for request in requests:
                request.Start()
            assert requests[1].Wait() and requests[0].Wait(status) and (status.source, status.count) == (below, 8 * count)
        assert (box == 10 * below + turn).all() and all(requests)
        assert MPI.Request.Testall(requests) and requests[0].Test(status) and status.source == MPI.ANY_SOURCE
        comm.Barrier()
    for request in requests:
        request.Free()
        assert not request


@pytest.mark.ranks(1)
def test_persistent_ones_of_all_kinds_in_one_list(comm: Any) -> None:
    matrix, box, column = np.zeros((3, 3)), np.zeros(2), MPI.DOUBLE.Create_vector(3, 1, 3).Commit()
    total, result = np.full(1, 4.0), np.zeros(1)
    requests = [
        comm.Recv_init(box, 0, 1), comm.Recv_init([matrix, 1, column], 0, 2), comm.Ssend_init(np.full(2, 5.0), 0, 1),
        comm.Send_init(box, MPI.PROC_NULL), comm.Allreduce_init(total, result), comm.Send_init(np.full(3, 6.0), 0, 2),
    ]  # fmt: skip
    for _ in range(3):
        MPI.Prequest.Startall(requests)
        with pytest.raises(MPI.Exception, match="active"):
            MPI.Prequest.Startall(requests[:1])
        with pytest.raises(MPI.Exception, match="active"):
            requests[0].Start()
        MPI.Request.Waitall(requests)
        assert (box == 5).all() and (matrix[:, 0] == 6).all() and result[0] == 4
    with pytest.raises(MPI.Exception, match="not active"):
        requests[0].Cancel()
    with pytest.raises(MPI.Exception, match="not persistent"):
        MPI.Prequest.Startall([requests[0], MPI.Prequest()])
    for request in requests:
        request.Free()
    column.Free()


@pytest.mark.ranks(1)
def test_a_persistent_message_survives_what_goes_wrong(comm: Any) -> None:
    box, status = np.zeros(1), MPI.Status()
    request = comm.Recv_init(box, 0, 5)
    copy = MPI.Prequest(request)
    request.Start()
    comm.Send(np.ones(2), 0, 5)
    with pytest.raises(MPI.Exception, match=r"tag 5.* 8 bytes, the message 16") as failure:
        request.Wait()
    assert failure.value.Get_error_class() == MPI.ERR_TRUNCATE
    request.Start()
    request.Cancel()
    assert request.Wait(status) and status.Is_cancelled()
    request.Start()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            MPI.Request.Waitall([request])
    finally:
        signal.signal(signal.SIGALRM, before)
    copy.Start()
    comm.Send(np.full(1, 7.0), 0, 5)
    assert copy.Wait() and box[0] == 7 and request == copy
    request.Start()
    request.Free()
    with pytest.raises(MPI.Exception):
        copy.Start()
    comm.Send(np.full(1, 8.0), 0, 5)
    while comm.Iprobe(0, 5):
        pass
    assert box[0] == 8, "freed while it was active, it has gone on"


# Sendrecv ---------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("count", [0, 1, 1000, 200_001])
def test_sendrecv(comm: Any, count: int) -> None:
    above, below, status = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, MPI.Status()
    box = np.zeros(count + 3)
    for turn in range(3):
        comm.Sendrecv(np.full(count, 10.0 * comm.rank + turn), above, turn, [box, MPI.DOUBLE], MPI.ANY_SOURCE, turn, status)
        assert (status.source, status.tag, status.count) == (below, turn, 8 * count)
        assert (box[:count] == 10 * below + turn).all() and not box[count:].any()
    comm.Sendrecv(box, MPI.PROC_NULL, 0, box, MPI.PROC_NULL)
    receiving = comm.Irecv(box, below)
    comm.Sendrecv(np.full(count, -1.0), above, 0, None, MPI.PROC_NULL)
    receiving.Wait()
    assert (box[:count] == -1).all()
    sending = comm.Isend(np.full(count, -2.0), above)
    comm.Sendrecv(None, MPI.PROC_NULL, 0, box, below)
    sending.Wait()
    assert (box[:count] == -2).all()


@pytest.mark.ranks(1)
def test_sendrecv_into_too_little_room(comm: Any) -> None:
    with pytest.raises(MPI.Exception, match=r"tag 4.* 8 bytes, the message 800000") as failure:
        comm.Sendrecv(np.zeros(100_000), 0, 4, np.zeros(1), 0, 4)
    assert failure.value.Get_error_class() == MPI.ERR_TRUNCATE
    box = np.zeros(1)
    comm.Sendrecv(np.ones(1), 0, 4, box, 0, 4)
    assert box[0] == 1
    for wrong in ({"dest": 7}, {"source": 7}, {"sendtag": -5}, {"recvtag": -5}):
        arguments: dict[str, Any] = {"dest": 0, "sendtag": 0, "source": 0, "recvtag": 0} | wrong
        with pytest.raises(MPI.Exception):
            comm.Sendrecv(box, recvbuf=box, **arguments)


@pytest.mark.ranks(2)
def test_sendrecv_of_a_late_peer(comm: Any) -> None:
    """The wait outlasts what compiled code does without Python; signals are served meanwhile."""
    other, box, calls = 1 - comm.rank, np.zeros(100_000), []
    if comm.rank == 1:
        time.sleep(0.3)
    before = signal.signal(signal.SIGALRM, lambda number, frame: calls.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    comm.Sendrecv(np.full(100_000, comm.rank + 1.0), other, 0, box, other)
    while not calls:
        time.sleep(0.01)
    signal.signal(signal.SIGALRM, before)
    assert (box == other + 1).all()
