"""Memory of peers, read and written by the network itself (RDMA): the processor of the peer has no part in it.

::

    origin                                              target
      open: the key of the memory, unpacked               expose: the memory, registered, and its key
      put:  put ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~>   the elements are there
            flush ------------------------------------>
                  <------------------------------------   (acknowledged by the network)
      get:  get ------------------------------------->
                  <~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~   what is there now
      combine: an operation and its operand --------->   one word is read, and written
                  <------------------------------------   what was there before

A put is finished when the flush behind it is: its elements are in the memory of the target then, whatever the target hears of next. Over a
network without RDMA, UCX has the target's progress do the same. So it does with atomic operations unless a device has all of add, swap,
compare and swap, and, or, xor: ``mlx5`` has, verbs in software have not.

UCX registers the buffers of the origin as they are used, and keeps them registered as long as they are mapped: its cache is told by hooks
in ``munmap`` and its like, so that an address whose memory was given back and taken anew is registered anew.

T = 2 alpha + m * beta for each.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.calls import call_four, call_one, call_seven, call_six, call_three, call_two
from numba_kernels.jit import kernel
from numba_kernels.memory import fill, make_stack
from transports.messages import ERR_OTHER, REMOTE, REQUEST
from transports.ucx.channel import break_lane, endpoint_of, endpoint_of_lane, fail, lanes_of
from transports.ucx.lanes import lane_of
from transports.ucx.layout import (
    FAILED,
    LANE,
    LINK,
    MEMORY,
    NO_WAY,
    OK,
    ONE_WORD,
    PARAMS,
    STATE,
    TRANSFER,
    WITH_ADDRESS_AND_LENGTH,
    WITH_CALL_AND_USER_DATA,
    WITH_CALL_USER_DATA_TYPE_AND_REPLY,
    is_error,
    status_of,
)

_params = make_stack(PARAMS.total // 8)
_memory = make_stack(MEMORY.total // 8)


@kernel("int64(int64, int64)", is_entry=True)
def expose(state, remote):  # type: ignore[no-untyped-def]
    """Register memory and make its key: 1, or 0 if UCX cannot."""
    params, context = _memory(), load64(state + STATE.context)
    fill(params, 0, MEMORY.total)
    store64(params + MEMORY.mask, WITH_ADDRESS_AND_LENGTH)
    store64(params + MEMORY.address, load64(remote + REMOTE.address))
    store64(params + MEMORY.nbytes, load64(remote + REMOTE.nbytes))
    if status_of(call_three(load64(state + STATE.map), context, params, remote + REMOTE.handle)) != OK:
        return 0
    pack, handle = load64(state + STATE.pack_key), load64(remote + REMOTE.handle)
    if status_of(call_four(pack, context, handle, remote + REMOTE.key, remote + REMOTE.key_bytes)) == OK:
        return 1
    call_two(load64(state + STATE.unmap), context, handle)
    return 0


@kernel("int64(int64, int64)", is_entry=True)
def conceal(state, remote):  # type: ignore[no-untyped-def]
    """Let go of the key of memory, and of the memory."""
    call_one(load64(state + STATE.release_key), load64(remote + REMOTE.key))
    call_two(load64(state + STATE.unmap), load64(state + STATE.context), load64(remote + REMOTE.handle))
    return 1


@kernel("int64(int64, int64)")
def _endpoint_of(state, link):  # type: ignore[no-untyped-def]
    """The endpoint of the worker that memory is exposed by: where there are several lanes, of the first, whichever messages go by."""
    lanes = lanes_of(state, link)
    if lanes == 0:
        return endpoint_of(state, link)
    return endpoint_of_lane(state, lane_of(lanes, 0)) if load64(lane_of(lanes, 0) + LANE.flags) == 0 else 0


@kernel("int64(int64, int64)", is_entry=True)
def open_key(state, remote):  # type: ignore[no-untyped-def]
    """Unpack the key of a peer's memory: 1, or 0 if there is no endpoint, or no transport of it that the key is for."""
    endpoint = _endpoint_of(state, load64(remote + REMOTE.peer))
    if endpoint == 0:
        return 0
    unpack, key = load64(state + STATE.unpack_key), load64(remote + REMOTE.key)
    return 1 if status_of(call_three(unpack, endpoint, key, remote + REMOTE.handle)) == OK else 0


@kernel("int64(int64, int64)", is_entry=True)
def shut_key(state, remote):  # type: ignore[no-untyped-def]
    """Let go of an unpacked key: 1, or 0 as long as any access, which may be by it, is under way."""
    if load64(state + STATE.accessing) != 0:
        return 0
    call_one(load64(state + STATE.destroy_key), load64(remote + REMOTE.handle))
    return 1


