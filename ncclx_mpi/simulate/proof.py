"""Proves a collective's plans: for one call, whatever the timing, each rank gets what it was promised, and nothing else is touched.

The plans are run once, on symbols, in an order in which each send waits for its receive; if that comes to an end, no rank can wait for
ever. If besides no two steps touch the same bytes without an order (:mod:`ncclx_mpi.simulate.races`), every other order leaves the same
bytes. So one run stands for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.algorithms import ANY, Algorithm
from ncclx_mpi.collectives.plan import COPY, INPUT, NAMES_OF_BUFFERS, OUTPUT, REDUCE, SEND, TEMP, Plan
from ncclx_mpi.simulate import races
from ncclx_mpi.simulate.calls import Call, plan_of
from ncclx_mpi.simulate.memory import Memory, Piece, side_by_side
from ncclx_mpi.simulate.program import BOUNDS, CONTENT, DEADLOCK, Fault, Program
from ncclx_mpi.simulate.promises import Promise, Promised, promise_of
from ncclx_mpi.simulate.terms import NOTHING, Terms


def plans_of(row: Algorithm, call: Call) -> list[Plan]:
    """The plans of all ranks."""
    return [plan_of(row, call, rank) for rank in range(call.size)]


def faults(row: Algorithm, call: Call, plans: Sequence[Plan] | None = None) -> list[Fault]:
    """Return what is wrong with a call that goes by an algorithm: nothing, if it is proved.

    Parameters
    ----------
    row
        The algorithm: what it promises, and the order in which it says that it reduces.
    call
        What all ranks call.
    plans
        Of all ranks; those of the algorithm if not given.
    """
    plans = plans_of(row, call) if plans is None else plans
    promises = [promise_of(row.collective, call, rank) for rank in range(call.size)]
    return check(plans, promises, row.order, call.itemsize, is_barrier=row.collective == "barrier")


def check(
    plans: Sequence[Plan], promises: Sequence[Promise], order: str = ANY, itemsize: int = 1, is_barrier: bool = False
) -> list[Fault]:
    """Return what is wrong with the plans of all ranks, held against what each is promised.

    Parameters
    ----------
    plans, promises
        Of all ranks.
    order, itemsize
        How is to be reduced, and the bytes of an element.
    is_barrier
        Whether nobody may leave before all have come.
    """
    program = Program(plans)
    found = program.faults or _out_of_bounds(program, plans, promises)
    if found:
        return found
    events = program.order()
    found = program.stuck(events) + races.find(program, events, [promise.is_shared for promise in promises])
    if any(fault.kind == DEADLOCK for fault in found):
        return found
    run = _Run(program, plans, promises, itemsize)
    run.carry_out(events)
    found += run.faults or run.unkept(order)
    return found + _unheard(program, events) if is_barrier else found


def _out_of_bounds(program: Program, plans: Sequence[Plan], promises: Sequence[Promise]) -> list[Fault]:
    found = []
    for index, step in enumerate(program.steps):
        lengths = (*promises[step.rank].lengths, plans[step.rank].temp)
        for access in program.accesses(index):
            if access.start < 0 or access.end > lengths[access.buffer]:
                where = f"{NAMES_OF_BUFFERS[access.buffer]}[{access.start}:{access.end}]"
                found.append(program.fault(BOUNDS, index, f"{where} of {lengths[access.buffer]} bytes"))
    return found


def _unheard(program: Program, order: list[int]) -> list[Fault]:
    """Ranks that may leave a barrier before another one has come."""
    marks = [0] * (2 * len(program.steps))
    for index, step in enumerate(program.steps):
        marks[2 * index] = 1 << step.rank
    races.spread(program, order, marks)
    ranks = range(len(program.bases) - 1)
    heard = [1 << rank for rank in ranks]
    for index, step in enumerate(program.steps):
        heard[step.rank] |= marks[2 * index + 1]
    missing = [(rank, other) for rank in ranks for other in ranks if not heard[rank] >> other & 1]
    return [Fault(CONTENT, rank, -1, f"it leaves without having heard of rank {other}") for rank, other in missing]


class _Run:
    """Carries steps out on symbols.

    Attributes
    ----------
    faults
        Steps that read what nobody has written, or reduce bytes that do not belong together.
    """

    def __init__(self, program: Program, plans: Sequence[Plan], promises: Sequence[Promise], itemsize: int) -> None:
        self.faults: list[Fault] = []
        self._program, self._promises, self._itemsize = program, promises, itemsize
        self._terms = Terms()
        self._memory: list[dict[int, Memory]] = []
        for rank, (plan, promise) in enumerate(zip(plans, promises, strict=True)):
            given, taken = promise.lengths
            output = Memory(taken)
            buffers = {INPUT: output if promise.is_shared else Memory(given), OUTPUT: output, TEMP: Memory(plan.temp)}
            term = self._terms.contribution(rank)
            for piece in promise.given:
                buffers[piece.buffer].write(piece.start, [Piece(piece.nbytes, term, piece.first)])
            self._memory.append(buffers)
        self._before = [
            buffers[OUTPUT].read(0, promise.lengths[1]) for buffers, promise in zip(self._memory, promises, strict=True)
        ]

    def carry_out(self, order: list[int]) -> None:
        """Let all events happen. Steps read and write when they end; a message moves when its send does."""
        for event in order:
            if event % 2 and self._program.steps[event // 2].nbytes:
                self._step(event // 2)

    def _step(self, index: int) -> None:
        step = self._program.steps[index]
        if step.kind == SEND:
            target = self._program.steps[self._program.partner[index]]
            self._write(index, target.rank, target.buffer, target.offset, self._read(index, step.buffer, step.offset))
        elif step.kind == COPY:
            self._write(index, step.rank, step.buffer, step.offset, self._read(index, step.low_buffer, step.low_offset))
        elif step.kind == REDUCE:
            low = self._read(index, step.low_buffer, step.low_offset)
            high = self._read(index, step.high_buffer, step.high_offset)
            self._write(index, step.rank, step.buffer, step.offset, self._reduced(index, low, high))

    def _read(self, index: int, buffer: int, offset: int) -> list[Piece]:
        step = self._program.steps[index]
        pieces = self._memory[step.rank][buffer].read(offset, step.nbytes)
        if any(piece.term == NOTHING for piece in pieces):
            text = f"{self._program.name(index)} reads bytes of {NAMES_OF_BUFFERS[buffer]} that nobody has written"
            self.faults.append(self._program.fault(CONTENT, index, text))
        return pieces

    def _write(self, index: int, rank: int, buffer: int, offset: int, pieces: list[Piece]) -> None:
        if buffer == INPUT and not self._promises[rank].is_shared:
            self.faults.append(self._program.fault(CONTENT, index, "INPUT is written over"))
        self._memory[rank][buffer].write(offset, pieces)

    def _reduced(self, index: int, low: list[Piece], high: list[Piece]) -> list[Piece]:
        found = []
        for left, right in side_by_side(low, high):
            if NOTHING in (left.term, right.term):
                found.append(left._replace(term=NOTHING))
                continue
            if left.first != right.first:
                one, other = self._terms.text(left.term), self._terms.text(right.term)
                text = f"byte {left.first} of {one} is combined with byte {right.first} of {other}"
                self.faults.append(self._program.fault(CONTENT, index, text))
            if left.first % self._itemsize or left.nbytes % self._itemsize:
                self.faults.append(self._program.fault(CONTENT, index, f"elements of {self._itemsize} bytes are cut"))
            found.append(left._replace(term=self._terms.reduce(left.term, right.term)))
        return found

    def unkept(self, order: str) -> list[Fault]:
        """Promises that are not kept, and ranks that hold other bits of the same reduction."""
        found: list[Fault] = []
        made: dict[tuple[int, range], int] = {}
        for rank, promise in enumerate(self._promises):
            memory = self._memory[rank][OUTPUT]
            for promised in promise.promised:
                pieces, at = memory.read(promised.start, promised.nbytes), promised.first
                for piece in pieces:
                    if piece.first != at or not self._terms.is_reduction_of(piece.term, promised.ranks, order):
                        found.append(self._unkept(rank, promised, piece, at))
                    made.setdefault((at, promised.ranks), piece.term)
                    if made[at, promised.ranks] != piece.term:
                        found.append(Fault(CONTENT, rank, -1, f"byte {at} is reduced in another way than on a rank before"))
                    at += piece.nbytes
            if not promise.is_open:
                found += self._touched(rank, promise)
        return found

    def _unkept(self, rank: int, promised: Promised, piece: Piece, at: int) -> Fault:
        whom = f"rank {promised.ranks[0]}" if len(promised.ranks) == 1 else f"ranks {promised.ranks[0]} to {promised.ranks[-1]}"
        place = promised.start + at - promised.first
        text = f"OUTPUT[{place}] has to be byte {at} of {whom}; it is byte {piece.first} of {self._terms.text(piece.term)}"
        return Fault(CONTENT, rank, -1, text)

    def _touched(self, rank: int, promise: Promise) -> list[Fault]:
        """Bytes of OUTPUT that were written and belong to no promise."""
        memory, at, found = Memory(promise.lengths[1]), 0, []
        now = self._memory[rank][OUTPUT]
        memory.write(0, self._before[rank])
        for promised in promise.promised:
            memory.write(promised.start, now.read(promised.start, promised.nbytes))
        wanted, is_there = memory.read(0, promise.lengths[1]), now.read(0, promise.lengths[1])
        for piece, other in side_by_side(wanted, is_there):
            if piece != other:
                found.append(
                    Fault(CONTENT, rank, -1, f"OUTPUT[{at}:{at + piece.nbytes}] is no part of the result, and is written over")
                )
            at += piece.nbytes
        return found
