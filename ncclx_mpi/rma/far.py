"""The window memory of a rank that shares none with this one: every access is a request that the rank serves.

::

    origin                                      target
      PUT, COMBINE, ... with the elements ------> applied in the order in which they come
      GET, FLUSH, ...  -------------------------> what it held, or one word
               <--------------------------------

What an access takes from this rank is copied before its method returns, and what it brings is there when it returns, or when its
request is complete. What it does at the target is complete after the next synchronisation, which asks the target for a word.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Collection
from typing import Any

from ncclx_mpi import errors
from ncclx_mpi.buffers.memory import Bytes, array_words
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import ANY_TAG
from ncclx_mpi.rma import requests
from ncclx_mpi.rma.accumulate import Reduction
from ncclx_mpi.rma.asking import FIRST_TAG
from ncclx_mpi.rma.layout import FAR_TARGET
from ncclx_mpi.rma.reach import Landing, Place
from numba_kernels.late_numpy import np
from numba_kernels.layout import WORD, zeroed

_MOST_UNDERWAY = 16 << 20
"""Bytes of requests that have not gone out, and of answers that have not come: what more there is waits for the oldest."""
_CHANGES, _CONFIRMED = FAR_TARGET.changes // WORD, FAR_TARGET.confirmed // WORD


class Answer:
    """The answer to one request: `nbytes` bytes that arrive at an address, whose memory `owner` keeps alive. Errors say `what` it is for."""

    def __init__(self, far: Far, address: int, nbytes: int, owner: Any, what: str) -> None:
        self._far = far
        self._owner = owner
        self._what = what
        self.nbytes = nbytes
        self.tag = far.new_tag()
        engine = far.comm.engine
        self._request = engine.new_request()
        engine.start_recv(far.comm, address, nbytes, far.rank, self.tag, requests.REPLIES, self._request)

    @property
    def is_here(self) -> bool:
        """Whether it has come, after some progress."""
        return not self._request or self._far.comm.engine.done(self._request)

    def wait(self) -> None:
        """Return when it has come."""
        if not self._request:
            return
        far, engine = self._far, self._far.comm.engine
        engine.await_request(self._request, self._what)
        came, request = engine.result(self._request).nbytes, self._request
        self._request = 0
        engine.free(request)
        if came != self.nbytes:
            errors.fail(
                errors.ERR_OTHER,
                f"rank {far.comm.rank}: {self._what} failed there: {came} bytes came instead of {self.nbytes}; the stderr of rank "
                f"{far.rank} says why",
            )

    def abandon(self) -> None:
        """Take care that nothing arrives any more."""
        request, self._request = self._request, 0
        if request:
            self._far.comm.engine.withdraw(request, self._owner)

    def __del__(self) -> None:
        if getattr(self, "_request", 0):
            self.abandon()


class Word:
    """An answer of one word; a negative one is an MPI error class."""

    def __init__(self, far: Far, what: str) -> None:
        self._word = np.zeros(1, np.int64)
        self._far = far
        self._what = what
        self._answer = Answer(far, array_words(self._word)[0], self._word.nbytes, self._word, what)
        self.tag = self._answer.tag

    def get(self) -> int:
        """Return it, when it has come."""
        self._answer.wait()
        word = int(self._word[0])
        if word < 0:
            far = self._far
            errors.fail(-word, f"rank {far.comm.rank}: {self._what} failed there; the stderr of rank {far.rank} says why")
        return word


class Fetch:
    """What an access brings to this rank, in as many answers as it has parts."""

    def __init__(self, far: Far, place: Place, landing: Landing) -> None:
        self._far = far
        self._landing: Landing | None = landing
        self._owner = landing[1]
        self._nbytes = place.nbytes
        self._answers: list[Answer] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is to come any more."""
        return self._landing is None

    def expect(self, address: int, nbytes: int) -> Answer:
        """Wait for a part of it from now on, which comes to an address."""
        answer = Answer(self._far, address, nbytes, self._owner, self._far.what)
        self._answers.append(answer)
        return answer

    def poll(self) -> bool:
        """Whether it is all here, after some progress."""
        return all(answer.is_here for answer in self._answers)

    def wait(self) -> None:
        """Return when all of it is where it belongs."""
        with self._far.busy:
            for answer in self._answers:
                answer.wait()
            landing, self._landing = self._landing, None
            if landing is not None:
                landing[2](self._nbytes)

    def abandon(self) -> None:
        """Give it up: nothing arrives any more."""
        with self._far.busy:
            self._landing = None
            for answer in self._answers:
                answer.abandon()


