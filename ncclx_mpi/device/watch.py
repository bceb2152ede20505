"""The words by which streams of several processes follow each other, and the watch that lets none of them wait for ever.

::

    arena:   | of each rank: failed | ring of its last calls |          written by hosts
             | lane 0 | lane 1 | ...                         |          pinned; written and awaited by streams

    lane:    | executor 0: ready of every rank | done of every rank | executor 1: ... |

Calls outside of graphs share lane 0; each call that is captured into a graph has a lane of its own. A word is 0 or 1: who waits for it
sets it back to 0 behind the wait, so that the same operations can run any number of times, as they do when a graph is replayed. Its
writer writes it again only after it has seen, through words of the other kind, that this was done.

Each rank also notes its calls, in the order in which they are made. Whoever makes a call, and the watch, compare what others have noted.

====================  =================  ==============================  ============================================================
word                  written by         awaited by                      order and meaning
====================  =================  ==============================  ============================================================
``ready[e][r]``       stream of r        stream of executor e            stream order, system fence: what r gives is in its heap
``done[e][r]``        stream of e        stream of r                     stream order, system fence: what r gets is in its heap
both of them          who waits          nobody                          0 behind the wait; its writer writes after it has seen more
both of them          watch of the       stream that waits               :data:`POISON`, again and again, once something is wrong
                      rank that waits
``CALL.number``       its rank           all ranks and watches           -1 while the call is written, released behind it
``BOARD.failed``      its rank           all ranks and watches           release: it can take part in nothing more
``WATCH.error``       watch or caller    its rank                        compare-exchange from 0: the first thing that went wrong
``WATCH.left``        watch or caller    its rank                        release: 1 + a rank that has left the job in order
``WATCH.stop``        its rank           watch                           release: no word is looked at any more
====================  =================  ==============================  ============================================================

The watch is a thread in compiled code: it never needs the GIL, whatever the program waits in.

A rank that has left the job in order had waited for its calls, in which all ranks take part. So what others still wait for then either
is there, if not yet in their words, or never comes: their waits are ended, and that is an error for those only who have made a call that
it has not, or make one afterwards.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import threading
from collections.abc import Sequence

import numpy as np

from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.progress import usleep
from numba_kernels.atomics import compare_exchange, load64, load_acquire, store64, store_release
from numba_kernels.cuda.symmetric import RANKS
from numba_kernels.jit import entry as _entry
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words
from numba_kernels.rows import NamedTuple
from transports.shm.layout import CONTROL, DEAD, FINALIZED, HEADER

entry = functools.cache(_entry)

LANES = 4096
"""Lanes of a communicator: one for calls outside of graphs, the others for captured ones."""
POISON = 1 << 62
"""Ends every wait for a word to be at least 1."""
DIED, ABORTED, GAVE_UP, DIFFERS, LEFT = 1, 2, 3, 4, 5
"""What can be wrong."""

CALL = words("StreamCall", "number what nbytes spare")
DEPTH = 64
"""Calls that a rank's ring shows. What runs further ahead is not compared."""
BOARD = words("StreamBoard", f"failed | ring*{DEPTH * CALL.total // WORD}")
WATCH = words(
    "Watch",
    f"stop | error left | number rank size executors mine board lanes used abort | checked*{RANKS} control*{RANKS} failed*{RANKS}",
)
"""What the watch of a rank knows. ``mine``: which executor the rank is, -1 for none. ``number``: of its last call."""

_PAGE = 4096
_CODE_BITS, _RANK_BITS = 8, 8
_LOOKS_APART_US, _POISONS_APART_US = 20_000, 1_000


class Call(NamedTuple):
    """What ranks must agree on in a call.

    Attributes
    ----------
    kind, root
        The collective, as the host numbers them, and its root.
    nbytes
        What all ranks give alike.
    digest
        Of operation and element type, 32 bits.
    is_captured
        Whether it goes into a graph.
    """

    kind: int
    root: int = 0
    nbytes: int = 0
    digest: int = 0
    is_captured: bool = False

    @property
    def what(self) -> int:
        """All but the bytes, in one word."""
        return self.kind | self.root << 8 | int(self.is_captured) << 16 | self.digest << 24

    @classmethod
    def read(cls, what: int, nbytes: int) -> Call:
        """The call that two words of a ring stand for."""
        return cls(what & 0xFF, what >> 8 & 0xFF, nbytes, what >> 24, bool(what >> 16 & 1))


