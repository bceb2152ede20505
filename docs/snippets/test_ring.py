# run by: run_tests.py
import numpy as np
import pytest


def shifted(comm, value: float) -> float:
    """What the rank on the left has: the function under test."""
    received = np.empty(1)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(np.array([value], float), right, recvbuf=received, source=left)
    return float(received[0])


@pytest.mark.ranks(1, 2, 5)
def test_everybody_gets_its_neighbours(comm):
    assert shifted(comm, comm.rank) == (comm.rank - 1) % comm.size


@pytest.mark.ranks(4, topology="vnode:2")
def test_across_nodes(comm):
    assert shifted(comm, comm.rank) == (comm.rank - 1) % comm.size


@pytest.mark.ranks(3)
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_sums_of_every_type(comm, dtype):
    total = np.empty(2, dtype)
    comm.Allreduce(np.full(2, comm.rank, dtype), total)
    assert total.tolist() == [3, 3]
