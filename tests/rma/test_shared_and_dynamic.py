"""Windows whose memory ranks load from and store to, and windows to which memory is attached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI


def doubles(memory: Any) -> np.ndarray:
    return np.frombuffer(memory, np.float64)


# Shared


@pytest.mark.ranks(1, 2, 3, 5, topology="machine")
def test_segments_lie_one_behind_the_other(comm: Any) -> None:
    """Of other lengths, one of them none, in the order of ranks of a communicator that reverses them."""
    comm = comm.Split(0, -comm.rank)
    count = 0 if comm.rank == 1 else 3 + comm.rank
    win = MPI.Win.Allocate_shared(8 * count, 8 + comm.rank, comm=comm)
    assert win.flavor == MPI.WIN_FLAVOR_SHARED and len(win.tomemory()) == 8 * count
    doubles(win)[:] = comm.rank
    win.Fence()
    end = None
    for rank in range(comm.size):
        memory, unit = win.Shared_query(rank)
        assert unit == 8 + rank and (doubles(memory) == rank).all()
        assert len(memory) == (0 if rank == 1 else 8 * (3 + rank))
        assert end is None or memory.address == end
        end = memory.address + len(memory)
    first, _ = win.Shared_query(MPI.PROC_NULL)
    assert first.address == win.Shared_query(0)[0].address
    whole = doubles(MPI.memory.fromaddress(first.address, end - first.address))
    win.Fence()
    if comm.rank == comm.size - 1:
        whole[:] = 7
    win.Fence()
    assert (doubles(win) == 7).all()
    win.Free()


@pytest.mark.ranks(2, 3, topology="machine")
def test_accesses_and_atomics_on_shared_memory(comm: Any) -> None:
    win = MPI.Win.Allocate_shared(8, 8, comm=comm)
    counter = np.frombuffer(win, np.int64)
    counter[:] = 0
    win.Fence()
    for _ in range(100):
        win.Accumulate(np.ones(1, np.int64), 0)
    win.Fence()
    assert np.frombuffer(win.Shared_query(0)[0], np.int64)[0] == 100 * comm.size
    win.Free()


@pytest.mark.ranks(2, topology="nolocal")
def test_ranks_of_other_nodes_share_nothing(comm: Any) -> None:
    with pytest.raises(MPI.Exception, match="COMM_TYPE_SHARED") as caught:
        MPI.Win.Allocate_shared(8, comm=comm)
    assert caught.value.Get_error_class() == MPI.ERR_RMA_SHARED
    own = comm.Split_type(MPI.COMM_TYPE_SHARED)
    win = MPI.Win.Allocate_shared(8, comm=own)
    assert len(win.Shared_query(0)[0]) == 8
    win.Free()
    far = MPI.Win.Allocate(16, comm=comm)
    assert len(far.Shared_query(comm.rank)[0]) == 16 and len(far.Shared_query(1 - comm.rank)[0]) == 0
    # Of the first rank that has any, which is on another node for the other one.
    assert len(far.Shared_query(MPI.PROC_NULL)[0]) == (16 if comm.rank == 0 else 0)
    far.Free()


@pytest.mark.ranks(2, 3, topology="machine")
@pytest.mark.parametrize(
    ("size", "unit", "error_class"),
    [(-1, 1, "ERR_SIZE"), (8, 0, "ERR_DISP"), (1 << 62, 1, "ERR_NO_MEM"), (1 << 64, 1, "ERR_NO_MEM")],
)
def test_what_one_rank_asks_for_in_vain_fails_on_all(comm: Any, size: int, unit: int, error_class: str) -> None:
    last = comm.rank == comm.size - 1
    with pytest.raises(MPI.Exception) as caught:
        MPI.Win.Allocate_shared(size if last else 8, unit if last else 1, comm=comm)
    assert caught.value.Get_error_class() == getattr(MPI, error_class)
    win = MPI.Win.Allocate_shared(8, comm=comm)
    win.Free()


@pytest.mark.ranks(2, 4, topology="machine")
@pytest.mark.parametrize("size", [1 << 61, 1 << 62, (1 << 63) - 1, 1 << 64])
def test_segments_whose_sum_is_no_word(comm: Any, size: int) -> None:
    """Four times 2**62 is nothing in a word of 64 bits."""
    with pytest.raises(MPI.Exception) as caught:
        MPI.Win.Allocate_shared(size, comm=comm)
    assert caught.value.Get_error_class() == MPI.ERR_NO_MEM


@pytest.mark.ranks(2)
def test_other_windows_can_be_queried(comm: Any) -> None:
    """Memory that this rank cannot load from has no bytes."""
    memory = np.full(2, comm.rank + 1.0)
    win = MPI.Win.Create(memory, 8, comm=comm)
    own, unit = win.Shared_query(comm.rank)
    assert unit == 8 and own.address == memory.ctypes.data and len(own) == 16
    assert len(win.Shared_query(1 - comm.rank)[0]) == 0
    win.Free()


# Dynamic


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("kind", ["private", "of the arena"])
def test_attached_memory_is_reached_by_its_address(comm: Any, kind: str) -> None:
    check_attached_memory(comm, kind)


@pytest.mark.ranks(2, 3, topology="nolocal")
@pytest.mark.parametrize("kind", ["private", "of the arena"])
def test_attached_memory_of_another_node_is_reached_by_its_address(comm: Any, kind: str) -> None:
    check_attached_memory(comm, kind)


def check_attached_memory(comm: Any, kind: str) -> None:
    """Regions come and go while the window is used."""
    win = MPI.Win.Create_dynamic(comm=comm)
    assert win.flavor == MPI.WIN_FLAVOR_DYNAMIC and win.attrs[:2] == (0, 0)
    assert MPI.Get_address(win.tomemory()) == win.tomemory().address == len(win.tomemory()) == 0
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(3):
        rooms = [np.zeros(10) if kind == "private" else doubles(MPI.Alloc_mem(80)) for _ in range(4)]
        for room in rooms:
            room[:] = 0
            win.Attach(room)
        addresses = comm.allgather([MPI.Get_address(room) for room in rooms])
        win.Lock_all()
        for k, address in enumerate(addresses[right]):
            win.Put(np.full(3, 10.0 * comm.rank + k + turn), right, [address + 16, 3, MPI.DOUBLE])
            win.Accumulate(np.ones(1), right, [address + 16, 1, MPI.DOUBLE])
        win.Flush_all()
        win.Unlock_all()
        comm.Barrier()
        for k, room in enumerate(rooms):
            value = 10.0 * left + k + turn
            assert room.tolist() == [0, 0, value + 1, value, value, 0, 0, 0, 0, 0]
        got = np.zeros(10)
        win.Lock(right, MPI.LOCK_SHARED)
        win.Get(got, right, [addresses[right][3], 10, MPI.DOUBLE])
        win.Unlock(right)
        assert got[2] == 10.0 * comm.rank + 3 + turn + 1
        comm.Barrier()
        for room in reversed(rooms):
            win.Detach(room)
    win.Free()


@pytest.mark.ranks(1, 2)
def test_memory_that_is_not_attached_is_not_touched(comm: Any) -> None:
    check_what_is_not_attached(comm)


@pytest.mark.ranks(2, topology="nolocal")
def test_memory_of_another_node_that_is_not_attached_is_not_touched(comm: Any) -> None:
    check_what_is_not_attached(comm)


def check_what_is_not_attached(comm: Any) -> None:
    win = MPI.Win.Create_dynamic(comm=comm)
    rooms = np.zeros((3, 8))
    win.Attach(rooms[0])
    win.Attach(rooms[2])
    target = comm.size - 1
    start = comm.bcast(MPI.Get_address(rooms), root=target)
    win.Lock(target)
    for first, count in ((64, 1), (56, 2), (-8, 1), (128, 9), (-start, 1)):
        with pytest.raises(MPI.Exception) as caught:
            win.Put(np.ones(count), target, [start + first, count, MPI.DOUBLE])
            win.Flush(target)
        assert caught.value.Get_error_class() == MPI.ERR_RMA_RANGE
    win.Put(np.ones(8), target, [start + 128, 8, MPI.DOUBLE])
    win.Put(np.ones(0), target, [start + 64, 0, MPI.DOUBLE])
    win.Unlock(target)
    comm.Barrier()
    if comm.rank == target:
        assert (rooms[2] == 1).all() and not rooms[:2].any()
    comm.Barrier()
    win.Free()


@pytest.mark.ranks(1)
def test_bad_calls(comm: Any) -> None:
    room = np.zeros(8)
    win, other = MPI.Win.Create_dynamic(comm=comm), MPI.Win.Allocate(8, comm=comm)
    win.Attach(room)
    bad = [
        (MPI.ERR_RMA_ATTACH, lambda: win.Attach(room)),
        (MPI.ERR_RMA_ATTACH, lambda: win.Attach(room[2:3])),
        (MPI.ERR_RMA_ATTACH, lambda: win.Detach(room[1:])),
        (MPI.ERR_RMA_FLAVOR, lambda: other.Attach(room)),
        (MPI.ERR_RMA_FLAVOR, lambda: other.Detach(room)),
        (MPI.ERR_RMA_FLAVOR, lambda: win.Shared_query(0)),
        (MPI.ERR_RANK, lambda: other.Shared_query(1)),
        (MPI.ERR_WIN, lambda: MPI.WIN_NULL.Attach(room)),
    ]
    for error_class, call in bad:
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == error_class
    win.Detach(room)
    for part in room:
        assert part == 0
    many = np.zeros(1025)
    for k in range(1024):
        win.Attach(many[k : k + 1])
    with pytest.raises(MPI.Exception, match="all that there can be"):
        win.Attach(many[1024:])
    win.Free()
    other.Free()
