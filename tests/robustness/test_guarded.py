"""Buffers at the edge of an unreadable page: every byte of theirs can be used, and the next one crashes."""

import ctypes
import gc
import mmap
import os
import signal

import numpy as np
import pytest

from ncclx_mpi.testing.guarded import guarded, guarded_copy
from ncclx_mpi.testing.guarded_arrays import guarded_arrays

SIZES = (0, 1, 24, mmap.PAGESIZE, mmap.PAGESIZE + 8)


def signal_of(action: object, *args: int) -> int:
    """The signal that ends a child that calls `action`; 0 if it returns."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        action(*args)  # type: ignore[operator]
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("nbytes", SIZES)
def test_the_next_byte_crashes(nbytes: int, behind: bool) -> None:
    buffer = guarded(nbytes, behind=behind)
    buffer[:] = 7
    assert buffer.flags.writeable and buffer.nbytes == nbytes and buffer.sum() == 7 * nbytes
    address = buffer.ctypes.data
    outside = address + nbytes if behind else address - 1
    assert signal_of(ctypes.string_at, outside, 1) == signal.SIGSEGV
    assert signal_of(ctypes.memset, outside, 0, 1) == signal.SIGSEGV


def test_a_copy_and_views_of_items() -> None:
    values = np.arange(5, dtype=np.float64)
    for behind in (True, False):
        copied = guarded_copy(values, behind=behind).view(np.float64)
        assert copied.flags.aligned
        np.testing.assert_array_equal(copied, values)
    assert guarded_copy(b"").nbytes == 0


def test_pages_go_with_the_last_view() -> None:
    def mapped() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0])

    gc.collect()
    before = mapped()
    view = guarded(1 << 24)[5:9]
    view[:] = 1
    assert mapped() >= before + (1 << 24) // mmap.PAGESIZE
    del view
    assert mapped() < before + (1 << 24) // mmap.PAGESIZE


def test_every_array_of_a_test_lies_beside_a_page_that_nobody_can_touch() -> None:
    """Three of four end there, the fourth begins there; what was made outlives the test."""
    with guarded_arrays():
        # Made one after the other, and filled then: to fill one makes others, and every fourth would be none of these.
        arrays = [np.empty(size) for size in (0, 1, 3, 600, 5_000) for _ in range(8)]
        for array in arrays:
            array.fill(array.size % 7.0)
        grown = np.concatenate([np.arange(5_000.0), *arrays])
    offsets = [
        (array.ctypes.data % mmap.PAGESIZE, (array.ctypes.data + array.nbytes) % mmap.PAGESIZE) for array in arrays if array.size
    ]
    assert [end for begin, end in offsets if begin].count(0) == len([begin for begin, _ in offsets if begin]) >= len(offsets) / 2
    assert [begin for begin, _ in offsets].count(0) >= len(offsets) / 5
    assert all((array == array.size % 7).all() for array in arrays) and grown[4_999] == 4_999.0


@pytest.mark.parametrize("index", range(4))
def test_the_byte_beside_an_array_crashes(index: int) -> None:
    def touch() -> None:
        with guarded_arrays():
            array = [np.zeros(3) for _ in range(4)][index]
            first = array.ctypes.data
            ctypes.c_byte.from_address(first - 1 if first % mmap.PAGESIZE == 0 else first + array.nbytes)

    def read() -> None:
        with guarded_arrays():
            arrays = [np.zeros(3) for _ in range(4)]
            first = arrays[index].ctypes.data
            _ = ctypes.c_byte.from_address(first - 1 if first % mmap.PAGESIZE == 0 else first + arrays[index].nbytes).value

    assert signal_of(touch) == 0
    assert signal_of(read) == signal.SIGSEGV


@pytest.mark.parametrize("nbytes", [100, 1 << 16, 16 << 20])
def test_use_after_free_crashes(nbytes: int) -> None:
    """Whether the pages are kept for another array or given back."""

    def read() -> None:
        with guarded_arrays():
            array = np.ones(nbytes, np.uint8)
            first = array.ctypes.data
            del array
            _ = ctypes.c_byte.from_address(first).value

    assert signal_of(read) == signal.SIGSEGV


def test_pages_of_an_array_that_is_freed_become_another_array() -> None:
    """Zeros are zeros there, and an array of another size that needs as many pages has a guard at one of its edges, too."""
    seen = []
    with guarded_arrays():
        for number in range(100):
            zeros = np.zeros(5_000 - number % 8)
            assert not zeros.any()
            zeros[:] = 7.0
            first = zeros.ctypes.data
            assert 0 in (first % mmap.PAGESIZE, (first + zeros.nbytes) % mmap.PAGESIZE)
            seen.append(first // mmap.PAGESIZE)
            del zeros
    assert len(set(seen)) < len(seen)