class Far:
    """The window memory of `rank` of a communicator.

    Attributes
    ----------
    comm, rank
        The window's communicator, and the target in it.
    what
        What this rank is in while it waits for an access: for errors.
    busy
        Held by the thread that uses this object.
    address
        Of the words that compiled code asks it by (:data:`ncclx_mpi.rma.layout.FAR_TARGET`), as long as this object lives.
    """

    def __init__(self, comm: NativeComm, rank: int) -> None:
        self.comm = comm
        self.rank = rank
        self.what = f"an access to the window of rank {rank}"
        self.busy = threading.RLock()
        self._tags = itertools.cycle(range(1, FIRST_TAG))
        self._sent: deque[tuple[int, Bytes]] = deque()
        self._sent_bytes = 0
        self._awaited: deque[Answer] = deque()
        self._awaited_bytes = 0
        self._fetches: list[Fetch] = []
        self._words, self.address = zeroed(FAR_TARGET.total)
        self._words[FAR_TARGET.rank // WORD] = rank

    def _count(self) -> None:
        """Count a request without an answer."""
        self._words[_CHANGES] += 1

    def _note_fetches(self, fetches: list[Fetch]) -> None:
        """Keep what is fetched; compiled code leaves synchronisation to Python meanwhile."""
        self._fetches = fetches
        self._words[FAR_TARGET.fetches // WORD] = len(fetches)

    def new_tag(self) -> int:
        """Return a tag for an answer."""
        return next(self._tags)

    # Access

    def read(self, place: Place, landing: Landing) -> Fetch:
        """Start copying elements to this rank."""
        return self._fetch(requests.GET, place, landing)

    def write(self, place: Place, packed: int) -> None:
        """Copy packed bytes to elements."""
        self._change(requests.PUT, place, packed)

    def combine(self, place: Place, reduction: Reduction | None, origin: int, landing: Landing | None = None) -> Fetch | None:
        """Combine packed elements at address `origin` into the memory, None leaves it as it is; start copying what it held before."""
        _, size, number = reduction or (0, 1, requests.NO_REDUCTION)
        if landing is not None:
            return self._fetch(requests.COMBINE, place, landing, number, size, (origin,) if reduction else ())
        self._change(requests.COMBINE, place, origin, number, size)
        return None

    def replace(self, place: Place, origin: int, landing: Landing | None = None) -> Fetch | None:
        """Write packed elements at address `origin` to the memory; start copying what it held before."""
        if landing is not None:
            return self._fetch(requests.REPLACE, place, landing, given=(origin,))
        self._change(requests.REPLACE, place, origin)
        return None

    def swap_if_same(self, place: Place, origin: int, compare: int, landing: Landing) -> Fetch:
        """Write one element to the memory if it holds the bytes at `compare`; start copying what it held before."""
        return self._fetch(requests.SWAP, place, landing, given=(origin, compare))

    def _change(self, action: int, place: Place, origin: int, value: int = 0, element: int = 0) -> None:
        """Send requests that carry the packed elements at address `origin`."""
        with self.busy:
            for part in requests.parts(place):
                nbytes = part.nbytes
                message, room = requests.message(action, 0, part, value, element, nbytes)
                ctypes.memmove(room, origin, nbytes)
                origin += nbytes
                self._count()
                self._send(message)

    def _fetch(
        self, action: int, place: Place, landing: Landing, value: int = 0, element: int = 0, given: tuple[int, ...] = ()
    ) -> Fetch:
        """Send requests that carry the packed elements at the addresses `given`, and expect what the target held."""
        fetch, done = Fetch(self, place, landing), 0
        with self.busy:
            try:
                for part in requests.parts(place):
                    nbytes = part.nbytes
                    self._make_room(nbytes)
                    answer = fetch.expect(landing[0] + done, nbytes)
                    self._awaited.append(answer)
                    message, room = requests.message(action, answer.tag, part, value, element, nbytes * len(given))
                    for k, address in enumerate(given):
                        ctypes.memmove(room + k * nbytes, address + done, nbytes)
                    self._send(message)
                    done += nbytes
            except BaseException:
                fetch.abandon()
                raise
            self._note_fetches([*(each for each in self._fetches if not each.is_over), fetch])
        return fetch

    def _make_room(self, nbytes: int) -> None:
        """Wait until an answer of so many bytes may be asked for."""
        while self._awaited and (self._awaited[0].is_here or self._awaited_bytes + nbytes > _MOST_UNDERWAY):
            self._awaited[0].wait()
            self._awaited_bytes -= self._awaited.popleft().nbytes
        self._awaited_bytes += nbytes

    def _send(self, message: Bytes) -> None:
        engine = self.comm.engine
        while self._sent and (engine.done(self._sent[0][0]) or self._sent_bytes + message.nbytes > _MOST_UNDERWAY):
            self._end_oldest()
        request = engine.new_request()
        self._sent.append((request, message))
        self._sent_bytes += message.nbytes
        engine.start_send(self.comm, array_words(message)[0], message.nbytes, self.rank, 0, 0, requests.REQUESTS, request)

    def _end_oldest(self) -> None:
        request, message = self._sent.popleft()
        self._sent_bytes -= message.nbytes
        self.comm.engine.wait_all([request], self.what, message)

    # Synchronisation

    def lock(self, exclusive: bool) -> None:
        """Take the target's lock, when it is this rank's turn."""
        try:
            self.ask_for_lock(exclusive, is_patient=True).get()
        except BaseException:
            self.forget_lock()
            raise

    def ask_for_lock(self, exclusive: bool, is_patient: bool) -> Word:
        """Ask for the target's lock; the answer is 1 if this rank has it then. Who `is_patient` gets no other answer."""
        return self._ask(requests.LOCK, f"Win.Lock of rank {self.rank}", int(exclusive), int(is_patient))

    def forget_lock(self) -> None:
        """Take back what was asked for, and give back what was granted."""
        with self.busy:
            self._count()
            self._send(requests.message(requests.FORGET)[0])

    def _ask(self, action: int, what: str, value: int = 0, element: int = 0) -> Word:
        with self.busy:
            word = Word(self, what)
            self._send(requests.message(action, word.tag, value=value, element=element)[0])
        return word

    def start_end(self, action: int) -> tuple[int, Word | None]:
        """Ask for a word when all that was sent is done, by FLUSH or UNLOCK; returns what :meth:`end` needs."""
        with self.busy:
            changes = self._words[_CHANGES]
            is_needed = action != requests.FLUSH or changes != self._words[_CONFIRMED]
            return changes, self._ask(action, self.what) if is_needed else None

    def end(self, started: tuple[int, Word | None]) -> None:
        """Return when all accesses before :meth:`start_end` are complete, at both ends."""
        changes, word = started
        with self.busy:
            if word is not None:
                word.get()
            self._words[_CONFIRMED] = changes
            for fetch in self._fetches:
                fetch.wait()
            self._note_fetches([])

    def close(self) -> None:
        """Release what was sent, after everything was flushed; take in answers that nobody has waited for."""
        engine = self.comm.engine
        with self.busy:
            while self._sent:
                self._end_oldest()
            while message := engine.match(self.comm, self.rank, ANY_TAG, requests.REPLIES):
                unwanted = np.empty(engine.result(message).nbytes, np.uint8)
                request = engine.start_matched_recv(self.comm, message, array_words(unwanted)[0], unwanted.nbytes)
                engine.wait_all([request], self.what, unwanted)


def take_locks(targets: Collection[Far]) -> bool:
    """Take the locks of all targets, shared, or none of them; who is interrupted calls :func:`forget_locks`."""
    words = [far.ask_for_lock(exclusive=False, is_patient=False) for far in targets]
    taken = [word.get() for word in words]
    if not all(taken):
        forget_locks(targets)
    return all(taken)


def forget_locks(targets: Collection[Far]) -> None:
    """Take back all locks that were asked for, granted or not."""
    for far in targets:
        far.forget_lock()


def end_all(targets: Collection[Far], action: int = requests.FLUSH) -> None:
    """Complete all accesses to some targets, which work on it at the same time."""
    started = [(far, far.start_end(action)) for far in targets]
    for far, each in started:
        far.end(each)
