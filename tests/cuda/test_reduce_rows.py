"""Reductions by tables: the kernel's bodies on the CPU against the kernels of the host."""

from __future__ import annotations

import numpy as np
import pytest

from numba_kernels import reduce
from numba_kernels.cuda.limits import GROUP
from numba_kernels.cuda.reduce_rows import pack_reductions, rows_kernel


def expected(op: str, kind: str, sources: np.ndarray) -> np.ndarray:
    result = sources[0].copy()
    twin = reduce.numpy_twin(op, kind)
    for source in sources[1:]:
        twin(result, result.copy(), source)
    return result


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize(("op", "kind"), [("sum", "f32"), ("prod", "f16"), ("max", "i64"), ("sum", "c64"), ("band", "u8")])
def test_results_in_several_places(op: str, kind: str, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    element = reduce.dtype(kind)
    for count, shift, threads, most in [(1, 0, 5, 7), (1000, 0, GROUP, 300), (1000, 1, 3 * GROUP, 64), (77, 3, 1, 1000)]:
        raw = rng.integers(1, 100, (ranks, count + 4))
        sources = raw.astype(element)
        wanted = expected(op, kind, sources[:, :count])
        targets = np.zeros((ranks, count + 4), dtype=element)
        places = [target[shift if k == 1 else 0 :].ctypes.data for k, target in enumerate(targets)]
        table = pack_reductions([(count, places, [source.ctypes.data for source in sources])], element.itemsize, most)
        rows_kernel(op, kind, ranks, ranks).on_cpu(threads, table.ctypes.data, len(table))
        for k, target in enumerate(targets):
            first = shift if k == 1 else 0
            np.testing.assert_array_equal(target[first : first + count], wanted)
            assert not target[:first].any() and not target[first + count :].any()


def test_in_place_with_one_target() -> None:
    sources = np.arange(3000.0).reshape(3, 1000)
    wanted = sources.sum(axis=0)
    table = pack_reductions([(1000, [sources[1].ctypes.data], [source.ctypes.data for source in sources])], 8, 128)
    rows_kernel("sum", "f64", 3, 1).on_cpu(2 * GROUP, table.ctypes.data, len(table))
    np.testing.assert_array_equal(sources[1], wanted)
