"""Windows: what each rank writes and reads in the memory of each other one, and what is refused."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import pickle
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ARENA, ALLOCATED, PRIVATE = "arena", "allocated", "private"
KINDS = pytest.mark.parametrize("kind", [ARENA, ALLOCATED, PRIVATE])


def make(comm: Any, kind: str, count: int, dtype: Any = np.int64) -> tuple[Any, Any]:
    """Return a window of `count` elements on each rank, all -1, and this rank's memory as an array."""
    from ncclx_mpi import MPI

    unit = np.dtype(dtype).itemsize
    if kind == ARENA:
        win = MPI.Win.Allocate(count * unit, unit, comm=comm)
        memory = np.frombuffer(win.tomemory(), dtype)
    else:
        memory = np.zeros(count, dtype) if kind == PRIVATE else np.frombuffer(MPI.Alloc_mem(count * unit), dtype)
        win = MPI.Win.Create(memory, unit, comm=comm)
    memory[:] = -1
    comm.Barrier()
    return win, memory


def pattern(source: int, target: int, count: int) -> Any:
    return np.arange(count, dtype=np.int64) + 1000 * source + 100_000 * target


@KINDS
@pytest.mark.ranks(1, 2, 3)
def test_put_and_get_among_all_pairs(comm: Any, kind: str) -> None:
    block = 37
    win, memory = make(comm, kind, block * comm.size)
    win.Fence()
    for target in range(comm.size):
        win.Put(pattern(comm.rank, target, block), target, block * comm.rank)
    win.Fence()
    everything = [np.concatenate([pattern(source, target, block) for source in range(comm.size)]) for target in range(comm.size)]
    assert memory.tolist() == everything[comm.rank].tolist()
    for target in range(comm.size):
        found = np.zeros(block * comm.size, np.int64)
        win.Get(found, target)
        assert found.tolist() == everything[target].tolist()
        part = np.zeros(block, np.int64)
        win.Rget(part, target, [block * (comm.size - 1), block]).Wait()
        assert part.tolist() == pattern(comm.size - 1, target, block).tolist()
    win.Free()


@KINDS
@pytest.mark.ranks(1, 2, 3)
def test_derived_types_at_origin_and_target(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI

    rows, columns = 50, 4
    win, memory = make(comm, kind, rows * columns)
    column = MPI.INT64_T.Create_vector(rows, 1, columns).Create_resized(0, 8).Commit()
    peer = (comm.rank + 1) % comm.size
    source = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns) + 10_000 * comm.rank
    win.Fence()
    win.Put([source, 2, column], peer, [1, 2, column])
    win.Fence()
    left = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns) + 10_000 * ((comm.rank - 1) % comm.size)
    expected = np.full((rows, columns), -1)
    expected[:, 1:3] = left[:, 0:2]
    assert memory.reshape(rows, columns).tolist() == expected.tolist()
    win.Fence()
    flat, turned = np.zeros(rows, np.int64), np.zeros((rows, columns), np.int64)
    win.Get(flat, peer, [2, 1, column])
    assert flat.tolist() == source[:, 1].tolist()
    win.Get([turned, 1, column], peer, [1, rows, MPI.INT64_T])
    assert turned[0, 0] == source[0, 0] and not turned[:, 1:].any()
    win.Fence()
    win.Free()


@pytest.mark.ranks(2)
def test_many_blocks_of_private_memory(comm: Any) -> None:
    from ncclx_mpi import MPI

    count = 5000
    win, memory = make(comm, PRIVATE, 3 * count, np.int16)
    pieces = MPI.INT16_T.Create_vector(count, 2, 3).Commit()
    win.Fence()
    win.Put(np.arange(2 * count, dtype=np.int16), 1 - comm.rank, [0, 1, pieces])
    win.Fence()
    grid = memory.reshape(count, 3)
    assert grid[:, :2].ravel().tolist() == list(range(2 * count)) and (grid[:, 2] == -1).all()
    found = np.zeros(2 * count, np.int16)
    win.Get(found, 1 - comm.rank, [0, 1, pieces])
    assert found.tolist() == list(range(2 * count))
    win.Free()


