"""Every algorithm of every collective, forced: it runs, and nothing else does; what it cannot serve goes the documented way."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.algorithms import ALGORITHMS, NAMES, SHARED_WORK, pack, unpack
from ncclx_mpi.api.communicator import duplicate, return_slot
from ncclx_mpi.collectives import prepare, select
from ncclx_mpi.collectives.autotune import WAYS
from ncclx_mpi.collectives.shm_oneshot import ALLREDUCE, REDUCE, SCRATCH
from ncclx_mpi.p2p import forced
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels import reduce as reductions
from tests.collectives.cases import CASES, REDUCTIONS, Start
from tests.collectives.forked import run_ranks
from transports.shm.arena import Arena
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
SLOT = ("shm_oneshot", "shm_pipelined", "cma")


def word_of(**names: str) -> int:
    return pack({**dict.fromkeys(ALGORITHMS, "auto"), **names})


def numbers(collective: str, name: str) -> tuple[int, ...]:
    """The number of the forced algorithm of each operation, if one collective has one."""
    operations = ("scan", "exscan") if collective == "scan" else (collective,)
    return tuple(NAMES.index(name) if operation in operations else 0 for operation in OPERATIONS)


class Ran(NamedTuple):
    """What a communicator has carried out: meetings on lines, collectives on streams, agreements about ways, plans."""

    meetings: int
    streams: int
    agreements: int
    plans: int

    @classmethod
    def on(cls, comm: NativeComm) -> Ran:
        streams, agreed = (
            ctypes.c_int64.from_address(comm.address + word).value for word in (int(SCRATCH.streams), int(WAYS.agreed))
        )
        return cls(comm.word("sequence"), streams, int(agreed != 0), comm.word("plans"))


def forcing(comm: NativeComm, collective: str, name: str) -> NativeComm:
    """A communicator of the same ranks on which one algorithm is forced."""
    comm.engine.forced = numbers(collective, name)
    try:
        return duplicate(comm)
    finally:
        comm.engine.forced = (0,) * len(OPERATIONS)


def blocking(name: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(collectives, name)
    return function


def run_forced(
    comm: NativeComm, collective: str, name: str, variant: str, lengths: tuple[int, ...], start: Start = blocking
) -> Ran:
    """Run the case of a collective with an algorithm forced; returns what ran."""
    mine = forcing(comm, collective, name)
    try:
        for length in lengths:
            CASE[variant](mine, start, length)
        collectives.barrier(mine)
        return Ran.on(mine)
    except BaseException as error:
        error.add_note(f"{variant} by {name}, rank {comm.rank} of {comm.size}, lengths {lengths}")
        raise
    finally:
        return_slot(mine)


def check_ran(ran: Ran, name: str, variant: str, is_alone: bool) -> None:
    """Assert that the algorithm ran, and no other; a rank that is alone has no slot."""
    what = f"{variant} by {name}: {ran}"
    if name not in SLOT or is_alone:
        assert ran.plans > 0 and ran.streams == ran.agreements == 0 and ran.meetings <= 1, what
        return
    assert ran.plans == 0 and ran.meetings > 1, what
    if variant in DECIDE_THEMSELVES:
        return
    assert (ran.streams > 0) == (name == "shm_pipelined"), what
    assert (ran.agreements > 0) == (name == "cma"), what


def every_algorithm(comm: NativeComm, lengths: tuple[int, ...]) -> None:
    for collective, names in ALGORITHMS.items():
        for name in names:
            for variant in VARIANTS.get(collective, (collective,)):
                ran = run_forced(comm, collective, name, variant, lengths)
                check_ran(ran, name, variant, comm.size == 1)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_every_algorithm(size: int) -> None:
    run_ranks(size, every_algorithm, LENGTHS if size < 8 else LENGTHS[1:3])


def every_operation(comm: NativeComm, length: int) -> None:
    for case in REDUCTIONS:
        collective = next((name for name, variants in VARIANTS.items() if case.__name__ in variants), case.__name__)
        for name in ALGORITHMS[collective]:
            mine = forcing(comm, collective, name)
            for op, kind in ELEMENTS:
                try:
                    case(mine, blocking, length, op, kind)
                except BaseException as error:
                    error.add_note(f"{op} of {kind} by {name}, rank {comm.rank} of {comm.size}")
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
    for _ in range(4):
        comm.engine.forced = tuple(map(max, *(numbers(name, dice.choice(names)) for name, names in ALGORITHMS.items())))
        made.append(duplicate(comm))
    comm.engine.forced = (0,) * len(OPERATIONS)
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
    for collective, names in ALGORITHMS.items():
        for name in names:
            for variant in VARIANTS.get(collective, (collective,)):
                ran = run_forced(comm, collective, name, variant, (LONG,))
                if name != "shm_oneshot":
                    check_ran(ran, name, variant, comm.size == 1)
                elif variant not in ("barrier", *DECIDE_THEMSELVES):
                    assert ran.plans == 0 and ran.streams + ran.agreements > 0, f"{variant}: {ran}"


@pytest.mark.parametrize("size", [2, 3])
def test_every_algorithm_with_more_than_lines_hold(size: int) -> None:
    run_ranks(size, long_ones)


def without(comm: NativeComm, has_slot: bool) -> None:
    for collective, names in ALGORITHMS.items():
        for name in set(names) & set(SLOT):
            ran = run_forced(comm, collective, name, VARIANTS.get(collective, (collective,))[0], (LONG,))
            if not has_slot:
                assert ran.plans > 0 and ran.meetings == 0, f"{collective} by {name}: {ran}"
            elif name == "cma" and collective not in DECIDE_THEMSELVES:
                assert ran.streams > 0, f"{collective}: {ran}"


def test_without_a_slot_plans_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclx_mpi.api.communicator.lead", lambda engine, size: (4, -1))
    run_ranks(3, without, False, with_slot=False)


def test_where_the_kernel_may_not_copy_streams_run() -> None:
    run_ranks(2, without, True, copies="piped")


def large_elements(comm: NativeComm) -> None:
    itemsize = select.LARGEST_ITEM + 8
    for name in SLOT:
        for count in (2, 4):
            mine = forcing(comm, "allreduce", name)
            data = np.zeros(count * itemsize, np.uint8)
            collectives.allreduce(mine, 0, data.ctypes.data, count, itemsize, reductions.address("sum", "u8"), True)
            assert (Ran.on(mine).plans > 0) == (name != "shm_oneshot" or data.nbytes > BIG), f"{count} by {name}"
            return_slot(mine)


def test_elements_that_no_chunk_holds_are_left_to_plans() -> None:
    run_ranks(2, large_elements)


def which_plan(comm: NativeComm) -> None:
    """Reductions have two plans: of few bytes and of many."""
    for kind, prepared in ((REDUCE, prepare.prepare_reduce), (ALLREDUCE, prepare.prepare_allreduce)):
        name = OPERATIONS[kind]
        for count in (1, 100_000):
            for number in ("auto", *ALGORITHMS[name]):
                mine = forcing(comm, name, number)
                is_scattered = select.is_scattered(mine, kind, count, 4)
                wanted = number.startswith("reduce_scatter") or (number in ("auto", *SLOT) and count > 1)
                assert is_scattered == wanted, f"{name} of {count}, forced {number}"
                root = (0,) if kind == REDUCE else ()
                made = prepared(mine, 8, 8, count, 4, 0, True, *root)  # type: ignore[operator]
                assert len(made._room.plan.steps) > 0
                return_slot(mine)


def test_which_of_two_plans_runs() -> None:
    assert all(NAMES[number].startswith("reduce_scatter_") for number in SHARED_WORK)
    run_ranks(3, which_plan)


def test_names_are_those_of_files() -> None:
    """Every file of an algorithm can be forced, and every name is that of a file."""
    elsewhere = {("gather", "cma"), ("scatter", "cma")}
    with_counts = {("alltoall", name) for name in ("shm_vector", "cma_vector")}
    not_for_choice = with_counts | {(name, "shm_object") for name in ("allgather", "alltoall", "bcast", "gather", "scatter")}
    root = collectives.__path__[0]
    files = {(path.parent.name, path.stem) for path in Path(root).glob("*/*.py") if path.stem != "__init__"}
    names = {(collective, name) for collective, found in ALGORITHMS.items() for name in found}
    assert names - elsewhere == files - not_for_choice


def test_words_hold_what_was_packed() -> None:
    for collective, names in ALGORITHMS.items():
        for name in names:
            assert unpack(word_of(**{collective: f" {name.upper()} "})) == {collective: name}
    assert unpack(word_of()) == {} and word_of() != 0
    most = {collective: names[-1] for collective, names in ALGORITHMS.items()}
    assert unpack(pack(most)) == most


def test_an_unknown_name_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(
        ValueError, match=r"NCCLX_MPI_ALGO_ALLGATHER=rong.*shm_oneshot, shm_pipelined, cma, ring.*did you mean ring"
    ):
        word_of(allgather="rong")


def test_ranks_that_force_different_algorithms_are_told() -> None:
    arena = Arena.create(3)
    forced.publish(arena, 0, {**dict.fromkeys(ALGORITHMS, "auto"), "scan": "chain"})
    assert forced.agreed(arena, 0) == numbers("scan", "chain")  # the others have not come yet
    forced.publish(arena, 2, dict.fromkeys(ALGORITHMS, ""))
    with pytest.raises(errors.Exception, match=r"rank 2: NCCLX_MPI_ALGO_SCAN is auto here and chain on rank 0") as caught:
        forced.agreed(arena, 2)
    assert caught.value.Get_error_class() == errors.ERR_OTHER
    arena.close()
