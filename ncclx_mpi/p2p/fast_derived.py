"""Messages of derived datatypes: one compiled call from the Python objects to the transport, and back unless they do not block.

Elements without gaps are sent from where they are, and received there. Others go through memory of the call::

    array  ──pack──▶  bytes  ──send──▶  ...  ──receive──▶  bytes  ──unpack──▶  array

which is a bytes object, so that a wait that is given up leaves it to its request as it does the array of a plain message. A receive that
does not block has its landing (:mod:`ncclx_mpi.p2p.gaps`) there, from which whoever completes it unpacks it.

What is not known to compiled code (:mod:`numba_kernels.pylayouts`), not valid, or long, is left untouched and returns SLOW, as in
:mod:`ncclx_mpi.p2p.fast`.
"""

from __future__ import annotations

from ncclx_mpi.p2p.fast import (
    SLOW,
    exchange_memory,
    is_dest,
    is_from_nobody,
    is_source,
    is_to_nobody,
    receive_memory,
    send_memory,
)
from ncclx_mpi.p2p.gaps import LANDING, LONGEST, move
from ncclx_mpi.p2p.layout import COMM, ENGINE, REQUEST, STANDARD
from ncclx_mpi.p2p.request_pool import new_handle, receive, start_from, use_ticket
from ncclx_mpi.p2p.requests import STATUS_WORDS
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import copy, make_stack
from numba_kernels.pylayouts import LAYOUT, is_dense, read_laid_out_blocks
from numba_kernels.pyobject import (
    NONE,
    address_of,
    array_argument,
    array_of,
    element_of,
    index_argument,
    index_of,
    nbytes_of,
    writable_of,
)
from numba_kernels.pysequence import VECTOR, let_go
from numba_kernels.pyslots import (
    BYTES,
    clear_error,
    decrease,
    increase,
    keeper_of,
    new_bytes,
    object_result,
    result,
)

