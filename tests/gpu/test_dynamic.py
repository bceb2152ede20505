"""Alltoallv_dynamic on CuPy arrays of ranks that share one GPU: random tables against NumPy; blocking, in streams and in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.device.test_dynamic_enqueued import Started
from tests.extensions.tables import draw
from tests.extensions.test_alltoallv_dynamic import blocking, check
from tests.gpu.test_calls import CuPyArrays

pytestmark = pytest.mark.gpu
TABLES = 40


class Late(CuPyArrays):
    """CuPy, with arrays of any type that arrive behind work that takes longer than a call."""

    def late(self, values: npt.NDArray[Any]) -> Any:
        array = self.cupy.full(values.shape, 77, values.dtype)
        source = self.cupy.asarray(values)
        for _ in range(4):
            self.busy = self.busy @ self.busy / 1024
        array[...] = source
        return array


class OnCuPy(Started):
    def captured(self, start: Callable[[], None]) -> Callable[[], None]:
        self.stream.begin_capture()
        start()
        graph = self.stream.end_capture()
        return lambda: graph.launch(self.stream)

    def finish(self) -> None:
        self.stream.synchronize()


@pytest.mark.ranks(2, 4, 8, timeout=120)
def test_blocking(comm: Any) -> None:
    arrays = Late()
    for seed in range(TABLES):
        check(comm, draw(seed, comm.size), blocking, arrays.late, arrays.values_of)


@pytest.mark.ranks(2, 4, 8, timeout=120)
@pytest.mark.parametrize("is_captured", [False, True], ids=["eager", "graph"])
def test_in_streams(comm: Any, is_captured: bool) -> None:
    arrays, own = Late(), comm.Dup()
    own.prepare(1 << 20)
    stream = arrays.cupy.cuda.Stream(non_blocking=True)
    with stream:
        for seed in range(TABLES):
            check(own, draw(seed, comm.size), OnCuPy(stream, is_captured=is_captured), arrays.late, arrays.values_of)
    own.Free()


@pytest.mark.ranks(2, 8, timeout=120)
def test_counts_that_change_between_replays(comm: Any) -> None:
    """The GPU writes them, in the stream that replays the graph; no host looks before the end."""
    cupy, own = CuPyArrays().cupy, comm.Dup()
    own.prepare(1 << 20)
    stream = cupy.cuda.Stream(non_blocking=True)
    size, most = comm.size, 1000
    with stream:
        send = cupy.arange(most * size) + 1_000_000 * comm.rank
        areas, splits = cupy.full((size, most), -1), cupy.zeros(size, np.int64)
        request = own.Alltoallv_dynamic_init(send, areas, splits)
        stream.begin_capture()
        request.Start(stream=stream)
        graph = stream.end_capture()
        found = []
        for length in (most, 3, 0, 77, most):
            splits.fill(length)
            areas.fill(-1)
            graph.launch(stream)
            found.append(areas.copy())
        stream.synchronize()
        request.check()
        for length, values in zip((most, 3, 0, 77, most), found, strict=True):
            wanted = np.full((size, most), -1)
            wanted[:, :length] = np.arange(length) + length * comm.rank + 1_000_000 * np.arange(size)[:, None]
            np.testing.assert_array_equal(cupy.asnumpy(values), wanted)
    request.Free()
    own.Free()
