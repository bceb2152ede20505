"""Forced algorithms of collectives, and the order of reductions: the same on all ranks, which is made sure of when they start.

Every rank publishes what its settings force before it joins, and looks at what the others have published after it has joined. Of two
ranks that differ, the one that publishes later sees it: nobody waits for anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ncclx_mpi import errors
from ncclx_mpi.algorithms import NAMES, ORDER, pack, unpack, variable
from ncclx_mpi.p2p.layout import OPERATIONS

if TYPE_CHECKING:
    from transports.shm.arena import Arena


def publish(arena: Arena, rank: int, forced: Mapping[str, str]) -> None:
    """Publish what this rank forces: an algorithm for each collective, or ``auto``, and the order. To be called before it joins.

    Raises
    ------
    ValueError
        A collective has no algorithm of that name.
    """
    arena.set_control_word(rank, "forced", pack(forced))


def agreed(arena: Arena, rank: int) -> tuple[tuple[int, ...], str]:
    """The number of the forced algorithm of each kind of operation, 0 for none, and the order. To be called after the rank has joined.

    Raises
    ------
    Exception
        ERR_OTHER: another rank forces other ones.
    """
    own = arena.control_word(rank, "forced")
    for other in range(arena.nranks):
        its = arena.control_word(other, "forced")
        if its not in (0, own):
            _raise_difference(arena.near[rank], unpack(own), arena.near[other], unpack(its))
    names = unpack(own)
    names["exscan"] = names.get("scan", "auto")
    return tuple(NAMES.index(names.get(operation, "auto")) for operation in OPERATIONS), names.get(ORDER, "auto")


def _raise_difference(rank: int, own: Mapping[str, str], other: int, its: Mapping[str, str]) -> None:
    collective = next(name for name in {**own, **its} if own.get(name) != its.get(name))
    errors.fail(
        errors.ERR_OTHER,
        f"rank {rank}: {variable(collective)} is {own.get(collective, 'auto')} here and {its.get(collective, 'auto')} on rank {other}; "
        "all ranks must be given the same",
    )
