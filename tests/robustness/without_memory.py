"""Two ranks, on the first of which compiled code finds no memory during one call after the other: run by ``test_no_memory.py``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
refused: list[int] = []
is_short = False


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
def allocate(nbytes: int) -> int | None:
    """What compiled code of this process takes for malloc."""
    if is_short:
        refused.append(nbytes)
        return None
    found: int | None = libc.malloc(nbytes)
    return found


llvm.add_symbol("malloc", ctypes.cast(allocate, ctypes.c_void_p).value)

import numpy as np  # noqa: E402

from ncclx_mpi import MPI  # noqa: E402
from numba_kernels import pickling  # noqa: E402

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
ITEMS = 1 << 16
block, blocks = np.ones(ITEMS), np.ones(size * ITEMS)
counts = [ITEMS - 5, ITEMS]
whole = sum(counts)

COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "bcast": lambda comm: comm.bcast({"a": 1}),
    "gather": lambda comm: comm.gather({"a": 1}),
    "scatter": lambda comm: comm.scatter([{"a": 1}] * size),
    "allgather": lambda comm: comm.allgather({"a": 1}),
    "alltoall": lambda comm: comm.alltoall([{"a": 1}] * size),
    "Bcast": lambda comm: comm.Bcast(block),
    "Gather": lambda comm: comm.Gather(block, blocks),
    "Scatter": lambda comm: comm.Scatter(blocks, block),
    "Allgather": lambda comm: comm.Allgather(block, blocks),
    "Alltoall": lambda comm: comm.Alltoall(blocks, blocks.copy()),
    "Allreduce": lambda comm: comm.Allreduce(blocks, blocks.copy()),
    "Reduce": lambda comm: comm.Reduce(blocks, blocks.copy()),
    "Reduce to another": lambda comm: comm.Reduce(blocks, blocks.copy(), root=1),
    "Reduce_scatter_block": lambda comm: comm.Reduce_scatter_block(blocks, block.copy()),
    "Reduce_scatter": lambda comm: comm.Reduce_scatter(blocks[:whole], np.ones(counts[rank]), counts),
    "Scan": lambda comm: comm.Scan(blocks, blocks.copy()),
    "Exscan": lambda comm: comm.Exscan(blocks, blocks.copy()),
    "Gatherv": lambda comm: comm.Gatherv(blocks[: counts[rank]], [blocks.copy(), counts]),
    "Scatterv": lambda comm: comm.Scatterv([blocks, counts], np.ones(counts[rank])),
    "Allgatherv": lambda comm: comm.Allgatherv(blocks[: counts[rank]], [blocks.copy(), counts]),
    "Alltoallv": lambda comm: comm.Alltoallv([blocks, [counts[rank]] * 2], [blocks.copy(), counts]),
    "Alltoallw": lambda comm: comm.Alltoallw(
        [blocks, ([ITEMS] * 2, [0, 8 * ITEMS]), [MPI.DOUBLE] * 2], [blocks.copy(), ([ITEMS] * 2, [0, 8 * ITEMS]), [MPI.DOUBLE] * 2]
    ),
}


def waits_for_several() -> None:
    """Handles are completed in Python where there is no memory to list them."""
    received = [np.zeros(3) for _ in range(4)]
    requests = [world.Irecv(each, 1 - rank, tag) for tag, each in enumerate(received)]
    requests += [world.Isend(np.full(3, rank + 1.0), 1 - rank, tag) for tag in range(4)]
    set_short(True)
    MPI.Request.Waitsome(requests[:2])
    MPI.Request.Waitall(requests)
    objects = [world.isend({"a": rank}, 1 - rank), world.irecv(source=1 - rank)]
    assert MPI.Request.waitall(objects)[1] == {"a": 1 - rank}
    assert all((each == 2 - rank).all() for each in received)


def sends_and_receives() -> None:
    """A plain value goes the general way."""
    set_short(True)
    assert world.sendrecv({"a": rank}, 1 - rank, source=1 - rank) == {"a": 1 - rank}
    if rank == 0:
        world.send([1], 1)
        assert world.recv(source=1) == [2]
    else:
        assert world.recv(source=0) == [1]
        world.send([2], 0)


def failure(call: Callable[..., Any], *args: Any) -> BaseException | None:
    """What a call raises."""
    try:
        call(*args)
    except (MPI.Exception, MemoryError) as error:
        return error
    return None


def set_short(value: bool) -> None:
    """Let compiled code of rank 0 find no memory; rooms for pickles that it has are not used."""
    global is_short
    is_short = value and rank == 0
    pickling._table[0] = 0


def main() -> None:
    for name, call in COLLECTIVES.items():
        comm = world.Dup()
        call(comm)
        world.Barrier()
        refused.clear()
        set_short(True)
        error = failure(call, comm)
        set_short(False)
        assert error is None or isinstance(error, MPI.Exception), repr(error)
        if rank == 0:
            assert bool(refused) or error is None, f"{name}: {error!r}"
            assert error is None or error.Get_error_class() == MPI.ERR_NO_MEM, f"{name}: {error!r}"
        world.Barrier()
    for work in (waits_for_several, sends_and_receives):
        world.Barrier()
        work()
        set_short(False)
    world.Barrier()
    print("done", rank)


main()
