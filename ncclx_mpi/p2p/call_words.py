"""Words in which compiled calls say more than they return: what a message was, or which requests are complete.

Each call under way has its own. A signal handler, or a finalizer, may call in the middle of another call of its thread: between what the
compiled part of that has written and what its Python part reads. So words are taken for a call and left when they were read. Those of a
call that ends by an exception are not: others are made.
"""

from __future__ import annotations

from array import array

from numba_kernels.layout import WORD, zeroed
from numba_kernels.rows import NamedTuple

COUNT = 64
"""How many, at least; most calls write three."""


class CallWords(NamedTuple):
    """Words, and their address."""

    words: array[int]
    address: int


NO_WORDS = CallWords(array("q"), 0)
"""For a call that is to say nothing."""
_spare: list[CallWords] = []


def take_words(count: int = COUNT) -> CallWords:
    """Return `count` words, or more, that are the caller's until :func:`leave_words`."""
    if count > COUNT:
        return CallWords(*zeroed(count * WORD))
    try:
        return _spare.pop()
    except IndexError:
        return CallWords(*zeroed(COUNT * WORD))


def leave_words(taken: CallWords) -> None:
    """Give words back that were read."""
    if len(taken.words) == COUNT:
        _spare.append(taken)
