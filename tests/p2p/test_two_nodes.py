"""Two engines, each alone on its node, between them the simulated network, UCX, or sockets: all kinds of messages, through one matcher."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi.p2p.engine import Engine, NativeComm, Result
from ncclx_mpi.p2p.layout import ANY_SOURCE, ANY_TAG, EAGER_COST, ERR_TRUNCATE, PEER, SYNCHRONOUS
from transports.base import Transport
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory
from transports.tcp.transport import Tcp
from transports.ucx import library
from transports.ucx import transport as ucx_transport
from transports.ucx.layout import LARGEST_PIECE, MOST_FLYING
from transports.ucx.transport import Ucx
from transports.virtual.network import Network, Settings
from transports.virtual.transport import VirtualNetwork

Bytes = npt.NDArray[np.uint8]


class Nodes(NamedTuple):
    """Rank 0 and rank 1 of a communicator of both."""

    comms: tuple[NativeComm, NativeComm]
    network: Network | None
    sent: list[Bytes]
    """What is sent lives as long as the test."""

    def progress(self) -> None:
        for comm in self.comms:
            comm.engine.progress()

    def send(self, source: int, dest: int, data: Bytes, tag: int = 0, mode: int = 0) -> int:
        comm = self.comms[source]
        self.sent.append(data)
        return comm.engine.start_send(comm, data.ctypes.data, data.size, dest, tag, mode)

    def receive(self, rank: int, room: Bytes, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> int:
        comm = self.comms[rank]
        return comm.engine.start_recv(comm, room.ctypes.data, room.size, source, tag)

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(1_000_000):
            if holds():
                return
            self.progress()
        raise AssertionError("it never came")

    def ended(self, rank: int, request: int) -> Result:
        """What became of a request, once it is complete."""
        engine = self.comms[rank].engine
        self.until(lambda: engine.done(request))
        result = engine.result(request)
        engine.free(request)
        return result


NETWORKS = {
    "quick": Settings(),
    "narrow": Settings(credits=2),
    "disorderly": Settings(jitter_us=20, is_shuffled=True),
    "ucx": None,
    "tcp": None,
}


@pytest.fixture(params=NETWORKS)
def nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    settings = NETWORKS[request.param]
    network = Network.create(2, settings) if settings else None
    between: Sequence[Transport] = [VirtualNetwork(network, rank) for rank in range(2)] if network else []
    if not network:
        between = workers(monkeypatch) if request.param == "ucx" else [Tcp(rank, 2, {1 - rank}) for rank in range(2)]
    endpoints = {between[0].name: [transport.endpoint() for transport in between]}
    arenas = [Arena.create(1, [rank], 2) for rank in range(2)]
    engines = []
    for rank, arena in enumerate(arenas):
        arena.join(0)
        engines.append(Engine(arena, [SharedMemory(arena, rank), between[rank]], rank, timeout=20, endpoints=endpoints))
    yield Nodes((engines[0].new_comm(4, [0, 1]), engines[1].new_comm(4, [0, 1])), network, [])
    for each in (*between, *arenas, *([network] if network else [])):
        each.close()


def workers(monkeypatch: pytest.MonkeyPatch) -> Sequence[Transport]:
    """UCX, whose ends are both in this process: those that are closed one after the other do not wait for each other."""
    try:
        found = library.find()
    except library.LibraryError as error:
        pytest.skip(str(error))
    if found.version[:2] == (1, 20):
        pytest.skip("UCX 1.20 finds no way to this host by the loopback interface")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    monkeypatch.setattr(ucx_transport, "_FLUSH_SECONDS", 0.0)
    return [Ucx(found, rank, 2, {1 - rank}, windows="direct") for rank in range(2)]


def pattern(nbytes: int, number: int = 0) -> Bytes:
    return ((np.arange(nbytes) * 7 + number) % 251).astype(np.uint8)


def test_ranks_of_another_node_are_not_near(nodes: Nodes) -> None:
    engine = nodes.comms[1].engine
    assert [engine.is_near(rank) for rank in (0, 1)] == [False, True]
    assert engine.local(1) == 0


@pytest.mark.parametrize("nbytes", [0, 1, 3967, 3968, 3969, 32768, 32769, 100_001, 3_000_000])
@pytest.mark.parametrize("mode", [0, SYNCHRONOUS])
@pytest.mark.parametrize("is_posted", [False, True])
def test_messages_of_any_size_arrive_whole(nodes: Nodes, nbytes: int, mode: int, is_posted: bool) -> None:
    data, room = pattern(nbytes), np.full(nbytes + 8, 255, np.uint8)
    request = nodes.receive(1, room, 0, 3) if is_posted else 0
    sent = nodes.send(0, 1, data, 3, mode)
    nodes.progress()
    result = nodes.ended(1, request or nodes.receive(1, room, 0, 3))
    nodes.ended(0, sent)
    assert (result.source, result.tag, result.nbytes, result.error) == (0, 3, nbytes, 0)
    assert (room[:nbytes] == data).all() and (room[nbytes:] == 255).all()


@pytest.mark.parametrize("nbytes", [100, 3_000_000])
@pytest.mark.parametrize("room_for", [0, 1, 50])
def test_a_message_that_is_too_long_is_cut(nodes: Nodes, nbytes: int, room_for: int) -> None:
    room = np.full(room_for + 8, 255, np.uint8)
    sent = nodes.send(0, 1, pattern(nbytes))
    result = nodes.ended(1, nodes.receive(1, room[:room_for], 0))
    nodes.ended(0, sent)
    assert (result.nbytes, result.error) == (nbytes, ERR_TRUNCATE)
    assert (room[:room_for] == pattern(nbytes)[:room_for]).all() and (room[room_for:] == 255).all()


def test_receives_from_anybody_take_what_came_first_whatever_brought_it(nodes: Nodes) -> None:
    sent = [nodes.send(1, 1, pattern(10, 1), 1)]
    nodes.progress()
    sent.append(nodes.send(0, 1, pattern(20, 2), 2))
    large = nodes.send(0, 1, pattern(100_000, 3), 3)
    for _ in range(100):
        nodes.progress()
    for source, tag, nbytes in ((1, 1, 10), (0, 2, 20), (0, 3, 100_000)):
        room = np.zeros(100_000, np.uint8)
        result = nodes.ended(1, nodes.receive(1, room))
        assert (result.source, result.tag, result.nbytes) == (source, tag, nbytes)
        assert (room[:nbytes] == pattern(nbytes, tag)).all()
    nodes.ended(1, sent[0])
    nodes.ended(0, sent[1])
    nodes.ended(0, large)


def test_a_flood_of_unexpected_messages_keeps_its_order(nodes: Nodes) -> None:
    """Eager and large ones in turn, more of them than credit and than the engine sends unasked."""
    data = [pattern(3000 if number % 50 else 50_000, number) for number in range(2000)]
    sent = [nodes.send(0, 1, each, 5) for each in data]
    for each in data:
        room = np.zeros(50_000, np.uint8)
        assert nodes.ended(1, nodes.receive(1, room, 0, 5)).nbytes == each.size
        assert (room[: each.size] == each).all()
    for request in sent:
        nodes.ended(0, request)


def test_both_ways_at_once(nodes: Nodes) -> None:
    data = [pattern(1_000_000, rank) for rank in (0, 1)]
    rooms = [np.zeros(1_000_000, np.uint8) for _ in data]
    requests = [(rank, nodes.receive(rank, rooms[rank], 1 - rank)) for rank in (0, 1)]
    requests += [(rank, nodes.send(rank, 1 - rank, data[rank])) for rank in (0, 1)]
    for rank, request in requests:
        nodes.ended(rank, request)
    assert (rooms[0] == data[1]).all() and (rooms[1] == data[0]).all()


@pytest.mark.parametrize("is_posted", [False, True])
@pytest.mark.parametrize("nbytes", [1, 24, 25, 1024, 3900])
@pytest.mark.parametrize("cut", [0, 1])
def test_the_receiver_of_a_small_synchronous_message_needs_nothing_more_of_its_sender(
    nodes: Nodes, nbytes: int, is_posted: bool, cut: int
) -> None:
    sender, receiver = (comm.engine for comm in nodes.comms)
    data, room = pattern(nbytes), np.full(nbytes + 8, 255, np.uint8)
    request = nodes.receive(1, room[: nbytes - cut], 0, 3) if is_posted else 0
    sent = nodes.send(0, 1, data, 3, SYNCHRONOUS)
    if not is_posted:
        nodes.until(lambda: receiver.probe(nodes.comms[1], 0, 3) is not None)
        assert not sender.done(sent)
    request = request or nodes.receive(1, room[: nbytes - cut], 0, 3)
    if is_posted and nodes.network is None:
        nodes.until(lambda: receiver.done(request))  # the sender may be needed until the message has left
    sender.set_word("lock", 1)  # it makes no progress now
    try:
        for _ in range(1_000_000):
            if receiver.done(request):
                break
        result = receiver.result(request)
    finally:
        sender.set_word("lock", 0)
    assert receiver.done(request) and (result.tag, result.nbytes, result.error) == (3, nbytes, ERR_TRUNCATE if cut else 0)
    assert (room[: nbytes - cut] == data[: nbytes - cut]).all() and (room[nbytes - cut :] == 255).all()
    receiver.free(request)
    nodes.ended(0, sent)


@pytest.mark.parametrize("nbytes", [0, 100])
def test_a_small_synchronous_message_that_is_taken_back_leaves_nothing(nodes: Nodes, nbytes: int) -> None:
    (sender, receiver), receiving = (comm.engine for comm in nodes.comms), nodes.comms[1]
    for _ in range(3):
        sent = nodes.send(0, 1, pattern(nbytes), 3, SYNCHRONOUS)
        nodes.until(lambda: receiver.probe(receiving, 0, 3) is not None)
        assert receiver.word("unexpected_bytes") == nbytes
        sender.cancel(sent, sender.serial(sent))
        assert nodes.ended(0, sent).cancelled
        assert receiver.probe(receiving, ANY_SOURCE, ANY_TAG) is None and not receiver.word("unexpected_bytes")
    peers = [engine.word("peers") + rank * PEER.total for engine, rank in ((sender, 1), (receiver, 0))]
    at = (peers[0] + PEER.sent, peers[1] + PEER.released)
    assert [ctypes.c_int64.from_address(each).value for each in at] == [3 * (nbytes + EAGER_COST) if nbytes else 0] * 2


def test_a_send_that_nobody_has_met_is_cancelled(nodes: Nodes) -> None:
    engine = nodes.comms[0].engine
    request = nodes.send(0, 1, pattern(200_000), 3)
    nodes.progress()
    engine.cancel(request, engine.serial(request))
    assert nodes.ended(0, request).cancelled
    assert nodes.comms[1].engine.probe(nodes.comms[1], ANY_SOURCE, ANY_TAG) is None


def test_a_receive_that_is_given_up_frees_its_buffer(nodes: Nodes) -> None:
    is_by_ucx = nodes.comms[0].engine.transports[1].name == "ucx"
    under_way = MOST_FLYING * LARGEST_PIECE if is_by_ucx else 0  # which UCX brings to their end
    nbytes = 3_000_000 + 4 * under_way
    room = np.zeros(nbytes, np.uint8)
    request = nodes.receive(1, room, 0)
    sent = nodes.send(0, 1, np.full(nbytes, 7, np.uint8))
    nodes.until(lambda: bool(room[0]))
    nodes.comms[1].engine.withdraw(request)
    before = room.copy()
    nodes.ended(0, sent)
    assert np.count_nonzero(room != before) <= under_way and not room.all()
    again = nodes.send(0, 1, pattern(10))
    assert nodes.ended(1, nodes.receive(1, room, 0)).nbytes == 10
    nodes.ended(0, again)


def test_probes_see_what_a_network_has_brought(nodes: Nodes) -> None:
    engine, comm = nodes.comms[1].engine, nodes.comms[1]
    sent = nodes.send(0, 1, pattern(50_000), 9)
    nodes.until(lambda: engine.probe(comm, ANY_SOURCE, 9) is not None)
    message, room = engine.match(comm, 0, 9), np.zeros(50_000, np.uint8)
    assert engine.probe(comm, ANY_SOURCE, ANY_TAG) is None
    nodes.ended(1, engine.start_matched_recv(comm, message, room.ctypes.data, room.size))
    nodes.ended(0, sent)
    assert (room == pattern(50_000)).all()


def test_a_wait_for_a_silent_rank_ends_at_the_deadline(nodes: Nodes) -> None:
    if nodes.network is None:
        pytest.skip("a real network cannot be silenced")
    engine = nodes.comms[1].engine
    engine.set_word("deadline_ticks", engine.word("ticks_per_us") * 200_000)
    nodes.network.silence(0)
    room = np.zeros(10, np.uint8)
    nodes.comms[0].engine.free(nodes.send(0, 1, pattern(10)))
    with pytest.raises(Exception, match="did not complete within"):
        engine.wait(nodes.receive(1, room, 0))
    nodes.network.silence(0, is_silent=False)
    assert nodes.ended(1, nodes.receive(1, room, 0)).nbytes == 10
