"""Who stores first values to its new memory comes before those that lock it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.rma import window as windows

ASK, STORED = 1, 2


def is_left_to_python(win: Any) -> bool:
    return win._state.window.words.get("size") == 0


class Clock:
    """Stands for the module `time`: no time passes until rank 0 has stored, which it is told to do by who waits for the time."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.is_made = self.is_asked = False

    def perf_counter(self) -> float:
        if not self.is_made:
            return 0.0
        if not self.is_asked:
            self._comm.Send(bytearray(), 0, ASK)
            self.is_asked = True
        return 1.0 if self._comm.Iprobe(0, STORED) else 0.0


@pytest.mark.ranks(2, 3, topology="machine")
@pytest.mark.parametrize("make", ["Allocate", "Allocate_shared"])
@pytest.mark.parametrize("is_for_all", [False, True], ids=["Lock", "Lock_all"])
def test_a_first_lock_waits_for_values_that_are_stored(
    comm: Any, monkeypatch: pytest.MonkeyPatch, make: str, is_for_all: bool
) -> None:
    clock = Clock(comm)
    monkeypatch.setattr(windows, "time", clock)
    win = getattr(MPI.Win, make)(8, 8, comm=comm)
    clock.is_made, found, others = True, np.zeros(1), range(1, comm.size)
    if comm.rank == 0:
        for other in others:
            comm.Recv(bytearray(), other, ASK)
        win.tomemory()[:] = np.full(1, 7.0).tobytes()
        for other in others:
            comm.Send(bytearray(), other, STORED)
    else:
        win.Lock_all() if is_for_all else win.Lock(0)
        assert clock.is_asked and not is_left_to_python(win)
        win.Get(found, 0)
        win.Unlock_all() if is_for_all else win.Unlock(0)
        comm.Recv(bytearray(), 0, STORED)
        assert found[0] == 7
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
