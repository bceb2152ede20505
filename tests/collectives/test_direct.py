"""Direct collectives: what the kernel refuses, and ranks that give up while others write into their memory."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.collectives.cma import PIECE
from ncclx_mpi.collectives.reduce_scatter.cma import LEAST_CHUNK, MOST_CHUNK, chunk_items
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import REFUSED
from numba_kernels import reduce as reductions
from tests.collectives import cases
from tests.collectives.forked import Signals, give_up_in_the_middle, run_ranks
from tests.secret import secret_memory
from transports.shm.arena import Arena
from transports.shm.layout import HEADER
from transports.shm.transport import SharedMemory

NBYTES = 100_000


def refused(comm: NativeComm, sides: tuple[int, ...]) -> None:
    room = secret_memory(4 * NBYTES) if comm.rank in sides else np.zeros(4 * NBYTES, np.uint8)
    send = np.full(2 * NBYTES, comm.rank + 1, np.uint8)
    for _ in range(3):
        room[:] = 0
        collectives.allgather(comm, send.ctypes.data, NBYTES, room.ctypes.data)
        assert (room[:NBYTES] == 1).all() and (room[NBYTES : 2 * NBYTES] == 2).all() and not room[2 * NBYTES :].any()
        collectives.alltoall(comm, 0, room.ctypes.data, NBYTES)
        assert (room[: 2 * NBYTES] == comm.rank + 1).all() and not room[2 * NBYTES :].any()


@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)])
def test_buffers_that_the_kernel_refuses_go_by_streams(sides: tuple[int, ...]) -> None:
    secret_memory(NBYTES)
    run_ranks(2, refused, sides, copies="direct")


WORK: dict[str, Callable[[NativeComm, int, int, int], None]] = {
    "bcast": lambda comm, send, recv, nbytes: collectives.bcast(comm, recv if comm.rank else send, nbytes, 0),
    "gather": lambda comm, send, recv, nbytes: collectives.gather(comm, send, nbytes, recv, 0),
    "scatter": lambda comm, send, recv, nbytes: collectives.scatter(comm, send, recv, nbytes, 0),
    "alltoallv": lambda comm, send, recv, nbytes: collectives.alltoallv(comm, send, *even(comm, nbytes), recv, *even(comm, nbytes)),
    "reduce": lambda comm, send, recv, nbytes: collectives.reduce(comm, send, recv, nbytes, 1, add(), True, 0),
    "allreduce": lambda comm, send, recv, nbytes: collectives.allreduce(comm, send, recv, nbytes, 1, add(), True),
    "reduce_scatter_block": lambda comm, send, recv, nbytes: collectives.reduce_scatter_block(
        comm, send, recv, nbytes, 1, add(), True
    ),
    "exscan": lambda comm, send, recv, nbytes: collectives.exscan(comm, send, recv, nbytes, 1, add(), True),
}
"""Every collective on buffers of one block for each rank; rank 0 is the root."""


def add() -> int:
    return reductions.address("sum", "u8")


def even(comm: NativeComm, nbytes: int) -> tuple[list[int], list[int]]:
    return [nbytes] * comm.size, [rank * nbytes for rank in range(comm.size)]


def wanted(comm: NativeComm, name: str) -> npt.NDArray[np.uint8] | None:
    """What the blocks of the result hold if rank r sends r + 1; None where the rank gets nothing."""
    ranks = np.arange(1, comm.size + 1, dtype=np.uint8)
    if (comm.rank and name in ("gather", "reduce")) or (not comm.rank and name in ("bcast", "exscan")):
        return None
    return {
        "bcast": ranks[:1],
        "scatter": ranks[:1],
        "exscan": ranks[: comm.rank].sum(keepdims=True, dtype=np.uint8),
        "gather": ranks,
        "alltoallv": ranks,
    }.get(name, ranks.sum(keepdims=True, dtype=np.uint8))


def refused_anywhere(comm: NativeComm, name: str, sides: tuple[int, ...]) -> None:
    half = comm.size * NBYTES
    room = secret_memory(2 * half) if comm.rank in sides else np.zeros(2 * half, np.uint8)
    for _ in range(3):
        room[:half], room[half:] = comm.rank + 1, 0
        WORK[name](comm, room.ctypes.data, room.ctypes.data + half, NBYTES)
        blocks = wanted(comm, name)
        if blocks is not None:
            np.testing.assert_array_equal(room[half : half + blocks.size * NBYTES], blocks.repeat(NBYTES))
            assert not room[half + blocks.size * NBYTES :].any()
    collectives.barrier(comm)


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize(("size", "sides"), [(2, (0,)), (2, (1,)), (3, (0, 2)), (3, (1,))])
def test_refused_buffers_of_every_collective(name: str, size: int, sides: tuple[int, ...]) -> None:
    secret_memory(NBYTES)
    run_ranks(size, refused_anywhere, name, sides, copies="direct")


def pieces_in_both_orders(comm: NativeComm) -> None:
    """Blocks of several pieces, every case once in an even and once in an odd collective."""
    for _ in range(2):
        for case in (cases.alltoall, cases.allgather, cases.allgatherv):
            case(comm, lambda name: getattr(collectives, name), 2 * PIECE + 1)
        for case in cases.REDUCTIONS:
            case(comm, lambda name: getattr(collectives, name), PIECE // 2 + 1)
        collectives.barrier(comm)


@pytest.mark.parametrize("size", [2, 3])
def test_pieces_in_both_orders(size: int) -> None:
    run_ranks(size, pieces_in_both_orders, copies="direct")


@pytest.mark.parametrize(
    ("l2_bytes", "chunk"),
    [(0, LEAST_CHUNK), (512 << 10, LEAST_CHUNK), (3 << 19, 192 << 10), (2 << 20, MOST_CHUNK), (64 << 20, MOST_CHUNK)],
)
def test_chunks_of_reductions_fit_the_cache(l2_bytes: int, chunk: int) -> None:
    arena = Arena.create(1)
    arena.set_word(HEADER.l2_bytes, l2_bytes)
    comm = Engine(arena, [SharedMemory(arena, 0)], 0).new_comm(0, [0], -1)
    for itemsize in (1, 4, 16):
        assert chunk_items(comm.address, 4 * MOST_CHUNK // itemsize, itemsize) * itemsize == chunk
        assert chunk_items(comm.address, LEAST_CHUNK // itemsize, itemsize) * itemsize == LEAST_CHUNK
    assert chunk_items(comm.address, 3, 2 * MOST_CHUNK) == 1


def chunks_of_every_cache(comm: NativeComm) -> None:
    """The same bits in every rank's result, and whatever the chunks are."""
    arena, block, count = comm.engine.arena, 5 * MOST_CHUNK // 4 + 3, comm.size * (5 * MOST_CHUNK // 4 + 3)
    sent = [np.random.default_rng(rank).standard_normal(count, np.float32) for rank in range(comm.size)]
    total = sent[0].copy()
    for other in sent[1:]:
        total += other
    operation = 4, reductions.address("sum", "f32"), True
    for l2_bytes in (0, 3 << 19, 2 << 20):
        collectives.barrier(comm)
        if comm.rank == 0:
            arena.set_word(HEADER.l2_bytes, l2_bytes)
        collectives.barrier(comm)
        send, recv = sent[comm.rank].copy(), np.zeros(count, np.float32)
        collectives.allreduce(comm, send.ctypes.data, recv.ctypes.data, count, *operation)
        assert recv.tobytes() == total.tobytes()
        collectives.reduce(comm, *((send.ctypes.data, 0) if comm.rank else (0, send.ctypes.data)), count, *operation, 0)
        assert send.tobytes() == (total if comm.rank == 0 else sent[comm.rank]).tobytes()
        send[:], recv[:] = sent[comm.rank], 0
        collectives.reduce_scatter_block(comm, send.ctypes.data, recv.ctypes.data, block, *operation)
        assert recv[:block].tobytes() == total[comm.rank * block : (comm.rank + 1) * block].tobytes() and not recv[block:].any()
    collectives.barrier(comm)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_chunks_of_reductions_are_not_seen_in_results(size: int) -> None:
    run_ranks(size, chunks_of_every_cache, copies="direct")


