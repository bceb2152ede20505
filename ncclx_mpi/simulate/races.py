"""Which steps are ordered, and by what: only by their dependencies, and by messages that have arrived.

A step comes after the steps that it names, and what a message brings comes after what was complete where it was sent. Nothing else orders
steps: two that touch the same bytes, one of them to write, and are not ordered that way are a race, even if they never met in a test.

A receive writes after it has begun and after the message was sent. A send has read its bytes when it is complete, and when the
message has arrived. That a send is not complete before it is received is no order: a small message is sent and gone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ncclx_mpi.collectives.plan import INPUT, NAMES_OF_BUFFERS, OUTPUT, RECV, SEND
from ncclx_mpi.simulate.program import RACE, Access, Fault, Program

_BATCH = 4096
"""Pairs that are looked at together."""
_Pair = tuple[Access, Access]


def find(program: Program, order: list[int], is_shared: list[bool]) -> list[Fault]:
    """Return every pair of steps that touch the same bytes, one of them to write, in no order.

    Parameters
    ----------
    program
        All steps.
    order
        Its events, each after those that it waits for.
    is_shared
        Of each rank, whether its INPUT is its OUTPUT.
    """
    pairs = [pair for rank, shared in enumerate(is_shared) for pair in _unordered_on_its_own(program, rank, shared)]
    faults = []
    for start in range(0, len(pairs), _BATCH):
        for one, other in _unordered(program, order, pairs[start : start + _BATCH]):
            where = f"{NAMES_OF_BUFFERS[one.buffer]}[{max(one.start, other.start)}:{min(one.end, other.end)}]"
            text = f"{program.name(one.step)} and {program.name(other.step)} both touch {where}, and nothing orders them"
            faults.append(program.fault(RACE, one.step, text))
    return faults


def _unordered_on_its_own(program: Program, rank: int, is_shared: bool) -> Iterator[_Pair]:
    """Pairs that touch the same bytes and that the dependencies of the rank itself do not order."""
    first, end = program.bases[rank], program.bases[rank + 1]
    accesses = [access for index in range(first, end) for access in program.accesses(index)]
    if not any(access.is_write for access in accesses):
        return
    before = _closure(program, first, end)
    table = np.array([(INPUT if is_shared and a.buffer == OUTPUT else a.buffer, a.start, a.end, a.step - first) for a in accesses])
    writes = np.flatnonzero([access.is_write for access in accesses])
    (buffer, start, stop, step), (its_buffer, its_start, its_stop, its_step) = table.T, table[writes].T[:, :, None]
    is_met = (its_buffer == buffer) & (its_start < stop) & (its_stop > start)
    for number, other in np.argwhere(is_met & ~before[its_step, step] & ~before[step, its_step]).tolist():
        write = int(writes[number])
        if not accesses[other].is_write or other > write:
            yield accesses[write], accesses[other]


def _closure(program: Program, first: int, end: int) -> npt.NDArray[np.bool_]:
    """For each step of a rank, which ones come before it, and the step itself, whose accesses are its own matter."""
    before = np.zeros((end - first, end - first), dtype=np.bool_)
    for index in range(first, end):
        row = before[index - first]
        row[index - first] = True
        for dependency in (program.steps[index].first, program.steps[index].second):
            if dependency >= 0:
                row |= before[dependency - first]
    return before


def _unordered(program: Program, order: list[int], pairs: list[_Pair]) -> list[_Pair]:
    """Those of some pairs that no path through all ranks orders: marks that start where one has ended have not reached the other."""
    marks = [0] * (2 * len(program.steps))
    for number, (one, other) in enumerate(pairs):
        for direction, access in enumerate((one, other)):
            for event in _over(program, access):
                marks[event] |= 1 << (2 * number + direction)
    spread(program, order, marks)
    left = []
    for number, (one, other) in enumerate(pairs):
        is_after = any(marks[event] >> (2 * number) & 1 for event in _not_yet(program, other))
        is_before = any(marks[event] >> (2 * number + 1) & 1 for event in _not_yet(program, one))
        if not is_after and not is_before:
            left.append((one, other))
    return left


def _over(program: Program, access: Access) -> list[int]:
    """Events of which each tells that an access is over."""
    ends = [2 * access.step + 1]
    return [*ends, 2 * program.partner[access.step] + 1] if program.steps[access.step].kind == SEND else ends


def _not_yet(program: Program, access: Access) -> list[int]:
    """Events before each of which an access has not happened."""
    begins = [2 * access.step]
    return [*begins, 2 * program.partner[access.step]] if program.steps[access.step].kind == RECV else begins


def spread(program: Program, order: list[int], marks: list[int]) -> None:
    """Give each event the marks of all events that come before it."""
    for event in order:
        index = event // 2
        step = program.steps[index]
        if event % 2:
            marks[event] |= marks[event - 1]
            if step.kind == RECV:
                marks[event] |= marks[2 * program.partner[index]]
        else:
            for dependency in (step.first, step.second):
                if dependency >= 0:
                    marks[event] |= marks[2 * dependency + 1]
