"""Every call on CuPy arrays, of ranks that share one GPU: the cases that also run on the driver double.

Values arrive late in a stream of the rank's own, behind work that takes longer than a call, so that a call which does not come after it
gives something else.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.device.cases import CASES, FLAVOURS
from tests.device.messages import MESSAGES
from tests.device.test_adversarial import WORKLOADS

pytestmark = pytest.mark.gpu
LENGTHS = (0, 1, 1000, 300_000)


class CuPyArrays:
    """CuPy, with arrays that hold something else until their stream has come to them."""

    def __init__(self) -> None:
        self.cupy = pytest.importorskip("cupy")
        self.busy = self.cupy.ones((1024, 1024), np.float32)

    def late(self, values: npt.NDArray[Any]) -> Any:
        array = self.cupy.full(values.shape, -5, values.dtype)
        source = self.cupy.asarray(values)
        for _ in range(4):
            self.busy = self.busy @ self.busy / 1024
        array[...] = source
        return array

    def values_of(self, found: Any) -> Any:
        """Values of an array, or of a list of them, on the host."""
        if isinstance(found, list):
            return [self.values_of(each) for each in found]
        return np.array(self.cupy.asnumpy(found))


def check(comm: Any, name: str, flavour: str, *, is_mixed: bool) -> None:
    arrays, run = CuPyArrays(), WORKLOADS[f"{flavour} {name}"].run
    on_host = is_mixed and comm.rank % 2 == 0
    for stream in (arrays.cupy.cuda.Stream.null, arrays.cupy.cuda.Stream(non_blocking=True)):
        with stream:
            for length in LENGTHS:
                wanted = arrays.values_of(run(comm, np.array, length))
                found = arrays.values_of(run(comm, np.array if on_host else arrays.late, length))
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_equal(one, other, err_msg=f"{flavour} {name} of {length}")


@pytest.mark.ranks(2, 4, 8, timeout=120)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_collectives(comm: Any, flavour: str) -> None:
    for name in CASES:
        check(comm, name, flavour, is_mixed=False)


@pytest.mark.ranks(2, 4, 8, timeout=120)
def test_messages(comm: Any) -> None:
    for name in MESSAGES:
        check(comm, name, "messages:", is_mixed=False)


@pytest.mark.ranks(3, timeout=120)
def test_arrays_of_both_kinds_in_one_call(comm: Any) -> None:
    for name in CASES:
        check(comm, name, "blocking", is_mixed=True)
    for name in MESSAGES:
        check(comm, name, "messages:", is_mixed=True)


@pytest.mark.ranks(2, timeout=120)
def test_memory_of_every_kind(comm: Any) -> None:
    """Pools of CuPy and of the driver, managed memory, views: exportable or not. The longer ones do not fit into a pinned window."""
    cupy = CuPyArrays().cupy
    pools = {
        "the driver's pool": cupy.cuda.MemoryAsyncPool().malloc,
        "managed": cupy.cuda.malloc_managed,
        "CuPy's pool": cupy.get_default_memory_pool().malloc,
    }
    for (name, allocate), length in itertools.product(pools.items(), (5000, 1_500_000)):
        values = np.arange(float(length)) + comm.rank
        with cupy.cuda.using_allocator(allocate):
            sent, received = cupy.asarray(values), cupy.zeros(length)
        comm.Sendrecv(sent, 1 - comm.rank, recvbuf=received)
        np.testing.assert_array_equal(cupy.asnumpy(received), values - comm.rank + 1 - comm.rank, err_msg=name)
        comm.Allreduce(sent[7:], received[7:])
        np.testing.assert_array_equal(cupy.asnumpy(received)[7:], 2 * (values - comm.rank)[7:] + 1, err_msg=name)


@pytest.mark.ranks(2, timeout=120)
def test_torch_tensors_and_jax_arrays(comm: Any) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.full((1000,), comm.rank + 1.0, device="cuda")
    comm.Allreduce(tensor.clone(), tensor)
    assert bool((tensor == 3).all())
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # each rank would take three quarters of the one GPU
    jax = pytest.importorskip("jax")
    target = torch.zeros(1000, device="cuda")
    comm.Sendrecv(jax.numpy.full(1000, comm.rank + 1.0), 1 - comm.rank, recvbuf=target)
    assert bool((target == 2 - comm.rank).all())
