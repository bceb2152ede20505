"""Collectives with counts, of all three flavours, and scans through the MPI face: plain specifications, unusual ones, and wrong ones."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

SIZES = (1, 2, 3, 5)


def counts_of(comm: Any) -> list[int]:
    return [rank % 3 for rank in range(comm.size)]


def blocks(comm: Any) -> list[Any]:
    """What each rank contributes."""
    return [np.full(count, 10 * rank + 1, dtype="f4") for rank, count in enumerate(counts_of(comm))]


def blocking(comm: Any, name: str, *arguments: Any, **named: Any) -> None:
    getattr(comm, name)(*arguments, **named)


def pending(comm: Any, name: str, *arguments: Any, **named: Any) -> None:
    request = getattr(comm, f"I{name.lower()}")(*arguments, **named)
    while not request.Test():
        pass


def persistent(comm: Any, name: str, *arguments: Any, **named: Any) -> None:
    """Started twice, unless it changes what it is given."""
    request = getattr(comm, f"{name}_init")(*arguments, **named)
    for _ in range(1 if arguments[0] is MPI.IN_PLACE else 2):
        request.Start()
        request.Wait()
    request.Free()


FLAVOURS = (blocking, pending, persistent)
SPECS = {
    "list": lambda array, counts, offsets: [array, counts],
    "tuple": lambda array, counts, offsets: (array, counts),
    "offsets": lambda array, counts, offsets: [array, (counts, offsets)],
    "no offsets": lambda array, counts, offsets: [array, (counts, None)],
    "arrays": lambda array, counts, offsets: [array, (np.array(counts), np.array(offsets))],
    "short integers": lambda array, counts, offsets: [array, (np.array(counts, "i4"), tuple(offsets))],
    "type": lambda array, counts, offsets: [array, counts, MPI.FLOAT],
    "offsets and type": lambda array, counts, offsets: [array, tuple(counts), offsets, MPI.FLOAT],
    "bytes as elements": lambda array, counts, offsets: [array.view("u1"), (counts, offsets), MPI.FLOAT],
    "numpy integers": lambda array, counts, offsets: [array, [np.int64(count) for count in counts]],
}


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("name", SPECS)
def test_vectors(comm: Any, name: str) -> None:
    counts, parts = counts_of(comm), blocks(comm)
    offsets = np.cumsum([0, *counts])[:-1].tolist()
    whole = np.concatenate(parts)
    for do in 2 * FLAVOURS:  # the second time counts are known
        for root in range(comm.size):
            out = np.zeros(sum(counts), dtype="f4")
            do(comm, "Gatherv", parts[comm.rank], SPECS[name](out, counts, offsets) if comm.rank == root else None, root=root)
            assert comm.rank != root or (out == whole).all()
            part = np.zeros(counts[comm.rank], dtype="f4")
            do(comm, "Scatterv", SPECS[name](whole, counts, offsets) if comm.rank == root else None, part, root=root)
            assert (part == parts[comm.rank]).all()
        out = np.zeros(sum(counts), dtype="f4")
        do(comm, "Allgatherv", parts[comm.rank], SPECS[name](out, counts, offsets))
        assert (out == whole).all()


@pytest.mark.ranks(*SIZES)
def test_alltoallv_with_gaps(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    sent = [(rank + other) % 3 for other in range(size)]  # symmetric
    offsets = [4 * other for other in range(size)]
    send = np.zeros(4 * size)
    for other in range(size):
        send[offsets[other] : offsets[other] + sent[other]] = 100 * rank + other
    for do in 2 * FLAVOURS:
        recv = np.full(4 * size, -1.0)
        do(comm, "Alltoallv", [send, (sent, offsets)], [recv, (sent, offsets)])
        for other in range(size):
            block = recv[offsets[other] : offsets[other] + 4]
            assert (block[: sent[other]] == 100 * other + rank).all() and (block[sent[other] :] == -1).all()


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("base", [0, 1, 700, 5000, 40_000])
def test_blocks_of_all_sizes(comm: Any, base: int) -> None:
    """Rank r sends base * r + d elements to rank d: some publish what they send, others stream it, in one call."""
    size, rank = comm.size, comm.rank
    sent, received = [base * rank + other for other in range(size)], [base * other + rank for other in range(size)]
    send = np.concatenate([np.full(count, 100 * rank + other, "f4") for other, count in enumerate(sent)])
    expected = np.concatenate([np.full(count, 100 * other + rank, "f4") for other, count in enumerate(received)])
    for do in 2 * FLAVOURS:
        recv = np.zeros(sum(received), "f4")
        do(comm, "Alltoallv", [send, sent], [recv, received])
        assert (recv == expected).all()
        recv[:] = 0
        offsets = [np.cumsum([0, *(4 * count for count in counts)])[:-1].tolist() for counts in (sent, received)]
        types = [MPI.FLOAT] * size
        do(comm, "Alltoallw", [send, (sent, offsets[0]), types], [recv, received, offsets[1], types])
        assert (recv == expected).all()


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("base", [1, 2000, 30_000])
def test_alltoallv_in_place(comm: Any, base: int) -> None:
    """Some ranks stream over what they receive by lines."""
    size, rank = comm.size, comm.rank
    counts = [base if rank + other == 1 else 3 for other in range(size)]
    data = np.concatenate([np.full(count, 100.0 * rank + other) for other, count in enumerate(counts)])
    expected = np.concatenate([np.full(count, 100.0 * other + rank) for other, count in enumerate(counts)])
    for do in 2 * FLAVOURS:
        both = data.copy()
        do(comm, "Alltoallv", MPI.IN_PLACE, [both, counts])
        assert (both == expected).all()


@pytest.mark.ranks(*SIZES)
def test_alltoallw_with_a_type_for_each(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    kinds = [MPI.DOUBLE if (rank + other) % 2 else MPI.INT16_T for other in range(size)]
    spec = (list(range(1, size + 1)), [64 * other for other in range(size)])
    mine = ([rank + 1] * size, spec[1])
    send = np.arange(64 * size, dtype="u1") + np.uint8(rank)
    for do in 2 * FLAVOURS:
        recv = np.zeros(64 * size, "u1")
        do(comm, "Alltoallw", [send, spec, kinds], [recv, mine, kinds])
        for other in range(size):
            nbytes = (rank + 1) * kinds[other].Get_size()
            block = (np.arange(64 * rank, 64 * rank + nbytes) + other).astype("u1")
            assert (recv[64 * other : 64 * other + nbytes] == block).all()
            assert not recv[64 * other + nbytes : 64 * other + 64].any()


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("base", [0, 1, 500, 20_000])
def test_reduce_scatter_with_counts(comm: Any, base: int) -> None:
    size, rank = comm.size, comm.rank
    counts = [base + other for other in range(size)]
    firsts = np.cumsum([0, *counts])
    send = np.arange(firsts[-1], dtype="f8") + rank
    expected = size * np.arange(firsts[rank], firsts[rank + 1]) + size * (size - 1) / 2
    for do in 2 * FLAVOURS:
        for given in (counts, tuple(counts), np.array(counts), None):
            recv = np.zeros(counts[rank])
            do(comm, "Reduce_scatter", send, recv, given)
            assert (recv == expected).all()
        both = send.copy()
        (do if do is not persistent else pending)(comm, "Reduce_scatter", MPI.IN_PLACE, both, counts)
        assert (both[: counts[rank]] == expected).all()


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("base", [1, 700, 30_000])
def test_allgatherv_in_place(comm: Any, base: int) -> None:
    size, rank = comm.size, comm.rank
    counts = [base + other for other in range(size)]
    expected = np.concatenate([np.full(count, other + 1.0) for other, count in enumerate(counts)])
    for do in 2 * FLAVOURS:
        data = np.where(expected == rank + 1, expected, 0)
        do(comm, "Allgatherv", MPI.IN_PLACE, [data, counts])
        assert (data == expected).all()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("count", [1, 700, 9000])
def test_many_pending_whose_arrays_only_they_refer_to(comm: Any, count: int) -> None:
    """Counts too may change, or go, once a call has returned; requests are forgotten, or completed in any order."""
    size, rank, kept = comm.size, comm.rank, []
    for turn in range(60):
        counts = [count] * size
        recv = np.zeros(count * size)
        request = comm.Ialltoallv([np.repeat(100.0 * turn + 10 * rank + np.arange(size), count), counts], [recv, counts])
        counts[0] = -1
        if turn % 3 == 0:
            del request
        else:
            kept.append((turn, request, recv))
        gc.collect(0)
    for turn, request, recv in reversed(kept):
        request.Wait()
        assert (recv == np.repeat(100.0 * turn + 10 * np.arange(size) + rank, count)).all()


@pytest.mark.ranks(*SIZES)
def test_a_tuple_of_two_integers_is_count_and_step(comm: Any) -> None:
    """As in mpi4py, whatever the number of ranks: with two ranks it was taken for the counts of both."""
    out = np.zeros(3 * comm.size)
    comm.Allgatherv(np.full(2, comm.rank + 1.0), [out, (2, 3)])
    assert out.reshape(-1, 3).tolist() == [[rank + 1, rank + 1, 0] for rank in range(comm.size)]


@pytest.mark.ranks(2, 3)
def test_lengths_that_differ_raise_on_the_receiver(comm: Any) -> None:
    check_lengths_that_differ(comm)


@pytest.mark.ranks(2, 3, topology="nolocal")
def test_lengths_that_differ_raise_on_a_receiver_of_another_node(comm: Any) -> None:
    check_lengths_that_differ(comm)


def check_lengths_that_differ(comm: Any) -> None:
    mine = comm.Dup()
    if comm.rank == 0:
        with pytest.raises(MPI.Exception, match=r"(?s)8 bytes.*12 bytes") as caught:
            mine.Gatherv(np.zeros(2, "f4"), [np.zeros(2 * comm.size, "f4"), [2] * comm.size])
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    else:
        mine.Gatherv(np.zeros(3, "f4"), None)
    comm.Barrier()


@pytest.mark.ranks(2, 3)
def test_empty_collectives_keep_the_ranks_in_step(comm: Any) -> None:
    """Empty collectives meet nobody, more of them than the ring of lines holds, and the next one still meets the same one."""
    empty, total = np.zeros(0), np.zeros(1)
    for turn in range(100):
        for _ in range(turn):
            comm.Bcast(empty, root=turn % comm.size)
            comm.Allreduce(empty, empty.copy())
            comm.Alltoallv([empty, [0] * comm.size], [empty.copy(), [0] * comm.size])
            comm.Gather(empty, empty.copy() if comm.rank == 0 else None)
        comm.Allreduce(np.full(1, turn + 1.0), total)
        assert total[0] == (turn + 1) * comm.size


@pytest.mark.ranks(2)
def test_an_empty_collective_of_one_rank_alone_is_noticed(comm: Any) -> None:
    mine = comm.Dup()
    with pytest.raises(MPI.Exception, match="called allreduce" if comm.rank else "no longer agree"):
        if comm.rank == 0:
            mine.Allreduce(np.zeros(0), np.zeros(0))
            mine.Barrier()
        else:
            mine.Allreduce(np.zeros(1), np.zeros(1))
    comm.Barrier()


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
