"""Windows: what one rank puts, others find after a fence; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.mark.ranks(1, 3)
def test_each_rank_writes_to_its_neighbour(comm: Any) -> None:
    from ncclx_mpi import MPI

    win = MPI.Win.Allocate(80, 8, comm=comm)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine = np.frombuffer(win.tomemory(), np.float64)
    mine[:] = -1
    win.Fence()
    win.Put(np.arange(4) + 10.0 * comm.rank, after, 3)
    win.Put([np.arange(3.0), 3, MPI.DOUBLE], MPI.PROC_NULL)
    win.Fence()
    assert mine.tolist() == [-1, -1, -1, *(np.arange(4) + 10.0 * before), -1, -1, -1]
    found = np.zeros(10)
    win.Get(found, before)
    assert found[3:7].tolist() == (np.arange(4) + 10.0 * ((comm.rank - 2) % comm.size)).tolist()
    win.Fence()
    del mine
    win.Free()
    assert win == MPI.WIN_NULL


@pytest.mark.ranks(2)
def test_types_on_both_sides(comm: Any) -> None:
    from ncclx_mpi import MPI

    win = MPI.Win.Allocate(48, 4, comm=comm)
    column = MPI.INT.Create_vector(3, 1, 4).Commit()
    win.Fence()
    if comm.rank == 0:
        matrix = np.arange(12, dtype=np.int32).reshape(3, 4)
        win.Put([matrix, 1, column], 1, [1, 1, column])
        win.Put([np.full(3, 9, np.int32), 3, MPI.INT], 1, [2, 1, column])
    win.Fence()
    if comm.rank == 1:
        assert np.frombuffer(win.tomemory(), np.int32).reshape(3, 4).tolist() == [[0, 0, 9, 0], [0, 4, 9, 0], [0, 8, 9, 0]]
        back = np.zeros((3, 4), np.int32)
        win.Get([back, 1, column], 1, [1, 1, column])
        assert back[:, 0].tolist() == [0, 4, 8]
    win.Fence()
    win.Free()


@pytest.mark.ranks(1)
def test_refused(comm: Any) -> None:
    from ncclx_mpi import MPI

    win = MPI.Win.Allocate(16, comm=comm)
    data = np.zeros(4, np.int32)

    def refused(error_class: int, *arguments: Any) -> None:
        with pytest.raises(MPI.Exception) as caught:
            win.Put(*arguments)
        assert caught.value.Get_error_class() == error_class

    refused(MPI.ERR_RMA_SYNC, data, 0)
    win.Fence()
    refused(MPI.ERR_RANK, data, 1)
    refused(MPI.ERR_RMA_RANGE, data, 0, 1)
    refused(MPI.ERR_RMA_RANGE, data, 0, -1)
    refused(MPI.ERR_RMA_RANGE, np.zeros(5, np.int32), 0)
    refused(MPI.ERR_TRUNCATE, data, 0, [0, 3])
    refused(MPI.ERR_COUNT, data, 0, [0, -3])
    with pytest.raises(ValueError):
        win.Put(data, 0, [0, 4, MPI.INT, None])
    with pytest.raises(BufferError):
        win.Get(b"abc", 0)
    win.Fence()
    win.Free()
    with pytest.raises(MPI.Exception) as caught:
        win.Fence()
    assert caught.value.Get_error_class() == MPI.ERR_WIN
    with pytest.raises(MPI.Exception):
        MPI.Win.Allocate(-1)
