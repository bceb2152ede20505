"""Plans: a collective as data, the steps that one rank carries out.

A step is one row of an array: send, receive, copy or reduce, on bytes of one of three buffers, with up to two earlier steps
that must be complete first. Nothing else orders steps, so whatever can go on at the same time does. An algorithm is a function from
(rank, size, bytes ...) to such an array; the executor runs it, tests run it symbolically for every size, and a simulator can price it.

Messages between two ranks match by number: the k-th send to a peer meets the k-th receive on its side, in the order in which the two
plans list them, whenever they start.

What a plan costs in Python is its steps, thousands of them on a thousand ranks. Where each rank has counts of its own, which differ from call
to call, an algorithm therefore writes its steps once, as a :class:`Shape`, and only the sizes are filled in when a collective starts.
"""

from __future__ import annotations

import functools
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from numba_kernels.atomics import load64, store64
from numba_kernels.jit import entry, kernel
from numba_kernels.late_numpy import is_any_array, np, npt
from numba_kernels.layout import WORD, words, zeroed
from numba_kernels.memory import copy

SEND, RECV, COPY, REDUCE, JOIN = range(5)
"""Kinds of step. JOIN does nothing: it stands for several steps that another one must wait for."""
INPUT, OUTPUT, TEMP = range(3)
"""Buffers: what the caller contributes, where its result goes, and memory of the plan. In place, INPUT is OUTPUT."""
NAMES_OF_BUFFERS = ("INPUT", "OUTPUT", "TEMP")
WINDOW = 256
"""Steps from the first open one on that the executor looks at: bounds the work of one progress call. No plan may need more to go on."""

STEP = words(
    "Step",
    "kind peer number buffer offset nbytes low_buffer low_offset high_buffer high_offset first second state request",
)
"""``buffer``, ``offset``, ``nbytes``: what is sent or written. ``low``, ``high``: operands; a copy reads ``low``.
``first``, ``second``: steps to wait for, -1 for none. ``number``: which message to, or from, this peer it is.
``state`` and ``request`` belong to the executor."""

FIELDS = tuple(field for field in STEP._fields if field != "total")
assert STEP.total == len(FIELDS) * WORD

Place = tuple[int, int]
"""(buffer, byte offset)."""


Counts: TypeAlias = "Sequence[int] | npt.NDArray[Any]"
"""Bytes, or byte offsets, of the block of each rank."""
Numbers: TypeAlias = "array[int]"
_MOST_FILLED = 4


class Plan:
    """The steps of one rank, and how many bytes of temporary memory they use.

    Algorithms return the same plan for the same arguments: the executor keeps native memory for it (:mod:`ncclx_mpi.collectives.executor`).
    """

    def __init__(self, words: Numbers, temp: int) -> None:
        self.words = words
        self.temp = temp

    @classmethod
    def of(cls, steps: npt.NDArray[Any], temp: int) -> Plan:
        """A plan of other steps, as :attr:`steps` has them."""
        return cls(array("q", steps.tobytes()), temp)

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self.words) // len(FIELDS)

    @functools.cached_property
    def steps(self) -> npt.NDArray[Any]:
        """The steps as an array with fields, for who looks at them: to carry them out NumPy is not needed."""
        steps = np.frombuffer(self.words, step_type())
        steps.setflags(write=False)
        return steps


