"""Every plan is proved for every size, and needs what the literature says; every fault that is planted in one is found."""

from __future__ import annotations

import inspect
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclx_mpi.algorithms import PLAN, ROWS, Algorithm
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, WINDOW, Builder, Plan
from ncclx_mpi.collectives.select import function_of
from ncclx_mpi.simulate import figures, proof
from ncclx_mpi.simulate.calls import Call
from ncclx_mpi.simulate.program import DEADLOCK, RACE, Program
from tests.simulate.mutants import KINDS, Mutant, mutants, proved_equivalent

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import textbook

PLANS = [row for row in ROWS if row.kind == PLAN]
EVERY_PLAN = pytest.mark.parametrize("row", PLANS, ids=lambda row: f"{row.collective}-{row.name}")
SMALL, LARGER, ALL = range(1, 17), (24,), range(1, 65)
WITH_BLOCKS = ("gather", "scatter", "allgather", "alltoall", "reduce_scatter")
ITEMSIZE = 8
LINE = 64
"""Bytes at whose multiples blocks of temporary memory begin."""
INTEGERS = ("rank", "size", "root", "nbytes", "count", "itemsize")
PIECES = 3 * (256 << 10)
"""More bytes than a piece has, by whichever algorithm cuts messages."""


def calls(row: Algorithm, size: int) -> Iterator[Call]:
    """Calls of many kinds: few elements, several pieces, blocks that differ, in place and apart, from and to any root."""
    dice = random.Random(f"{row.collective} {row.name} {size}")
    if row.collective == "barrier":
        yield Call(size, 0)
        return
    for in_place in (False, True):
        few = ITEMSIZE * dice.randrange(size + 1)
        yield Call(size, few if row.collective not in WITH_BLOCKS else few * size, ITEMSIZE, dice.randrange(size), in_place)
        yield Call(size, (PIECES // size + dice.randrange(99)) * size * ITEMSIZE, ITEMSIZE, size - 1, in_place)
        if row.collective == "scan":
            yield Call(size, PIECES + ITEMSIZE, ITEMSIZE, 0, in_place, is_exclusive=True)
        if row.collective in WITH_BLOCKS and not row.equal_blocks:
            counts = tuple(ITEMSIZE * dice.choice((0, 0, 1, 3, dice.randrange(9_000))) for _ in range(size))
            yield Call(size, 0, ITEMSIZE, dice.randrange(size), in_place, counts=counts, gap=ITEMSIZE * dice.randrange(3))


@EVERY_PLAN
def test_every_plan_is_proved(row: Algorithm, full: bool) -> None:
    for size in ALL if full else (*SMALL, *LARGER):
        for call in calls(row, size):
            plans = proof.plans_of(row, call)
            found = proof.faults(row, call, plans)
            assert not found, f"{call}:\n" + "\n".join(map(str, found[:5]))
            assert max(plan.temp for plan in plans) <= most_memory(row, call), call


def most_memory(row: Algorithm, call: Call) -> int:
    """What the row says of blocks that are all as large as the largest one, and two lines for each rank that are begun and not filled. In
    place, an alltoall puts aside what is sent; an exscan passes on what it does not give out; in a reduction to another rank than the first
    one, that one has no result to reduce in."""
    is_of_one = row.collective in ("gather", "allgather")
    nbytes = max(call.counts) * (1 if is_of_one else call.size) if call.counts else call.nbytes
    is_kept = (
        call.is_exclusive or (row.collective == "alltoall" and call.in_place) or (row.collective == "reduce" and call.root > 0)
    )
    aside = nbytes + call.gap * call.size if is_kept else 0
    return row.figures(call.size, nbytes).memory + aside + 2 * LINE * (call.size + 1)


@EVERY_PLAN
def test_plans_know_nothing_of_nodes_but_those_that_say_so(row: Algorithm) -> None:
    """What is proved for so many ranks holds wherever they are. A plan that is told where is proved for many placements (test_nodes.py)."""
    known = {
        *INTEGERS,
        *(["nodes"] if row.by_node else []),
        "in_place",
        "is_exclusive",
        "counts",
        "offsets",
        "send_counts",
        "send_offsets",
    }
    assert set(inspect.signature(function_of(row)).parameters) <= known


@EVERY_PLAN
def test_every_plan_needs_what_its_row_and_the_textbook_say(row: Algorithm, full: bool) -> None:
    """As many bytes, or where n is no power of two at most as many, if there is a formula of its own for that."""
    needs = textbook.NEEDS[row.collective, row.name]
    for size in ALL if full else (*SMALL, *LARGER, 64):
        call = Call(size, 0 if row.collective == "barrier" else 64 * size)
        found = figures.count(proof.plans_of(row, call))
        assert found == row.figures(size, call.nbytes), size
        if size > 1:
            rounds, *most = needs.of(size).values(size, call.nbytes)
            counted = [found.moved, found.reduced]
            assert found.steps == rounds, size
            assert counted == most or (needs.of(size) is needs.otherwise and counted <= most), size


@EVERY_PLAN
def test_every_plan_goes_on_with_the_steps_that_are_looked_at(row: Algorithm, full: bool) -> None:
    """Of more steps than the executor looks at, and if no send is complete before it is received."""
    size = 150 if full else 64
    program = Program(proof.plans_of(row, Call(size, 0 if row.collective == "barrier" else ITEMSIZE * size, ITEMSIZE)))
    assert not program.faults and not program.stuck(program.order())


def faulty(seed: int) -> list[Mutant]:
    """Faults in small calls by all algorithms."""
    dice, found = random.Random(seed), []
    for row in PLANS:
        for with_counts in (False, True):
            size = dice.randrange(2, 7)
            counts = tuple(dice.randrange(4) for _ in range(size)) if with_counts and not row.equal_blocks else ()
            nbytes = 0 if row.collective == "barrier" else dice.randrange(1, 4) * size
            found.append((row, Call(size, nbytes, 1, dice.randrange(size), dice.random() < 0.5, dice.random() < 0.3, counts)))
    return list(mutants(found, seed))


def test_every_planted_fault_is_found(full: bool) -> None:
    """What is not found makes no difference, whatever is late: an order that other steps give, or a copy that changes nothing."""
    found: Counter[str] = Counter()
    equivalent: Counter[str] = Counter()
    seed, wanted = 0, 5_000 if full else 300
    while found.total() < wanted:
        for mutant in faulty(seed):
            if proof.faults(mutant.row, mutant.call, mutant.plans):
                found[mutant.kind] += 1
            else:
                assert proved_equivalent(mutant), mutant
                equivalent[mutant.kind] += 1
        seed += 1
    assert min(found[kind.__name__] for kind in KINDS) > wanted // 20, "there are faults of each kind"
    assert equivalent.total() < found.total() // 10, equivalent


def test_the_oracle_sees_a_lost_order() -> None:
    """What :func:`proved_equivalent` says is worth something: it refutes most of the faults, too, without the proof."""
    seen = [not proved_equivalent(mutant) for mutant in faulty(0)]
    assert sum(seen) > 0.8 * len(seen)


def plans(*made: Builder) -> list[Plan]:
    return [builder.build() for builder in made]


ALLREDUCE = next(row for row in PLANS if row.collective == "allreduce")


def test_two_that_send_before_they_receive_wait_for_ever() -> None:
    """With small messages it would go well."""
    ends = Builder(), Builder()
    for rank, steps in enumerate(ends):
        sent = steps.send(1 - rank, (INPUT, 0), 8)
        came = steps.recv(1 - rank, (TEMP, steps.temp(8)), 8, [sent])
        steps.reduce((OUTPUT, 0), *[((TEMP, 0), (INPUT, 0)), ((INPUT, 0), (TEMP, 0))][1 - rank], 8, [came])
    found = proof.faults(ALLREDUCE, Call(2, 8), plans(*ends))
    assert {fault.kind for fault in found} == {DEADLOCK} and len(found) == 2
    assert "rank 0, step 0: step 0 (send to rank 1) is never complete" in str(found[0])


def test_a_message_that_only_a_far_step_receives_waits_for_ever() -> None:
    """The executor looks at so many steps; the receive of the first message is behind as many that wait for later ones."""
    sender, receiver = Builder(), Builder()
    for index in range(WINDOW + 1):
        sender.send(1, (INPUT, index), 1, [index - 1])
    for index in [*range(1, WINDOW + 1), 0]:
        receiver.recv(0, (OUTPUT, index), 1)
    made = plans(sender, receiver)
    made[1].steps.setflags(write=True)
    made[1].steps["number"] = [*range(2, WINDOW + 2), 1]
    program = Program(made)
    assert not program.faults and [fault.rank for fault in program.stuck(program.order())] == [0, 1]


def test_a_message_orders_what_was_before_it_on_both_ranks() -> None:
    """A place may be written over by what another rank sends after it has received what was there; but not because the send began."""

    def exchange(waits_for_it: bool) -> list[Plan]:
        first, second = Builder(), Builder()
        first.send(1, (INPUT, 0), 8)
        first.recv(1, (INPUT, 0), 8)
        came = second.recv(0, (TEMP, second.temp(8)), 8)
        second.send(0, (INPUT, 0), 8, [came] if waits_for_it else [])
        return plans(first, second)

    call = Call(2, 8, in_place=True)
    assert RACE not in {fault.kind for fault in proof.faults(ALLREDUCE, call, exchange(True))}
    found = [fault for fault in proof.faults(ALLREDUCE, call, exchange(False)) if fault.kind == RACE]
    assert [str(fault) for fault in found] == [
        "race: rank 0, step 1: step 1 (recv from rank 1) and step 0 (send to rank 1) both touch INPUT[0:8], and nothing orders them"
    ]


def test_bits_that_differ_between_ranks_are_found() -> None:
    """Either order is one of a ring; ranks must have the same."""
    ends = Builder(), Builder()
    for rank, steps in enumerate(ends):
        steps.send(1 - rank, (INPUT, 0), 8)
        came = steps.recv(1 - rank, (TEMP, steps.temp(8)), 8)
        steps.reduce((OUTPUT, 0), (TEMP, 0), (INPUT, 0), 8, [came])
    ring = next(row for row in PLANS if row.collective == "allreduce" and row.name == "ring")
    found = proof.faults(ring, Call(2, 8), plans(*ends))
    assert [fault.text for fault in found] == ["byte 0 is reduced in another way than on a rank before"]
