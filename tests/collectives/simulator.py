"""Runs plans symbolically: all ranks in one process, bytes are Python objects, steps and messages in adversarial order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ncclx_mpi.collectives.plan import COPY, INPUT, OUTPUT, RECV, REDUCE, SEND, TEMP, Plan

Cells = list[Any]
Move = tuple[int, ...]
"""(rank, step) that starts, or (source, target, number) of a message that arrives."""


class Rank:
    """One rank's plan in execution."""

    def __init__(self, plan: Plan, buffers: Sequence[Cells]) -> None:
        self.steps = [dict(zip(plan.steps.dtype.names, row, strict=True)) for row in plan.steps.tolist()]
        self.buffers = {INPUT: buffers[0], OUTPUT: buffers[1], TEMP: [None] * (plan.temp + 64)}
        self.waiting = set(range(len(self.steps)))
        self.open: dict[int, Any] = {}
        self.done = {-1}

    def enabled(self) -> list[int]:
        """Steps that may start now."""
        return [i for i in self.waiting if {self.steps[i]["first"], self.steps[i]["second"]} <= self.done]

    def view(self, buffer: int, offset: int, nbytes: int) -> Cells:
        """A copy of bytes of a buffer."""
        cells = self.buffers[buffer][offset : offset + nbytes]
        assert len(cells) == nbytes, "a step reads beyond its buffer"
        return cells

    def write(self, step: dict[str, int], cells: Cells) -> None:
        """Write what a step produces."""
        target, first = self.buffers[step["buffer"]], step["offset"]
        assert first + len(cells) <= len(target), "a step writes beyond its buffer"
        target[first : first + len(cells)] = cells


class Simulation:
    """All ranks' plans, messages between them, and a random order of everything that may happen next."""

    def __init__(self, plans: Sequence[Plan], buffers: Sequence[Sequence[Cells]], seed: int) -> None:
        self.ranks = [Rank(plan, pair) for plan, pair in zip(plans, buffers, strict=True)]
        self.sent: dict[Move, tuple[int, Cells | None]] = {}
        self.awaited: dict[Move, int] = {}
        self.known: dict[Move, set[int]] = {}
        self.heard = [{me} for me in range(len(self.ranks))]
        """Of which ranks each has heard, itself or through others."""
        self.random = random.Random(seed)

    def run(self) -> None:
        """Carry everything out; asserts that nothing is left waiting."""
        while moves := self._moves():
            for move in self.chosen(moves):
                self._start(*move) if len(move) == 2 else self._deliver(move)
        stuck = {me: sorted(rank.waiting | set(rank.open)) for me, rank in enumerate(self.ranks) if rank.waiting or rank.open}
        assert not stuck, f"steps that never complete: {stuck}"

    def _moves(self) -> list[Move]:
        starts: list[Move] = [(me, index) for me, rank in enumerate(self.ranks) for index in rank.enabled()]
        return starts + list(self.sent.keys() & self.awaited.keys())

    def chosen(self, moves: list[Move]) -> list[Move]:
        """Which of all that may happen next do, in this order."""
        return self.random.sample(moves, max(1, len(moves) // 2))

    def is_eager(self, me: int, index: int) -> bool:
        """Whether a send is complete as soon as it starts."""
        return self.random.random() < 0.5

    def _start(self, me: int, index: int) -> None:
        rank = self.ranks[me]
        step = rank.steps[index]
        rank.waiting.discard(index)
        if step["kind"] == SEND:
            eager = self.is_eager(me, index)
            cells = rank.view(step["buffer"], step["offset"], step["nbytes"])
            self.known[me, step["peer"], step["number"]] = set(self.heard[me])
            self.sent[me, step["peer"], step["number"]] = (index, cells if eager else None)
            if eager:
                rank.done.add(index)
            else:
                rank.open[index] = None
        elif step["kind"] == RECV:
            self.awaited[step["peer"], me, step["number"]] = index
            rank.open[index] = None
        else:
            self._compute(rank, step)
            rank.done.add(index)

    def _compute(self, rank: Rank, step: dict[str, int]) -> None:
        if step["kind"] == COPY:
            rank.write(step, rank.view(step["low_buffer"], step["low_offset"], step["nbytes"]))
        elif step["kind"] == REDUCE:
            low = rank.view(step["low_buffer"], step["low_offset"], step["nbytes"])
            high = rank.view(step["high_buffer"], step["high_offset"], step["nbytes"])
            rank.write(step, [f"({a}{b})" for a, b in zip(low, high, strict=True)])

    def _deliver(self, key: Move) -> None:
        source, target = key[:2]
        (send, cells), receive = self.sent.pop(key), self.awaited.pop(key)
        sender, receiver = self.ranks[source], self.ranks[target]
        self.heard[target] |= self.known.pop(key)
        if cells is None:
            step = sender.steps[send]
            cells = sender.view(step["buffer"], step["offset"], step["nbytes"])
            del sender.open[send]
            sender.done.add(send)
        step = receiver.steps[receive]
        assert len(cells) == step["nbytes"], f"{key}: {len(cells)} bytes sent, {step['nbytes']} expected"
        receiver.write(step, cells)
        del receiver.open[receive]
        receiver.done.add(receive)


class Late(Simulation):
    """One thing happens when nothing else can any more: a step starts, or a message arrives. All sends but that one are complete at once."""

    def __init__(self, plans: Sequence[Plan], buffers: Sequence[Sequence[Cells]], late: Move, is_read_late: bool = False) -> None:
        super().__init__(plans, buffers, 0)
        self._late, self._is_read_late = late, is_read_late

    def chosen(self, moves: list[Move]) -> list[Move]:
        return [move for move in moves if move != self._late] or moves

    def is_eager(self, me: int, index: int) -> bool:
        step = self.ranks[me].steps[index]
        return not self._is_read_late or (me, step["peer"], step["number"]) != self._late
