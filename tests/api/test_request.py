"""Requests: one, any, all, some; persistent, generalized, cancelled, forgotten ones."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.api import fast
from ncclx_mpi.operations.transfer import Compiled


@pytest.mark.ranks(1, 2)
def test_null_requests(comm: Any) -> None:
    status = MPI.Status()
    null = MPI.Request()
    assert not null and null == MPI.REQUEST_NULL and null.Wait(status) and null.test() == (True, None)
    assert (status.source, status.tag, status.count) == (MPI.ANY_SOURCE, MPI.ANY_TAG, 0)
    assert MPI.Request.Waitany([null, null]) == MPI.UNDEFINED and MPI.Request.waitsome([null]) == (None, None)
    for call in (null.Free, null.Cancel, MPI.REQUEST_NULL.Free):
        with pytest.raises(MPI.Exception) as failure:
            call()
        assert failure.value.Get_error_class() == MPI.ERR_REQUEST
    with pytest.raises(TypeError):
        MPI.Request.Waitall([null, None])  # type: ignore[list-item]


@pytest.mark.ranks(2, 3)
def test_many_at_once(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    inbox = [np.zeros(index + 1) for index in range(10)]
    requests = [comm.Irecv(box, left, index) for index, box in enumerate(inbox)]
    requests += [comm.Isend(np.full(index + 1, comm.rank * 100.0 + index), right, index) for index in reversed(range(10))]
    statuses: list[MPI.Status] = []
    assert MPI.Request.Waitall(requests, statuses)
    assert [status.tag for status in statuses[:10]] == list(range(10)) and not any(requests)
    assert all((box == left * 100.0 + index).all() for index, box in enumerate(inbox))


@pytest.mark.ranks(2)
def test_waitany_and_waitsome(comm: Any) -> None:
    requests = [comm.irecv(source=1 - comm.rank, tag=tag) for tag in range(6)]
    comm.Barrier()
    for tag in (3, 1, 4, 0, 5, 2):
        comm.send(tag * 10, 1 - comm.rank, tag)
    seen = []
    status = MPI.Status()
    index, value = MPI.Request.waitany(requests, status)
    assert value == index * 10 and status.tag == index and status.source == 1 - comm.rank
    seen.append(index)
    while (found := MPI.Request.waitsome(requests))[0] is not None:
        assert [index * 10 for index in found[0]] == found[1]
        seen += found[0]
    assert sorted(seen) == list(range(6))


@pytest.mark.ranks(2)
def test_truncation(comm: Any) -> None:
    other = 1 - comm.rank
    if comm.rank == 0:
        comm.Send(np.zeros(10), other, 7)
        comm.Send(np.zeros(100_000), other, 8)
        comm.send("still fine", other)
        return
    small = np.zeros(5)
    for tag, sent in ((7, 80), (8, 800_000)):
        with pytest.raises(MPI.Exception) as failure:
            comm.Recv(small, other, tag)
        assert failure.value.Get_error_class() == MPI.ERR_TRUNCATE
        text = str(failure.value)
        assert all(word in text for word in ("rank 1", f"tag {tag}", "40 bytes", str(sent)))
    assert comm.recv(source=other) == "still fine"


@pytest.mark.ranks(2)
def test_errors_of_several_are_in_the_statuses(comm: Any) -> None:
    other = 1 - comm.rank
    requests = [comm.Irecv(np.zeros(1), other, 0), comm.Irecv(np.zeros(9), other, 1)]
    comm.Send(np.zeros(2), other, 0)
    comm.Send(np.zeros(2), other, 1)
    statuses: list[MPI.Status] = []
    with pytest.raises(MPI.Exception) as failure:
        MPI.Request.Waitall(requests, statuses)
    assert failure.value.Get_error_class() == MPI.ERR_IN_STATUS
    assert MPI.Get_error_class(statuses[0].error) == MPI.ERR_TRUNCATE and statuses[1].error == MPI.SUCCESS
    assert statuses[1].Get_count(MPI.DOUBLE) == 2 and not any(requests)


@pytest.mark.ranks(2)
def test_persistent(comm: Any) -> None:
    other = 1 - comm.rank
    out, inside = np.zeros(4), np.zeros(4)
    requests = [comm.Send_init(out, other), comm.Recv_init(inside, other)]
    for turn in range(5):
        out[:] = comm.rank * 10 + turn
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        assert (inside == other * 10 + turn).all() and all(requests)
    assert requests[0].Test() and MPI.Request.Waitany(requests) == MPI.UNDEFINED
    for request in requests:
        request.Free()
        assert not request
    active = comm.Recv_init(inside, other)
    active.Start()
    with pytest.raises(MPI.Exception):
        active.Start()
    active.Cancel()
    active.Wait()
    active.Free()


@pytest.mark.ranks(2, 3)
def test_persistent_collectives(comm: Any) -> None:
    strided = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    out, total = np.zeros(5), np.zeros(3)
    spread = np.zeros(5)
    reduction = comm.Allreduce_init(total, spread[:3], MPI.SUM)
    spreading = comm.Bcast_init([spread if comm.rank else out, 1, strided], 0)
    for turn in range(3):
        total[:] = turn
        reduction.Start()
        reduction.Wait()
        assert (spread[:3] == turn * comm.size).all()
        out[:] = turn + 1
        spreading.Start()
        spreading.Wait()
        if comm.rank:
            assert (spread[::2] == turn + 1).all()
    reduction.Free()
    spreading.Free()
    strided.Free()


@pytest.mark.ranks(1)
def test_cancel(comm: Any) -> None:
    status = MPI.Status()
    request = comm.Irecv(np.zeros(3), 0, 5)
    request.Cancel()
    request.Wait(status)
    assert status.Is_cancelled()
    request = comm.Issend(np.zeros(3), 0, 5)
    request.Cancel()
    request.Wait(status)
    assert status.Is_cancelled() and not comm.Iprobe(0, 5)


@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("start", ["isend", "issend"])
@pytest.mark.parametrize("is_met", [False, True])
def test_an_object_of_several_parts_is_cancelled_whole_or_not_at_all(comm: Any, start: str, is_met: bool) -> None:
    sent, status = [bytes(100_000), "end"], MPI.Status()
    if comm.rank == 0:
        request = getattr(comm, start)(sent, 1, 5)
        if is_met:
            comm.recv(source=1)
        request.Cancel()
        if not is_met:
            comm.send(None, 1, 6)
        request.Wait(status)
        assert status.Is_cancelled() == (start == "issend" and not is_met)
        comm.send(status.Is_cancelled(), 1, 7)
    else:
        message = comm.mprobe(0, 5) if is_met else None
        comm.send(None, 0) if is_met else comm.recv(source=0, tag=6)
        if message is not None:
            assert message.recv() == sent
        elif start == "isend":
            assert comm.recv(source=0, tag=5) == sent
        assert comm.recv(source=0, tag=7) == (start == "issend" and not is_met)
        assert not comm.Iprobe(0, 5)


@pytest.mark.ranks(2)
def test_forgotten_requests_go_on(comm: Any) -> None:
    other = 1 - comm.rank
    for turn in range(20):
        comm.Isend(np.full(100_000, float(turn)), other, turn)
        gc.collect(0)
    box = np.zeros(100_000)
    for turn in range(20):
        comm.Recv(box, other, turn)
        assert (box == turn).all()
    comm.Barrier()  # before the end of the program it is still the program that has to see its sends through


@pytest.mark.ranks(1)
def test_generalized(comm: Any) -> None:
    calls: list[str] = []
    request = MPI.Grequest.Start(
        lambda status: status.Set_elements(MPI.BYTE, 7), lambda: calls.append("free"), lambda done: calls.append("cancel")
    )
    assert not request.Test()
    request.Cancel()
    threading.Timer(0.05, request.complete, ("value",)).start()
    status = MPI.Status()
    assert request.wait(status) == "value" and status.count == 7 and calls == ["cancel", "free"] and not request


@pytest.mark.ranks(2)
def test_copies_share_one_operation(comm: Any) -> None:
    other = 1 - comm.rank
    request = comm.irecv(source=other)
    copy = MPI.Request(request)
    assert copy == request and MPI.Request.fromhandle(request.handle) == request
    comm.send(1, other)
    assert request.wait() == 1
    with pytest.raises(MPI.Exception) as failure:
        copy.wait()
    assert failure.value.Get_error_class() == MPI.ERR_REQUEST


@pytest.mark.ranks(1)
def test_upper_case_waits_make_no_object(comm: Any) -> None:
    """Nobody could have it, so a message that is no pickle is no error to them."""
    status = MPI.Status()
    for wait in (
        MPI.Request.Wait,
        MPI.Request.Test,
        lambda request, status: MPI.Request.Waitany([request], status) == 0,
        lambda request, status: MPI.Request.Waitall([request], [status]),
        lambda request, status: MPI.Request.Testsome([request], [status]) == [0],
    ):
        request = comm.irecv(source=0)
        comm.Send(b"no pickle", 0, 5)
        assert wait(request, status) and not request and request.wait() is None
        assert (status.tag, status.count) == (5, 9)
    request = comm.irecv(source=0)
    comm.Send(b"no pickle", 0, 5)
    with pytest.raises(pickle.UnpicklingError):
        request.wait()
    large = [np.arange(100_000), "and more"]
    request, sending = comm.irecv(source=0), comm.isend(large, 0)
    assert request.Wait(status) and status.count > 800_000
    sending.wait()


@pytest.mark.ranks(1, 2)
def test_messages_of_plain_arrays_start_natively(comm: Any) -> None:
    """Arrays and pairs, small and large ones, with all that a request is asked for."""
    other, status = (comm.rank + 1) % comm.size, MPI.Status()
    for count in (0, 1, 1000, 300_000):
        send, recv = np.full(count, comm.rank + 1.0), np.zeros(count)
        receiving, sending = comm.Irecv([recv, MPI.DOUBLE], other, 7), comm.Isend((send, MPI.DOUBLE), other, 7)
        receiving.Wait(status)
        assert (status.source, status.tag, status.count) == (other, 7, 8 * count)
        assert sending.Wait(status) and not sending and not receiving
        assert (recv == other + 1).all()


@pytest.mark.ranks(1)
def test_a_started_receive_keeps_its_array(comm: Any) -> None:
    spec = [np.zeros(50_000), MPI.DOUBLE]
    request = comm.Irecv(spec, 0)
    kept = weakref.ref(spec[0])
    spec[0] = None
    gc.collect()
    assert kept() is not None
    comm.Send(np.ones(50_000), 0)
    array = kept()
    request.Wait()
    assert array is not None and (array == 1).all()


@pytest.mark.ranks(1)
def test_a_started_receive_reports_what_is_wrong(comm: Any) -> None:
    request = comm.Irecv(np.zeros(1), 0, 3)
    comm.Send(np.zeros(2), 0, 3)
    with pytest.raises(MPI.Exception, match=r"(?s)tag 3.*8 bytes.*16") as failure:
        request.Wait()
    assert failure.value.Get_error_class() == MPI.ERR_TRUNCATE and not request
    status = MPI.Status()
    request = comm.Irecv(np.zeros(1), 0, 3)
    request.Cancel()
    request.Wait(status)
    assert status.Is_cancelled()
    for wrong, tag in ((5, 0), (-7, 0), (0, -3)):
        with pytest.raises(MPI.Exception):
            comm.Isend(np.zeros(1), wrong, tag)
        with pytest.raises(MPI.Exception):
            comm.Irecv(np.zeros(1), wrong, tag)
    assert comm.Isend(np.zeros(1), MPI.PROC_NULL).Wait() and comm.Irecv(np.zeros(1), MPI.PROC_NULL).Wait()


@pytest.mark.ranks(1, 2, 3)
def test_collectives_that_run_together_have_memory_of_their_own(comm: Any) -> None:
    """They take what earlier ones by the same plan have left, and give it back however they end."""
    for turn in range(5):
        results = [np.zeros(3) for _ in range(8)]
        requests = [comm.Iallreduce(np.full(3, 10.0 * turn + index), result) for index, result in enumerate(results)]
        if turn % 2:
            requests[3].Free()
            del requests[3]
        MPI.Request.Waitall(requests)
        comm.Barrier()
        comm.Ibarrier().Wait()  # after it, the one that was let go is complete everywhere
        assert [result[0] for result in results] == [comm.size * (10.0 * turn + index) for index in range(8)]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("is_freed", [True, False])
def test_a_forgotten_receive_is_unpacked(comm: Any, is_freed: bool) -> None:
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    matrix = np.zeros((4, 3))
    if comm.rank == 0:
        request = comm.Irecv([matrix, 1, column], 1, 5)
        if is_freed:
            request.Free()
        del request
        gc.collect()
        comm.Irecv([np.zeros((4, 3)), 1, column], 1, 6).Free()  # a message that is too long, and nobody to tell
        comm.send("go", 1)
        end = time.monotonic() + 20
        while not matrix.any() and time.monotonic() < end:
            time.sleep(0.001)
        assert (matrix[:, 0] == np.arange(1.0, 5)).all() and not matrix[:, 1:].any()
        comm.send("seen", 1)
    else:
        comm.recv(source=0)
        comm.Send(np.arange(1.0, 9), 0, 6)
        comm.Send(np.arange(1.0, 5), 0, 5)
        assert comm.recv(source=0) == "seen"
    column.Free()


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("count", [1, 8, 100])
def test_statuses_of_plain_messages(comm: Any, count: int) -> None:
    """Any, some and all of many, with statuses new, old, too few, and of null requests; always in one compiled call."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    inbox = [np.zeros(index + 1) for index in range(count)]

    def post() -> list[Any]:
        for box in inbox:
            box[:] = -1
        received = [comm.Irecv(box, left, index) for index, box in enumerate(inbox)]
        return [
            *received,
            MPI.REQUEST_NULL,
            *(comm.Isend(np.full(index + 1, 7.0), right, index) for index in reversed(range(count))),
        ]

    def check(status: MPI.Status, index: int) -> None:
        is_receive = index < count
        assert status.Get_source() == (left if is_receive else MPI.ANY_SOURCE)
        assert status.Get_tag() == (index if is_receive else MPI.ANY_TAG)
        assert status.Get_count(MPI.DOUBLE) == (index + 1 if is_receive else 0)
        assert status.error == MPI.SUCCESS and not status.Is_cancelled()

    for given in (0, 3, 2 * count + 1):
        statuses = [MPI.Status() for _ in range(given)]
        for status in statuses:
            status.Set_source(99)
            status.Set_error(MPI.ERR_OTHER)
        assert MPI.Request.Waitall(requests := post(), statuses) and not any(requests)
        assert len(statuses) == max(given, 2 * count + 1)
        for index, status in enumerate(statuses[: 2 * count + 1]):
            check(status, index)
        requests, seen = post(), []
        statuses = [MPI.Status() for _ in range(given)]
        while (indices := MPI.Request.Waitsome(requests, statuses)) is not None:
            assert indices
            for index, status in zip(indices, statuses, strict=False):
                check(status, index)
            seen += indices
        assert sorted(seen) == [index for index in range(2 * count + 1) if index != count]
        assert all((box == 7).all() for box in inbox)
    requests, seen, one = post(), [], MPI.Status()
    while (index := MPI.Request.Waitany(tuple(requests), one)) != MPI.UNDEFINED:
        check(one, index)
        seen.append(index)
    assert len(set(seen)) == 2 * count and all((box == 7).all() for box in inbox)


