"""Every plan, for all sizes up to 64 ranks, run symbolically in adversarial orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

import numpy as np
import pytest

from ncclx_mpi.algorithms import GROUPS, PLAN, RANK, ROWS, Algorithm
from ncclx_mpi.collectives.allgather import ring
from ncclx_mpi.collectives.alltoall import pairwise
from ncclx_mpi.collectives.plan import RECV, SEND, Builder, Plan
from ncclx_mpi.collectives.select import function_of
from tests.collectives.pieces import in_pieces_of
from tests.collectives.simulator import Cells, Simulation

SMALL = range(1, 18)
SIZES = [*SMALL, 31, 32, 33, 63, 64]
IN_PLACE = pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in_place"])


def plans(*collectives: str) -> pytest.MarkDecorator:
    """Every algorithm of a collective that is a plan."""
    rows = [row for row in ROWS if row.kind == PLAN and row.collective in collectives]
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


def run(size: int, plan: Callable[[int], Plan], buffers: list[tuple[Cells, Cells]], seed: int = 0) -> list[Cells]:
    """Run the plans of all ranks; returns each rank's OUTPUT."""
    Simulation([plan(rank) for rank in range(size)], buffers, seed).run()
    return [output for _, output in buffers]


def contribution(rank: int, length: int) -> Cells:
    return [f"{rank}.{index} " for index in range(length)]


def reduced(ranks: range, index: int) -> str:
    """((0 1) 2) ...: the association in the order of ranks."""
    total = f"{ranks[0]}.{index} "
    for rank in ranks[1:]:
        total = f"({total}{rank}.{index} )"
    return total


def check_reduced(row: Algorithm, found: list[object], ranks: range, first: int = 0) -> None:
    """Assert that each element is the reduction of all ranks' in the order that the row tells."""
    for index, value in enumerate(found, first):
        operands = str(value).replace("(", "").replace(")", "").split()
        in_order = [f"{rank}.{index}" for rank in ranks]
        if row.order == RANK:
            assert value == reduced(ranks, index)
        assert (operands if row.order == GROUPS else sorted(operands)) == (in_order if row.order == GROUPS else sorted(in_order))


def operands(size: int, length: int, in_place: bool, output: int | None = None) -> list[tuple[Cells, Cells]]:
    """INPUT and OUTPUT of each rank for a reduction of `length` elements."""
    pairs = []
    for rank in range(size):
        cells = contribution(rank, length)
        pairs.append((cells, cells) if in_place else (cells, [None] * (length if output is None else output)))
    return pairs


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    """Segments and chunks of two bytes, so that short messages have several."""
    with in_pieces_of(2):
        yield


@plans("barrier")
@pytest.mark.parametrize("size", SIZES)
def test_barrier_waits_for_every_rank(size: int, row: Algorithm) -> None:
    made = [function_of(row)(rank, size) for rank in range(size)]
    simulation = Simulation(made, [([], [])] * size, 0)
    simulation.run()
    assert simulation.heard == [set(range(size))] * size


