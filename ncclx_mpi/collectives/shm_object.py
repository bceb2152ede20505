"""Blobs: what ranks contribute to collectives of Python objects, on lines, in as many bytes as each of them needs.

A rank publishes the pickle of a plain value (:mod:`numba_kernels.pickling`), written by the same compiled call that exchanges it, or bytes
that Python has made: a pickle of any other object, or nothing if that is too large and follows as a message. The signature on
its line says how many, so nobody needs to know before. What has come is read where it stands, into new objects.

Shares, the different blobs of one rank for all::

    | end of share 0 | end of share 1 | ... | share 0 | share 1 | ... |      offsets from the beginning, in words

A peer that called `Alltoall` where this rank called `alltoall` has signed something else, and its payload is not looked at: it may stand
elsewhere, and in the place of a blob an earlier one. The ends of shares are looked at before they are followed.

A collective returns its objects, in a tuple instead of a list if some are notes with bytes (:mod:`ncclx_mpi.p2p.partial_results`), or a note
alone: SLOW if nothing was published, as the value is not plain or the communicator has no slot; CODE for a failure.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import (
    NO_MEMORY,
    OBJECTS,
    SCRATCH,
    arrive_with_any,
    begin,
    end,
    give_up,
    payload,
    refuse_payload,
    sign,
    signed_bytes,
)
from ncclx_mpi.p2p.layout import COMM
from ncclx_mpi.p2p.partial_results import CODE, SLOW, is_note, note, note_word, opened
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy
from numba_kernels.pickling import ROOM, write_pickle
from numba_kernels.pyobject import OB_SIZE
from numba_kernels.pysequence import items_of
from numba_kernels.pyslots import BYTES, clear_error, decrease, new_hidden_list, set_list_item, show
from transports.shm.slots import BIG

CAPACITY = BIG
"""Most bytes of a blob, or of all shares of a rank together with their ends."""
MOST_RANKS = CAPACITY // 16
"""Of a communicator; with more the ends of shares would fill too much of a blob."""

_as_tuple = types.external("PyList_AsTuple", types.intp(types.intp))


@kernel("int64(int64)")
def is_possible(comm):  # type: ignore[no-untyped-def]
    """Whether the communicator has lines, and not too many ranks; the same on every rank."""
    return 1 if load64(comm + COMM.slot) != 0 and load64(comm + COMM.size) <= MOST_RANKS else 0


@kernel("int64(int64)")
def without_room(comm):  # type: ignore[no-untyped-def]
    """Give a collective up for which there is no memory: the note with its failure."""
    if is_possible(comm) != 0:
        give_up(comm, NO_MEMORY)
    return note_word(CODE, NO_MEMORY)


@kernel("int64(int64, int64, int64, int64)")
def pack(obj, is_blob, is_plain, room):  # type: ignore[no-untyped-def]
    """Bytes of the blob of an object, which is at the address in ``room.at``; -1 if there is none.

    `is_blob`: `obj` holds it, as bytes. `is_plain`: it may be made here, if `obj` is a plain value.
    """
    if is_blob != 0:
        store64(room + ROOM.at, obj + BYTES)
        return load64(obj + OB_SIZE)
    if is_plain == 0:
        return -1
    store64(room + ROOM.at, room + ROOM.data)
    nbytes = write_pickle(obj, room, room + ROOM.data, CAPACITY)
    return nbytes if nbytes != 0 else -1


@kernel("int64(int64, int64, int64, int64, int64)")
def pack_each(sequence, count, is_blob, is_plain, room):  # type: ignore[no-untyped-def]
    """As :func:`pack`, for the shares of the `count` items of a list or tuple."""
    if items_of(sequence) == 0 or load64(sequence + OB_SIZE) != count or (is_blob == 0 and is_plain == 0):
        return -1
    base, end = room + ROOM.data, room + ROOM.data + CAPACITY
    at = base + 8 * count
    for index in range(count):
        item = load64(items_of(sequence) + 8 * index)
        if is_blob != 0:
            nbytes = load64(item + OB_SIZE)
            if at + nbytes > end:
                return -1
            copy(at, item + BYTES, nbytes)
        else:
            nbytes = write_pickle(item, room, at, end - at)
            if nbytes == 0:
                return -1
        at += nbytes
        store64(base + 8 * index, at - base)
    store64(room + ROOM.at, base)
    return at - base


@kernel("int64(int64, int64, int64, int64)")
def has_share(base, nbytes, count, index):  # type: ignore[no-untyped-def]
    """Whether the `nbytes` at `base` can be the shares of `count` ranks, as far as that of rank `index` and the end of all go."""
    if nbytes < 8 * count or load64(base + 8 * (count - 1)) != nbytes:
        return 0
    first = load64(base + 8 * (index - 1)) if index > 0 else 8 * count
    return 1 if 8 * count <= first <= load64(base + 8 * index) <= nbytes else 0


@kernel("int64(int64, int64, int64, int64)")
def open_share(base, count, index, decodes):  # type: ignore[no-untyped-def]
    """The object, or a note, of one of the `count` shares at `base`, which :func:`has_share` has looked at; 0 without memory for it."""
    first = load64(base + 8 * (index - 1)) if index > 0 else 8 * count
    return opened(base + first, load64(base + 8 * index) - first, decodes)


@kernel("int64(int64, int64, int64)")
def sign_blob(kind, root, nbytes):  # type: ignore[no-untyped-def]
    """What a rank called, with a blob of so many bytes."""
    return sign(kind | OBJECTS, root, nbytes)


@kernel("int64(int64, int64, int64, int64)")
def arrive_with_blob(comm, other, number, signature):  # type: ignore[no-untyped-def]
    """Wait until rank `other` has published its blob, and check that it called the same. 0 or the code of a failure."""
    code = arrive_with_any(comm, other, number, signature)
    if code == 0 and signed_bytes(comm, other, number) > CAPACITY:
        code = refuse_payload(comm, other, number, signature)
    return code


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def exchange(comm, kind, room, nbytes, are_shares, decodes):  # type: ignore[no-untyped-def]
    """A collective of some `kind` in which all take of all, as :func:`collect` returns; without a blob (-1) the note SLOW."""
    if nbytes < 0:
        return note(SLOW, 0, 0)
    signature = sign_blob(kind, 0, nbytes)
    number = begin(comm, signature, load64(room + ROOM.at), nbytes)
    found = collect(comm, number, signature, room, are_shares, decodes)
    if found != 0 and is_note(found) == 0:  # all have come to this one, so they have finished the one before
        store64(comm + SCRATCH.known, number - 1)
    return found


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def collect(comm, number, signature, room, are_shares, decodes):  # type: ignore[no-untyped-def]
    """End a collective whose number :func:`begin` gave: a new list or tuple of what all ranks have published for this one, or a note.

    The own blob is at ``room.at``. `are_shares`: of each blob this rank reads its share. 0 with MemoryError if not even a note can be made.
    """
    rank, size, objects, notes, code = load64(comm + COMM.rank), load64(comm + COMM.size), 0, 0, -number
    if number > 0:
        objects = new_hidden_list(size)
        code = NO_MEMORY if objects == 0 else 0
        for other in range(size):
            if code == 0 and other != rank:
                code = arrive_with_blob(comm, other, number, signature)
            if code == 0:
                nbytes = signed_bytes(comm, other, number)
                base = load64(room + ROOM.at) if other == rank else payload(comm, other, number, nbytes)
                if are_shares != 0 and other != rank and has_share(base, nbytes, size, rank) == 0:
                    code = refuse_payload(comm, other, number, signature)
            if code == 0:
                found = open_share(base, size, rank, decodes) if are_shares != 0 else opened(base, nbytes, decodes)
                if found == 0:
                    code = NO_MEMORY
                else:
                    notes += is_note(found)
                    set_list_item(objects, other, found)
        code = end(comm, number, code)
    if code != 0:
        clear_error()
        decrease(objects)
        return note_word(CODE, code)
    show(objects)
    if notes == 0:
        return objects
    listed = _as_tuple(objects)
    decrease(objects)
    return listed
