"""mpi4py.util.pkl5 on our communicators, and the type of intercommunicators that it asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, mpi4py_shim


@pytest.mark.ranks(1, 2, 3)
def test_objects_by_pkl5(comm: Any) -> None:
    mpi4py_shim.install()
    from mpi4py.util import pkl5

    over = pkl5.Intracomm(comm)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    matrix = over.sendrecv(np.eye(300) * comm.rank, right, 0, None, left, 0)
    np.testing.assert_array_equal(matrix, np.eye(300) * left)
    request = over.isend([np.full((500, 200), comm.rank), "end"], right, 1)
    found = over.recv(source=left, tag=1)
    request.wait()
    assert found[0].shape == (500, 200) and (found[0] == left).all() and found[1] == "end"
    told = over.bcast({"all": np.arange(100_000.0)} if comm.rank == 0 else None)
    assert told["all"].sum() == np.arange(100_000.0).sum()
    assert [each[0, 1] for each in over.allgather(np.full((2, 2), comm.rank))] == list(range(comm.size))
    parts = over.alltoall([np.full(1000, 10 * comm.rank + other) for other in range(comm.size)])
    assert [part[-1] for part in parts] == [10 * other + comm.rank for other in range(comm.size)]


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_two_dimensions_stay_out_of_the_pickle(order: Any) -> None:
    matrix = np.asarray(np.arange(120_000.0).reshape(300, 400), order=order)
    data, large = MPI.pickle.dumps_oob(matrix)
    assert len(data) < 1000 and [each.nbytes for each in large] == [matrix.nbytes]
    np.testing.assert_array_equal(MPI.pickle.loads_oob(data, large), matrix)
    assert MPI.buffer(memoryview(matrix)).nbytes == matrix.nbytes


@pytest.mark.ranks(1)
def test_no_communicator_is_an_intercommunicator(comm: Any) -> None:
    assert not isinstance(comm, MPI.Intercomm) and isinstance(MPI.Intercomm(), MPI.Comm)
    assert not MPI.Intercomm() and MPI.Intercomm() == MPI.COMM_NULL == MPI.Intercomm(MPI.COMM_NULL)
    with pytest.raises(TypeError):
        MPI.Intercomm(comm)
