"""Messages whose memory no CPU can read: what the owner of the memory (:mod:`ncclx_mpi.device.messages`) asks of the engine.

Such a message is announced as an *offer*: the arena holds a description of the array instead of a copy. A receive into such memory
*asks*, when an announced message meets it, and waits for the answer::

    offer meets a receive that asks         the owner copies the array itself, then `settle`: the sender is told that all is read
    offer meets any other receive           CTS: the sender's owner fills a window, chunk by chunk, as the pipe takes them
    any announced message meets one that    `land`: as usual, into memory of the owner, or through a window of it that the
    asks, and cannot be copied              owner empties again

    window of w bytes at `address`, byte b of the message at b % w:

      send     |  in the pipe  |  there, not yet sent  |  being fetched   |           `moved` = bytes fetched so far
      receive  |  taken out    |  there                |  free            |           `moved` = bytes taken out so far

=============  =====================  ====================  ====================================================
word           written by             read by               order
=============  =====================  ====================  ====================================================
``landing``    engine, then `land`    the owner, by `look`  the engine's lock
``moved``      the owner, by `pass_on` engine               the engine's lock, after the copies are complete
=============  =====================  ====================  ====================================================

Matching knows nothing of all this: an offer is an announced message, with the bytes of the array as its length.
"""

from __future__ import annotations

from ncclx_mpi.p2p.arrivals import hand_over
from ncclx_mpi.p2p.layout import (
    AS_POSTED,
    ASKED,
    ASKING,
    COMM,
    COMPLETE,
    PENDING,
    REQUEST,
    STANDARD,
)
from ncclx_mpi.p2p.matching import complete, new_request
from ncclx_mpi.p2p.progress import lock, progress, unlock
from ncclx_mpi.p2p.rendezvous import begin_receive, peer_of, send_ats, send_or_queue
from ncclx_mpi.p2p.requests import begin_landing, fill_send, new_matched
from numba_kernels.atomics import load64, load_acquire, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.rows import NamedTuple
from transports.messages import ERR_OTHER, ON_DEVICE, RTS
from transports.shm.bulk import break_off
from transports.shm.lane import SHM


class Look(NamedTuple):
    """How a request is.

    Attributes
    ----------
    is_complete, asks, is_granted
        Whether it is complete; a receive that asks; a send that has been granted a pipe.
    error
        Class of the error that it is going to end with, or has ended with; 0 for none.
    source, nbytes, is_offer, description
        Of a receive that asks: world rank of the sender, bytes of the message, whether it is an offer, and where the arena
        describes it.
    passed
        Bytes that have gone from, or come to, memory of this process.
    """

    is_complete: int
    asks: int
    is_granted: int
    error: int
    source: int
    nbytes: int
    is_offer: int
    description: int
    passed: int


