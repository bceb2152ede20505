"""The conformance class of transports: subclass it, give it a pair of transports, and pytest proves the contract.

An :class:`End` is what stands in for the matching engine: it keeps what the transport hands up, or refuses it, and announces and fetches
large messages as the engine does (RTS, CTS, ATS).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_message
from numba_kernels.jit import c_address, kernel
from numba_kernels.layout import LINE, WORD, words
from numba_kernels.memory import copy
from numba_kernels.rows import NamedTuple
from transports.base import ARMED, COME, Calls, RemoteMemory, Transport
from transports.messages import (
    ADD,
    AND,
    ANSWER,
    ASK,
    ATS,
    CANCEL,
    COMPARE_AND_SWAP,
    CREDIT,
    CTS,
    EAGER,
    ENGINE_WORDS,
    GOODBYE,
    OR,
    PEER_WORDS,
    REMOTE,
    REQUEST,
    REQUEST_FIELDS,
    RTS,
    SWAP,
    XOR,
)

RECORDER = words("Recorder", f"own*{ENGINE_WORDS} refuses count messages payload send")
"""``messages``, ``payload``: addresses of the next record and of the room for the next payload; ``send``: the transport's function."""
HALF = words("Half", f"{REQUEST_FIELDS} remote finished")
"""One end of a large message: a request as a transport sees it, the request of the other end, and whether it is over."""
RECORD = words("Record", "peer kind context tag nbytes first second third")
OWN = -1
"""In the place of a peer: this rank itself, whose memory is reached by the network."""
_MOST = 4096
_ROOM = 64 << 20
_ARRIVES_WITHIN = 60.0
"""Seconds, for what was sent."""


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def _record(engine, peer, kind, context, tag, nbytes, first, second, third):  # type: ignore[no-untyped-def]
    """Keep a message that is handed up, as an engine would; or refuse it."""
    if load64(engine + RECORDER.refuses) != 0:
        return 0
    record, payload = load64(engine + RECORDER.messages), load64(engine + RECORDER.payload)
    store64(record + RECORD.peer, peer)
    store64(record + RECORD.kind, kind)
    store64(record + RECORD.context, context)
    store64(record + RECORD.tag, tag)
    store64(record + RECORD.nbytes, nbytes)
    if kind == EAGER:
        beginning = min(nbytes, second)
        copy(payload, first, beginning)
        copy(payload + beginning, third, nbytes - beginning)
        store64(record + RECORD.first, payload)
        store64(engine + RECORDER.payload, payload + nbytes)
    else:
        store64(record + RECORD.first, first)
        store64(record + RECORD.second, second)
        store64(record + RECORD.third, third)
    store64(engine + RECORDER.messages, record + RECORD.total)
    store64(engine + RECORDER.count, load64(engine + RECORDER.count) + 1)
    return 1


@kernel("int64(int64, int64, int64)", is_entry=True)
def _clear_to_send(engine, peer, request):  # type: ignore[no-untyped-def]
    """Send the CTS that a transport asks for; a test leaves room for it."""
    remote, second, third = load64(request + HALF.remote), load64(request + REQUEST.second), load64(request + REQUEST.third)
    return call_message(load64(engine + RECORDER.send), engine, peer, CTS, 0, 0, 0, remote, second, third)


@kernel("int64(int64, int64, int64)", is_entry=True)
def _finish(engine, request, error):  # type: ignore[no-untyped-def]
    """Note that the transfer of a request has ended."""
    store64(request + HALF.finished, 1)
    return 1


class Seen(NamedTuple):
    """A message that was handed up; `words` are those of a message without a payload."""

    peer: int
    kind: int
    context: int
    tag: int
    nbytes: int
    words: tuple[int, int, int]
    payload: bytes


