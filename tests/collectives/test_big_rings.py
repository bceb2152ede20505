"""Payloads over 2 KiB of small collectives: where they stand, while ranks run ahead of each other; and how they are written."""

from __future__ import annotations

import numpy as np
import pytest

from ncclx_mpi import collectives
from ncclx_mpi.collectives import prepare, shm_oneshot
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels import reduce as reductions
from numba_kernels.layout import WORD
from tests.collectives.forked import run_ranks
from transports.shm.slots import BIG, BIG_STEP, big_bytes

ROUNDS = 1500
UNSET = 7


def word(comm: NativeComm, field: str) -> int:
    return int(comm._words[getattr(shm_oneshot.SCRATCH, field) // WORD])


def tagged(rank: int, step: int, nbytes: int) -> np.ndarray:
    return ((np.arange(nbytes) // 13 + 31 * rank + step) % 251).astype(np.uint8)


def bcast_and_gather(comm: NativeComm, step: int, nbytes: int) -> None:
    """Nobody but the roots waits."""
    root = step // 40 % comm.size
    data = tagged(root if comm.rank == root else 99, step, nbytes)
    collectives.bcast(comm, data.ctypes.data, nbytes, root)
    assert (data == tagged(root, step, nbytes)).all(), f"step {step}"
    own, every = tagged(comm.rank, step, nbytes), np.zeros(nbytes * comm.size, np.uint8)
    collectives.gather(comm, own.ctypes.data, nbytes, every.ctypes.data, root)
    if comm.rank == root:
        assert (every == np.concatenate([tagged(rank, step, nbytes) for rank in range(comm.size)])).all(), f"step {step}"


def allreduce_and_start(comm: NativeComm, step: int, nbytes: int) -> None:
    """A blocking collective, and one that does not block, which use the same ring."""
    count = nbytes // 8
    own, total = np.full(count, comm.rank + step, np.int64), np.zeros(count, np.int64)
    collectives.allreduce(comm, own.ctypes.data, total.ctypes.data, count, 8, reductions.address("sum", "i64"), True)
    assert (total == comm.size * step + sum(range(comm.size))).all(), f"step {step}"
    data = tagged(0 if comm.rank == 0 else 99, step, nbytes)
    started = prepare.bcast(comm, data.ctypes.data, nbytes, 0).start()
    started.wait()
    assert (data == tagged(0, step, nbytes)).all(), f"step {step}"


def many(comm: NativeComm, streamed: int) -> None:
    comm.engine.transport.set_word("stores_fixed", 1)
    comm.engine.transport.set_word("streamed", streamed)
    sizes = np.random.default_rng(1).integers(8, BIG // 8 + 1, ROUNDS) * 8
    for step, nbytes in enumerate(sizes.tolist()):
        (bcast_and_gather if step % 5 else allreduce_and_start)(comm, step, nbytes)
    has_more = comm.size > 1 and big_bytes(comm.size) > BIG_STEP
    assert (word(comm, "bigs_mapped") == (1 << comm.size) - 1) == (has_more and not streamed)


@pytest.mark.parametrize("streamed", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_payloads_stand_where_nobody_reads_any_more(size: int, streamed: int) -> None:
    """Also while rings grow, which only those that are written with plain stores do."""
    run_ranks(size, many, streamed)


def few(comm: NativeComm) -> None:
    for step in range(20):
        bcast_and_gather(comm, step, BIG)
    assert word(comm, "next_big") == word(comm, "bigs_mapped") == 0


def test_few_payloads_take_few_pages() -> None:
    run_ranks(2, few)


def judged(comm: NativeComm, nbytes: int, calls: int, stores: str) -> None:
    """A comparison now and then fails where cores are busy, so it gets several."""
    transport = comm.engine.transport
    transport.set_word("stores_fixed", int(stores != "auto"))
    transport.set_word("streamed", UNSET)
    own, every = tagged(comm.rank, 0, nbytes), np.zeros(nbytes * comm.size, np.uint8)
    for _ in range(20):
        for _ in range(calls):
            collectives.allgather(comm, own.ctypes.data, nbytes, every.ctypes.data)
        flags = np.array([transport.word("streamed") == UNSET], np.uint8), np.zeros(comm.size, np.uint8)
        collectives.allgather(comm, flags[0].ctypes.data, 1, flags[1].ctypes.data)
        if not flags[1].any() or stores != "auto":
            break
    assert (transport.word("streamed") in (0, 1)) == (stores == "auto")
    assert word(comm, "compared") > 0


@pytest.mark.parametrize(("nbytes", "calls"), [(1024, shm_oneshot.LOOK_AGAIN // 4 + 1), (8, shm_oneshot.LOOK_AGAIN + 1)])
@pytest.mark.parametrize("stores", ["auto", "plain"])
def test_stores_are_compared_anew_by_small_collectives(nbytes: int, calls: int, stores: str) -> None:
    """More often by those in which they matter; what the user has chosen stays."""
    run_ranks(2, judged, nbytes, calls, stores)


def barriers(comm: NativeComm) -> None:
    """With one rank that has no neighbour."""
    for _ in range(shm_oneshot.LOOK_AGAIN - 1):
        collectives.barrier(comm)
    assert word(comm, "compared") == 0
    collectives.barrier(comm)
    assert word(comm, "compared") == (comm.rank < 2)


def test_barriers_count() -> None:
    run_ranks(3, barriers)


def vectors(comm: NativeComm) -> None:
    """Of blocks between the first two, while the third has none, or rank 1 has none either."""
    for k in range(shm_oneshot.LOOK_AGAIN):
        others = [0] * comm.size
        if comm.rank < 2 and k % 2:
            others[1 - comm.rank] = 8
        own, found = tagged(comm.rank, 0, sum(others)), np.zeros(sum(others), np.uint8)
        collectives.alltoallv(comm, own.ctypes.data, others, [0] * comm.size, found.ctypes.data, others, [0] * comm.size)
        assert bytes(found) == (bytes(tagged(1 - comm.rank, 0, 8)) if sum(others) else b"")
        assert word(comm, "compared") == 0 or k > shm_oneshot.LOOK_AGAIN - 9  # how ranks go is agreed upon first
    assert word(comm, "compared") == (comm.rank < 2)


def test_alltoalls_with_counts_count() -> None:
    run_ranks(3, vectors)
