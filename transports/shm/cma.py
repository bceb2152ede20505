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
RUNS = words("Runs", "address run step")
"""Equal runs of bytes at equal distances: where the first one is, the bytes of each, and how far the next one begins."""
_MOST_RUNS = 64
_far_runs, _near_runs = make_stack(2 * _MOST_RUNS), make_stack(2 * _MOST_RUNS)
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


@kernel("int64(int64, int64, int64, int64)")
def _spread(runs, first, end, vectors):  # type: ignore[no-untyped-def]
    """Write where the bytes from `first` to `end` of some runs are, as far as there is room; returns how many pieces that are."""
    run, step, position, count = load64(runs + RUNS.run), load64(runs + RUNS.step), first, 0
    while position < end and count < _MOST_RUNS:
        inside = position % run
        length = min(run - inside, end - position)
        store64(vectors + 16 * count, load64(runs + RUNS.address) + position // run * step + inside)
        store64(vectors + 16 * count + 8, length)
        position += length
        count += 1
    return count


@kernel("int64(int64, int64, int64, int64, int64)")
def read_runs(control, remote, local, first, end):  # type: ignore[no-untyped-def]
    """Copy some of the bytes from `first` to `end` of :data:`RUNS` of the peer to those of runs of this process.

    Returns how many bytes were copied, 0 if the kernel refused, or the rank has finalized or died.
    """
    if load_relaxed(control + CONTROL.state) != ALIVE:
        return 0
    far, near, pid = _far_runs(), _near_runs(), types.int32(load64(control + CONTROL.pid))
    pieces, its_pieces = _spread(local, first, end, near), _spread(remote, first, end, far)
    return max(_readv(pid, near, pieces, far, its_pieces, 0), 0)


@kernel("int64(int64, int64, int64)")
def can_reach(control, token_at, token):  # type: ignore[no-untyped-def]
    """Whether the process that holds `token` at `token_at` is that of the rank here, and the kernel copies from it."""
    found = _word()
    return 1 if read_peer(control, token_at, found, 8) != 0 and load64(found) == token else 0
