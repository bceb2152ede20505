"""A window of this process as compiled code sees it: which epochs are open, and behind that what it reaches at each target."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ncclx_mpi.p2p.blocks import words_block
from numba_kernels.layout import WORD, words
from transports.shm.heap import SPARE_BYTES

WINDOW = words(
    "Window",
    # `comm`: its native communicator; `size`: ranks, 0 once none can be accessed any more; `fenced`, `all`: whether Fence and Lock_all have
    # opened access to all; `held`: how many locks of single targets this rank has; `far`: how many targets share no memory with it;
    # `replace`, `no_op`: tables of the two operations that are no reductions
    "comm size fenced all held far replace no_op |",
)

TARGET = words(
    "Target",
    # `kind`: how it is reached; `base`, `nbytes`, `unit`: where its memory is, for MAPPED in this process and for PRIVATE in its own, how
    # much, and what displacements count; `lock`, `guard`: addresses of its two words (window.py); `held`: the lock that this rank has;
    # `started`: 1 between Start and Complete
    "kind base nbytes unit lock guard held started |",
)

CONTROL = words("WindowControl", "lock | guard | end")
assert CONTROL.total <= SPARE_BYTES
"""The words that each rank keeps for a window in its part of the arena."""
ROW = words("WindowRow", "error is_mapped where size unit control pid regions token token_at")
"""What ranks tell each other of their parts when they make a window."""

GENERAL, MAPPED, PRIVATE = 0, 1, 2
"""``TARGET.kind``: by Python; in this process; in another one that is known to be the target's, from and to which the kernel copies."""
FREE, SHARED, EXCLUSIVE = 0, 1, 2
"""``TARGET.held``."""

_ALL, _HELD = WINDOW.all // WORD, WINDOW.held // WORD
_HEADER, _EPOCHS = struct.Struct("8q"), struct.Struct("4q")
assert (WINDOW.size, WINDOW.fenced, WINDOW.all, WINDOW.held) == tuple(range(WINDOW.size, WINDOW.size + 4 * WORD, WORD))


class Words:
    """The words of one window.

    Parameters
    ----------
    comm
        Address of its native communicator.
    size
        Its ranks.
    not_reductions
        Addresses of the tables of REPLACE and NO_OP, which reduce nothing.

    Attributes
    ----------
    address
        Where they are, as long as this object lives.
    """

    def __init__(self, comm: int, size: int, not_reductions: tuple[int, int]) -> None:
        self._words, self.address = words_block(WINDOW.total + size * TARGET.total)
        self._size = size
        replace, no_op = not_reductions
        _HEADER.pack_into(self._words, 0, comm, size, 0, 0, 0, 0, replace, no_op)

    def close(self) -> None:
        """Leave everything to Python from now on, which says why nothing can be accessed."""
        _EPOCHS.pack_into(self._words, WINDOW.size, 0, 0, 0, 0)

    @property
    def are_locked(self) -> bool:
        """Whether this rank has locked a target."""
        return bool(self._words[_ALL] or self._words[_HELD])

    def get(self, field: str) -> int:
        """A word of :data:`WINDOW`."""
        value: int = self._words[getattr(WINDOW, field) // WORD]
        return value

    def set(self, field: str, value: int) -> None:
        """Write a word of :data:`WINDOW`."""
        self._words[getattr(WINDOW, field) // WORD] = value

    def of(self, rank: int, field: str) -> int:
        """A word of the :data:`TARGET` that a rank is."""
        return self._words[self._target(rank, field)]

    def set_of(self, rank: int, field: str, value: int) -> None:
        """Write a word of the :data:`TARGET` that a rank is."""
        self._words[self._target(rank, field)] = value

    def set_started(self, ranks: Iterable[int], value: int) -> None:
        """Note whether this rank is between Start and Complete, for some targets."""
        for rank in ranks:
            self.set_of(rank, "started", value)

    def target(self, rank: int) -> int:
        """Address of the :data:`TARGET` that a rank is."""
        return self.address + WORD * self._target(rank, "kind")

    def _target(self, rank: int, field: str) -> int:
        offset: int = WINDOW.total + rank * TARGET.total + getattr(TARGET, field)
        return offset // WORD
