"""Large non-blocking collectives by direct copies, between forked ranks: all of them, many at once, and what goes wrong."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.collectives import Pending, shm_oneshot
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import PEER
from numba_kernels import reduce as reductions
from numba_kernels.layout import WORD
from tests.collectives.cases import CASES
from tests.collectives.forked import Signals, die_in_the_middle, give_up_in_the_middle, run_ranks
from tests.collectives.test_failures import raises
from tests.collectives.test_nonblocking import receive, send, start_allreduce, started
from tests.secret import secret_memory
from transports.shm.lane import LANE

VECTORS = {"gatherv", "scatterv", "allgatherv", "alltoallv"}
LARGE = {"bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "reduce_scatter_block", "reduce_scatter"}
LENGTHS = (20_000, 200_001, 600_001)
"""The first goes by lines in some collectives; the last is more than a piece of bytes, or than a chunk of elements."""


def run_cases(comm: NativeComm, way: int) -> None:
    """Every collective of plain operands in which bytes beyond lines move, polled a little and waited for; others as blocking ones."""
    without_plan: set[str] = set()
    start = started(comm, without_plan)
    large = [case for case in CASES if case.__name__ in {*LARGE, *VECTORS, "reduction"}]
    for length in LENGTHS:
        without_plan.clear()
        for case in large:
            case(comm, start, length)
    assert comm._words[shm_oneshot.SCRATCH.ahead // WORD] == (way if comm.size > 1 else shm_oneshot.UNASKED)
    direct = LARGE | VECTORS if way == shm_oneshot.AGREED else set()
    assert without_plan == (direct if comm.size > 1 else VECTORS | {"reduce_scatter"})  # which is empty there


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_of_them(size: int) -> None:
    run_ranks(size, run_cases, shm_oneshot.AGREED)


def test_where_nothing_is_copied_directly_they_are_plans() -> None:
    run_ranks(2, run_cases, shm_oneshot.PLANNED, copies="piped")


def agreed_before(comm: NativeComm) -> None:
    """What blocking collectives agreed on counts for those after them."""
    block = np.full(100_000, 1.0)
    address = block.ctypes.data, len(block), 8, reductions.address("sum", "f64"), True
    collectives.allreduce(comm, 0, *address)
    pending = Pending(comm)
    number = pending.start("allreduce", (0, *address))
    pending.wait(number, "allreduce")
    assert (block == comm.size**2).all()


def test_after_blocking_ones() -> None:
    run_ranks(3, agreed_before)


def waited_in_reverse(comm: NativeComm) -> None:
    """Many at once, between small and blocking ones; the first is waited for last."""
    pending, indices = Pending(comm), range(20)
    blocks = [np.full(3 if index % 3 == 0 else 70_000, (comm.rank + 1.0) * (index + 1)) for index in indices]
    numbers = [start_allreduce(pending, block) for block in blocks]
    pending.start("barrier", ())
    collectives.barrier(comm)
    for index in reversed(indices):
        pending.wait(numbers[index], "allreduce")
        assert (blocks[index] == (index + 1) * comm.size * (comm.size + 1) / 2).all(), index


@pytest.mark.parametrize("size", [2, 3, 5])
def test_many_at_once(size: int) -> None:
    run_ranks(size, waited_in_reverse)


def start_never_blocks(comm: NativeComm) -> None:
    """Rank 1 starts nothing before rank 0 has started all."""
    pending, word = Pending(comm), np.zeros(1)
    blocks = [np.full(100_000, comm.rank, dtype=np.uint8) for _ in range(40)]
    if comm.rank == 1:
        receive(comm, word)
    numbers = [pending.start("bcast", (block.ctypes.data, block.nbytes, 0)) for block in blocks]
    assert all(numbers)
    if comm.rank == 0:
        send(comm, word, 1)
    for number, block in zip(numbers, blocks, strict=True):
        pending.wait(number, "bcast")
        assert not block.any()


def test_a_start_never_blocks() -> None:
    run_ranks(2, start_never_blocks)


def completes_in_a_receive(comm: NativeComm) -> None:
    """Rank 0 copies its share while it waits for a message that comes when the others have waited for it."""
    pending, block = Pending(comm), np.full(500_000, 1.0 + comm.rank)
    number = start_allreduce(pending, block)
    if comm.rank == 0:
        receive(comm, np.zeros(1), comm.size - 1)
    pending.wait(number, "allreduce")
    assert (block == comm.size * (comm.size + 1) / 2).all()
    if comm.rank == comm.size - 1:
        send(comm, np.zeros(1), 0)


@pytest.mark.parametrize("size", [2, 3])
def test_whoever_waits_for_a_message_does_its_share(size: int) -> None:
    run_ranks(size, completes_in_a_receive)


def refused(comm: NativeComm, sides: tuple[int, ...]) -> None:
    nbytes = 100_000
    room = secret_memory(4 * nbytes) if comm.rank in sides else np.zeros(4 * nbytes, np.uint8)
    given, pending = np.full(2 * nbytes, comm.rank + 1, np.uint8), Pending(comm)
    for _ in range(3):
        room[:] = 0
        number = pending.start("allgather", (given.ctypes.data, nbytes, room.ctypes.data))
        pending.wait(number, "allgather")
        assert (room[:nbytes] == 1).all() and (room[nbytes : 2 * nbytes] == 2).all() and not room[2 * nbytes :].any()
        number = pending.start("alltoall", (0, room.ctypes.data, nbytes))
        while not pending.test(number, "alltoall"):
            pass
        assert (room[: 2 * nbytes] == comm.rank + 1).all() and not room[2 * nbytes :].any()
        number = pending.start("bcast", (room.ctypes.data, nbytes, 1))
        pending.wait(number, "bcast")
        assert (room[:nbytes] == 2).all() and not room[2 * nbytes :].any()


@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)])
def test_buffers_that_the_kernel_refuses_have_copies(sides: tuple[int, ...]) -> None:
    secret_memory(1)
    run_ranks(2, refused, sides)


def one_cannot_reach_the_others(comm: NativeComm, raised: Signals) -> None:
    """Rank 1 is not allowed to copy although all said that they take part: nobody hangs, and who waits for it is told what to do."""
    pending, block = Pending(comm), np.full(100_000, 1.0)
    if comm.rank == 1:
        table = np.asarray(comm.engine._peers).reshape(-1, PEER.total // 8)
        table[:, LANE.reach // 8] = 1  # the kernel does not let it
        assert start_allreduce(pending, block) == 0
        raised.wait()
    else:
        number = start_allreduce(pending, block)
        assert "NCCLX_MPI_COPIES=piped" in raises(errors.ERR_BUFFER, lambda: pending.wait(number, "allreduce"))
        raised.give()


def test_a_rank_that_cannot_reach_the_others_says_so() -> None:
    run_ranks(2, one_cannot_reach_the_others, Signals())


def one_is_killed(comm: NativeComm, started: Signals) -> None:
    """Rank 1 dies with half of its pieces copied, in the second collective: a dead rank is no longer asked whether it is reached."""
    pending, block, first = Pending(comm), np.full(4_000_000, 1.0), np.full(100_000, 1.0)
    pending.wait(start_allreduce(pending, first), "allreduce")
    number = start_allreduce(pending, block)
    die_in_the_middle(comm, started, lambda: pending.wait(number, "allreduce"))


def test_a_rank_that_dies_in_the_middle_is_named() -> None:
    run_ranks(3, one_is_killed, Signals(3))


def one_gives_up(comm: NativeComm, seen: Signals) -> None:
    """Rank 0 gives up while rank 1 copies into its memory: nothing is written into it any more."""
    pending, nbytes = Pending(comm), 200 << 20
    room, given = np.zeros(2 * nbytes, np.uint8), np.full(nbytes, 7, np.uint8)
    collectives.barrier(comm)
    number = pending.start("allgather", (given.ctypes.data, nbytes, room.ctypes.data))
    if comm.rank == 0:
        while not room[nbytes]:
            comm.engine.progress()
        pending.abandon()
        written = np.count_nonzero(room[nbytes:])
        if 0 < written < nbytes:
            seen.give(0)
        time.sleep(0.3)
        assert np.count_nonzero(room[nbytes:]) == written
    else:
        try:
            pending.wait(number, "allgather")
        except errors.Exception as error:
            assert error.Get_error_class() == errors.ERR_OTHER, error
            seen.give(1)


def test_nothing_writes_into_the_memory_of_a_rank_that_gave_up() -> None:
    give_up_in_the_middle(one_gives_up)


def disagree(comm: NativeComm, is_blocking: bool) -> None:
    """Other bytes on rank 1, or a blocking call: both find out."""
    pending, block = Pending(comm), np.zeros(200_000)
    with pytest.raises(errors.Exception) as caught:
        if comm.rank == 1 and is_blocking:
            arguments = block.ctypes.data, len(block), 8, reductions.address("sum", "f64"), True
            collectives.allreduce(comm, 0, *arguments)
        else:
            number = start_allreduce(pending, block[: len(block) - 8 * comm.rank * (not is_blocking)])
            pending.wait(number, "allreduce")
    wanted = errors.ERR_OTHER if is_blocking else errors.ERR_TRUNCATE
    assert caught.value.Get_error_class() in (wanted, errors.ERR_OTHER)


@pytest.mark.parametrize("is_blocking", [False, True])
def test_ranks_that_disagree(is_blocking: bool) -> None:
    run_ranks(2, disagree, is_blocking, timeout=5)


def two_threads(comm: NativeComm) -> None:
    """A thread exchanges messages while another one waits for large collectives."""
    pending, other = Pending(comm), 1 - comm.rank
    rounds = 30

    def talk() -> None:
        word = np.zeros(1)
        for _ in range(rounds):
            if comm.rank:
                send(comm, word, other)
                receive(comm, word, other)
            else:
                receive(comm, word, other)
                send(comm, word, other)

    thread = threading.Thread(target=talk)
    thread.start()
    for _ in range(rounds):
        block = np.full(300_000, comm.rank + 1.0)
        pending.wait(start_allreduce(pending, block), "allreduce")
        assert (block == 3).all()
    thread.join()


def test_beside_a_thread_that_sends_messages() -> None:
    run_ranks(2, two_threads)