@plans("bcast")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("nbytes", [0, 1, 5])
def test_bcast(size: int, nbytes: int, row: Algorithm) -> None:
    for root in {0, size // 2, size - 1}:
        buffers = [(cells := contribution(rank, nbytes), cells) for rank in range(size)]
        outputs = run(size, lambda rank, root=root: function_of(row)(rank, size, nbytes, root), buffers)  # type: ignore[misc]
        assert outputs == [contribution(root, nbytes)] * size


def ragged(size: int, row: Algorithm) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Counts, some of them 0, and offsets with gaps; or all the same, if the algorithm is for such blocks."""
    if row.equal_blocks:
        return (3,) * size, tuple(range(0, 3 * size, 3))
    counts = tuple((rank * 7 + 2) % 4 for rank in range(size))
    return counts, (0, *accumulate(count + 1 for count in counts))[:-1]


def scattered_blocks(size: int, row: Algorithm, make: Callable[[int], Cells]) -> Cells:
    """Blocks of all ranks at their offsets, gaps left empty."""
    counts, offsets = ragged(size, row)
    cells: Cells = [None] * (offsets[-1] + counts[-1])
    for rank in range(size):
        cells[offsets[rank] : offsets[rank] + counts[rank]] = make(rank)
    return cells


@IN_PLACE
@plans("gather")
@pytest.mark.parametrize("size", SIZES)
def test_gather(size: int, in_place: bool, row: Algorithm) -> None:
    counts, offsets = ragged(size, row)
    root = size // 2
    whole = scattered_blocks(size, row, lambda rank: contribution(rank, counts[rank]))
    outputs: list[Cells] = [[None] * len(whole) for _ in range(size)]
    if in_place:
        outputs[root][offsets[root] : offsets[root] + counts[root]] = contribution(root, counts[root])
    buffers = [(contribution(rank, counts[rank]), outputs[rank]) for rank in range(size)]
    run(size, lambda rank: function_of(row)(rank, size, counts, offsets, root, in_place and rank == root), buffers)
    assert outputs[root] == whole


@IN_PLACE
@plans("scatter")
@pytest.mark.parametrize("size", SIZES)
def test_scatter(size: int, in_place: bool, row: Algorithm) -> None:
    counts, offsets = ragged(size, row)
    root = size - 1
    whole = scattered_blocks(size, row, lambda rank: contribution(rank, counts[rank]))
    buffers: list[tuple[Cells, Cells]] = [(list(whole), [None] * counts[rank]) for rank in range(size)]
    run(size, lambda rank: function_of(row)(rank, size, counts, offsets, root, in_place and rank == root), buffers)
    for rank in range(size):
        kept = in_place and rank == root
        assert buffers[rank][1] == ([None] * counts[rank] if kept else contribution(rank, counts[rank]))


@IN_PLACE
@plans("allgather")
@pytest.mark.parametrize("size", SIZES)
def test_allgather(size: int, in_place: bool, row: Algorithm) -> None:
    counts, offsets = ragged(size, row)
    whole = scattered_blocks(size, row, lambda rank: contribution(rank, counts[rank]))
    buffers: list[tuple[Cells, Cells]] = []
    for rank in range(size):
        output: Cells = [None] * len(whole)
        if in_place:
            output[offsets[rank] : offsets[rank] + counts[rank]] = contribution(rank, counts[rank])
        buffers.append((contribution(rank, counts[rank]), output))
    assert run(size, lambda rank: function_of(row)(rank, size, counts, offsets, in_place), buffers) == [whole] * size


@IN_PLACE
@plans("alltoall")
@pytest.mark.parametrize("size", SMALL)
@pytest.mark.parametrize("seed", range(3))
def test_alltoall(size: int, in_place: bool, seed: int, row: Algorithm) -> None:
    def count(source: int, target: int) -> int:
        low, high = sorted((source, target))
        return seed if row.equal_blocks else (low * 5 + high * 3 + 1) % 4  # symmetric, as in-place calls require

    def block(source: int, target: int) -> Cells:
        return [f"{source}>{target}.{index}" for index in range(count(source, target))]

    counts = [tuple(count(rank, other) for other in range(size)) for rank in range(size)]
    offsets = [(0, *accumulate(counts_of_one))[:-1] for counts_of_one in counts]
    buffers: list[tuple[Cells, Cells]] = []
    for rank in range(size):
        cells = [cell for other in range(size) for cell in block(rank, other)]
        buffers.append((cells, cells) if in_place else (cells, [None] * sum(counts[rank])))

    def plan(rank: int) -> Plan:
        return function_of(row)(rank, size, counts[rank], offsets[rank], counts[rank], offsets[rank], in_place)

    outputs = run(size, plan, buffers, seed)
    for rank in range(size):
        assert outputs[rank] == [cell for other in range(size) for cell in block(other, rank)]


@IN_PLACE
@plans("reduce")
@pytest.mark.parametrize("size", SIZES)
def test_reduce(row: Algorithm, size: int, in_place: bool) -> None:
    length = 5
    for root in {0, size - 1}:
        buffers = operands(size, length, in_place)
        outputs = run(size, lambda rank, root=root: function_of(row)(rank, size, length, 1, root), buffers)  # type: ignore[misc]
        check_reduced(row, outputs[root], range(size))


@IN_PLACE
@plans("allreduce")
@pytest.mark.parametrize("size", [*SMALL, 33])
@pytest.mark.parametrize("length", ["few", "many"])
def test_allreduce(row: Algorithm, size: int, in_place: bool, length: str) -> None:
    """Of fewer elements than there are ranks, and of more."""
    count = size // 2 if length == "few" else 3 * size + 4
    outputs = run(size, lambda rank: function_of(row)(rank, size, count, 1), operands(size, count, in_place), count)
    check_reduced(row, outputs[0], range(size))
    assert outputs == [outputs[0]] * size, "all ranks compute the same"


@IN_PLACE
@plans("reduce_scatter")
@pytest.mark.parametrize("size", SMALL)
@pytest.mark.parametrize("seed", range(3))
def test_reduce_scatter(size: int, in_place: bool, seed: int, row: Algorithm) -> None:
    counts = tuple((rank * 3 + 1) % 4 for rank in range(size))
    firsts = [0, *accumulate(counts)]
    buffers = operands(size, sum(counts), in_place, output=4)
    outputs = run(size, lambda rank: function_of(row)(rank, size, counts, 1), buffers, seed)
    for rank in range(size):
        check_reduced(row, outputs[rank][: counts[rank]], range(size), firsts[rank])


@IN_PLACE
@plans("scan")
@pytest.mark.parametrize("size", SIZES)
def test_scan_and_exscan(size: int, in_place: bool, row: Algorithm) -> None:
    length = 5
    scans = run(size, lambda rank: function_of(row)(rank, size, length, 1, False), operands(size, length, in_place))
    for rank in range(size):
        check_reduced(row, scans[rank], range(rank + 1))
    outputs = run(size, lambda rank: function_of(row)(rank, size, length, 1, True), operands(size, length, in_place))
    assert outputs[0] == (contribution(0, length) if in_place else [None] * length)
    for rank in range(1, size):
        check_reduced(row, outputs[rank], range(rank))


def test_counts_are_filled_into_steps_that_are_written_once() -> None:
    size, rank = 61, 7
    dice = np.random.default_rng(0)
    made = pairwise._shape.cache_info().misses
    for _ in range(3):
        send_counts, counts = dice.integers(0, 3, size), dice.integers(0, 3, size)
        steps = pairwise.plan(rank, size, send_counts, send_counts * 2, counts, counts * 3, False).steps
        for kind, sizes, step in ((SEND, send_counts, 2), (RECV, counts, 3)):
            messages = steps[steps["kind"] == kind]
            assert sorted(messages["peer"]) == [peer for peer in range(size) if sizes[peer] and peer != rank], (
                "empty ones are not sent"
            )
            assert (messages["nbytes"] == sizes[messages["peer"]]).all() and (messages["number"] == 1).all()
            assert (messages["offset"] == step * sizes[messages["peer"]]).all()
    assert pairwise._shape.cache_info().misses == made + 1


def test_a_sparse_exchange_has_few_steps() -> None:
    counts = np.zeros(1024, np.int64)
    counts[[6, 8]] = 3
    steps = pairwise.plan(7, 1024, counts, counts, counts, counts, False).steps
    assert sorted(zip(steps["kind"], steps["peer"], strict=True)) == [(SEND, 6), (SEND, 8), (RECV, 6), (RECV, 8)]
    assert len(pairwise.plan(7, 1024, 0 * counts, counts, 0 * counts, counts, False).steps) == 0


def test_the_same_counts_are_the_same_plan() -> None:
    first = ring.plan(0, 3, [1, 0, 2], [0, 1, 1], False)
    assert ring.plan(0, 3, np.array([1, 0, 2]), (0, 1, 1), False) is first
    assert ring.plan(0, 3, [1, 0, 2], [0, 2, 2], False) is not first


def test_a_step_may_wait_for_any_number_of_steps() -> None:
    steps = Builder()
    copies = [steps.copy((1, index), (0, index), 1) for index in range(5)]
    steps.copy((1, 5), (1, 4), 1, copies)
    output: Cells = [None] * 6
    Simulation([steps.build()], [(list("abcde"), output)], 1).run()
    assert output == list("abcdee")