SIDE = words("Side", "address nbytes owner array")
"""One side of a message: its memory, without gaps, and the object that has it; the array.

The layout of the elements follows; its key is 0 where the memory is the array's. References to layout, owner and array are owned."""
_side_words, _status_words = make_stack((SIDE.total + LAYOUT.total + VECTOR.total) // 8), make_stack(STATUS_WORDS)


@kernel(types.int64(types.int64, array_argument, types.int64))
def _open(side, argument, is_written):  # type: ignore[no-untyped-def]
    """Describe a side, a plain array or elements of a derived datatype: 1, and :func:`_close` it later; or 0.

    The memory of elements with gaps is that of a landing, right behind it.
    """
    row, vector = side + SIDE.total, side + SIDE.total + LAYOUT.total
    store64(row + LAYOUT.key, 0)
    if element_of(argument) != NONE:
        if is_written != 0 and writable_of(argument) == 0:
            return 0
        store64(side + SIDE.address, address_of(argument))
        store64(side + SIDE.nbytes, nbytes_of(argument))
        increase(array_of(argument))
        return _own(side, array_of(argument), 0)
    count = read_laid_out_blocks(array_of(argument), 1, vector, row)
    if count < 0:
        return 0
    key, size, origin = load64(row + LAYOUT.key), load64(row + LAYOUT.size), load64(vector + VECTOR.address)
    store64(side + SIDE.nbytes, count * size)
    data = 0
    if count <= LONGEST // size and (is_written == 0 or load64(vector + VECTOR.writable) != 0):
        if is_dense(row, count) != 0:
            store64(row + LAYOUT.key, 0)
            decrease(key)
            store64(side + SIDE.address, origin + load64(row + LAYOUT.low))
            return _own(side, load64(vector + VECTOR.array), 0)
        data = new_bytes(0, LANDING.total + count * size)
        if data == 0:
            clear_error()
    if data == 0:
        let_go(vector)
        decrease(key)
        return 0
    landing = data + BYTES
    store64(landing + LANDING.origin, origin)
    copy(landing + LANDING.layout, row, LAYOUT.total)
    store64(side + SIDE.address, landing + LANDING.total)
    return _own(side, load64(vector + VECTOR.array), data)


@kernel("int64(int64, int64, int64)")
def _own(side, array, data):  # type: ignore[no-untyped-def]
    """Take over a reference to the array of a side, and one to what has its memory if that is another object. Returns 1."""
    if data == 0:
        increase(array)
    store64(side + SIDE.array, array)
    store64(side + SIDE.owner, data if data != 0 else array)
    return 1


@kernel("void(int64)")
def _close(side):  # type: ignore[no-untyped-def]
    """Hold nothing of a side any more. Any Python code may run."""
    decrease(load64(side + SIDE.owner))
    decrease(load64(side + SIDE.array))
    decrease(load64(side + SIDE.total + LAYOUT.key))


@kernel("void(int64, int64, boolean)")
def _move(side, nbytes, unpacking):  # type: ignore[no-untyped-def]
    """Pack a side, or unpack the first bytes of it, unless its memory is the array's."""
    if load64(side + SIDE.total + LAYOUT.key) != 0:
        move(load64(side + SIDE.address) - LANDING.total, nbytes, unpacking)


@kernel(types.int64(types.int64, array_argument, index_argument, index_argument, types.int64), is_entry=True, nogil=False)
def send_derived(comm, argument, peer_rank, message_tag, mode):  # type: ignore[no-untyped-def]
    """Send elements of a derived datatype. 0: done; SLOW; GIVEN_UP less a code."""
    dest, tag, side = index_of(peer_rank), index_of(message_tag), _side_words()
    if is_dest(comm, dest, tag) == 0 or _open(side, argument, 0) == 0:
        return SLOW
    nbytes = load64(side + SIDE.nbytes)
    _move(side, nbytes, False)
    code = send_memory(comm, load64(side + SIDE.address), nbytes, load64(side + SIDE.owner), dest, tag, mode)
    _close(side)
    return code


@kernel(
    object_result(types.int64, array_argument, index_argument, index_argument, types.int64),
    is_entry=True,
    nogil=False,
)
def start_send_derived(comm, argument, peer_rank, message_tag, mode):  # type: ignore[no-untyped-def]
    """Start sending elements of a derived datatype: the handle, or None (not known, not valid, or no free ticket)."""
    dest, tag, side = index_of(peer_rank), index_of(message_tag), _side_words()
    if is_dest(comm, dest, tag) == 0 or _open(side, argument, 0) == 0:
        return result(0)
    nbytes = load64(side + SIDE.nbytes)
    _move(side, nbytes, False)
    handle = start_from(comm, load64(side + SIDE.owner), load64(side + SIDE.address), nbytes, dest, tag, mode)
    _close(side)
    return result(handle)


@kernel(object_result(types.int64, array_argument, index_argument, index_argument), is_entry=True, nogil=False)
def start_receive_derived(comm, argument, peer_rank, message_tag):  # type: ignore[no-untyped-def]
    """Start receiving elements of a derived datatype: the handle, or None as above."""
    source, tag, side = index_of(peer_rank), index_of(message_tag), _side_words()
    if is_source(comm, source, tag) == 0 or _open(side, argument, 1) == 0:
        return result(0)
    engine, key, handle = load64(comm + COMM.engine), load64(side + SIDE.total + LAYOUT.key), 0
    owner = keeper_of(load64(side + SIDE.array), load64(side + SIDE.owner), key)
    if owner != 0:
        handle = new_handle(engine, engine + ENGINE.tickets)
    if handle != 0:
        request, address = use_ticket(handle, load64(comm + COMM.handle), owner), load64(side + SIDE.address)
        if key != 0:
            store64(request + REQUEST.gaps, address - LANDING.total)
        receive(comm, request, address, load64(side + SIDE.nbytes), source, tag)
    decrease(owner)
    _close(side)
    return result(handle)


@kernel("int64(int64, int64, int64)")
def _finish(side, code, said):  # type: ignore[no-untyped-def]
    """Put what a call has received, which its status words say, where it belongs; returns `code`."""
    if code == 0:
        _move(side, load64(said + 16), True)
    _close(side)
    return code


@kernel(types.int64(types.int64, array_argument, types.int64, types.int64, types.int64))
def _receive(comm, argument, source, tag, status):  # type: ignore[no-untyped-def]
    """Receive elements of a derived datatype, as :func:`ncclx_mpi.p2p.fast.receive_array` does a plain array."""
    side, own_status = _side_words(), _status_words()
    said = status if status != 0 else own_status
    if is_source(comm, source, tag) == 0 or _open(side, argument, 1) == 0:
        return SLOW
    nbytes, owner = load64(side + SIDE.nbytes), load64(side + SIDE.owner)
    return _finish(side, receive_memory(comm, load64(side + SIDE.address), nbytes, owner, source, tag, said), said)


@kernel(types.int64(types.int64, array_argument, index_argument, index_argument, types.int64), is_entry=True, nogil=False)
def receive_derived(comm, argument, peer_rank, message_tag, status):  # type: ignore[no-untyped-def]
    """Receive elements of a derived datatype, as :func:`ncclx_mpi.p2p.fast.receive_array` does a plain array."""
    return _receive(comm, argument, index_of(peer_rank), index_of(message_tag), status)


@kernel(
    types.int64(
        types.int64, array_argument, index_argument, index_argument, array_argument, index_argument, index_argument, types.int64
    ),
    is_entry=True,
    nogil=False,
)
def exchange_derived(comm, sent, dest_rank, send_tag, received, source_rank, receive_tag, status):  # type: ignore[no-untyped-def]
    """Send and receive elements of which some are of derived datatypes, as :func:`ncclx_mpi.p2p.fast.exchange_arrays` plain arrays."""
    dest, its_tag, source, tag = index_of(dest_rank), index_of(send_tag), index_of(source_rank), index_of(receive_tag)
    out, back, own_status = _side_words(), _side_words(), _status_words()
    said = status if status != 0 else own_status
    takes = is_source(comm, source, tag) != 0
    if is_to_nobody(comm, dest, its_tag) != 0:
        return _receive(comm, received, source, tag, status)
    if is_dest(comm, dest, its_tag) == 0 or (not takes and is_from_nobody(comm, source, tag, said) == 0):
        return SLOW
    if _open(out, sent, 0) == 0:
        return SLOW
    if takes and _open(back, received, 1) == 0:
        _close(out)
        return SLOW
    nbytes = load64(out + SIDE.nbytes)
    _move(out, nbytes, False)
    address, owner = load64(out + SIDE.address), load64(out + SIDE.owner)
    if takes:
        landing, room, its_owner = load64(back + SIDE.address), load64(back + SIDE.nbytes), load64(back + SIDE.owner)
        code = exchange_memory(comm, address, nbytes, owner, dest, its_tag, landing, room, its_owner, source, tag, said)
        code = _finish(back, code, said)
    else:
        code = send_memory(comm, address, nbytes, owner, dest, its_tag, STANDARD)
    _close(out)
    return code
