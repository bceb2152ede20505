"""Giving requests up: what a request still reads or writes stays alive until it is complete, though nobody waits for it any more.

A send whose wait was interrupted, or whose request was freed, goes on; so does a receive that a peer is copying to. Each of them is kept
with a reference to what owns its memory. Complete ones are let go of when more are kept, at O(1) each::

    ENGINE.kept_first -> Kept -> Kept -> ...
                          | .request, .serial     going on as long as the request is pending and has the same serial
                          | .owner                one reference

To give up and to keep is one compiled call: between two, a signal handler could raise, and the memory would have no owner.
The GIL is held throughout, but for the engine's lock.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import ENGINE, REQUEST
from ncclx_mpi.p2p.requests import free_request, is_pending, withdraw
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import allocate_or_end, release
from numba_kernels.pyobject import none_object, object_argument, object_of
from numba_kernels.pyslots import decrease, increase

KEPT = words("Kept", "next request serial owner")
_FEW = 64
"""Owners that are kept before the first look at which of their requests are complete."""


@kernel(types.int64(types.int64, types.int64, object_argument), is_entry=True, nogil=False)
def give_up(engine, request, owner):  # type: ignore[no-untyped-def]
    """Withdraw a request in the middle of its wait, and keep `owner`, unless it is None, as long as its memory may be touched.

    Returns 1 if the memory is free now.
    """
    return give_up_kept(engine, request, object_of(owner))


@kernel("int64(int64, int64, int64)")
def give_up_kept(engine, request, owner):  # type: ignore[no-untyped-def]
    """As :func:`give_up`; `owner` is the address of an object."""
    serial, is_free = load64(request + REQUEST.serial), withdraw(engine, request)
    if is_free == 0:
        _keep(engine, request, serial, owner)
    return is_free


@kernel(types.void(types.int64, types.int64, object_argument), is_entry=True, nogil=False)
def let_go(engine, request, owner):  # type: ignore[no-untyped-def]
    """Give a request back, now or when it is complete, and keep `owner`, unless it is None, until then."""
    serial = load64(request + REQUEST.serial)
    if free_request(engine, request) == 0:
        _keep(engine, request, serial, object_of(owner))


@kernel("void(int64, int64, int64, int64)")
def _keep(engine, request, serial, owner):  # type: ignore[no-untyped-def]
    if owner == none_object():
        return
    if load64(engine + ENGINE.kept_count) >= load64(engine + ENGINE.kept_limit):
        _drop_complete(engine)
    increase(owner)
    kept = allocate_or_end(KEPT.total)
    store64(kept + KEPT.request, request)
    store64(kept + KEPT.serial, serial)
    store64(kept + KEPT.owner, owner)
    store64(kept + KEPT.next, load64(engine + ENGINE.kept_first))
    store64(engine + ENGINE.kept_first, kept)
    store64(engine + ENGINE.kept_count, load64(engine + ENGINE.kept_count) + 1)


@kernel("void(int64)")
def _drop_complete(engine):  # type: ignore[no-untyped-def]
    """Let go of the owners of complete requests. All are taken out before the first is let go of: any Python code may run then."""
    link, dead, left = engine + ENGINE.kept_first, 0, 0
    while load64(link) != 0:
        kept = load64(link)
        if is_pending(load64(kept + KEPT.request), load64(kept + KEPT.serial)) != 0:
            link = kept + KEPT.next
            left += 1
        else:
            store64(link, load64(kept + KEPT.next))
            store64(kept + KEPT.next, dead)
            dead = kept
    store64(engine + ENGINE.kept_count, left)
    store64(engine + ENGINE.kept_limit, 2 * left + _FEW)
    while dead != 0:
        kept, dead = dead, load64(dead + KEPT.next)
        decrease(load64(kept + KEPT.owner))
        release(kept)