@kernel("void(int64, int64, int64)")
def _end(state, request, status):  # type: ignore[no-untyped-def]
    """An access has ended: the engine is told when it is polled the next time."""
    if status != OK:
        link = load64(request + TRANSFER.link)
        lanes = lanes_of(state, link)
        store64(request + REQUEST.error, ERR_OTHER)
        if lanes != 0:
            break_lane(state, lanes, 0)
        else:
            fail(link)
    store64(request + TRANSFER.next, load64(state + STATE.done_first))
    store64(state + STATE.done_first, request)


@kernel("int64(int64, int64, int64)", is_entry=True)
def on_access(request, status, access):  # type: ignore[no-untyped-def]
    """UCX has done an access, or never will: ``ucp_send_nbx_callback_t``."""
    state = load64(load64(access + TRANSFER.link) + LINK.state)
    call_one(load64(state + STATE.free_request), request)
    store64(state + STATE.accessing, load64(state + STATE.accessing) - 1)
    _end(state, access, status_of(status))
    return 0


@kernel("void(int64, int64, int64)")
def _fill(params, access, call):  # type: ignore[no-untyped-def]
    """Write what UCX is to call, by C address, when an access, or what is behind it, is done; 0: nothing."""
    store64(params + PARAMS.mask_and_flags, WITH_CALL_AND_USER_DATA if call != 0 else 0)
    store64(params + PARAMS.call, call)
    store64(params + PARAMS.user_data, access)


@kernel("int64(int64, int64)")
def _begin(link, access):  # type: ignore[no-untyped-def]
    """Note an access, and return the endpoint that it goes by; 0 if there is none any more, or none yet."""
    state = load64(link + LINK.state)
    store64(state + STATE.used, ticks())
    store64(access + TRANSFER.link, link)
    store64(access + TRANSFER.remote, 0)
    return 0 if load64(link + LINK.flags) & FAILED != 0 else _endpoint_of(state, link)


@kernel("int64(int64, int64, int64, int64)")
def _move(link, access, function, call):  # type: ignore[no-untyped-def]
    """Start a put or a get; what UCX returns, or NO_WAY if there is no endpoint."""
    endpoint = _begin(link, access)
    if endpoint == 0:
        return NO_WAY
    address, nbytes = load64(access + REQUEST.address), load64(access + REQUEST.nbytes)
    there, key, params = load64(access + REQUEST.second), load64(access + REQUEST.third), _params()
    _fill(params, access, call)
    return call_six(function, endpoint, address, nbytes, there, key, params)


@kernel("int64(int64, int64, int64)")
def _settle(state, access, returned):  # type: ignore[no-untyped-def]
    """1 if what UCX returned says that an access is done, 0 if it is under way, or was not possible."""
    if returned == OK:
        return 1
    if is_error(returned) != 0:
        _end(state, access, returned)
    else:
        store64(state + STATE.accessing, load64(state + STATE.accessing) + 1)
    return 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def put(engine, link, access):  # type: ignore[no-untyped-def]
    """Copy a buffer to memory of a peer, and have the network say when it is there."""
    state, params = load64(link + LINK.state), _params()
    moving = _move(link, access, load64(state + STATE.put), 0)
    if is_error(moving) != 0:
        return _settle(state, access, moving)
    if moving != 0:
        call_one(load64(state + STATE.free_request), moving)
    _fill(params, access, load64(state + STATE.on_access))
    endpoint = _endpoint_of(state, link)
    return _settle(state, access, call_two(load64(state + STATE.flush), endpoint, params) if endpoint != 0 else NO_WAY)


@kernel("int64(int64, int64, int64)", is_entry=True)
def get(engine, link, access):  # type: ignore[no-untyped-def]
    """Copy memory of a peer to a buffer."""
    state = load64(link + LINK.state)
    return _settle(state, access, _move(link, access, load64(state + STATE.get), load64(state + STATE.on_access)))


@kernel("int64(int64, int64, int64)", is_entry=True)
def combine(engine, link, access):  # type: ignore[no-untyped-def]
    """Do an atomic operation on a word of a peer, and bring what was there; UCX numbers operations as :mod:`transports.messages` does."""
    state, endpoint, params = load64(link + LINK.state), _begin(link, access), _params()
    if endpoint == 0:
        return _settle(state, access, NO_WAY)
    _fill(params, access, load64(state + STATE.on_access))
    store64(params + PARAMS.mask_and_flags, WITH_CALL_USER_DATA_TYPE_AND_REPLY)
    store64(params + PARAMS.datatype, ONE_WORD)
    store64(params + PARAMS.reply, access + REQUEST.passed)
    function, operation, operand = load64(state + STATE.combine), load64(access + REQUEST.window), access + REQUEST.moved
    there, key = load64(access + REQUEST.second), load64(access + REQUEST.third)
    return _settle(state, access, call_seven(function, endpoint, operation, operand, 1, there, key, params))
