"""Block copies: the kernel's body on the CPU against its NumPy twin, and its machine code."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from numba_kernels.cuda.copy import COPY, TARGETS, pack_rows
from numba_kernels.cuda.limits import GROUP
from numba_kernels.cuda.rows import cut

ROOM = 4096


def run(copies: list[tuple[int, int, list[int]]], threads: int, piece: int) -> None:
    table = pack_rows(copies, piece)
    COPY.on_cpu(threads, table.ctypes.data, len(table))


@pytest.mark.parametrize("threads", [1, 7, GROUP, GROUP + 1, 3 * GROUP])
@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8])
def test_any_length_at_any_address(threads: int, shift: int) -> None:
    rng = np.random.default_rng(shift)
    for nbytes, start in itertools.product([0, 1, 3, 15, 16, 17, 64, 1000, 3001], [0, 5, 16]):
        source = rng.integers(0, 256, ROOM, dtype=np.uint8)
        targets = [np.full(ROOM, 0xEE, dtype=np.uint8) for _ in range(3)]
        begins = [(source.ctypes.data + start - target.ctypes.data) % 16 + shift * k for k, target in enumerate(targets)]
        places = [target.ctypes.data + begin for target, begin in zip(targets, begins, strict=True)]
        run([(nbytes, source.ctypes.data + start, places)], threads, 700)
        for target, begin in zip(targets, begins, strict=True):
            wanted = np.full(ROOM, 0xEE, dtype=np.uint8)
            wanted[begin : begin + nbytes] = source[start : start + nbytes]
            np.testing.assert_array_equal(target, wanted)


def test_many_rows_and_more_targets_than_a_row_has() -> None:
    rng = np.random.default_rng(1)
    source = rng.integers(0, 256, (20, 100), dtype=np.uint8)
    target = np.zeros((TARGETS + 3, 20, 100), dtype=np.uint8)
    copies = [(100, source[k].ctypes.data, [block[k].ctypes.data for block in target]) for k in range(20)]
    run(copies, 5 * GROUP, 48)
    np.testing.assert_array_equal(target, np.broadcast_to(source, target.shape))


def test_pieces_cover_everything_once() -> None:
    assert list(cut(10, 4)) == [(0, 4), (4, 4), (8, 2)]
    assert list(cut(0, 4)) == []
    assert pack_rows([(0, 1, [2])], 16).shape == (0, 19)
