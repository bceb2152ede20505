"""Accesses beyond what 32 bits count, to a rank of another node."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest

NBYTES = (1 << 31) + 4099
PLACES = [0, 1 << 31, NBYTES - 1]
MOST_GROWTH_KIB = 300 << 10


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.ranks(2, topology="nolocal", timeout=120)
def test_accesses_over_two_gibibytes(comm: Any) -> None:
    """Both ways at once, in place: what is sent of a part is copied before its answer comes. Neither end takes much memory for it."""
    from ncclx_mpi import MPI

    memory = np.full(NBYTES if comm.rank == 1 else 0, 1, np.uint8)
    win = MPI.Win.Create(memory, comm=comm)
    win.Fence()
    before, data = peak_kib(), np.full(NBYTES if comm.rank == 0 else 0, 2, np.uint8)
    if comm.rank == 0:
        data[PLACES] = 11, 22, 33
        before = peak_kib()
        win.Get_accumulate(data, data, 1, op=MPI.REPLACE)
    win.Fence()
    assert peak_kib() - before < MOST_GROWTH_KIB
    if comm.rank == 0:
        assert np.count_nonzero(data) == data.sum(dtype=np.int64) == NBYTES
    else:
        assert memory[PLACES].tolist() == [11, 22, 33]
        assert memory.sum(dtype=np.int64) == 2 * (NBYTES - 3) + 11 + 22 + 33
    win.Free()
