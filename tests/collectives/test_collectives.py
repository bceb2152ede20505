"""Every collective between real ranks: as plan and on a slot, all sizes, lengths, in place, unaligned, zero lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import collectives
from ncclx_mpi.collectives import prepare
from ncclx_mpi.collectives.executor import spare_rooms
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels import reduce as reductions
from tests.collectives.cases import CASES
from tests.collectives.forked import run_ranks
from transports.shm.trial import TRIALS

LENGTHS = (0, 1, 2, 12, 13, 100, 512, 1000, 4097, 20_001)
RANKS = (1, 2, 3, 5, 8)


def planned(name: str) -> Callable[..., None]:
    """The collective as a plan, waited for."""

    def run(*args: Any) -> None:
        collective = getattr(prepare, name)(*args).start()
        if not any(collective.test() for _ in range(3)):
            collective.wait()

    return run


def blocking(name: str) -> Callable[..., None]:
    """The blocking collective."""
    function: Callable[..., None] = getattr(collectives, name)
    return function


def run_cases(comm: NativeComm, start: Callable[[str], Callable[..., None]], lengths: tuple[int, ...]) -> None:
    for length in lengths:
        for case in CASES:
            try:
                case(comm, start, length)
            except BaseException as error:
                error.add_note(f"{case.__name__}, rank {comm.rank} of {comm.size}, length {length}")
                raise


@pytest.mark.parametrize("size", RANKS)
def test_plans(size: int) -> None:
    run_ranks(size, run_cases, planned, LENGTHS if size < 8 else LENGTHS[:6])


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("with_slot", [True, False], ids=["slot", "no_slot"])
def test_blocking(size: int, with_slot: bool) -> None:
    run_ranks(size, run_cases, blocking, LENGTHS if size < 8 else LENGTHS[:8], with_slot=with_slot)


def many_at_once(comm: NativeComm) -> None:
    """Non-blocking collectives that are all under way at once, waited for in another order on every rank."""
    blocks = [np.full(100, comm.rank * 1000 + index) for index in range(50)]
    roots = [index % comm.size for index in range(50)]
    pending = [
        prepare.bcast(comm, block.ctypes.data, block.nbytes, root).start() for block, root in zip(blocks, roots, strict=True)
    ]
    order = np.random.default_rng(comm.rank).permutation(50)
    for index in order:
        pending[index].wait()
        assert (blocks[index] == roots[index] * 1000 + index).all()


@pytest.mark.parametrize("size", [2, 3])
def test_many_at_once_complete_in_any_order(size: int) -> None:
    run_ranks(size, many_at_once)


def summed(comm: NativeComm, nbytes: int) -> None:
    data = np.ones(nbytes, np.uint8)  # non-blocking: the plans of blocking calls stay ready instead
    prepare.allreduce(comm, 0, data.ctypes.data, nbytes, 1, reductions.address("sum", "u8"), True).start().wait()
    assert (data == comm.size).all()


def many_sizes(comm: NativeComm) -> None:
    summed(comm, 100)
    kept = spare_rooms.nbytes
    assert 0 < kept < 64 << 10
    summed(comm, 100)
    assert spare_rooms.nbytes == kept, "the same call runs in the same memory"
    summed(comm, 16 << 20)
    assert spare_rooms.nbytes > 16 << 20, "so does one of 16 MiB, whose pages would be cleared each time"
    kept = spare_rooms.nbytes
    summed(comm, 48 << 20)
    assert spare_rooms.nbytes == kept, "large ones are given back at once"
    for size in range(40):
        summed(comm, (1200 << 10) + 64 * size)
        assert spare_rooms.nbytes <= 40 << 20
    assert spare_rooms.nbytes > 36 << 20


def test_memory_of_plans_that_are_complete_is_bounded() -> None:
    run_ranks(2, many_sizes, with_slot=False)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("copies", ["direct", "piped"])
def test_blocking_with_rings_that_wrap(size: int, copies: str) -> None:
    run_ranks(size, run_cases, blocking, (700_001,), copies=copies)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_blocking_by_direct_copies(size: int) -> None:
    run_ranks(size, run_cases, blocking, (4099, 5000, 20_001, 70_003), copies="direct")


@pytest.mark.parametrize("size", [2, 3])
def test_trials_and_verdict(size: int) -> None:
    """As many calls as take both ways to be tried, the verdict, and some more."""
    run_ranks(size, run_cases, blocking, (20_001,) * (TRIALS + 3))


@pytest.mark.parametrize("size", [2, 3])
def test_plans_with_segments(size: int) -> None:
    run_ranks(size, run_cases, planned, (300_001,))
