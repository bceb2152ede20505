"""Messages beyond what 32 bits count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

NBYTES = (1 << 31) + 4099


@pytest.mark.ranks(2)
def test_message_over_two_gibibytes(comm: Any) -> None:
    if comm.rank == 0:
        data = np.zeros(NBYTES, np.uint8)
        data[[0, 1 << 31, NBYTES - 1]] = 11, 22, 33
        comm.Send(data, 1, 7)
    else:
        data = np.empty(NBYTES, np.uint8)
        comm.Recv(data, 0, 7)
        assert data[[0, 1 << 31, NBYTES - 1]].tolist() == [11, 22, 33]
        assert np.count_nonzero(data) == 3


@pytest.mark.ranks(2)
def test_bcast_over_two_gibibytes(comm: Any) -> None:
    data = np.zeros(NBYTES, np.uint8)
    if comm.rank == 1:
        data[[0, 1 << 31, NBYTES - 1]] = 11, 22, 33
    comm.Bcast(data, 1)
    assert data[[0, 1 << 31, NBYTES - 1]].tolist() == [11, 22, 33]
    assert np.count_nonzero(data) == 3


@pytest.mark.ranks(2)
def test_forgotten_send_arrives_although_its_rank_has_ended(comm: Any) -> None:
    """A rank must not leave while a peer still needs what it announced."""
    import subprocess
    import sys

    if comm.rank == 1:
        return
    program = (
        "import time; import numpy as np; from mpi4py import MPI; c = MPI.COMM_WORLD\n"
        "if c.rank == 0: c.Isend(np.full(3_000_000, 7.0), 1)\n"
        "else: time.sleep(0.5); x = np.zeros(3_000_000); c.Recv(x, 0); assert (x == 7).all(); print('all of it')\n"
    )
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "--timeout", "60", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr
