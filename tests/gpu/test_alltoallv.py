"""The kernel of the all-to-all with counts read at execution, on the tables of an executor for all ranks: against the twins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ncclx_mpi.extensions.alltoallv_dynamic.device import segments
from ncclx_mpi.extensions.alltoallv_dynamic.device.reports import INCOMING, OUTGOING, left_offset, report_nbytes
from ncclx_mpi.extensions.alltoallv_dynamic.device.segments import Shown, Tables
from numba_kernels.alltoallv import layout
from numba_kernels.alltoallv.layout import FAULT, MOST_ELEMENTS, PAIR, RUN, WORKSPACE
from numba_kernels.alltoallv.plan_and_copy import BLOCK, PLAN_AND_COPY
from tests.extensions.tables import INDICES, PLAIN, SPLIT, Table, draw
from tests.gpu.machines import MACHINES, Machine, Placed

WORD = 8


class Job:
    """All ranks of a table in a machine's memory, and the tables of the one executor that they have, for so many blocks."""

    def __init__(self, machine: Machine, table: Table, blocks: int = 1) -> None:
        self.machine, self.table, self.size = machine, table, table.size
        self.segments = len(table.splits[0])
        itemsize = table.dtype.itemsize
        self.arrays: list[dict[str, Placed]] = []
        ranks = []
        for rank in range(self.size):
            arrays = {
                "send": machine.place(table.sendbuf(rank), rank),
                "recv": machine.place(table.recvbuf(rank), 3 * itemsize),
                "all_splits": machine.place(np.full(self.size * self.segments, -1)),
            }
            numbers = self.numbers(arrays, rank)
            sent, taken = np.array(table.places[rank]) * itemsize, np.array(table.displacements(rank)) * itemsize
            rooms = np.array([table.room[rank], sent, table.capacities[rank], taken], np.int64)
            self.arrays.append(arrays)
            ranks.append(Shown(rank, b"", 0, numbers, {}, rooms))
        self.tables = Tables(ranks, range(self.size), blocks)
        self.report = machine.place(np.full(report_nbytes(self.size) // WORD, -3))
        self.room = machine.place(np.full(self.tables.nbytes // WORD, -7))

        def at(rank: int, name: str) -> int:
            placed = self.arrays[rank].get(name)
            return 0 if placed is None else placed.address

        machine.put(self.room.address, self.tables.uploaded(self.room.address, at, self.report.address))

    def numbers(self, arrays: dict[str, Placed], rank: int) -> dict[str, int]:
        """What a rank shows; places its metadata."""
        table, each = self.table, self.segments // self.size
        form = (layout.DENSE_SOURCE if table.form == PLAIN else 0) | (layout.DENSE_TARGET if table.form != INDICES else 0)
        found = {"segments": self.segments, "form": form, "itemsize": table.dtype.itemsize, "row_step": 0}
        found |= {"first": 0, "first_step": each, "taken": each, "most_indices": 0}
        for name, array in zip(("splits", "indices", "blocklengths"), table.metadata(rank), strict=True):
            if array is not None:
                found[f"{name}_kind"] = array.itemsize * (-1 if array.dtype.kind == "u" else 1)
                arrays[name] = self.machine.place(array)
                if name == "indices":
                    found["most_indices"] = len(array)
        return found

    def run(self, threads: int) -> Job:
        """Plan and copy, and look at what has arrived."""
        self.machine.run(PLAN_AND_COPY, *self.tables.arguments(self.room.address), threads=threads)
        for rank, arrays in enumerate(self.arrays):
            assert (arrays["all_splits"].read().reshape(self.size, -1) == np.array(self.table.splits)).all()
            assert arrays["recv"].read().tobytes() == self.table.received(rank).tobytes()
        return self

    def pair(self, source: int, target: int, piece: int = 0) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        """Words of a pair as a piece of it has found them, and of its runs, joined where stretches have parted them."""
        _, pairs, pieces, workspaces, nbytes = self.tables.arguments(0)
        assert piece < pieces
        words = self.room.read()[(workspaces + (piece * pairs + target * self.size + source) * nbytes) // WORD :]
        pair = words[column(WORKSPACE.pair) :][: PAIR.total // WORD]
        first = column(WORKSPACE.total + layout.offer_bytes(self.segments))
        runs = words[first:][: pair[column(PAIR.runs)] * column(RUN.total)].reshape(-1, column(RUN.total)).tolist()
        joined: list[tuple[int, ...]] = []
        for run in runs:
            source, target, packed, length = joined[-1] if joined else (-1, -1, -1, 0)
            if [source + length, target + length, packed + length] == run[:3]:
                joined[-1] = source, target, packed, length + run[3]
            else:
                joined.append(tuple(run))
        return pair, joined

    def reports(self) -> np.ndarray:
        """Records by rank, direction and peer."""
        return self.report.read()[: left_offset(self.size, 0) // WORD].reshape(self.size, 2, self.size, -1)


def column(word: int) -> int:
    return word // WORD


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    found = request.param()
    yield found
    found.free()


def expected_runs(table: Table, source: int, target: int) -> list[tuple[int, int, int, int]]:
    found, packed, itemsize = [], 0, table.dtype.itemsize
    for at, there, length in table.runs(source, target):
        found.append((at * itemsize, there * itemsize, packed, length * itemsize))
        packed += length * itemsize
    return found


def check_plan(job: Job, table: Table) -> None:
    """All pieces have found for each pair what the twin finds, and faults are reported."""
    report, size = job.reports(), table.size
    for source in range(size):
        for target in range(size):
            fits, runs = table.fits(source, target), expected_runs(table, source, target)
            for piece in range(job.tables.pieces):
                pair, found = job.pair(source, target, piece)
                assert (pair[column(PAIR.fault)] == layout.FINE) == fits
                assert found == (runs if fits else [])
                assert pair[column(PAIR.nbytes)] == sum(run[3] for run in found)
            told = pair[: FAULT.total // WORD] if not fits else -3
            assert (report[source, OUTGOING, target] == told).all()
            assert (report[target, INCOMING, source] == told).all()


def wide(seed: int, size: int, count: int) -> Table:
    """A table of `count` segments that many walkers share: long and short stretches of chosen, empty and left out ones."""
    rng = np.random.default_rng(seed)
    table = draw(seed, size)
    table.form, table.dtype = str(rng.choice([SPLIT, INDICES])), np.dtype(str(rng.choice(["u1", "f4", "c16"])))
    count = count // size * size if table.form == SPLIT else count
    table.splits = [
        rng.integers(0, 5, count) * np.repeat(rng.integers(0, 2, count), rng.integers(1, 9))[:count] for _ in range(size)
    ]
    if table.form == SPLIT:
        each = count // size
        table.chosen = [[list(range(to * each, (to + 1) * each)) for to in range(size)] for _ in range(size)]
    else:
        flags = [[np.repeat(rng.integers(0, 2, count), rng.integers(1, 20))[:count] for _ in range(size)] for _ in range(size)]
        table.chosen = [[np.flatnonzero(each).tolist() for each in row] for row in flags]
    table.places = [[0] * size for _ in range(size)]
    table.room = [[int(table.splits[rank].sum()) - (rng.random() < 0.1)] * size for rank in range(size)]
    table.room = [[max(0, int(most)) for most in row] for row in table.room]
    ends = [[max((at + n for _, at, n in table.runs(source, rank)), default=0) for source in range(size)] for rank in range(size)]
    table.capacities = [[max(0, end - int(rng.random() < 0.2)) for end in row] for row in ends]
    return table


@pytest.fixture
def is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut pairs into pieces even if they are small."""
    monkeypatch.setattr(segments, "LEAST_PIECE", 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_pairs_are_planned_as_by_the_twin(machine: Machine, size: int) -> None:
    for seed in range(40):
        table = draw(seed, size)
        check_plan(Job(machine, table).run(threads=1 + seed % 5), table)
        machine.free()


@pytest.mark.parametrize("threads", [1, 7, 32, 100, BLOCK, 3 * BLOCK, 16 * BLOCK])
@pytest.mark.usefixtures("is_cut")
def test_many_segments_in_many_pieces(machine: Machine, threads: int) -> None:
    """Blocks run one after another on the CPU: none may need what another one finds."""
    for seed, count in enumerate([0, 1, 7, 8, 9, 64, 65, 255, 256, 257, 1000]):
        table = wide(seed, 1 + seed % 3, count)
        job = Job(machine, table, blocks=40)
        check_plan(job.run(threads), table)
        assert job.tables.pieces <= 40 // table.size**2
        machine.free()


@pytest.mark.parametrize("threads", [1, 5, 32, 100, 256])
@pytest.mark.usefixtures("is_cut")
def test_straight_from_area_to_area(machine: Machine, threads: int) -> None:
    for seed in range(25):
        Job(machine, draw(seed, 3), blocks=9 * (1 + seed % 3)).run(threads)
        machine.free()


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("lengths", [[100_000], [1, 70_000, 3], [1024] * 20, [5000, 1, 1, 9000]])
def test_long_runs_are_cut_into_tiles(machine: Machine, lengths: list[int], shift: int) -> None:
    """Of any alignment to each other; with one team and with many, in one piece and in several."""
    splits = np.array([part for gap, length in enumerate(lengths) for part in (3 * gap % 7, length)])
    table = draw(0, 1, valid=True)
    table.form, table.dtype, table.splits = INDICES, np.dtype("u1"), [splits]
    table.chosen, table.places, table.room = [[list(range(1, len(splits), 2))]], [[0]], [[int(splits.sum())]]
    table.capacities = [[int(splits.sum()) + shift]]
    table.displacements = lambda rank: [shift]  # type: ignore[method-assign]
    for threads, blocks in ((1, 1), (32, 1), (320, 1), (3 * BLOCK, 3), (BLOCK, 8)):
        job = Job(machine, table, blocks).run(threads)
        assert job.tables.pieces == min(blocks, -(-int(splits.sum()) // segments.LEAST_PIECE))
        machine.free()


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4"])
def test_integers_of_every_type(machine: Machine, kind: str) -> None:
    """The extremes of a type, as split lengths: those below zero are refused, all are told."""
    info = np.iinfo(kind)
    table = draw(0, 1, valid=True)
    table.form, table.splits = INDICES, [np.array([info.max, 1, info.min, 0, info.max // 3], np.int64)]
    table.chosen, table.places, table.room, table.capacities = [[[1, 3]]], [[0]], [[10]], [[10]]
    table.metadata = lambda rank: (table.splits[0].astype(kind), np.array([1, 3]), np.array([2]))  # type: ignore[method-assign]
    pair, _ = Job(machine, table).run(threads=1).pair(0, 0)
    refused = info.min < 0 or info.max > MOST_ELEMENTS // 2
    assert pair[column(PAIR.fault)] == (layout.SPLIT if refused else layout.SEND)


@pytest.mark.parametrize("threads", [1, 40, 2 * BLOCK])
@pytest.mark.usefixtures("is_cut")
def test_the_first_thing_that_is_wrong_is_reported(machine: Machine, threads: int) -> None:
    """Whichever walkers meet it, and whatever others meet."""
    count, half, whole = 100, MOST_ELEMENTS // 2, MOST_ELEMENTS
    ones, order = np.ones(count, np.int64), np.arange(count)

    def changed(values: np.ndarray, **at: int) -> np.ndarray:
        found = values.copy()
        for place, value in at.items():
            found[int(place[1:])] = value
        return found

    cases: list[tuple[np.ndarray, np.ndarray, int, tuple[int, ...]]] = [
        (changed(ones, _37=-1, _80=-2), order, count, (layout.SPLIT, 37, -1, whole - 37)),
        (changed(ones, _3=half, _60=half), order, count, (layout.SPLIT, 60, half, half - 59)),
        (changed(ones, _99=whole + 1), changed(order, _5=-1), count, (layout.SPLIT, 99, whole + 1, whole - 99)),
        (ones, changed(order, _97=200, _11=-5, _12=count), count, (layout.INDEX, 11, -5, count)),
        (ones, order, count + 1, (layout.BLOCK, 0, count + 1, count)),
        (ones, changed(order, _0=-1), -3, (layout.BLOCK, 0, -3, count)),
        (changed(ones, _50=7), order, count, (layout.SEND, 0, count + 6, count)),
    ]
    for splits, indices, block, told in cases:
        table = draw(0, 1, valid=True)
        table.form, table.dtype, table.splits = INDICES, np.dtype("u1"), [splits]
        table.chosen, table.places, table.room, table.capacities = [[[]]], [[0]], [[count]], [[count]]
        found = splits, indices, np.array([block])
        table.metadata = lambda rank, found=found: found  # type: ignore[method-assign, misc]
        table.fits = lambda source, target: False  # type: ignore[method-assign]
        job = Job(machine, table, blocks=2).run(threads)
        assert (job.reports()[0, [OUTGOING, INCOMING], 0] == told).all()
        assert all((job.pair(0, 0, piece)[0][: FAULT.total // WORD] == told).all() for piece in range(job.tables.pieces))
        machine.free()


def test_pieces_follow_from_what_there_is_room_for() -> None:
    """A block for each piece, as long as it has enough to move, there are blocks left, and workspaces stay small."""

    def pieces(capacity: int, count: int, blocks: int, size: int = 2) -> int:
        rooms = np.array([[capacity] * size, [0] * size] * 2, np.int64)
        return Tables([Shown(0, b"", 0, {"segments": count, "itemsize": 2}, {}, rooms)] * size, range(size), blocks).pieces

    assert [pieces(capacity, 8, 528) for capacity in (0, 1, segments.LEAST_PIECE, 1 << 30)] == [1, 1, 2, 132]
    assert [pieces(1 << 30, 8, 528, size) for size in (1, 8, 16)] == [528, 8, 2]
    assert pieces(1 << 30, 8, 64, 16) == 1
    assert pieces(1 << 30, 100_000, 528) == 1
