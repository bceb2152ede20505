"""Memory of peers that the network itself reaches (:class:`transports.base.RemoteMemory`), under the engine's lock.

An access is a request, so whoever waits for it makes progress, and learns of deaths, signals and deadlines, as for a message. One that is
given up goes on, as no network can be told to stop: the owner of its buffer is kept until it is over.
"""

from __future__ import annotations

import ctypes

from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import COMM, REQUEST
from ncclx_mpi.p2p.matching import complete, new_request
from ncclx_mpi.p2p.progress import call_locked, lock, unlock
from ncclx_mpi.p2p.requests import fill_send, prepared
from ncclx_mpi.p2p.stirring import stir
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_three
from numba_kernels.jit import entry, kernel
from numba_kernels.layout import WORD, zeroed
from transports.base import RemoteMemory, Transport
from transports.messages import REMOTE

_ADDRESS, _NBYTES, _HANDLE, _KEY, _KEY_BYTES, _PEER = (field // WORD for field in REMOTE[:-1])
_NO_TAG = -1


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def start_access(comm, request, function, peer, rank, address, nbytes, there, handle):  # type: ignore[no-untyped-def]
    """Start a put or a get, with an idle request or a new one (0). Returns the request, perhaps complete already."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    request = prepared(engine, request)
    fill_send(comm, request, 0, address, nbytes, rank, _NO_TAG, 0)
    _start(engine, function, peer, request, there, handle)
    unlock(engine)
    return request


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def start_combine(comm, function, peer, rank, operation, operand, swap, there, handle):  # type: ignore[no-untyped-def]
    """Start an atomic operation on a word. Returns the request, in whose ``passed`` is in the end what was there: no other memory is used.

    `function`: to get, if `operation` is to READ; else to combine. `swap`: what a COMPARE_AND_SWAP writes.
    """
    engine = load64(comm + COMM.engine)
    lock(engine)
    request = new_request(engine)
    fill_send(comm, request, 0, request + REQUEST.passed, WORD, rank, _NO_TAG, 0)
    store64(request + REQUEST.window, operation)
    store64(request + REQUEST.moved, operand)
    store64(request + REQUEST.passed, swap)
    _start(engine, function, peer, request, there, handle)
    unlock(engine)
    return request


@kernel("void(int64, int64, int64, int64, int64, int64)")
def _start(engine, function, peer, request, there, handle):  # type: ignore[no-untyped-def]
    """Have the network begin what a request describes."""
    store64(request + REQUEST.second, there)
    store64(request + REQUEST.third, handle)
    if call_three(function, engine, peer, request) != 0:
        complete(request, 0)
    else:
        stir(engine)


class Exposed:
    """Memory of this rank that peers reach by the network.

    Parameters
    ----------
    engine, transport
        What it is exposed through; the transport has :attr:`transports.base.Transport.remote_memory`.
    address, nbytes
        Where it is; it stays until :meth:`conceal`.

    Attributes
    ----------
    key : bytes
        By which a peer reaches it; empty if it cannot be reached so.
    """

    def __init__(self, engine: Engine, transport: Transport, address: int, nbytes: int) -> None:
        self._engine = engine
        self._transport = transport
        self._words, self._address = zeroed(REMOTE.total)
        self._words[_ADDRESS], self._words[_NBYTES] = address, nbytes
        is_exposed = _call(engine, transport, "expose", self._address)
        self.key = ctypes.string_at(self._words[_KEY], self._words[_KEY_BYTES]) if is_exposed else b""

    def conceal(self) -> None:
        """Let nobody reach it any more. No access to it is under way."""
        if self.key:
            _call(self._engine, self._transport, "conceal", self._address)
            self.key = b""


class Opened:
    """Memory of a peer, reached by the network.

    Parameters
    ----------
    comm, rank
        Whose memory it is: of a peer, or of this rank, to which the network leads back.
    transport
        What reaches it; as above.
    address
        Where it begins in the process of the peer.
    key
        By which the peer has exposed it.

    Attributes
    ----------
    transport, address
        As given.
    peer : int
        The block by which it is reached.
    handle : int
        What accesses name it by; 0 if there is no way to it.
    """

    def __init__(self, comm: NativeComm, rank: int, transport: Transport, address: int, key: bytes) -> None:
        self._comm = comm
        self._rank = rank
        self.transport = transport
        self.address = address
        self._words, self._words_address = zeroed(REMOTE.total)
        kept = ctypes.create_string_buffer(key, len(key))
        self._words[_KEY], self._words[_KEY_BYTES] = ctypes.addressof(kept), len(key)
        self.peer = functions_of(transport).own if rank == comm.rank else comm.engine.peer_address(comm.world_ranks[rank])
        self._words[_PEER] = self.peer
        is_open = _call(comm.engine, transport, "open", self._words_address)
        self.handle: int = self._words[_HANDLE] if is_open else 0

    def start_put(self, address: int, nbytes: int, start: int, request: int = 0) -> int:
        """Start copying bytes to the memory, from byte `start` of it on, with an idle request or a new one.

        Returns
        -------
        int
            Handle of the request, which is complete when they are there. The buffer is the network's until then.
        """
        return self._start(functions_of(self.transport).put, address, nbytes, start, request)

    def start_get(self, address: int, nbytes: int, start: int, request: int = 0) -> int:
        """Start copying bytes of the memory to this rank; as above."""
        return self._start(functions_of(self.transport).get, address, nbytes, start, request)

    def _start(self, function: int, address: int, nbytes: int, start: int, request: int) -> int:
        comm, there = self._comm.address, self.address + start
        return int(entry(start_access)(comm, request, function, self.peer, self._rank, address, nbytes, there, self.handle))

    def shut(self, what: str) -> None:
        """Give it up, when no access is under way any more; errors say `what` this is part of."""
        if self.handle:
            engine = self._comm.engine
            engine.idle_wait(lambda: _call(engine, self.transport, "shut", self._words_address), what)
            self.handle = 0


def functions_of(transport: Transport) -> RemoteMemory:
    """What reaches memory of peers, of a transport that can."""
    functions = transport.remote_memory
    if functions is None:
        raise ValueError(f"{transport.name} reaches no memory of peers")
    return functions


def _call(engine: Engine, transport: Transport, what: str, words: int) -> bool:
    """Call a function of a transport, with the words that describe memory."""
    function: int = getattr(functions_of(transport), what)
    return bool(entry(call_locked)(engine.address, function, engine.states[transport], words))
