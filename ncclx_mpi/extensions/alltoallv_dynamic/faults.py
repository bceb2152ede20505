"""What is wrong with pairs of ranks in an all-to-all whose counts are read when it executes, in words."""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi import errors
from numba_kernels.alltoallv.layout import BLOCK, INDEX, ITEM, RECEIVE, SEND, SPLIT
from numba_kernels.rows import NamedTuple

NAME = "alltoallv_dynamic"


class Fault(NamedTuple):
    """Why nothing was moved from `source` to `target`; the rest as in ``PAIR`` of :mod:`numba_kernels.alltoallv.layout`."""

    source: int
    target: int
    fault: int
    segment: int
    needed: int
    limit: int


def raise_if_any(rank: int, faults: Sequence[Fault]) -> None:
    """Raise what went wrong with pairs of `rank`.

    Raises
    ------
    Exception
        ERR_TYPE for elements of different sizes, else ERR_TRUNCATE.
    """
    if not faults:
        return
    first = faults[0]
    more = f" (and {len(faults) - 1} more such pairs)" if len(faults) > 1 else ""
    errors.fail(
        errors.ERR_TYPE if first.fault == ITEM else errors.ERR_TRUNCATE,
        f"rank {rank}: {NAME}: nothing was moved from rank {first.source} to rank {first.target}{more}: "
        + _TEXTS[first.fault].format(**first._asdict()),
    )


_TEXTS = {
    SPLIT: "split length {segment} of rank {source} is {needed}; it must be 0 to {limit}",
    INDEX: "index {segment} of rank {source} is {needed}, but there are {limit} segments, numbered from 0",
    BLOCK: "block length {segment} of rank {source} is {needed}, but {limit} indices are left",
    SEND: "its segments reach to element {needed}, but the send buffer of rank {source} has {limit} there; "
    "the split lengths are too large",
    RECEIVE: "it needs room for {needed} elements, but rank {target} has a capacity of {limit} for rank {source}; "
    "make the capacity larger",
    ITEM: "elements of {needed} bytes are sent, but rank {target} has room for elements of {limit} bytes",
}
