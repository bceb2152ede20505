"""Shared words, copies and word layouts."""

import ctypes
import mmap
import threading

import numpy as np
import pytest

from numba_kernels import atomics, jit, memory
from numba_kernels.layout import words


@jit.kernel("int64(int64, int64)", is_entry=True)
def count_up(address, times):
    for _ in range(times):
        atomics.fetch_add(address, 1)
    return atomics.load_acquire(address)


@jit.kernel("int64(int64)", is_entry=True)
def swap_twice(address):
    first = atomics.compare_exchange(address, 5, 6)
    second = atomics.compare_exchange(address, 5, 7)
    return first * 100 + second * 10 + atomics.exchange(address, 9)


@jit.kernel("int64(int64)", is_entry=True)
def narrow_words(address):
    atomics.store32(address + 1, -2)
    atomics.store8(address + 7, -3)
    return atomics.load32(address + 1) * 100 + atomics.load8(address + 7)


@jit.kernel("int64()", is_entry=True)
def elapsed():
    before = atomics.ticks()
    atomics.pause()
    atomics.full_fence()
    return atomics.ticks() - before


@jit.kernel("void(int64, int64, int64, int64)", is_entry=True)
def shared_copy(target, source, nbytes, streamed):
    memory.write_shared(target, source, nbytes, streamed)


@jit.kernel("void(int64, int64, int64)", is_entry=True)
def fetch(target, source, nbytes):
    memory.copy_lines(target, source, nbytes)


def test_additions_from_several_threads_all_count():
    word = np.zeros(1, np.int64)
    count = jit.entry(count_up)
    threads = [threading.Thread(target=count, args=(word.ctypes.data, 200_000)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert word[0] == 600_000


def test_exchanges_return_what_was_there():
    word = np.array([5])
    assert jit.entry(swap_twice)(word.ctypes.data) == 500 + 60 + 6
    assert word[0] == 9


def test_narrow_words_are_signed_and_need_no_alignment():
    block = np.zeros(16, np.uint8)
    assert jit.entry(narrow_words)(block.ctypes.data) == -200 - 3
    assert block.tolist() == [0, 254, 255, 255, 255, 0, 0, 253, *[0] * 8]


def test_the_counter_advances():
    assert jit.entry(elapsed)() > 0


@pytest.mark.parametrize("streamed", [0, 1])
@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1023, 1024, 1025, 1100, 5000])
def test_copies_of_any_alignment(streamed, nbytes):
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes + 64, np.uint8)
    for target_offset in (0, 1, 31, 63):
        for source_offset in (0, 1, 7):
            target = np.full(nbytes + 200, 0xA5, np.uint8)
            shift = -target.ctypes.data % 64 + target_offset
            jit.entry(shared_copy)(target.ctypes.data + shift, source.ctypes.data + source_offset, nbytes, streamed)
            np.testing.assert_array_equal(target[shift : shift + nbytes], source[source_offset:][:nbytes])
            assert (target[:shift] == 0xA5).all() and (target[shift + nbytes :] == 0xA5).all()


def ending_at_a_guard(nbytes):
    """Bytes behind which no page is, neither to read nor to write."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = -(-nbytes // mmap.PAGESIZE) + 1
    region = mmap.mmap(-1, pages * mmap.PAGESIZE)
    array = np.frombuffer(region, np.uint8)
    end = (pages - 1) * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(array.ctypes.data + end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return array[end - nbytes : end]


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 4095, 4096, 4097, 4159, 4160, 4161, 70_001])
def test_what_another_core_wrote_is_read_at_any_alignment(nbytes):
    given, taken = ending_at_a_guard(nbytes + 8), ending_at_a_guard(nbytes + 64)
    given[:] = np.random.default_rng(nbytes).integers(0, 256, len(given), np.uint8)
    for target_offset in (0, 1, 31, 63, 64):
        for source_offset in (0, 1, 7, 8):
            taken[:] = 0xA5
            jit.entry(fetch)(taken.ctypes.data + target_offset, given.ctypes.data + source_offset, nbytes)
            np.testing.assert_array_equal(taken[target_offset:][:nbytes], given[source_offset:][:nbytes])
            assert (taken[:target_offset] == 0xA5).all() and (taken[target_offset + nbytes :] == 0xA5).all()


def test_words_have_offsets_and_start_lines():
    layout = words("Layout", "first second*3 | third")
    assert layout == (0, 8, 64, 72)
    assert (layout.second, layout.third, layout.total) == (8, 64, 72)
    assert words("Tail", "more", start=layout.total).more == 72
