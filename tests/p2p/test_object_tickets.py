"""Receives of objects by tickets: plain values in one compiled call, everything else taken over by Python."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, rc
from ncclx_mpi.api import fast, object_messages
from ncclx_mpi.p2p import object_requests
from ncclx_mpi.p2p.layout import FREE
from numba_kernels.jit import entry

LARGE = list(range(50_000))
KINDS: list[Any] = [None, 7, "text", b"", {"a": [1.5, (None, True)]}, bytearray(b"\0not plain"), 1 << 80, np.float64(2.5), LARGE]


@pytest.mark.ranks(1, 2, 3, 5)
def test_every_kind_every_way(comm: Any) -> None:
    above, below, status = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, MPI.Status()
    for turn, obj in enumerate(KINDS):
        for end in ("wait", "test", "waitall", "Wait", "status", "testall", "waitany", "waitsome"):
            receiving = comm.irecv(source=below, tag=turn)
            sending = comm.isend(obj, above, turn)
            if end == "wait":
                assert receiving.wait() == obj
            elif end == "test":
                flag, found = receiving.test()
                while not flag:
                    assert found is None
                    flag, found = receiving.test()
                assert found == obj
            elif end == "waitall":
                assert MPI.Request.waitall([MPI.REQUEST_NULL, sending, receiving]) == [None, None, obj]
            elif end == "Wait":
                assert receiving.Wait()
            elif end == "status":
                assert receiving.wait(status) == obj and (status.source, status.tag) == (below, turn)
                assert status.count > 0 and not status.cancelled
            elif end == "testall":
                flag, several = False, None
                while not flag:
                    flag, several = MPI.Request.testall((receiving, sending))
                assert several == [obj, None]
            elif end == "waitany":
                found = [MPI.Request.waitany([receiving, sending]) for _ in range(2)]
                assert sorted(found, key=lambda pair: pair[0]) == [(0, obj), (1, None)]
            else:
                missing = 2
                while missing:
                    indices, objects = MPI.Request.waitsome([receiving, sending])
                    missing -= len(indices)
                    assert all(brought == (None if index else obj) for index, brought in zip(indices, objects, strict=True))
            assert not receiving and sending.wait() is None


@pytest.mark.ranks(1)
@pytest.mark.parametrize("obj", [{"a": "plain value"}, {"no plain value"}])
def test_without_memory_for_what_has_come_that_is_raised(comm: Any, obj: Any) -> None:
    """The objects of several receives are made one after another: each allocation fails once."""
    python = pytest.importorskip("_testcapi")
    ends: list[Any] = []
    for failing in range(12):
        requests = [comm.irecv(source=0), comm.irecv(source=0), comm.isend(obj, 0), comm.isend(obj, 0)]
        if failing == 0:
            assert MPI.Request.waitall(requests) == [obj, obj, None, None]
            continue
        found: Any = None
        python.set_nomemory(failing, failing + 1)
        try:
            found = fast.complete_all_objects(requests, 1, True)
        except MemoryError as error:
            found = error
        finally:
            python.remove_mem_hooks()
        ends.append(type(found))
        assert isinstance(found, MemoryError | list | tuple)
        MPI.Request.Waitall(requests)  # of a call that has not even begun
    assert MemoryError in ends and ends[-1] is not MemoryError


@pytest.mark.ranks(2)
def test_tickets_are_used_again(comm: Any) -> None:
    other = 1 - comm.rank
    for _ in range(3):
        several = [comm.irecv(source=other, tag=tag) for tag in range(20)]
        comm.Barrier()
        MPI.Request.waitall([comm.isend(tag, other, tag) for tag in range(20)])
        assert MPI.Request.waitall(several) == list(range(20))
    before = len(object_messages._posted)
    for turn in range(100):
        receiving = comm.irecv(source=other)
        comm.send({"turn": turn}, other)
        assert receiving.wait() == {"turn": turn}
    assert len(object_messages._posted) == before > 0


@pytest.mark.ranks(2)
def test_a_receive_that_nobody_waits_for_lets_a_large_sender_go(comm: Any) -> None:
    """Not even after the thread that looks after receives has gone to sleep for want of any."""
    if comm.rank == 0:
        time.sleep(1.2)
        comm.send(LARGE, 1)
        comm.send(LARGE, 1, 1)
        comm.Barrier()
        return
    kept = comm.irecv(source=0)
    comm.irecv(source=0, tag=1)  # dropped: it goes on by itself
    gc.collect()
    comm.Barrier()
    assert kept.wait() == LARGE


@pytest.mark.ranks(2)
def test_other_ends(comm: Any) -> None:
    other, status = 1 - comm.rank, MPI.Status()
    receiving = comm.irecv(source=other, tag=5)
    receiving.Cancel()
    assert receiving.wait(status) is None and status.cancelled
    receiving = comm.irecv(source=other, tag=6)
    copy = MPI.Request(receiving)
    comm.send("twice", other, 6)
    assert copy.wait() == "twice"
    with pytest.raises(MPI.Exception):
        receiving.wait()
    receiving = comm.irecv(source=other, tag=7)
    assert receiving.test() == (False, None) and not receiving.get_status()
    comm.Barrier()
    comm.send((1, 2), other, 7)
    while not receiving.get_status(status):
        pass
    assert status.tag == 7 and receiving.wait() == (1, 2)
    receiving = comm.irecv(source=other, tag=8)
    receiving.Free()
    comm.send("for nobody", other, 8)
    receiving = comm.irecv(source=other, tag=9)
    comm.Send(np.zeros(50_000, np.uint8), other, 9)
    with pytest.raises(MPI.Exception) as caught:
        receiving.wait()
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert comm.irecv(source=MPI.PROC_NULL).wait() is None
    for wrong in ({"source": 2}, {"source": 0, "tag": -5}):
        with pytest.raises(MPI.Exception):
            comm.irecv(**wrong)


@pytest.mark.ranks(2)
def test_room_for_plain_bytes(comm: Any) -> None:
    """A program that says how large a message may be gets that; the lead of an object needs no more than the default."""
    other = 1 - comm.rank
    for room in (100_000, bytearray(100_000)):
        receiving = comm.irecv(room, other)
        comm.Isend(object_messages.pickle.dumps(LARGE[:20_000]), other).Wait()
        assert receiving.wait() == LARGE[:20_000]
    assert rc.options().irecv_bufsz <= object_messages.PLAIN_MAX


@pytest.mark.ranks(1)
def test_a_request_that_is_of_another_message_by_now(comm: Any) -> None:
    """Background progress walks over a copy of the list: what it looks at may have ended, and be the receive of an array since."""
    receiving = comm.Irecv(found := np.zeros(3), 0)
    comm.Send(np.ones(3), 0)
    while not receiving.Get_status():
        pass
    request = receiving._state.request
    assert entry(object_requests.look_at_posted)(request) == FREE and entry(object_requests.take_partial)(request) is None
    assert receiving.Wait() and (found == 1).all()
