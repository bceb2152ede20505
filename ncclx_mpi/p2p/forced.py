"""What all ranks have to be given alike so that they choose alike: forced algorithms, the order of reductions, and the tuning table.

Every rank says what its settings are before it joins, and looks at what the others have said after it has joined. Of two ranks that share
memory and differ, the one that says it later sees it: nobody waits for anybody. Ranks of different hosts say it with their endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping

from ncclx_mpi import errors
from ncclx_mpi.algorithms import NAMES, ORDER, pack, unpack, variable
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels.rows import NamedTuple

NO_TABLE = 1
"""The digest of no tuning table: a word of 0 is one that has not been said yet."""


class Said(NamedTuple):
    """The settings of a rank, in words, none of which is 0.

    Attributes
    ----------
    forced
        An algorithm for each collective, and the order (:func:`ncclx_mpi.algorithms.pack`).
    table
        The digest of the tuning table.
    """

    forced: int
    table: int = NO_TABLE


def said(forced: Mapping[str, str], table: int = NO_TABLE) -> Said:
    """What a rank has to say that forces an algorithm for each collective, or ``auto``, and an order.

    Raises
    ------
    ValueError
        A collective has no algorithm of that name.
    """
    return Said(pack(forced), table)


def agreed(rank: int, by_rank: Mapping[int, Said]) -> tuple[tuple[int, ...], str]:
    """The number of the forced algorithm of each kind of operation, 0 for none, and the order. To be called after the rank has joined.

    Parameters
    ----------
    rank
        This one.
    by_rank
        What it, and others, have said.

    Raises
    ------
    Exception
        ERR_OTHER: another rank forces other ones, or has another tuning table.
    """
    own = by_rank[rank]
    for other, its in by_rank.items():
        if its.forced != own.forced:
            _raise_difference(rank, unpack(own.forced), other, unpack(its.forced))
        if its.table != own.table:
            _raise_other_table(rank, own, other, its)
    return numbers(unpack(own.forced)), unpack(own.forced).get(ORDER, "auto")


def numbers(names: Mapping[str, str]) -> tuple[int, ...]:
    """The number of the forced algorithm of each kind of operation, 0 for none, where these are forced for collectives."""
    known = {**names, "exscan": names.get("scan", "auto")}
    return tuple(NAMES.index(known.get(operation, "auto")) for operation in OPERATIONS)


def _raise_difference(rank: int, own: Mapping[str, str], other: int, its: Mapping[str, str]) -> None:
    collective = next(name for name in {**own, **its} if own.get(name) != its.get(name))
    errors.fail(
        errors.ERR_OTHER,
        f"rank {rank}: {variable(collective)} is {own.get(collective, 'auto')} here and {its.get(collective, 'auto')} on rank {other}; "
        "all ranks must be given the same",
    )


def _raise_other_table(rank: int, own: Said, other: int, its: Said) -> None:
    here, there = ("no tuning table" if each.table == NO_TABLE else f"tuning table {each.table:014x}" for each in (own, its))
    errors.fail(
        errors.ERR_OTHER,
        f"rank {rank}: there is {here} here and {there} on rank {other}; NCCLX_MPI_TUNING_FILE must name a file of the same text on all "
        "ranks, or none",
    )