def dies_in_the_middle(comm: NativeComm, name: str) -> None:
    """Rank 1 ends while all copy; the others are told so, sooner or later within this collective or the next ones."""
    nbytes = 16 << 20
    room = np.ones(2 * comm.size * nbytes, np.uint8)
    addresses = room.ctypes.data, room.ctypes.data + comm.size * nbytes

    def die() -> None:
        comm.engine.arena.declare_dead(1)
        os._exit(0)

    WORK[name](comm, *addresses, NBYTES)  # agrees, and loads the code
    if comm.rank == 1:
        threading.Timer(0.02, die).start()
    with pytest.raises(errors.Exception) as caught:
        for _ in range(1000):
            WORK[name](comm, *addresses, nbytes)
    assert caught.value.Get_error_class() == errors.ERR_PROC_FAILED and "rank 1 died" in str(caught.value)


@pytest.mark.parametrize("name", WORK)
def test_a_rank_that_dies_in_the_middle_is_named(name: str) -> None:
    run_ranks(3 if name != "exscan" else 2, dies_in_the_middle, name, copies="direct")


def interrupted_while_copying(comm: NativeComm, seen: Signals) -> None:
    """Rank 1, which waits for nobody while it pulls its half, is interrupted in the middle of it."""
    nbytes = 512 << 20
    room = np.zeros(nbytes, np.uint8)
    collectives.bcast(comm, room.ctypes.data, NBYTES, 0)  # agrees, and loads the code
    comm.engine.set_word("slice_ticks", 1)
    if comm.rank == 0:
        room[:] = 1
    collectives.barrier(comm)

    def call() -> None:
        collectives.bcast(comm, room.ctypes.data, nbytes, 0)

    if comm.rank == 0:
        notes_failure(seen, call)
    elif is_interrupted(room, call) and room[0] == 1 and room[nbytes // 2 - 1] == 0:
        seen.give(0)


def test_an_interrupt_ends_a_copy_between_two_pieces() -> None:
    give_up_in_the_middle(interrupted_while_copying, copies="direct")


def notes_failure(seen: Signals, call: Callable[[], object]) -> None:
    """The side of the rank that is not interrupted."""
    try:
        call()
    except errors.Exception:
        seen.give(1)


def is_interrupted(room: npt.NDArray[np.uint8], call: Callable[[], object]) -> bool:
    """Make a call that is interrupted when something has been written into `room`, or else right after it; was it in time?"""
    is_over = False
    try:
        threading.Thread(target=interrupt_when_written, args=(room,)).start()
        call()
        is_over = True
        time.sleep(60)
    except KeyboardInterrupt:
        return not is_over
    raise AssertionError("no interrupt came")


def interrupt_when_written(room: npt.NDArray[np.uint8]) -> None:
    while room[0] == 0 and room[-1] == 0:
        time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGINT)