LOOK = words("LookWords", " ".join(Look._fields))


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def start_offer(comm, offset, description, nbytes, dest, tag):  # type: ignore[no-untyped-def]
    """Announce `nbytes` bytes of an array that is described at `description`, in the arena. Returns the request."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    request = new_request(engine)
    fill_send(comm, request, offset, 0, nbytes, dest, tag, STANDARD)
    store64(request + REQUEST.action, RTS)
    store64(request + REQUEST.second, description - load64(engine + SHM.arena))
    store64(request + REQUEST.third, ON_DEVICE)
    store64(request + REQUEST.window, 1)
    send_or_queue(engine, peer_of(engine, load64(request + REQUEST.peer)), request)
    unlock(engine)
    return request


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def start_asking(comm, offset, address, nbytes, source, tag):  # type: ignore[no-untyped-def]
    """Post a receive of up to `nbytes` bytes that asks; at `address` there is room for any message that comes unannounced."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    receive = new_request(engine)
    store64(receive + REQUEST.landing, ASKING)
    begin_landing(comm, receive, offset, address, nbytes, source, tag)
    unlock(engine)
    return receive


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def ask_matched(comm, message, address, nbytes):  # type: ignore[no-untyped-def]
    """As :func:`start_asking`, for a message that was taken out of matching."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    receive = new_matched(comm, 0, message, address, nbytes)
    store64(receive + REQUEST.landing, ASKING)
    hand_over(engine, message, receive)
    unlock(engine)
    return receive


@kernel("int64(int64, int64, int64)", is_entry=True)
def look(engine, request, seen):  # type: ignore[no-untyped-def]
    """Make progress, then write how a request is to the words at `seen`. Returns 0 while it only waits, 1 if there is something to do."""
    if load_acquire(request + REQUEST.state) == PENDING:
        progress(engine)
    lock(engine)
    store64(seen + LOOK.is_complete, 1 if load_acquire(request + REQUEST.state) == COMPLETE else 0)
    store64(seen + LOOK.asks, 1 if load64(request + REQUEST.landing) == ASKED else 0)
    store64(seen + LOOK.is_granted, load64(request + REQUEST.granted))
    store64(seen + LOOK.error, load64(request + REQUEST.error))
    store64(seen + LOOK.source, load64(request + REQUEST.peer))
    store64(seen + LOOK.nbytes, load64(request + REQUEST.message_bytes))
    store64(seen + LOOK.is_offer, 1 if load64(request + REQUEST.third) == ON_DEVICE else 0)
    store64(seen + LOOK.description, load64(engine + SHM.arena) + load64(request + REQUEST.second))
    store64(seen + LOOK.passed, load64(request + REQUEST.passed))
    unlock(engine)
    return 1 if load64(seen + LOOK.is_complete) | load64(seen + LOOK.asks) | load64(seen + LOOK.is_granted) != 0 else 0


@kernel("void(int64, int64)", is_entry=True)
def settle(engine, receive):  # type: ignore[no-untyped-def]
    """A receive that asks has what it wants of its message: it is complete, and the sender is told so."""
    lock(engine)
    send_ats(engine, receive)
    store64(receive + REQUEST.landing, AS_POSTED)
    complete(receive, 0)
    unlock(engine)


@kernel("void(int64, int64, int64, int64)", is_entry=True)
def land(engine, receive, address, window):  # type: ignore[no-untyped-def]
    """Let a receive that asks have its message at `address`: as a whole, or through a window of `window` bytes if that is not 0."""
    lock(engine)
    store64(receive + REQUEST.landing, AS_POSTED)
    store64(receive + REQUEST.address, address)
    store64(receive + REQUEST.window, window)
    if window != 0:
        store64(receive + REQUEST.third, ON_DEVICE)
    begin_receive(engine, receive)
    unlock(engine)


@kernel("void(int64, int64, int64, int64)", is_entry=True)
def open_window(engine, request, address, window):  # type: ignore[no-untyped-def]
    """Say where the window of a send is; nothing is in it yet."""
    lock(engine)
    store64(request + REQUEST.address, address)
    store64(request + REQUEST.window, window)
    unlock(engine)


@kernel("void(int64, int64, int64)", is_entry=True)
def pass_on(engine, request, moved):  # type: ignore[no-untyped-def]
    """Say how many bytes of the message have been put into the window of a send, or taken out of that of a receive."""
    lock(engine)
    store64(request + REQUEST.moved, moved)
    unlock(engine)


@kernel("void(int64, int64)", is_entry=True)
def fail_send(engine, request):  # type: ignore[no-untyped-def]
    """Give up a send that has been granted a pipe; the receiver gets an error."""
    lock(engine)
    if load64(request + REQUEST.state) == PENDING and load64(request + REQUEST.granted) != 0:
        break_off(request)
        store64(request + REQUEST.error, ERR_OTHER)
    unlock(engine)


@kernel("int64(int64)", is_entry=True)
def is_set(word):  # type: ignore[no-untyped-def]
    """Whether a word that a stream writes is not 0; what it wrote before can be read then."""
    return 1 if load_acquire(word) != 0 else 0
