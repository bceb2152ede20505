"""``ncclx info --tuning``: which way bulk data goes in a job, tried out for it, and which plans are chosen, with the times that decided."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ncclx_mpi.algorithms import ALGORITHMS, Case, choose, measured_us
from ncclx_mpi.bench.points import size_text
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.p2p.native import NativeComm

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
        plans = list(_plans(native))
        if is_json:
            found = [*(each._asdict() for each in shm_decisions.decisions(engine, native)), *(each._asdict() for each in plans)]
            print(json.dumps(found, indent=1))
        else:
            print(
                "\n".join(
                    [*shm_decisions.lines(engine, native), *(f"{each.what} {each.size}: {each.plan}, {each.why}" for each in plans)]
                )
            )
    comm.Barrier()
    return 0


class Choice(NamedTuple):
    """Which plan serves calls of COMM_WORLD of a size, and why."""

    what: str
    size: str
    plan: str
    why: str


def _plans(comm: NativeComm) -> Iterator[Choice]:
    """Yield the choices between nodes, of the sizes that were tried, and those that are in the tuning table."""
    if comm.nodes is None and comm.table is None:
        return
    for collective in ALGORITHMS:
        case = Case(comm.size, 0, nodes=comm.nodes, table=comm.table)
        known = comm.table.layouts.get(case.layout, {}).get(collective, ()) if comm.table else ()
        for nbytes in sorted({*(size for size, _ in known), *SIZES}) if collective != "barrier" else (0,):
            of_size = case._replace(nbytes=nbytes)
            row = choose(collective, of_size)
            yield Choice(collective, size_text(nbytes), row.name, _why(collective, of_size))


def _why(collective: str, case: Case) -> str:
    measured = measured_us(collective, case)
    if measured:
        assert case.table is not None
        where = "" if case.nodes else ", where there is no slot in shared memory"
        return f"{measured.get(choose(collective, case), math.inf):.1f} us in the tuning table {case.table.source}{where}"
    return "as the model has it"


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
