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
