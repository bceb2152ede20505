"""``ncclx info --tuning``: which way bulk data goes in a job, tried out for it, and the times that decided."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

SIZES = (64 << 10, 1 << 20, 4 << 20)
"""Bytes that a rank gives."""


def show(is_json: bool) -> int:
    """Try messages and collectives out in the job of this process, until all has been decided; rank 0 prints what it found."""
    from ncclx_mpi import runtime
    from ncclx_mpi.collectives import shm_decisions
    from transports.shm.trial import TRIALS

    comm: Any = importlib.import_module("ncclx_mpi.MPI").COMM_WORLD
    for nbytes in SIZES:
        for call in _calls(comm, nbytes):
            for _ in range(TRIALS + 1):  # the one behind the trials brings the verdict
                call()
    if comm.rank == 0:
        engine, native = runtime.engine(), comm._state.native
        if is_json:
            print(json.dumps([each._asdict() for each in shm_decisions.decisions(engine, native)], indent=1))
        else:
            print("\n".join(shm_decisions.lines(engine, native)))
    comm.Barrier()
    return 0


def _calls(comm: Any, nbytes: int) -> Iterator[Any]:
    """Yield what is tried, with so many bytes a rank."""
    import numpy as np

    count = nbytes // 8 // comm.size * comm.size
    own, all_of_them = np.zeros(count), np.zeros(count * comm.size)
    part = np.zeros(count // comm.size)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    yield lambda: comm.Sendrecv(own, right, recvbuf=all_of_them[:count], source=left)
    yield lambda: comm.Bcast(own)
    yield lambda: comm.Allreduce(own, all_of_them[:count])
    yield lambda: comm.Reduce_scatter_block(own, part)
    yield lambda: comm.Allgather(own, all_of_them)
    yield lambda: comm.Alltoall(own, all_of_them[:count])
