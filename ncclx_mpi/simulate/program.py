"""The plans of all ranks as one list of steps, with the messages between them, and an order in which all of it can happen.

Step i begins with event 2 i and ends with event 2 i + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.collectives.plan import COPY, FIELDS, INPUT, JOIN, OUTPUT, RECV, REDUCE, SEND, TEMP, WINDOW, Plan
from numba_kernels.rows import NamedTuple

NAMES = {SEND: "send", RECV: "recv", COPY: "copy", REDUCE: "reduce", JOIN: "join"}
MALFORMED, UNMATCHED, DEADLOCK, RACE, CONTENT, BOUNDS = "malformed", "unmatched", "deadlock", "race", "content", "bounds"
"""Kinds of fault: a step that is none; a message without its other end; steps that wait for each other; two steps that are not ordered and
touch the same bytes; bytes that are not what was promised; bytes outside of a buffer."""
_FIELDS = tuple(field for field in FIELDS if field not in ("state", "request"))


class Fault(NamedTuple):
    """Something wrong: of which kind, at which step of which rank (-1: after all of them), and in words."""

    kind: str
    rank: int
    step: int
    text: str

    def __str__(self) -> str:
        where = f"rank {self.rank}" + (f", step {self.step}" if self.step >= 0 else "")
        return f"{self.kind}: {where}: {self.text}"


class Step(NamedTuple):
    """A row of a plan, with the rank whose it is, and in `first` and `second` numbers of the program's steps."""

    rank: int
    kind: int
    peer: int
    number: int
    buffer: int
    offset: int
    nbytes: int
    low_buffer: int
    low_offset: int
    high_buffer: int
    high_offset: int
    first: int
    second: int

    @property
    def is_message(self) -> bool:
        return self.kind in (SEND, RECV)


class Access(NamedTuple):
    """Bytes of a buffer that a step reads, or writes."""

    step: int
    buffer: int
    start: int
    end: int
    is_write: bool


