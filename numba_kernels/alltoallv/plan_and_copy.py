"""Both steps of an all-to-all whose counts are read when it executes, in one launch: each block plans its pair by itself, and copies a part.

::

    pairs     0 -> 0    1 -> 0    0 -> 1    1 -> 1        a pair has `pieces` blocks, as its capacity suggests
    block     0    4    1    5    2    6    3    7
              '----'
              both read the metadata of rank 0 into workspaces of their own, and find the same runs there;
              then the teams of each copy every other tile of them

A grid has no barrier that is safe without all of its blocks running, but a block has one. So nothing is shared between blocks: every block
of a pair does the planning, in phases with the barrier of the block between them, and one without tiles is done then:

=========  =======================================  ==========================================================================
phase      threads                                  what they do
=========  =======================================  ==========================================================================
read       walkers, a stretch of segments each      copy the split lengths, add them up; the last one finds the peer's list
choose     walkers, every n-th listed segment each  enter it in the set
measure    walkers, a stretch each                  count the elements and runs of the set
judge      one                                      add up what the walkers found, judge the pair; piece 0 writes the ``FAULT``s
lay out    walkers, a stretch each; all             write the runs; piece 0 tells the split lengths to the target
copy       teams of 32                              move tiles (:mod:`numba_kernels.alltoallv.copy`)
=========  =======================================  ==========================================================================

=============  ====================================  ================================  ======================================
what           who writes it                         who reads it                      order
=============  ====================================  ================================  ======================================
metadata       ranks, before they are ready          every block of their pairs        stream order, before the launch
workspace      threads of its block                  threads of its block              barrier of the block
areas          one team a tile                       their rank, when it is done       stream order, behind the launch
``FAULT``      piece 0 of the pair, if it moves not  hosts of both ranks               stream order, behind the launch
``all_splits`` piece 0 of the pair                   the target, when it is done       stream order, behind the launch
=============  ====================================  ================================  ======================================

There are no flags, and no thread waits for another block. What another rank, or stream, does to the metadata meanwhile (which no program
may do) can make blocks of a pair disagree about what they move, but not write out of bounds: a block judges and uses its own copy.

T = T(plan) + (bytes that are there) * 2 / bandwidth, T(plan) some 3 us for up to 256 split lengths and 8 ns for each further one (estimated,
never measured). The NumPy twins are :func:`numba_kernels.alltoallv.twins.runs` and :func:`numba_kernels.alltoallv.twins.moved`.
"""

from __future__ import annotations

from typing import Any

from numba_kernels.alltoallv.copy import copy_tiles
from numba_kernels.alltoallv.layout import (
    CALL,
    FAULT,
    FINE,
    LEAST_STRETCH,
    MOST_ELEMENTS,
    OFFER,
    PAIR,
    PAIRING,
    RUN,
    STRETCH,
    WALKERS,
    WORKSPACE,
)
from numba_kernels.alltoallv.plan import (
    begin_offer,
    choose,
    choose_nothing,
    find_block,
    judge_offer,
    judge_pair,
    offer_size,
    read_splits,
    walk,
)
from numba_kernels.cuda.intrinsics import load_i64, store_i64
from numba_kernels.cuda.kernel import Kernel, helper
from numba_kernels.cuda.rows import placing

BLOCK = 256
"""Threads of a block."""
_WARP = 32
_place = placing(BLOCK)


