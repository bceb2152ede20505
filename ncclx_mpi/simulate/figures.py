"""Counts what plans need: rounds, bytes, reductions and memory, to be held against what the literature says of an algorithm."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from ncclx_mpi.collectives.plan import COPY, RECV, REDUCE, SEND, TEMP, Plan
from ncclx_mpi.costs import Figures
from ncclx_mpi.simulate.program import Program, Waiting


def count(plans: Sequence[Plan]) -> Figures:
    """Return what the rank that needs most needs, of plans that are proved."""
    moved = [max(_bytes_of(plan, SEND), _bytes_of(plan, RECV)) for plan in plans]
    return Figures(
        rounds(Program(plans)),
        max(moved),
        max(_bytes_of(plan, REDUCE) for plan in plans),
        max(plan.temp for plan in plans),
        max(_copied(plan) for plan in plans),
    )


def _bytes_of(plan: Plan, kind: int) -> int:
    return int(plan.steps["nbytes"][plan.steps["kind"] == kind].sum())


def _copied(plan: Plan) -> int:
    steps = plan.steps[plan.steps["kind"] == COPY]
    return int(steps["nbytes"][(steps["buffer"] == TEMP) | (steps["low_buffer"] == TEMP)].sum())


def rounds(program: Program) -> int:
    """In how many rounds plans are carried out if in each of them a rank sends one message, and receives one.

    Of the messages that it could send a rank takes the first one in its plan whose receiver has begun to receive it, and has no other one
    in that round. What it does beside takes no time.
    """
    return _Rounds(program).number


class _Rounds:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._waiting = Waiting(program)
        self._has_begun = bytearray(len(program.steps))
        self._sends: list[list[int]] = [[] for _ in program.bases[1:]]
        """Of each rank, those that have begun, in the order of its plan."""
        self._begin(self._waiting.ready())
        self.number = 0
        while sent := self._one_round():
            self.number += 1
            self._begin(
                [later for index in sent for end in (index, program.partner[index]) for later in self._waiting.complete(end)]
            )

    def _begin(self, ready: list[int]) -> None:
        while ready:
            index = ready.pop()
            step = self._program.steps[index]
            self._has_begun[index] = True
            if step.kind == SEND:
                insort(self._sends[step.rank], index)
            elif step.kind != RECV:
                ready += self._waiting.complete(index)

    def _one_round(self) -> list[int]:
        busy: set[int] = set()
        sent = []
        for sends in self._sends:
            for index in sends:
                peer = self._program.steps[index].peer
                if peer not in busy and self._has_begun[self._program.partner[index]]:
                    busy.add(peer)
                    sent.append(index)
                    sends.remove(index)
                    break
        return sent
