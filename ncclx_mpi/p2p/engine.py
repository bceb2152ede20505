"""The engine of one rank, as Python sees it: communicators, requests, waiting, and what is raised when waiting fails."""

from __future__ import annotations

import ctypes
import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ncclx_mpi import errors
from ncclx_mpi.algorithms import UNFORCED
from ncclx_mpi.p2p import keeping, request_pool, requests
from ncclx_mpi.p2p.arrivals import arrive
from ncclx_mpi.p2p.blocks import block, untouched_block
from ncclx_mpi.p2p.call_words import leave_words, take_words
from ncclx_mpi.p2p.ended import EndedComms
from ncclx_mpi.p2p.guests import MOST_GUESTS, Guests
from ncclx_mpi.p2p.inlined_arrivals import take_in
from ncclx_mpi.p2p.layout import (
    ABORTED,
    AGAIN,
    ANY_SOURCE,
    ANY_TAG,
    BROKEN,
    BUCKET,
    BUCKETS,
    DEADLINE,
    DONE,
    ENGINE,
    FAILED,
    INTERRUPTED,
    LEFT,
    OPERATIONS,
    PEER,
    PEER_DEAD,
    PENDING,
    REFUSED,
    REQUEST,
    SEND,
    TRACE,
    TRACE_RECORDS,
)
from ncclx_mpi.p2p.leaving import MOST_LEFT, note_left, say_goodbye
from ncclx_mpi.p2p.native import NativeComm as NativeComm
from ncclx_mpi.p2p.progress import move_on, progress, trouble
from ncclx_mpi.p2p.rendezvous import clear_to_send, finish
from ncclx_mpi.p2p.waiting import raise_parked, wait_word_slowly
from ncclx_mpi.p2p.wording import state_in_words
from numba_kernels.clock import ticks_per_us
from numba_kernels.jit import c_address, entry
from numba_kernels.rows import NamedTuple
from transports.base import Calls, Transport

if TYPE_CHECKING:
    from ncclx_mpi.p2p.sleeping import Events
    from ncclx_mpi.tuning import Table
    from transports.shm.arena import Arena

WORD = 8
_SLICE_US = 50_000
_DOZE_US, _DOZE_CROWDED_US = 20_000, 2_000
"""After how long without anything a wait dozes. With more ranks than cores that is sooner: a rank that yields counts as one that needs a
core, and the kernel leaves two that compute on one core and those that wait on the other (design/051)."""
_SPINS = 4000
_EAGER_CREDIT = 4 << 20
_DEATH_NOTICE_SECONDS = 5.0
"""Within this a launcher that shares its cores with busy ranks has told that one of them died."""


def _made(request: int) -> int:
    if not request:
        raise MemoryError(f"there is no memory for a request: {errors.NO_MEMORY}")
    return request


class Result(NamedTuple):
    """What became of a request: `source` is a rank of its communicator, `nbytes` counts the message, `error` is an MPI error class."""

    source: int
    tag: int
    nbytes: int
    error: int
    cancelled: bool


