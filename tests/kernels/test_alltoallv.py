"""Kernels of the all-to-all with counts read at execution, for all ranks in one process: planning and moving, against the twins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from numba_kernels.alltoallv import copy, layout
from numba_kernels.alltoallv.layout import CALL, OFFER, PAIR, RUN
from numba_kernels.cuda.kernel import Kernel
from tests.extensions.tables import INDICES, PLAIN, Table, draw
from tests.kernels.machines import MACHINES, Machine, Placed

WORD = 8


class Rank:
    """What one rank has in a machine's memory."""

    def __init__(self, machine: Machine, table: Table, rank: int) -> None:
        self.machine, self.table, self.rank, self.size = machine, table, rank, table.size
        segments, itemsize = len(table.splits[0]), table.dtype.itemsize
        self.segments, self.offer_words = segments, layout.offer_bytes(segments) // WORD
        self.send = machine.place(table.sendbuf(rank), rank)
        self.recv = machine.place(table.recvbuf(rank), 3 * itemsize)
        self.every = machine.place(np.full(self.size * segments, -1))
        self.call = machine.place(np.zeros(CALL.total // WORD, np.int64))
        self.tables = {
            name: machine.place(np.full(nbytes // WORD, -7)) for name, nbytes in layout.tables(self.size, segments).items()
        }
        send_at = [self.send.address + at * itemsize for at in table.places[rank]]
        recv_at = [self.recv.address + at * itemsize for at in table.displacements(rank)]
        self.write("send_places", [*table.room[rank], *send_at])
        self.write("recv_places", [*table.capacities[rank], *recv_at])
        splits, indices, blocks = table.metadata(rank)
        each = segments // self.size
        words = dict(
            rank=rank, size=self.size, segments=segments, itemsize=itemsize, most_runs=layout.most_runs(segments),
            form=(layout.DENSE_SOURCE if table.form == PLAIN else 0) | (layout.DENSE_TARGET if table.form != INDICES else 0),
            first_step=each, taken=each, all_splits=self.every.address,
            **{name: placed.address for name, placed in self.tables.items()}, **self.place("splits", splits),
        )  # fmt: skip
        if table.form == INDICES:
            words |= self.place("indices", indices) | self.place("blocklengths", blocks) | {"most_indices": len(indices)}
        content = np.zeros(CALL.total // WORD, np.int64)
        for name, value in words.items():
            content[getattr(CALL, name) // WORD] = value
        machine.put(self.call.address, content)

    def place(self, name: str, array: np.ndarray) -> dict[str, int]:
        """Put metadata into memory; returns their words."""
        kind = array.itemsize * (-1 if array.dtype.kind == "u" else 1)
        return {name: self.machine.place(array).address, f"{name}_kind": kind}

    def write(self, name: str, content: list[int] | np.ndarray) -> None:
        self.machine.put(self.tables[name].address, np.array(content, np.int64))

    def pairs(self, name: str) -> np.ndarray:
        return self.tables[name].read().reshape(self.size, -1)

    def runs(self, name: str, peer: int, count: int) -> list[tuple[int, ...]]:
        return [
            tuple(row)
            for row in self.tables[f"{name}_runs"].read().reshape(self.size, -1, RUN.total // WORD)[peer, :count].tolist()
        ]

    def copy(self, name: str, fields: tuple[int, int], threads: int) -> None:
        pairs, runs = self.tables[name].address, self.tables[f"{name}_runs"].address
        self.machine.run(copy.COPY, pairs, self.size, runs, layout.most_runs(self.segments), *fields, threads=threads)


def column(word: int) -> int:
    return word // WORD


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    found = request.param()
    yield found
    found.free()


def planned(machine: Machine, table: Table, threads: int) -> list[Rank]:
    """All ranks after offers were exchanged and plans made."""
    ranks = [Rank(machine, table, rank) for rank in range(table.size)]
    for rank in ranks:
        machine.run(copy.OFFER, rank.call.address, threads=threads)
    offers = np.array([rank.tables["offers"].read().reshape(table.size, -1) for rank in ranks])
    for rank in ranks:
        rank.write("answers", offers[:, rank.rank])
        machine.run(copy.PLAN, rank.call.address, threads=threads)
        assert (rank.every.read().reshape(table.size, -1) == np.array(table.splits)).all()
    return ranks


def expected_runs(table: Table, source: int, target: int) -> list[tuple[int, int, int, int]]:
    found, packed, itemsize = [], 0, table.dtype.itemsize
    for at, there, length in table.runs(source, target):
        found.append((at * itemsize, there * itemsize, packed, length * itemsize))
        packed += length * itemsize
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_both_ends_plan_what_the_twin_plans(machine: Machine, size: int) -> None:
    for seed in range(40):
        table = draw(seed, size)
        for rank in planned(machine, table, threads=1 + seed % 5):
            outgoing, incoming = rank.pairs("outgoing"), rank.pairs("incoming")
            for peer in range(size):
                for name, pairs, pair in (
                    ("outgoing", outgoing, (rank.rank, peer)), ("incoming", incoming, (peer, rank.rank)),
                ):  # fmt: skip
                    runs = expected_runs(table, *pair) if table.fits(*pair) else []
                    row = pairs[peer]
                    assert (row[column(PAIR.fault)] == layout.FINE) == table.fits(*pair)
                    assert row[column(PAIR.runs)] == len(runs)
                    assert row[column(PAIR.nbytes)] == sum(run[3] for run in runs)
                    assert rank.runs(name, peer, len(runs)) == runs
        machine.free()


@pytest.mark.parametrize("threads", [1, 5, 32, 100, 256])
def test_straight_from_area_to_area(machine: Machine, threads: int) -> None:
    for seed in range(25):
        table = draw(seed, 3)
        ranks = planned(machine, table, threads=1)
        for rank in ranks:
            pairs = rank.pairs("outgoing")
            for peer, other in enumerate(ranks):
                pairs[peer, column(PAIR.target)] = other.pairs("incoming")[rank.rank, column(PAIR.target)]
            rank.write("outgoing", pairs)
            rank.copy("outgoing", (RUN.source, RUN.target), threads)
        for rank in ranks:
            assert rank.recv.read().tobytes() == table.received(rank.rank).tobytes()
        machine.free()


def streams(rank: Rank, name: str, field: int) -> list[Placed]:
    """Put a packed stream for each pair at `field` of it."""
    pairs = rank.pairs(name)
    found = [rank.machine.place(np.zeros(pairs[peer, column(PAIR.nbytes)], np.uint8), peer) for peer in range(rank.size)]
    pairs[:, column(field)] = [stream.address for stream in found]
    rank.write(name, pairs)
    return found


@pytest.mark.parametrize("threads", [1, 64])
def test_packed_at_one_end_and_landed_at_the_other(machine: Machine, threads: int) -> None:
    for seed in range(25):
        table = draw(seed, 3)
        ranks = planned(machine, table, threads=1)
        packed = []
        for rank in ranks:
            packed.append(streams(rank, "outgoing", PAIR.target))
            rank.copy("outgoing", (RUN.source, RUN.packed), threads)
        for rank in ranks:
            for peer, stream in enumerate(streams(rank, "incoming", PAIR.source)):
                machine.put(stream.address, packed[peer][rank.rank].read())
            rank.copy("incoming", (RUN.packed, RUN.target), threads)
            assert rank.recv.read().tobytes() == table.received(rank.rank).tobytes()
        machine.free()


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("lengths", [[100_000], [1, 70_000, 3], [1024] * 20, [5000, 1, 1, 9000]])
def test_long_runs_are_cut_into_tiles(machine: Machine, lengths: list[int], shift: int) -> None:
    """Of any alignment to each other; with one team and with many."""
    starts = np.cumsum([0, *lengths])[:-1]
    gaps = starts + 3 * np.arange(len(lengths))
    content = np.random.default_rng(0).integers(0, 256, sum(lengths) + 3 * len(lengths), np.uint8)
    runs = np.array([(gap, start, start, length) for gap, start, length in zip(gaps, starts, lengths, strict=True)])
    for threads in (1, 32, 320):
        source, target = machine.place(content, 5), machine.place(np.zeros(sum(lengths), np.uint8), 5 + shift)
        pair = np.zeros((2, PAIR.total // WORD), np.int64)
        pair[1, [column(PAIR.source), column(PAIR.target)]] = source.address, target.address
        pair[1, [column(PAIR.nbytes), column(PAIR.runs)]] = sum(lengths), len(lengths)
        pairs, table = machine.place(pair.reshape(-1)), machine.place(np.tile(runs.reshape(-1), 2))
        machine.run(copy.COPY, pairs.address, 2, table.address, len(runs), RUN.source, RUN.target, threads=threads)
        assert (target.read() == np.concatenate([content[gap : gap + n] for gap, n in zip(gaps, lengths, strict=True)])).all()
        machine.free()


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4"])
def test_integers_of_every_type(machine: Machine, kind: str) -> None:
    """The extremes of a type, as split lengths: those below zero are refused, all are told."""
    info = np.iinfo(kind)
    table = draw(0, 1, valid=True)
    table.form, table.splits = INDICES, [np.array([info.max, 1, info.min, 0, info.max // 3], np.int64)]
    table.chosen, table.room, table.capacities = [[[1, 3]]], [[10]], [[10]]
    table.metadata = lambda rank: (table.splits[0].astype(kind), np.array([1, 3]), np.array([2]))  # type: ignore[method-assign]
    (rank,) = planned(machine, table, threads=1)
    offered = rank.tables["offers"].read()
    refused = info.min < 0 or info.max > layout.MOST_ELEMENTS // 2
    assert offered[column(OFFER.fault)] == (layout.SPLIT if refused else layout.SEND)


def test_kernels_are_declared() -> None:
    assert all(isinstance(kernel, Kernel) for kernel in copy.KERNELS)
