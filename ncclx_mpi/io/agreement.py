"""What the ranks of a file agree on before they go on: that all are alike, that none has failed."""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi import collectives, errors
from ncclx_mpi.buffers.memory import Words, array_words
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.late_numpy import np


def gathered(comm: NativeComm, row: Sequence[int]) -> Words:
    """The rows of all ranks, one a rank."""
    if comm.size == 1:
        return np.array([row], np.int64)
    mine, table = np.array(row, np.int64), np.empty((comm.size, len(row)), np.int64)
    collectives.allgather(comm, array_words(mine)[0], mine.nbytes, array_words(table)[0])
    return table


def told(comm: NativeComm, value: int) -> int:
    """The value of rank 0."""
    word = np.array([value], np.int64)
    collectives.bcast(comm, array_words(word)[0], word.nbytes, 0)
    return int(word[0])


def succeed(comm: NativeComm, failure: Exception | None, what: str, row: Sequence[int] = ()) -> Words:
    """Return the rows of all ranks, or raise on all of them if one has failed in `what`: its own error there, one of that class elsewhere."""
    found = gathered(comm, [_class(failure), *row])
    if failure is not None:
        raise failure
    bad = np.flatnonzero(found[:, 0])
    if len(bad):
        errors.fail(int(found[bad[0], 0]), f"rank {comm.rank}: {what} failed on rank {bad[0]}, whose own error says why")
    return found[:, 1:]


def alike(comm: NativeComm, what: str, row: Sequence[int], failure: Exception | None = None, own: Sequence[int] = ()) -> Words:
    """Return what ranks have each for itself, their `own`, one row a rank; raise unless the rest is the same on all, and none has failed.

    Raises
    ------
    Exception
        ERR_NOT_SAME: they have not.
    """
    table = succeed(comm, failure, what, [*row, *own])
    found = table[:, : len(row)]
    other = np.flatnonzero((found != found[0]).any(axis=1))
    if len(other):
        rank = int(other[0])
        errors.fail(
            errors.ERR_NOT_SAME,
            f"rank {comm.rank}: the ranks call {what} with different arguments: {found[0].tolist()} on rank 0, {found[rank].tolist()} "
            f"on rank {rank}",
        )
    return table[:, len(row) :]


def _class(failure: Exception | None) -> int:
    if failure is None:
        return errors.SUCCESS
    return failure.Get_error_class() if isinstance(failure, errors.Exception) else errors.ERR_OTHER
