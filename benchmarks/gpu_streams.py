"""Collectives in streams: what one costs the host that enqueues it, and how long it takes when many follow each other.

Each call is enqueued 100 times in one stream, in a prepared communicator, and waited for at the end; the time until the last one is
enqueued is the host's, the time until the stream is empty that of everything. Part of ``benchmarks/gpu.py``, which starts the ranks
and prints the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu_decode import Block
from numba_kernels.cuda.driver import Driver

GOAL_SECONDS, GOAL_RANKS = 10e-6, 8
"""What enqueuing may cost a host, and with how many ranks."""

CALLS: dict[str, tuple[bool, bool]] = {
    "Barrier": (False, False),
    "Bcast": (False, False),
    "Allgather": (False, True),
    "Alltoall": (True, True),
    "Allreduce": (False, False),
    "Reduce_scatter_block": (True, False),
}
"""Whether a rank gives and gets a block for each rank, or one."""


class Measured(NamedTuple):
    """Of one call among many, on the slowest rank: until it is enqueued, until it is over."""

    enqueue_seconds: float
    seconds: float


def measure(comm: Any, driver: Driver, stream: int, name: str, nbytes: int, calls: int = 100) -> Measured:
    """Run and check one collective of `nbytes` from one rank to another; the communicator is prepared for them.

    Raises
    ------
    ValueError
        It brought wrong values.
    """
    count = max(nbytes // 4, 1)
    many_given, many_got = (count * comm.size if is_many else count for is_many in CALLS[name])
    sent = Block(driver, stream, np.full(many_given, comm.rank + 1.0, np.float32))
    received = Block(driver, stream, np.zeros(many_got, np.float32))
    call = enqueuing(comm, stream, name, sent, received)
    for _ in range(2):
        call()
    check(comm, name, count, (sent if name == "Bcast" else received).get())
    comm.Barrier()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    enqueued = time.perf_counter() - begun
    driver.synchronize(stream)
    over = time.perf_counter() - begun
    comm.check()
    slowest = [max(times) / calls for times in zip(*comm.allgather((enqueued, over)), strict=True)]
    for block in (sent, received):
        driver.free(block.address)
    return Measured(*slowest)


def enqueuing(comm: Any, stream: int, name: str, sent: Block, received: Block) -> Callable[[], None]:
    """What enqueues the call."""
    method: Callable[..., None] = getattr(comm.in_stream(stream), name)
    if name == "Barrier":
        return method
    if name == "Bcast":
        return lambda: method(sent)
    return lambda: method(sent, received)


def check(comm: Any, name: str, count: int, found: np.ndarray) -> None:
    """Raise ValueError unless the right values have come."""
    ranks = np.arange(1, comm.size + 1, dtype=np.float32)
    sums = {"Allreduce": ranks.sum(), "Reduce_scatter_block": ranks.sum(), "Bcast": 1.0, "Barrier": 0.0}
    wanted = sums[name] if name in sums else np.repeat(ranks, count)
    if not (found == wanted).all():
        raise ValueError(f"rank {comm.rank}: {name} of {count} elements in a stream gives wrong values")
