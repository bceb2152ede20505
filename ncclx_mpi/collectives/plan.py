"""Plans: a collective as data, the steps that one rank carries out.

A step is one row of an array: send, receive, copy or reduce, on bytes of one of three buffers, with up to two earlier steps
that must be complete first. Nothing else orders steps, so whatever can go on at the same time does. An algorithm is a function from
(rank, size, bytes ...) to such an array; the executor runs it, tests run it symbolically for every size, and a simulator can price it.

Messages between two ranks match by number: the k-th send to a peer meets the k-th receive on its side, in the order in which the two
plans list them, whenever they start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from numba_kernels.layout import WORD, words

SEND, RECV, COPY, REDUCE, JOIN = range(5)
"""Kinds of step. JOIN does nothing: it stands for several steps that another one must wait for."""
INPUT, OUTPUT, TEMP = range(3)
"""Buffers: what the caller contributes, where its result goes, and memory of the plan. In place, INPUT is OUTPUT."""

STEP = words(
    "Step",
    "kind peer number buffer offset nbytes low_buffer low_offset high_buffer high_offset first second state request",
)
"""``buffer``, ``offset``, ``nbytes``: what is sent or written. ``low``, ``high``: operands; a copy reads ``low``.
``first``, ``second``: steps to wait for, -1 for none. ``number``: which message to, or from, this peer it is.
``state`` and ``request`` belong to the executor."""

FIELDS = tuple(field for field in STEP._fields if field != "total")
STEP_TYPE = np.dtype([(field, np.int64) for field in FIELDS])
assert STEP_TYPE.itemsize == STEP.total == len(FIELDS) * WORD

Place = tuple[int, int]
"""(buffer, byte offset)."""


@dataclass(frozen=True)
class Plan:
    """The steps of one rank, and how many bytes of temporary memory they use.

    ``spare`` is native memory in which collectives by this plan have run, kept by the executor for the next ones: algorithms return the
    same plan for the same arguments, and a small collective takes less time than making room for it.
    """

    steps: npt.NDArray[Any]
    temp: int
    spare: list[Any] = field(default_factory=list, compare=False, repr=False)


class Builder:
    """Writes a plan step by step; each method returns the step's index, for `after` of later ones.

    Empty messages and copies are left out (both sides know that they are empty), except through :meth:`signal`.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, int]] = []
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._temp = 0

    def temp(self, nbytes: int) -> int:
        """Reserve temporary memory, aligned to 64 bytes; returns its offset in TEMP."""
        offset = self._temp
        self._temp += (nbytes + 63) // 64 * 64
        return offset

    def send(self, peer: int, place: Place, nbytes: int, after: Iterable[int] = ()) -> int:
        """Send `nbytes` at `place` to `peer`."""
        return self._message(SEND, peer, place, nbytes, after, self._sent) if nbytes else self.join(after)

    def recv(self, peer: int, place: Place, nbytes: int, after: Iterable[int] = ()) -> int:
        """Receive `nbytes` from `peer` to `place`."""
        return self._message(RECV, peer, place, nbytes, after, self._received) if nbytes else self.join(after)

    def signal(self, peer: int, after: Iterable[int] = ()) -> int:
        """Send an empty message."""
        return self._message(SEND, peer, (TEMP, 0), 0, after, self._sent)

    def await_signal(self, peer: int, after: Iterable[int] = ()) -> int:
        """Receive an empty message."""
        return self._message(RECV, peer, (TEMP, 0), 0, after, self._received)

    def copy(self, target: Place, source: Place, nbytes: int, after: Iterable[int] = ()) -> int:
        """Copy bytes between buffers."""
        if not nbytes or target == source:
            return self.join(after)
        return self._add(after, kind=COPY, buffer=target[0], offset=target[1], nbytes=nbytes,
                         low_buffer=source[0], low_offset=source[1])  # fmt: skip

    def reduce(self, target: Place, low: Place, high: Place, nbytes: int, after: Iterable[int] = ()) -> int:
        """Target = low OP high; `low` holds what comes from lower ranks. `target` may be either operand."""
        if not nbytes:
            return self.join(after)
        return self._add(after, kind=REDUCE, buffer=target[0], offset=target[1], nbytes=nbytes, low_buffer=low[0],
                         low_offset=low[1], high_buffer=high[0], high_offset=high[1])  # fmt: skip

    def join(self, after: Iterable[int]) -> int:
        """One step that is complete when all of `after` are; -1, which is always complete, for none."""
        steps = [step for step in dict.fromkeys(after) if step >= 0]
        if len(steps) <= 1:
            return steps[0] if steps else -1
        return self._add(steps, kind=JOIN)

    def reduce_in_order(self, target: Place, parts: list[Place], ready: list[int], scratch: int, nbytes: int,
                        after: Iterable[int] = ()) -> int:  # fmt: skip
        """Target = ((parts[0] OP parts[1]) OP parts[2]) ...: the one association order of all reductions.

        `ready[i]` is the step after which part i is there; `scratch` is the offset in TEMP of `nbytes` for partial results;
        `target` is written by the last step only, after all of `after`.
        """
        if len(parts) == 1:
            return self.copy(target, parts[0], nbytes, [*after, ready[0]])
        low, done = parts[0], ready[0]
        for index in range(1, len(parts)):
            last = index == len(parts) - 1
            out = target if last else (TEMP, scratch)
            done = self.reduce(out, low, parts[index], nbytes, [done, ready[index], *(after if last else ())])
            low = out
        return done

    def build(self) -> Plan:
        """The finished plan."""
        steps = np.zeros(len(self._rows), dtype=STEP_TYPE)
        for index, row in enumerate(self._rows):
            for column, value in row.items():
                steps[index][column] = value
        steps.setflags(write=False)
        return Plan(steps, self._temp)

    def _message(self, kind: int, peer: int, place: Place, nbytes: int, after: Iterable[int], count: Counter[int]) -> int:
        count[peer] += 1
        return self._add(after, kind=kind, peer=peer, number=count[peer], buffer=place[0], offset=place[1], nbytes=nbytes)

    def _add(self, after: Iterable[int], **fields: int) -> int:
        waits = [step for step in dict.fromkeys(after) if step >= 0]
        while len(waits) > 2:
            first, second, *rest = waits
            self._rows.append({"kind": JOIN, "first": first, "second": second})
            waits = [len(self._rows) - 1, *rest]
        first, second = (*waits, -1, -1)[:2]
        self._rows.append({**fields, "first": first, "second": second})
        return len(self._rows) - 1


def block_range(total: int, size: int, index: int) -> tuple[int, int]:
    """First and end of block `index` when `total` elements are cut into `size` nearly equal blocks."""
    return total * index // size, total * (index + 1) // size
