"""Allreduce, reduce and reduce_scatter on devices: elements of all ranks' arrays are reduced in rank order, once.

::

    rank 0   send [ a0 | a1 | a2 ]      allreduce:      GPU k of K reduces part k of all, and writes it to all ranks
    rank 1   send [ b0 | b1 | b2 ]      reduce:         the root's GPU reduces everything
    rank 2   send [ c0 | c1 | c2 ]      reduce_scatter: the GPU of each rank reduces that rank's block

With one GPU for all ranks each contribution is read once and each result written once, by one kernel; with a GPU each, that is the
usual two-shot allreduce. Every element is reduced by one thread, ((0 + 1) + 2) + ..., wherever it is: the same bits on every rank, and as
on the host.

T = alpha + m (n + targets) / bandwidth for n contributions of m bytes on one GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclx_mpi.collectives.shm_oneshot import ALLREDUCE, REDUCE_SCATTER
from ncclx_mpi.device.copies import At
from ncclx_mpi.device.members import Member
from numba_kernels.rows import NamedTuple

_GRAIN = 512
"""Bytes by whose multiples an allreduce is divided between GPUs."""


def wrong_sum(kind: int, members: Sequence[Member]) -> tuple[int, int] | None:
    """Bytes that all ranks get together and those that each gives, where a reduce_scatter has them differ."""
    got, given = sum(member.rows[0].recv_bytes for member in members), members[0].rows[0].send_bytes
    return (got, given) if kind == REDUCE_SCATTER and got != given else None


class Reduction(NamedTuple):
    """Elements to reduce: how many, where the results go, and where the contributions are, in rank order."""

    elements: int
    targets: list[int]
    sources: list[int]


def reductions(kind: int, itemsize: int, members: Sequence[Member], executors: Sequence[int], me: int, at: At) -> list[Reduction]:
    """What executor `me` reduces; `executors` has that of each rank."""
    found = []
    for first, nbytes, targets in _parts(kind, members, executors, me, at):
        if nbytes:
            sources = [at(rank, "source") + first for rank in range(len(members))]
            found.append(Reduction(nbytes // itemsize, targets, sources))
    return found


def share_of(total: int, executors: int, index: int) -> tuple[int, int]:
    """First byte and bytes of what executor number `index` reduces of an allreduce of `total` bytes."""
    share = -(-total // (executors * _GRAIN)) * _GRAIN
    first = min(total, index * share)
    return first, min(share, total - first)


def _parts(kind: int, members: Sequence[Member], executors: Sequence[int], me: int, at: At) -> Iterator[tuple[int, int, list[int]]]:
    """First byte and bytes of each part that `me` reduces, and where it goes."""
    total = members[0].rows[0].send_bytes
    if kind == ALLREDUCE:
        order = sorted(set(executors))
        first, nbytes = share_of(total, len(order), order.index(me))
        yield first, nbytes, [at(rank, "recv") + first for rank in range(len(members))]
        return
    first = 0
    for rank, member in enumerate(members):
        nbytes = member.rows[0].recv_bytes
        if executors[rank] == me and nbytes:
            yield first, nbytes, [at(rank, "recv")]
        first += nbytes
