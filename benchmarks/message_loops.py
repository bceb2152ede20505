"""Compiled loops over messages of an engine, for :mod:`between_hosts`: what a rank does for each, without Python."""

from __future__ import annotations

from ncclx_mpi.p2p.layout import AGAIN, DONE
from ncclx_mpi.p2p.requests import close_request, start_receive, start_send, wait_request
from numba_kernels.atomics import store64, ticks
from numba_kernels.jit import kernel


@kernel("int64(int64, int64)")
def _finish(engine, request):  # type: ignore[no-untyped-def]
    """Wait for a request; 0, or why nobody is to wait any more."""
    code = AGAIN
    while code == AGAIN:
        code = wait_request(engine, request, 0, 0)
    if code == DONE:
        close_request(engine, request)
    return 0 if code == DONE else code


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def there_and_back(comm, engine, address, nbytes, rank, loops, times):  # type: ignore[no-untyped-def]
    """Messages that go there and back, and how many ticks each took. 0, or why it ended."""
    for number in range(loops):
        begun, code = ticks(), 0
        if rank == 0:
            code |= _finish(engine, start_send(comm, 0, 0, address, nbytes, 1, 1, 0))
        code |= _finish(engine, start_receive(comm, 0, 0, address, nbytes, 1 - rank, 1))
        if rank != 0:
            code |= _finish(engine, start_send(comm, 0, 0, address, nbytes, 0, 1, 0))
        store64(times + 8 * number, ticks() - begun)
        if code != 0:
            return code
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def one_way(comm, engine, address, nbytes, rank, loops):  # type: ignore[no-untyped-def]
    """Messages in one direction, two at a time, and an answer to the last one. 0, or why it ended."""
    before = 0
    for _ in range(loops):
        request = (
            start_send(comm, 0, 0, address, nbytes, 1, 1, 0) if rank == 0 else start_receive(comm, 0, 0, address, nbytes, 0, 1)
        )
        code = _finish(engine, before) if before != 0 else 0
        if code != 0:
            return code
        before = request
    code = _finish(engine, before)
    if code != 0:
        return code
    if rank == 0:
        return _finish(engine, start_receive(comm, 0, 0, address, 0, 1, 2))
    return _finish(engine, start_send(comm, 0, 0, address, 0, 0, 2, 0))
