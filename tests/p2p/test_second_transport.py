"""A transport that knows nothing of shared memory, beside the one that does: the test plays rank 1, rank 0 reaches itself by the arena."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi import errors
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import ANY_SOURCE, ANY_TAG, CONFIRMED, EAGER_COST, ERR_TRUNCATE, SYNCHRONOUS
from transports.base import Calls, Capabilities, Functions, Transport
from transports.messages import ATS, CANCEL, CANCELLED, CREDIT, CTS, EAGER, REQUEST, RTS
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory

WORD = ctypes.c_int64
MESSAGE = ctypes.CFUNCTYPE(WORD, *[WORD] * 9)
OF_A_REQUEST = ctypes.CFUNCTYPE(WORD, *[WORD] * 3)
OF_THE_ENGINE = ctypes.CFUNCTYPE(None, WORD)
LARGE = 5_000
STATE = 4711


class Message(NamedTuple):
    """What crosses; `words` are those of a message without a payload."""

    kind: int
    context: int
    tag: int
    nbytes: int
    words: tuple[int, int, int] = (0, 0, 0)
    payload: bytes = b""


class Network(Transport):
    """Reaches rank 1, which is whoever reads `sent` and fills `coming`, and such others as nothing is sent to."""

    name: ClassVar[str] = "network"

    def __init__(self, reaches: Sequence[int] = (1,)) -> None:
        self.reaches = reaches
        self.sent: list[Message] = []
        self.coming: deque[Message] = deque()
        self.room = 1000
        self.credit = 0
        self.endpoint_of_peer = b""
        self.serving: list[int] = []
        self.fetching: list[int] = []
        self.revoked: list[int] = []
        self.reads_alone = False
        self._callbacks = (
            MESSAGE(self._send), OF_A_REQUEST(self._credit), OF_A_REQUEST(self._offer), OF_A_REQUEST(self._fetch),
            OF_A_REQUEST(self._serve), OF_A_REQUEST(self._revoke), OF_THE_ENGINE(self._poll), OF_THE_ENGINE(lambda _engine: None),
        )  # fmt: skip

    @property
    def caps(self) -> Capabilities:
        return Capabilities(max_eager=1000)

    @property
    def functions(self) -> Functions:
        return Functions(*(ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in self._callbacks))

    @property
    def is_busy(self) -> bool:
        return bool(self.serving or self.fetching)

    def why_not(self, peer: int) -> str:
        return "" if peer in self.reaches else f"rank {peer} has no address in this network"

    def endpoint(self) -> bytes:
        return b"rank 0"

    def attach(self, engine: int, peers: Sequence[int], calls: Calls) -> int:
        self.engine, self.peer = engine, peers[1]
        self._arrive = MESSAGE(calls.arrive)
        self._clear_to_send, self._finish = OF_A_REQUEST(calls.clear_to_send), OF_A_REQUEST(calls.finish)
        return STATE

    def connect(self, peer: int, endpoint: bytes) -> None:
        self.endpoint_of_peer = endpoint

    def close(self) -> None:
        pass

    def finish(self, request: int) -> None:
        """A transfer has ended."""
        for under_way in (self.serving, self.fetching):
            if request in under_way:
                under_way.remove(request)
        self._finish(self.engine, request, 0)

    def _send(self, engine: int, peer: int, kind: int, context: int, tag: int, nbytes: int, *words: int) -> int:
        assert (engine, peer) == (self.engine, self.peer)
        if self.room == 0:
            return 0
        self.room -= 1
        is_eager = kind == EAGER
        payload = ctypes.string_at(words[0], nbytes) if is_eager else b""
        self.sent.append(Message(kind, context, tag, nbytes, (0, 0, 0) if is_eager else (words[0], words[1], words[2]), payload))
        return 1

    def _credit(self, engine: int, peer: int, released: int) -> int:
        self.credit = released
        return 1

    def _offer(self, engine: int, peer: int, request: int) -> int:
        set_word(request + REQUEST.second, 77)
        return 1

    def _fetch(self, engine: int, peer: int, receive: int) -> int:
        assert word(receive + REQUEST.second) == 88
        self.fetching.append(receive)
        if self.reads_alone:
            return 0
        set_word(receive + REQUEST.third, 99)
        self._clear_to_send(engine, peer, receive)
        return 0

    def _serve(self, engine: int, peer: int, request: int) -> int:
        self.serving.append(request)
        return 0

    def _revoke(self, engine: int, peer: int, receive: int) -> int:
        self.revoked.append(receive)
        return 0

    def _poll(self, state: int) -> None:
        assert state == STATE
        while self.coming:
            message = self.coming[0]
            data = np.frombuffer(message.payload, np.uint8)
            words = (data.ctypes.data, data.size, 0) if message.kind == EAGER else message.words
            if not self._arrive(self.engine, self.peer, message.kind, message.context, message.tag, message.nbytes, *words):
                return
            self.coming.popleft()


def word(address: int) -> int:
    return WORD.from_address(address).value


def set_word(address: int, value: int) -> None:
    WORD.from_address(address).value = value


class World(NamedTuple):
    """Rank 0 of two, alone on its node."""

    comm: NativeComm
    network: Network

    @property
    def engine(self) -> Engine:
        return self.comm.engine


@pytest.fixture
def world() -> Iterator[World]:
    arena, network = Arena.create(1, world_size=2), Network()
    arena.join(0)
    transports = [SharedMemory(arena, 0), network]
    engine = Engine(arena, transports, 0, timeout=20, endpoints={"network": [b"rank 0", b"rank 1"]})
    yield World(engine.new_comm(4, [0, 1]), network)
    arena.close()


def pattern(nbytes: int, number: int = 0) -> npt.NDArray[np.uint8]:
    return ((np.arange(nbytes) * 7 + number) % 251).astype(np.uint8)


def start_send(world: World, data: npt.NDArray[np.uint8], dest: int, tag: int, mode: int = 0) -> int:
    return world.engine.start_send(world.comm, data.ctypes.data, data.size, dest, tag, mode)


def start_recv(world: World, room: npt.NDArray[np.uint8], source: int, tag: int) -> int:
    return world.engine.start_recv(world.comm, room.ctypes.data, room.size, source, tag)


def ended(world: World, request: int) -> Any:
    """What became of a request that is complete."""
    assert world.engine.done(request)
    result = world.engine.result(request)
    world.engine.free(request)
    return result


def test_each_peer_has_its_transport(world: World) -> None:
    assert world.network.endpoint_of_peer == b"rank 1"
    data = pattern(1000)
    ended(world, start_send(world, data, 1, 3))
    assert world.network.sent == [Message(EAGER, 4, 3, 1000, payload=data.tobytes())]
    own, room = start_send(world, data, 0, 3), np.zeros(1000, np.uint8)
    ended(world, start_recv(world, room, 0, 3))
    ended(world, own)
    assert (room == data).all() and len(world.network.sent) == 1


def test_receives_from_anybody_take_what_comes_first(world: World) -> None:
    own = pattern(5, 1)
    ended(world, start_send(world, own, 0, 1))
    world.engine.progress()
    world.network.coming.append(Message(EAGER, 4, 2, 6, payload=pattern(6, 2).tobytes()))
    world.engine.progress()
    for source, tag in ((0, 1), (1, 2)):
        room = np.zeros(10, np.uint8)
        result = ended(world, start_recv(world, room, ANY_SOURCE, ANY_TAG))
        assert (result.source, result.tag, result.nbytes) == (source, tag, 4 + tag)
        assert (room[: result.nbytes] == pattern(result.nbytes, tag)).all()
    assert world.network.credit == 6 + EAGER_COST


def test_a_posted_receive_is_met_and_truncated(world: World) -> None:
    room = np.full(8, 255, np.uint8)
    request = start_recv(world, room[:4], 1, 2)
    world.network.coming.append(Message(EAGER, 4, 2, 6, payload=pattern(6).tobytes()))
    result = ended(world, request)
    assert (result.nbytes, result.error) == (6, ERR_TRUNCATE)
    assert (room[:4] == pattern(4)).all() and (room[4:] == 255).all()


def test_what_finds_no_room_waits_and_keeps_its_order(world: World) -> None:
    world.network.room = 0
    data = [pattern(10, number) for number in range(5)]
    requests = [start_send(world, each, 1, number) for number, each in enumerate(data)]
    assert not any(world.engine.done(request) for request in requests)
    world.network.room = 3
    world.engine.progress()
    assert [message.tag for message in world.network.sent] == [0, 1, 2]
    world.network.room = 100
    for request in requests:
        ended(world, request)
    assert [message.payload for message in world.network.sent] == [each.tobytes() for each in data]


@pytest.mark.parametrize(("nbytes", "mode"), [(1001, 0), (LARGE, 0), (993, SYNCHRONOUS), (0, SYNCHRONOUS)])
def test_a_large_send_is_announced_granted_and_served(world: World, nbytes: int, mode: int) -> None:
    data = pattern(nbytes)
    request = start_send(world, data, 1, 3, mode)
    assert world.network.sent == [Message(RTS, 4, 3, nbytes, (request, 77, 0))]
    world.network.coming.append(Message(CTS, 0, 0, 0, (request, 5, 6)))
    assert not world.engine.done(request)
    assert world.network.serving == [request]
    seen = [word(request + getattr(REQUEST, field)) for field in ("address", "nbytes", "second", "third")]
    assert seen == [data.ctypes.data, nbytes, 5, 6]
    world.network.finish(request)
    ended(world, request)


@pytest.mark.parametrize("nbytes", [1, 8, 992])
def test_a_small_synchronous_send_goes_behind_the_address_of_its_request(world: World, nbytes: int) -> None:
    world.network.room = 0
    request = start_send(world, pattern(nbytes), 1, 3, SYNCHRONOUS)
    assert not world.network.sent and not world.engine.word("announced")
    world.network.room = 100
    assert not world.engine.done(request) and world.engine.word("announced") == 1
    payload = request.to_bytes(8, "little") + pattern(nbytes).tobytes()
    assert world.network.sent == [Message(EAGER, CONFIRMED | 4, 3, 8 + nbytes, payload=payload)]
    world.network.coming.append(Message(ATS, 0, 0, 0, (request, 0, 0)))
    ended(world, request)
    assert not world.engine.word("announced")


def test_an_acknowledged_send_is_complete(world: World) -> None:
    request = start_send(world, pattern(8), 1, 3, SYNCHRONOUS)
    assert not world.engine.done(request)
    world.network.coming.append(Message(ATS, 0, 0, 0, (request, 0, 0)))
    ended(world, request)


@pytest.mark.parametrize("is_posted", [False, True])
def test_a_large_receive_is_fetched(world: World, is_posted: bool) -> None:
    data, room, network = pattern(LARGE), np.zeros(LARGE, np.uint8), world.network
    announced = Message(RTS, 4, 3, LARGE, (1234, 88, 0))
    request = start_recv(world, room, 1, 3) if is_posted else 0
    network.coming.append(announced)
    world.engine.progress()
    request = request or start_recv(world, room, ANY_SOURCE, 3)
    assert network.fetching == [request]
    assert network.sent == [Message(CTS, 0, 0, 0, (1234, 88, 99))]
    assert not world.engine.done(request)
    ctypes.memmove(word(request + REQUEST.address), data.ctypes.data, LARGE)
    network.finish(request)
    result = ended(world, request)
    assert (result.source, result.tag, result.nbytes, result.error) == (1, 3, LARGE, 0)
    assert (room == data).all()


def test_a_receive_that_is_fetched_without_its_sender_acknowledges_it(world: World) -> None:
    room, network = np.zeros(LARGE, np.uint8), world.network
    network.reads_alone = True
    request = start_recv(world, room, 1, 3)
    network.coming.append(Message(RTS, 4, 3, LARGE, (1234, 88, 0)))
    assert not world.engine.done(request) and not network.sent
    network.finish(request)
    assert network.sent == [Message(ATS, 0, 0, 0, (1234, 0, 0))]
    ended(world, request)


def test_a_synchronous_message_without_bytes_needs_no_transfer(world: World) -> None:
    request = start_recv(world, np.zeros(0, np.uint8), 1, 3)
    world.network.coming.append(Message(RTS, 4, 3, 0, (1234, 88, 0)))
    ended(world, request)
    assert world.network.sent == [Message(ATS, 0, 0, 0, (1234, 0, 0))] and not world.network.fetching


def test_a_receive_that_is_given_up_revokes_its_transfer(world: World) -> None:
    room = np.zeros(LARGE, np.uint8)
    request = start_recv(world, room, 1, 3)
    world.network.coming.append(Message(RTS, 4, 3, LARGE, (1234, 88, 0)))
    world.engine.progress()
    world.engine.withdraw(request)
    assert world.network.revoked == [request] and word(request + REQUEST.nbytes) == 0
    world.network.finish(request)


def test_cancellations(world: World) -> None:
    request = start_send(world, pattern(8), 1, 3, SYNCHRONOUS)
    world.engine.cancel(request, world.engine.serial(request))
    assert world.network.sent[1] == Message(CANCEL, 0, 0, 0, (request, 0, 0))
    world.network.coming.append(Message(CANCELLED, 0, 0, 0, (request, 0, 0)))
    assert ended(world, request).cancelled
    world.network.coming += [Message(RTS, 4, 3, LARGE, (1234, 88, 0)), Message(CANCEL, 0, 0, 0, (1234, 0, 0))]
    world.engine.progress()
    assert world.network.sent[2] == Message(CANCELLED, 0, 0, 0, (1234, 0, 0))
    assert world.engine.probe(world.comm, 1, 3) is None


def test_credit_bounds_what_is_sent_unasked(world: World) -> None:
    data, most = pattern(1000), (4 << 20) // (1000 + EAGER_COST)
    world.network.room = 10_000
    for _ in range(most):
        ended(world, start_send(world, data, 1, 0))
    announced = start_send(world, data, 1, 0)
    assert [message.kind for message in world.network.sent] == [EAGER] * most + [RTS]
    world.network.coming.append(Message(CREDIT, 0, 0, 0, (1000 + EAGER_COST, 0, 0)))
    world.engine.progress()
    ended(world, start_send(world, data, 1, 0))
    world.network.coming.append(Message(ATS, 0, 0, 0, (announced, 0, 0)))
    ended(world, announced)


def test_what_waits_for_room_counts(world: World) -> None:
    data, most = pattern(1000), (4 << 20) // (1000 + EAGER_COST)
    world.network.room = 0
    started = [start_send(world, data, 1, 0) for _ in range(most + 1)]
    world.network.room = 10_000
    for request in started[:-1]:
        ended(world, request)
    assert [message.kind for message in world.network.sent] == [EAGER] * most + [RTS]
    world.network.coming.append(Message(ATS, 0, 0, 0, (started[-1], 0, 0)))
    ended(world, started[-1])


def test_a_peer_that_no_transport_reaches_is_named(world: World) -> None:
    arena = Arena.create(1, world_size=3)
    with pytest.raises(errors.Exception, match="rank 0 cannot reach rank 2; shm: .*; network: rank 2 has no address"):
        Engine(arena, [SharedMemory(arena, 0), Network()], 0)


def test_the_ranks_of_a_node_are_named_by_their_world_ranks() -> None:
    arena = Arena.create(2, [2, 3], 4)
    arena.join(0)
    arena.join(1)
    engine = Engine(arena, [SharedMemory(arena, 3), Network([0, 1])], 3)
    assert engine.local_rank == 1
    assert [line.split(":")[0] for line in engine.who_waits().splitlines()] == ["  rank 2", "  rank 3"]
    arena.declare_dead(0)
    with pytest.raises(errors.Exception, match="rank 3: a test was given up because rank 2 died"):
        engine.check_peers("a test")


def test_ranks_of_a_node_follow_each_other() -> None:
    with pytest.raises(ValueError, match="follow each other"):
        SharedMemory(Arena.create(2, [2, 4], 5), 2)
    second = SharedMemory(Arena.create(2, [2, 3], 5), 3)
    assert [second.why_not(peer) == "" for peer in range(5)] == [False, False, True, True, False]
