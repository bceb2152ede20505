"""Buffers at the edge of an unreadable page: every byte of theirs can be used, and the next one crashes."""

import ctypes
import gc
import mmap
import os
import signal

import numpy as np
import pytest

from ncclx_mpi.testing.guarded import guarded, guarded_copy

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
