"""What agents of two hosts tell each other, in one process: an arena for each, and the loop of a launcher."""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ncclx_mpi.bootstrap.agent import Agent
from ncclx_mpi.bootstrap.exchange import MOST_BYTES, Directory, name_of
from ncclx_mpi.bootstrap.heartbeat import Heartbeat, heartbeat
from ncclx_mpi.bootstrap.hosts import Hosts
from ncclx_mpi.bootstrap.mesh import Mesh
from ncclx_mpi.bootstrap.patience import Patience
from ncclx_mpi.bootstrap.record import Record
from transports.shm.arena import Arena
from transports.shm.layout import ALIVE, DEAD, FINALIZED

SLOW = Heartbeat(60.0, 600.0)


class Host:
    """One of two hosts of two ranks: its agent, and its loop, in a thread if it is to run by itself."""

    def __init__(self, node: int, connection: socket.socket, beat: Heartbeat) -> None:
        records = [Record(k, 2, 2, host=f"h{k}") for k in range(2)]
        self.hosts = Hosts(node, records, Mesh({1 - node: connection}, beat))
        self.arena = Arena.create(2, self.hosts.ranks_of(node), 4)
        self.name, self.token = f"test-{secrets.token_hex(8)}", secrets.token_hex(16)
        self.heard: list[tuple[object, ...]] = []
        self.agent = Agent(self.hosts, self.arena, self.name, self.token, self)
        self.selector = selectors.DefaultSelector()
        self.agent.register(self.selector)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def failed_elsewhere(self, rank, pid, code, host):
        self.heard.append(("failed", rank, pid, code, host))

    def host_lost(self, rank, story):
        self.heard.append(("lost", rank, story))

    def aborted_elsewhere(self, code):
        self.heard.append(("aborted", code))

    def signalled_elsewhere(self, number):
        self.heard.append(("signalled", number))

    def _run(self):
        while not self.is_over.is_set():
            self.turn()

    def turn(self):
        for key, _ in self.selector.select(0.01):
            key.data(self.selector, key.fd)
        self.agent.beat()

    def turn_until(self, is_so, seconds=60.0):
        patience = Patience(seconds)
        while not is_so():
            assert not patience.is_over, self.heard
            self.turn()

    def exchange(self, rank, endpoint, seconds=60.0):
        return Directory(name_of(self.name), self.token).exchange(rank, endpoint, Patience(seconds))

    def close(self):
        self.is_over.set()
        if self.thread.is_alive():
            self.thread.join()
        self.agent.close_in_child()
        self.selector.close()
        self.arena.close()


@pytest.fixture
def make():
    """Makes two hosts that are connected."""
    made = []

    def two(beat=SLOW):
        made.extend(Host(node, end, beat) for node, end in enumerate(socket.socketpair()))
        return made[-2:]

    yield two
    for host in made:
        host.close()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads


def endpoint_of(rank):
    return bytes([rank]) * (rank * 1000 + 1)


