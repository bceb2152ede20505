r"""Which bytes go where in an all-to-all whose counts are read when it executes.

The send buffer of a rank is cut into *segments* by split lengths; each peer gets a set of them. A segment keeps its offset, so a
receiver that was given segments 0, 2 and 3 finds a hole where segment 1 would be::

    rank 0 sends          splits 128 256 256 128      to rank 1: segments 0, 2, 3
      |  0  |    1     |    2     |  3  |
         \\                 |         |           runs: 0, and 2 + 3 as one (neighbours join)
      |  0  |  (hole)  |    2     |  3  |
    rank 1, area of rank 0

Two steps, with an exchange of fixed size between them::

    offer   each rank, for each peer:  its split lengths, the set of segments for the peer, what it has room for
            ---- every rank sends offer p to rank p, and gets one from it ----
    plan    each rank, for each peer:  runs of what it sends and of what it receives, or why this pair moves nothing

Both ends of a pair judge it from the same two offers, so they always agree, and bytes are counted only after they were checked:
nothing that is out of range is ever read or written. An empty segment takes no place, and does not part its neighbours.

On GPUs one process sees the memory of all ranks, so nothing is exchanged, and the functions below are called by several threads for
one pair, a stretch of the split lengths each: :mod:`numba_kernels.alltoallv.plan_and_copy`.

Thread t of T looks after peers t, t + T, ...; no word that is written is read by another thread of the same step, so no flags are
needed. Metadata of the caller are only loaded, in whole aligned words, and each split length once: it is judged, and then used, from
its copy in the offer.

The NumPy twin is :func:`numba_kernels.alltoallv.twins.runs`.
"""

from __future__ import annotations

from numba_kernels.alltoallv.layout import (
    BLOCK,
    CALL,
    DENSE_SOURCE,
    DENSE_TARGET,
    FINE,
    INDEX,
    ITEM,
    MOST_ELEMENTS,
    OFFER,
    PAIR,
    RECEIVE,
    RUN,
    SEND,
    SPLIT,
)
from numba_kernels.cuda.intrinsics import load_i64, or_i64, store_i64
from numba_kernels.jit import kernel


@kernel("int64(int64, int64, int64)")
def integer_at(address, index, kind):  # type: ignore[no-untyped-def]
    """Element `index` of an array of integers of `kind`: bytes of one, negative for unsigned ones; aligned to its size."""
    width = abs(kind)
    at = address + index * width
    spare = 64 - 8 * width
    value = (load_i64(at & -8) << (spare - 8 * (at & 7))) >> spare
    return value if kind > 0 or width == 8 else value & ((1 << (8 * width)) - 1)