class Wrong(NamedTuple):
    """What went wrong first: one of :data:`DIED` to :data:`LEFT`, the rank that it is about, and the call."""

    code: int
    rank: int
    number: int


def board_bytes(size: int) -> int:
    """Bytes of what hosts write, in front of the lanes."""
    return -(-size * int(BOARD.total) // _PAGE) * _PAGE


def lane_bytes(size: int, executors: int) -> int:
    """Bytes of a lane."""
    return 2 * executors * size * WORD


@kernel("int64(int64, int64, int64)", is_entry=True)
def _call_at(watch, rank, number):  # type: ignore[no-untyped-def]
    """Where `rank` notes call `number`."""
    return load64(watch + WATCH.board) + rank * BOARD.total + BOARD.ring + number % DEPTH * CALL.total


@kernel("void(int64, int64, int64, int64)")
def _fail(watch, code, rank, number):  # type: ignore[no-untyped-def]
    """Note what is wrong, unless something is already."""
    compare_exchange(watch + WATCH.error, 0, code | rank << _CODE_BITS | number << (_CODE_BITS + _RANK_BITS))


@kernel("int64(int64, int64, int64)")
def _differs(watch, other, number):  # type: ignore[no-untyped-def]
    """Whether rank `other` has noted something else than this rank as call `number`; 0 if it cannot be told (any more)."""
    mine, theirs = _call_at(watch, load64(watch + WATCH.rank), number), _call_at(watch, other, number)
    differs = load_acquire(mine + CALL.what) != load_acquire(theirs + CALL.what)
    differs |= load_acquire(mine + CALL.nbytes) != load_acquire(theirs + CALL.nbytes)
    is_there = load_acquire(mine + CALL.number) == number and load_acquire(theirs + CALL.number) == number
    return 1 if differs and is_there else 0


@kernel("void(int64, int64)")
def _compare(watch, other):  # type: ignore[no-untyped-def]
    """Compare all calls that both ranks have made since this was last done."""
    place, last = watch + WATCH.checked + other * WORD, load_acquire(watch + WATCH.number)
    number = load64(place) + 1
    while number <= last and load_acquire(_call_at(watch, other, number) + CALL.number) >= number:
        if load_acquire(_call_at(watch, other, number) + CALL.number) == number and _differs(watch, other, number) != 0:
            _fail(watch, DIFFERS, other, number)
        number += 1
    store64(place, number - 1)


@kernel("void(int64, int64)")
def _note_left(watch, other):  # type: ignore[no-untyped-def]
    """Note that rank `other` has left the job. What it has not called before, this rank waits for in vain: that is an error."""
    store_release(watch + WATCH.left, 1 + other)
    last = load_acquire(watch + WATCH.number)
    if last > 0 and load_acquire(_call_at(watch, other, last) + CALL.number) < last:
        _fail(watch, LEFT, other, last)


@kernel("int64(int64)", is_entry=True, nogil=False)
def look(watch):  # type: ignore[no-untyped-def]
    """Look for what is wrong: 0, or the first thing that was, for :func:`read_error`."""
    if load64(load64(watch + WATCH.abort)) != 0:
        _fail(watch, ABORTED, 0, 0)
    for other in range(load64(watch + WATCH.size)):
        state = load_acquire(load64(watch + WATCH.control + other * WORD))
        if state == DEAD:
            _fail(watch, DIED, other, 0)
        if load_acquire(load64(watch + WATCH.failed + other * WORD)) != 0:
            _fail(watch, GAVE_UP, other, 0)
        if other != load64(watch + WATCH.rank):
            _compare(watch, other)
        if state == FINALIZED:
            _note_left(watch, other)
    return load_acquire(watch + WATCH.error)


@kernel("int64(int64, int64, int64)", is_entry=True, nogil=False)
def note(watch, what, nbytes):  # type: ignore[no-untyped-def]
    """Note the next call of this rank, and :func:`look`."""
    number = load64(watch + WATCH.number) + 1
    call = _call_at(watch, load64(watch + WATCH.rank), number)
    store_release(call + CALL.number, -1)
    store_release(call + CALL.what, what)
    store_release(call + CALL.nbytes, nbytes)
    store_release(call + CALL.number, number)
    store_release(watch + WATCH.number, number)
    error, left = look(watch), load_acquire(watch + WATCH.left)
    return LEFT | (left - 1) << _CODE_BITS if error == 0 and left != 0 else error


@kernel("void(int64)", is_entry=True)
def give_up(watch):  # type: ignore[no-untyped-def]
    """Tell all ranks that this one takes part in nothing more."""
    store_release(load64(watch + WATCH.failed + load64(watch + WATCH.rank) * WORD), 1)


@kernel("void(int64)")
def _poison(watch):  # type: ignore[no-untyped-def]
    """End every wait in this rank's streams. Waits set their words back, so that the next one has to be ended again."""
    size, rank, mine = load64(watch + WATCH.size), load64(watch + WATCH.rank), load64(watch + WATCH.mine)
    words = load64(watch + WATCH.lanes)
    for _ in range(load_acquire(watch + WATCH.used)):
        for executor in range(load64(watch + WATCH.executors)):
            for other in range(size):
                if executor == mine and other != rank:
                    store_release(words + other * WORD, POISON)
            words += size * WORD
            if executor != mine:
                store_release(words + rank * WORD, POISON)
            words += size * WORD


@kernel("void(int64)", is_entry=True)
def _keep_watch(watch):  # type: ignore[no-untyped-def]
    while load_acquire(watch + WATCH.stop) == 0:
        if look(watch) != 0 or load_acquire(watch + WATCH.left) != 0:
            _poison(watch)
            usleep(_POISONS_APART_US)
        else:
            usleep(_LOOKS_APART_US)


class Watch:
    """The watch of one rank over a communicator, and its place on the board.

    Parameters
    ----------
    comm
        The communicator.
    board
        Address of the board, which the lanes follow; of :func:`board_bytes` and :data:`LANES` times :func:`lane_bytes`, zeroed.
    executors
        The ranks that execute, in order.
    """

    def __init__(self, comm: NativeComm, board: int, executors: Sequence[int]) -> None:
        arena = comm.engine.arena
        self._block = np.zeros(WATCH.total // WORD, dtype=np.int64)
        self._address = self._block.ctypes.data
        self._note = entry(note)
        self.lanes = board + board_bytes(comm.size)
        for field, value in (
            ("rank", comm.rank),
            ("size", comm.size),
            ("executors", len(executors)),
            ("mine", executors.index(comm.rank) if comm.rank in executors else -1),
            ("board", board),
            ("lanes", self.lanes),
            ("used", 1),
            ("abort", arena.base + HEADER.abort),
        ):
            self._block[getattr(WATCH, field) // WORD] = value
        for rank, world in enumerate(comm.world_ranks):
            self._block[WATCH.control // WORD + rank] = arena.base + arena.plan.control(comm.engine.local(world)) + CONTROL.state
            self._block[WATCH.failed // WORD + rank] = board + rank * BOARD.total + BOARD.failed
        self._thread = threading.Thread(target=entry(_keep_watch), args=(self._address,), name="watch over streams", daemon=True)
        self._thread.start()
        _running.add(self)

    def note(self, what: int, nbytes: int) -> Wrong | None:
        """Note the next call of this rank, by its words; what is wrong, if anything is."""
        error = self._note(self._address, what, nbytes)
        return _read(error) if error else None

    def look(self) -> Wrong | None:
        """What is wrong, if anything is."""
        return _read(entry(look)(self._address))

    def calls(self, wrong: Wrong) -> tuple[Call, Call]:
        """What this rank and another one have noted as the call in which they differ."""
        found = []
        for rank in (int(self._block[WATCH.rank // WORD]), wrong.rank):
            at = entry(_call_at)(self._address, rank, wrong.number)
            found.append(Call.read(*(ctypes.c_int64.from_address(at + word).value for word in (CALL.what, CALL.nbytes))))
        return found[0], found[1]

    def use_lane(self) -> int:
        """Number of a lane that nobody has used yet, :data:`LANES` or more if there is none left."""
        lane = int(self._block[WATCH.used // WORD])
        if lane < LANES:
            self._block[WATCH.used // WORD] = lane + 1
        return lane

    def give_up(self) -> None:
        """Tell all ranks that this one takes part in nothing more."""
        entry(give_up)(self._address)

    def stop(self) -> None:
        """End the watch: the board is looked at no more."""
        self._block[WATCH.stop // WORD] = 1
        self._thread.join()
        _running.discard(self)


def _read(error: int) -> Wrong | None:
    """What an error word says."""
    if not error:
        return None
    mask = (1 << _CODE_BITS) - 1
    return Wrong(error & mask, error >> _CODE_BITS & mask, error >> (_CODE_BITS + _RANK_BITS))


_running: set[Watch] = set()


@atexit.register
def _stop_all() -> None:
    """The arena goes with the interpreter, however it ends."""
    for watch in list(_running):
        watch.stop()
