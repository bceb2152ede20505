"""Non-blocking collectives on lines, between forked ranks: all of them, many at once, mixed with blocking ones, and their failures."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclx_mpi import collectives, errors
from ncclx_mpi.api import communicator
from ncclx_mpi.collectives import Pending
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels import reduce as reductions
from tests.collectives.cases import CASES
from tests.collectives.forked import Signals, run_ranks
from tests.collectives.test_failures import raises
from transports.shm.slots import BIG, DEPTH

RANKS = (1, 2, 3, 5, 8)
ON_LINES = (
    "barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "reduce_scatter_block", "scan", "exscan",
    "gatherv", "scatterv", "allgatherv", "alltoallv", "reduce_scatter",
)  # fmt: skip
LENGTHS = (0, 1, 2, 12, 13, 100, 512)


def started(comm: NativeComm, pending_ones: set[str]) -> Callable[[str], Callable[..., None]]:
    """Collectives by name, as cases call them: polled a little and waited for, and noted, where they start as pending ones; else blocking."""
    pending = Pending(comm)

    def start(name: str) -> Callable[..., None]:
        def run(_comm: NativeComm, *args: int) -> None:
            number = pending.start(name, args)
            if not number:
                return getattr(collectives, name)(comm, *args)
            pending_ones.add(name)
            if not any(pending.test(number, name) for _ in range(3)):
                pending.wait(number, name)
            assert pending.test(number, name)

        return run

    return start


def run_cases(comm: NativeComm) -> None:
    """Every collective that has lines, polled a little and waited for; the others in between as blocking ones."""
    by_lines: set[str] = set()
    start = started(comm, by_lines)
    for length in LENGTHS:
        for case in CASES:
            try:
                case(comm, start, length)
            except BaseException as error:
                error.add_note(f"{case.__name__}, rank {comm.rank} of {comm.size}, length {length}")
                raise
    assert by_lines == set(ON_LINES)


@pytest.mark.parametrize("size", RANKS)
def test_all_of_them(size: int) -> None:
    run_ranks(size, run_cases)


def many_barriers(comm: NativeComm) -> None:
    pending = Pending(comm)
    numbers = [pending.start("barrier", ()) for _ in range(100)]
    assert numbers == list(range(1, 101))
    pending.wait(numbers[-1], "barrier")
    assert all(pending.test(number, "barrier") for number in numbers)
    collectives.barrier(comm)


@pytest.mark.parametrize("size", RANKS)
def test_a_hundred_barriers_before_one_wait(size: int) -> None:
    run_ranks(size, many_barriers)


def start_allreduce(pending: Pending, data: np.ndarray) -> int:
    fn = reductions.address("sum", "f64")
    return pending.start("allreduce", (0, data.ctypes.data, len(data), 8, fn, True))


def waited_in_reverse(comm: NativeComm, count: int) -> None:
    """More than a ring of lines, or of payloads, can hold; the first is waited for last."""
    pending, indices = Pending(comm), range(40)
    blocks = [np.full(count, (comm.rank + 1.0) * (index + 1)) for index in indices]
    numbers = [start_allreduce(pending, block) for block in blocks]
    for index in reversed(indices):
        pending.wait(numbers[index], "allreduce")
        assert (blocks[index] == (index + 1) * comm.size * (comm.size + 1) / 2).all(), index


@pytest.mark.parametrize("count", [1, 100, 500])
@pytest.mark.parametrize("size", RANKS)
def test_forty_allreduces_waited_for_in_reverse(size: int, count: int) -> None:
    run_ranks(size, waited_in_reverse, count)


def start_never_blocks(comm: NativeComm) -> None:
    """Rank 1 starts nothing before rank 0 has started all."""
    pending, word = Pending(comm), np.zeros(1)
    blocks = [np.full(BIG, comm.rank, dtype=np.uint8) for _ in range(3 * DEPTH)]
    if comm.rank == 1:
        receive(comm, word)
    numbers = [pending.start("bcast", (block.ctypes.data, block.nbytes, 0)) for block in blocks]
    if comm.rank == 0:
        send(comm, word, 1)
    for number, block in zip(numbers, blocks, strict=True):
        pending.wait(number, "bcast")
        assert not block.any()


def test_a_start_never_blocks() -> None:
    run_ranks(2, start_never_blocks)


def send(comm: NativeComm, data: np.ndarray, dest: int) -> None:
    request = comm.engine.start_send(comm, data.ctypes.data, data.nbytes, dest, 7)
    comm.engine.wait(request)
    comm.engine.free(request)


def receive(comm: NativeComm, data: np.ndarray, source: int = 0) -> None:
    request = comm.engine.start_recv(comm, data.ctypes.data, data.nbytes, source, 7)
    comm.engine.wait(request)
    comm.engine.free(request)


def completes_in_a_receive(comm: NativeComm) -> None:
    """Rank 0 completes what is pending while it waits for a message that comes when all of it is complete elsewhere."""
    pending = Pending(comm)
    blocks = [np.full(400, 1.0 + comm.rank) for _ in range(40)]
    numbers = [start_allreduce(pending, block) for block in blocks]
    if comm.rank == 0:
        receive(comm, np.zeros(1), comm.size - 1)
        assert pending.test(numbers[-1], "allreduce")
    else:
        for number in numbers:
            pending.wait(number, "allreduce")
        if comm.rank == comm.size - 1:
            send(comm, np.zeros(1), 0)
    collectives.barrier(comm)
    assert all((block == comm.size * (comm.size + 1) / 2).all() for block in blocks)


@pytest.mark.parametrize("size", [2, 3])
def test_whoever_waits_for_a_message_completes_them(size: int) -> None:
    run_ranks(size, completes_in_a_receive)


Step = tuple[str, int, int, int, bool]
"""Collective, communicator, elements, root (modulo the ranks), and whether it blocks."""


def interleaved(comm: NativeComm, steps: Sequence[Step], seed: int) -> None:
    """A program of steps; each rank waits for what is pending where and in the order it likes."""
    comms = [comm, communicator.duplicate(comm), communicator.duplicate(comm)]
    queues, choice = [Pending(each) for each in comms], np.random.default_rng((seed, comm.rank))
    fn, ranks, open_ones = reductions.address("sum", "i64"), np.arange(comm.size), []
    for index, (name, where, count, root, blocks) in enumerate(steps):
        root %= comm.size
        mine, theirs = np.full(count, comm.rank * 1000 + index), np.zeros(count * comm.size, dtype=np.int64)
        arguments: tuple[int, ...] = {
            "bcast": (mine.ctypes.data, mine.nbytes, root),
            "allgather": (mine.ctypes.data, mine.nbytes, theirs.ctypes.data),
            "allreduce": (mine.ctypes.data, theirs.ctypes.data, count, 8, fn, True),
            "reduce": (mine.ctypes.data, theirs.ctypes.data, count, 8, fn, True, root),
        }[name]
        total = np.full(count, (ranks * 1000 + index).sum())
        result, wanted = {
            "bcast": (mine, np.full(count, root * 1000 + index)),
            "allgather": (theirs, np.repeat(ranks * 1000 + index, count)),
            "allreduce": (theirs[:count], total),
            "reduce": (theirs[:count], total if comm.rank == root else np.zeros(count)),
        }[name]
        if blocks:
            getattr(collectives, name)(comms[where], *arguments)
            np.testing.assert_array_equal(result, wanted)
        else:
            number = queues[where].start(name, arguments)
            assert number > 0
            open_ones.append((queues[where], number, name, result, wanted, (mine, theirs)))
        while open_ones and choice.random() < 0.4:
            complete(open_ones.pop(choice.integers(len(open_ones))))
    while open_ones:
        complete(open_ones.pop())


def complete(one: tuple) -> None:
    queue, number, name, result, wanted, _ = one
    queue.wait(number, name)
    np.testing.assert_array_equal(result, wanted, err_msg=f"{name} {number}")


@given(
    size=st.sampled_from([2, 3, 5]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["bcast", "allgather", "allreduce", "reduce"]),
            st.integers(0, 2),
            st.sampled_from([0, 1, 5, 6, 7, 256, 300, 512]),
            st.integers(0, 4),
            st.booleans(),
        ),
        max_size=60,
    ),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_interleaving(size: int, steps: list[Step], seed: int) -> None:
    run_ranks(size, interleaved, steps, seed)


def two_threads(comm: NativeComm) -> None:
    """Each thread has a communicator of its own; both make progress for both."""
    comms, failures = [comm, communicator.duplicate(comm)], []

    def work(mine: NativeComm) -> None:
        try:
            pending = Pending(mine)
            for turn in range(100):
                blocks = [np.full(50, 1.0 + mine.rank + turn) for _ in range(20)]
                numbers = [start_allreduce(pending, block) for block in blocks]
                for number in numbers[::-7]:
                    pending.wait(number, "allreduce")
                wanted = mine.size * (turn + (mine.size + 1) / 2)
                assert all((block == wanted).all() for block in blocks)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.parametrize("size", [2, 3])
def test_two_threads(size: int) -> None:
    run_ranks(size, two_threads)


# Failures ---------------------------------------------------------------------------------------------------------


@functools.cache
def pending_of(comm: NativeComm) -> Pending:
    """The one that a communicator has: it has the memory in which compiled code writes down what is pending, as long as that lives."""
    return Pending(comm)


def wait_for_barrier(comm: NativeComm) -> None:
    pending = pending_of(comm)
    pending.wait(pending.start("barrier", ()), "barrier")


def poll_for_barrier(comm: NativeComm) -> None:
    pending = pending_of(comm)
    number = pending.start("barrier", ())
    while not pending.test(number, "barrier"):
        time.sleep(0.001)


def block_after_barrier(comm: NativeComm) -> None:
    pending = pending_of(comm)
    pending.start("barrier", ())
    collectives.barrier(comm)


WAITS = [wait_for_barrier, poll_for_barrier, block_after_barrier]


def one_is_killed(comm: NativeComm, work: Callable[[NativeComm], None], are_through: Signals) -> None:
    work(comm)
    are_through.give(comm.rank)
    if comm.rank == 1:
        are_through.wait(0)
        are_through.wait(2)
        comm.engine.arena.declare_dead(1)
        return
    message = raises(errors.ERR_PROC_FAILED, lambda: work(comm))
    assert "rank 1 died" in message


@pytest.mark.parametrize("work", WAITS)
def test_a_dead_rank_is_named(work: Callable[[NativeComm], None]) -> None:
    run_ranks(3, one_is_killed, work, Signals(3))


def one_is_late(comm: NativeComm, work: Callable[[NativeComm], None], raised: Signals) -> None:
    if comm.rank == 0:
        assert "NCCLX_MPI_TIMEOUT" in raises(errors.ERR_PENDING, lambda: work(comm))
        raised.give()
    else:
        raised.wait()


@pytest.mark.parametrize("work", [wait_for_barrier, block_after_barrier])
def test_the_deadline_ends_a_wait(work: Callable[[NativeComm], None]) -> None:
    run_ranks(2, one_is_late, work, Signals(), timeout=0.5)


def interrupted(comm: NativeComm, work: Callable[[NativeComm], None], raised: Signals) -> None:
    work(comm)  # what was compiled is loaded now
    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            work(comm)
        raised.give()
        raises(errors.ERR_OTHER, lambda: work(comm))
    else:
        raised.wait()
        with pytest.raises(errors.Exception, match="Make a new communicator"):
            work(comm)
            work(comm)


@pytest.mark.parametrize("work", WAITS[::2])
def test_an_interrupt_ends_the_wait_and_wakes_the_others(work: Callable[[NativeComm], None]) -> None:
    run_ranks(2, interrupted, work, Signals())


def given_up(comm: NativeComm, steps: Signals) -> None:
    """After a failed wait nothing is written any more, and everything else that is pending has failed too."""
    pending, block = Pending(comm), np.full(4, comm.rank)
    if comm.rank == 0:
        steps.wait(0)
        pending.start("bcast", (block.ctypes.data, block.nbytes, 0))
        raises(errors.ERR_OTHER, lambda: pending.wait(pending.start("barrier", ()), "barrier"))
        steps.give(1)
        return
    numbers = [pending.start("bcast", (block.ctypes.data, block.nbytes, 0)) for _ in range(3)]
    raises(errors.ERR_PENDING, lambda: pending.wait(numbers[1], "bcast"))
    for number in numbers:
        raises(errors.ERR_OTHER, lambda number=number: pending.wait(number, "bcast"))  # type: ignore[misc]
    steps.give(0)
    steps.wait(1)
    comm.engine.progress()
    assert (block == 1).all() and not pending.owners


def test_what_was_given_up_writes_nothing() -> None:
    run_ranks(2, given_up, Signals(2), timeout=0.4)


def disagree(comm: NativeComm, name: str, arguments: Sequence[tuple[int, int]], note: str) -> None:
    """Ranks start something else, with other bytes or another root."""
    pending, block = Pending(comm), np.zeros(100, dtype=np.uint8)
    nbytes, root = arguments[comm.rank]
    with pytest.raises(errors.Exception) as caught:
        odd = name == "barrier" and comm.rank == 1
        pending.start(*(("barrier", ()) if odd else ("bcast", (block.ctypes.data, nbytes, root))))
        for _ in range(3 * DEPTH):
            pending.wait(pending.start("barrier", ()), "barrier")
    Path(note, str(comm.rank)).write_text(f"{caught.value.Get_error_class()}")


@pytest.mark.parametrize(
    ("name", "arguments", "error_class"),
    [
        ("bcast", ((8, 0), (16, 0)), errors.ERR_TRUNCATE),
        ("bcast", ((8, 0), (8, 1)), errors.ERR_ROOT),
        ("barrier", ((8, 1), (8, 1)), errors.ERR_OTHER),
    ],
)
def test_ranks_that_disagree(name: str, arguments: Sequence[tuple[int, int]], error_class: int, tmp_path: Path) -> None:
    run_ranks(2, disagree, name, arguments, str(tmp_path), timeout=5)
    assert error_class in [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
