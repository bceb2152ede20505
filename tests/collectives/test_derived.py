"""Blocking collectives of derived datatypes through the MPI face: what arrives is what Pack packs, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from numba_kernels.pylayouts import is_known

SIZES = (1, 2, 3, 5)
ROUNDS = 4
"""A layout is known to compiled code from its second or third call on."""


class Kind:
    """A datatype, the bytes of an element in the order in which they are sent, and the distance between two elements."""

    def __init__(self, make: Callable[[], Any], offsets: list[int], extent: int) -> None:
        self.make, self.offsets, self.extent = make, offsets, extent


KINDS = {
    "vector": Kind(lambda: MPI.INT16_T.Create_vector(3, 2, 5), [10 * block + at for block in range(3) for at in range(4)], 24),
    "column": Kind(
        lambda: MPI.INT16_T.Create_vector(4, 1, 4000).Create_resized(0, 2),
        [8000 * block + at for block in range(4) for at in range(2)],
        2,
    ),
    "structure": Kind(
        lambda: MPI.Datatype.Create_struct([1, 3], [4, 10], [MPI.INT32_T, MPI.BYTE]).Create_resized(0, 24),
        [4, 5, 6, 7, 10, 11, 12],
        24,
    ),
    "behind its origin": Kind(lambda: MPI.BYTE.Create_indexed([3, 2], [5, 11]).Create_resized(0, 16), [5, 6, 7, 11, 12], 16),
    "backwards": Kind(lambda: MPI.INT16_T.Create_indexed([1, 2], [4, 0]), [8, 9, 0, 1, 2, 3], 10),
    "dense": Kind(lambda: MPI.INT32_T.Create_contiguous(3), [*range(12)], 12),
    "piece": Kind(lambda: MPI.BYTE.Create_subarray([4, 6], [2, 3], [1, 2]), [8, 9, 10, 14, 15, 16], 24),
    "plain": Kind(lambda: MPI.INT32_T.Dup(), [0, 1, 2, 3], 4),
}
Spec = Any


class Side:
    """Blocks of a kind at displacements in its extents, in memory that has other bytes around and between."""

    def __init__(self, kind: str, datatype: Any, counts: list[int], displs: list[int], seed: int) -> None:
        self.kind, self.datatype, self.counts, self.displs = KINDS[kind], datatype, counts, displs
        reach = max(displ + count for count, displ in zip(counts, displs, strict=True)) * self.kind.extent
        self.memory = np.random.default_rng(seed).integers(0, 256, reach + 2 * max(self.kind.offsets) + 3).astype(np.uint8)

    def _bytes_of(self, index: int) -> Any:
        """Where the bytes of a block are."""
        elements = np.arange(self.displs[index], self.displs[index] + self.counts[index])
        return (elements[:, None] * self.kind.extent + np.array(self.kind.offsets)).ravel()

    def block(self, index: int) -> Any:
        """The bytes of a block."""
        return self.memory[self._bytes_of(index)]

    def put(self, index: int, sent: Any) -> None:
        """Write the bytes of a block."""
        self.memory[self._bytes_of(index)] = sent

    @property
    def vector(self) -> Spec:
        return [self.memory, self.counts, self.displs, self.datatype]

    @property
    def equal(self) -> Spec:
        """With the count of one block."""
        return [self.memory, self.counts[0], self.datatype]


def side(kind: str, datatype: Any, counts: list[int], seed: int, *, spread: int = 0) -> Side:
    displs, at = [], 0
    for count in counts:
        displs.append(at)
        at += count + spread
    return Side(kind, datatype, counts, displs, seed)


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_without_counts(comm: Any, kind: str) -> None:
    """Each rank knows what the others have: it is made from their ranks."""
    size, rank, datatype = comm.size, comm.rank, KINDS[kind].make().Commit()
    for turn in range(ROUNDS):
        ones = [side(kind, datatype, [2], 10 * turn + other) for other in range(size)]
        many = [side(kind, datatype, [2] * size, 100 + 10 * turn + other) for other in range(size)]
        root = turn % size
        for name in ("Bcast", "Gather", "Scatter", "Allgather", "Alltoall"):
            target = side(kind, datatype, [2] * (size if name in ("Gather", "Allgather", "Alltoall") else 1), 1000 + rank)
            wanted = side(kind, datatype, target.counts, 1000 + rank)
            if name == "Bcast":
                comm.Bcast((ones[root] if rank == root else target).equal, root)
                wanted.put(0, ones[root].block(0))
            elif name == "Gather":
                comm.Gather(ones[rank].equal, target.equal if rank == root else None, root)
                for other in range(size):
                    wanted.put(other, ones[other].block(0))
            elif name == "Scatter":
                comm.Scatter(many[root].equal if rank == root else None, target.equal, root)
                wanted.put(0, many[root].block(rank))
            elif name == "Allgather":
                comm.Allgather(ones[rank].equal, target.equal)
                for other in range(size):
                    wanted.put(other, ones[other].block(0))
            else:
                comm.Alltoall(many[rank].equal, target.equal)
                for other in range(size):
                    wanted.put(other, many[other].block(rank))
            is_receiver = rank == root if name == "Gather" else rank != root if name == "Bcast" else True
            assert not is_receiver or (target.memory == wanted.memory).all(), (name, turn)
    datatype.Free()


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", [0, 1, 700])
def test_with_counts(comm: Any, kind: str, base: int) -> None:
    """Counts that differ, some of them 0, and gaps between blocks; once more with the bytes of one end in an array."""
    size, rank, datatype = comm.size, comm.rank, KINDS[kind].make().Commit()
    counts = [base + other % 3 for other in range(size)]
    for turn in range(ROUNDS):
        root, spread = turn % size, turn % 2
        ones = [side(kind, datatype, [counts[other]], 10 * turn + other) for other in range(size)]
        whole = side(kind, datatype, counts, 50 + turn, spread=spread)
        target, wanted = (side(kind, datatype, counts, 1000 + rank, spread=spread) for _ in range(2))
        for other in range(size):
            wanted.put(other, ones[other].block(0))
        comm.Gatherv(ones[rank].equal, target.vector if rank == root else None, root)
        assert rank != root or (target.memory == wanted.memory).all(), turn
        target = side(kind, datatype, counts, 1000 + rank, spread=spread)
        comm.Allgatherv(ones[rank].equal, target.vector)
        assert (target.memory == wanted.memory).all(), turn
        target = side(kind, datatype, counts, 1000 + rank, spread=spread)
        comm.Allgatherv(ones[rank].block(0), target.vector)
        assert (target.memory == wanted.memory).all(), turn
        one, wanted_one = (side(kind, datatype, [counts[rank]], 2000 + rank) for _ in range(2))
        wanted_one.put(0, whole.block(rank))
        comm.Scatterv(whole.vector if rank == root else None, one.equal, root)
        assert (one.memory == wanted_one.memory).all(), turn
        room = np.zeros(counts[rank] * datatype.Get_size(), np.uint8)
        comm.Scatterv(whole.vector if rank == root else None, room, root)
        assert (room == whole.block(rank)).all()
    datatype.Free()


@pytest.mark.ranks(*SIZES)
@pytest.mark.parametrize("base", [0, 1, 300])
def test_exchanges(comm: Any, base: int) -> None:
    """Alltoallv of one datatype, Alltoallw of one for each rank, derived and predefined ones."""
    size, rank, datatype = comm.size, comm.rank, KINDS["structure"].make().Commit()
    kind = "structure"
    table = [[base + (source + dest) % 3 for dest in range(size)] for source in range(size)]
    for turn in range(ROUNDS):
        sides = [side(kind, datatype, table[source], 10 * turn + source, spread=1) for source in range(size)]
        target, wanted = (side(kind, datatype, [row[rank] for row in table], 1000 + rank, spread=2) for _ in range(2))
        for other in range(size):
            wanted.put(other, sides[other].block(rank))
        comm.Alltoallv(sides[rank].vector, target.vector)
        assert (target.memory == wanted.memory).all(), turn
    names = ["vector", "piece", "plain"]
    made = {name: KINDS[name].make().Commit() for name in names}
    for turn in range(ROUNDS):
        between = [[names[(source + dest) % 3] for dest in range(size)] for source in range(size)]
        sent = [np.random.default_rng(turn + 10 * source).integers(0, 256, 64 * size).astype(np.uint8) for source in range(size)]
        given, taken = between[rank], [row[rank] for row in between]  # which are the same
        memory, offsets = np.zeros(64 * size, np.uint8), [64 * other for other in range(size)]
        expected, in_place, both = memory.copy(), sent[rank].copy(), sent[rank].copy()
        for other in range(size):
            at = np.array(KINDS[taken[other]].offsets)
            expected[64 * other + at] = in_place[64 * other + at] = sent[other][64 * rank + at]
        sides = [
            [array, [1] * size, offsets, [made[name] for name in named]] for array, named in ((sent[rank], given), (memory, taken))
        ]
        comm.Alltoallw(*sides)
        assert (memory == expected).all(), turn
        comm.Alltoallw(MPI.IN_PLACE, [both, [1] * size, offsets, [made[name] for name in taken]])
        assert (both == in_place).all(), turn
    for each in (datatype, *made.values()):
        each.Free()


@pytest.mark.ranks(2, 3)
def test_in_place(comm: Any) -> None:
    kind, size, rank, datatype = "vector", comm.size, comm.rank, KINDS["vector"].make().Commit()
    for turn in range(ROUNDS):
        sides = [side(kind, datatype, [1] * size, 10 * turn + other) for other in range(size)]
        mine, wanted = side(kind, datatype, [1] * size, 10 * turn + rank), side(kind, datatype, [1] * size, 10 * turn + rank)
        for other in range(size):
            wanted.put(other, sides[other].block(other))
        comm.Allgather(MPI.IN_PLACE, mine.equal)
        assert (mine.memory == wanted.memory).all()
        mine = side(kind, datatype, [1] * size, 10 * turn + rank)
        comm.Allgatherv(MPI.IN_PLACE, mine.vector)
        assert (mine.memory == wanted.memory).all()
    datatype.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [3, -1, 1 << 39, (1 << 62) // 10, "read only"])
def test_wrong_specifications_raise(comm: Any, count: int | str) -> None:
    """Also once the layout is known: memory that is not there, counts whose product leaves a word, and memory that must not be written."""
    datatype, mine = KINDS["vector"].make().Commit(), comm.Dup()
    memory = np.zeros(50, np.uint8)
    for _ in range(ROUNDS):
        mine.Bcast([memory, 2, datatype])
    if comm.rank:
        with pytest.raises((ValueError, MPI.Exception, OverflowError, BufferError)):
            mine.Bcast([b"\0" * 64, 1, datatype] if count == "read only" else [memory, count, datatype])
        mine.Bcast([memory, 2, datatype])
    else:
        mine.Bcast([memory, 2, datatype])
    datatype.Free()
    mine.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("far", [-1, 40, 1 << 39, (1 << 63) // 24 + 1])
def test_wrong_displacements_raise(comm: Any, far: int) -> None:
    kind, datatype, mine = "structure", KINDS["structure"].make().Commit(), comm.Dup()
    one, whole = side(kind, datatype, [1], 1), side(kind, datatype, [1, 1], 2)
    for _ in range(ROUNDS):
        mine.Gatherv(one.equal, whole.vector if comm.rank == 0 else None)
    if comm.rank == 0:
        with pytest.raises((ValueError, MPI.Exception, OverflowError)):
            mine.Gatherv(one.equal, [whole.memory, [1, 1], [0, far], datatype])
        mine.Gatherv(one.equal, whole.vector)
    else:
        mine.Gatherv(one.equal, None)
    datatype.Free()
    mine.Free()


@pytest.mark.ranks(1, 2)
def test_a_displacement_whose_bytes_leave_a_word_raises(comm: Any) -> None:
    """Of an element whose first byte lies behind its origin, and which is as long as only a resized one is."""
    datatype, memory = MPI.BYTE.Create_indexed([2], [5]).Create_resized(0, 1 << 30).Commit(), np.zeros(64, np.uint8)
    near, far = [0] * comm.size, [0] * (comm.size - 1) + [1 << 31]
    for _ in range(ROUNDS):
        comm.Allgatherv([memory[32:], 1, datatype], [memory, [1] * comm.size, near, datatype])
    with pytest.raises((ValueError, MPI.Exception)):
        comm.Allgatherv([memory[32:], 1, datatype], [memory, [1] * comm.size, far, datatype])
    datatype.Free()


@pytest.mark.ranks(2, 3)
def test_freed_datatypes_are_unknown(comm: Any) -> None:
    """Another one may have the address of one that is gone."""
    size, rank = comm.size, comm.rank
    for turn in range(40):
        length, stride = 1 + turn % 5, 7 + turn % 3
        datatype = MPI.BYTE.Create_vector(2, length, stride).Commit()
        at = np.array([block * stride + inner for block in range(2) for inner in range(length)])
        extent = stride + length
        for _ in range(3):
            memory, target = np.arange(size * extent, dtype=np.uint8) + np.uint8(rank), np.zeros(size * extent, np.uint8)
            expected = target.copy()
            for other in range(size):
                expected[other * extent + at] = rank * extent + at + other
            comm.Alltoall([memory, 1, datatype], [target, 1, datatype])
            assert (target == expected).all()
        datatype.Free()
        with pytest.raises(MPI.Exception):
            comm.Bcast([memory, 1, datatype])


@pytest.mark.ranks(1, 2)
def test_many_datatypes_are_known_at_once(comm: Any) -> None:
    """Objects lie at equal distances in memory: taken as they are, their addresses met in few places of the table."""
    datatypes = [MPI.BYTE.Create_vector(2, 1, 3 + step).Commit() for step in range(40)]
    memory = np.zeros(64, np.uint8)
    for _ in range(3):
        for datatype in datatypes:
            comm.Bcast([memory, 1, datatype])
    assert sum(is_known(datatype._state) for datatype in datatypes) >= 36
    for datatype in datatypes:
        datatype.Free()