@kernel("int64(int64)")
def offer_size(segments):  # type: ignore[no-untyped-def]
    """As :func:`numba_kernels.alltoallv.layout.offer_bytes`."""
    return OFFER.total + 8 * (segments + (segments + 63) // 64)


@kernel("int64(int64, int64, int64)")
def _is_chosen(offer, segments, segment):  # type: ignore[no-untyped-def]
    return (load_i64(offer + OFFER.total + 8 * (segments + (segment >> 6))) >> (segment & 63)) & 1


@kernel("void(int64, int64, int64, int64, int64)")
def _object(offer, fault, segment, needed, limit):  # type: ignore[no-untyped-def]
    """Say in an offer why nothing comes of it."""
    store_i64(offer + OFFER.fault, fault)
    store_i64(offer + OFFER.segment, segment)
    store_i64(offer + OFFER.needed, needed)
    store_i64(offer + OFFER.limit, limit)


@kernel("void(int64, int64)")
def begin_offer(call, offer):  # type: ignore[no-untyped-def]
    """Write what an offer says whatever the metadata are."""
    store_i64(offer + OFFER.itemsize, load_i64(call + CALL.itemsize))
    store_i64(offer + OFFER.form, load_i64(call + CALL.form))
    _object(offer, FINE, 0, 0, 0)


@kernel("int64(int64, int64, int64, int64, int64)")
def read_splits(call, offer, peer, first, end):  # type: ignore[no-untyped-def]
    """Copy a stretch of the split lengths into an offer: their sum, -1 if one of them is none."""
    splits, kind = load_i64(call + CALL.splits), load_i64(call + CALL.splits_kind)
    row, total = peer * load_i64(call + CALL.row_step), 0
    for segment in range(first, end):
        length = integer_at(splits, row + segment, kind)
        store_i64(offer + OFFER.total + 8 * segment, length)
        total = total + length if total >= 0 and length >= 0 and length <= MOST_ELEMENTS - total else -1
    return total


@kernel("void(int64, int64, int64, int64)")
def choose_nothing(offer, segments, word, step):  # type: ignore[no-untyped-def]
    """Empty every `step`-th word, from one on, of the set of segments in an offer."""
    while word < (segments + 63) // 64:
        store_i64(offer + OFFER.total + 8 * (segments + word), 0)
        word += step


@kernel("UniTuple(int64, 3)(int64, int64)")
def find_block(call, peer):  # type: ignore[no-untyped-def]
    """Where the list of segments for a peer begins, its length, and -1; or the begin, length and number of the first block out of range."""
    blocklengths = load_i64(call + CALL.blocklengths)
    if blocklengths == 0:
        return load_i64(call + CALL.first) + peer * load_i64(call + CALL.first_step), load_i64(call + CALL.taken), -1
    kind, most = load_i64(call + CALL.blocklengths_kind), load_i64(call + CALL.most_indices)
    begin = length = 0
    for block in range(peer + 1):
        begin += length
        length = integer_at(blocklengths, block, kind)
        if length < 0 or length > most - begin:
            return begin, length, block
    return begin, length, -1


@kernel("int64(int64, int64)")
def _listed(call, position):  # type: ignore[no-untyped-def]
    """The segment at a position of the lists; without lists they are in order."""
    if load_i64(call + CALL.blocklengths) == 0:
        return position
    return integer_at(load_i64(call + CALL.indices), position, load_i64(call + CALL.indices_kind))


@kernel("int64(int64, int64, int64, int64, int64)")
def choose(call, offer, position, end, step):  # type: ignore[no-untyped-def]
    """Enter every `step`-th listed segment, from a position on, in the set of an offer; the first position that lists none, else -1."""
    segments = load_i64(call + CALL.segments)
    while position < end:
        segment = _listed(call, position)
        if segment < 0 or segment >= segments:
            return position
        or_i64(offer + OFFER.total + 8 * (segments + (segment >> 6)), 1 << (segment & 63))
        position += step
    return -1


@kernel("UniTuple(int64, 3)(int64, int64, int64, int64, int64, int64, int64)")
def walk(offer, segments, first, end, offset, elements, runs):  # type: ignore[no-untyped-def]
    """Walk over a stretch of the segments, before which there are `offset` elements, `elements` of them chosen.

    Returns the chosen elements, those before included; where the last chosen segment ends, 0 without any; and the number of runs in the
    stretch, which go to `runs` unless that is 0.
    """
    itemsize, form = load_i64(offer + OFFER.itemsize), load_i64(offer + OFFER.form)
    last = count = begun = run = 0
    for segment in range(first, end):
        length = load_i64(offer + OFFER.total + 8 * segment)
        if length > 0 and _is_chosen(offer, segments, segment) != 0:
            if count == 0 or offset != last:
                begun, run = elements, runs + count * RUN.total
                count += 1
                if runs != 0:
                    store_i64(run + RUN.source, (elements if form & DENSE_SOURCE != 0 else offset) * itemsize)
                    store_i64(run + RUN.target, (elements if form & DENSE_TARGET != 0 else offset) * itemsize)
                    store_i64(run + RUN.packed, elements * itemsize)
            elements += length
            last = offset + length
            if runs != 0:
                store_i64(run + RUN.nbytes, (elements - begun) * itemsize)
        offset += length
    return elements, last, count


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def judge_offer(call, offer, peer, total, begin, length, block, wrong, elements, last):  # type: ignore[no-untyped-def]
    """Object to the first thing that is wrong with what a peer is offered.

    ``total``: of :func:`read_splits`. ``begin``, ``length``, ``block``: of :func:`find_block`. ``wrong``: of :func:`choose`. ``elements``,
    ``last``: of :func:`walk`.
    """
    if total < 0:
        _object_to_splits(offer, load_i64(call + CALL.segments))
    elif block >= 0:
        _object(offer, BLOCK, block, length, load_i64(call + CALL.most_indices) - begin)
    elif wrong >= 0:
        _object(offer, INDEX, wrong, _listed(call, wrong), load_i64(call + CALL.segments))
    else:
        end = elements if load_i64(offer + OFFER.form) & DENSE_SOURCE != 0 else last
        limit = load_i64(load_i64(call + CALL.send_places) + 8 * peer)
        if end > limit:
            _object(offer, SEND, 0, end, limit)


@kernel("void(int64, int64)")
def _object_to_splits(offer, segments):  # type: ignore[no-untyped-def]
    """Object to the first split length that is none."""
    total = 0
    for segment in range(segments):
        length = load_i64(offer + OFFER.total + 8 * segment)
        if length < 0 or length > MOST_ELEMENTS - total:
            _object(offer, SPLIT, segment, length, MOST_ELEMENTS - total)
            return
        total += length


@kernel("void(int64, int64, int64, int64, int64, int64)")
def judge_pair(pair, offered, granted, elements, last, count):  # type: ignore[no-untyped-def]
    """What becomes of a pair, from what its sender offers and its receiver grants, and what :func:`walk` returned for all segments."""
    itemsize, limit = load_i64(offered + OFFER.itemsize), load_i64(granted + OFFER.capacity)
    fault, segment, needed = load_i64(offered + OFFER.fault), load_i64(offered + OFFER.segment), load_i64(offered + OFFER.needed)
    if fault != FINE:
        limit = load_i64(offered + OFFER.limit)
    else:
        needed = elements if load_i64(offered + OFFER.form) & DENSE_TARGET != 0 else last
        if elements > 0 and itemsize != load_i64(granted + OFFER.itemsize):
            fault, needed, limit = ITEM, itemsize, load_i64(granted + OFFER.itemsize)
        elif needed > limit:
            fault = RECEIVE
    store_i64(pair + PAIR.fault, fault)
    store_i64(pair + PAIR.segment, segment)
    store_i64(pair + PAIR.needed, needed)
    store_i64(pair + PAIR.limit, limit)
    store_i64(pair + PAIR.nbytes, elements * itemsize if fault == FINE else 0)
    store_i64(pair + PAIR.runs, count if fault == FINE else 0)


@kernel("void(int64, int64, int64)")
def _write_offer(call, told, peer):  # type: ignore[no-untyped-def]
    """Write what this rank sends to a peer."""
    segments = load_i64(call + CALL.segments)
    begin_offer(call, told)
    choose_nothing(told, segments, 0, 1)
    total = read_splits(call, told, peer, 0, segments)
    begin, length, block = find_block(call, peer)
    wrong = choose(call, told, begin, begin + length, 1) if block < 0 else -1
    elements, last, _ = walk(told, segments, 0, segments, 0, 0, 0)
    judge_offer(call, told, peer, total, begin, length, block, wrong, elements, last)


@kernel("void(int64, int64, int64)")
def offer(thread, threads, call):  # type: ignore[no-untyped-def]
    """Write what is told to each peer."""
    peer = thread
    while peer < load_i64(call + CALL.size):
        told = load_i64(call + CALL.offers) + peer * offer_size(load_i64(call + CALL.segments))
        store_i64(told + OFFER.capacity, load_i64(load_i64(call + CALL.recv_places) + 8 * peer))
        _write_offer(call, told, peer)
        peer += threads


@kernel("void(int64, int64, int64, int64, int64)")
def _plan_pair(pair, runs, offered, granted, segments):  # type: ignore[no-untyped-def]
    """Runs of one pair, from what its sender offers and its receiver grants; none if there is a fault."""
    elements = last = count = 0
    if load_i64(offered + OFFER.fault) == FINE:
        elements, last, count = walk(offered, segments, 0, segments, 0, 0, runs)
    judge_pair(pair, offered, granted, elements, last, count)


@kernel("void(int64, int64, int64)")
def _copy_splits(target, offered, segments):  # type: ignore[no-untyped-def]
    for segment in range(segments):
        store_i64(target + 8 * segment, load_i64(offered + OFFER.total + 8 * segment))


@kernel("void(int64, int64, int64)")
def plan(thread, threads, call):  # type: ignore[no-untyped-def]
    """Write the pairs and runs of what is sent and received, from the offers of all, and the splits of all ranks."""
    size, segments = load_i64(call + CALL.size), load_i64(call + CALL.segments)
    stride, most_runs = offer_size(segments), load_i64(call + CALL.most_runs) * RUN.total
    all_splits = load_i64(call + CALL.all_splits)
    peer = thread
    while peer < size:
        mine, its = load_i64(call + CALL.offers) + peer * stride, load_i64(call + CALL.answers) + peer * stride
        outgoing, incoming = load_i64(call + CALL.outgoing) + peer * PAIR.total, load_i64(call + CALL.incoming) + peer * PAIR.total
        _plan_pair(outgoing, load_i64(call + CALL.outgoing_runs) + peer * most_runs, mine, its, segments)
        _plan_pair(incoming, load_i64(call + CALL.incoming_runs) + peer * most_runs, its, mine, segments)
        store_i64(outgoing + PAIR.source, load_i64(load_i64(call + CALL.send_places) + 8 * (size + peer)))
        store_i64(incoming + PAIR.target, load_i64(load_i64(call + CALL.recv_places) + 8 * (size + peer)))
        if all_splits != 0:
            _copy_splits(all_splits + 8 * peer * segments, its, segments)
        peer += threads