@pytest.mark.ranks(2)
def test_any_and_some_are_compiled_calls(comm: Any) -> None:
    other, room = 1 - comm.rank, np.zeros(2)
    comm.Isend(np.zeros(2), other).Wait()  # makes a ticket
    comm.Irecv(room, other).Wait()
    requests, words = [comm.Irecv(room, other), comm.Irecv(room, other)], np.zeros(2, dtype=np.int64)
    status = MPI.Status()
    assert MPI.Request.Testany(requests, status) == (MPI.UNDEFINED, False)
    assert MPI.Request.Testsome(requests, [status]) == [] and not MPI.Request.Testall(requests, [])
    assert fast.complete_some(requests, 0, 2, words.ctypes.data, None) == 0
    comm.Barrier()
    comm.Send(np.full(2, 5.0), other)
    comm.Barrier()  # the message has arrived: a wait longer than a slice is Python's, which the call would say
    assert fast.complete_some(requests, 1, 2, words.ctypes.data, (status,)) == -1  # two may be done, and there is one status
    assert fast.complete_some(requests, 1, 1, words.ctypes.data, (status,)) == 1 and words[0] == 0
    assert status.source == other and status.count == 16 and [bool(request) for request in requests] == [False, True]
    comm.Send(np.full(2, 6.0), other)
    comm.Barrier()
    assert fast.complete_some(requests, 1, 2, words.ctypes.data, None) == 1 and words[0] == 1 and (room == 6).all()
    assert MPI.Request.Testsome(requests) is None and MPI.Request.Testany(requests) == (MPI.UNDEFINED, True)


