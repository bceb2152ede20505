"""Asking a far target in one compiled call: the request goes out, and the answer is waited for where there is one.

What is got where the network itself reaches the memory is not asked for, and the processor of the target has no part in it.

What each takes is what is usual: elements that lie in one piece, a message that is eager and finds room. Everything else is left to
:mod:`ncclx_mpi.rma.far`, with nothing done. Both count on the same words, and requests of both stay in order.

Cost, of n bytes: a put alpha + n beta; all others 2 alpha + n beta. The target adds nothing where it makes progress
(:mod:`ncclx_mpi.rma.arriving`).
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import give_gil
from ncclx_mpi.errors import ERR_OTHER
from ncclx_mpi.p2p.fast import GIVEN_UP, push_eager, wait_complete
from ncclx_mpi.p2p.gil import enter_gil
from ncclx_mpi.p2p.keeping import give_up_kept
from ncclx_mpi.p2p.layout import COMM, PEER, REQUEST, STANDARD
from ncclx_mpi.p2p.matching import new_request
from ncclx_mpi.p2p.progress import lock, trace_end, unlock
from ncclx_mpi.p2p.remote_memory import start_access
from ncclx_mpi.p2p.rendezvous import peer_of
from ncclx_mpi.p2p.requests import begin_landing, give_back, trace_request
from ncclx_mpi.rma.layout import FAR_TARGET, TARGET, WINDOW
from ncclx_mpi.rma.requests import FLUSH, GET, MOST_BYTES, REPLIES, REQUESTS
from ncclx_mpi.rma.requests import REQUEST as ASKING
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import allocate, copy, make_stack, release
from numba_kernels.pyobject import none_object

SLOW = -1
FIRST_TAG = 1 << 29
"""Tags of answers that compiled code asks for begin here; Python's are below."""
FAILED_AT = 1 << 32
_TAGS = FIRST_TAG - 1
_HEADER = ASKING.total + 16
"""Bytes of a request for one block, before its payload."""
_SHORT = 1024
"""Bytes of a request that is made on the stack."""

