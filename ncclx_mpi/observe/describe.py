"""What each rank of a job is in, read from the arena."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ncclx_mpi.p2p.layout import OPERATIONS, TRACE, TRACE_RECORDS
from ncclx_mpi.p2p.wording import in_words
from ncclx_mpi.process import STACKS_SIGNAL
from numba_kernels.clock import now, ticks_per_us
from numba_kernels.jit import entry
from transports.shm.layout import ABSENT, ALIVE, CONTROL, DEAD, FINALIZED, ArenaPlan

_WORD = 8
_STATES = {ABSENT: "has not started", ALIVE: "running", FINALIZED: "finalized", DEAD: "died"}


class Readable(Protocol):
    """An arena, mapped by a rank or read from outside."""

    plan: ArenaPlan

    @property
    def nranks(self) -> int:
        """Number of ranks."""

    def word(self, offset: int) -> int:
        """The word at `offset`."""

    def words(self, offset: int, count: int) -> array[int]:
        """A copy of words."""

    def state(self, rank: int) -> int:
        """State of a rank."""


@dataclass
class Record:
    """One operation of a rank; `seconds` is how long it has taken, or took; `ago` is when it ended, 0 if it has not."""

    operation: str
    context: int
    peer: int
    tag: int
    nbytes: int
    sequence: int
    seconds: float
    is_open: bool
    ago: float

    def __str__(self) -> str:
        return in_words(self.operation, self.peer, self.tag, self.nbytes)


@dataclass
class RankReport:
    """What is known about one rank; `host` is empty if it is on this one."""

    rank: int
    pid: int
    state: str
    process: str
    turns: int
    records: list[Record] = field(default_factory=list)
    host: str = ""

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        who = f"rank {self.rank}" + (f" (process {self.pid}{where}{self.process})" if self.pid else where)
        if self.state != "running":
            return f"{who}: {self.state}" + (f", last in {self.records[-1]}" if self.records else "")
        if not self.records:
            return f"{who}: has not communicated yet"
        last = self.records[-1]
        if last.is_open:
            return f"{who}: in {last}, for {last.seconds:.1f} s"
        return f"{who}: in no communication for {last.ago:.1f} s, the last was {last}"


def describe(arenas: Sequence[Readable]) -> str:
    """One line for each rank of a job."""
    return "\n".join(f"  {report}" for report in reports(arenas, 1))


def reports(arenas: Sequence[Readable], count: int) -> list[RankReport]:
    """What each rank of a job is in, with its last `count` operations; a job has an arena for each node."""
    found = [_report(arena, rank, count) for arena in arenas for rank in range(arena.nranks)]
    return sorted(found, key=lambda report: report.rank)


def from_message(message: dict[str, Any]) -> RankReport:
    """The report that another host sent as a dictionary."""
    return RankReport(**{**message, "records": [Record(**record) for record in message["records"]]})


def ask_for_stacks(found: Sequence[RankReport]) -> list[int]:
    """Have these ranks of this host print their Python stacks; returns those that do not listen, and would die of the signal."""
    return [report.rank for report in found if not (report.state == "running" and _listens(report.pid) and _signalled(report.pid))]


def _signalled(pid: int) -> bool:
    try:
        os.kill(pid, STACKS_SIGNAL)
    except OSError:  # it has ended meanwhile
        return False
    return True


def _listens(pid: int) -> bool:
    """Does the process handle the signal for stacks?"""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (STACKS_SIGNAL - 1) & 1)


def _report(arena: Readable, rank: int, count: int) -> RankReport:
    control = arena.plan.control(rank)
    pid = arena.word(control + CONTROL.pid)
    state = _STATES[arena.state(rank)]
    world_rank = arena.word(control + CONTROL.world_rank)
    report = RankReport(
        world_rank, pid, state, _process_state(pid) if state == "running" else "", arena.word(control + CONTROL.turns)
    )
    written = arena.word(control + CONTROL.records)
    for index in range(max(0, written - min(count, TRACE_RECORDS - 1)), written):
        report.records.append(_record(arena, rank, index))
    return report


def _record(arena: Readable, rank: int, index: int) -> Record:
    at = arena.plan.trace(rank) + index % TRACE_RECORDS * TRACE.total
    row = arena.words(at, TRACE.total // _WORD)
    value = {name: row[getattr(TRACE, name) // _WORD] for name in TRACE._fields if name != "total"}
    rate, current = ticks_per_us() * 1e6, entry(now)()
    end = value["end"]
    kind = value["kind"]
    return Record(
        OPERATIONS[kind] if 0 <= kind < len(OPERATIONS) else f"operation {kind}",
        value["context"],
        value["peer"],
        value["tag"],
        value["nbytes"],
        index,
        seconds=((end or current) - value["start"]) / rate,
        is_open=end == 0,
        ago=(current - end) / rate if end else 0.0,
    )


def _process_state(pid: int) -> str:
    """What the kernel says about a process, where that explains a wait."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ", gone"
    except OSError:
        return ""
    return {"T": ", stopped", "t": ", stopped by a debugger", "Z": ", a zombie"}.get(letter, "")
