"""Every algorithm of every collective, forced: it runs, and nothing else does; what it cannot serve goes the documented way."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.algorithms import ALGORITHMS, NAMES, ON_SLOT, ORDER, PLAN, RANK, ROWS, Algorithm, Case, choose, pack, rows_of, unpack
from ncclx_mpi.api.communicator import duplicate, return_slot
from ncclx_mpi.collectives import select
from ncclx_mpi.collectives.cma_tuning import WAYS
from ncclx_mpi.collectives.plan import Plan
from ncclx_mpi.collectives.shm_oneshot import SCRATCH
from ncclx_mpi.p2p import forced
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels import reduce as reductions
from tests.collectives.cases import CASES, REDUCTIONS, Start
from tests.collectives.forked import run_ranks
from transports.shm.slots import BIG

CASE = {case.__name__: case for case in CASES}
VARIANTS = {
    "reduce": ("reduction",),
    "gather": ("gather", "gatherv"),
    "scatter": ("scatter", "scatterv"),
    "allgather": ("allgather", "allgatherv"),
    "alltoall": ("alltoall", "alltoallv"),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_block"),
    "scan": ("scan", "exscan"),
}
"""Names of the cases of a collective, where it has not just the one of its own name."""
DECIDE_THEMSELVES = ("gather", "gatherv", "scatter", "scatterv", "alltoallv")
"""On the slot these have one algorithm in bulk, which decides by what each rank sends: by lines, streams or direct copies."""
LENGTHS = (0, 1, 13, 500)
LONG = 40_000
ELEMENTS = (
    ("sum", "f64"), ("prod", "i32"), ("max", "f32"), ("min", "i64"), ("land", "u8"), ("bxor", "u16"), ("sum", "c64"), ("sum", "bf16"),
    ("maxloc", "i32,i32"),
)  # fmt: skip
"""Operations and element types: all sizes of element, some whose order of operands and of additions shows."""
ROUNDED = ("f16", "bf16", "f32", "f64", "c64", "c128")
"""Elements of which sums and products depend on the order."""
WITH_COUNTS = ("gatherv", "scatterv", "allgatherv", "alltoallv", "reduce_scatter")


def word_of(**names: str) -> int:
    return pack({**dict.fromkeys(ALGORITHMS, "auto"), **names})


def numbers(collective: str, name: str) -> tuple[int, ...]:
    """The number of the forced algorithm of each operation, if one collective has one."""
    operations = ("scan", "exscan") if collective == "scan" else (collective,)
    return tuple(NAMES.index(name) if operation in operations else 0 for operation in OPERATIONS)


class Ran(NamedTuple):
    """What a communicator has carried out: meetings on lines, collectives on streams, agreements about ways, plans, and by which rows."""

    meetings: int
    streams: int
    agreements: int
    plans: int
    rows: frozenset[Algorithm] = frozenset()

    @classmethod
    def on(cls, comm: NativeComm, rows: frozenset[Algorithm] = frozenset()) -> Ran:
        streams, agreed = (
            ctypes.c_int64.from_address(comm.address + word).value for word in (int(SCRATCH.streams), int(WAYS.agreed))
        )
        return cls(comm.word("sequence"), streams, int(agreed != 0), comm.word("plans"), rows)


@contextlib.contextmanager
def noted_rows() -> Iterator[set[Algorithm]]:
    """The rows whose plans are made meanwhile."""
    rows: set[Algorithm] = set()
    original = select.function_of

    def noting(row: Algorithm) -> Callable[..., Plan]:
        rows.add(row)
        return original(row)

    select.function_of = noting  # type: ignore[assignment]
    try:
        yield rows
    finally:
        select.function_of = original


def forcing(comm: NativeComm, collective: str, name: str) -> NativeComm:
    """A communicator of the same ranks on which one algorithm is forced."""
    comm.engine.force(numbers(collective, name))
    try:
        return duplicate(comm)
    finally:
        comm.engine.force((0,) * len(OPERATIONS))


def blocking(name: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(collectives, name)
    return function


def exact(row: Algorithm, variant: str) -> tuple[str, ...]:
    """Operation and elements for a reduction in any order, if the row does not reduce in that of ranks; the cases compare bits."""
    return () if row.order == RANK else ("sum", "i64")


def run_forced(comm: NativeComm, row: Algorithm, variant: str, lengths: tuple[int, ...], start: Start = blocking) -> Ran:
    """Run the case of a collective with an algorithm forced; returns what ran."""
    mine = forcing(comm, row.collective, row.name)
    try:
        with noted_rows() as rows:
            for length in lengths:
                CASE[variant](mine, start, length, *exact(row, variant))
        collectives.barrier(mine)
        return Ran.on(mine, frozenset(rows))
    except BaseException as error:
        error.add_note(f"{variant} by {row.name}, rank {comm.rank} of {comm.size}, lengths {lengths}")
        raise
    finally:
        return_slot(mine)


def check_refused(comm: NativeComm, row: Algorithm, variant: str, reason: str) -> None:
    """Assert that a call is refused by all ranks, that nothing is left of it, and that the communicator goes on."""
    mine = forcing(comm, row.collective, row.name)
    with pytest.raises(errors.Exception, match=f"cannot go by {row.name}") as caught:
        CASE[variant](mine, blocking, 13)
    assert caught.value.Get_error_class() == errors.ERR_UNSUPPORTED_OPERATION
    assert reason in str(caught.value) and f"NCCLX_MPI_ALGO_{row.collective.upper()}" in str(caught.value)
    collectives.barrier(mine)
    return_slot(mine)


def check_ran(ran: Ran, row: Algorithm, variant: str, is_alone: bool) -> None:
    """Assert that the algorithm ran, and no other; a rank that is alone has no slot."""
    what = f"{variant} by {row.name}: {ran}"
    if row.kind == PLAN:
        assert ran.rows == {row}, what
    if row.kind == PLAN or is_alone:
        assert ran.plans > 0 and ran.streams == ran.agreements == 0 and ran.meetings <= 1, what
        return
    assert ran.plans == 0 and ran.meetings > 1, what
    if variant in DECIDE_THEMSELVES:
        return
    assert (ran.streams > 0) == (row.name == "shm_pipelined"), what
    assert (ran.agreements > 0) == (row.name == "cma"), what


def every_algorithm(comm: NativeComm, lengths: tuple[int, ...]) -> None:
    for row in ROWS:
        for variant in VARIANTS.get(row.collective, (row.collective,)):
            reason = row.why_not(Case(comm.size, 1, has_counts=variant in WITH_COUNTS, has_slot=True))
            if row.kind == PLAN and reason:
                check_refused(comm, row, variant, reason)
            else:
                check_ran(run_forced(comm, row, variant, lengths), row, variant, comm.size == 1)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_every_algorithm(size: int) -> None:
    run_ranks(size, every_algorithm, LENGTHS if size < 8 else LENGTHS[1:3])


def every_operation(comm: NativeComm, length: int) -> None:
    for case in REDUCTIONS:
        collective = next((name for name, variants in VARIANTS.items() if case.__name__ in variants), case.__name__)
        for row in ROWS:
            if row.collective != collective:
                continue
            mine = forcing(comm, collective, row.name)
            for op, kind in ELEMENTS:
                if row.order != RANK and kind in ROUNDED and op in ("sum", "prod"):
                    continue
                try:
                    case(mine, blocking, length, op, kind)
                except BaseException as error:
                    error.add_note(f"{op} of {kind} by {row.name}, rank {comm.rank} of {comm.size}")
                    raise
            collectives.barrier(mine)
            return_slot(mine)


@pytest.mark.parametrize(("size", "length"), [(2, 7), (3, 333), (5, 1)])
def test_every_operation_by_every_algorithm(size: int, length: int) -> None:
    run_ranks(size, every_operation, length)


def arbitrary(comm: NativeComm, seed: int) -> None:
    """All ranks throw the same dice: communicators, on which all algorithms are drawn, live at the same time."""
    dice = random.Random(seed)
    made = []
    names = {name: [row.name for row in rows_of(name) if row.order == RANK and not row.equal_blocks] for name in ALGORITHMS}
    for _ in range(4):
        comm.engine.force(tuple(map(max, *(numbers(name, dice.choice(names[name])) for name in names))))
        made.append(duplicate(comm))
    comm.engine.force((0,) * len(OPERATIONS))
    for _ in range(60):
        mine, case, length = dice.choice(made), dice.choice(CASES), int(2 ** dice.uniform(0, 15)) - 1
        case(mine, blocking, length)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [2, 3])
def test_any_collective_on_any_communicator_in_any_order(size: int, seed: int) -> None:
    run_ranks(size, arbitrary, seed)


def long_ones(comm: NativeComm) -> None:
    """More than lines hold: the others serve it, and ``shm_oneshot`` leaves it to whatever is chosen for it."""
    assert LONG > BIG
    for row in ROWS:
        for variant in VARIANTS.get(row.collective, (row.collective,)):
            if row.equal_blocks and variant in WITH_COUNTS:
                continue
            ran = run_forced(comm, row, variant, (LONG,))
            if row.name != "shm_oneshot":
                check_ran(ran, row, variant, comm.size == 1)
            elif variant not in ("barrier", *DECIDE_THEMSELVES):
                assert ran.plans == 0 and ran.streams + ran.agreements > 0, f"{variant}: {ran}"


@pytest.mark.parametrize("size", [2, 3])
def test_every_algorithm_with_more_than_lines_hold(size: int) -> None:
    run_ranks(size, long_ones)


def without(comm: NativeComm, has_slot: bool) -> None:
    for row in ROWS:
        if row.kind == PLAN:
            continue
        collective = row.collective
        ran = run_forced(comm, row, VARIANTS.get(collective, (collective,))[0], (LONG,))
        if not has_slot:
            assert ran.plans > 0 and ran.meetings == 0, f"{collective} by {row.name}: {ran}"
        elif row.name == "cma" and collective not in DECIDE_THEMSELVES:
            assert ran.streams > 0, f"{collective}: {ran}"


def test_without_a_slot_plans_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclx_mpi.api.communicator.lead", lambda engine, size: (4, -1))
    run_ranks(3, without, False, with_slot=False)


def test_where_the_kernel_may_not_copy_streams_run() -> None:
    run_ranks(2, without, True, copies="piped")


def large_elements(comm: NativeComm) -> None:
    itemsize = select.LARGEST_ITEM + 8
    for name in ON_SLOT:
        for count in (2, 4):
            mine = forcing(comm, "allreduce", name)
            data = np.zeros(count * itemsize, np.uint8)
            collectives.allreduce(mine, 0, data.ctypes.data, count, itemsize, reductions.address("sum", "u8"), True)
            assert (Ran.on(mine).plans > 0) == (name != "shm_oneshot" or data.nbytes > BIG), f"{count} by {name}"
            return_slot(mine)


def test_elements_that_no_chunk_holds_are_left_to_plans() -> None:
    run_ranks(2, large_elements)


def test_which_plan_is_chosen() -> None:
    """Reductions have two plans where none is forced: of few bytes and of many."""
    for collective, names in (
        ("reduce", ("gather_reduce", "reduce_scatter_gather")),
        ("allreduce", ("allgather_reduce", "reduce_scatter_allgather")),
    ):
        assert tuple(choose(collective, Case(3, nbytes, 4)).name for nbytes in (4, 400_000)) == names
        assert choose(collective, Case(2, 400_000, 4)).name == choose(collective, Case(3, 400_000, 200_000)).name == names[0]
    for row in ROWS:
        for size, nbytes in ((1, 0), (2, 1), (3, 100), (8, 1 << 20)):
            assert choose(row.collective, Case(size, nbytes)).kind == PLAN, "there is one for every case without a slot"
            assert choose(row.collective, Case(size, nbytes, has_slot=True, order=RANK)).order == RANK


def bits_of_all(comm: NativeComm, data: np.ndarray) -> np.ndarray:
    """What each rank has, a row each."""
    rows = np.empty((comm.size, data.nbytes), np.uint8)
    collectives.allgather(comm, data.ctypes.data, data.nbytes, rows.ctypes.data)
    return rows


def the_same_bits(comm: NativeComm, count: int) -> None:
    for row in rows_of("allreduce"):
        mine = forcing(comm, "allreduce", row.name)
        results = []
        for _ in range(3):
            dice = np.random.default_rng(comm.rank)
            data = (dice.standard_normal(count) * 10.0 ** dice.integers(-6, 6, count)).astype(np.float32)
            total = np.zeros_like(data)
            function = reductions.address("sum", "f32")
            collectives.allreduce(mine, data.ctypes.data, total.ctypes.data, count, 4, function, True)
            results.append(bits_of_all(comm, total))
            assert (results[-1] == results[0][0]).all(), f"{row.name}: bits differ between ranks, or between runs"
        return_slot(mine)


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8])
def test_sums_have_the_same_bits_on_all_ranks_and_in_all_runs(size: int) -> None:
    run_ranks(size, the_same_bits, 3_000 if size < 8 else 100)


AFFINE = np.dtype([("a", np.int64), ("b", np.int64)])


@ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
def compose(out: int, low: int, high: int, count: int) -> None:
    """x -> a x + b, first the low one, then the high one: associative, and it does not commute."""
    result, first, then = (np.ctypeslib.as_array((ctypes.c_int64 * (2 * count)).from_address(at)) for at in (out, low, high))
    b = then[0::2] * first[1::2] + then[1::2]
    result[0::2] = first[0::2] * then[0::2]
    result[1::2] = b


def maps(rank: int, count: int) -> np.ndarray:
    dice = np.random.default_rng(rank)
    made = np.empty(count, AFFINE)
    made["a"], made["b"] = dice.integers(2, 5, count), dice.integers(-9, 9, count)
    return made


def composed(ranks: range, count: int) -> np.ndarray:
    """The maps of all ranks, one after the other."""
    total = maps(ranks[0], count)
    for rank in ranks[1:]:
        its = maps(rank, count)
        compose(total.ctypes.data, total.ctypes.data, its.ctypes.data, count)
    return total


def in_the_order_of_ranks(comm: NativeComm, each: int) -> None:
    count, rank, address = each * comm.size, comm.rank, ctypes.cast(compose, ctypes.c_void_p).value
    everything, own = composed(range(comm.size), count), slice(rank * each, (rank + 1) * each)
    calls = {  # arguments after the buffers, those after the operation, and the result
        "allreduce": (count, (), everything),
        "reduce": (count, (comm.size - 1,), everything if rank == comm.size - 1 else everything[:0]),
        "reduce_scatter": ([each] * comm.size, (), everything[own]),
        "scan": (count, (), composed(range(rank + 1), count)),
    }
    for row in ROWS:
        if row.collective not in calls:
            continue
        elements, rest, wanted = calls[row.collective]
        mine, given, total = forcing(comm, row.collective, row.name), maps(rank, count), np.zeros(count, AFFINE)
        arguments = (given.ctypes.data, total.ctypes.data, elements, AFFINE.itemsize, address, False, *rest)
        reason = row.why_not(Case(comm.size, 0, commutes=False)) if row.kind == PLAN else ""
        if reason:
            with pytest.raises(errors.Exception, match=r"does not commute"):
                getattr(collectives, row.collective)(mine, *arguments)
        else:
            getattr(collectives, row.collective)(mine, *arguments)
            assert (total[: len(wanted)] == wanted).all(), f"{row.collective} by {row.name}"
        collectives.barrier(mine)
        return_slot(mine)


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8])
def test_what_does_not_commute_is_in_the_order_of_ranks(size: int) -> None:
    run_ranks(size, in_the_order_of_ranks, 2_000 if size < 8 else 40)


def ordered(comm: NativeComm) -> None:
    comm.engine.reduction_order = RANK
    for row in ROWS:
        if "reduce" not in row.collective or row.kind != PLAN:
            continue
        variant = VARIANTS.get(row.collective, (row.collective,))[0]
        if row.order == RANK:
            check_ran(run_forced(comm, row, variant, (500,)), row, variant, False)
        else:
            check_refused(comm, row, variant, "reduction_order=rank")


@pytest.mark.parametrize("size", [2, 3])
def test_the_order_of_ranks_refuses_algorithms_of_another(size: int) -> None:
    run_ranks(size, ordered)


def test_names_are_those_of_files() -> None:
    """Every file of an algorithm can be forced, and every name is that of a file."""
    elsewhere = {("gather", "cma"), ("scatter", "cma"), ("allreduce", "cma")}
    with_counts = {("alltoall", name) for name in ("shm_vector", "cma_vector")}
    without_others = {("neighbor_alltoall", name) for name in ("linear", "shm_edges", "shm_edge_schedule")}
    not_for_choice = (
        with_counts | without_others | {(name, "shm_object") for name in ("allgather", "alltoall", "bcast", "gather", "scatter")}
    )
    root = collectives.__path__[0]
    files = {(path.parent.name, path.stem) for path in Path(root).glob("*/*.py") if path.stem != "__init__"}
    names = {(collective, name) for collective, found in ALGORITHMS.items() for name in found}
    assert names - elsewhere == files - not_for_choice
    for row in ROWS:
        if row.kind == PLAN:
            assert select.function_of(row).__module__ == f"ncclx_mpi.collectives.{row.collective}.{row.name}"


def test_words_hold_what_was_packed() -> None:
    for collective, names in ALGORITHMS.items():
        for name in names:
            assert unpack(word_of(**{collective: f" {name.upper()} "})) == {collective: name}
    assert unpack(word_of()) == {} and word_of() != 0
    with pytest.raises(ValueError, match=r"NCCLX_MPI_REDUCTION_ORDER=sorted: .* auto or rank"):
        word_of(reduction_order="sorted")
    assert unpack(word_of(scan="chain", reduction_order="rank")) == {"scan": "chain", ORDER: "rank"}
    most = {collective: names[-1] for collective, names in ALGORITHMS.items()}
    assert unpack(pack(most)) == most


def test_an_unknown_name_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(
        ValueError, match=r"NCCLX_MPI_ALGO_ALLGATHER=rong.*shm_oneshot, shm_pipelined, cma, ring.*did you mean ring"
    ):
        word_of(allgather="rong")


def test_ranks_that_force_different_algorithms_are_told() -> None:
    automatic = dict.fromkeys(ALGORITHMS, "auto")
    heard = {0: forced.said({**automatic, "scan": "chain"})}
    assert forced.agreed(0, heard) == (numbers("scan", "chain"), "auto")  # the others have not come yet
    heard[2] = forced.said(dict.fromkeys(ALGORITHMS, ""))
    with pytest.raises(errors.Exception, match=r"rank 2: NCCLX_MPI_ALGO_SCAN is auto here and chain on rank 0") as caught:
        forced.agreed(2, heard)
    assert caught.value.Get_error_class() == errors.ERR_OTHER
    heard[1] = forced.said({**automatic, "scan": "chain", ORDER: "rank"})
    with pytest.raises(errors.Exception, match=r"rank 1: NCCLX_MPI_REDUCTION_ORDER is rank here and auto on rank 0"):
        forced.agreed(1, heard)


def test_ranks_of_different_tuning_tables_are_told() -> None:
    heard = {rank: forced.said(dict.fromkeys(ALGORITHMS, ""), 7) for rank in range(2)}
    assert forced.agreed(1, heard)[1] == "auto"
    heard[2] = forced.said(dict.fromkeys(ALGORITHMS, ""))
    with pytest.raises(
        errors.Exception, match=r"rank 2: there is no tuning table here and tuning table 0+7 on rank 0; .*TUNING_FILE"
    ):
        forced.agreed(2, heard)
    with pytest.raises(errors.Exception, match=r"rank 0: there is tuning table 0+7 here and no tuning table on rank 2"):
        forced.agreed(0, heard)
