"""Collectives on symmetric heaps: the kernels' bodies on the CPU against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from numba_kernels import reduce
from numba_kernels.cuda.limits import GROUP
from numba_kernels.cuda.reduce import numpy_twin
from numba_kernels.cuda.symmetric import COPY, pack_table, reduce_kernel, spread_kernel

ROOM = 1 << 14
GIVEN, GOT = 64, 8192


def heaps_of(ranks: int) -> np.ndarray:
    return np.random.default_rng(ranks).integers(0, 256, (ranks, ROOM), dtype=np.uint8)


def addresses(heaps: np.ndarray) -> list[int]:
    return [heap.ctypes.data for heap in heaps]


@pytest.mark.parametrize("writes", [[0, 1, 2], [2], [0, 2]])
@pytest.mark.parametrize("threads", [1, GROUP, 3 * GROUP])
@pytest.mark.parametrize("name", ["bcast", "allgather", "alltoall"])
def test_blocks_of_any_length_are_copied(name: str, threads: int, writes: list[int]) -> None:
    for nbytes, given, got in itertools.product([0, 1, 100, 777], [GIVEN, GIVEN + 3], [GOT, GOT + 1]):
        heaps = heaps_of(3)
        wanted, table = heaps.copy(), pack_table(addresses(heaps), writes)
        sources = [1] if name == "bcast" else [0, 1, 2]
        given_pitch, got_pitch = nbytes * (name == "alltoall"), nbytes * (name != "bcast")
        for (k, source), target in itertools.product(enumerate(sources), writes):
            begin, end = given + target * given_pitch, got + k * got_pitch
            wanted[target, end : end + nbytes] = heaps[source, begin : begin + nbytes]
        arguments = (sources[0], len(sources), len(writes), given, given_pitch, got, got_pitch, nbytes, 48)
        COPY.on_cpu(threads, table.ctypes.data, *arguments)
        np.testing.assert_array_equal(heaps, wanted)


@pytest.mark.parametrize(
    ("op", "kind"), [("sum", "f32"), ("prod", "bf16"), ("max", "i64"), ("sum", "c64"), ("band", "u8"), ("sum", "e4m3")]
)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_reductions(op: str, kind: str, ranks: int) -> None:
    element, twin = reduce.dtype(kind), numpy_twin(op, kind)
    nbytes = element.itemsize
    for count, threads, piece in [(0, 1, 4), (1, GROUP, 4), (100, 3 * GROUP, 16), (77, 5, 100)]:
        heaps = np.random.default_rng(count).integers(0, 60, (ranks, ROOM), dtype=np.uint8)
        results = []
        for block in range(ranks):
            begin = GIVEN + block * count * nbytes
            sources = [heap[begin : begin + count * nbytes].view(element) for heap in heaps]
            results.append(np.empty(count, element))
            twin(results[-1], sources)
        wanted, writes = heaps.copy(), [ranks - 1, 0]
        for target in writes:
            wanted[target, GOT : GOT + count * nbytes] = results[target].view(np.uint8)
        table = pack_table(addresses(heaps), writes)
        reduce_kernel(op, kind, ranks).on_cpu(threads, table.ctypes.data, 2, GIVEN, count * nbytes, GOT, count, piece)
        np.testing.assert_array_equal(heaps, wanted)
        wanted[:, GIVEN : GIVEN + count * nbytes] = results[0].view(np.uint8)
        spread_kernel(op, kind, ranks).on_cpu(threads, table.ctypes.data, GIVEN, count, piece)
        np.testing.assert_array_equal(heaps, wanted)