_short, _word_request = make_stack(_SHORT // 8), make_stack(_HEADER // 8)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def _fill(message, action, start, nbytes, value, element):  # type: ignore[no-untyped-def]
    """Write a request for `nbytes` bytes from `start` on; without a block if there are none."""
    store64(message + ASKING.action, action)
    store64(message + ASKING.reply, 0)
    store64(message + ASKING.nblocks, 1 if nbytes != 0 else 0)
    store64(message + ASKING.start, start)
    store64(message + ASKING.extent, 0)
    store64(message + ASKING.number, 1 if nbytes != 0 else 0)
    store64(message + ASKING.value, value)
    store64(message + ASKING.element, element)
    store64(message + ASKING.total, 0)
    store64(message + ASKING.total + 8, nbytes)


@kernel("int64(int64, int64)")
def _new_tag(far, room):  # type: ignore[no-untyped-def]
    """A tag for an answer, 0 if none is asked for."""
    if room == 0:
        return 0
    count = load64(far + FAR_TARGET.tags)
    store64(far + FAR_TARGET.tags, count + 1)
    return FIRST_TAG + (count & _TAGS)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _send(window, far, message, nbytes, landing, room):  # type: ignore[no-untyped-def]
    """Send a request, and receive `room` bytes of an answer, to `landing` or to the receive's own word: SLOW, 0, or the receive."""
    comm, rank = load64(window + WINDOW.comm), load64(far + FAR_TARGET.rank)
    engine, tag, receive = load64(comm + COMM.engine), _new_tag(far, room), 0
    peer = peer_of(engine, load64(load64(comm + COMM.world) + 8 * rank))
    store64(message + ASKING.reply, tag)
    lock(engine)
    if push_eager(engine, peer, load64(comm + COMM.context) + REQUESTS, message, nbytes, 0, STANDARD) == 0:
        receive = SLOW
    elif room != 0:
        receive = new_request(engine)
        begin_landing(comm, receive, REPLIES, landing if landing != 0 else receive + REQUEST.answer, room, rank, tag)
    unlock(engine)
    return receive


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _ask(window, far, message, nbytes, landing, room, owner):  # type: ignore[no-untyped-def]
    """Send a request and wait for its answer, if `room` bytes of one are wanted. An answer of one word, without a landing, goes to `message`.

    Returns 0; SLOW, and nothing is done; GIVEN_UP less a code; or an error class of the target.
    """
    receive = _send(window, far, message, nbytes, landing, room)
    if receive == SLOW or receive == 0:
        return receive
    return _await(window, receive, message, landing, room, owner)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _await(window, receive, message, landing, room, owner):  # type: ignore[no-untyped-def]
    """Wait for an answer; as :func:`_ask`."""
    engine = load64(load64(window + WINDOW.comm) + COMM.engine)
    record = trace_request(engine, receive)
    code = wait_complete(engine, receive, owner)
    if code != 0:
        return code
    trace_end(record)
    came, answer = load64(receive + REQUEST.message_bytes), load64(receive + REQUEST.answer)
    give_back(engine, receive)
    if came != room:
        return ERR_OTHER
    if landing == 0:
        store64(message, answer)
        return -answer if answer < 0 else 0
    return 0


@kernel("int64(int64, int64, int64, int64)")
def ask_word(window, target, action, value):  # type: ignore[no-untyped-def]
    """Ask for LOCK, UNLOCK or FLUSH, and wait until it is done; as :func:`_ask`. A lock is waited for at the target."""
    far, message = load64(target + TARGET.far), _word_request()
    changes = load64(far + FAR_TARGET.changes)
    _fill(message, action, 0, 0, value, 1)
    code = _ask(window, far, message, ASKING.total, 0, WORD, none_object())
    if code == 0:
        store64(far + FAR_TARGET.confirmed, max(changes, load64(far + FAR_TARGET.confirmed)))
    return code


@kernel("int64(int64, int64)")
def flush_far(window, target):  # type: ignore[no-untyped-def]
    """Return when all that was asked of a target is done; as :func:`_ask`."""
    far = load64(target + TARGET.far)
    if load64(far + FAR_TARGET.fetches) != 0:
        return SLOW
    if load64(far + FAR_TARGET.changes) == load64(far + FAR_TARGET.confirmed):
        return 0
    return ask_word(window, target, FLUSH, 0)


@kernel("int64(int64, int64)")
def _has_changes(far, fetches):  # type: ignore[no-untyped-def]
    """Whether something is to be confirmed by a target, or, for `fetches`, Python waits for its answers; nothing for a near one (0)."""
    if far == 0:
        return 0
    if fetches != 0:
        return 1 if load64(far + FAR_TARGET.fetches) != 0 else 0
    return 1 if load64(far + FAR_TARGET.changes) != load64(far + FAR_TARGET.confirmed) else 0


@kernel("int64(int64, int64)")
def _target(window, rank):  # type: ignore[no-untyped-def]
    """What is known of a far target, 0 for a near one."""
    return load64(window + WINDOW.total + rank * TARGET.total + TARGET.far)


@kernel("int64(int64)")
def _ask_all(window):  # type: ignore[no-untyped-def]
    """Ask all targets that are to confirm something for a word; SLOW if one of them could not be asked, else 0."""
    message, code = _word_request(), 0
    for rank in range(load64(window + WINDOW.size)):
        far = _target(window, rank)
        if _has_changes(far, 0) != 0:
            _fill(message, FLUSH, 0, 0, 0, 1)
            store64(far + FAR_TARGET.asked, load64(far + FAR_TARGET.changes))
            receive = _send(window, far, message, ASKING.total, 0, WORD)
            store64(far + FAR_TARGET.word, 0 if receive == SLOW else receive)
            code = SLOW if receive == SLOW else code
    return code


@kernel("int64(int64, int64, int64)")
def _end_one(window, far, is_given_up):  # type: ignore[no-untyped-def]
    """Wait for the word of a target, or give it up."""
    receive, message = load64(far + FAR_TARGET.word), _word_request()
    store64(far + FAR_TARGET.word, 0)
    if is_given_up != 0:
        give_up_kept(load64(load64(window + WINDOW.comm) + COMM.engine), receive, none_object())
        return 0
    code = _await(window, receive, message, 0, WORD, none_object())
    if code == 0:
        store64(far + FAR_TARGET.confirmed, max(load64(far + FAR_TARGET.asked), load64(far + FAR_TARGET.confirmed)))
    return code


@kernel("int64(int64)")
def flush_changed(window):  # type: ignore[no-untyped-def]
    """Return when all that was asked of all targets is done, at the same time; as :func:`_ask`. The first failure counts.

    An error class comes with the rank of the target where that is, `FAILED_AT` times as much.
    """
    size = load64(window + WINDOW.size)
    for rank in range(size):
        if _has_changes(_target(window, rank), 1) != 0:
            return SLOW
    code, first = _ask_all(window), 0
    for rank in range(size):
        far = _target(window, rank)
        if far != 0 and load64(far + FAR_TARGET.word) != 0:
            failure = _end_one(window, far, 1 if first <= GIVEN_UP else 0)
            if first == 0:
                first = failure + FAILED_AT * rank if failure > 0 else failure
    return first if first != 0 else code


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def _ask_with(window, target, message, given, other, nbytes, landing, room, owner):  # type: ignore[no-untyped-def]
    """Send a request with the elements at `given` and `other`, each unless it is 0; as :func:`_ask`."""
    far, end = load64(target + TARGET.far), message + _HEADER
    if given != 0:
        copy(end, given, nbytes)
        end += nbytes
    if other != 0:
        copy(end, other, nbytes)
        end += nbytes
    code = _ask(window, far, message, end - message, landing, room, owner)
    if code == 0 and room == 0:
        store64(far + FAR_TARGET.changes, load64(far + FAR_TARGET.changes) + 1)
    return code


@kernel("int64(int64, int64, int64)")
def _is_eager(window, target, nbytes):  # type: ignore[no-untyped-def]
    """Whether a request of so many bytes to a target may be eager."""
    comm, rank = load64(window + WINDOW.comm), load64(load64(target + TARGET.far) + FAR_TARGET.rank)
    peer = peer_of(load64(comm + COMM.engine), load64(load64(comm + COMM.world) + 8 * rank))
    return 1 if nbytes <= load64(peer + PEER.max_eager) else 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def ask_far(window, target, action, start, nbytes, value, element, given, other, landing, owner):  # type: ignore[no-untyped-def]
    """Ask for an access to `nbytes` bytes, at least one, from `start` on; as :func:`_ask`.

    `given`, `other`: addresses of elements that go along, 0 for none; `landing`: where what the target held goes, the memory of the object
    at `owner`, 0 if it is not asked for.
    """
    message, made, total = _short(), 0, _HEADER + (nbytes if given != 0 else 0) + (nbytes if other != 0 else 0)
    if nbytes == 0 or nbytes > MOST_BYTES or _is_eager(window, target, total) == 0:
        return SLOW
    if total > _SHORT:
        made = allocate(total)
        if made == 0:
            return SLOW
        message = made
    _fill(message, action, start, nbytes, value, element)
    code = _ask_with(window, target, message, given, other, nbytes, landing, nbytes if landing != 0 else 0, owner)
    if made != 0:
        release(made)
    return code


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def get_far(window, target, start, nbytes, landing, owner):  # type: ignore[no-untyped-def]
    """Copy bytes of a target to memory of the object at `owner`; as :func:`_ask`."""
    far = load64(target + TARGET.far)
    is_reached = load64(far + FAR_TARGET.handle) != 0 and nbytes != 0
    if not is_reached or load64(far + FAR_TARGET.changes) != load64(far + FAR_TARGET.confirmed):
        return ask_far(window, target, GET, start, nbytes, 0, 0, 0, 0, landing, owner)
    comm, rank, function = load64(window + WINDOW.comm), load64(far + FAR_TARGET.rank), load64(far + FAR_TARGET.get)
    peer = peer_of(load64(comm + COMM.engine), load64(load64(comm + COMM.world) + 8 * rank))
    there, handle = load64(far + FAR_TARGET.base) + start, load64(far + FAR_TARGET.handle)
    engine, state = load64(comm + COMM.engine), give_gil(nbytes)  # the network may have to register the buffer
    access = start_access(comm, 0, function, peer, rank, landing, nbytes, there, handle)
    enter_gil(state)
    record = trace_request(engine, access)
    code = wait_complete(engine, access, owner)
    if code != 0:
        return code
    trace_end(record)
    error = load64(access + REQUEST.error)
    give_back(engine, access)
    return SLOW if error != 0 else 0
