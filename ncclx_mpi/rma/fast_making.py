"""Making and ending a window on lines: the exchange of what ranks bring, and the last wait, each in one compiled call."""

from __future__ import annotations

from ncclx_mpi.collectives.allgather.shm_oneshot import allgather
from ncclx_mpi.collectives.barrier.shm_oneshot import barrier
from ncclx_mpi.collectives.select import is_planned, on_lines
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, BARRIER
from ncclx_mpi.p2p.layout import COMM
from ncclx_mpi.rma.fast import SLOW, fill_targets, target_of
from ncclx_mpi.rma.layout import CONTROL, ROW, TARGET, WINDOW
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import fill

BAD_ROW = -16
"""Less 1 + a rank: that one could not make its part."""


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def exchange_rows(window, rows, arena, first, last, own_address):  # type: ignore[no-untyped-def]
    """Let all ranks see the rows of all, of which this one has written its own, and go on as :func:`fill_targets`.

    0; SLOW with nothing done; the code of a failure; or BAD_ROW less what :func:`fill_targets` returns.
    """
    comm = load64(window + WINDOW.comm)
    if is_planned(comm, ALLGATHER) != 0 or on_lines(comm, ALLGATHER, ROW.total) == 0:
        return SLOW
    code = allgather(comm, 0, ROW.total, rows)
    if code != 0:
        return code
    bad = fill_targets(window, rows, arena, first, last, own_address)
    return 0 if bad == 0 else BAD_ROW - bad


@kernel("int64(int64)", is_entry=True, nogil=False)
def end(window):  # type: ignore[no-untyped-def]
    """Wait for all ranks, leave everything to Python from then on, and have this rank's own words be 0 for another window to use.

    0; SLOW, or the code of a failure, with nothing changed.
    """
    comm = load64(window + WINDOW.comm)
    if is_planned(comm, BARRIER) != 0:
        return SLOW
    code = barrier(comm)
    if code == 0:
        own = target_of(window, load64(comm + COMM.rank))
        store64(load64(own + TARGET.lock), 0)
        store64(load64(own + TARGET.guard), 0)
        store64(load64(own + TARGET.lock) - CONTROL.lock + CONTROL.counters, 0)
        fill(window + WINDOW.size, 0, 4 * WORD)
    return code