class Engine:
    """Point-to-point communication of one rank.

    Parameters
    ----------
    arena
        The node's arena, in which its ranks learn of each other's end.
    transports
        What moves messages, each peer's by the first one that reaches it. One of them is compiled into the engine, and at most one is not;
        those that reach peers of other jobs come later.
    rank
        World rank of this process.
    timeout
        Seconds after which a wait raises (``NCCLX_MPI_TIMEOUT``); None or 0: never.
    forced
        The number of the forced algorithm of each kind of operation (:mod:`ncclx_mpi.algorithms`).
    reduction_order
        The setting of that name.
    endpoints
        What each peer, by world rank, has to be known by, for each transport that has something to be known.
    nodes
        The number of the node of each world rank, as all know it; none if nobody says.
    table
        Measured times by which plans are chosen, the same on all ranks of the job.

    Attributes
    ----------
    size : int
        Number of ranks of the job.
    guests : Guests
        Peers of other jobs, which are counted behind these.
    near : tuple of int
        World ranks of this node, in the order in which the arena knows them.
    transport : Transport
        The one that is compiled in.
    states : dict of Transport to int
        What each transport that was attached is called with.
    slots : tuple of int
        Where the slots of the arena begin, and how far they are apart.
    births : tuple of int
        What compiled code needs to know to make a communicator: these, and where the numbers of forced algorithms are; nothing once there
        have been guests, of whom the numbering of a communicator that was made before says nothing.
    near_eager_max : int
        The most bytes of an eager message to a rank of this node; ``eager_max`` of the block is that to any rank.
    """

    def __init__(
        self,
        arena: Arena,
        transports: Sequence[Transport],
        rank: int,
        timeout: float | None = None,
        forced: Sequence[int] = (UNFORCED,) * len(OPERATIONS),
        reduction_order: str = "auto",
        endpoints: Mapping[str, Sequence[bytes]] | None = None,
        nodes: Sequence[int] = (),
        table: Table | None = None,
    ) -> None:
        self.arena = arena
        self.rank = rank
        self.near = arena.near
        self.nodes = tuple(nodes)
        self.table = table
        self.local_rank = self.near.index(rank)
        self.reduction_order = reduction_order
        self.pid = os.getpid()
        self.size = arena.plan.world_size
        self.transports = tuple(transports)
        (self.transport,) = (transport for transport in self.transports if transport.is_inlined)
        self.near_eager_max = self.transport.caps.max_eager
        self.timeout = timeout
        self._block, self.address = block(ENGINE.total)
        self._words = self._block
        self._peers, self._peers_address = untouched_block(PEER.total * (self.size + MOST_GUESTS))
        self._buckets, self._buckets_address = block(BUCKET.total * BUCKETS)
        self._left, self._left_address = block(LEFT.total * MOST_LEFT)
        self.ended = EndedComms(self)
        self.states: dict[Transport, int] = {}
        self._events: Events | None = None
        self._calls = Calls(c_address(arrive), c_address(clear_to_send), c_address(finish))
        self._fill_block()
        self._fill_peers(endpoints or {})
        self.guests = Guests(self)
        self.slots = arena.base + arena.plan.slot(0), arena.plan.slot_stride
        self.force(forced)
        self._new_request = entry(requests.new_idle_request)
        self._start_send = entry(requests.start_send)
        self._start_receive = entry(requests.start_receive)
        self._wait_request = entry(requests.wait_request)
        self._test_request = entry(requests.test_request)
        self._read_status = entry(requests.read_status)
        self._let_go = entry(keeping.let_go)
        self._close_request = entry(requests.close_request)
        self._ask_for_message = entry(requests.ask_for_message)
        self._progress = entry(progress)
        self._trouble = entry(trouble)

    def _fill_block(self) -> None:
        shared = self.arena.engine_words(self.local_rank)
        assert TRACE_RECORDS * TRACE.total <= shared.trace_bytes
        rate, is_crowded = ticks_per_us(), self.arena.is_crowded
        for field, value in (
            ("rank", self.rank),
            ("nranks", self.size),
            ("death", shared.deaths),
            ("abort", shared.abort),
            ("records", shared.records),
            ("trace", shared.trace),
            ("eager_max", max(transport.caps.max_eager for transport in self.transports)),
            ("eager_credit", _EAGER_CREDIT),
            ("spins", 1 if is_crowded else _SPINS),
            ("slice_ticks", int(_SLICE_US * rate)),
            ("deadline_ticks", int((self.timeout or 0) * 1e6 * rate)),
            ("doze_ticks", int((_DOZE_CROWDED_US if is_crowded else _DOZE_US) * rate)),
            ("ticks_per_us", int(rate)),
            ("buckets", self._buckets_address),
            ("peers", self._peers_address),
            ("left", self._left_address),
            ("revoked", self.ended.address),
            ("heed", id(self.ended.callback)),
            ("current", shared.trace),
            ("take_in", c_address(take_in)),
            ("poll_other", next((other.functions.poll for other in self.transports if not other.is_inlined), 0)),
            ("arm_other", next((other.functions.arm for other in self.transports if not other.is_inlined), 0)),
            ("step", self.transport.functions.step),
            ("move_on", c_address(move_on)),
            ("wait_word", c_address(wait_word_slowly)),
        ):
            self.set_word(field, value)

    def _fill_peers(self, endpoints: Mapping[str, Sequence[bytes]]) -> None:
        for transport in self.transports:
            state = self.attach(transport)
            if not transport.is_inlined:
                self.set_word("other_state", state)
        for peer in range(self.size):
            transport = self.way_to(peer)
            known = endpoints.get(transport.name, ())
            self.connect(transport, peer, known[peer] if known else b"")

    def attach(self, transport: Transport) -> int:
        """Introduce a transport to the engine and the blocks of its peers; returns what it is polled with."""
        peers = range(self.peer_address(0), self.peer_address(self.size + MOST_GUESTS), PEER.total)
        self.states[transport] = state = transport.attach(self.address, peers, self._calls)
        if transport.event >= 0:
            self.listen(transport.event)
        return state

    def listen(self, event: int) -> None:
        """Have a file descriptor end what sleeps on the network, which few programs have."""
        from ncclx_mpi.p2p.sleeping import Events, doze

        if self._events is None:
            self._events = Events()
            self.set_word("events", self._events.polled)
            self.set_word("doze", c_address(doze))
        self._events.add(event)

    def connect(self, transport: Transport, peer: int, endpoint: bytes) -> None:
        """Have a transport reach a peer from now on."""
        transport.connect(peer, endpoint)
        functions = transport.functions._asdict()
        names = ("offer", "fetch", "serve", "revoke", *(() if transport.is_inlined else ("send", "credit")))
        self.set_peer(peer, world=peer, max_eager=transport.caps.max_eager, **{name: functions[name] for name in names})

    def peer_address(self, peer: int) -> int:
        """Address of the block of a peer."""
        return int(self._peers_address + peer * PEER.total)

    def set_peer(self, peer: int, **words: int) -> None:
        """Write words of the block of a peer."""
        for name, value in words.items():
            self._peers[(peer * PEER.total + getattr(PEER, name)) // WORD] = value

    @property
    def known(self) -> int:
        """How many peers there are, of this job and of others."""
        return self.word("nranks")

    def way_to(self, peer: int) -> Transport:
        """The transport that reaches a peer."""
        why_not = []
        for transport in self.transports:
            reason = transport.why_not(peer)
            if not reason:
                return transport
            why_not.append(f"{transport.name}: {reason}")
        raise errors.error(errors.ERR_OTHER, f"rank {self.rank} cannot reach rank {peer}; {'; '.join(why_not)}")

    def word(self, field: str) -> int:
        """A word of the native block."""
        value: int = self._words[getattr(ENGINE, field) // WORD]
        return value

    def set_word(self, field: str, value: int) -> None:
        """Write a word of the native block."""
        self._block[getattr(ENGINE, field) // WORD] = value

    def is_near(self, rank: int) -> bool:
        """Whether a world rank is on this node."""
        return self.near[0] <= rank <= self.near[-1]

    def are_near(self, ranks: Sequence[int]) -> bool:
        """Whether all of some world ranks are on this node."""
        return self.near[0] <= min(ranks) and max(ranks) <= self.near[-1]

    @property
    def has_dead_ranks(self) -> bool:
        """Whether a peer died."""
        return self.arena.has_dead_ranks or bool(self.guests.dead)

    def dead_ranks(self) -> list[int]:
        """World ranks of the peers that died."""
        return [*self.arena.dead_ranks(), *self.guests.dead]

    def local(self, rank: int) -> int:
        """The rank in this node, by which the arena knows it, of a world rank that is on it."""
        return self.near.index(rank)

    def new_comm(self, context: int, world_ranks: Sequence[int], slot: int = -1, rank: int = -1) -> NativeComm:
        """The native side of a communicator; `context` is unique in the job and a multiple of 4.

        `rank` is given where this process is none of `world_ranks`.
        """
        return NativeComm(self, context, world_ranks, slot, rank)

    # Requests ---------------------------------------------------------------------------------------------------

    def new_request(self) -> int:
        """Return the handle of an idle request, for a message that is to have an owner before it starts."""
        return int(self._new_request(self.address))

    def start_send(
        self,
        comm: NativeComm,
        address: int,
        nbytes: int,
        dest: int,
        tag: int,
        mode: int = 0,
        context_offset: int = 0,
        request: int = 0,
    ) -> int:
        """Start sending `nbytes` bytes at `address`, which stay the engine's until the request, an idle one or a new one, is complete.

        Returns
        -------
        int
            Handle of the request, perhaps complete already.
        """
        return int(self._start_send(comm.address, request, context_offset, address, nbytes, dest, tag, mode))

    def start_recv(
        self, comm: NativeComm, address: int, nbytes: int, source: int, tag: int, context_offset: int = 0, request: int = 0
    ) -> int:
        """Start receiving up to `nbytes` bytes to `address`; `source` and `tag` may be wildcards. Returns the handle."""
        return int(self._start_receive(comm.address, request, context_offset, address, nbytes, source, tag))

    def new_ticket(self, ticket: Any, home: str, address: int = 0) -> int:
        """Make the request of a ticket (:mod:`ncclx_mpi.p2p.request_pool`) of the list `home`. Returns its handle.

        What one receives that has memory of its own for objects lands at `address`.
        """
        return _made(int(entry(request_pool.new_ticket)(self.address, id(ticket), getattr(ENGINE, home), address)))

    def add_ticket(self, ticket: Any, request: int) -> None:
        """Let a ticket, all slots of which are filled, be used by whoever needs one; its object stays for good."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(ticket))
        entry(request_pool.keep_ticket)(request)

    def new_bound(
        self, comm: NativeComm, kind: int, address: int, nbytes: int, peer: int, tag: int, mode: int, landing: int = 0
    ) -> int:
        """Make a persistent request (:mod:`ncclx_mpi.p2p.request_pool`): `kind` is SEND or RECEIVE. Returns its handle."""
        return _made(int(entry(request_pool.new_bound)(kind, comm.address, address, nbytes, peer, tag, mode, landing)))

    def done(self, request: int) -> bool:
        """Whether the request is complete, after one progress; raises if nobody is to wait for it any more."""
        if self._test_request(self.address, request):
            return True
        self.ended.check_request(request, "")
        return False

    test = done

    def is_complete(self, request: int) -> bool:
        """Whether the request is complete, whatever became of its communicator; makes no progress."""
        return ctypes.c_int64.from_address(request + REQUEST.state).value != PENDING

    def wait(self, request: int, what: str = "", owner: Any = None) -> None:
        """Return when the request is complete. The request stays the caller's, to read and free; errors say `what` it is.

        When the wait ends by an exception (Ctrl-C, a dead peer, the deadline) the request is withdrawn first: nothing
        writes into the buffer any more, and the handle is void. `owner` is kept alive as long as a send still reads it.

        Raises
        ------
        Exception
            ERR_PROC_FAILED: a rank died. ERR_PENDING: the deadline passed.
        """
        try:
            self.await_request(request, what)
        except BaseException:
            self.withdraw(request, owner)
            raise

    def await_request(self, request: int, what: str = "", serial: int = 0) -> None:
        """As :meth:`wait`, but the request stays as it is when the wait ends by an exception.

        Who shares the request with another thread gives its `serial`: then the wait also ends when that thread has given it back.
        """
        code, resumed = AGAIN, 0
        while code == AGAIN:
            code = self._wait_request(self.address, request, serial, resumed)
            resumed = 1
            if code == AGAIN:
                self.ended.check_request(request, what)
        if code != DONE:
            raise self.failure(code, what or self.describe(request))

    def wait_all(self, requests: Sequence[int], what: str, owner: Any = None) -> None:
        """Wait for requests one after the other, and give them back; a wait that fails leaves none of them behind."""
        left = list(requests)
        try:
            while left:
                self.await_request(left[0], what)
                self.free(left.pop(0))
        except BaseException:
            for request in left:
                self.withdraw(request, owner)
            raise

    def withdraw(self, request: int, owner: Any = None) -> None:
        """Give a request up, complete or not; `owner` is kept until nothing touches its memory: on return, nearly always, in a receive."""
        entry(keeping.give_up)(self.address, request, owner)

    def result(self, request: int) -> Result:
        """What became of a complete request."""
        said = take_words()
        self._read_status(request, said.address)
        source, tag, nbytes, error, cancelled = said.words[: requests.STATUS_WORDS]
        leave_words(said)
        return Result(source, tag, nbytes, error, bool(cancelled))

    def describe(self, request: int) -> str:
        """What a request is, in words: for errors."""
        peer, tag = _word_of(request, REQUEST.status_source), _word_of(request, REQUEST.tag)
        if _word_of(request, REQUEST.kind) == SEND:
            return f"send to rank {peer}, tag {tag}"
        return f"receive {from_whom(peer, tag)}"

    def paired(self, request: int) -> int:
        """The send of an exchange whose complete receive :func:`ncclx_mpi.p2p.fast.exchange_arrays` has returned; 0 if it was given back."""
        return _word_of(request, REQUEST.queue_next)

    def capacity(self, request: int) -> int:
        """Bytes of the buffer of a receive, -1 for a send."""
        return -1 if _word_of(request, REQUEST.kind) == SEND else _word_of(request, REQUEST.nbytes)

    def close(self, request: int) -> bool:
        """Give a request back if it is complete and nothing is to be said about it."""
        return bool(self._close_request(self.address, request))

    def free(self, request: int, owner: Any = None) -> None:
        """Give a request back; one that is not complete goes on, and `owner` (of its buffer; its communicator) is kept until it is."""
        self._let_go(self.address, request, owner)

    def serial(self, request: int) -> int:
        """A number that the request has until it is given back, and never again."""
        return ctypes.c_int64.from_address(request + REQUEST.serial).value

    def cancel(self, request: int, serial: int) -> None:
        """Ask for the cancellation of a request; it still has to be waited for. Nothing happens if it has another `serial` now."""
        entry(requests.cancel_request)(self.address, request, serial)

    # Probing ----------------------------------------------------------------------------------------------------

    def probe(self, comm: NativeComm, source: int, tag: int, context_offset: int = 0) -> Result | None:
        """What the oldest matching message is, None if none has come."""
        message = self._find(comm, source, tag, context_offset, 0, "iprobe")
        return self.result(message) if message else None

    def wait_probe(self, comm: NativeComm, source: int, tag: int, context_offset: int = 0, what: str = "probe") -> Result:
        """Wait for a matching message and say what it is."""
        return self.result(self._wait_message(comm, source, tag, context_offset, 0, what))

    def match(self, comm: NativeComm, source: int, tag: int, context_offset: int = 0) -> int:
        """Take the oldest matching message out of matching: its handle, 0 if none has come."""
        return self._find(comm, source, tag, context_offset, 1, "improbe")

    def wait_match(self, comm: NativeComm, source: int, tag: int, context_offset: int = 0, what: str = "mprobe") -> int:
        """Wait for a matching message and take it out of matching."""
        return self._wait_message(comm, source, tag, context_offset, 1, what)

    def start_matched_recv(self, comm: NativeComm, message: int, address: int, nbytes: int, request: int = 0) -> int:
        """Start the receive of a message that :meth:`match` took; the message handle is void afterwards. Returns the request's."""
        return int(entry(requests.receive_matched)(comm.address, request, message, address, nbytes))

    def _find(self, comm: NativeComm, source: int, tag: int, offset: int, take: int, what: str) -> int:
        message: int = self._ask_for_message(comm.address, offset, source, tag, take)
        if message < 0:
            raise self.failure(-message, what)
        if not message:
            self.ended.check(comm, what)
        return message

    def _wait_message(self, comm: NativeComm, source: int, tag: int, offset: int, take: int, what: str) -> int:
        found, code, resumed = take_words(), AGAIN, 0
        waiting = entry(requests.wait_message)
        while code == AGAIN:
            code = waiting(comm.address, offset, source, tag, take, resumed, found.address)
            resumed = 1
            if code == AGAIN:
                self.ended.check(comm, what)
        if code != DONE:
            raise self.failure(code, what)
        message = found.words[0]
        leave_words(found)
        return message

    # Waiting ----------------------------------------------------------------------------------------------------

    def force(self, numbers: Sequence[int]) -> None:
        """Have these algorithms, one number for each operation, serve communicators that are made from now on."""
        self.forced = tuple(numbers)
        self.forced_words = array("q", self.forced)
        self.births: tuple[int, ...] = () if self.guests.have_come else (*self.slots, self.forced_words.buffer_info()[0])

    def progress(self) -> None:
        """Move on everything that is outstanding."""
        self._progress(self.address)

    def idle_wait(self, predicate: Callable[[], bool], what: str, comm: NativeComm | None = None) -> None:
        """Progress until `predicate` holds: the wait of everything that Python decides, with the same bounds.

        `comm` is the communicator that the wait is part of, where the predicate asks none of its requests.

        Raises
        ------
        Exception
            ERR_PROC_FAILED: a rank died. ERR_PENDING: the deadline passed.
        """
        if predicate():
            return
        entry(requests.trace_open)(self.address, OPERATIONS.index("wait"), 0, -1, -1, 0)
        turning, turn = entry(requests.wait_turn), 0
        while not predicate():
            self.ended.heed()
            if comm is not None:
                self.ended.check(comm, what)
            code = turning(self.address, turn)
            turn += 1
            if code not in (DONE, AGAIN) and not predicate():
                raise self.failure(code, what)
        entry(requests.trace_close)(self.address)

    def drain(self, seconds: float = 5.0) -> None:
        """Let what this rank still owes its peers go out (sends that nobody waits for any more) before it leaves.

        A send that no peer ever receives is given up after `seconds`, or as soon as no peer is left.
        """
        end = time.monotonic() + seconds
        while self.is_owing():
            self.progress()
            if (
                time.monotonic() > end
                or self.arena.deaths != self.word("acknowledged")
                or not (self.arena.has_others(self.local_rank) or self.guests.are_living)
            ):
                return

    def say_goodbye(self) -> None:
        """Tell all peers that this rank leaves the job: behind all that it has sent, so it is drained before."""
        entry(say_goodbye)(self.address)

    def note_left(self, comm: NativeComm, calls: int, is_given_up: bool) -> None:
        """Let others hear that this rank takes part in no collective by a plan on `comm` after the first `calls`."""
        entry(note_left)(self.address, comm.context, calls, is_given_up)

    def is_owing(self) -> bool:
        """Whether peers need this rank's progress for what it has begun."""
        if any(transport.is_busy for transport in self.transports):
            return True
        return any(self.word(owed) for owed in ("queued", "plan_count", "lines_first", "announced"))

    def fail(self, code: int, what: str) -> NoReturn:
        """Raise what the code of a compiled wait means: what a signal handler raised inside it, or :meth:`failure`."""
        if code == INTERRUPTED:
            first = ENGINE.parked // WORD
            raise_parked(self._block[first : first + 3])
        raise self.failure(code, what)

    def failure(self, code: int, what: str) -> errors.Exception:
        """The exception for what a compiled wait returned."""
        if self.pid != os.getpid():
            return self.not_a_rank()
        if code == REFUSED and self.is_death_noticed():
            code = PEER_DEAD
        if code == PEER_DEAD:
            dead = self.dead_ranks()
            who = self.guests.all_in_words(dead)
            lost = "; ".join(filter(None, (transport.why_lost(peer) for transport in self.transports for peer in dead)))
            why = f", or cannot be reached: {lost}" if lost else "; look at their output for why"
            return errors.error(errors.ERR_PROC_FAILED, f"rank {self.rank}: {what} was given up because {who} died{why}")
        if code == ABORTED:
            return errors.error(errors.ERR_PROC_FAILED, f"rank {self.rank}: {what} was given up because the job was aborted")
        if code == BROKEN:
            return errors.error(errors.ERR_REVOKED, f"rank {self.rank}: {what} was given up because its communicator was revoked")
        if code == DEADLINE:
            return errors.error(
                errors.ERR_PENDING,
                f"rank {self.rank}: {what} did not complete within NCCLX_MPI_TIMEOUT = {self.timeout:g} s\n" + self.who_waits(),
            )
        if code == REFUSED:
            return errors.error(
                errors.ERR_BUFFER,
                f"rank {self.rank}: {what} was given up because the system copied the beginning of a buffer between processes and "
                "refused the rest; set NCCLX_MPI_COPIES=piped",
            )
        if code == FAILED + errors.ERR_NO_MEM:
            return errors.error(errors.ERR_NO_MEM, f"rank {self.rank}: {what} was given up because {errors.NO_MEMORY}")
        return errors.error(code - FAILED, f"rank {self.rank}: {what} failed")

    def check_peers(self, what: str) -> None:
        """Raise as a wait would if a rank has died or the job was aborted: who asks again and again must learn of it, too.

        Raises
        ------
        Exception
            ERR_PROC_FAILED.
        """
        code = self._trouble(self.address)
        if code:
            raise self.failure(code, what)

    def is_death_noticed(self) -> bool:
        """Whether a rank has died, which takes a moment to be noticed: the kernel refuses copies before anybody can know why."""
        end = time.monotonic() + _DEATH_NOTICE_SECONDS
        while not self.arena.has_dead_ranks and time.monotonic() < end:
            time.sleep(0.001)
        return self.arena.has_dead_ranks

    def not_a_rank(self) -> errors.Exception:
        """The exception for a process that this rank has forked, when it communicates."""
        return errors.error(
            errors.ERR_OTHER,
            f"process {os.getpid()} was forked by rank {self.rank} (process {self.pid}) and is no rank itself; "
            "communicate in the parent",
        )

    def leave_to_parent(self) -> None:
        """In a fork of this rank: touch the job no more. The thread that may hold the lock exists in the parent only."""
        self.arena.detach()
        self.set_word("lock", 0)
        self.set_word("rouse", 0)

    def who_waits(self) -> str:
        """One line a rank of this node: which operation it is in, with whom, since when."""
        rate = self.word("ticks_per_us")
        return "\n".join(state_in_words(self.arena, local_rank, rank, rate) for local_rank, rank in enumerate(self.near))


def from_whom(source: int, tag: int) -> str:
    """What a receive takes, in words: for errors."""
    return f"from {'any rank' if source == ANY_SOURCE else f'rank {source}'}, {'any tag' if tag == ANY_TAG else f'tag {tag}'}"


def _word_of(request: int, offset: int) -> int:
    return ctypes.c_int64.from_address(request + offset).value