class End:
    """One end of a transport, attached to a recorder in place of an engine, and connected with every rank."""

    def __init__(self, transport: Transport, endpoints: list[bytes]) -> None:
        self.transport = transport
        self._block, self.address = _aligned(RECORDER.total)
        self._blocks, first = _aligned(len(endpoints) * PEER_WORDS * WORD)
        self._records, records = _aligned(_MOST * RECORD.total)
        self._payloads, payloads = _aligned(_ROOM)
        self._block[RECORDER.messages // WORD], self._block[RECORDER.payload // WORD] = records, payloads
        self.peers = [first + peer * PEER_WORDS * WORD for peer in range(len(endpoints))]
        calls = Calls(c_address(_record), c_address(_clear_to_send), c_address(_finish))
        self._state = transport.attach(self.address, self.peers, calls)
        for peer, endpoint in enumerate(endpoints):
            transport.connect(peer, endpoint)
        functions, message = transport.functions, [ctypes.c_int64] * 9
        self._send = ctypes.CFUNCTYPE(ctypes.c_int64, *message)(functions.send)
        of_a_request = ctypes.CFUNCTYPE(ctypes.c_int64, *message[:3])
        self._credit, self._offer = of_a_request(functions.credit), of_a_request(functions.offer)
        self._fetch, self._serve = of_a_request(functions.fetch), of_a_request(functions.serve)
        self._revoke = of_a_request(functions.revoke)
        of_the_state = ctypes.CFUNCTYPE(None, ctypes.c_int64)
        self._poll, self._step = of_the_state(functions.poll), of_the_state(functions.step)
        self._arm = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(functions.arm)
        self._block[RECORDER.send // WORD] = functions.send
        self._read = 0
        self._ends: list[End] = []
        self._turns = 1
        self.due = 0
        self.has_served = False

    def know(self, ends: list[End], turns: int) -> None:
        """Poll the ends of all ranks, so many times, where a message takes its time."""
        self._ends, self._turns = ends, turns

    def send(self, peer: int, payload: bytes | bytearray, context: int = 4, tag: int = 0) -> bool:
        """Send an eager message; whether there was room for it."""
        data = np.frombuffer(payload, np.uint8)
        return self._sent(peer, EAGER, context, tag, data.size, data.ctypes.data, 0, 0)

    def tell(self, peer: int, kind: int, nbytes: int, first: int, second: int, third: int) -> bool:
        """Send a message without a payload; whether there was room for it."""
        return self._sent(peer, kind, 4, 7, nbytes, first, second, third)

    def _sent(self, peer: int, *message: int) -> bool:
        was_sent = bool(self._send(self.address, self.peers[peer], *message))
        if self._ends:
            self._ends[peer].due += was_sent
        return was_sent

    def credit(self, peer: int, released: int) -> None:
        """Let a peer know how many of its eager bytes have found their receive."""
        self._credit(self.address, self.peers[peer], released)

    def offer(self, peer: int, address: int, nbytes: int) -> Half:
        """Announce a large message."""
        half = Half(address, nbytes, nbytes)
        self._offer(self.address, self.peers[peer], half.at)
        assert self.tell(peer, RTS, nbytes, half.at, half["second"], half["third"])
        return half

    def fetch(self, seen: Seen, address: int, nbytes: int) -> Half:
        """Have a message that was announced come to a buffer."""
        half = Half(address, nbytes, seen.nbytes)
        self.fetch_as(seen, half)
        return half

    def fetch_as(self, seen: Seen, half: Half) -> None:
        """As :meth:`fetch`, to the buffer that a receive says already."""
        half["remote"], half["second"], half["third"] = seen.words
        if self._fetch(self.address, self.peers[seen.peer], half.at):
            half["finished"] = self.tell(seen.peer, ATS, 0, half["remote"], 0, 0)

    def revoke(self, peer: int, receive: Half) -> bool:
        """Take the buffer of a receive back; whether nobody writes there any more."""
        receive["nbytes"] = 0
        return bool(self._revoke(self.address, self.peers[peer], receive.at))

    def go_on(self, sent: Half) -> None:
        """Answer what has come for a message that was announced here, and move transfers on."""
        for seen in self.received(1):
            assert seen.words[0] == sent.at
            if seen.kind == CTS:
                sent["second"], sent["third"] = seen.words[1:]
                sent["finished"] = self._serve(self.address, self.peers[seen.peer], sent.at)
                self.has_served = True
            else:
                assert seen.kind == ATS
                sent["finished"] = 1
        self._step(self._state)

    def arm(self) -> int:
        """Have the event tell of what comes next; what ``Functions.arm`` returns."""
        return int(self._arm(self._state))

    def is_told(self, seconds: float) -> bool:
        """Whether the event tells that something has come, within a time in which the other ends make progress and this one does not."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for each in self._ends:
                if each is not self:
                    each._poll(each._state)
            if select.select([self.transport.event], [], [], 0.001)[0]:
                return True
        return False

    def expose(self, address: int, nbytes: int) -> Remote:
        """Let peers reach memory by the network itself."""
        remote = Remote(address, nbytes)
        assert self._functions_of_memory.call("expose", self._state, remote.at)
        remote.key = ctypes.string_at(remote["key"], remote["key_bytes"])
        return remote

    def conceal(self, remote: Remote) -> None:
        """End that."""
        assert self._functions_of_memory.call("conceal", self._state, remote.at)

    def open(self, peer: int, exposed: Remote) -> Remote:
        """Get ready for memory that a peer has exposed, or this rank itself (OWN)."""
        remote, key = Remote(exposed["address"], exposed["nbytes"]), np.frombuffer(exposed.key, np.uint8)
        remote["key"], remote["key_bytes"], remote["peer"] = key.ctypes.data, key.size, self._block_of(peer)
        assert self._functions_of_memory.call("open", self._state, remote.at)
        return remote

    def shut(self, remote: Remote) -> bool:
        """Give it up; whether that was possible."""
        return bool(self._functions_of_memory.call("shut", self._state, remote.at))

    def access(self, what: str, peer: int, remote: Remote, address: int, nbytes: int, start: int) -> Half:
        """Start a ``"put"`` or ``"get"`` of bytes of memory of a peer, from byte `start` of it on."""
        half = Half(address, nbytes, nbytes)
        half["second"], half["third"] = remote["address"] + start, remote["handle"]
        half["finished"] = self._functions_of_memory.call(what, self.address, self._block_of(peer), half.at)
        return half

    def combine(self, peer: int, remote: Remote, start: int, operation: int, operand: int, swap: int) -> Half:
        """Start an atomic operation on the word of memory of a peer, or of this rank (OWN), that is at byte `start` of it."""
        half = Half(0, 0, 0)
        half["second"], half["third"] = remote["address"] + start, remote["handle"]
        half["window"], half["moved"], half["passed"] = operation, operand, swap
        half["finished"] = self._functions_of_memory.call("combine", self.address, self._block_of(peer), half.at)
        return half

    @property
    def combines(self) -> bool:
        """Whether the network has atomic operations on words of peers."""
        functions = self.transport.remote_memory
        return functions is not None and functions.combine != 0

    def _block_of(self, peer: int) -> int:
        """What memory of a peer, or of this rank (OWN), is reached by."""
        functions = self.transport.remote_memory
        assert functions is not None
        return functions.own if peer == OWN else self.peers[peer]

    @property
    def _functions_of_memory(self) -> _FunctionsOfMemory:
        functions = self.transport.remote_memory
        assert functions is not None
        return _FunctionsOfMemory(functions)

    def refuse(self, refuses: bool) -> None:
        """Refuse what is handed up from now on, or take it again."""
        self._block[RECORDER.refuses // WORD] = refuses

    def received(self, turns: int = 0) -> list[Seen]:
        """Have the transport hand up what has come: what is new since the last time."""
        end, turn = time.monotonic() + _ARRIVES_WITHIN, 0
        while turn < (turns or self._turns) or (turns == 0 and self._is_due and time.monotonic() < end):
            turn += 1
            for each in self._ends or [self]:
                each._poll(each._state)
        count = self._count
        new = [self._seen(index) for index in range(self._read, count)]
        self._read = count
        self.due -= len(new)
        return new

    @property
    def _count(self) -> int:
        return int(self._block[RECORDER.count // WORD])

    @property
    def _is_due(self) -> bool:
        """Whether something that was sent has not come that will not be refused."""
        return self.due > self._count - self._read and not self._block[RECORDER.refuses // WORD]

    def _seen(self, index: int) -> Seen:
        row = self._records.reshape(-1, RECORD.total // WORD)[index].tolist()
        peer, kind, context, tag, nbytes, first, second, third = row
        is_eager = kind == EAGER
        given, payload = ((0, 0, 0), ctypes.string_at(first, nbytes)) if is_eager else ((first, second, third), b"")
        return Seen(self.peers.index(peer), kind, context, tag, nbytes, given, payload)


def _come_to_rest(*ends: End) -> bool:
    """Whether nothing is under way any more for which peers need one of these, when they have had time to say so to each other."""
    for _ in range(10_000):
        if not any(end.transport.is_busy for end in ends):
            return True
        for end in ends:
            end.received(1)
    return False


class Half:
    """The words :data:`HALF` of one end of a large message."""

    def __init__(self, address: int, nbytes: int, message_bytes: int) -> None:
        self._words, self.at = _aligned(HALF.total)
        self["address"], self["nbytes"], self["message_bytes"] = address, nbytes, message_bytes

    def __getitem__(self, field: str) -> int:
        return int(self._words[getattr(HALF, field) // WORD])

    def __setitem__(self, field: str, value: int) -> None:
        self._words[getattr(HALF, field) // WORD] = value


class Remote:
    """The words :data:`transports.messages.REMOTE` of memory that is exposed, or opened, and its key."""

    def __init__(self, address: int, nbytes: int) -> None:
        self._words, self.at = _aligned(REMOTE.total)
        self["address"], self["nbytes"] = address, nbytes
        self.key = b""

    def __getitem__(self, field: str) -> int:
        return int(self._words[getattr(REMOTE, field) // WORD])

    def __setitem__(self, field: str, value: int) -> None:
        self._words[getattr(REMOTE, field) // WORD] = value


class _FunctionsOfMemory:
    """What reaches memory of peers, to be called by name."""

    def __init__(self, functions: RemoteMemory) -> None:
        self._functions = functions

    def call(self, name: str, *words: int) -> int:
        """Call one of them."""
        function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(words))(getattr(self._functions, name))
        return int(function(*words))


def _aligned(nbytes: int) -> tuple[npt.NDArray[np.int64], int]:
    """Zeroed words that begin a cache line, and their address."""
    raw = np.zeros(nbytes // WORD + LINE // WORD, np.int64)
    skip = -raw.ctypes.data % LINE // WORD
    return raw[skip : skip + nbytes // WORD], raw.ctypes.data + skip * WORD


def _payload(number: int, nbytes: int) -> bytes:
    """Bytes that tell which message they belong to."""
    return ((np.arange(nbytes) * 7 + number * 13) % 251).astype(np.uint8).tobytes()


class TransportTests:
    """What every transport must do.

    A subclass gives the fixture ``pair``: the transports of ranks 0 and 1 of two, in this process. Where a message takes its time, and both
    ends have to be polled, ``turns`` says how often they are before nothing more is expected than what was sent.
    """

    turns: ClassVar[int] = 1
    much: ClassVar[int] = 3_000_000
    """Bytes that do not arrive in two turns."""
    flooding: ClassVar[int] = 100
    """Bytes of a message of which so many as a test sends at most have no room on the way."""

    @pytest.fixture
    def ends(self, pair: tuple[Transport, Transport]) -> Iterator[tuple[End, End]]:
        """Both ends, connected with each other and with themselves."""
        endpoints = [transport.endpoint() for transport in pair]
        zero, one = (End(transport, endpoints) for transport in pair)
        if self.turns > 1:
            self._have_met(zero, one)
        yield zero, one
        for transport in pair:
            transport.close()

    def _have_met(self, *ends: End) -> None:
        """Send a first message each way, which takes longer than others on a network that connects for it."""
        for end in ends:
            end.know([*ends], self.turns)
        for end in ends:
            for peer, other in enumerate(ends):
                assert end.send(peer, b"first")
                assert [message.payload for message in other.received()] == [b"first"]

    def test_reaches_its_peers_and_itself(self, pair: tuple[Transport, Transport]) -> None:
        for end in pair:
            assert [end.why_not(peer) for peer in (0, 1)] == ["", ""]
            assert end.why_not(2)

    def test_unreachable_peer_is_an_error_that_says_why(self, pair: tuple[Transport, Transport]) -> None:
        with pytest.raises(ConnectionError, match="rank 7"):
            pair[0].connect(7, pair[1].endpoint())

    def test_nothing_comes_of_nothing(self, ends: tuple[End, End]) -> None:
        assert [end.received() for end in ends] == [[], []]

    @pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (0, 0)])
    def test_payloads_arrive_whole(self, ends: tuple[End, End], source: int, target: int) -> None:
        for nbytes in (0, 1, 31, 32, 33, 1000, ends[source].transport.caps.max_eager):
            payload = _payload(nbytes, nbytes)
            assert ends[source].send(target, payload, context=nbytes * 4, tag=nbytes)
            assert ends[target].received() == [Seen(source, EAGER, nbytes * 4, nbytes, nbytes, (0, 0, 0), payload)]

    @pytest.mark.parametrize("kind", [RTS, CTS, ATS, CANCEL, ASK, ANSWER, GOODBYE])
    def test_words_arrive_as_they_are(self, ends: tuple[End, End], kind: int) -> None:
        given = (1 << 62, -5, 0)
        assert ends[0].send(1, b"in touch")  # a farewell goes to those only who are
        assert ends[1].received() == [Seen(0, EAGER, 4, 0, 8, (0, 0, 0), b"in touch")]
        assert ends[0].tell(1, kind, 1 << 40, *given)
        assert ends[1].received() == [Seen(0, kind, 4, 7, 1 << 40, given, b"")]

    def test_messages_arrive_in_order_and_none_is_lost_where_there_is_no_room(self, ends: tuple[End, End]) -> None:
        zero, one = ends
        sizes = [0, 5, 100, 31, zero.transport.caps.max_eager, 64]
        sent, seen = 0, []
        while sent < 600:
            payload = _payload(sent, sizes[sent % len(sizes)])
            went = zero.send(1, payload, tag=sent) if sent % 7 else zero.tell(1, RTS, sent, sent, 1, 2)
            sent += went
            if not went:
                seen += one.received()
        while new := one.received():
            seen += new
        assert len(seen) == sent
        for number, message in enumerate(seen):
            if number % 7:
                assert (message.tag, message.payload) == (number, _payload(number, sizes[number % len(sizes)]))
            else:
                assert (message.kind, message.words) == (RTS, (number, 1, 2))

    def test_what_is_refused_stays_and_so_does_what_follows(self, ends: tuple[End, End]) -> None:
        zero, one = ends
        one.refuse(True)
        assert zero.send(1, b"first") and zero.tell(1, ATS, 0, 1, 2, 3) and zero.send(1, b"last")
        assert one.received() == one.received() == []
        assert one.send(1, b"own") and one.received() == []
        one.refuse(False)
        seen = one.received()
        assert [message.payload for message in seen if message.peer == 0] == [b"first", b"", b"last"]
        assert [message.payload for message in seen if message.peer == 1] == [b"own"]

    @pytest.mark.parametrize("nbytes", [1, 16_000, 100_001, 3_000_000])
    @pytest.mark.parametrize("missing", [0, 1, 100_000])
    def test_large_messages_arrive_whole_or_as_far_as_the_buffer_goes(
        self, ends: tuple[End, End], nbytes: int, missing: int
    ) -> None:
        zero, one = ends
        data, room = np.frombuffer(_payload(1, nbytes), np.uint8), np.full(nbytes + 8, 255, np.uint8)
        taken = max(0, nbytes - missing)
        sent = zero.offer(1, data.ctypes.data, nbytes)
        (seen,) = one.received()
        assert (seen.kind, seen.nbytes) == (RTS, nbytes)
        fetched = one.fetch(seen, room.ctypes.data, taken)
        for _ in range(10_000):
            zero.go_on(sent)
            one.go_on(fetched)
            if sent["finished"] and fetched["finished"]:
                break
        assert sent["finished"] and fetched["finished"] and not fetched["error"]
        assert (room[:taken] == data[:taken]).all() and (room[taken:] == 255).all()
        assert _come_to_rest(zero, one)

    def test_a_buffer_is_the_callers_again_after_send(self, ends: tuple[End, End]) -> None:
        data = bytearray(b"before")
        assert ends[0].send(1, data)
        data[:] = b"after!"
        assert [message.payload for message in ends[1].received()] == [b"before"]

    def test_a_flood_ends_where_there_is_no_room_and_nothing_of_it_is_lost(self, ends: tuple[End, End]) -> None:
        zero, one = ends
        count = 0
        while count < _MOST // 2 and zero.send(1, _payload(count, self.flooding), tag=count):
            count += 1
        assert 0 < count < _MOST // 2 and not zero.send(1, _payload(count, self.flooding))
        assert one.send(0, b"the other way") and [message.payload for message in zero.received()] == [b"the other way"]
        seen: list[bytes] = []
        while new := one.received():
            seen += [message.payload for message in new]
        assert seen == [_payload(number, self.flooding) for number in range(count)]
        assert zero.send(1, b"room again") and [message.payload for message in one.received()] == [b"room again"]

    def test_a_buffer_that_is_taken_back_is_not_written_to(self, ends: tuple[End, End]) -> None:
        """At once, or when what is under way has ended: then the rest is dropped, and the receive ends all the same."""
        zero, one = ends
        data, room = np.full(self.much, 7, np.uint8), np.zeros(self.much, np.uint8)
        sent = zero.offer(1, data.ctypes.data, data.size)
        (seen,) = one.received()
        fetched = one.fetch(seen, room.ctypes.data, room.size)
        zero.go_on(sent)
        one.go_on(fetched)
        assert not fetched["finished"]
        is_free, before = one.revoke(0, fetched), room.copy()
        for _ in range(10_000):
            zero.go_on(sent)
            one.go_on(fetched)
            if sent["finished"] and fetched["finished"]:
                break
        assert sent["finished"] and fetched["finished"] and not room.all()
        assert (room == before).all() or not is_free

    def test_an_event_tells_of_what_comes(self, ends: tuple[End, End]) -> None:
        if ends[1].transport.event < 0:
            assert ends[1].transport.functions.arm == 0
            return
        for number in range(3):
            deadline = time.monotonic() + _ARRIVES_WITHIN
            while ends[1].arm() != ARMED and time.monotonic() < deadline:
                assert ends[1].received() == []
            assert ends[0].send(1, b"come", tag=number)
            assert ends[1].is_told(_ARRIVES_WITHIN)
            assert ends[1].arm() == COME or ends[1].is_told(_ARRIVES_WITHIN)
            assert [(message.payload, message.tag) for message in ends[1].received()] == [(b"come", number)]

    def test_memory_of_a_peer_is_written_and_read(self, ends: tuple[End, End]) -> None:
        """A put that is finished is there, and touches nothing else; a get after it finds it there."""
        zero, one = ends
        if zero.transport.remote_memory is None:
            assert one.transport.remote_memory is None
            return
        memory = np.full(3_100_000, 255, np.uint8)
        exposed = one.expose(memory.ctypes.data, memory.size)
        opened = zero.open(1, exposed)
        for start, nbytes in ((0, 1), (3, 8), (1, 1001), (4096, 65536), (17, 3_000_001)):
            for number in range(2):
                data = np.frombuffer(_payload(number, nbytes), np.uint8)
                memory[:], room = 255, np.full(nbytes + 2, 255, np.uint8)
                self._access(zero, "put", opened, data.ctypes.data, nbytes, start)
                assert (memory[start : start + nbytes] == data).all()
                assert (memory[:start] == 255).all() and (memory[start + nbytes :] == 255).all()
                self._access(zero, "get", opened, room.ctypes.data + 1, nbytes, start)
                assert (room[1:-1] == data).all() and (room[[0, -1]] == 255).all()
        assert zero.shut(opened)
        one.conceal(exposed)

    def test_words_of_peers_and_of_this_rank_are_combined(self, ends: tuple[End, End]) -> None:
        """Each operation does what it says to its word alone, and brings what was there."""
        zero, one = ends
        if not zero.combines:
            return
        memory = np.zeros(3, np.int64)
        for owner, number in ((one, 1), (zero, OWN)):
            exposed = owner.expose(memory.ctypes.data, memory.nbytes)
            opened = zero.open(number, exposed)
            for operation, before, operand, swap, after in (
                (ADD, 40, -41, 0, -1), (ADD, 2**63 - 1, 1, 0, -(2**63)), (SWAP, 5, 2**62 + 7, 0, 2**62 + 7),
                (COMPARE_AND_SWAP, 8, 8, -9, -9), (COMPARE_AND_SWAP, 8, 9, -9, 8),
                (AND, 0b1100, 0b0110, 0, 0b0100), (OR, 0b1100, 0b0110, 0, 0b1110), (XOR, 0b1100, 0b0110, 0, 0b1010),
            ):  # fmt: skip
                memory[:] = -1, before, -1
                half = zero.combine(number, opened, 8, operation, operand, swap)
                self._end_access(half, zero, one)
                assert (half["passed"], memory.tolist()) == (before, [-1, after, -1])
            assert zero.shut(opened)
            owner.conceal(exposed)

    def test_no_operation_on_a_word_is_lost(self, ends: tuple[End, End]) -> None:
        """Operations of two ranks on a word, many under way at a time, bring a different value each."""
        zero, one = ends
        if not zero.combines:
            return
        memory, found = np.zeros(1, np.int64), []
        exposed = zero.expose(memory.ctypes.data, memory.nbytes)
        opened = {zero: zero.open(OWN, exposed), one: one.open(0, exposed)}
        for _ in range(20):
            halves = [
                end.combine(OWN if end is zero else 0, opened[end], 0, ADD, 1, 0) for end in (zero, one, zero, one, one, zero) * 5
            ]
            for half in halves:
                self._end_access(half, zero, one)
            found += [half["passed"] for half in halves]
        assert sorted(found) == list(range(600)) and memory[0] == 600
        for end in ends:
            assert end.shut(opened[end])
        zero.conceal(exposed)

    def _access(self, zero: End, what: str, opened: Remote, address: int, nbytes: int, start: int) -> None:
        """Access memory of rank 1, to the end."""
        self._end_access(zero.access(what, 1, opened, address, nbytes, start), zero)

    def _end_access(self, half: Half, *ends: End) -> None:
        """Wait for an access of one of some ends."""
        deadline = time.monotonic() + _ARRIVES_WITHIN
        while not half["finished"] and time.monotonic() < deadline:
            for end in ends:
                assert end.received(1) == []
        assert half["finished"] and half["error"] == 0

    def test_who_is_killed_takes_nothing_along_that_was_sent(self, ends: tuple[End, End]) -> None:
        zero, one = ends
        data, room = np.full(3_000_000, 7, np.uint8), np.zeros(3_000_000, np.uint8)
        child = os.fork()
        if child == 0:  # rank 1, which ends in the middle of a large message
            with contextlib.suppress(BaseException):
                one.send(0, b"before")
                sent = one.offer(0, data.ctypes.data, data.size)
                while not sent["finished"]:
                    one.go_on(sent)
                    if one.has_served:
                        os.kill(os.getpid(), signal.SIGKILL)
            os._exit(1)
        seen: list[Seen] = []
        while len(seen) < 2:
            seen += zero.received()
        fetched = zero.fetch(seen[1], room.ctypes.data, room.size)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        for _ in range(1000):
            zero.go_on(fetched)
        assert seen[0].payload == b"before" and not fetched["finished"]
        assert zero.send(0, b"to itself") and [message.payload for message in zero.received()] == [b"to itself"]
        while zero.send(1, b"to nobody"):
            pass

    def test_credit_reaches_the_sender(self, ends: tuple[End, End]) -> None:
        for released in (1, 100_000, 1 << 40):
            ends[1].credit(0, released)
            assert self.credited(ends[0], 1) == released

    def credited(self, end: End, peer: int) -> int:
        """What `peer` lets this end know of its eager bytes that found their receive: it may wait for a message to ride on, not for long."""
        for _ in range(10_000):
            seen = [message.words[0] for message in end.received() if (message.peer, message.kind) == (peer, CREDIT)]
            if seen:
                return seen[-1]
        raise AssertionError("no credit came")
