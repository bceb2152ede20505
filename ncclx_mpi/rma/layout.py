"""A window of this process as compiled code sees it: which epochs are open, and behind that what it reaches at each target."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence

from ncclx_mpi.p2p.layout import WATCHED
from numba_kernels.layout import WORD, words, zeroed
from transports.shm.heap import SPARE_BYTES

WINDOW = words(
    "Window",
    # `comm`: its native communicator; `size`: ranks, 0 once none can be accessed any more; `fenced`, `all`: whether Fence and Lock_all have
    # opened access to all; `held`: how many locks of single targets this rank has; `far`: how many targets share no memory with it;
    # `replace`, `no_op`: tables of the two operations that are no reductions
    "comm size fenced all held far replace no_op "
    # epochs among some ranks (fast_epochs.py). `arena`: where the memory of this node begins; `counters`: this rank's own, 0 before the
    # first epoch; of the access epoch (Start) and of the exposure epoch (Post): whether it is open; addresses of the ranks that take
    # part, how many they are, and how many of them are far and not yet done with
    "arena counters started exposed access access_count access_far exposure exposure_count exposure_far "
    # of a window into which the network itself combines words (combining.py), else 0: tables of reduction functions, each followed by the
    # network's number of what it does; a bit for each type number of elements that are such words
    "operations word_types |",
)

assert (WINDOW.access_count, WINDOW.access_far) == (WINDOW.access + WORD, WINDOW.access + 2 * WORD)
assert (WINDOW.exposure_count, WINDOW.exposure_far) == (WINDOW.exposure + WORD, WINDOW.exposure + 2 * WORD)

TARGET = words(
    "Target",
    # `kind`: how it is reached; `base`, `nbytes`, `unit`: where its memory is, for MAPPED in this process and for PRIVATE in its own, how
    # much, and what displacements count; `lock`, `guard`: addresses of its two words (window.py); `held`: the lock that this rank has;
    # `started`: 1 between Start and Complete; `far`: what this rank knows of one that it has to ask (FAR_TARGET); `counters`: address of
    # those that a near one has made for epochs, 0 as long as that is not known; `network`: how the network combines words into it (NETWORK),
    # 0 if it does not
    "kind base nbytes unit lock guard held started | far counters network |",
)

FAR_TARGET = words(
    "FarTarget",
    # `rank`; `changes`, `confirmed`: how many requests without an answer have gone there, and how many of them are known to be done;
    # `fetches`: how many answers Python waits for; `tags`: how many answers compiled code has asked for;
    # `word`, `asked`: in a call that has asked several targets for a word, the receive of it, and what it confirms;
    # `handle`, `base`, `get`: where the network itself reaches its memory (else 0), by what, from which address on, and by which function
    "rank changes confirmed fetches tags word asked handle base get |",
)

NETWORK = words(
    "Network",
    # `base`: where the memory is in its own process; `handle`: what the network knows it by, 0 as long as that is not known; `peer`: what
    # leads to it; `combine`, `get`: functions of the transport
    "base handle peer combine get |",
)

WORD_OPERATIONS = 6
"""Pairs of words at ``WINDOW.operations``."""

SERVED_WINDOW = words(
    "ServedWindow",
    f"watched*{WATCHED.total // WORD} "
    # `comm`: its native communicator; `base`, `nbytes`: this rank's memory, 0 where only Python knows where it is; `lock`, `guard`:
    # addresses of its two words; `functions`: table of compiled reductions by their number; `is_open`: whether compiled code may serve at
    # all; `waiting`: how many origins wait for the lock; `thread`: the thread that serves; `by_thread`: how many requests compiled code
    # has served in it
    "comm base nbytes lock guard functions is_open waiting thread by_thread |",
)
"""The target's side of a window that far ranks access. Behind it, ORIGIN_WORDS rows of a word for each origin."""

KEPT, SERVED, GRANTED, FAILURE = range(4)
"""For each origin: what :data:`ncclx_mpi.p2p.layout.WATCHED` counts; the lock that it was given (FREE, SHARED, EXCLUSIVE); the class of the
error that it is to be told of with its next word, 0 for none."""
ORIGIN_WORDS = 4

CONTROL = words("WindowControl", "lock | guard | counters |")
assert CONTROL.total <= SPARE_BYTES
"""The words that each rank keeps for a window in its part of the arena; `counters`: where in it those of its epochs are, once they are."""
ROW = words("WindowRow", "error is_mapped where size unit control pid regions token token_at network")
"""What ranks tell each other of their parts when they make a window; ``network``: whether the network itself may combine words into it."""

