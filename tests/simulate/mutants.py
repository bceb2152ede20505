"""Faults that are planted in plans, and an oracle that does without the proof: it runs a plan with each thing in turn as late as can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ncclx_mpi.algorithms import ANY, GROUPS, Algorithm
from ncclx_mpi.collectives.plan import COPY, JOIN, RECV, REDUCE, SEND, Plan
from ncclx_mpi.simulate.calls import Call
from ncclx_mpi.simulate.promises import promise_of
from ncclx_mpi.simulate.proof import plans_of
from tests.collectives.simulator import Cells, Late, Move, Simulation

Steps = np.ndarray[Any, Any]


class Mutant(NamedTuple):
    """A call whose plans have one fault."""

    kind: str
    row: Algorithm
    call: Call
    plans: list[Plan]
    text: str


def swapped_offset(steps: Steps, size: int, dice: random.Random) -> str:
    """Two steps of a kind use each other's place."""
    choices = [
        (field, one, other)
        for field in ("offset", "low_offset", "high_offset")
        for one in range(len(steps))
        for other in range(one)
        if steps["kind"][one] == steps["kind"][other] != JOIN
        and steps[field.replace("offset", "buffer")][one] == steps[field.replace("offset", "buffer")][other]
        and steps["nbytes"][one]
        and steps["nbytes"][other]
        and steps[field][one] != steps[field][other]
    ]
    if not choices:
        return ""
    field, one, other = dice.choice(choices)
    steps[field][[one, other]] = steps[field][[other, one]]
    return f"{field} of {one} and {other}"


def dropped_dependency(steps: Steps, size: int, dice: random.Random) -> str:
    return _changed(steps, dice, ("first", "second"), lambda old: -1, lambda step, old: old >= 0)


def wrong_peer(steps: Steps, size: int, dice: random.Random) -> str:
    return _changed(
        steps, dice, ("peer",), lambda old: (old + dice.randrange(1, size)) % size, lambda step, old: step["kind"] <= RECV
    )


def wrong_count(steps: Steps, size: int, dice: random.Random) -> str:
    return _changed(steps, dice, ("nbytes",), lambda old: old + dice.choice((-1, 1)), lambda step, old: step["kind"] != JOIN)


def missing_step(steps: Steps, size: int, dice: random.Random) -> str:
    return _changed(steps, dice, ("kind",), lambda old: JOIN, lambda step, old: old in (REDUCE, COPY))


def _changed(
    steps: Steps, dice: random.Random, fields: tuple[str, ...], new: Callable[[int], int], may: Callable[[Any, int], bool]
) -> str:
    choices = [(field, index) for field in fields for index in range(len(steps)) if may(steps[index], int(steps[field][index]))]
    if not choices:
        return ""
    field, index = dice.choice(choices)
    old = int(steps[field][index])
    steps[field][index] = new(old)
    return f"{field} of {index}: {old} > {steps[field][index]}"


KINDS = (swapped_offset, dropped_dependency, wrong_peer, wrong_count, missing_step)


def mutants(calls: Sequence[tuple[Algorithm, Call]], seed: int) -> Sequence[Mutant]:
    """One of each kind that has a place in the plans of a call, for each call."""
    dice, made = random.Random(seed), []
    for row, call in calls:
        for kind in KINDS:
            plans = plans_of(row, call)
            rank = dice.randrange(call.size)
            steps = plans[rank].steps.copy()
            text = kind(steps, call.size, dice)
            if text:
                plans[rank] = Plan.of(steps, plans[rank].temp)
                made.append(Mutant(kind.__name__, row, call, plans, f"rank {rank}: {text}"))
    return made


def proved_equivalent(mutant: Mutant) -> bool:
    """Whether every rank gets the same as by the real plans, whichever step begins, and whichever message is read and arrives, last.

    What a lost order of two steps allows is that the later one comes first; that happens if all that can be comes before the earlier one.
    """
    wanted = _outcome(mutant, Simulation(plans_of(mutant.row, mutant.call), _buffers(mutant), 0))
    steps: list[Move] = [(rank, index) for rank, plan in enumerate(mutant.plans) for index in range(len(plan.steps))]
    late = [(step, False) for step in steps]
    for rank, index in steps:
        step = mutant.plans[rank].steps[index]
        if step["kind"] == SEND:
            message = (rank, int(step["peer"]), int(step["number"]))
            late += [(message, False), (message, True)]
    return all(_outcome(mutant, Late(mutant.plans, _buffers(mutant), *one)) == wanted for one in late)


def _buffers(mutant: Mutant) -> list[tuple[Cells, Cells]]:
    pairs = []
    for rank in range(mutant.call.size):
        promise = promise_of(mutant.row.collective, mutant.call, rank)
        buffers: list[Cells] = [[None] * length for length in promise.lengths]
        if promise.is_shared:
            buffers[1] = buffers[0]
        for given in promise.given:
            cells = [f"{rank}.{given.first + index} " for index in range(given.nbytes)]
            buffers[given.buffer][given.start : given.start + given.nbytes] = cells
        pairs.append((buffers[0], buffers[1]))
    return pairs


def _outcome(mutant: Mutant, simulation: Simulation) -> object:
    """What the ranks have in the end, apart from what an algorithm does not promise; None if they do not come to an end."""
    try:
        simulation.run()
    except AssertionError:
        return None
    found = []
    for rank, state in enumerate(simulation.ranks):
        promise = promise_of(mutant.row.collective, mutant.call, rank)
        output = state.buffers[1]
        if promise.is_open:
            output = output[: sum(promised.nbytes for promised in promise.promised)]
        found.append((promise.is_shared or state.buffers[0], [_promised(mutant.row.order, cell) for cell in output]))
    return found, simulation.heard if mutant.row.collective == "barrier" else None


def _promised(order: str, cell: object) -> object:
    """Of a reduction, what an algorithm of that order promises."""
    if not isinstance(cell, str) or order not in (ANY, GROUPS):
        return cell
    operands = cell.replace("(", "").replace(")", "").split()
    return sorted(operands) if order == ANY else operands
