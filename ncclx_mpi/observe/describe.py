"""What each rank of a job is in, read from the arena."""

from __future__ import annotations

from transports.shm.arena import Arena
from transports.shm.layout import ABSENT, ALIVE, DEAD, FINALIZED

_STATES = {ABSENT: "has not started", ALIVE: "is running", FINALIZED: "has finalized", DEAD: "died"}


def describe(arena: Arena) -> str:
    """One line for each rank."""
    return "\n".join(f"  rank {rank}: {_STATES[arena.state(rank)]}" for rank in range(arena.nranks))
