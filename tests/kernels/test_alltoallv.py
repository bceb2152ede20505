"""Kernels of the all-to-all with counts read at execution, on the tables of an executor for all ranks: against the twins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ncclx_mpi.device.reports import INCOMING, OUTGOING, left_offset, report_nbytes
from ncclx_mpi.device.segments import Shown, Tables
from numba_kernels.alltoallv import copy, layout
from numba_kernels.alltoallv.layout import FAULT, PAIR, RUN
from numba_kernels.cuda.kernel import Kernel
from tests.extensions.tables import INDICES, PLAIN, Table, draw
from tests.kernels.machines import MACHINES, Machine, Placed

WORD = 8


class Job:
    """All ranks of a table in a machine's memory, and the tables of the one executor that they have."""

    def __init__(self, machine: Machine, table: Table) -> None:
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
        self.tables = Tables(ranks, range(self.size))
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

    def plan(self, threads: int) -> Job:
        self.machine.run(copy.PLAN, *self.tables.plan_arguments(self.room.address), threads=threads)
        for arrays in self.arrays:
            assert (arrays["all_splits"].read().reshape(self.size, -1) == np.array(self.table.splits)).all()
        return self

    def copy(self, threads: int) -> None:
        self.machine.run(copy.COPY, *self.tables.copy_arguments(self.room.address), threads=threads)
        for rank, arrays in enumerate(self.arrays):
            assert arrays["recv"].read().tobytes() == self.table.received(rank).tobytes()

    def pair(self, source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
        """Words of a pair, and of its runs."""
        index = target * self.size + source
        pairs, _, runs, most = self.tables.copy_arguments(0)
        words = self.room.read()
        pair = words[pairs // WORD :][index * PAIR.total // WORD :][: PAIR.total // WORD]
        return pair, words[runs // WORD :].reshape(-1, RUN.total // WORD)[index * most :][: pair[column(PAIR.runs)]]


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


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_pairs_are_planned_as_by_the_twin(machine: Machine, size: int) -> None:
    for seed in range(40):
        table = draw(seed, size)
        job = Job(machine, table).plan(threads=1 + seed % 5)
        report = job.report.read()[: left_offset(size, 0) // WORD].reshape(size, 2, size, -1)
        for source in range(size):
            for target in range(size):
                fits = table.fits(source, target)
                pair, runs = job.pair(source, target)
                assert (pair[column(PAIR.fault)] == layout.FINE) == fits
                assert [tuple(run) for run in runs.tolist()] == (expected_runs(table, source, target) if fits else [])
                assert pair[column(PAIR.nbytes)] == runs[:, column(RUN.nbytes)].sum()
                told = pair[: FAULT.total // WORD] if not fits else -3
                assert (report[source, OUTGOING, target] == told).all()
                assert (report[target, INCOMING, source] == told).all()
        machine.free()


@pytest.mark.parametrize("threads", [1, 5, 32, 100, 256])
def test_straight_from_area_to_area(machine: Machine, threads: int) -> None:
    for seed in range(25):
        Job(machine, draw(seed, 3)).plan(threads=1).copy(threads)
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
        machine.run(copy.COPY, pairs.address, 2, table.address, len(runs), threads=threads)
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
    pair, _ = Job(machine, table).plan(threads=1).pair(0, 0)
    refused = info.min < 0 or info.max > layout.MOST_ELEMENTS // 2
    assert pair[column(PAIR.fault)] == (layout.SPLIT if refused else layout.SEND)


def test_kernels_are_declared() -> None:
    assert all(isinstance(kernel, Kernel) for kernel in copy.KERNELS)
