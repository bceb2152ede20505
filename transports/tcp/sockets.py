"""Calls of the system for sockets that never wait, for compiled code."""

from __future__ import annotations

import errno
import platform
import select
import socket

from numba_kernels import types
from numba_kernels.atomics import load32, load64, store32, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import make_stack

_socket = types.external("socket", types.int32(types.int32, types.int32, types.int32))
_connect = types.external("connect", types.int32(types.int32, types.int64, types.int32))
_accept = types.external("accept4", types.int32(types.int32, types.int64, types.int64, types.int32))
_close = types.external("close", types.int32(types.int32))
_send = types.external("send", types.int64(types.int32, types.int64, types.int64, types.int32))
_recv = types.external("recv", types.int64(types.int32, types.int64, types.int64, types.int32))
_sendmsg = types.external("sendmsg", types.int64(types.int32, types.int64, types.int32))
_readv = types.external("readv", types.int64(types.int32, types.int64, types.int32))
_setsockopt = types.external("setsockopt", types.int32(types.int32, types.int32, types.int32, types.int64, types.int32))
_getsockopt = types.external("getsockopt", types.int32(types.int32, types.int32, types.int32, types.int64, types.int64))
_epoll_ctl = types.external("epoll_ctl", types.int32(types.int32, types.int32, types.int32, types.int64))
_epoll_wait = types.external("epoll_wait", types.int32(types.int32, types.int64, types.int32, types.int32))
_errno_at = types.external("__errno_location", types.int64())

