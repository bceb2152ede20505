"""Memory of peers that the network itself reaches (:class:`transports.base.RemoteMemory`), under the engine's lock.

An access is a request, so whoever waits for it makes progress, and learns of deaths, signals and deadlines, as for a message. One that is
given up goes on, as no network can be told to stop: the owner of its buffer is kept until it is over.
"""

from __future__ import annotations

import ctypes

from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import COMM, ENGINE, REQUEST
from ncclx_mpi.p2p.matching import complete
from ncclx_mpi.p2p.progress import lock, unlock
from ncclx_mpi.p2p.rendezvous import peer_of
from ncclx_mpi.p2p.requests import fill_send, prepared
from ncclx_mpi.p2p.stirring import stir
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_three, call_two
from numba_kernels.jit import entry, kernel
from numba_kernels.layout import WORD, zeroed
from transports.base import RemoteMemory
from transports.messages import REMOTE

_ADDRESS, _NBYTES, _KEY, _KEY_BYTES = (field // WORD for field in (REMOTE.address, REMOTE.nbytes, REMOTE.key, REMOTE.key_bytes))
_HANDLE = REMOTE.handle // WORD
_NO_TAG = -1


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def begin_access(comm, request, function, rank, address, nbytes, there, handle):  # type: ignore[no-untyped-def]
    """Start a put or a get, with an idle request or a new one (0). Returns the request, perhaps complete already."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    request, peer = prepared(engine, request), peer_of(engine, load64(load64(comm + COMM.world) + 8 * rank))
    fill_send(comm, request, 0, address, nbytes, rank, _NO_TAG, 0)
    store64(request + REQUEST.second, there)
    store64(request + REQUEST.third, handle)
    if call_three(function, engine, peer, request) != 0:
        complete(request, 0)
    else:
        stir(engine)
    unlock(engine)
    return request


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def start_access(comm, request, function, rank, address, nbytes, there, handle):  # type: ignore[no-untyped-def]
    """As :func:`begin_access`, for Python."""
    return begin_access(comm, request, function, rank, address, nbytes, there, handle)


@kernel("int64(int64, int64, int64)", is_entry=True)
def call_for_own(engine, function, remote):  # type: ignore[no-untyped-def]
    """Expose or conceal memory of this rank."""
    lock(engine)
    result = call_two(function, load64(engine + ENGINE.other_state), remote)
    unlock(engine)
    return result


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def call_for_peer(engine, function, world, remote):  # type: ignore[no-untyped-def]
    """Open or shut memory of a peer."""
    lock(engine)
    result = call_three(function, load64(engine + ENGINE.other_state), peer_of(engine, world), remote)
    unlock(engine)
    return result


class Exposed:
    """Memory of this rank that peers reach by the network.

    Parameters
    ----------
    engine, functions
        What it is exposed through.
    address, nbytes
        Where it is; it stays until :meth:`conceal`.

    Attributes
    ----------
    key : bytes
        By which a peer reaches it; empty if it cannot be reached so.
    """

    def __init__(self, engine: Engine, functions: RemoteMemory, address: int, nbytes: int) -> None:
        self._engine = engine
        self._functions = functions
        self._words, self._address = zeroed(REMOTE.total)
        self._words[_ADDRESS], self._words[_NBYTES] = address, nbytes
        is_exposed = entry(call_for_own)(engine.address, functions.expose, self._address)
        self.key = ctypes.string_at(self._words[_KEY], self._words[_KEY_BYTES]) if is_exposed else b""

    def conceal(self) -> None:
        """Let nobody reach it any more. No access to it is under way."""
        if self.key:
            entry(call_for_own)(self._engine.address, self._functions.conceal, self._address)
            self.key = b""


class Opened:
    """Memory of a peer, reached by the network.

    Parameters
    ----------
    comm, rank
        Whose memory it is.
    functions
        What reaches it.
    address
        Where it begins in the process of the peer.
    key
        By which the peer has exposed it.

    Attributes
    ----------
    address : int
        As given.
    handle : int
        What accesses name it by; 0 if there is no way to it.
    """

    def __init__(self, comm: NativeComm, rank: int, functions: RemoteMemory, address: int, key: bytes) -> None:
        self._comm = comm
        self._rank = rank
        self._functions = functions
        self.address = address
        self._words, self._words_address = zeroed(REMOTE.total)
        kept = ctypes.create_string_buffer(key, len(key))
        self._words[_KEY], self._words[_KEY_BYTES] = ctypes.addressof(kept), len(key)
        is_open = self._call(functions.open)
        self.handle: int = self._words[_HANDLE] if is_open else 0

    def start_put(self, address: int, nbytes: int, start: int, request: int = 0) -> int:
        """Start copying bytes to the memory, from byte `start` of it on, with an idle request or a new one.

        Returns
        -------
        int
            Handle of the request, which is complete when they are there. The buffer is the network's until then.
        """
        return self._start(self._functions.put, address, nbytes, start, request)

    def start_get(self, address: int, nbytes: int, start: int, request: int = 0) -> int:
        """Start copying bytes of the memory to this rank; as above."""
        return self._start(self._functions.get, address, nbytes, start, request)

    def _start(self, function: int, address: int, nbytes: int, start: int, request: int) -> int:
        comm, there = self._comm.address, self.address + start
        return int(entry(start_access)(comm, request, function, self._rank, address, nbytes, there, self.handle))

    def shut(self, what: str) -> None:
        """Give it up, when no access is under way any more; errors say `what` this is part of."""
        if self.handle:
            self._comm.engine.idle_wait(lambda: self._call(self._functions.shut), what)
            self.handle = 0

    def _call(self, function: int) -> bool:
        world = self._comm.world_ranks[self._rank]
        return bool(entry(call_for_peer)(self._comm.engine.address, function, world, self._words_address))