GENERAL, MAPPED, PRIVATE, ASKED = 0, 1, 2, 3
"""``TARGET.kind``: by Python; in this process; in another one that is known to be the target's, from and to which the kernel copies; by
requests."""
FREE, SHARED, EXCLUSIVE = 0, 1, 2
"""``TARGET.held``."""
CLOSED, OPEN, CHANGING = 0, 1, 2
"""``WINDOW.started``, ``WINDOW.exposed``; the last one while a thread waits in Start or in Wait."""

_ALL, _HELD, _FAR = WINDOW.all // WORD, WINDOW.held // WORD, WINDOW.far // WORD
_STARTED, _EXPOSED = WINDOW.started // WORD, WINDOW.exposed // WORD
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
        self._words, self.address = zeroed(WINDOW.total + size * (TARGET.total + 2 * WORD))  # with the ranks of two epochs
        self._size = size
        replace, no_op = not_reductions
        _HEADER.pack_into(self._words, 0, comm, size, 0, 0, 0, 0, replace, no_op)

    def set_operations(self, tables: Mapping[int, int], types: Iterable[int]) -> None:
        """Have compiled code let the network combine words: what each table of functions is to it, and which type numbers are words."""
        assert len(tables) == WORD_OPERATIONS
        self._operations = array("q", [word for pair in tables.items() for word in pair])
        self.set("operations", self._operations.buffer_info()[0])
        self.set("word_types", sum(1 << number for number in types))

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

    @property
    def are_in_epochs(self) -> bool:
        """Whether this rank is between Start and Complete, or between Post and Wait."""
        return bool(self._words[_STARTED] or self._words[_EXPOSED])

    @property
    def reach_far(self) -> bool:
        """Whether some targets share no memory with this rank."""
        return bool(self._words[_FAR])

    def members(self, epoch: str) -> list[int]:
        """The ranks that take part in the epoch ``"access"``, or ``"exposure"``."""
        first = (self.get(epoch) - self.address) // WORD
        return self._words[first : first + self.get(f"{epoch}_count")].tolist()

    def set_members(self, epoch: str, ranks: Sequence[int], far: int) -> None:
        """Note the ranks that take part in the epoch ``"access"``, or ``"exposure"``, and how many of them are far."""
        first = (self.get(epoch) - self.address) // WORD
        self._words[first : first + len(ranks)] = array("q", ranks)
        self.set(f"{epoch}_count", len(ranks))
        self.set(f"{epoch}_far", far)

    def target(self, rank: int) -> int:
        """Address of the :data:`TARGET` that a rank is."""
        return self.address + WORD * self._target(rank, "kind")

    def _target(self, rank: int, field: str) -> int:
        offset: int = WINDOW.total + rank * TARGET.total + getattr(TARGET, field)
        return offset // WORD


class ServedWords:
    """The words of the target's side of one window, for as many origins as its communicator has ranks.

    Attributes
    ----------
    address
        Where they are, as long as this object lives.
    """

    def __init__(self, size: int) -> None:
        self._words, self.address = zeroed(SERVED_WINDOW.total + ORIGIN_WORDS * size * WORD)
        self._size = size

    def get(self, field: str) -> int:
        """A word of :data:`SERVED_WINDOW`."""
        value: int = self._words[getattr(SERVED_WINDOW, field) // WORD]
        return value

    def set(self, field: str, value: int) -> None:
        """Write a word of :data:`SERVED_WINDOW`."""
        self._words[getattr(SERVED_WINDOW, field) // WORD] = value

    def fill(self, first: str, *values: int) -> None:
        """Write some words, from a field on."""
        start = getattr(SERVED_WINDOW, first) // WORD
        for at, value in enumerate(values, start):
            self._words[at] = value

    def row(self, number: int) -> int:
        """Address of the first word of a row of words for each origin."""
        return self.address + WORD * self._at(number, 0)

    def of(self, number: int, origin: int) -> int:
        """A word of an origin."""
        return self._words[self._at(number, origin)]

    def set_of(self, number: int, origin: int, value: int) -> None:
        """Write a word of an origin."""
        self._words[self._at(number, origin)] = value

    def _at(self, number: int, origin: int) -> int:
        offset: int = SERVED_WINDOW.total // WORD
        return offset + number * self._size + origin
