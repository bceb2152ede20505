"""What a rank's own record of its operations says."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import runtime
from ncclx_mpi.observe.describe import Record, reports


def recorded(comm: Any) -> list[Record]:
    return reports([runtime.engine().arena], 100)[comm.rank].records


@pytest.mark.ranks(2)
def test_a_wait_that_python_goes_on_with_leaves_no_operation_open(comm: Any) -> None:
    from ncclx_mpi import MPI

    data = np.zeros(3)
    for tag, wait in enumerate([MPI.Request.Waitall, MPI.Request.Waitany, lambda requests: requests[0].Wait()]):
        if comm.rank == 1:
            time.sleep(0.2)  # some slices
            comm.Send(data, 0, tag)
        else:
            before = len(recorded(comm))
            wait([comm.Irecv(data, 1, tag)])
            assert not [record for record in recorded(comm) if record.is_open]
            assert (
                sum(record.seconds for record in recorded(comm)[before:]) > 0.05
            )  # less than the other rank sleeps: a wait that is begun late is shorter
        comm.Barrier()
