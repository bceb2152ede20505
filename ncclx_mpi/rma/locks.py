"""Locks of windows: one word for each rank of a window, in that rank's part of the arena.

A word holds 0 when it is free, the number of shared holders, or minus one minus the world rank of its exclusive holder. It is
changed by single atomic operations. Whoever waits for it polls, so that a holder that dies blocks nobody: the wait ends with
its death.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.p2p.engine import Engine
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


def acquire(engine: Engine, words: Sequence[int], exclusive: bool, what: str) -> None:
    """Take the locks at all addresses of `words`, or wait: holding some while waiting for others could block all ranks.

    Raises
    ------
    Exception
        A rank died, or the deadline passed; no lock is held then.
    """
    is_taken = False
    take, give = entry(try_lock), entry(unlock)

    def attempt() -> bool:
        nonlocal is_taken
        if is_taken:
            return True
        for index, word in enumerate(words):
            if not take(word, exclusive, engine.rank):
                for held in words[:index]:
                    give(held, exclusive)
                return False
        is_taken = True
        return True

    try:
        engine.idle_wait(attempt, what)
    except BaseException:
        if is_taken:
            release(words, exclusive)
        raise


def release(words: Sequence[int], exclusive: bool) -> None:
    """Give the locks at all addresses of `words` back."""
    give = entry(unlock)
    for word in words:
        give(word, exclusive)
