"""Collective slots: the shared memory of one communicator inside the arena, and the lease that hands a slot out.

::

    | header | device words: 16 x 256 B | lines: rank x 16 x 128 B | done, bounce: rank | posted, consumed: ring counters |
    | mid: rank x 16 x 2 KiB | big rings: rank | shared rings, blocks to judge stores by: rank | split rings: rank x destination |

*Lines* carry small collectives: line ``q % 16`` of a rank announces its part in collective number ``q`` of the communicator;
up to 48 bytes of payload stand in the line itself, so that they cost the one line transfer that the announcement costs anyway.
Longer payloads stand in *mid* (16 buffers) or in the *big ring* of the rank, which says in its line where. *Shared rings* are written by
their rank and read by all others, *split rings* are cut into one stream for each destination; both move bulk data in chunks, four in flight.
What stands in a ring stands behind what came before, so that a line is written again when it was read long ago (:mod:`transports.shm.bulk`
says why that matters); of a chunk the writer says where beside its counter. *Device words* are a page of their own, so that it can be pinned:
streams of GPUs write them.

=====================  ==============  ===============  =====================================================================
word                   written by      polled by        order and meaning
=====================  ==============  ===============  =====================================================================
``LINE.stamp``         its rank        all others       release after signature and payload: collective number q is published
``LINE.proposed``      its rank        all others       release: collective q is proposed for the devices (ncclx_mpi.device.board)
``done``               its rank        writers          release: it has read all it needs of the collectives up to this number
``pushing``            its rank        who gives up     beside ``done``; fenced before ``broken`` is read: it writes into buffers of others
``parted``             its rank        who waits long   beside ``done``: what it called, once it frees the communicator or finalizes
``bounce``             its rank        its neighbour    release: counts up while the two measure their round trip
``RING.posted``        writer          readers          release after the chunk (sfence where streamed): chunks written since the lease
``RING.places``        writer          nobody           before ``posted``: where each of the four chunks in flight stands, in lines
``RING.mapped``        writer          nobody           1 once all pages of the ring are worth having
``READ.consumed``      reader          writer           release after reading: chunks read since the lease
``DEVICE.ready``       its rank        executors        its stream, in order: the arrays of collective q may be read and written
``DEVICE.done``        its rank        all others       its stream, in order: its share of collective q is done
``DEVICE.refused``     its rank        all others       release before its ``ready`` and ``done``: it cannot do collective q after all
``SLOT.leased``        compare-exch.   nobody           0 free, 1 leased
``SLOT.broken``        any rank        all waiting      1 + a rank that gave a collective up, or `SUSPECTED`; stays until the slot is free
``SLOT.returned``      fetch-add       nobody           members that have freed the communicator; the last one frees the slot
=====================  ==============  ===============  =====================================================================

Whoever writes into a buffer that it used before must know that its readers are done with it: of a line or mid buffer those of collective
``q - 16``, of a place in a big ring those too, or of ``q - 2`` while only its first 32 KiB are used, of a ring chunk those of chunk
``k - 4``. Ranks in rooted collectives run ahead of each other, so double buffering alone would not do.

Every offset is a function of the communicator's size; a slot has room for a communicator of all ranks of the node. Untouched
pages of the file do not exist, so only what is used costs memory.
"""

from __future__ import annotations

from numba_kernels.atomics import compare_exchange, fetch_add, load64, load_relaxed, store64, store_release
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import fill, remove_pages, take_pages, whole_lines

SLOT = words("Slot", "leased | returned | bulk | broken")
"""``bulk``: 1 once somebody moved bulk data, so that the last one gives those pages back to the kernel. ``broken``: nonzero
once a rank gave up a collective in the middle, so that those who wait for it do not wait for ever."""
LINE = words("Line", "stamp signature payload*6 | proposed proposed_signature")
DEVICE = words("Device", "ready | done | refused")
RING = words("Ring", "posted signatures*4 places next mapped")
"""A writer's counter and, in the same line, the signatures and the places of the chunks in flight, and where the next one stands."""
READ = words("Read", "consumed mapped |")
"""A reader's counter, and whether it has all pages of the ring."""