class Program:
    """All steps of all ranks.

    Attributes
    ----------
    steps
        Rank by rank, in the order of their plans.
    bases
        For each rank, the number of its first step; at the end that of all.
    partner
        The step at the other end of a message; -1 for others, and where there is none.
    faults
        What is wrong before anything has run. If there are any, the rest is not to be used.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.steps: list[Step] = []
        self.bases = [0]
        for rank, plan in enumerate(plans):
            base = self.bases[-1]
            for values in plan.steps[list(_FIELDS)].tolist():
                waits = (step if step < 0 else step + base for step in values[-2:])
                self.steps.append(Step._make((rank, *values[:-2], *waits)))
            self.bases.append(base + len(plan.steps))
        self.faults = [fault for rank in range(len(plans)) for fault in self._malformed(rank, len(plans))]
        self.partner = [-1] * len(self.steps)
        if not self.faults:
            self._match()

    def fault(self, kind: str, index: int, text: str) -> Fault:
        """A fault at a step."""
        step = self.steps[index]
        return Fault(kind, step.rank, index - self.bases[step.rank], text)

    def name(self, index: int) -> str:
        """What a step is, in words."""
        step = self.steps[index]
        where = f" {'to' if step.kind == SEND else 'from'} rank {step.peer}" if step.is_message else ""
        return f"step {index - self.bases[step.rank]} ({NAMES[step.kind]}{where})"

    def _malformed(self, rank: int, size: int) -> list[Fault]:
        found = []
        first, end = self.bases[rank], self.bases[rank + 1]
        for index in range(first, end):
            step = self.steps[index]
            if step.kind not in NAMES or step.nbytes < 0 or not {step.buffer, step.low_buffer, step.high_buffer} <= _BUFFERS:
                found.append(self.fault(MALFORMED, index, "no such kind of step, buffer or number of bytes"))
            elif step.is_message and (not 0 <= step.peer < size or step.peer == rank):
                found.append(self.fault(MALFORMED, index, f"a message to or from rank {step.peer}"))
            elif not all(dependency < 0 or dependency < index for dependency in (step.first, step.second)):
                found.append(self.fault(MALFORMED, index, "it waits for itself or for a later step"))
        return found

    def _match(self) -> None:
        """Find the two ends of each message: the same number between the same two ranks."""
        ends: dict[tuple[int, int, int, int], int] = {}
        for index, step in enumerate(self.steps):
            if step.is_message:
                pair = (step.rank, step.peer) if step.kind == SEND else (step.peer, step.rank)
                if ends.setdefault((step.kind, *pair, step.number), index) != index:
                    self.faults.append(self.fault(UNMATCHED, index, f"there are two messages of number {step.number}"))
        for (kind, source, target, number), index in ends.items():
            other = ends.get((RECV if kind == SEND else SEND, source, target, number), -1)
            self.partner[index] = other
            if other < 0:
                self.faults.append(self.fault(UNMATCHED, index, f"{self.name(index)} has no other end"))
            elif kind == SEND and self.steps[index].nbytes != self.steps[other].nbytes:
                sent, expected = self.steps[index].nbytes, self.steps[other].nbytes
                self.faults.append(self.fault(UNMATCHED, index, f"{sent} bytes are sent and {expected} are expected"))

    def accesses(self, index: int) -> list[Access]:
        """The bytes that a step touches."""
        step, length = self.steps[index], self.steps[index].nbytes
        if not length or step.kind == JOIN:
            return []
        found = [Access(index, step.buffer, step.offset, step.offset + length, step.kind != SEND)]
        if step.kind in (COPY, REDUCE):
            found.append(Access(index, step.low_buffer, step.low_offset, step.low_offset + length, False))
        if step.kind == REDUCE:
            found.append(Access(index, step.high_buffer, step.high_offset, step.high_offset + length, False))
        return found

    def order(self) -> list[int]:
        """All events, each after those that it waits for, if no send is complete before it is received, and few steps are looked at.

        What is a valid order then is one for eager messages, too. If it has fewer events than there are, the rest never happens.
        """
        return _Order(self).events

    def stuck(self, events: list[int]) -> list[Fault]:
        """Of each rank, the first step that is not in an order."""
        happened, found = set(events), []
        for first, end in zip(self.bases, self.bases[1:], strict=False):
            index = next((index for index in range(first, end) if 2 * index + 1 not in happened), -1)
            if index >= 0:
                found.append(
                    self.fault(DEADLOCK, index, f"{self.name(index)} is never complete if no send is before it is received")
                )
        return found


_BUFFERS = {INPUT, OUTPUT, TEMP}


class Waiting:
    """Which steps wait for steps that are not complete."""

    def __init__(self, program: Program) -> None:
        self._missing = [(step.first >= 0) + (step.second >= 0) for step in program.steps]
        self._later: list[list[int]] = [[] for _ in program.steps]
        for index, step in enumerate(program.steps):
            for dependency in (step.first, step.second):
                if dependency >= 0:
                    self._later[dependency].append(index)

    def ready(self) -> list[int]:
        """Those that wait for none."""
        return [index for index, missing in enumerate(self._missing) if not missing]

    def complete(self, index: int) -> list[int]:
        """Note that a step is complete; returns those that waited for it last."""
        released = []
        for later in self._later[index]:
            self._missing[later] -= 1
            if not self._missing[later]:
                released.append(later)
        return released


class _Order:
    """Lets everything happen that can, with as much patience as the executor has: it looks at `WINDOW` steps from the first open one on."""

    def __init__(self, program: Program) -> None:
        self._program, self._waiting = program, Waiting(program)
        steps = program.steps
        self._has_begun, self._is_done = bytearray(len(steps)), bytearray(len(steps))
        self._open = program.bases[:-1]
        self._beyond: list[set[int]] = [set() for _ in self._open]
        self.events: list[int] = []
        self._run()

    def _run(self) -> None:
        ready = self._waiting.ready()[::-1]
        while ready:
            index = ready.pop()
            rank = self._program.steps[index].rank
            if index >= self._open[rank] + WINDOW:
                self._beyond[rank].add(index)
                continue
            self.events.append(2 * index)
            self._has_begun[index] = True
            partner = self._program.partner[index]
            if partner < 0:
                ready += self._end(index)
            elif self._has_begun[partner]:
                ready += self._end(index) + self._end(partner)

    def _end(self, index: int) -> list[int]:
        """Complete a step; returns those that may begin then."""
        self.events.append(2 * index + 1)
        self._is_done[index] = True
        released = self._waiting.complete(index)
        rank = self._program.steps[index].rank
        end = self._program.bases[rank + 1]
        while self._open[rank] < end and self._is_done[self._open[rank]]:
            self._open[rank] += 1
        within = [later for later in self._beyond[rank] if later < self._open[rank] + WINDOW]
        self._beyond[rank].difference_update(within)
        return released + within
