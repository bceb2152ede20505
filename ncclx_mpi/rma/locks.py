"""Locks of windows: one word for each rank of a window, in that rank's part of the arena.

A word holds 0 when it is free, the number of shared holders, or minus one minus the world rank of its exclusive holder. It is
changed by single atomic operations. Whoever waits for it polls, so that a holder that dies blocks nobody: the wait ends with
its death.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ncclx_mpi.p2p.engine import Engine, NativeComm
from numba_kernels.atomics import compare_exchange, fetch_add, full_fence, load_acquire, store_release
from numba_kernels.jit import entry, kernel


@kernel("int64(int64, int64, int64)", is_entry=True)
def try_lock(word, exclusive, owner):  # type: ignore[no-untyped-def]
    """Take a lock if that is possible now; `owner` is a world rank. Returns 1 if it was taken."""
    if exclusive:
        return int(compare_exchange(word, 0, -1 - owner) == 0)
    while True:
        seen = load_acquire(word)
        if seen < 0:
            return 0
        if compare_exchange(word, seen, seen + 1) == seen:
            return 1


@kernel("void(int64, int64)", is_entry=True)
def unlock(word, exclusive):  # type: ignore[no-untyped-def]
    """Give a lock back, after everything that was done under it."""
    if exclusive:
        store_release(word, 0)
    else:
        fetch_add(word, -1)


@kernel("void()", is_entry=True)
def order_memory():  # type: ignore[no-untyped-def]
    """Order what this rank loaded and stored before ahead of what it loads and stores after."""
    full_fence()


def acquire(
    comm: NativeComm, words: Sequence[int], exclusive: bool, what: str, take_others: Callable[[], bool] | None = None
) -> None:
    """Take the locks at all addresses of `words`, or wait: holding some while waiting for others could block all ranks.

    Parameters
    ----------
    take_others
        Takes all other locks that are to be taken at the same time, or none; whether it did.

    Raises
    ------
    Exception
        A rank died, or the deadline passed; no lock is held then.
    """
    is_taken = False

    def attempt() -> bool:
        nonlocal is_taken
        if not is_taken and _take_all(comm.engine, words, exclusive):
            is_taken = take_others is None or _take_or_release(words, exclusive, take_others)
        return is_taken

    try:
        comm.engine.idle_wait(attempt, what, comm)
    except BaseException:
        if is_taken:
            release(words, exclusive)
        raise


def _take_all(engine: Engine, words: Sequence[int], exclusive: bool) -> bool:
    """Take the locks at all addresses of `words`, or none of them."""
    take = entry(try_lock)
    for index, word in enumerate(words):
        if not take(word, exclusive, engine.rank):
            release(words[:index], exclusive)
            return False
    return True


def _take_or_release(words: Sequence[int], exclusive: bool, take_others: Callable[[], bool]) -> bool:
    """Take other locks, or give those at the addresses of `words` back."""
    are_taken = False
    try:
        are_taken = take_others()
    finally:
        if not are_taken:
            release(words, exclusive)
    return are_taken


def release(words: Sequence[int], exclusive: bool) -> None:
    """Give the locks at all addresses of `words` back."""
    give = entry(unlock)
    for word in words:
        give(word, exclusive)


class Guard:
    """The lock at the address `word`, exclusive for as long as the guard is entered; errors say `what` waits for it."""

    def __init__(self, comm: NativeComm, word: int, what: str) -> None:
        self._comm = comm
        self._words = (word,)
        self._what = what

    def __enter__(self) -> None:
        acquire(self._comm, self._words, True, self._what)

    def __exit__(self, *_failure: object) -> None:
        release(self._words, True)
