"""Random datatypes, counts and displacements in memory that ends, or begins, at an unreadable page: one byte too many is a crash at once.

The model of a datatype is the list of its bytes' places. Buffers have exactly the bytes from the first to the last of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.testing.guarded import guarded

FEW, MANY = 600, 100_000
NAMED = [
    MPI.BYTE, MPI.SHORT, MPI.INT, MPI.DOUBLE, MPI.LONG_DOUBLE, MPI.DOUBLE_INT, MPI.LONG_INT, MPI.SHORT_INT, MPI.LONG_DOUBLE_INT, MPI.TWOINT,
]  # fmt: skip
_PAIRS = {"DOUBLE_INT": (8, 4), "LONG_INT": (8, 4), "SHORT_INT": (2, 4), "LONG_DOUBLE_INT": (16, 4), "TWOINT": (4, 4)}


class Model(NamedTuple):
    """The place of each byte of one element, in packing order, and its bounds."""

    places: Any
    lb: int
    extent: int

    def at(self, origins: Any) -> Model:
        """Elements from `origins` on."""
        if not len(origins):
            return Model(np.zeros(0, np.int64), 0, 0)
        low = int(origins.min())
        ub = max(int(origins.max()), low) + self.lb + self.extent
        return Model((origins[:, None] + self.places).reshape(-1), low + self.lb, ub - low - self.lb)


def named(choice: random.Random) -> tuple[MPI.Datatype, Model]:
    datatype = choice.choice(NAMED)
    name, extent = datatype.Get_name().removeprefix("MPI_"), datatype.Get_extent()[1]
    if name not in _PAIRS:
        return datatype, Model(np.arange(datatype.Get_size()), 0, extent)
    value, index = _PAIRS[name]
    return datatype, Model(np.r_[0:value, max(value, index) : max(value, index) + index], 0, extent)


def origins_of(lengths: list[int], starts: list[int], extent: int) -> Any:
    return np.array([start + k * extent for length, start in zip(lengths, starts, strict=True) for k in range(length)], np.int64)


def derive(choice: random.Random, old: MPI.Datatype, model: Model) -> tuple[MPI.Datatype, Model]:
    """One more constructor around a type."""
    kind = choice.choice(
        ["contiguous", "vector", "hvector", "indexed", "hindexed", "block", "subarray", "struct", "resized", "dup"]
    )
    count, length = choice.randint(0, 4), choice.randint(0, 3)
    if kind == "contiguous":
        return old.Create_contiguous(count), model.at(np.arange(count) * model.extent)
    if kind == "vector":
        stride = choice.randint(-3, 6)
        starts = [i * stride * model.extent for i in range(count)]
        return old.Create_vector(count, length, stride), model.at(origins_of([length] * count, starts, model.extent))
    if kind == "hvector":
        stride = choice.randint(-20, 60)
        return old.Create_hvector(count, length, stride), model.at(
            origins_of([length] * count, [i * stride for i in range(count)], model.extent)
        )
    if kind == "block":
        places = [choice.randint(-3, 9) for _ in range(count)]
        starts = [place * model.extent for place in places]
        return old.Create_indexed_block(length, places), model.at(origins_of([length] * count, starts, model.extent))
    if kind in ("indexed", "hindexed"):
        lengths, places = [choice.randint(0, 3) for _ in range(count)], [choice.randint(-5, 30) for _ in range(count)]
        starts = [place * (model.extent if kind == "indexed" else 1) for place in places]
        make = old.Create_indexed if kind == "indexed" else old.Create_hindexed
        return make(lengths, places), model.at(origins_of(lengths, starts, model.extent))
    if kind == "subarray":
        rows, columns = choice.randint(1, 4), choice.randint(1, 4)
        height, width = choice.randint(1, rows), choice.randint(1, columns)
        top, left = choice.randint(0, rows - height), choice.randint(0, columns - width)
        cells = (np.arange(top, top + height)[:, None] * columns + np.arange(left, left + width)).reshape(-1)
        whole = rows * columns * model.extent
        made = model.at(cells * model.extent)
        return old.Create_subarray([rows, columns], [height, width], [top, left]), Model(made.places, 0, whole)
    if kind == "struct":
        lengths, starts = [choice.randint(1, 2) for _ in range(count)], [choice.randint(-20, 80) for _ in range(count)]
        made = model.at(origins_of(lengths, starts, model.extent))
        datatype = MPI.Datatype.Create_struct(lengths, starts, [old] * count)
        return datatype, Model(made.places, *datatype.Get_extent())  # padded as C does, where nothing has explicit bounds
    if kind == "resized":
        lb, extent = choice.randint(-9, 20), choice.randint(0, 90)
        return old.Create_resized(lb, extent), Model(model.places, lb, extent)
    return old.Dup(), model


def draw(choice: random.Random) -> tuple[MPI.Datatype, Model]:
    """A committed type of at most 4,096 bytes, whose bytes do not overlap."""
    while True:
        datatype, model = named(choice)
        for _ in range(choice.randint(0, 3)):
            datatype, model = derive(choice, datatype, model)
        if len(model.places) <= 4_096 and len(np.unique(model.places)) == len(model.places):
            return datatype.Commit(), model


class Memory:
    """`count` elements in memory from their first byte to their last, `before` elements behind the address that is given."""

    def __init__(self, choice: random.Random, model: Model, count: int, before: int = 0) -> None:
        self.places = (np.arange(before, before + count)[:, None] * model.extent + model.places).reshape(-1)
        low, high = (int(self.places.min()), int(self.places.max()) + 1) if len(self.places) else (0, 0)
        self.bytes = guarded(high - low, behind=choice.random() < 0.5)
        self.places -= low
        self.bytes[:] = 0xEE
        self.address = self.bytes.ctypes.data - low
        self.at = MPI.memory.fromaddress(self.address, max(0, model.extent) * (before + count))

    @property
    def is_apart(self) -> bool:
        """Whether no two elements share a byte."""
        return len(np.unique(self.places)) == len(self.places)

    def fill(self, seed: int) -> Any:
        """Write bytes that tell where they come from; what of them is sent."""
        self.bytes[:] = (np.arange(len(self.bytes)) * 7 + seed * 13) % 251
        return self.bytes[self.places]

    def check(self, expected: Any) -> None:
        """Bytes of elements are the expected ones, all others were left alone."""
        assert np.array_equal(self.bytes[self.places], expected)
        others = np.ones(len(self.bytes), bool)
        others[self.places] = False
        assert (self.bytes[others] == 0xEE).all()


def message(comm: Any, choice: random.Random, datatype: MPI.Datatype, model: Model, count: int, seed: int) -> None:
    sent, found = Memory(choice, model, count), Memory(choice, model, count)
    expected = sent.fill(seed)
    packed, other = guarded(len(expected)), (comm.rank + 1) % comm.size
    way = choice.randrange(4)
    if way == 0:
        comm.Sendrecv([sent.at, count, datatype], other, 1, packed, (comm.rank - 1) % comm.size, 1)
    elif way == 1:
        request = comm.Irecv([packed, MPI.BYTE], tag=1)
        comm.Send([sent.at, count, datatype], other, 1)
        request.Wait()
    else:
        requests = [comm.Irecv([packed, MPI.BYTE], tag=1), comm.Isend([sent.at, count, datatype], other, 1)]
        MPI.Request.Waitall(requests)
    assert np.array_equal(packed, expected)
    if found.is_apart:
        request = comm.Isend(packed, other, 2)
        if way == 2:
            comm.Irecv([found.at, count, datatype], tag=2).Wait()
        else:
            comm.Recv([found.at, count, datatype], tag=2)
        request.Wait()
        found.check(expected)


def packing(comm: Any, choice: random.Random, datatype: MPI.Datatype, model: Model, count: int, seed: int) -> None:
    """As many elements as the memory that is named has room for."""
    if model.extent <= 0:
        return
    sent, found = Memory(choice, model, count), Memory(choice, model, count)
    expected = sent.fill(seed)
    offset = choice.randint(0, 9)
    packed = guarded(offset + len(expected))
    assert datatype.Pack(sent.at, packed, offset, comm) == len(packed)
    assert np.array_equal(packed[offset:], expected)
    if found.is_apart:
        datatype.Unpack(packed, offset, found.at, comm)
        found.check(expected)


def collective(comm: Any, choice: random.Random, datatype: MPI.Datatype, model: Model, count: int, seed: int) -> None:
    """Broadcast, and exchange with displacements, in which some elements stay free."""
    root = choice.randrange(comm.size)
    found = Memory(choice, model, count)
    if not found.is_apart:
        return
    expected = found.fill(seed)
    if comm.rank != root:
        found.bytes[:] = 0xEE
    comm.Bcast([found.at, count, datatype], root)
    if comm.rank != root:
        found.check(expected)
    counts, gap = [count + peer for peer in range(comm.size)], choice.randint(0, 2)
    displacements = [sum(counts[:peer]) + peer * gap for peer in range(comm.size)]
    spread = Memory(choice, model, displacements[-1] + counts[-1])
    if not spread.is_apart:
        return
    mine = Memory(choice, model, counts[comm.rank])
    mine.fill(seed + comm.rank)
    comm.Allgatherv([mine.at, counts[comm.rank], datatype], [spread.at, counts, displacements, datatype])
    for peer in range(comm.size):
        there, theirs = displacements[peer] * len(model.places), Memory(choice, model, counts[peer])
        assert np.array_equal(
            spread.bytes[spread.places[there : there + counts[peer] * len(model.places)]], theirs.fill(seed + peer)
        )


WAYS: list[Callable[..., None]] = [message, message, packing, collective]


@pytest.mark.ranks(1, 2, 3, timeout=7000)
def test_random_datatypes_stay_inside(comm: Any, full: bool) -> None:
    choice = random.Random(f"types of {comm.size}")
    for turn in range((MANY if full else FEW) // 3):
        datatype, model = draw(choice)
        found = datatype.Get_size(), *datatype.Get_extent()
        assert found == (len(model.places), model.lb, model.extent) or not len(model.places), (turn, found, model)
        choice.choice(WAYS)(comm, choice, datatype, model, choice.randint(0, 3), 31 * turn)
        if not datatype.is_predefined:
            datatype.Free()