class Shape:
    """The steps of one rank, in which sizes and offsets are numbers of values that are known when a collective starts. Value 0 is 0.

    Messages have the same numbers whatever the sizes are, so the two ends of each agree on them, and a step of no bytes, which
    both know to be empty, becomes a JOIN, or is left out if no step waits for it: nothing is sent for it. So a shape has no signals.
    """

    def __init__(self, words: Numbers) -> None:
        self.words = words
        self.filled: dict[bytes, Plan] = {}
        """Plans of the last few values: programs repeat their calls."""
        sizes = (STEP.nbytes, STEP.offset, STEP.low_offset, STEP.high_offset)
        self._most = max((max(words[size // WORD :: len(FIELDS)]) for size in sizes if words), default=0)

    def fill(self, *values: Counts, temp: int = 0) -> Plan:
        """Return the plan for values 1, 2, ... and `temp` bytes of temporary memory, which must follow from the values."""
        numbers = array("q", [0])
        for each in values:
            numbers.extend(as_numbers(each))
        if len(numbers) <= self._most:
            raise IndexError(f"the steps need {self._most} values, {len(numbers) - 1} are given")
        key = numbers.tobytes()
        plan = self.filled.get(key)
        if plan is None:
            if len(self.filled) >= _MOST_FILLED:
                self.filled.clear()
            plan = self.filled[key] = Plan(self._words_for(numbers), temp)
        return plan

    def _words_for(self, numbers: Numbers) -> Numbers:
        count = len(self.words) // len(FIELDS)
        (filled, target), (_places, places) = zeroed(len(self.words) * WORD), zeroed(count * WORD)
        kept = _fill_entry()(self.words.buffer_info()[0], count, numbers.buffer_info()[0], places, target)
        del filled[kept * len(FIELDS) :]
        return filled


@functools.cache
def step_type() -> np.dtype[Any]:
    """The steps of a plan as an array has them: fields of words."""
    return np.dtype([(field, np.int64) for field in FIELDS])


@functools.cache
def no_steps() -> Plan:
    """The plan of a rank that has nothing to do."""
    return Plan(array("q"), 0)


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True)
def _fill(shape, count, numbers, places, target):  # type: ignore[no-untyped-def]
    """Write the steps of a shape (int64[count, fields]) with sizes in the place of their numbers; return how many there are then.

    Empty steps that no other one waits for are left out: a sparse exchange among many ranks is a few steps. `places` is int64[count].
    """
    for index in range(count):
        nbytes = load64(numbers + WORD * load64(shape + index * STEP.total + STEP.nbytes))
        store64(places + index * WORD, 0 if nbytes == 0 else 1)
    for index in range(count):
        step = shape + index * STEP.total
        for waited in (load64(step + STEP.first), load64(step + STEP.second)):
            if waited >= 0:
                store64(places + waited * WORD, 1)
    kept = 0
    for index in range(count):
        place = places + index * WORD
        if load64(place) != 0:
            _fill_step(target + kept * STEP.total, shape + index * STEP.total, numbers, places)
            store64(place, kept)
            kept += 1
    return kept


@kernel("void(int64, int64, int64, int64)")
def _fill_step(step, source, numbers, places):  # type: ignore[no-untyped-def]
    """Write one step; those that it waits for have been written, and their numbers are in `places`."""
    copy(step, source, STEP.total)
    for field in (STEP.nbytes, STEP.offset, STEP.low_offset, STEP.high_offset):
        store64(step + field, load64(numbers + WORD * load64(source + field)))
    for field in (STEP.first, STEP.second):
        if load64(step + field) >= 0:
            store64(step + field, load64(places + WORD * load64(step + field)))
    if load64(step + STEP.nbytes) == 0:
        store64(step + STEP.kind, JOIN)


_fill_entry = functools.cache(functools.partial(entry, _fill))


def columns(*lengths: int) -> list[range]:
    """Return the numbers of the values of a shape that is filled with vectors of these lengths."""
    ends = list(accumulate(lengths, initial=1))
    return [range(first, end) for first, end in itertools.pairwise(ends)]


def as_numbers(values: Counts) -> Numbers:
    """Words of some numbers, which nobody may change: they may be those that were passed."""
    if isinstance(values, array) and values.typecode == "q":
        return values
    return array("q", values.tolist() if is_any_array(values) else values)


def offsets_of(counts: Iterable[int]) -> list[int]:
    """Where blocks begin that lie one behind the other, and where the last one ends."""
    return [*accumulate(counts, initial=0)]


def rooms_for(counts: Counts) -> tuple[Numbers, int]:
    """Lay blocks of `counts` bytes out in temporary memory: the offset of each, aligned to 64 bytes, and the bytes of all."""
    *offsets, end = offsets_of((nbytes + 63) // 64 * 64 for nbytes in as_numbers(counts))
    return array("q", offsets), end


def multiples(counts: Counts, rooms: int) -> tuple[Numbers, int]:
    """Values of a shape in blocks, all of one size: 0, 1, 2 ... of them, as many as there are ranks, or rooms; and the bytes of the rooms."""
    nbytes = int(counts[0])
    return array("q", [number * nbytes for number in range(max(rooms, len(counts)) + 1)]), rooms * nbytes


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
        return Plan(self._table(), self._temp)

    def shape(self) -> Shape:
        """What was written with numbers of values in the place of sizes and offsets."""
        return Shape(self._table())

    def _table(self) -> Numbers:
        return array("q", [row.get(field, 0) for row in self._rows for field in FIELDS])

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