SUSPECTED = 1 << 32
"""In ``broken``: the system refused a copy between processes, perhaps since one of them has died."""

INLINE = 48
DEPTH = 16
MID = 2 << 10
BIG = 16 << 10
BIGS = 2
"""Payloads over `MID`, in flight, that a big ring has room for at first."""
BIG_STEP = (DEPTH + 1) * BIG
"""Bytes of a big ring in which as many payloads have room as lines, wherever it ends. What is behind them is used last."""
CHUNKS = 4
SHARED_BYTES, SPLIT_BYTES = 2 << 20, 4 << 20
"""The most that is used of one rank's shared ring, and of its split one. It takes addresses only as long as it is not used, but those of all
slots, where a user may be given few."""
JUDGED_BYTES = 8 << 10
_BIG_RINGS, _MANY_RANKS = 2 << 20, 8
"""Behind a shared ring, for blocks by which kinds of stores are compared."""
LEAST_CHUNK = 4 << 10
_FEW_RANKS = 4
"""Up to which all of a split ring is used; more read so many streams that half is more than a second-level cache."""
_IN_RING = CHUNKS + 1
"""Chunks of the largest kind that a ring has room for: four in flight, and what is left over at its end."""
_MAPPED_AT = 12
"""The chunk of a ring before which both ends take all its pages: some collectives on streams later."""
_PLACE_BITS, _PLACE_SHIFT = 16, 6
assert max(SHARED_BYTES, SPLIT_BYTES) >> _PLACE_SHIFT <= 1 << _PLACE_BITS

DEVICE_RANKS = 16
"""Ranks of a communicator up to which each has device words."""

_PAGE = 4096
_DEVICES_APART = _PAGE // DEVICE_RANKS
_LINES = 2 * _PAGE
_WORDS_APART = 64
_LINES_APART = 128  # the adjacent-line prefetcher takes pairs


@kernel("int64(int64)")
def big_bytes(size):  # type: ignore[no-untyped-def]
    """Bytes of the big ring of each of `size` ranks. Few ranks read a second-level cache full before a line is written again."""
    if size > _MANY_RANKS:
        return BIG_STEP
    return _BIG_RINGS >> (2 if size > _FEW_RANKS else 1 if size > 2 else 0)


def slot_bytes(nranks: int) -> int:
    """Bytes of a slot for communicators of up to `nranks` ranks."""
    return max(_bytes_for(size) for size in {*range(1, min(nranks, _MANY_RANKS) + 1), nranks})


