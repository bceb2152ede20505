"""Matching: posted receives meet arriving messages, by (context, source, tag), in MPI's order.

Exact receives and unexpected messages are chained in hash buckets of (context, source, tag), oldest first; receives
with a wildcard stand in one list in the order they were posted, unexpected messages also in one list in the order they
came. A message takes the older of the first exact and the first wildcard receive that match; a receive takes the oldest
unexpected message that matches. So order holds for every pair (MPI 4.1, 3.5), at O(1) for exact receives.

All functions run under the engine's lock.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import (
    ANY_SOURCE,
    ANY_TAG,
    BUCKET,
    BUCKETS,
    ENGINE,
    FREE,
    PENDING,
    REQUEST,
)
from ncclx_mpi.p2p.stirring import stir
from numba_kernels.atomics import load64, store64, store_release
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, end_without_memory, fill


@kernel("int64(int64)")
def try_request(engine):  # type: ignore[no-untyped-def]
    """A zeroed request, from the free list or new; 0 if there is no memory for one."""
    request = load64(engine + ENGINE.free_requests)
    if request != 0:
        store64(engine + ENGINE.free_requests, load64(request + REQUEST.next))
    else:
        request = allocate(REQUEST.total)
        if request == 0:
            return 0
    store64(request + REQUEST.handle, 0)
    reset_request(engine, request)
    return request


@kernel("int64(int64)")
def new_request(engine):  # type: ignore[no-untyped-def]
    """As :func:`try_request`; without memory for a request, of which the peer may know already, the process ends and says so."""
    request = try_request(engine)
    if request == 0:
        end_without_memory()
    return request


@kernel("void(int64, int64)")
def reset_request(engine, request):  # type: ignore[no-untyped-def]
    """Make a request ready for another use; it keeps its Python object."""
    fill(request, 0, REQUEST.handle)
    store64(request + REQUEST.serial, load64(request + REQUEST.serial) + 1)
    store64(request + REQUEST.engine, engine)
    store64(request + REQUEST.state, PENDING)


@kernel("void(int64, int64)")
def release_request(engine, request):  # type: ignore[no-untyped-def]
    """Put a request that nothing refers to back on the free list."""
    store64(request + REQUEST.state, FREE)
    store64(request + REQUEST.next, load64(engine + ENGINE.free_requests))
    store64(engine + ENGINE.free_requests, request)


@kernel("void(int64, int64)")
def complete(request, error):  # type: ignore[no-untyped-def]
    """Mark a request as complete; a detached one goes back to the free list, since nobody will ask for it."""
    if error != 0:
        store64(request + REQUEST.error, error)
    if load64(request + REQUEST.announced) != 0:
        engine = load64(request + REQUEST.engine)
        store64(engine + ENGINE.announced, load64(engine + ENGINE.announced) - 1)
    if load64(request + REQUEST.detached) != 0:
        release_request(load64(request + REQUEST.engine), request)
    else:
        store_release(request + REQUEST.state, 1)


@kernel("int64(int64, int64, int64, int64)")
def bucket_of(engine, context, source, tag):  # type: ignore[no-untyped-def]
    """Address of the bucket of (context, world rank of the source, tag)."""
    mixed = (context * 0x9E3779B1) ^ (source * 0x85EBCA77) ^ (tag * 0xC2B2AE3D)
    mixed ^= mixed >> 15
    return load64(engine + ENGINE.buckets) + (mixed & (BUCKETS - 1)) * BUCKET.total


@kernel("void(int64, int64, int64, int64, int64)")
def _append(first, last, request, next_field, previous_field):  # type: ignore[no-untyped-def]
    tail = load64(last)
    store64(request + next_field, 0)
    store64(request + previous_field, tail)
    if tail != 0:
        store64(tail + next_field, request)
    else:
        store64(first, request)
    store64(last, request)


@kernel("void(int64, int64, int64, int64, int64)")
def _unlink(first, last, request, next_field, previous_field):  # type: ignore[no-untyped-def]
    after, before = load64(request + next_field), load64(request + previous_field)
    if before != 0:
        store64(before + next_field, after)
    else:
        store64(first, after)
    if after != 0:
        store64(after + previous_field, before)
    else:
        store64(last, before)


@kernel("int64(int64)")
def is_wild(request):  # type: ignore[no-untyped-def]
    """Whether a receive has a wildcard."""
    return load64(request + REQUEST.source) == ANY_SOURCE or load64(request + REQUEST.tag) == ANY_TAG


@kernel("void(int64, int64)")
def post(engine, request):  # type: ignore[no-untyped-def]
    """Add a receive to those that wait. `source` is a world rank here, or ANY_SOURCE."""
    count = load64(engine + ENGINE.posted_count) + 1
    store64(engine + ENGINE.posted_count, count)
    store64(request + REQUEST.sequence, count)
    stir(engine)
    if is_wild(request):
        _append(engine + ENGINE.wild_first, engine + ENGINE.wild_last, request, REQUEST.next, REQUEST.previous)
    else:
        bucket = bucket_of(
            engine,
            load64(request + REQUEST.context),
            load64(request + REQUEST.source),
            load64(request + REQUEST.tag),
        )
        _append(bucket + BUCKET.posted_first, bucket + BUCKET.posted_last, request, REQUEST.next, REQUEST.previous)


@kernel("void(int64, int64)")
def unpost(engine, request):  # type: ignore[no-untyped-def]
    """Take a receive out of those that wait."""
    store64(engine + ENGINE.unposted, load64(engine + ENGINE.unposted) + 1)
    if is_wild(request):
        _unlink(engine + ENGINE.wild_first, engine + ENGINE.wild_last, request, REQUEST.next, REQUEST.previous)
    else:
        bucket = bucket_of(
            engine,
            load64(request + REQUEST.context),
            load64(request + REQUEST.source),
            load64(request + REQUEST.tag),
        )
        _unlink(bucket + BUCKET.posted_first, bucket + BUCKET.posted_last, request, REQUEST.next, REQUEST.previous)


@kernel("int64(int64, int64, int64, int64)")
def take_posted(engine, context, source, tag):  # type: ignore[no-untyped-def]
    """Unlink and return the oldest waiting receive for a message, 0 if there is none."""
    bucket = bucket_of(engine, context, source, tag)
    exact = load64(bucket + BUCKET.posted_first)
    while exact != 0:
        if (
            load64(exact + REQUEST.tag) == tag
            and load64(exact + REQUEST.source) == source
            and load64(exact + REQUEST.context) == context
        ):
            break
        exact = load64(exact + REQUEST.next)
    wild = load64(engine + ENGINE.wild_first)
    while wild != 0:
        if matches(wild, context, source, tag):
            break
        wild = load64(wild + REQUEST.next)
    if exact == 0 and wild == 0:
        return 0
    found = exact
    if exact == 0 or (wild != 0 and load64(wild + REQUEST.sequence) < load64(exact + REQUEST.sequence)):
        found = wild
    unpost(engine, found)
    return found


@kernel("int64(int64, int64, int64, int64)")
def matches(receive, context, source, tag):  # type: ignore[no-untyped-def]
    """Whether a receive, wildcards included, takes a message."""
    wanted_source, wanted_tag = load64(receive + REQUEST.source), load64(receive + REQUEST.tag)
    return (
        load64(receive + REQUEST.context) == context
        and wanted_source in (source, ANY_SOURCE)
        and (wanted_tag == tag or (wanted_tag == ANY_TAG and tag >= 0))
    )


@kernel("void(int64, int64)")
def keep_unexpected(engine, message):  # type: ignore[no-untyped-def]
    """Add an arrived message to those that no receive has asked for yet."""
    bucket = bucket_of(engine, load64(message + REQUEST.context), load64(message + REQUEST.source), load64(message + REQUEST.tag))
    _append(bucket + BUCKET.unexpected_first, bucket + BUCKET.unexpected_last, message, REQUEST.next, REQUEST.previous)
    _append(
        engine + ENGINE.unexpected_first,
        engine + ENGINE.unexpected_last,
        message,
        REQUEST.order_next,
        REQUEST.order_previous,
    )


@kernel("void(int64, int64)")
def drop_unexpected(engine, message):  # type: ignore[no-untyped-def]
    """Take a message out of the unexpected ones."""
    bucket = bucket_of(engine, load64(message + REQUEST.context), load64(message + REQUEST.source), load64(message + REQUEST.tag))
    _unlink(bucket + BUCKET.unexpected_first, bucket + BUCKET.unexpected_last, message, REQUEST.next, REQUEST.previous)
    _unlink(
        engine + ENGINE.unexpected_first,
        engine + ENGINE.unexpected_last,
        message,
        REQUEST.order_next,
        REQUEST.order_previous,
    )


@kernel("int64(int64, int64, int64, int64)")
def find_unexpected(engine, context, source, tag):  # type: ignore[no-untyped-def]
    """The oldest unexpected message for (context, source, tag), wildcards allowed; it stays where it is. 0 if none."""
    if source != ANY_SOURCE and tag != ANY_TAG:
        message = load64(bucket_of(engine, context, source, tag) + BUCKET.unexpected_first)
        while message != 0:
            if (
                load64(message + REQUEST.tag) == tag
                and load64(message + REQUEST.source) == source
                and load64(message + REQUEST.context) == context
            ):
                return message
            message = load64(message + REQUEST.next)
        return 0
    message = load64(engine + ENGINE.unexpected_first)
    while message != 0:
        found_source, found_tag = load64(message + REQUEST.source), load64(message + REQUEST.tag)
        if (
            load64(message + REQUEST.context) == context
            and source in (ANY_SOURCE, found_source)
            and (tag == found_tag or (tag == ANY_TAG and found_tag >= 0))
        ):
            return message
        message = load64(message + REQUEST.order_next)
    return 0