GATHERINGS: dict[str, Callable[[NativeComm, int, int, int, list[int], tuple[int, int]], None]] = {
    "allgatherv": collectives.allgatherv,
    "gatherv": lambda *args: collectives.gatherv(*args, 0),
}


def given_up(comm: NativeComm, name: str, seen: Signals) -> None:
    """Rank 0 is interrupted while rank 1 writes into its memory, piece by piece."""
    gather = GATHERINGS[name]
    counts = [100_000, 800 << 20]
    room = np.zeros(sum(counts), np.uint8)
    send = np.full(counts[comm.rank], 7, np.uint8)
    small = [20_000, 20_000]
    gather(comm, send.ctypes.data, 20_000, room.ctypes.data, small, (0, 20_000))  # agrees, and loads the code
    room[: sum(small)] = 0
    collectives.barrier(comm)

    def call() -> None:
        gather(comm, send.ctypes.data, counts[comm.rank], room.ctypes.data, counts, (0, counts[0]))

    if comm.rank == 1:
        notes_failure(seen, call)
    elif is_interrupted(room[counts[0] :], call):
        written = np.count_nonzero(room)
        if counts[0] < written < room.size:
            seen.give(0)
        time.sleep(0.3)
        assert np.count_nonzero(room) == written


@pytest.mark.parametrize("name", GATHERINGS)
def test_nothing_writes_into_the_memory_of_a_rank_that_gave_up(name: str) -> None:
    give_up_in_the_middle(given_up, name, copies="direct")


def refused_by_the_dead(comm: NativeComm) -> None:
    """The kernel refuses a copy from a process that has ended before anybody is told that it has."""
    arena = comm.engine.arena
    if comm.rank == 1:
        return
    threading.Timer(0.2, arena.declare_dead, (1,)).start()
    error = comm.engine.failure(REFUSED, "allgather")
    assert error.Get_error_class() == errors.ERR_PROC_FAILED and "rank 1 died" in str(error), error


def test_a_copy_that_is_refused_since_a_rank_died_says_so() -> None:
    run_ranks(2, refused_by_the_dead)


def alltoall_in_place(comm: NativeComm, address: int, nbytes: int) -> None:
    collectives.alltoall(comm, 0, address, nbytes)


def reduce_scatter_in_place(comm: NativeComm, address: int, nbytes: int) -> None:
    collectives.reduce_scatter_block(comm, 0, address, nbytes, 1, add(), True)


def without_memory(comm: NativeComm, work: Callable[[NativeComm, int, int], None], wanted: tuple[int, int]) -> None:
    """Rank 0 finds no memory for what is kept apart in place."""
    nbytes = 40 << 20
    room = np.full(2 * nbytes, comm.rank + 1, np.uint8)
    work(comm, room.ctypes.data, NBYTES)  # agrees, and loads the code
    room[:] = comm.rank + 1
    if comm.rank == 0:
        with open("/proc/self/statm", encoding="ascii") as found:
            mapped = int(found.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + nbytes, resource.RLIM_INFINITY))
    work(comm, room.ctypes.data, nbytes)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # to look at all of it takes memory
    assert (room[:nbytes] == wanted[0]).all() and (wanted[1] == 0 or (room[nbytes:] == wanted[1]).all())


@pytest.mark.parametrize(("work", "wanted"), [(alltoall_in_place, (1, 2)), (reduce_scatter_in_place, (3, 0))])
def test_in_place_without_memory_for_a_copy_goes_by_streams(
    work: Callable[[NativeComm, int, int], None], wanted: tuple[int, int], pytestconfig: pytest.Config
) -> None:
    if pytestconfig.getoption("guard_arrays"):
        pytest.skip("arrays with pages of their own take more memory than is left here")
    run_ranks(2, without_memory, work, wanted, copies="direct")
