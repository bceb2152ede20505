"""Collectives with counts and scans through the MPI face: plain specifications, unusual ones, and wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

SIZES = (1, 2, 3, 5)


def counts_of(comm: Any) -> list[int]:
    return [rank % 3 for rank in range(comm.size)]


def blocks(comm: Any) -> list[Any]:
    """What each rank contributes."""
    return [np.full(count, 10 * rank + 1, dtype="f4") for rank, count in enumerate(counts_of(comm))]


SPECS = {
    "list": lambda array, counts, offsets: [array, counts],
    "tuple": lambda array, counts, offsets: (array, tuple(counts)),
    "offsets": lambda array, counts, offsets: [array, (counts, offsets)],
    "no offsets": lambda array, counts, offsets: [array, (counts, None)],
    "arrays": lambda array, counts, offsets: [array, (np.array(counts), np.array(offsets))],
    "numpy integers": lambda array, counts, offsets: [array, [np.int64(count) for count in counts]],
}


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("name", SPECS)
def test_vectors(comm: Any, name: str) -> None:
    counts, parts = counts_of(comm), blocks(comm)
    offsets = np.cumsum([0, *counts])[:-1].tolist()
    whole = np.concatenate(parts)
    for _ in range(3):  # the second time counts are known
        for root in range(comm.size):
            out = np.zeros(sum(counts), dtype="f4")
            comm.Gatherv(parts[comm.rank], SPECS[name](out, counts, offsets) if comm.rank == root else None, root=root)
            assert comm.rank != root or (out == whole).all()
            part = np.zeros(counts[comm.rank], dtype="f4")
            comm.Scatterv(SPECS[name](whole, counts, offsets) if comm.rank == root else None, part, root=root)
            assert (part == parts[comm.rank]).all()
        out = np.zeros(sum(counts), dtype="f4")
        comm.Allgatherv(parts[comm.rank], SPECS[name](out, counts, offsets))
        assert (out == whole).all()


@pytest.mark.ranks(*SIZES)
def test_alltoallv_with_gaps(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    sent = [(rank + other) % 3 for other in range(size)]  # symmetric
    offsets = [4 * other for other in range(size)]
    send, recv = np.zeros(4 * size), np.full(4 * size, -1.0)
    for other in range(size):
        send[offsets[other] : offsets[other] + sent[other]] = 100 * rank + other
    comm.Alltoallv([send, (sent, offsets)], [recv, (sent, offsets)])
    for other in range(size):
        block = recv[offsets[other] : offsets[other] + 4]
        assert (block[: sent[other]] == 100 * other + rank).all() and (block[sent[other] :] == -1).all()


@pytest.mark.ranks(2)
def test_ranks_may_give_the_same_counts_in_different_ways(comm: Any) -> None:
    out = np.zeros(4)
    comm.Allgatherv(np.full(2, comm.rank + 1.0), [out, [2, 2]] if comm.rank else out)
    assert out.tolist() == [1, 1, 2, 2]


@pytest.mark.ranks(2)
def test_a_list_of_counts_that_changed_is_read_again(comm: Any) -> None:
    counts = [1, 1]
    for count in (1, 2, 3):
        counts[:] = [count] * 2
        out = np.zeros(2 * count)
        comm.Allgatherv(np.full(count, comm.rank + 1.0), [out, counts])
        assert out.tolist() == [1.0] * count + [2.0] * count


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("counts", "error"), [([5], ValueError), ([-1], ValueError), ([1.5], TypeError), (["a"], TypeError), ([1, 1], ValueError)]
)
def test_wrong_counts_raise(comm: Any, counts: Any, error: type[Exception]) -> None:
    with pytest.raises((error, RuntimeError)):
        comm.Allgatherv(np.zeros(1), [np.zeros(4), counts])


@pytest.mark.ranks(*SIZES)
def test_scans(comm: Any) -> None:
    for count in (1, 7, 5000):
        send, recv = np.full(count, comm.rank + 1.0), np.full(count, -1.0)
        comm.Scan(send, recv)
        assert (recv == sum(range(1, comm.rank + 2))).all()
        recv[:] = -1
        comm.Exscan(send, recv)
        assert (recv == (sum(range(1, comm.rank + 1)) if comm.rank else -1)).all()
