"""Messages of derived datatypes, which block or not, or are started again and again: what lands where, when, and what is held meanwhile."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, arguments
from ncclx_mpi.api import comm_p2p
from ncclx_mpi.api import fast as api_fast

D = MPI.DOUBLE
ROWS, WIDTH = 5, 4
SECONDS = 10.0
LEARNS, IS_ANY_KNOWN = api_fast.learns, comm_p2p.is_any_known


def known(kind: MPI.Datatype) -> MPI.Datatype:
    """A datatype that compiled code knows, as it does from its first message on."""
    kind.Commit()
    api_fast.meet(kind._state)
    return kind


def column() -> MPI.Datatype:
    return known(D.Create_vector(ROWS, 1, WIDTH))


def table(rank: int, turn: int = 0) -> Any:
    return np.arange(float(ROWS * WIDTH)).reshape(ROWS, WIDTH) + 100 * rank + 1000 * turn


def blank() -> Any:
    return np.full((ROWS, WIDTH), -1.0)


def check(landing: Any, sent: Any, first: int = 0, rows: int = ROWS) -> None:
    """Column `first` has come, as far as so many rows, and nothing else has changed."""
    expected = blank()
    expected[:rows, first] = sent[:rows, first]
    np.testing.assert_array_equal(landing, expected)


def only_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("this went the general way")

    for name in ("send", "recv"):
        monkeypatch.setattr(arguments, name, fail)


def layouts() -> dict[str, tuple[MPI.Datatype, int]]:
    """Datatypes of at most 30 doubles, and how many elements of each are sent."""
    rows = D.Create_vector(3, 2, 4)
    return {
        "column": (D.Create_vector(5, 1, 6), 1),
        "rows": (rows.Create_resized(0, 16), 2),
        "dense": (D.Create_contiguous(3), 4),
        "a dense one behind a gap": (D.Create_indexed_block(4, [2]), 1),
        "indexed": (D.Create_indexed([1, 3, 2], [20, 4, 9]), 1),
        "backwards": (D.Create_hvector(3, 1, -24).Create_resized(0, 8), 0),
        "struct": (MPI.Datatype.Create_struct([1, 2], [16, 0], [D, MPI.INT]), 3),
        "none": (rows, 0),
    }


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("name", layouts())
def test_derived_datatypes(comm: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed by compiled code or by Python, as some are that it cannot know, at both ends or at one."""
    (kind, count), (right, left) = layouts()[name], ((comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
    kind.Commit()
    sent, theirs = (np.arange(30.0) + 100 * rank for rank in (comm.rank, left))
    status, packed, expected = MPI.Status(), bytearray(), np.full(30, -1.0)
    for element in range(count):
        for offset, nbytes in kind._state.blocks.tolist():
            at = element * kind.extent + offset
            packed += theirs.tobytes()[at : at + nbytes]
            expected.view(np.uint8)[at : at + nbytes] = theirs.view(np.uint8)[at : at + nbytes]
    for turn in range(4):
        by_python = turn == 0 or (turn == 1 and comm.rank % 2 == 0) or (turn == 2 and comm.rank % 2 == 1)
        monkeypatch.setattr(api_fast, "learns", (lambda *_: False) if by_python else LEARNS)
        monkeypatch.setattr(comm_p2p, "is_any_known", (lambda: False) if by_python else IS_ANY_KNOWN)
        for way in range(4):
            received = np.full(30, -1.0)
            into = [received, count, kind] if way != 3 or not packed else packed_into(received, packed)
            if way == 0:
                comm.Sendrecv([sent, count, kind], right, turn, into, left, turn, status)
            elif way == 1:
                request = comm.Isend([sent, count, kind], right, turn)
                comm.Recv(into, left, turn, status)
                request.Wait()
            elif way == 2:
                request = comm.Irecv(into, left, turn)
                comm.Send([sent, count, kind], right, turn)
                request.Wait(status)
            else:
                comm.Sendrecv([sent, count, kind], right, turn, into, left, turn, status)
            assert (status.Get_source(), status.Get_tag(), status.Get_elements(MPI.BYTE)) == (left, turn, len(packed))
            if way == 3 and packed:
                assert received.tobytes()[: len(packed)] == packed
            else:
                np.testing.assert_array_equal(received, expected)
    kind.Free()


def packed_into(received: Any, packed: bytearray) -> Any:
    """A plain buffer of as many bytes."""
    return [received.view(np.uint8), len(packed), MPI.BYTE]


@pytest.mark.ranks(1, topology="machine")
def test_derived_datatypes_are_packed_by_compiled_code(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = D.Create_vector(4, 1, 4).Commit()
    sent, received = np.arange(16.0).reshape(4, 4), np.zeros((4, 4))
    with monkeypatch.context() as patched:
        only_compiled(patched)
        comm.Sendrecv([sent, 1, rows], 0, 0, [received, 1, rows], 0, 0)
    assert received[:, 0].tolist() == [0.0, 4.0, 8.0, 12.0] and (received[:, 1:] == 0).all()
    rows.Free()


@pytest.mark.ranks(2)
def test_messages_that_are_shorter_or_longer_than_a_derived_receive(comm: Any) -> None:
    column = D.Create_vector(4, 1, 3).Commit()
    for _ in range(3):
        if comm.rank == 0:
            comm.Send(np.arange(3.0), 1)
            comm.Send(np.arange(5.0), 1)
            comm.Send(np.arange(4.0).view(np.uint8)[:12].copy(), 1)
            continue
        status, landing = MPI.Status(), np.full((4, 3), -1.0)
        comm.Recv([landing, 1, column], 0, status=status)
        assert landing[:, 0].tolist() == [0.0, 1.0, 2.0, -1.0] and (landing[:, 1:] == -1.0).all()
        assert status.Get_elements(D) == 3
        with pytest.raises(MPI.Exception) as raised:
            comm.Recv([landing, 1, column], 0)
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
        landing[:] = -1.0
        comm.Recv([landing, 1, column], 0, status=status)
        assert (
            landing[0, 0] == 0.0
            and landing.view(np.uint8).reshape(4, 24)[1, :4].tolist() == [0, 0, 0, 0]
            and status.Get_elements(MPI.BYTE) == 12
        )
    comm.Barrier()
    column.Free()


@pytest.mark.ranks(2)
def test_long_messages_of_derived_datatypes(comm: Any) -> None:
    """Some are packed in the call, longer ones without the GIL."""
    for rows in (1000, 30_000, 70_000):
        column = D.Create_vector(rows, 1, 2).Commit()
        data, landing = np.arange(2.0 * rows).reshape(rows, 2) + comm.rank, np.zeros((rows, 2))
        for _ in range(3):
            landing[:] = -1.0
            comm.Sendrecv([data, 1, column], 1 - comm.rank, 0, [landing, 1, column], 1 - comm.rank, 0)
            np.testing.assert_array_equal(landing[:, 0], data[:, 0] - comm.rank + (1 - comm.rank))
            assert (landing[:, 1] == -1.0).all()
        column.Free()


@pytest.mark.ranks(1)
def test_what_is_wrong_with_derived_datatypes(comm: Any) -> None:
    column, data = D.Create_vector(4, 1, 3).Commit(), np.arange(12.0)
    for _ in range(3):
        comm.Sendrecv([data, 1, column], 0, 0, [np.zeros(12), 1, column], 0, 0)
    frozen = np.zeros(12)
    frozen.flags.writeable = False
    for spec in ([data, 2, column], [data[:9].copy(), 1, column], [data, -1, column]):
        with pytest.raises((ValueError, MPI.Exception)):
            comm.Send(spec, 0)
    with pytest.raises((BufferError, ValueError)):
        comm.Sendrecv([data, 1, column], 0, 0, [frozen, 1, column], 0, 0)
    column.Free()
    with pytest.raises((ValueError, MPI.Exception)):
        comm.Send([data, 1, column], 0)
    assert not comm.Iprobe()


def wait_all(requests: list[MPI.Request], statuses: list[MPI.Status]) -> None:
    MPI.Request.Waitall(requests, statuses)


def wait_each(requests: list[MPI.Request], statuses: list[MPI.Status]) -> None:
    for request, status in reversed(list(zip(requests, statuses, strict=True))):
        request.Wait(status)


def test_all(requests_of: list[MPI.Request], statuses: list[MPI.Status]) -> None:
    until(lambda: MPI.Request.Testall(requests_of, statuses))


test_all.__test__ = False  # type: ignore[attr-defined]


def wait_any(requests: list[MPI.Request], statuses: list[MPI.Status]) -> None:
    for _ in requests:
        status = MPI.Status()
        statuses[MPI.Request.Waitany(requests, status)] = status
    assert MPI.Request.Waitany(requests) == MPI.UNDEFINED


def wait_some(requests: list[MPI.Request], statuses: list[MPI.Status]) -> None:
    left = len(requests)
    while left:
        found = [MPI.Status() for _ in requests]
        places = MPI.Request.Waitsome(requests, found) or []
        for place, status in zip(places, found, strict=False):
            statuses[place] = status
        left -= len(places)


WAYS: list[Callable[[list[MPI.Request], list[MPI.Status]], None]] = [wait_all, wait_each, test_all, wait_any, wait_some]


def until(is_so: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("complete", WAYS, ids=lambda way: way.__name__)
def test_columns_land_in_their_places(comm: Any, monkeypatch: pytest.MonkeyPatch, complete: Any) -> None:
    only_compiled(monkeypatch)
    kind, (right, left) = column(), ((comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
    sent, theirs = table(comm.rank), table(left)
    for _ in range(3):
        landings, statuses = [blank() for _ in range(WIDTH)], [MPI.Status() for _ in range(WIDTH)]
        receiving = [
            comm.Irecv([landing.ravel()[at:], 1, kind] if at else [landing, 1, kind], left, at)
            for at, landing in enumerate(landings)
        ]
        comm.Barrier()
        sending = [comm.Isend([sent.ravel()[at:], 1, kind], right, at) for at in reversed(range(WIDTH))]
        complete(receiving, statuses)
        MPI.Request.Waitall(sending)
        for at, (landing, status) in enumerate(zip(landings, statuses, strict=True)):
            check(landing, theirs, at)
            assert (status.Get_source(), status.Get_tag(), status.Get_elements(D)) == (left, at, ROWS)
        assert all(request == MPI.REQUEST_NULL for request in receiving)
    kind.Free()


@pytest.mark.ranks(1, 2, 3)
def test_persistent_columns(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent is what is in the array when it is started."""
    kind, (right, left) = column(), ((comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
    sent, landing, status = blank(), blank(), MPI.Status()
    receive = comm.Recv_init([landing, 1, kind], left, 3)
    sends = [make([sent, 1, kind], right, 3) for make in (comm.Send_init, comm.Ssend_init)]
    with monkeypatch.context() as patched:
        only_compiled(patched)
        for turn in range(6):
            sent[:], landing[:] = table(comm.rank, turn), -1.0
            send = sends[turn % 2]
            if turn < 3:
                MPI.Prequest.Startall([receive, send])
                sent[:] = 0.0
                MPI.Request.Waitall([send, receive], statuses := [MPI.Status(), MPI.Status()])
                status = statuses[1]
            else:
                receive.Start()
                send.Start()
                until(lambda status=status: receive.Test(status))
                until(send.Test)
                assert receive.Test(status)  # inactive now
            check(landing, table(left, turn))
            assert turn >= 3 or (status.Get_source(), status.Get_elements(D)) == (left, ROWS)
    for request in (receive, *sends):
        request.Free()
    kind.Free()


@pytest.mark.ranks(2)
def test_shorter_and_longer_messages(comm: Any) -> None:
    kind, peer = column(), 1 - comm.rank
    if comm.rank == 0:
        for persistent in range(2):
            for count in (3, ROWS + 1, 0, ROWS):
                comm.recv(source=peer)
                comm.Ssend(np.arange(float(count)) if not persistent else [np.arange(float(count)), D], peer)
    else:
        landing = blank()
        again = comm.Recv_init([landing, 1, kind], peer)
        for persistent in range(2):
            for count in (3, ROWS + 1, 0, ROWS):
                landing[:] = -1.0
                request, status = again if persistent else comm.Irecv([landing, 1, kind], peer), MPI.Status()
                if persistent:
                    again.Start()
                comm.send(None, peer)
                if count > ROWS:
                    with pytest.raises(MPI.Exception) as raised:
                        request.Wait(status)
                    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
                    assert (landing[:, 1:] == -1.0).all()
                    continue
                request.Wait(status)
                assert landing[:count, 0].tolist() == list(range(count)) and (landing[count:, 0] == -1.0).all()
                assert (landing[:, 1:] == -1.0).all() and status.Get_elements(D) == count
        again.Free()
    comm.Barrier()
    kind.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("is_persistent", [False, True], ids=["once", "persistent"])
def test_what_nobody_waits_for_lands(comm: Any, is_persistent: bool) -> None:
    """The request is forgotten, or freed, before its message comes."""
    kind, peer = column(), 1 - comm.rank
    for turn in range(3):
        if comm.rank == 0:
            landing = blank()
            if is_persistent:
                request = comm.Recv_init([landing, 1, kind], peer)
                request.Start()
                request.Free()
            else:
                request = comm.Irecv([landing, 1, kind], peer)
                if turn:
                    request.Free()
            del request
            gc.collect()
            comm.send(None, peer)
            until(lambda landing=landing: (landing[:, 0] != -1.0).all() or comm.Iprobe(peer, 99))
            check(landing, table(peer, turn))
        else:
            comm.recv(source=peer)
            comm.Send([table(comm.rank, turn), 1, kind], peer)
        comm.Barrier()
    kind.Free()


@pytest.mark.ranks(2)
def test_cancelled_receives_change_nothing(comm: Any) -> None:
    kind, peer = column(), 1 - comm.rank
    landing, status = blank(), MPI.Status()
    again = comm.Recv_init([landing, 1, kind], peer, 5)
    for request in (comm.Irecv([landing, 1, kind], peer, 5), again):
        if request is again:
            again.Start()
        request.Cancel()
        request.Wait(status)
        assert status.Is_cancelled() and (landing == -1.0).all()
    comm.Barrier()
    again.Start()
    comm.Send([table(comm.rank), 1, kind], peer, 5)
    again.Wait(status)
    assert not status.Is_cancelled()
    check(landing, table(peer))
    again.Free()
    kind.Free()


@pytest.mark.ranks(2)
def test_messages_of_several_senders_and_lengths(comm: Any) -> None:
    """Those that are announced land as those that come at once, and longer ones go the general way."""
    peer = 1 - comm.rank
    for rows in (10, 3000, 30_000, 50_000):
        kind = known(D.Create_vector(rows, 1, 2))
        data, landing = np.arange(2.0 * rows).reshape(rows, 2) + comm.rank, np.full((rows, 2), -1.0)
        again, sending = comm.Recv_init([landing, 1, kind], MPI.ANY_SOURCE), comm.Send_init([data, 1, kind], peer)
        for turn in range(4):
            landing[:] = -1.0
            if turn < 2:
                MPI.Request.Waitall([comm.Irecv([landing, 1, kind], MPI.ANY_SOURCE), comm.Isend([data, 1, kind], peer)])
            else:
                MPI.Prequest.Startall([again, sending])
                MPI.Request.Waitall([again, sending])
            np.testing.assert_array_equal(landing[:, 0], data[:, 0] - comm.rank + peer)
            assert (landing[:, 1] == -1.0).all()
        again.Free()
        sending.Free()
        kind.Free()


def exchange_with_itself(comm: Any, kind: Any, source: Any, landing: Any) -> None:
    receiving = comm.Irecv([landing, 1, kind], 0)
    comm.Isend([source, 1, kind], 0).Wait()
    receiving.Wait()
    again = [comm.Recv_init([landing, 1, kind], 0), comm.Send_init([source, 1, kind], 0)]
    MPI.Prequest.Startall(again)
    MPI.Request.Waitall(again)
    for request in again:
        request.Free()


@pytest.mark.ranks(1)
def test_nothing_is_kept(comm: Any) -> None:
    kind, source, landing = column(), np.arange(float(ROWS * WIDTH)), blank()
    given = [kind, kind._state, source, landing]
    for _ in range(5):
        exchange_with_itself(comm, kind, source, landing)
    before = [sys.getrefcount(each) for each in given]
    for _ in range(100):
        exchange_with_itself(comm, kind, source, landing)
    assert [sys.getrefcount(each) for each in given] == before


@pytest.mark.ranks(1)
def test_what_is_under_way_keeps_what_it_needs(comm: Any) -> None:
    kind, landing, source = column(), blank(), table(0)
    weakly = weakref.ref(landing)
    receiving = comm.Irecv([landing, 1, kind], 0)
    del landing
    gc.collect()
    assert weakly() is not None
    comm.Send([source, 1, kind], 0)
    kind.Free()
    receiving.Wait()
    gc.collect()
    assert weakly() is None


@pytest.mark.ranks(1)
def test_what_is_wrong_goes_the_general_way(comm: Any) -> None:
    kind, data = column(), np.arange(20.0)
    frozen = np.zeros(20)
    frozen.flags.writeable = False
    for spec in ([data, 2, kind], [data[:16].copy(), 1, kind], [data, -1, kind]):
        for call in (comm.Irecv, comm.Recv_init, comm.Isend, comm.Send_init):
            with pytest.raises((ValueError, MPI.Exception)):
                call(spec, 0)
    for call in (comm.Irecv, comm.Recv_init):
        with pytest.raises((BufferError, ValueError)):
            call([frozen, 1, kind], 0)
    kind.Free()
    with pytest.raises((ValueError, MPI.Exception)):
        comm.Irecv([data, 1, kind], 0)
    assert not comm.Iprobe()


@pytest.mark.ranks(2)
def test_a_copied_handle_is_completed_in_python(comm: Any) -> None:
    kind, peer = column(), 1 - comm.rank
    for turn in range(4):
        landing = blank()
        request = comm.Irecv([landing, 1, kind], peer, turn)
        copied = MPI.Request(request)
        comm.Send([table(comm.rank, turn), 1, kind], peer, turn)
        (copied if turn % 2 else request).Wait()
        check(landing, table(peer, turn))
    kind.Free()