@helper
def _cut(segments):  # type: ignore[no-untyped-def]
    """Segments of a stretch, and number of stretches: one at least."""
    length = max((segments + WALKERS - 1) // WALKERS, LEAST_STRETCH)
    return length, max((segments + length - 1) // length, 1)


@helper
def _stretch(space, walker):  # type: ignore[no-untyped-def]
    return space + WORKSPACE.stretches + walker * STRETCH.total


@helper
def _read(lane, lanes, pairing, piece, pieces, space):  # type: ignore[no-untyped-def]
    call, peer, offer = load_i64(pairing + PAIRING.call), load_i64(pairing + PAIRING.peer), space + WORKSPACE.total
    segments = load_i64(call + CALL.segments)
    if lane == 0:
        begin_offer(call, offer)
    if lane == lanes - 1:
        begin, listed, block = find_block(call, peer)
        store_i64(space + WORKSPACE.begin, begin)
        store_i64(space + WORKSPACE.listed, listed)
        store_i64(space + WORKSPACE.block, block)
    choose_nothing(offer, segments, lane, lanes)
    length, stretches = _cut(segments)
    walker = lane
    while walker < stretches:
        total = read_splits(call, offer, peer, walker * length, min((walker + 1) * length, segments))
        store_i64(_stretch(space, walker) + STRETCH.sum, total)
        walker += lanes


@helper
def _choose(lane, lanes, pairing, piece, pieces, space):  # type: ignore[no-untyped-def]
    call, begin = load_i64(pairing + PAIRING.call), load_i64(space + WORKSPACE.begin)
    end = begin + load_i64(space + WORKSPACE.listed) if load_i64(space + WORKSPACE.block) < 0 else begin
    stretches = _cut(load_i64(call + CALL.segments))[1]
    walker = lane
    while walker < stretches:
        wrong = choose(call, space + WORKSPACE.total, begin + walker, end, stretches)
        store_i64(_stretch(space, walker) + STRETCH.wrong, wrong)
        walker += lanes


@helper
def _measure(lane, lanes, pairing, piece, pieces, space):  # type: ignore[no-untyped-def]
    segments = load_i64(load_i64(pairing + PAIRING.call) + CALL.segments)
    length, stretches = _cut(segments)
    walker = lane
    while walker < stretches:
        first, found = walker * length, _stretch(space, walker)
        elements, last, runs = walk(space + WORKSPACE.total, segments, first, min(first + length, segments), 0, 0, 0)
        store_i64(found + STRETCH.elements, elements)
        store_i64(found + STRETCH.last, last)
        store_i64(found + STRETCH.runs, runs)
        walker += lanes


@helper
def _judge(lane, lanes, pairing, piece, pieces, space):  # type: ignore[no-untyped-def]
    if lane != 0:
        return
    call, peer = load_i64(pairing + PAIRING.call), load_i64(pairing + PAIRING.peer)
    offer, pair = space + WORKSPACE.total, space + WORKSPACE.pair
    total = elements = last = runs = 0
    wrong = -1
    for walker in range(_cut(load_i64(call + CALL.segments))[1]):
        found = _stretch(space, walker)
        store_i64(found + STRETCH.offset, total)
        store_i64(found + STRETCH.before, elements)
        store_i64(found + STRETCH.first, runs)
        if load_i64(found + STRETCH.elements) > 0:
            last = total + load_i64(found + STRETCH.last)
        elements += load_i64(found + STRETCH.elements)
        runs += load_i64(found + STRETCH.runs)
        added, position = load_i64(found + STRETCH.sum), load_i64(found + STRETCH.wrong)
        total = total + added if total >= 0 and added >= 0 and added <= MOST_ELEMENTS - total else -1
        wrong = position if position >= 0 and (wrong < 0 or position < wrong) else wrong
    begin, listed, block = load_i64(space + WORKSPACE.begin), load_i64(space + WORKSPACE.listed), load_i64(space + WORKSPACE.block)
    judge_offer(call, offer, peer, total, begin, listed, block, wrong, elements, last)
    judge_pair(pair, offer, pairing, elements, last, runs)
    store_i64(pair + PAIR.source, load_i64(load_i64(call + CALL.send_places) + 8 * (load_i64(call + CALL.size) + peer)))
    store_i64(pair + PAIR.target, load_i64(pairing + PAIRING.target))
    if piece == 0 and load_i64(pair + PAIR.fault) != FINE:
        _report(pair, load_i64(pairing + PAIRING.outgoing))
        _report(pair, load_i64(pairing + PAIRING.incoming))


@helper
def _report(pair, report):  # type: ignore[no-untyped-def]
    """Tell a host what is wrong with a pair."""
    store_i64(report + FAULT.segment, load_i64(pair + PAIR.segment))
    store_i64(report + FAULT.needed, load_i64(pair + PAIR.needed))
    store_i64(report + FAULT.limit, load_i64(pair + PAIR.limit))
    store_i64(report + FAULT.fault, load_i64(pair + PAIR.fault))


@helper
def _lay_out(lane, lanes, pairing, piece, pieces, space):  # type: ignore[no-untyped-def]
    segments, offer = load_i64(load_i64(pairing + PAIRING.call) + CALL.segments), space + WORKSPACE.total
    all_splits = load_i64(pairing + PAIRING.all_splits)
    if piece == 0 and all_splits != 0:
        segment = lane
        while segment < segments:
            store_i64(all_splits + 8 * segment, load_i64(offer + OFFER.total + 8 * segment))
            segment += lanes
    if load_i64(space + WORKSPACE.pair + PAIR.fault) != FINE:
        return
    length, stretches = _cut(segments)
    walker = lane
    while walker < stretches:
        first, found = walker * length, _stretch(space, walker)
        runs = offer + offer_size(segments) + load_i64(found + STRETCH.first) * RUN.total
        offset, before = load_i64(found + STRETCH.offset), load_i64(found + STRETCH.before)
        walk(offer, segments, first, min(first + length, segments), offset, before, runs)
        walker += lanes


@helper
def _copy(lane, lanes, pairing, piece, pieces, space):  # type: ignore[no-untyped-def]
    runs = space + WORKSPACE.total + offer_size(load_i64(load_i64(pairing + PAIRING.call) + CALL.segments))
    width = min(_WARP, lanes)
    teams, team = lanes // width, lane // width
    if team < teams:  # neighbouring tiles fall to different blocks, so that few bytes go to many multiprocessors
        copy_tiles(lane % width, width, team * pieces + piece, teams * pieces, space + WORKSPACE.pair, runs)


def _phase(step: Any) -> Any:
    """One phase of the kernel: `step` for every row, the share of a pair that a block works on."""

    def phase(thread, threads, table, pairs, pieces, spaces, nbytes):  # type: ignore[no-untyped-def]
        row, further, lane, lanes = _place(thread, threads, pairs * pieces)
        while row < pairs * pieces:
            piece = row // pairs
            step(lane, lanes, table + (row - piece * pairs) * PAIRING.total, piece, pieces, spaces + row * nbytes)
            row += further

    return phase


_FIRST, *_OTHERS = map(_phase, (_read, _choose, _measure, _judge, _lay_out, _copy))

PLAN_AND_COPY = Kernel("alltoallv_plan_and_copy", _FIRST, phases=_OTHERS, parameters=5, launch_bounds=BLOCK, blocks_a_processor=3)
"""Arguments: address of a table of ``PAIRING``, number of its rows, pieces that each pair is cut into, address of a workspace for each piece
of each pair, and bytes of one."""

KERNELS = (PLAN_AND_COPY,)
