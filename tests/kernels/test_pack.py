"""Packing kernels against index arithmetic in NumPy, on random typemaps."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kernels import jit, pack

GUARD = 64
UNTOUCHED = 0xA5


class Typemap(NamedTuple):
    """A datatype and a buffer of it."""

    blocks: np.ndarray
    extent: int
    count: int

    @property
    def size(self):
        return int(self.blocks[:, 1].sum())

    @property
    def stream_offsets(self):
        """Where each byte of the stream lies, relative to the address of the buffer."""
        one = [np.arange(offset, offset + nbytes) for offset, nbytes in self.blocks]
        one = np.concatenate([np.arange(0), *one])
        return (np.arange(self.count)[:, None] * self.extent + one).ravel()

    def memory(self, seed=0):
        """Bytes for the whole buffer, and the index in them that the buffer's address has."""
        where = self.stream_offsets
        first, last = (int(where.min()), int(where.max())) if where.size else (0, 0)
        values = np.random.default_rng(seed).integers(0, 256, last - first + 1 + 2 * GUARD, np.uint8)
        return values, GUARD - first


@st.composite
def typemaps(draw):
    """Blocks that do not overlap, in any order, at any offset, in any direction, up to 40 elements."""
    sizes = draw(st.lists(st.integers(0, 40) | st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=12))
    gaps = draw(st.lists(st.integers(1, 30), min_size=len(sizes), max_size=len(sizes)))
    at, rows = draw(st.integers(-100, 100)), []
    for nbytes, gap in zip(sizes, gaps, strict=True):
        rows.append((at, nbytes))
        at += nbytes + gap
    extent = (at - rows[0][0] + draw(st.integers(0, 600))) * draw(st.sampled_from([1, -1]))
    return Typemap(np.array(draw(st.permutations(rows)), np.int64), extent, draw(st.integers(0, 40)))


def interleaved(nblocks, nbytes, count):
    """Columns of a matrix: elements closer to each other than their own blocks."""
    blocks = [(row * nbytes * count, nbytes) for row in range(nblocks)]
    return Typemap(np.array(blocks, np.int64), nbytes, count)


SHAPES = [
    Typemap(np.array([[0, 8]]), 8, 100),
    Typemap(np.array([[3, 5]]), 9, 3000),
    Typemap(np.array([[0, 1000]]), 5000, 7),
    Typemap(np.array([[0, 8], [8, 4], [16, 1]]), 24, 2000),
    Typemap(np.stack([np.arange(500) * 16, np.full(500, 8)], 1), 8000, 1),
    Typemap(np.array([[16, 8], [0, 8]]), -24, 50),
    *(interleaved(60, nbytes, 5) for nbytes in (1, 2, 4, 8, 16, 17, 33)),
    interleaved(300, 8, 300),
]
any_typemap = typemaps() | st.sampled_from(SHAPES)


def call(kernel, map_, *arguments):
    blocks = np.ascontiguousarray(map_.blocks, np.int64)
    numbers = [a if isinstance(a, int) else a.ctypes.data for a in arguments]
    return jit.entry(kernel)(blocks.ctypes.data, len(blocks), *numbers)


def stream_buffer(nbytes):
    """A stream of `nbytes` at an odd address, in guard bytes."""
    whole = np.full(nbytes + 2 * GUARD + 1, UNTOUCHED, np.uint8)
    return whole, whole[GUARD + 1 : GUARD + 1 + nbytes]


@settings(deadline=None, max_examples=150)
@given(any_typemap)
def test_pack_gathers_the_blocks_in_order(map_):
    memory, origin = map_.memory()
    whole, stream = stream_buffer(map_.size * map_.count)
    moved = call(pack.pack, map_, map_.extent, memory.ctypes.data + origin, map_.count, stream)
    assert moved == stream.size
    np.testing.assert_array_equal(stream, memory[origin + map_.stream_offsets])
    assert (whole[: GUARD + 1] == UNTOUCHED).all() and (whole[GUARD + 1 + moved :] == UNTOUCHED).all()


@settings(deadline=None, max_examples=150)
@given(any_typemap)
def test_unpack_restores_the_blocks_and_nothing_else(map_):
    original, origin = map_.memory(seed=1)
    memory, _ = map_.memory(seed=2)
    expected = memory.copy()
    expected[origin + map_.stream_offsets] = original[origin + map_.stream_offsets]
    _, stream = stream_buffer(map_.size * map_.count)
    call(pack.pack, map_, map_.extent, original.ctypes.data + origin, map_.count, stream)
    moved = call(pack.unpack, map_, map_.extent, stream, map_.count, memory.ctypes.data + origin)
    assert moved == stream.size
    np.testing.assert_array_equal(memory, expected)


@settings(deadline=None, max_examples=150)
@given(any_typemap, st.data())
def test_ranges_in_any_cut_equal_the_whole(map_, data):
    total = map_.size * map_.count
    cuts = data.draw(st.lists(st.integers(0, total), max_size=6).map(sorted), label="cuts")
    cursor_words = np.zeros(3, np.int64) if data.draw(st.booleans(), label="cursor") else None
    memory, origin = map_.memory(seed=3)
    landing, _ = map_.memory(seed=4)
    expected = landing.copy()
    expected[origin + map_.stream_offsets] = memory[origin + map_.stream_offsets]
    whole, stream = stream_buffer(total)
    for kernel, here in ((pack.pack_range, memory), (pack.unpack_range, landing)):
        cursor = 0
        if cursor_words is not None:
            cursor_words[:] = 0
            cursor = cursor_words.ctypes.data
        for first, last in zip([0, *cuts], [*cuts, total], strict=True):
            address, position = here.ctypes.data + origin, stream.ctypes.data + first
            source, target = (address, position) if kernel is pack.pack_range else (position, address)
            moved = call(kernel, map_, map_.size, map_.extent, source, first, last - first, target, cursor)
            assert moved == (last - first if map_.size else 0)
    np.testing.assert_array_equal(stream, memory[origin + map_.stream_offsets])
    np.testing.assert_array_equal(landing, expected)
    assert (whole[GUARD + 1 + total :] == UNTOUCHED).all()


@settings(deadline=None, max_examples=60)
@given(any_typemap, st.floats(0, 1))
def test_truncated_stream_fills_what_came(map_, fraction):
    came = int(map_.size * map_.count * fraction)
    memory, origin = map_.memory()
    expected = memory.copy()
    stream = np.arange(came).astype(np.uint8)
    expected[origin + map_.stream_offsets[:came]] = stream
    target = memory.ctypes.data + origin
    call(pack.unpack_range, map_, map_.size, map_.extent, stream, 0, came, target, 0)
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("first", [0, 1, 7, 12, 13, 25, 26])
def test_a_cursor_of_another_position_is_not_trusted(first):
    map_ = SHAPES[3]
    memory, origin = map_.memory()
    cursor = np.array([5, 2, 0], np.int64)
    out = np.zeros(30, np.uint8)
    call(pack.pack_range, map_, map_.size, map_.extent, memory.ctypes.data + origin, first, 30, out, cursor)
    np.testing.assert_array_equal(out, memory[origin + map_.stream_offsets][first : first + 30])
    assert cursor[0] == first + 30


def test_numpy_columns():
    matrix = np.arange(12.0).reshape(3, 4)
    out = np.zeros(3)
    column = Typemap(np.array([[0, 8], [32, 8], [64, 8]]), 96, 1)
    call(pack.pack, column, 96, matrix[:, 1:].ctypes.data, 1, out)
    assert out.tolist() == [1.0, 5.0, 9.0]
