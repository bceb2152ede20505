"""Cross-memory attach: the kernel copies between the private memory of two processes, once, with no buffer in between.

::

    process_vm_readv:   memory of the peer  ->  own memory         process_vm_writev:   own memory  ->  memory of the peer

Linux allows it between processes of one user in one PID namespace, unless a security module (Yama), a seccomp filter or missing
capabilities forbid it; so each rank finds out by reading a token that the peer has published (:func:`can_reach`). Memory that
the kernel cannot pin (device mappings, secret memory) is refused for the one buffer, and callers go by the arena then.

Cost: 0.4 to 1 us a call and 50 to 100 ns a page beyond a copy by hand.

The kernel knows the peer by its number, which another process may have once the peer is gone. Nothing holds a number but a process that
its parent has not waited for, and no call takes a descriptor of the process instead; so the state of the peer is looked at before
every call, which costs a load. The launcher, or the watch of any rank (:mod:`ncclx_mpi.bootstrap.watch`), has declared a rank dead
within milliseconds of its end, and Linux hands numbers out in turn: for a stranger to have it before that, all others of ``pid_max`` had to
be used up in these milliseconds.
"""

from __future__ import annotations

import ctypes
import os

from numba_kernels import types
from numba_kernels.atomics import load64, load_relaxed, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import make_stack
from transports.shm.layout import ALIVE, CONTROL

_readv = types.external("process_vm_readv", types.intp(types.int32, *[types.intp] * 5))
_writev = types.external("process_vm_writev", types.intp(types.int32, *[types.intp] * 5))

_VECTORS = words("Vectors", "local nbytes remote same_nbytes")
_vectors, _word = make_stack(_VECTORS.total // 8), make_stack(1)
_PR_SET_PTRACER = 0x59616D61
_NOBODY, _ANYBODY = ctypes.c_ulong(0), ctypes.c_ulong(-1)

_allowed: list[int] = []
"""This process, once it has allowed its peers to reach it."""


def allow_peers() -> None:
    """Let the other ranks, which are no descendants, reach this process where the Yama security module asks for leave.

    It can be given to one process or to all of the same user, which is more than the ranks: :func:`forbid_peers` takes it back.
    """
    if os.getpid() in _allowed:
        return
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
def _copy(writing, control, remote, local, nbytes):  # type: ignore[no-untyped-def]
    """Copy all of it, however little the kernel copies at once. Returns 1, or 0 if it refused some, or the peer is not alive."""
    vectors, done, moved, pid = _vectors(), 0, 1, types.int32(load64(control + CONTROL.pid))
    while done < nbytes and moved > 0 and load_relaxed(control + CONTROL.state) == ALIVE:
        store64(vectors + _VECTORS.local, local + done)
        store64(vectors + _VECTORS.nbytes, nbytes - done)
        store64(vectors + _VECTORS.remote, remote + done)
        store64(vectors + _VECTORS.same_nbytes, nbytes - done)
        if writing != 0:
            moved = _writev(pid, vectors, 1, vectors + _VECTORS.remote, 1, 0)
        else:
            moved = _readv(pid, vectors, 1, vectors + _VECTORS.remote, 1, 0)
        done += max(moved, 0)
    return 1 if done == nbytes else 0


@kernel("int64(int64, int64, int64, int64)")
def read_peer(control, remote, local, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` at `remote` in the process of the rank whose ``CONTROL`` block is given to `local`.

    Returns 1, or 0 if the kernel refused some of it, or the rank has finalized or died.
    """
    return _copy(0, control, remote, local, nbytes)


@kernel("int64(int64, int64, int64, int64)")
def write_peer(control, remote, local, nbytes):  # type: ignore[no-untyped-def]
    """As :func:`read_peer`, from `local` to `remote`."""
    return _copy(1, control, remote, local, nbytes)


@kernel("int64(int64, int64, int64)")
def can_reach(control, token_at, token):  # type: ignore[no-untyped-def]
    """Whether the process that holds `token` at `token_at` is that of the rank here, and the kernel copies from it."""
    found = _word()
    return 1 if read_peer(control, token_at, found, 8) != 0 and load64(found) == token else 0
