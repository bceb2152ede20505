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

On GPUs one process sees the memory of all ranks, so nothing is exchanged: :func:`plan_pairs` takes both steps for each pair, and
tells each of its ranks by a ``FAULT`` if it moves nothing::

    rank 0's metadata --.                    .--> pair 0 -> 0, its runs, or FAULTs
                        +--  one thread a  --+--> pair 1 -> 0
    rank 1's metadata --'        pair        '--> ...                    and the split lengths of the source, to the target

It walks over the split lengths three times, a thread by itself: some 40 us for 256 of them, which are read along cache lines.

The bodies are the same on CPU and GPU: thread t of T looks after peers t, t + T, ...; no two threads write the same word, and no
word that is written is read by another thread of the same phase, so no flags are needed. Metadata of the caller are only loaded,
in whole aligned words.

The NumPy twin is :func:`numba_kernels.alltoallv.twins.runs`.
"""

from __future__ import annotations

from numba_kernels.alltoallv.layout import (
    BLOCK,
    CALL,
    DENSE_SOURCE,
    DENSE_TARGET,
    FAULT,
    FINE,
    INDEX,
    ITEM,
    MOST_ELEMENTS,
    OFFER,
    PAIR,
    PAIRING,
    RECEIVE,
    RUN,
    SEND,
    SPLIT,
)
from numba_kernels.cuda.intrinsics import load_i64, store_i64
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


@kernel("void(int64, int64, int64)")
def _choose(offer, segments, segment):  # type: ignore[no-untyped-def]
    word = offer + OFFER.total + 8 * (segments + (segment >> 6))
    store_i64(word, load_i64(word) | (1 << (segment & 63)))


@kernel("void(int64, int64, int64, int64, int64)")
def _object(offer, fault, segment, needed, limit):  # type: ignore[no-untyped-def]
    """Say in an offer why nothing comes of it."""
    store_i64(offer + OFFER.fault, fault)
    store_i64(offer + OFFER.segment, segment)
    store_i64(offer + OFFER.needed, needed)
    store_i64(offer + OFFER.limit, limit)


@kernel("void(int64, int64, int64)")
def _write_splits(call, offer, peer):  # type: ignore[no-untyped-def]
    """Copy the split lengths into an offer; object to the first that is none."""
    segments, total = load_i64(call + CALL.segments), 0
    first = peer * load_i64(call + CALL.row_step)
    for segment in range(segments):
        length = integer_at(load_i64(call + CALL.splits), first + segment, load_i64(call + CALL.splits_kind))
        store_i64(offer + OFFER.total + 8 * segment, length)
        if load_i64(offer + OFFER.fault) == FINE:
            if length < 0 or length > MOST_ELEMENTS - total:
                _object(offer, SPLIT, segment, length, MOST_ELEMENTS - total)
            else:
                total += length


@kernel("void(int64, int64, int64)")
def _write_choice(call, offer, peer):  # type: ignore[no-untyped-def]
    """Write the set of segments for a peer; object to a block or an index out of range."""
    segments = load_i64(call + CALL.segments)
    for word in range((segments + 63) // 64):
        store_i64(offer + OFFER.total + 8 * (segments + word), 0)
    blocklengths = load_i64(call + CALL.blocklengths)
    if blocklengths == 0:
        first = load_i64(call + CALL.first) + peer * load_i64(call + CALL.first_step)
        for segment in range(first, first + load_i64(call + CALL.taken)):
            _choose(offer, segments, segment)
        return
    begin, most = 0, load_i64(call + CALL.most_indices)
    for block in range(peer + 1):
        length = integer_at(blocklengths, block, load_i64(call + CALL.blocklengths_kind))
        if length < 0 or length > most - begin:
            _object(offer, BLOCK, block, length, most - begin)
            return
        end = begin + length
        if block < peer:
            begin = end
    for position in range(begin, end):
        segment = integer_at(load_i64(call + CALL.indices), position, load_i64(call + CALL.indices_kind))
        if segment < 0 or segment >= segments:
            _object(offer, INDEX, position, segment, segments)
            return
        _choose(offer, segments, segment)


@kernel("UniTuple(int64, 4)(int64, int64, int64, int64)")
def _walk(offer, segments, itemsize, runs):  # type: ignore[no-untyped-def]
    """Elements of the chosen segments, their end at the sender and at the receiver, number of runs; these go to `runs` unless 0."""
    form = load_i64(offer + OFFER.form)
    offset = elements = source_end = target_end = count = 0
    run_end = -1
    for segment in range(segments):
        length = load_i64(offer + OFFER.total + 8 * segment)
        if length > 0 and _is_chosen(offer, segments, segment) != 0:
            source = elements if form & DENSE_SOURCE != 0 else offset
            target = elements if form & DENSE_TARGET != 0 else offset
            if offset != run_end:
                if runs != 0:
                    run = runs + count * RUN.total
                    store_i64(run + RUN.source, source * itemsize)
                    store_i64(run + RUN.target, target * itemsize)
                    store_i64(run + RUN.packed, elements * itemsize)
                    store_i64(run + RUN.nbytes, 0)
                count += 1
            if runs != 0:
                last = runs + (count - 1) * RUN.total + RUN.nbytes
                store_i64(last, load_i64(last) + length * itemsize)
            elements += length
            source_end, target_end = source + length, target + length
            run_end = offset + length
        offset += length
    return elements, source_end, target_end, count


@kernel("void(int64, int64, int64)")
def _write_offer(call, told, peer):  # type: ignore[no-untyped-def]
    """Write what this rank sends to a peer."""
    store_i64(told + OFFER.itemsize, load_i64(call + CALL.itemsize))
    store_i64(told + OFFER.form, load_i64(call + CALL.form))
    _object(told, FINE, 0, 0, 0)
    _write_splits(call, told, peer)
    if load_i64(told + OFFER.fault) == FINE:
        _write_choice(call, told, peer)
    if load_i64(told + OFFER.fault) == FINE:
        end = _walk(told, load_i64(call + CALL.segments), 0, 0)[1]
        limit = load_i64(load_i64(call + CALL.send_places) + 8 * peer)
        if end > limit:
            _object(told, SEND, 0, end, limit)


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
    itemsize, limit = load_i64(offered + OFFER.itemsize), load_i64(granted + OFFER.capacity)
    fault, segment, needed = load_i64(offered + OFFER.fault), load_i64(offered + OFFER.segment), load_i64(offered + OFFER.needed)
    elements = count = 0
    if fault != FINE:
        limit = load_i64(offered + OFFER.limit)
    else:
        elements, _, needed, count = _walk(offered, segments, itemsize, runs)
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


@kernel("void(int64, int64)")
def _report(pair, report):  # type: ignore[no-untyped-def]
    """Tell a host what is wrong with a pair."""
    store_i64(report + FAULT.segment, load_i64(pair + PAIR.segment))
    store_i64(report + FAULT.needed, load_i64(pair + PAIR.needed))
    store_i64(report + FAULT.limit, load_i64(pair + PAIR.limit))
    store_i64(report + FAULT.fault, load_i64(pair + PAIR.fault))


@kernel("void(int64, int64, int64, int64)")
def plan_pairs(thread, threads, table, count):  # type: ignore[no-untyped-def]
    """Plan `count` pairs, rows of ``PAIRING`` in a table, from the metadata of their sources."""
    index = thread
    while index < count:
        row = table + index * PAIRING.total
        call, told, pair = load_i64(row + PAIRING.call), load_i64(row + PAIRING.offer), load_i64(row + PAIRING.pair)
        size, segments, peer = load_i64(call + CALL.size), load_i64(call + CALL.segments), load_i64(row + PAIRING.peer)
        _write_offer(call, told, peer)
        _plan_pair(pair, load_i64(row + PAIRING.runs), told, row, segments)
        store_i64(pair + PAIR.source, load_i64(load_i64(call + CALL.send_places) + 8 * (size + peer)))
        store_i64(pair + PAIR.target, load_i64(row + PAIRING.target))
        if load_i64(row + PAIRING.all_splits) != 0:
            _copy_splits(load_i64(row + PAIRING.all_splits), told, segments)
        if load_i64(pair + PAIR.fault) != FINE:
            _report(pair, load_i64(row + PAIRING.outgoing))
            _report(pair, load_i64(row + PAIRING.incoming))
        index += threads
