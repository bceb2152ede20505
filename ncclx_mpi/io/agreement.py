"""What the ranks of a file agree on before they go on: that all are alike, that none has failed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ncclx_mpi import collectives, errors
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.layout import WORD

Rows = list[list[int]]
"""Numbers of each rank."""


def told(comm: NativeComm, value: int) -> int:
    """The value of rank 0."""
    word = array("q", [value])
    collectives.bcast(comm, word.buffer_info()[0], WORD, 0)
    return word[0]


def succeed(comm: NativeComm, failure: Exception | None, what: str, row: Sequence[int] = ()) -> Rows:
    """Return the rows of all ranks, or raise on all of them if one has failed in `what`: its own error there, one of that class elsewhere."""
    found = collectives.gather_words(comm, _class(failure), *row)
    if failure is not None:
        raise failure
    for rank, (code, *_) in enumerate(found):
        if code:
            errors.fail(code, f"rank {comm.rank}: {what} failed on rank {rank}, whose own error says why")
    return [rest for _, *rest in found]


def alike(comm: NativeComm, what: str, row: Sequence[int], failure: Exception | None = None, own: Sequence[int] = ()) -> Rows:
    """Return what ranks have each for itself, their `own`, one row a rank; raise unless the rest is the same on all, and none has failed.

    Raises
    ------
    Exception
        ERR_NOT_SAME: they have not.
    """
    count, table = len(row), succeed(comm, failure, what, [*row, *own])
    for rank, found in enumerate(table):
        if found[:count] != table[0][:count]:
            errors.fail(
                errors.ERR_NOT_SAME,
                f"rank {comm.rank}: the ranks call {what} with different arguments: {table[0][:count]} on rank 0, {found[:count]} "
                f"on rank {rank}",
            )
    return [found[count:] for found in table]


def _class(failure: Exception | None) -> int:
    if failure is None:
        return errors.SUCCESS
    return failure.Get_error_class() if isinstance(failure, errors.Exception) else errors.ERR_OTHER