def test_all_ranks_get_all_endpoints(make, pool):
    both = make()
    for host in both:
        host.thread.start()
    asked = [pool.submit(both[rank // 2].exchange, rank, endpoint_of(rank)) for rank in (3, 0, 2, 1)]
    for future in asked:
        assert future.result() == [endpoint_of(rank) for rank in range(4)]
    assert both[0].exchange(0, endpoint_of(0)) == [endpoint_of(rank) for rank in range(4)]  # a rank may ask again


def test_a_rank_that_never_comes_is_named(make, pool, monkeypatch):
    monkeypatch.setenv("NCCLX_MPI_JOIN_TIMEOUT", "0.5")
    both = make()
    for host in both:
        host.thread.start()
    for future in [pool.submit(both[rank // 2].exchange, rank, b"x") for rank in (0, 2)]:
        with pytest.raises(RuntimeError, match=r"ranks \[1, 3\] of 4 did not start within 0.5 s"):
            future.result()


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_ends_before_it_came_is_named(make, pool, code):
    both = make()
    for host in both[:1]:
        host.thread.start()
    asked = pool.submit(both[0].exchange, 0, b"x")
    if code:
        both[1].arena.declare_dead(1)
    both[1].agent.ended(3, 4321, code)
    with pytest.raises(RuntimeError, match="rank 3 ended before it imported MPI"):
        asked.result()
    assert both[0].arena.world_state(3) == (DEAD if code else FINALIZED)
    wanted, patience = [("failed", 3, 4321, 3, "h1")] if code else [], Patience(60.0)
    while both[0].heard != wanted:  # whoever asked may be told first
        assert not patience.is_over, both[0].heard
        time.sleep(0.001)


def test_an_agent_that_ends_while_ranks_wait(make, pool):
    host, _ = make()
    asked = pool.submit(host.exchange, 0, b"x")
    host.turn_until(lambda: host.agent._endpoints)
    host.agent.close_in_child()
    with pytest.raises(RuntimeError, match="agent of this host ended"):
        asked.result()


def test_strangers_get_no_table(make):
    host, _ = make()
    host.thread.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(name_of(host.name))
        stranger.settimeout(60)
        stranger.send(b"0" * 32 + bytes(4) + b"endpoint")
        assert stranger.recv(100) == b""
    with pytest.raises(RuntimeError, match="longer than"):
        host.exchange(0, bytes(MOST_BYTES + 1))
    assert not host.agent._endpoints


def test_a_rank_of_another_host_is_not_believed(make):
    host, _ = make()
    host.agent._given(2, b"x")
    assert not host.agent._endpoints


def test_ends_signals_and_aborts_are_heard(make):
    here, there = make()
    there.arena.join(0)
    there.arena.finalized(0)
    there.agent.ended(2, 20, 0)
    there.arena.declare_dead(1)
    there.agent.ended(3, 30, -9)
    there.agent.signal(15)
    there.agent.abort(6)
    there.agent.done()
    here.turn_until(lambda: here.agent.is_alone)
    assert here.heard == [("failed", 3, 30, -9, "h1"), ("signalled", 15), ("aborted", 6)]
    assert (here.arena.world_state(2), here.arena.world_state(3)) == (FINALIZED, DEAD)
    assert here.arena.dead_ranks() == [3]
    assert here.arena.abort_code == 6
    there.agent.close_in_child()
    here.turn_until(lambda: not here.hosts.mesh.nodes)
    assert len(here.heard) == 3  # it had said that it would go


def test_a_host_that_goes_is_lost_with_its_ranks(make):
    here, there = make()
    there.arena.join(0)
    there.arena.finalized(0)
    there.agent.ended(2, 20, 0)
    there.agent.close_in_child()
    here.turn_until(lambda: here.heard)
    assert here.heard == [("lost", 2, "node 1 (h1) with ranks 2 to 3 is lost: its launcher ended")]
    assert (here.arena.world_state(2), here.arena.world_state(3)) == (FINALIZED, DEAD)
    assert here.agent.is_alone


def test_a_silent_host_is_lost(make):
    """It keeps its connection, and reads nothing and says nothing."""
    here, _ = make(Heartbeat(0.05, 0.2))
    here.turn_until(lambda: here.heard)
    assert here.heard == [("lost", 2, "node 1 (h1) with ranks 2 to 3 is lost: gave no sign of life for 0.2 s")]


def test_signs_of_life_keep_a_host(make):
    """Each is heard within its limit, for several limits; both wait for the other in one thread, so nothing is late."""
    both = make(Heartbeat(0.1, 30.0))
    seen = set()
    patience = Patience(60)
    while len(seen) < 5 and not patience.is_over:
        for host in both:
            host.turn()
        seen |= {round(link.heard_at, 3) for link in both[0].hosts.mesh._links.values()}
    assert len(seen) == 5
    assert not both[0].heard + both[1].heard


def test_nonsense_loses_the_host(make):
    here, there = make()
    (link,) = there.hosts.mesh._links.values()
    link.connection.send(b"\xff\xff\xff\xffnonsense")
    here.turn_until(lambda: here.heard)
    assert "does not speak our protocol" in str(here.heard[0][2])


def test_what_is_no_news_is_ignored(make):
    here, there = make()
    for message in (
        {"kind": "ended", "rank": 0, "pid": 1, "code": 1, "state": 3},
        {"kind": "endpoint", "rank": 99},
        {},
        {"kind": 1},
    ):
        there.hosts.mesh.tell(message)
    there.agent.done()
    here.turn_until(lambda: here.agent.is_alone)
    assert not here.heard
    assert here.arena.state(0) != DEAD


def test_a_host_that_does_not_read_is_lost(make):
    here, _ = make()
    while not here.heard:
        here.hosts.mesh.tell({"kind": "signal", "number": 1, "fill": "x" * 60_000})
    assert here.heard[0][2].endswith("it does not read what it is told")


def test_close_loses_nothing(make):
    here, there = make()
    here.agent.abort(3)
    here.agent.done()
    closing = threading.Thread(target=here.hosts.mesh.close)
    closing.start()
    there.turn_until(lambda: there.agent.is_alone)
    assert there.heard == [("aborted", 3)]
    there.hosts.mesh.close()
    closing.join()


def test_due_is_when_something_is_to_be_done(make):
    here, _ = make(Heartbeat(0.5, 3.0))
    here.agent.beat()
    assert time.monotonic() < here.agent.due <= time.monotonic() + 0.5


@pytest.mark.parametrize("text", ["", "1", "1,1", "0,3", "3,0.5", "a,b", "-1,3", "1,inf", "nan,3", "1,2,3"])
def test_heartbeats_that_cannot_be(monkeypatch, text):
    monkeypatch.setenv("NCCLX_MPI_HEARTBEAT", text)
    with pytest.raises(ValueError, match="is not a period and a limit"):
        heartbeat()


def test_heartbeat(monkeypatch):
    assert heartbeat() == (0.5, 3.0)
    monkeypatch.setenv("NCCLX_MPI_HEARTBEAT", "2, 4")
    assert heartbeat() == (2.0, 4.0)


def test_arena_of_a_host_has_its_ranks_alive(make):
    here, _ = make()
    here.arena.join(1)
    assert here.arena.world_state(1) == ALIVE
