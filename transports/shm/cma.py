"""Cross-memory attach: the kernel copies between the private memory of two processes, once, with no buffer in between.

::

    process_vm_readv:   memory of the peer  ->  own memory         process_vm_writev:   own memory  ->  memory of the peer

Linux allows it between processes of one user in one PID namespace, unless a security module (Yama), a seccomp filter or missing
capabilities forbid it; so each rank finds out by reading a token that the peer has published (:func:`can_reach`). Memory that
the kernel cannot pin (device mappings, secret memory) is refused for the one buffer, and callers go by the arena then.

Cost: 0.4 to 1 us a call and 50 to 100 ns a page beyond a copy by hand.
"""

from __future__ import annotations

import ctypes
import os

from numba import types

from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import allocate, release

_readv = types.ExternalFunction("process_vm_readv", types.intp(types.int32, *[types.intp] * 5))
_writev = types.ExternalFunction("process_vm_writev", types.intp(types.int32, *[types.intp] * 5))

_VECTORS = words("Vectors", "local nbytes remote same_nbytes")
_PR_SET_PTRACER = 0x59616D61
_NOBODY, _ANYBODY = ctypes.c_ulong(0), ctypes.c_ulong(-1)

_allowed: list[int] = []
"""This process, once it has allowed its peers to reach it."""


def allow_peers() -> None:
    """Let the other ranks, which are no descendants, reach this process where the Yama security module asks for leave.

    It can be given to one process or to all of the same user, which is more than the ranks: :func:`forbid_peers` takes it back.
    """
    _set_ptracer(_ANYBODY)
    _allowed.append(os.getpid())


def forbid_peers() -> None:
    """Take back what :func:`allow_peers` allowed, and nothing that the program has set itself."""
    if os.getpid() in _allowed:
        _allowed.clear()
        _set_ptracer(_NOBODY)


def _set_ptracer(who: ctypes.c_ulong) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, who, 0, 0, 0)


@kernel("int64(int64, int64, int64, int64, int64)")
def _copy(writing, pid, remote, local, nbytes):  # type: ignore[no-untyped-def]
    """Copy all of it, however little the kernel copies at once. Returns 1, or 0 if it refused some."""
    vectors, done, moved = allocate(_VECTORS.total), 0, 1
    while done < nbytes and moved > 0:
        store64(vectors + _VECTORS.local, local + done)
        store64(vectors + _VECTORS.nbytes, nbytes - done)
        store64(vectors + _VECTORS.remote, remote + done)
        store64(vectors + _VECTORS.same_nbytes, nbytes - done)
        if writing != 0:
            moved = _writev(types.int32(pid), vectors, 1, vectors + _VECTORS.remote, 1, 0)
        else:
            moved = _readv(types.int32(pid), vectors, 1, vectors + _VECTORS.remote, 1, 0)
        done += max(moved, 0)
    release(vectors)
    return 1 if done == nbytes else 0


@kernel("int64(int64, int64, int64, int64)")
def read_peer(pid, remote, local, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` at `remote` in process `pid` to `local`. Returns 1, or 0 if the kernel refused some of it."""
    return _copy(0, pid, remote, local, nbytes)


@kernel("int64(int64, int64, int64, int64)")
def write_peer(pid, remote, local, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` at `local` to `remote` in process `pid`. Returns 1, or 0 if the kernel refused some of it."""
    return _copy(1, pid, remote, local, nbytes)


@kernel("int64(int64, int64, int64)")
def can_reach(pid, token_at, token):  # type: ignore[no-untyped-def]
    """Whether the process that holds `token` at `token_at` is `pid` here, and the kernel copies from it."""
    found = allocate(8)
    same = read_peer(pid, token_at, found, 8) != 0 and load64(found) == token
    release(found)
    return 1 if same else 0