@pytest.mark.ranks(2)
def test_one_of_several_that_failed(comm: Any) -> None:
    """What cannot be completed natively says why, and the others stay."""
    other = 1 - comm.rank
    requests = [comm.Irecv(np.zeros(4), other, 0), comm.Irecv(np.zeros(1), other, 1)]
    comm.Send(np.zeros(2), other, 1)
    with pytest.raises(MPI.Exception) as failure:
        MPI.Request.Waitany(requests)
    assert failure.value.Get_error_class() == MPI.ERR_TRUNCATE and requests[0] and not requests[1]
    requests[1] = comm.Irecv(np.zeros(1), other, 2)
    comm.Send(np.zeros(2), other, 2)
    statuses: list[MPI.Status] = []
    with pytest.raises(MPI.Exception) as failure:
        MPI.Request.Waitsome(requests, statuses)
    assert failure.value.Get_error_class() == MPI.ERR_IN_STATUS
    assert MPI.Get_error_class(statuses[0].error) == MPI.ERR_TRUNCATE and requests[0]
    requests[0].Cancel()
    status = MPI.Status()
    assert MPI.Request.Waitany(requests, status) == 0 and status.Is_cancelled()


WRONG_STATUSES = (MPI.Status, "status", 5)


@pytest.mark.parametrize("wrong", WRONG_STATUSES, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.ranks(1)
def test_what_is_no_status_is_refused_before_a_message_is_taken(comm: Any, wrong: Any) -> None:
    """By each call that fills one; the message is still there, and the class of statuses as it was."""
    box, half = np.zeros(1), np.zeros(1)
    calls = [
        lambda: comm.Recv(box, 0, 1, wrong),
        lambda: comm.recv(None, 0, 1, wrong),
        lambda: comm.Sendrecv(half, 0, 1, box, 0, 1, wrong),
        lambda: comm.sendrecv(1, 0, 1, None, 0, 1, wrong),
        lambda: comm.Sendrecv_replace(half, 0, 1, 0, 1, wrong),
        lambda: comm.Probe(0, 1, wrong),
        lambda: comm.Iprobe(0, 1, wrong),
        lambda: comm.Mprobe(0, 1, wrong),
        lambda: comm.improbe(0, 1, wrong),
    ]
    comm.Send(np.full(1, 7.0), 0, 1)
    for call in calls:
        with pytest.raises(TypeError, match="expected a Status or None"):
            call()
    message = comm.Mprobe(0, 1)
    for receive in (lambda: message.Recv(box, wrong), lambda: message.recv(wrong)):
        with pytest.raises(TypeError, match="expected a Status or None"):
            receive()
    message.Recv(box)
    assert box[0] == 7 and comm.Improbe(0, 1) is None
    assert MPI.Status().Get_error() == MPI.SUCCESS


@pytest.mark.parametrize("wrong", WRONG_STATUSES, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("kind", ["array", "object", "null"])
@pytest.mark.ranks(1)
def test_what_is_no_status_is_refused_before_a_request_ends(comm: Any, kind: str, wrong: Any) -> None:
    """By each way to wait, test and look, one and many, in lists that are long enough and too short."""
    names = ("Wait", "Test", "Get_status", "wait", "test", "get_status")
    many = ("Waitall", "Testall", "Get_status_all", "waitall", "testall", "get_status_all")
    some = ("Waitsome", "Testsome", "Get_status_some", "waitsome", "testsome", "get_status_some")
    box = np.zeros(1)
    comm.Send(np.full(1, 7.0), 0, 1)
    request = {"array": lambda: comm.Irecv(box, 0, 1), "object": lambda: comm.irecv(source=0, tag=1), "null": MPI.Request}[kind]()
    while kind != "null" and not request.Get_status():
        pass
    for call in [getattr(request, name) for name in names]:
        with pytest.raises(TypeError, match="expected a Status"):
            call(wrong)
    for name in ("Waitany", "Testany", "Get_status_any", "waitany", "testany", "get_status_any"):
        with pytest.raises(TypeError, match="expected a Status"):
            getattr(MPI.Request, name)([request], wrong)
    for call in [getattr(MPI.Request, name) for name in many + some]:
        for requests, statuses in (([request], [wrong]), ([request, MPI.Request()], [wrong])):
            with pytest.raises(TypeError, match="expected a Status in statuses"):
                call(requests, statuses)
    assert bool(request) == (kind != "null")
    request.Wait()
    assert (box[0] == 7) == (kind == "array") and comm.Iprobe(0, 1) == (kind == "null")
    assert MPI.Status().Get_error() == MPI.SUCCESS


@pytest.mark.ranks(1, 2)
def test_forgotten_and_freed_requests_are_used_again(comm: Any) -> None:
    """Each of them kept its native request for good."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    data, room, seen = np.zeros(1), np.zeros(1), set()
    for _ in range(200):
        for start in (comm.Ibarrier, lambda: comm.Isend(data, right), lambda: comm.Irecv(room, left)):
            request = start()
            if isinstance(request._state, Compiled):  # else it was the first one, or is complete
                seen.add(request._state.request)
            del request
        comm.Barrier()
        for make in (lambda: comm.Send_init(data, right), lambda: comm.Barrier_init()):
            persistent = make()
            assert isinstance(persistent._state, Compiled)
            seen.add(persistent._state.request)
            persistent.Free()
    assert len(seen) < 60
