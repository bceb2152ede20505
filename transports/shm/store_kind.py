"""How bytes best get from core to core: the kind of store is found by writing blocks both ways, at start and now and then.

Plain stores may be five times too slow between cores of two complexes, and streamed ones half as fast as plain ones on
processors that write memory slowly past the caches; the round trip of a flag tells neither. Only the writer's kind of store depends
on what is found here; protocols and algorithms never do, since every rank must choose those alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from numba_kernels.atomics import full_fence, load_acquire, pause, store_release, ticks
from numba_kernels.clock import ticks_per_us
from numba_kernels.jit import entry, kernel
from numba_kernels.memory import allocate, copy_lines, fill, release, write_shared
from transports.shm.arena import Arena
from transports.shm.layout import BULK, HEADER

BLOCK = 4 << 10
"""Bytes that are written and read to compare the kinds of store."""
_ROUNDS = 6
COUNTED = 2 * (_ROUNDS + 2)
_PATIENCE_US = 20_000
_SWAPPING_US = 2_000
"""Twenty times what all swaps take where both ranks have a core: who waits longer has lost its core, which spoils the figure, too."""
_HERE = -1
"""What a rank writes for its counter before it counts."""
_NAP_SECONDS = 1e-4
_PLAIN, _STREAMED = 1, 2
MAY_BE_DIRECT, MUST_BE_PIPED = 1, 2
"""What a rank has published about copies between its private buffers and those of others."""


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def bounce(mine, theirs, count, answers, rounds, patience):  # type: ignore[no-untyped-def]
    """Bounce a counter, now `count`, between two words, `rounds` times; one side asks, the other one `answers`.

    Returns the ticks of the shortest round trip, since all others had something else in them; -1 if either side did not
    answer within `patience` ticks. The counter is below ``count + rounds + 2`` afterwards.
    """
    begun = ticks()
    least, before, gave_up = -1, begun, count + rounds + 1
    for k in range(count + 1, count + rounds + 1):
        if answers == 0:
            store_release(mine, k)
        seen = load_acquire(theirs)
        while seen < k:
            pause()
            if ticks() - begun > patience:
                store_release(mine, gave_up)
                return -1
            seen = load_acquire(theirs)
        if seen == gave_up:
            return -1
        if answers != 0:
            store_release(mine, k)
        now = ticks()
        if k > count + 1 and (least < 0 or now - before < least):
            least = now - before
        before = now
    return least


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _swap(mine, theirs, count, patience, blocks, its_blocks, private, streamed):  # type: ignore[no-untyped-def]
    """Swap blocks between two ranks, as collectives do: both write at once, then both read. Least ticks of a swap, -1 as above."""
    begun = ticks()
    least, before, gave_up = -1, begun, count + _ROUNDS + 1
    for k in range(count + 1, count + _ROUNDS + 1):
        half = (k & 1) * BLOCK
        write_shared(blocks + half, private, BLOCK, streamed)
        store_release(mine, k)
        while load_acquire(theirs) < k:
            pause()
            if ticks() - begun > patience:
                store_release(mine, gave_up)
                return -1
        if load_acquire(theirs) == gave_up:
            return -1
        copy_lines(private, its_blocks + half, BLOCK)
        now = ticks()
        if k > count + 2 and (least < 0 or now - before < least):
            least = now - before
        before = now
    return least


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def better_stores(mine, theirs, count, patience, blocks, its_blocks):  # type: ignore[no-untyped-def]
    """Swap blocks with plain stores, then with streamed ones; each side writes its two `blocks` of `BLOCK` bytes.

    Returns 1 if streamed ones were the faster, 0 if plain ones were, -1 if either side did not answer. The counter is below
    ``count + COUNTED`` afterwards.
    """
    private = allocate(BLOCK)
    if private == 0:
        return -1
    fill(private, 1, BLOCK)
    plain = _swap(mine, theirs, count, patience, blocks, its_blocks, private, 0)
    streamed = -1
    if plain >= 0:
        streamed = _swap(mine, theirs, count + _ROUNDS + 2, patience, blocks, its_blocks, private, 1)
    release(private)
    return -1 if streamed < 0 else 1 if streamed < plain else 0


SAMPLED_EVERY, SAMPLES = 1024, 2
"""Payloads in a side ring of which so many are timed with each kind of store: the first ones when it has gone around once."""
SAMPLED_FROM = 4 << 10
"""Bytes from which a payload is timed: plain stores of less stand in the store buffer, whatever they cost later."""
_STREAMED_BEYOND, _PLAIN_BELOW = 3.5, 1.5


@kernel("int64(int64, int64, int64, int64)")
def time_write(target, source, nbytes, streamed):  # type: ignore[no-untyped-def]
    """Write a payload as :func:`write_shared`, and wait until it is written: ticks for each KiB."""
    began = ticks()
    write_shared(target, source, nbytes, streamed)
    full_fence()
    return ((ticks() - began) << 10) // nbytes


@kernel("int64(int64, int64, int64)")
def judge_writes(plain, streamed, before):  # type: ignore[no-untyped-def]
    """1 + the kind of store (1: streamed) by the ticks of a write with plain and with streamed ones, or as it was `before`.

    A sender does not see what reading costs. Behind streamed stores it costs the same in all placements, about four times what writing
    does; behind plain ones a third of the writing. So plain stores may take longer. On an EPYC of the fourth generation they took, of 4, 8,
    and 15 KB, 0.7 to 2.2, 0.9 to 1.6, and 1.5 to 3.8 x the streamed ones between near cores, and 1.8 to 4.6, 8 to 13, and 15 to 18 x between
    far ones.
    """
    if plain > _STREAMED_BEYOND * streamed:
        return 2
    return 1 if plain < _PLAIN_BELOW * streamed else before


def measured(arena: Arena, rank: int) -> int:
    """Compare the kinds of store (ranks 0 and 1) or wait for the verdict (others): 1 if streamed ones are to be used, else 0.

    Pipes serve as the memory: none is lent yet.
    """
    base = arena.base
    if rank < 2:
        words = base + HEADER.bounce_0, base + HEADER.bounce_1
        blocks = [base + arena.plan.bulk(owner, 0) + BULK.data for owner in (0, 1)]
        patience, found = int(_SWAPPING_US * ticks_per_us()), -1
        if _meet(arena, rank):
            found = entry(better_stores)(words[rank], words[1 - rank], 0, patience, blocks[rank], blocks[1 - rank])
        if rank == 0:
            arena.set_word(HEADER.stores, _STREAMED if found else _PLAIN)
    _nap_until(lambda: arena.word(HEADER.stores) != 0, 2 * _PATIENCE_US)
    return int(arena.word(HEADER.stores) != _PLAIN)


def _meet(arena: Arena, rank: int) -> bool:
    """Wait, asleep, for the other of ranks 0 and 1: it may need this very core to get here. False if it does not come."""
    words = HEADER.bounce_0, HEADER.bounce_1
    arena.set_word(words[rank], _HERE)
    return _nap_until(lambda: arena.word(words[1 - rank]) != 0, _PATIENCE_US)


def _nap_until(is_so: Callable[[], bool], us: int) -> bool:
    """Whether `is_so` holds before the time is up."""
    end = time.monotonic() + us / 1e6
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(_NAP_SECONDS)
    return True