_STREAM = int(socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
_ACCEPTED = int(socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
_FLAGS = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_IN, _OUT = int(select.EPOLLIN), int(select.EPOLLOUT)
_ADD, _MODIFY = 1, 3
"""``EPOLL_CTL_ADD``, ``EPOLL_CTL_MOD``."""
_IS_PACKED = platform.machine() in ("x86_64", "AMD64")
EVENT_BYTES, _DATA_AT = (12, 4) if _IS_PACKED else (16, 8)
"""``struct epoll_event``, and where its data is."""
EVENTS = 16
"""That are asked for at once."""
_AGAIN = (errno.EAGAIN, errno.EINTR, errno.ENOBUFS, errno.ENOMEM)
NOTHING, ENDED = 0, -1
"""What :func:`receive` returns: there is nothing now; there will be nothing any more."""
_TCP, _SOCKET = int(socket.IPPROTO_TCP), int(socket.SOL_SOCKET)
_NODELAY, _KEEPALIVE = int(socket.TCP_NODELAY), int(socket.SO_KEEPALIVE)
_IDLE, _INTERVAL, _COUNT = int(socket.TCP_KEEPIDLE), int(socket.TCP_KEEPINTVL), int(socket.TCP_KEEPCNT)
_MOST_PROBES = 127
_ERROR = int(socket.SO_ERROR)

_event = make_stack(2)
_word = make_stack(2)
_vector = make_stack(4)
_message = make_stack(7)


@kernel("int64()")
def _last_error():  # type: ignore[no-untyped-def]
    return load32(_errno_at())


@kernel("int64(int64)")
def _may_come_later(code):  # type: ignore[no-untyped-def]
    return 1 if code in _AGAIN else 0


@kernel("int64(int64, int64)")
def _outcome(done, ended):  # type: ignore[no-untyped-def]
    """Bytes, 0 if none went now, or `ended`."""
    if done >= 0:
        return done
    return NOTHING if _may_come_later(_last_error()) != 0 else ended


@kernel("int64(int64, int64, int64)")
def send(fd, address, nbytes):  # type: ignore[no-untyped-def]
    """Send bytes: how many went, NOTHING or ENDED."""
    return _outcome(_send(types.int32(fd), address, nbytes, types.int32(_FLAGS)), ENDED)


@kernel("int64(int64, int64, int64, int64, int64)")
def send_two(fd, first, first_bytes, second, second_bytes):  # type: ignore[no-untyped-def]
    """Send bytes of two places, one behind the other."""
    vector, message = _vector(), _message()
    store64(vector, first)
    store64(vector + WORD, first_bytes)
    store64(vector + 2 * WORD, second)
    store64(vector + 3 * WORD, second_bytes)
    for word in range(7):
        store64(message + word * WORD, 0)
    store64(message + 2 * WORD, vector)
    store64(message + 3 * WORD, 2)
    return _outcome(_sendmsg(types.int32(fd), message, types.int32(_FLAGS)), ENDED)


@kernel("int64(int64, int64, int64)")
def receive(fd, address, nbytes):  # type: ignore[no-untyped-def]
    """Receive bytes: how many came, NOTHING or ENDED."""
    done = _recv(types.int32(fd), address, nbytes, types.int32(_FLAGS))
    return ENDED if done == 0 else _outcome(done, ENDED)


@kernel("int64(int64, int64, int64, int64, int64)")
def receive_two(fd, first, first_bytes, second, second_bytes):  # type: ignore[no-untyped-def]
    """Receive bytes to a place, and those behind them to another one."""
    vector = _vector()
    store64(vector, first)
    store64(vector + WORD, first_bytes)
    store64(vector + 2 * WORD, second)
    store64(vector + 3 * WORD, second_bytes)
    done = _readv(types.int32(fd), vector, types.int32(2))
    return ENDED if done == 0 else _outcome(done, ENDED)


@kernel("void(int64, int64, int64, int64)")
def _set_option(fd, level, name, value):  # type: ignore[no-untyped-def]
    place = _word()
    store32(place, value)
    _setsockopt(types.int32(fd), types.int32(level), types.int32(name), place, types.int32(4))


@kernel("void(int64, int64)")
def _tune(fd, silence):  # type: ignore[no-untyped-def]
    """Send at once what is to be sent, and give up a peer whose host says nothing for so many seconds while nothing is under way to it.

    ``TCP_USER_TIMEOUT`` is not for this: it also gives up a peer that is there, and has not read for so long, as in a debugger.
    """
    _set_option(fd, _TCP, _NODELAY, 1)
    _set_option(fd, _TCP, _IDLE, 1)
    _set_option(fd, _TCP, _INTERVAL, 1)
    _set_option(fd, _TCP, _COUNT, min(silence, _MOST_PROBES))
    _set_option(fd, _SOCKET, _KEEPALIVE, 1)


@kernel("int64(int64, int64)")
def begin_connecting(target, silence):  # type: ignore[no-untyped-def]
    """A socket that is being connected with an address; minus an ``errno`` if there is none."""
    fd = _socket(types.int32(socket.AF_INET), types.int32(_STREAM), types.int32(0))
    if fd < 0:
        return -_last_error()
    _tune(fd, silence)
    if _connect(fd, target, types.int32(16)) != 0:
        error = _last_error()
        if error not in (errno.EINPROGRESS, errno.EINTR):
            _close(fd)
            return -error
    return fd


@kernel("int64(int64)")
def failure_of(fd):  # type: ignore[no-untyped-def]
    """Why a socket could not be connected: an ``errno``, or 0."""
    place = _word()
    store64(place, 0)
    store64(place + WORD, 4)
    _getsockopt(types.int32(fd), types.int32(_SOCKET), types.int32(_ERROR), place, place + WORD)
    return load32(place)


@kernel("int64(int64, int64)")
def accept(listener, silence):  # type: ignore[no-untyped-def]
    """A connection that somebody has made; -1 if there is none."""
    fd = _accept(types.int32(listener), 0, 0, types.int32(_ACCEPTED))
    if fd >= 0:
        _tune(fd, silence)
    return fd


@kernel("void(int64)")
def close(fd):  # type: ignore[no-untyped-def]
    """Close a socket."""
    _close(types.int32(fd))


@kernel("void(int64, int64, int64, int64, int64)")
def watch(events, fd, data, has_room, is_new):  # type: ignore[no-untyped-def]
    """Have a set tell of what comes by a socket, and also of room to send if that is asked for."""
    event = _event()
    store32(event, _IN | _OUT if has_room != 0 else _IN)
    store64(event + _DATA_AT, data)
    _epoll_ctl(types.int32(events), types.int32(_ADD if is_new != 0 else _MODIFY), types.int32(fd), event)


@kernel("int64(int64, int64)")
def look(events, found):  # type: ignore[no-untyped-def]
    """Write what there is to tell to `found`; how many."""
    return max(0, _epoll_wait(types.int32(events), found, types.int32(EVENTS), types.int32(0)))


@kernel("int64(int64, int64)")
def data_of(found, index):  # type: ignore[no-untyped-def]
    """With what :func:`watch` was called."""
    return load64(found + index * EVENT_BYTES + _DATA_AT)