def _bytes_for(size: int) -> int:
    """Bytes that a communicator of `size` ranks needs."""
    fixed = _LINES + size * (DEPTH * _LINES_APART + 3 * _WORDS_APART) + 3 * size * size * _WORDS_APART
    big: int = big_bytes.py_func(size)
    buffers = size * (DEPTH * MID + big)
    split = max(SPLIT_BYTES if size <= _FEW_RANKS else SPLIT_BYTES // 2, size * _IN_RING * LEAST_CHUNK)
    return -(-fixed // _PAGE) * _PAGE + buffers + size * (SHARED_BYTES + JUDGED_BYTES + split)


@kernel("int64(int64, int64)", is_entry=True)
def device_words(slot, rank):  # type: ignore[no-untyped-def]
    """The device words of `rank`; those of all ranks fill a page of the arena, wherever the slot is and whoever leases it."""
    return slot + _PAGE + rank * _DEVICES_APART


@kernel("int64(int64, int64, int64)")
def line_of(slot, rank, number):  # type: ignore[no-untyped-def]
    """The line in which `rank` announces collective `number`."""
    return slot + _LINES + (rank * DEPTH + (number & (DEPTH - 1))) * _LINES_APART


@kernel("int64(int64, int64, int64)")
def done_of(slot, size, rank):  # type: ignore[no-untyped-def]
    """The word that says up to which collective `rank` has read everything."""
    return slot + _LINES + size * DEPTH * _LINES_APART + rank * _WORDS_APART


@kernel("int64(int64, int64, int64)")
def pushing_of(slot, size, rank):  # type: ignore[no-untyped-def]
    """The word that says whether `rank` has the kernel write into memory of others."""
    return done_of(slot, size, rank) + 8


@kernel("int64(int64, int64, int64)")
def parted_of(slot, size, rank):  # type: ignore[no-untyped-def]
    """The word in which `rank` says, when it frees the communicator or finalizes, what it has called."""
    return done_of(slot, size, rank) + PARTED_OFFSET


PARTED_OFFSET, PARTED_COUNT_SHIFT, PARTED = 16, 7, 1 << 62
"""How far behind ``done`` that word stands. In it: the number of collectives from this bit on, what they were below, and a flag."""


@kernel("int64(int64, int64, int64)")
def bounce_of(slot, size, rank):  # type: ignore[no-untyped-def]
    """The word that `rank` bounces with its neighbour to measure how far apart their cores are."""
    return done_of(slot, size, size) + rank * _WORDS_APART


@kernel("int64(int64, int64)")
def _rings(slot, size):  # type: ignore[no-untyped-def]
    return bounce_of(slot, size, size)


@kernel("int64(int64, int64, int64)")
def shared_posted(slot, size, writer):  # type: ignore[no-untyped-def]
    """The counter line of the shared ring of `writer`."""
    return _rings(slot, size) + writer * _WORDS_APART


@kernel("int64(int64, int64, int64, int64)")
def shared_consumed(slot, size, writer, reader):  # type: ignore[no-untyped-def]
    """How many chunks of the shared ring of `writer` `reader` has read."""
    return _rings(slot, size) + (size + writer * size + reader) * _WORDS_APART


@kernel("int64(int64, int64, int64, int64)")
def split_posted(slot, size, writer, reader):  # type: ignore[no-untyped-def]
    """The counter line of the stream from `writer` to `reader`."""
    return _rings(slot, size) + (size + size * size + writer * size + reader) * _WORDS_APART


@kernel("int64(int64, int64, int64, int64)")
def split_consumed(slot, size, writer, reader):  # type: ignore[no-untyped-def]
    """How many chunks of the stream from `writer` `reader` has read."""
    return _rings(slot, size) + (size + 2 * size * size + writer * size + reader) * _WORDS_APART


@kernel("int64(int64, int64)")
def _buffers(slot, size):  # type: ignore[no-untyped-def]
    counted = _rings(slot, size) - slot + (size + 3 * size * size) * _WORDS_APART
    return slot + (counted + _PAGE - 1) // _PAGE * _PAGE


@kernel("int64(int64, int64, int64, int64)")
def buffer_of(slot, size, rank, number):  # type: ignore[no-untyped-def]
    """Where `rank` puts the payload of collective `number`: more than `INLINE`, at most `MID` bytes."""
    return _buffers(slot, size) + (rank * DEPTH + (number & (DEPTH - 1))) * MID


@kernel("int64(int64, int64)")
def _bulk(slot, size):  # type: ignore[no-untyped-def]
    return _buffers(slot, size) + size * DEPTH * MID


@kernel("int64(int64, int64, int64)")
def big_ring(slot, size, writer):  # type: ignore[no-untyped-def]
    """Memory of the big ring of `writer`: `big_bytes`."""
    return _bulk(slot, size) + writer * big_bytes(size)


@kernel("int64(int64, int64, int64)")
def shared_ring(slot, size, writer):  # type: ignore[no-untyped-def]
    """Memory of the shared ring of `writer`: `SHARED_BYTES`."""
    return big_ring(slot, size, size) + writer * (SHARED_BYTES + JUDGED_BYTES)


@kernel("int64(int64, int64, int64)")
def judged_blocks(slot, size, rank):  # type: ignore[no-untyped-def]
    """Memory by which `rank` and its neighbour compare kinds of stores: `JUDGED_BYTES`."""
    return shared_ring(slot, size, rank) + SHARED_BYTES


@kernel("int64(int64, int64)")
def split_bytes(size, ring_bytes):  # type: ignore[no-untyped-def]
    """Bytes of a stream in a split ring of `ring_bytes`: whole pages, room for the chunks in flight."""
    whole = ring_bytes if size <= _FEW_RANKS else ring_bytes // 2
    return max(whole // size // _PAGE * _PAGE, _IN_RING * LEAST_CHUNK)


@kernel("int64(int64, int64)")
def split_chunk_bytes(size, ring_bytes):  # type: ignore[no-untyped-def]
    """The most bytes of a chunk in a split ring of `ring_bytes`, a multiple of 64."""
    return split_bytes(size, ring_bytes) // _IN_RING & ~63


@kernel("int64(int64, int64, int64, int64)")
def split_ring(slot, size, writer, reader):  # type: ignore[no-untyped-def]
    """Memory of the stream from `writer` to `reader`."""
    return shared_ring(slot, size, size) + (writer * size + reader) * split_bytes(size, SPLIT_BYTES)


@kernel("int64(int64, int64)")
def place_of(ring, index):  # type: ignore[no-untyped-def]
    """Where in its ring chunk `index` stands, which is in flight."""
    shift = (index & (CHUNKS - 1)) * _PLACE_BITS
    return (load64(ring + RING.places) >> shift & ((1 << _PLACE_BITS) - 1)) << _PLACE_SHIFT


@kernel("int64(int64, int64, int64)")
def place_behind(end, nbytes, ring_bytes):  # type: ignore[no-untyped-def]
    """Where in a ring what has `nbytes` goes: behind what ended at `end`, or to the beginning."""
    return end if end + nbytes <= ring_bytes else 0


@kernel("int64(int64, int64, int64, int64)")
def give_place(ring, index, nbytes, ring_bytes):  # type: ignore[no-untyped-def]
    """Where in its ring of `ring_bytes` the next chunk, of `nbytes`, goes: behind the one before, or to the beginning."""
    place, shift = place_behind(load64(ring + RING.next), nbytes, ring_bytes), (index & (CHUNKS - 1)) * _PLACE_BITS
    others = load64(ring + RING.places) & ~(((1 << _PLACE_BITS) - 1) << shift)
    store64(ring + RING.places, others | place >> _PLACE_SHIFT << shift)
    store64(ring + RING.next, place + whole_lines(nbytes))
    return place


@kernel("void(int64, int64, int64, int64)")
def map_written(ring, index, memory, ring_bytes):  # type: ignore[no-untyped-def]
    """Before chunk `index` is written: take all pages of a ring that is in use, and say so to its readers."""
    if index == _MAPPED_AT:
        take_pages(memory, ring_bytes)
        store64(ring + RING.mapped, 1)


@kernel("void(int64, int64, int64, int64)")
def map_read(ring, read, memory, ring_bytes):  # type: ignore[no-untyped-def]
    """Take all pages of a ring that its writer has, once."""
    if load64(ring + RING.mapped) != 0 and load64(read + READ.mapped) == 0:
        store64(read + READ.mapped, 1)
        take_pages(memory, ring_bytes)


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def lease(slots, stride, count, size):  # type: ignore[no-untyped-def]
    """Lease a slot, with all its counters at zero, for a communicator of `size` ranks.

    `slots` is the address of the first of `count` slots, `stride` bytes apart. Returns the slot's index, -1 if all are taken.
    The leader of the new communicator calls it and tells the members, which orders the zeros before their first use.
    """
    for index in range(count):
        slot = slots + index * stride
        if load_relaxed(slot + SLOT.leased) == 0 and compare_exchange(slot + SLOT.leased, 0, 1) == 0:
            store64(slot + SLOT.returned, 0)
            store64(slot + SLOT.bulk, 0)
            store64(slot + SLOT.broken, 0)
            fill(slot + _PAGE, 0, _buffers(slot, size) - slot - _PAGE)
            return index
    return -1


@kernel("int64(int64, int64)", is_entry=True)
def give_back(slot, size):  # type: ignore[no-untyped-def]
    """Say that one of the `size` members is done with the slot. Returns 1 from the last one, which frees it."""
    if fetch_add(slot + SLOT.returned, 1) + 1 < size:
        return 0
    if load64(slot + SLOT.bulk) != 0:
        first = _bulk(slot, size)
        end = split_ring(slot, size, size, 0)
        remove_pages(first, (end - first) // _PAGE * _PAGE)
    store_release(slot + SLOT.leased, 0)
    return 1
