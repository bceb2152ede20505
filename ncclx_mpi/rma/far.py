"""The window memory of a rank that shares none with this one: every access is a request that the rank serves.

::

    origin                                      target
      PUT, COMBINE, ... with the elements ------> applied in the order in which they come
      GET, FLUSH, ...  -------------------------> what it held, or one word
               <--------------------------------

What an access takes from this rank is copied before its method returns, and what it brings is there when it returns, or when its
request is complete. What it does at the target is complete after the next synchronisation, which asks the target for a word.

Where the network itself reaches the memory (RDMA), elements that lie in one piece are got by it, and put if they are more than one eager
message takes, to be complete at both ends when the method returns. The target's key for that is asked for with the first access.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from ncclx_mpi import errors
from ncclx_mpi.buffers.memory import Bytes, array_words
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import ANY_TAG, PEER_DEAD
from ncclx_mpi.p2p.remote_memory import Opened, functions_of
from ncclx_mpi.rma import requests
from ncclx_mpi.rma.accumulate import Reduction
from ncclx_mpi.rma.asking import FIRST_TAG
from ncclx_mpi.rma.layout import FAR_TARGET
from ncclx_mpi.rma.reach import Landing, Place
from numba_kernels.late_numpy import np
from numba_kernels.layout import WORD, zeroed
from transports.base import Transport

_MOST_UNDERWAY = 16 << 20
"""Bytes of requests that have not gone out, and of answers that have not come: what more there is waits for the oldest."""
_CHANGES, _CONFIRMED = FAR_TARGET.changes // WORD, FAR_TARGET.confirmed // WORD


class Answer:
    """What is waited for at a far target: a request of `nbytes` bytes, whose memory `owner` keeps alive. Errors say `what` it is for."""

    def __init__(self, far: Far, nbytes: int, owner: Any, what: str) -> None:
        self._far = far
        self._owner = owner
        self._what = what
        self.nbytes = nbytes
        self._request = far.comm.engine.new_request()  # a signal handler may raise as soon as it is started

    @classmethod
    def coming(cls, far: Far, tag: int, address: int, nbytes: int, owner: Any, what: str) -> Answer:
        """The answer to a request, which arrives with a tag at an address."""
        found = cls(far, nbytes, owner, what)
        far.comm.engine.start_recv(far.comm, address, nbytes, far.rank, tag, requests.REPLIES, found._request)
        return found

    def start(self, access: Callable[[int, int, int, int], int], address: int, start: int) -> None:
        """Have the network bring it, or take it, by an access to the memory from byte `start` on."""
        access(address, self.nbytes, start, self._request)

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
        result, request = engine.result(self._request), self._request
        self._request = 0
        engine.free(request)
        came = result.nbytes
        if came != self.nbytes:
            errors.fail(
                errors.ERR_OTHER,
                f"rank {far.comm.rank}: {self._what} failed there: {came} bytes came instead of {self.nbytes}; the stderr of rank "
                f"{far.rank} says why",
            )
        if result.error:
            fail_lost(far.comm, far.rank, self._what)

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
        self.tag = far.new_tag()
        self._answer = Answer.coming(far, self.tag, array_words(self._word)[0], self._word.nbytes, self._word, what)

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

    def expect(self, tag: int, address: int, nbytes: int) -> Answer:
        """Wait for a part of it from now on, which comes with a tag to an address."""
        answer = Answer.coming(self._far, tag, address, nbytes, self._owner, self._far.what)
        self._answers.append(answer)
        return answer

    def expect_access(self, access: Callable[[int, int, int, int], int], address: int, start: int) -> None:
        """Have the network itself bring all of it, from byte `start` of the memory on, and wait for it from now on."""
        answer = Answer(self._far, self._nbytes, self._owner, self._far.what)
        self._answers.append(answer)
        answer.start(access, address, start)

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
    """The window memory of a rank of a communicator.

    Parameters
    ----------
    comm, rank
        The window's communicator, and the target in it.
    transport
        What may reach the memory by the network itself; None: all is asked for.
    on_known
        Called when it is known whether it does.

    Attributes
    ----------
    comm, rank
        As given.
    what
        What this rank is in while it waits for an access: for errors.
    busy
        Held by the thread that uses this object.
    address
        Of the words that compiled code asks it by (:data:`ncclx_mpi.rma.layout.FAR_TARGET`), as long as this object lives.
    """

    def __init__(
        self,
        comm: NativeComm,
        rank: int,
        transport: Transport | None = None,
        on_known: Callable[[], None] = lambda: None,
    ) -> None:
        self.comm = comm
        self.rank = rank
        self._transport = transport
        self._on_known = on_known
        self._opened: Opened | None = None
        self._most_asked = 0
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
        opened = self._way_to(place)
        return self._fetch(requests.GET, place, landing) if opened is None else self._get(opened, place, landing)

    def write(self, place: Place, packed: int, owner: Any = None) -> None:
        """Copy packed bytes, whose memory `owner` keeps alive, to elements."""
        opened = self._way_to(place)
        if opened is None or place.nbytes <= self._most_asked:
            self._change(requests.PUT, place, packed)
        else:
            self._put(opened, place, packed, owner)

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

    # By the network itself

    def _way_to(self, place: Place) -> Opened | None:
        """What reaches elements by the network itself: those that lie in one piece, where it reaches the memory at all."""
        self._learn()
        return self._opened if place.layout.contiguous else None

    def _learn(self) -> None:
        """Find out, at the first access, whether the network reaches the memory."""
        if self._transport is None:
            return
        with self.busy:
            transport, self._transport = self._transport, None
            if transport is None:
                return
            try:
                address, key = self._ask_for_key()
            except BaseException:
                self._transport = transport
                raise
            if key:
                self._open(transport, address, key)
            self._on_known()

    def _open(self, transport: Transport, address: int, key: bytes) -> None:
        """Have the network reach the memory from now on, in compiled code, too; unless there is no way to it."""
        opened = Opened(self.comm, self.rank, transport, address, key)
        if opened.handle:
            self._opened = opened
            self._most_asked = transport.caps.max_eager
            for field, value in (("base", address), ("get", functions_of(transport).get), ("handle", opened.handle)):
                self._words[getattr(FAR_TARGET, field) // WORD] = value

    def _ask_for_key(self) -> tuple[int, bytes]:
        """Where the memory is in its process, and by which key the network reaches it: none if it does not."""
        room, tag = np.zeros(requests.KEY_ROOM, np.uint8), self.new_tag()
        answer = Answer.coming(self, tag, array_words(room)[0], room.nbytes, room, self.what)
        self._send(requests.message(requests.EXPOSE, tag)[0])
        answer.wait()
        address, nbytes = room[: requests.KEY.total].view(np.int64).tolist()
        return address, room[requests.KEY.total :][:nbytes].tobytes()

    def _put(self, opened: Opened, place: Place, packed: int, owner: Any) -> None:
        """Have the network copy packed bytes to the memory: they are there on return, as at a near target."""
        with self.busy:
            self._end_changes()
            answer = Answer(self, place.nbytes, owner, self.what)
            answer.start(opened.start_put, packed, place.start + place.layout.true_lb)
            answer.wait()

    def _get(self, opened: Opened, place: Place, landing: Landing) -> Fetch:
        """Have the network start copying elements to this rank."""
        fetch = Fetch(self, place, landing)
        with self.busy:
            self._end_changes()
            fetch.expect_access(opened.start_get, landing[0], place.start + place.layout.true_lb)
            self._note_fetches([*(each for each in self._fetches if not each.is_over), fetch])
        return fetch

    def opened(self) -> Opened:
        """The memory as the network reaches it, which is known to do so."""
        self._learn()
        if self._opened is None:
            fail_lost(self.comm, self.rank, self.what)
        return self._opened

    def end_changes(self) -> None:
        """Return when all that was asked for before is done: the network would overtake it."""
        with self.busy:
            self._end_changes()

    def _end_changes(self) -> None:
        changes = self._words[_CHANGES]
        if changes != self._words[_CONFIRMED]:
            self._ask(requests.FLUSH, self.what).get()
            self._words[_CONFIRMED] = changes

    # By requests

    def _change(self, action: int, place: Place, origin: int, value: int = 0, element: int = 0) -> None:
        """Send requests that carry the packed elements at address `origin`."""
        self._learn()
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
        self._learn()
        fetch, done = Fetch(self, place, landing), 0
        with self.busy:
            try:
                for part in requests.parts(place):
                    nbytes = part.nbytes
                    self._make_room(nbytes)
                    tag = self.new_tag()
                    self._awaited.append(fetch.expect(tag, landing[0] + done, nbytes))
                    message, room = requests.message(action, tag, part, value, element, nbytes * len(given))
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
            opened, self._opened = self._opened, None
            self._words[FAR_TARGET.handle // WORD] = 0
            if opened is not None:
                opened.shut(self.what)
            while self._sent:
                self._end_oldest()
            while message := engine.match(self.comm, self.rank, ANY_TAG, requests.REPLIES):
                unwanted = np.empty(engine.result(message).nbytes, np.uint8)
                request = engine.start_matched_recv(self.comm, message, array_words(unwanted)[0], unwanted.nbytes)
                engine.wait_all([request], self.what, unwanted)


def fail_lost(comm: NativeComm, rank: int, what: str) -> NoReturn:
    """Raise why the network has given an access to a rank up: nearly always, that one has died."""
    engine = comm.engine
    if engine.is_death_noticed():
        engine.fail(PEER_DEAD, what)
    errors.fail(errors.ERR_OTHER, f"rank {comm.rank}: {what} was given up by the network: there is no way to rank {rank}")


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
