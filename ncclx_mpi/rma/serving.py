"""The target's side of one window that ranks reach by requests: takes them in, and applies them in the order of each origin.

What is small, and finds what it needs free, compiled code has served before it gets here (:mod:`ncclx_mpi.rma.arriving`).
Accumulations go the way of near ranks (:class:`ncclx_mpi.rma.accumulate.Near`), under the same guard, and locks are the same word,
so that near and far origins keep each other out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ncclx_mpi import errors
from ncclx_mpi.buffers.memory import Bytes, array_words
from ncclx_mpi.p2p import alarm
from ncclx_mpi.p2p.alarm import SERVED as SERVED_SPACE
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import ANY_SOURCE, ANY_TAG
from ncclx_mpi.p2p.remote_memory import Exposed
from ncclx_mpi.process import report_exception
from ncclx_mpi.rma import locks, requests
from ncclx_mpi.rma.accumulate import Near, Reduction
from ncclx_mpi.rma.arriving import MOST_FUNCTIONS, take_request
from ncclx_mpi.rma.layout import EXCLUSIVE, FAILURE, FREE, GRANTED, KEPT, SERVED, SERVED_WINDOW, SHARED, ServedWords
from ncclx_mpi.rma.reach import Landing
from ncclx_mpi.rma.requests import Request
from numba_kernels.jit import c_address, entry
from numba_kernels.late_numpy import np
from numba_kernels.layout import WORD, zeroed
from transports.base import Transport

_MOST_HELD = 64 << 20
"""Bytes of requests that are taken in before the oldest are served; the others wait with their senders."""


class Serving:
    """What one rank does for the origins of one window. One thread uses it.

    Parameters
    ----------
    comm
        The window's communicator.
    memory
        The rank's own memory in the window.
    lock
        Address of the word of its lock.
    function_of
        Address of the reduction function with a number (:class:`ncclx_mpi.rma.accumulate.Reduction`), and whether it is compiled.
    mapped
        Address and bytes of the memory, and address of the word of its guard; no bytes where only `memory` knows where it is. The network
        may reach it from the first time on that an origin asks for that, until this is closed.
    exposed
        What the network reaches it by already.
    """

    def __init__(
        self,
        comm: NativeComm,
        memory: Near,
        lock: int,
        function_of: Callable[[int], tuple[int, bool]],
        mapped: tuple[int, int, int] = (0, 0, 0),
        exposed: tuple[Transport, Exposed] | None = None,
    ) -> None:
        self._comm = comm
        self.engine = comm.engine
        self._memory = memory
        self._mapped = mapped[:2]
        self._exposed: dict[Transport, Exposed] = dict([exposed] if exposed else [])
        self._lock = lock
        self._function_of = function_of
        self._coming: dict[int, deque[tuple[int, Bytes]]] = {}
        self._held_bytes = 0
        self._waiting: dict[int, Request] = {}
        self._functions, functions = zeroed(MOST_FUNCTIONS * WORD)
        self.words = ServedWords(comm.size)
        base, nbytes, guard = mapped
        self.words.fill("comm", comm.address, base if nbytes else 0, nbytes, lock, guard, functions, 1, 0, 0, 0)
        self._watched = self.words.address + SERVED_WINDOW.watched
        watched = (
            comm.context + SERVED_SPACE,
            comm.word("local"),
            c_address(take_request),
            self.words.row(KEPT),
            self.words.row(SERVED),
        )
        self.words.fill("watched", 0, *watched)

    def watch(self) -> None:
        """Have compiled code look at requests as they come, from now on."""
        entry(alarm.watch)(self.engine.address, self._watched)

    def unwatch(self) -> None:
        """Let no compiled code look at requests any more."""
        entry(alarm.unwatch)(self.engine.address, self._watched)

    def close(self) -> None:
        """Let the network reach the memory no more: no origin accesses it, and the thread has left it alone."""
        for exposed in self._exposed.values():
            exposed.conceal()

    def is_served_by(self, thread: int) -> None:
        """Note which thread calls :meth:`step`."""
        self.words.set("thread", thread)

    @property
    def is_waited_for(self) -> bool:
        """Whether an origin waits for what only asking again and again can find out."""
        return bool(self._waiting) or self._held_bytes > 0

    def step(self) -> bool:
        """Serve what has come; whether there was anything, also if compiled code has served it while this thread looked."""
        served = self.words.get("by_thread")
        is_any = self._take_in() or self.words.get("by_thread") != served
        for origin, coming in self._coming.items():
            while coming and self.engine.done(coming[0][0]):
                request, message = coming.popleft()
                self.engine.free(request)
                self._serve(origin, requests.read(message))
                entry(alarm.note_served)(self.words.row(SERVED) + WORD * origin)
                self._held_bytes -= message.nbytes
                is_any = True
        self._grant()
        return is_any

    def _take_in(self) -> bool:
        """Start receiving all requests that have come; whether there are any."""
        is_any = False
        while self._held_bytes < _MOST_HELD:
            try:
                found = self.engine.probe(self._comm, ANY_SOURCE, ANY_TAG, requests.REQUESTS)
                room = np.empty(0 if found is None else found.nbytes, np.uint8)
            except (
                errors.Exception,
                MemoryError,
            ):  # a rank has died, and others are served until they know; or what has come has to wait
                break
            if found is None:
                break
            request = self.engine.start_recv(
                self._comm, array_words(room)[0], found.nbytes, found.source, ANY_TAG, requests.REQUESTS
            )
            self._coming.setdefault(found.source, deque()).append((request, room))
            self._held_bytes += found.nbytes
            is_any = True
        return is_any

    def _serve(self, origin: int, request: Request) -> None:
        """Do what a request asks for. What fails is reported here; the origin learns of it from an answer without bytes, or the next word."""
        try:
            self._do(origin, request)
        except Exception as error:
            report_exception(f"rank {self._comm.rank} could not serve rank {origin}'s access to its window")
            if request.reply:
                self._reply(origin, request, np.empty(0, np.uint8))
            else:
                failure = error.Get_error_class() if isinstance(error, errors.Exception) else errors.ERR_OTHER
                self.words.set_of(FAILURE, origin, failure)

    def _do(self, origin: int, request: Request) -> None:
        action = request.action
        if action in _ACCESSES:
            _ACCESSES[action](self, origin, request)
        elif action == requests.LOCK:
            self._wait(origin, request)
            self._grant()
            if origin in self._waiting and not request.element:
                self._wait_no_more(origin)
                self._answer(origin, request, 0)
        else:
            if action == requests.UNLOCK or (action == requests.FORGET and not self._wait_no_more(origin)):
                self._release(origin)
            if request.reply:
                failure = self.words.of(FAILURE, origin)
                self.words.set_of(FAILURE, origin, 0)
                self._answer(origin, request, -failure)

    # Locks

    def _wait(self, origin: int, request: Request) -> None:
        """Let an origin wait for the lock: compiled code gives it to nobody meanwhile."""
        self._waiting[origin] = request
        self.words.set("waiting", len(self._waiting))

    def _wait_no_more(self, origin: int) -> bool:
        """Let an origin wait no more; whether it did."""
        was_waiting = self._waiting.pop(origin, None) is not None
        self.words.set("waiting", len(self._waiting))
        return was_waiting

    def _grant(self) -> None:
        """Give the lock to those who wait for it, in the order in which they came."""
        for origin, request in list(self._waiting.items()):
            exclusive = bool(request.value)
            if not entry(locks.try_lock)(self._lock, exclusive, self._comm.world_ranks[origin]):
                return
            self.words.set_of(GRANTED, origin, EXCLUSIVE if exclusive else SHARED)
            self._wait_no_more(origin)
            self._answer(origin, request, 1)

    def _release(self, origin: int) -> None:
        held = self.words.of(GRANTED, origin)
        self.words.set_of(GRANTED, origin, FREE)
        if held != FREE:
            locks.release([self._lock], held == EXCLUSIVE)

    # Access

    def _put(self, origin: int, request: Request) -> None:
        self._memory.write(request.part.place, request.payload)

    def _get(self, origin: int, request: Request) -> None:
        room, landing = self._room(request)
        self._memory.read(request.part.place, landing)
        self._reply(origin, request, room)

    def _combine(self, origin: int, request: Request) -> None:
        room, landing = self._room(request)
        number = request.value
        known = number != requests.NO_REDUCTION
        reduction = Reduction(self._function(number), request.element, number) if known else None
        self._memory.combine(request.part.place, reduction, request.payload, landing if request.reply else None)
        self._reply(origin, request, room)

    def _function(self, number: int) -> int:
        """The reduction function with a number; compiled code may use it from now on, if it is compiled."""
        address, is_compiled = self._function_of(number)
        if is_compiled and number < MOST_FUNCTIONS:
            self._functions[number] = address
        return address

    def _replace(self, origin: int, request: Request) -> None:
        room, landing = self._room(request)
        self._memory.replace(request.part.place, request.payload, landing if request.reply else None)
        self._reply(origin, request, room)

    def _swap(self, origin: int, request: Request) -> None:
        room, landing = self._room(request)
        self._memory.swap_if_same(request.part.place, request.payload, request.payload + request.part.nbytes, landing)
        self._reply(origin, request, room)

    def _expose(self, origin: int, request: Request) -> None:
        """Tell an origin how the network reaches the memory; nothing, if it does not, or if only `memory` knows where it is."""
        address, nbytes = self._mapped
        transport = self.engine.way_to(self._comm.world_ranks[origin])
        answer = np.zeros(requests.KEY_ROOM, np.uint8)
        if nbytes and transport.remote_memory is not None:
            if transport not in self._exposed:
                self._exposed[transport] = Exposed(self.engine, transport, address, nbytes)
            key = self._exposed[transport].key
            if requests.KEY.total + len(key) <= answer.size:
                answer[: requests.KEY.total].view(np.int64)[:] = address, len(key)
                answer[requests.KEY.total :][: len(key)] = np.frombuffer(key, np.uint8)
        self._reply(origin, request, answer)

    def _room(self, request: Request) -> tuple[Bytes, Landing]:
        """Memory for what the target holds, if the origin wants to know it."""
        room = np.empty(request.part.nbytes if request.reply else 0, np.uint8)
        return room, (array_words(room)[0], room, lambda nbytes: None)

    # Answers

    def _answer(self, origin: int, request: Request, word: int) -> None:
        self._reply(origin, request, np.array([word], np.int64).view(np.uint8))

    def _reply(self, origin: int, request: Request, data: Bytes) -> None:
        if request.reply:
            sent = self.engine.start_send(self._comm, array_words(data)[0], data.nbytes, origin, request.reply, 0, requests.REPLIES)
            self.engine.free(sent, (self._comm, data))


_ACCESSES: dict[int, Callable[[Serving, int, Request], None]] = {
    requests.PUT: Serving._put,
    requests.GET: Serving._get,
    requests.COMBINE: Serving._combine,
    requests.REPLACE: Serving._replace,
    requests.SWAP: Serving._swap,
    requests.EXPOSE: Serving._expose,
}
