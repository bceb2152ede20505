"""Who stores first values to its new memory comes before those that lock it at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.rma import window as windows


def is_left_to_python(win: Any) -> bool:
    return win._state.window.words.get("size") == 0


@pytest.mark.ranks(2, 3, topology="machine")
def test_values_stored_right_behind_the_call_are_there(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far later here than they would be, and found in the first lock, of one rank or of all."""
    monkeypatch.setattr(windows, "_HEAD_START", 0.3)
    for make, lock, unlock in (
        (MPI.Win.Allocate, lambda win: win.Lock(0), lambda win: win.Unlock(0)),
        (MPI.Win.Allocate_shared, lambda win: win.Lock_all(), lambda win: win.Unlock_all()),
    ):
        comm.Barrier()
        win = make(8, 8, comm=comm)
        found = np.zeros(1)
        if comm.rank == 0:
            time.sleep(0.05)
            win.tomemory()[:] = np.full(1, 7.0).tobytes()
        else:
            lock(win)
            win.Get(found, 0)
            unlock(win)
            assert found[0] == 7
            assert not is_left_to_python(win)
        win.Free()


def fence(win: Any) -> None:
    win.Fence()


def epoch(win: Any) -> None:
    group = win.Get_group()
    win.Post(group)
    win.Start(group)
    win.Complete()
    win.Wait()


def own_lock(win: Any) -> None:
    win.Lock(win._state.window.comm.rank)
    win.Unlock(win._state.window.comm.rank)


@pytest.mark.ranks(2, topology="machine")
@pytest.mark.parametrize("begin", [fence, epoch, own_lock])
def test_other_epochs_wait_for_nothing(comm: Any, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Any], None]) -> None:
    monkeypatch.setattr(windows, "_HEAD_START", 1e6)
    win = MPI.Win.Allocate(8, 8, comm=comm)
    assert is_left_to_python(win)
    begin(win)
    assert not is_left_to_python(win)
    win.Free()
    MPI.Win.Allocate(8, 8, comm=comm).Free()


def test_a_window_of_one_rank_waits_for_nobody() -> None:
    win = MPI.Win.Allocate(8, 8)
    assert not is_left_to_python(win)
    win.Free()


@pytest.mark.ranks(2, topology="machine")
def test_memory_that_was_there_before_has_its_values(comm: Any) -> None:
    win = MPI.Win.Create(np.zeros(1), comm=comm)
    assert not is_left_to_python(win)
    win.Free()