@KINDS
@pytest.mark.ranks(1, 2, 3)
def test_ranks_bring_different_sizes_and_units(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI

    size, unit = 8 * comm.rank, 1 + comm.rank
    if kind == ARENA:
        win = MPI.Win.Allocate(size, unit, comm=comm)
    else:
        memory = bytearray(size) if kind == PRIVATE else MPI.Alloc_mem(size)
        win = MPI.Win.Create(memory, unit, comm=comm)
    assert win.attrs[1:] == (size, unit) and len(win.tomemory()) == size
    assert win.Get_attr(MPI.WIN_SIZE) == size and win.Get_attr(MPI.WIN_BASE) == win.attrs[0]
    win.Fence()
    if comm.rank == 0:
        for target in range(1, comm.size):
            win.Put(b"\x07", target, 3)
    win.Fence()
    assert list(win.tomemory()) == [7 if at == 3 * unit else 0 for at in range(size)]
    for target in range(comm.size):
        win.Get(bytearray(8 * target), target)
        with pytest.raises(MPI.Exception) as caught:
            win.Get(bytearray(8 * target + 1), target)
        assert caught.value.Get_error_class() == MPI.ERR_RMA_RANGE
    win.Free()


@KINDS
@pytest.mark.ranks(2)
def test_bounds_are_the_target_s(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI

    win, memory = make(comm, kind, 10)
    stretched = MPI.INT64_T.Create_vector(2, 1, 9).Commit()
    one = np.ones(1, np.int64)
    win.Fence()
    for target in (10, -1, [9, 2], [1 << 62], [10, 1, MPI.BYTE]):
        count = target[1] if isinstance(target, list) and len(target) == 2 else 1
        origin: Any = b"x" if isinstance(target, list) and len(target) == 3 else np.ones(count, np.int64)
        with pytest.raises(MPI.Exception) as caught:
            win.Put(origin, 1 - comm.rank, target)
        assert caught.value.Get_error_class() == MPI.ERR_RMA_RANGE
        assert f"target rank {1 - comm.rank}" in str(caught.value) and "80 bytes" in str(caught.value)
    win.Put(np.ones(2, np.int64), 1 - comm.rank, [0, 1, stretched])
    with pytest.raises(MPI.Exception):
        win.Put(np.ones(2, np.int64), 1 - comm.rank, [1, 1, stretched])
    for wrong, code in ((2, MPI.ERR_RANK), (-7, MPI.ERR_RANK)):
        with pytest.raises(MPI.Exception) as caught:
            win.Put(one, wrong)
        assert caught.value.Get_error_class() == code
    with pytest.raises(MPI.Exception) as caught:
        win.Get(one, 0, [0, 2])
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    for spec in ({}, "0", [0, 1, MPI.INT, 4]):
        with pytest.raises(ValueError):
            win.Get(one, 0, spec)
    win.Fence()
    assert memory.tolist() == [1, *[-1] * 8, 1]
    win.Free()


@KINDS
@pytest.mark.ranks(1, 2, 3, 4)
def test_an_exclusive_lock_keeps_increments_apart(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI

    win, memory = make(comm, kind, 2)
    memory[:] = 0
    comm.Barrier()
    value, rounds = np.zeros(1, np.int64), 200
    for turn in range(rounds):
        target = (comm.rank + turn) % comm.size
        win.Lock(target, MPI.LOCK_EXCLUSIVE)
        win.Get(value, target, 1)
        value += 1
        win.Put(value, target, 1)
        win.Unlock(target)
    comm.Barrier()
    assert memory[0] == 0 and comm.allreduce(int(memory[1])) == rounds * comm.size
    win.Free()


@KINDS
@pytest.mark.ranks(1, 2, 3)
def test_epochs_among_neighbours(comm: Any, kind: str) -> None:
    from ncclx_mpi import MPI

    win, memory = make(comm, kind, 2)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    group = comm.Get_group()
    for turn in range(50):
        win.Post(group.Incl([left]))
        win.Start(group.Incl([right]))
        win.Put(np.array([turn, comm.rank]), right)
        if comm.size > 2:
            with pytest.raises(MPI.Exception):
                win.Put(np.array([turn, comm.rank]), left)
        with pytest.raises(MPI.Exception):
            win.Start(group)
        win.Complete()
        if turn % 2:
            win.Wait()
        else:
            while not win.Test():
                pass
        assert memory.tolist() == [turn, left]
    for call in (win.Wait, win.Test, win.Complete):
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == MPI.ERR_RMA_SYNC
    win.Free()


@KINDS
@pytest.mark.ranks(1, 2, 3)
def test_accumulations_are_atomic_under_shared_locks(comm: Any, kind: str) -> None:
    win, memory = make(comm, kind, 4)
    memory[:] = 0
    comm.Barrier()
    rounds, seen = 100, []
    value, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    win.Lock_all()
    for _ in range(rounds):
        win.Accumulate(np.array([1, 2], np.int64), 0, 0)
        win.Fetch_and_op(one, value, 0, 2)
        seen.append(int(value[0]))
        old = value.copy()
        while True:
            win.Compare_and_swap(old + 1, old, value, 0, 3)
            if value == old:
                break
            old[:] = value
    win.Unlock_all()
    comm.Barrier()
    if comm.rank == 0:
        total = rounds * comm.size
        assert memory.tolist() == [total, 2 * total, total, total]
    tickets = comm.allgather(seen)
    assert sorted(itertools.chain(*tickets)) == list(range(rounds * comm.size))
    win.Free()


@pytest.mark.ranks(2)
def test_accumulate_operations(comm: Any) -> None:
    from ncclx_mpi import MPI

    win, memory = make(comm, ARENA, 6, np.float32)
    memory[:] = np.arange(6)
    before = np.zeros(3, np.float32)
    spread = MPI.FLOAT.Create_vector(3, 1, 2).Commit()
    peer = 1 - comm.rank
    win.Fence()
    win.Get_accumulate(np.array([10, 1, 10], np.float32), before, peer, [0, 1, spread], MPI.MAX)
    win.Fence()
    assert before.tolist() == [0, 2, 4] and memory.tolist() == [10, 1, 2, 3, 10, 5]
    win.Fence()
    win.Get_accumulate(np.full(3, 7, np.float32), before, peer, [3], MPI.REPLACE)
    assert before.tolist() == [3, 10, 5]
    win.Fence()
    assert memory.tolist() == [10, 1, 2, 7, 7, 7]
    win.Get_accumulate([None, 0, MPI.FLOAT], before, peer, [1], MPI.NO_OP)
    assert before.tolist() == [1, 2, 7]
    for op, code in ((MPI.BAND, MPI.ERR_OP), (MPI.Op.Create(lambda a, b, t: None), MPI.ERR_OP)):
        with pytest.raises(MPI.Exception) as caught:
            win.Accumulate(before, peer, op=op)
        assert caught.value.Get_error_class() == code
    with pytest.raises(MPI.Exception) as caught:
        win.Accumulate(before, peer, [0, 3, MPI.INT])
    assert caught.value.Get_error_class() == MPI.ERR_TYPE
    with pytest.raises(ValueError):
        win.Fetch_and_op(before, before, peer)
    win.Fence()
    win.Free()


@pytest.mark.ranks(1, 3)
def test_accumulating_no_elements(comm: Any) -> None:
    """A type of no blocks, as a program that computes its indices makes on one rank, is no mistake; one of another type is."""
    from ncclx_mpi import MPI

    win, memory = make(comm, ARENA, 2, np.int32)
    memory[:] = 5
    nothing, before = MPI.INT.Create_indexed_block(1, []).Commit(), np.zeros(0, np.int32)
    win.Fence()
    win.Get_accumulate([bytearray(1), 0, MPI.BYTE], [bytearray(1), 0, MPI.BYTE], 0)  # SUM, which bytes do not have
    win.Accumulate(np.zeros(0, np.int32), 0, [0, 1, nothing], MPI.SUM)
    win.Get_accumulate(np.zeros(0, np.int32), before, 0, [0, 1, nothing], MPI.SUM)
    with pytest.raises(MPI.Exception) as caught:
        win.Accumulate(np.ones(1, np.int32), 0, [0, 1, nothing], MPI.SUM)
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    win.Fence()
    assert memory.tolist() == [5, 5]
    win.Free()


@pytest.mark.ranks(1, 2)
def test_wrong_order_of_calls(comm: Any) -> None:
    from ncclx_mpi import MPI

    win, _ = make(comm, ARENA, 4)
    data = np.zeros(1, np.int64)

    def refused(call: Any, *args: Any) -> None:
        with pytest.raises(MPI.Exception) as caught:
            call(*args)
        assert caught.value.Get_error_class() == MPI.ERR_RMA_SYNC

    refused(win.Put, data, 0)
    refused(win.Unlock, 0)
    refused(win.Unlock_all)
    refused(win.Flush, 0)
    refused(win.Flush_all)
    win.Fence()
    win.Put(data, comm.rank)
    win.Fence(MPI.MODE_NOSUCCEED)
    refused(win.Get, data, 0)
    win.Lock(comm.rank, MPI.LOCK_SHARED)
    refused(win.Lock, comm.rank)
    refused(win.Lock_all)
    refused(win.Free)
    win.Put(data, comm.rank)
    win.Flush(comm.rank)
    win.Flush_local(comm.rank)
    win.Sync()
    win.Unlock(comm.rank)
    win.Lock_all()
    refused(win.Lock, 0)
    win.Flush_all()
    win.Flush_local_all()
    win.Unlock_all()
    for call, args in ((win.Fence, (1 << 30,)), (win.Lock, (0, 7)), (win.Lock, (0, MPI.LOCK_SHARED, 3))):
        with pytest.raises(MPI.Exception):
            call(*args)
    win.Free()


@pytest.mark.ranks(1, 2)
def test_no_process_is_a_target(comm: Any) -> None:
    from ncclx_mpi import MPI

    win, memory = make(comm, ARENA, 4)
    nobody, garbage = MPI.PROC_NULL, object()
    win.Put(garbage, nobody)
    win.Get(garbage, nobody)
    win.Accumulate(garbage, nobody)
    win.Get_accumulate(garbage, garbage, nobody)
    win.Fetch_and_op(garbage, garbage, nobody)
    win.Compare_and_swap(garbage, garbage, garbage, nobody)
    for request in (win.Rput(garbage, nobody), win.Raccumulate(garbage, nobody)):
        request.Wait()
    win.Lock(nobody)
    win.Flush(nobody)
    win.Unlock(nobody)
    assert memory.tolist() == [-1] * 4
    win.Free()


@pytest.mark.ranks(1, 2)
def test_handles(comm: Any) -> None:
    from ncclx_mpi import MPI

    assert MPI.Win() == MPI.WIN_NULL and not MPI.Win() and MPI.WIN_NULL.Get_name() == "MPI_WIN_NULL"
    assert pickle.loads(pickle.dumps(MPI.WIN_NULL)) is MPI.WIN_NULL
    for call in (MPI.WIN_NULL.Fence, MPI.WIN_NULL.Free, MPI.WIN_NULL.tomemory, MPI.WIN_NULL.Get_group):
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == MPI.ERR_WIN

    class Mine(MPI.Win):
        pass

    win = Mine.Allocate(16, comm=comm, info=MPI.Info.Create({"no_locks": "false"}))
    copy = MPI.Win(win)
    assert type(win) is Mine and copy == win and win and MPI.Win.fromhandle(win.handle) == win
    assert win.Get_info().Get("no_locks") == "false" and win.flavor == MPI.WIN_FLAVOR_ALLOCATE
    assert MPI.Group.Compare(win.group, comm.group) == MPI.IDENT
    assert (win.group_size, win.group_rank) == (comm.size, comm.rank)
    copy.name = "mine"
    assert win.name == "mine"
    with pytest.raises(ValueError):
        pickle.dumps(win)
    with pytest.raises(TypeError):
        hash(win)
    deleted: list[int] = []
    key = MPI.Win.Create_keyval(delete_fn=lambda handle, keyval, value: deleted.append(value))
    win.Set_attr(key, 5)
    assert copy.Get_attr(key) == 5
    win.Free()
    assert win == MPI.WIN_NULL and deleted == [5]
    with pytest.raises(MPI.Exception):
        copy.Fence()
    MPI.WIN_NULL.free()


@pytest.mark.ranks(1)
def test_windows_are_buffers(comm: Any) -> None:
    from ncclx_mpi import MPI

    class Mine(MPI.Win):
        pass

    for kind in (MPI.Win, Mine):
        win = kind.Allocate(24, 8, comm=comm)
        view = memoryview(win).cast("d")
        view[:] = memoryview(np.arange(3.0))
        assert np.frombuffer(win).tolist() == [0, 1, 2] == np.frombuffer(win.tomemory()).tolist()
        assert view.obj is win and not view.readonly
        del view
        win.Free()
    if sys.version_info < (3, 12):
        assert len(memoryview(MPI.WIN_NULL)) == 0


@pytest.mark.ranks(1, 2)
def test_error_handlers_are_called(comm: Any) -> None:
    from ncclx_mpi import MPI

    win = MPI.Win.Allocate(8, comm=comm)
    assert win.Get_errhandler() == MPI.ERRORS_RETURN
    codes: list[int] = []
    win.Set_errhandler(MPI.Win.Create_errhandler(lambda handle, code: codes.append(code)))
    win.Call_errhandler(MPI.ERR_ARG)
    with pytest.raises(MPI.Exception) as caught:
        win.Put(b"x", 0)
    assert codes == [MPI.ERR_ARG, int(caught.value)]
    win.Free()


@pytest.mark.ranks(1, 2, 3)
def test_a_part_that_fails_on_one_rank_fails_on_all(comm: Any) -> None:
    from ncclx_mpi import MPI

    bad = comm.rank == comm.size - 1
    for memory, unit, kind in ((bytes(8), 1, BufferError), (object(), 1, TypeError), (bytearray(8), 0, MPI.Exception)):
        with pytest.raises(kind if bad else MPI.Exception):
            MPI.Win.Create(memory if bad else bytearray(8), unit if bad else 1, comm=comm)
    with pytest.raises(MPI.Exception) as caught:
        MPI.Win.Allocate(1 << 50 if bad else 8, comm=comm)
    assert caught.value.Get_error_class() == MPI.ERR_NO_MEM
    with pytest.raises(TypeError):
        MPI.Win.Allocate(8, comm=None)
    win = MPI.Win.Create(MPI.BOTTOM, comm=comm)
    assert win.attrs == (0, 0, 1)
    win.Free()
    comm.Barrier()


@pytest.mark.ranks(1, 2)
def test_memory_comes_back(comm: Any) -> None:
    from ncclx_mpi import MPI

    addresses = set()
    for _ in range(300):
        win = MPI.Win.Allocate(100_000, comm=comm)
        addresses.add(win.attrs[0])
        assert not any(win.tomemory()[:100])
        win.tomemory()[:] = 1
        win.Free()
    assert len(addresses) == 1


@pytest.mark.ranks(2)
def test_a_lock_is_waited_for(comm: Any, tmp_path: Path) -> None:
    win, _ = make(comm, ARENA, 1)
    if comm.rank == 0:
        win.Lock(0)
        comm.Barrier()
        time.sleep(0.2)
        (tmp_path / "unlocks").touch()
        win.Unlock(0)
    else:
        comm.Barrier()
        win.Lock_all()
        assert (tmp_path / "unlocks").exists()
        win.Unlock_all()
    win.Free()


@pytest.mark.ranks(2)
def test_a_wait_for_a_lock_can_be_interrupted(comm: Any) -> None:
    from ncclx_mpi import MPI

    win, memory = make(comm, ARENA, 1)
    if comm.rank == 0:
        win.Lock(0)
        comm.Barrier()
        comm.Barrier()
        win.Unlock(0)
    else:
        comm.Barrier()

        def interrupt(number: int, frame: Any) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            win.Lock(0, MPI.LOCK_SHARED)
        comm.Barrier()
        win.Lock(0)
        win.Put(np.array([os.getppid()]), 0)
        win.Unlock(0)
    win.Free()


@pytest.mark.ranks(1, 2)
def test_forks_have_no_windows(comm: Any) -> None:
    from ncclx_mpi import MPI

    win, memory = make(comm, ARENA, 1)
    win.Fence()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            win.Put(np.zeros(1), 0)
        except MPI.Exception:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    win.Fence()
    assert memory.tolist() == [-1]
    win.Free()


def test_a_holder_of_a_lock_that_dies_blocks_nobody() -> None:
    code = (
        "import os; from ncclx_mpi import MPI; comm = MPI.COMM_WORLD\n"
        "win = MPI.Win.Allocate(8, comm=comm)\n"
        "if comm.rank: win.Lock(0)\n"
        "comm.Barrier()\n"
        "if comm.rank: os.kill(os.getpid(), 9)\n"
        "try: win.Lock(0)\n"
        "except MPI.Exception as error: print(error.Get_error_class() == MPI.ERR_PROC_FAILED, error)\n"
    )
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("True") and "Win.Lock of rank 0" in done.stdout, done.stderr


class TestPrivate:
    """Memory of another process; here that process is this one."""

    def reach(self, memory: Any, token: int = 5) -> Any:
        from ncclx_mpi.rma.reach import Private

        self.token = np.array([5])
        return Private(3, os.getpid(), memory.ctypes.data, token, self.token.ctypes.data)

    def place(self, number: int) -> Any:
        from ncclx_mpi.buffers import layout
        from ncclx_mpi.rma.reach import Place

        return Place(layout.basic("BYTE", 1, 1), number, 0)

    def test_copies(self) -> None:
        memory, found = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
        self.reach(memory).read(self.place(100), found.ctypes.data)
        assert found.tolist() == memory.tolist()
        found[:] = 9
        self.reach(memory).write(self.place(50), found.ctypes.data)
        assert memory.tolist() == [9] * 50 + list(range(50, 100))

    def test_layouts_of_more_blocks_than_are_listed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ncclx_mpi.buffers import layout, shapes
        from ncclx_mpi.rma.reach import Place

        monkeypatch.setattr(layout, "_FEW", 2)
        pairs = shapes.vector(layout.basic("BYTE", 1, 1), 3, 2, 5, in_bytes=True)
        place = Place(shapes.struct(np.array([1, 2]), np.array([40, 3]), [pairs, pairs]), 2, 1)
        one = [
            start + 12 * n + 5 * i + j
            for start, copies in ((40, 1), (3, 2))
            for n in range(copies)
            for i in range(3)
            for j in range(2)
        ]
        wanted = [1 + place.layout.extent * k + at for k in range(2) for at in one]
        memory, found = np.arange(200, dtype=np.uint8), np.zeros(len(wanted), np.uint8)
        self.reach(memory).read(place, found.ctypes.data)
        assert found.tolist() == wanted
        written = np.full(len(wanted), 255, np.uint8)
        self.reach(memory).write(place, written.ctypes.data)
        assert np.flatnonzero(memory == 255).tolist() == sorted(wanted)

    def test_a_stranger_is_not_touched(self) -> None:
        from ncclx_mpi import errors

        memory = np.zeros(10, np.uint8)
        with pytest.raises(errors.Exception) as caught:
            self.reach(memory, token=6).write(self.place(10), np.ones(10, np.uint8).ctypes.data)
        assert caught.value.Get_error_class() == errors.ERR_RMA_SHARED and not memory.any()

    @pytest.mark.parametrize(
        ("number", "code", "text"),
        [
            (errno.EPERM, "ERR_RMA_SHARED", "MPI.Win.Allocate"),
            (errno.ENOSYS, "ERR_RMA_SHARED", "MPI.Win.Allocate"),
            (errno.ESRCH, "ERR_PROC_FAILED", "is gone"),
            (errno.EFAULT, "ERR_RMA_RANGE", "released memory"),
        ],
    )
    def test_a_refusal_is_explained(self, number: int, code: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from ncclx_mpi import errors
        from ncclx_mpi.rma import reach

        def refuse(*args: Any) -> int:
            ctypes.set_errno(number)
            return -1

        monkeypatch.setattr(reach, "_calls", lambda: SimpleNamespace(process_vm_readv=refuse))
        with pytest.raises(errors.Exception) as caught:
            self.reach(np.zeros(1, np.uint8)).read(self.place(1), 0)
        assert caught.value.Get_error_class() == getattr(errors, code)
        assert text in str(caught.value) and "rank 3" in str(caught.value)

    def test_a_copy_in_parts_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ncclx_mpi.rma import reach

        real, lengths = reach._calls(), []

        def short(pid: int, here: int, _one: int, there: int, count: int, flags: int) -> int:
            length = min(7, ctypes.c_int64.from_address(here + 8).value)
            ctypes.c_int64.from_address(here + 8).value = length
            lengths.append(length)
            return int(real.process_vm_readv(pid, here, 1, there, count, flags))

        monkeypatch.setattr(reach, "_calls", lambda: SimpleNamespace(process_vm_readv=short))
        memory, found = np.arange(60, dtype=np.uint8), np.zeros(60, np.uint8)
        private = self.reach(memory)
        private._is_known = True
        blocks = array("q", [word for at in range(0, 60, 10) for word in (private.address + at, 5)])
        private._copy(short, blocks, found.ctypes.data)
        assert found[:30].tolist() == [at + k for at in range(0, 60, 10) for k in range(5)]
        assert lengths == [7, 7, 7, 7, 2]
