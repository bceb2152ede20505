"""Copies between processes by the kernel, which knows the peer by a number that may be another process's."""

from __future__ import annotations

import os

import numpy as np
import pytest

from numba_kernels.jit import entry, kernel
from numba_kernels.layout import WORD
from transports.shm.cma import read_peer, write_peer
from transports.shm.layout import ABSENT, ALIVE, CONTROL, DEAD, FINALIZED


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True)
def _move(is_write, control, remote, local, nbytes):  # type: ignore[no-untyped-def]
    return write_peer(control, remote, local, nbytes) if is_write != 0 else read_peer(control, remote, local, nbytes)


@pytest.mark.parametrize("state", [ABSENT, FINALIZED, DEAD, ALIVE])
@pytest.mark.parametrize("is_write", [False, True])
def test_only_a_rank_that_lives_is_copied_from_or_to(state: int, is_write: bool) -> None:
    """The process with the number of a rank that has ended is a stranger: this one, whose memory stays as it is."""
    control = np.zeros(CONTROL.total // WORD, np.int64)
    control[CONTROL.pid // WORD], control[CONTROL.state // WORD] = os.getpid(), state
    theirs, own = np.arange(100), np.full(100, -1)
    moved = entry(_move)(is_write, control.ctypes.data, theirs.ctypes.data, own.ctypes.data, own.nbytes)
    source, target = (own, theirs) if is_write else (theirs, own)
    assert moved == (state == ALIVE)
    assert np.array_equal(source, target) == (state == ALIVE)
