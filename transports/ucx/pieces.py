"""Pieces of large messages: what both ways of sending them have in common, with one endpoint to a peer and with several lanes."""

from __future__ import annotations

from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, allocate_or_end, fill
from transports.messages import REQUEST
from transports.ucx.layout import PIECE, STATE, TRANSFER

MOST_AHEAD = 63
"""Pieces behind one that has not passed: a bit each."""


@kernel("int64(int64, int64, int64, int64)")
def make_piece(state, request, offset, length):  # type: ignore[no-untyped-def]
    """What is known of a piece; 0 if there is no memory for it."""
    part = allocate(PIECE.total)
    if part != 0:
        _fill_in(part, state, request, offset, length)
    return part


@kernel("int64(int64, int64, int64, int64, int64)")
def make_described(state, receive, offset, length, description):  # type: ignore[no-untyped-def]
    """The same of a piece whose description has come: it is promised to the sender already."""
    part = allocate_or_end(PIECE.total)
    _fill_in(part, state, receive, offset, length)
    store64(part + PIECE.description, description)
    return part


@kernel("void(int64, int64, int64, int64, int64)")
def _fill_in(part, state, request, offset, length):  # type: ignore[no-untyped-def]
    fill(part, 0, PIECE.total)
    store64(part + PIECE.state, state)
    store64(part + PIECE.request, request)
    store64(part + PIECE.offset, offset)
    store64(part + PIECE.length, length)


@kernel("void(int64, int64)")
def let_wait(state, part):  # type: ignore[no-untyped-def]
    """A piece has no room yet: it is tried again in the next step."""
    store64(part + PIECE.next, load64(state + STATE.waiting_first))
    store64(state + STATE.waiting_first, part)


@kernel("int64(int64)")
def is_next_there(request):  # type: ignore[no-untyped-def]
    """Whether there is another piece of a message to be sent: its window has it, and it is not too far ahead of one that has not passed."""
    offset, wanted, piece = load64(request + TRANSFER.begun), load64(request + TRANSFER.wanted), load64(request + TRANSFER.piece)
    if offset >= wanted or offset - load64(request + REQUEST.passed) >= MOST_AHEAD * piece:
        return 0
    return 1 if load64(request + REQUEST.window) == 0 or min(offset + piece, wanted) <= load64(request + REQUEST.moved) else 0


@kernel("int64(int64, int64)")
def source_of(request, offset):  # type: ignore[no-untyped-def]
    """Where a piece of a message that is sent lies."""
    window = load64(request + REQUEST.window)
    return load64(request + REQUEST.address) + (offset if window == 0 else offset % window)


@kernel("int64(int64, int64, int64)")
def target_of(receive, offset, length):  # type: ignore[no-untyped-def]
    """Where a piece goes; 0 if its owner has not made room yet, -1 if the receive was given up."""
    if load64(receive + REQUEST.nbytes) == 0:
        return -1
    address, window = load64(receive + REQUEST.address), load64(receive + REQUEST.window)
    if window == 0:
        return address + offset
    return address + offset % window if offset + length <= load64(receive + REQUEST.moved) + window else 0


@kernel("int64(int64, int64, int64)")
def let_pass(request, offset, length):  # type: ignore[no-untyped-def]
    """A piece has been sent, or has come; 1 if it was the last. Of what has no window they are counted: they may come in any order."""
    passed, piece, wanted = load64(request + REQUEST.passed), load64(request + TRANSFER.piece), load64(request + TRANSFER.wanted)
    if piece == 0:
        passed += length
    else:
        early = load64(request + TRANSFER.early) | 1 << (offset - passed) // piece
        while early & 1 != 0:
            early >>= 1
            passed = min(passed + piece, wanted)
        store64(request + TRANSFER.early, early)
    store64(request + REQUEST.passed, passed)
    return 1 if passed == wanted else 0


@kernel("void(int64, int64)")
def note_done(state, request):  # type: ignore[no-untyped-def]
    """A transfer is complete: the engine is told after this look at the network."""
    store64(request + TRANSFER.next, load64(state + STATE.done_first))
    store64(state + STATE.done_first, request)
