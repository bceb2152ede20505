"""How sockets of two ranks become a link: both at once, strangers, addresses that do not answer, messages that come in pieces."""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclx_mpi.testing.transport import End
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import c_address, kernel
from transports.base import DeathNotice
from transports.messages import EAGER, GOODBYE
from transports.tcp import transport
from transports.tcp.layout import FAILED, GUESTS, HEADER, HELLO, LINK, MAGIC, MAX_EAGER, UP, WELCOME
from transports.tcp.transport import Tcp

WITHIN = 20.0


@kernel("int64(int64, int64, int64)", is_entry=True)
def note_death(deaths, word, peer):  # type: ignore[no-untyped-def]
    """Count deaths."""
    store64(deaths, load64(deaths) + 1)
    store64(word, 1)
    return 0


class Deaths:
    """Who was found dead."""

    def __init__(self) -> None:
        self.words = np.zeros(1 + 2, np.int64)
        at = self.words.ctypes.data
        self.notice = DeathNotice(c_address(note_death), at, at + 8)

    def __contains__(self, peer: int) -> bool:
        return bool(self.words[1 + peer])


@pytest.fixture(autouse=True)
def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_FLUSH_SECONDS", 0.0)


@pytest.fixture
def deaths() -> Deaths:
    return Deaths()


@pytest.fixture
def pair(deaths: Deaths) -> Iterator[list[Tcp]]:
    made = [Tcp(0, 2, {1}, deaths.notice), Tcp(1, 2, {0}, deaths.notice)]
    yield made
    for each in made:
        each.close()


def ends_of(pair: list[Tcp], *endpoints: bytes) -> list[End]:
    known = list(endpoints) or [each.endpoint() for each in pair]
    return [Linked(each, known, own) for own, each in enumerate(pair)]


class Linked(End):
    """An end that is connected with the other one only."""

    def __init__(self, tcp: Tcp, endpoints: list[bytes], own: int) -> None:
        connect = tcp.connect
        tcp.connect = lambda peer, endpoint: None if peer == own else connect(peer, endpoint)  # type: ignore[method-assign]
        super().__init__(tcp, endpoints)


def flags(end: End, peer: int) -> int:
    return int(ctypes.c_int64.from_address(end.peers[peer] + LINK.flags).value)


def until(ends: list[End], holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + WITHIN
    while not holds():
        assert time.monotonic() < limit, "it never came"
        for end in ends:
            end._poll(end._state)


def payloads(end: End, ends: list[End], count: int) -> list[bytes]:
    found: list[bytes] = []

    def have() -> bool:
        found.extend(seen.payload for seen in end.received(1))
        return len(found) >= count

    until(ends, have)
    return found


def test_both_connect_at_once_and_one_link_is_left(pair: list[Tcp]) -> None:
    ends = ends_of(pair)
    for number in range(20):
        for end in (0, 1):
            assert ends[end].send(1 - end, b"%d of %d" % (number, end))
    for end in (0, 1):
        assert payloads(ends[end], ends, 20) == [b"%d of %d" % (number, 1 - end) for number in range(20)]
    until(ends, lambda: bool(flags(ends[0], 1) & flags(ends[1], 0) & UP))
    (one,), (other,) = (each._sockets_of(1 - rank) for rank, each in enumerate(pair))
    with socket.socket(fileno=os.dup(one)) as first, socket.socket(fileno=os.dup(other)) as second:
        assert first.getsockname() == second.getpeername() and first.getpeername() == second.getsockname()
        for link in (first, second):
            assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) and link.getsockopt(
                socket.SOL_SOCKET, socket.SO_KEEPALIVE
            )
            assert not link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), "a peer that does not read is given up"


def parts_of(endpoint: bytes) -> tuple[int, bytes]:
    """Port and token."""
    port, token, _ = transport._HEAD.unpack_from(endpoint)
    return port, token


def hello(token: bytes, sender: int = 0, receiver: int = 1, magic: int = MAGIC) -> bytes:
    return struct.pack("=q32sqq", magic, token, sender, receiver)


@pytest.mark.parametrize("said", ["nothing", "noise", "a wrong token", "another rank", "no rank", "itself with another magic"])
def test_who_has_not_the_token_is_sent_away(pair: list[Tcp], said: str) -> None:
    ends = ends_of(pair)
    port, token = parts_of(pair[1].endpoint())
    words = {
        "nothing": b"",
        "noise": os.urandom(HELLO.total),
        "a wrong token": hello(os.urandom(32)),
        "another rank": hello(token, receiver=0),
        "no rank": hello(token, sender=2),
        "itself with another magic": hello(token, magic=MAGIC + 1),
    }[said]
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(words)
        if said == "nothing":
            stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(0.001)
        answer: list[bytes] = []

        def is_closed() -> bool:
            try:
                answer.append(stranger.recv(8))
            except TimeoutError:
                return False
            except ConnectionResetError:
                answer.append(b"")
            return True

        until(ends, is_closed)
        assert answer == [b""] and not flags(ends[1], 0)
    assert ends[0].send(1, b"hello") and payloads(ends[1], ends, 1) == [b"hello"]


def test_strangers_who_say_nothing_keep_nobody_out_for_long(pair: list[Tcp]) -> None:
    ends = ends_of(pair)
    port, _ = parts_of(pair[1].endpoint())
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(GUESTS + 5)]
    try:
        assert ends[0].send(1, b"hello") and payloads(ends[1], ends, 1) == [b"hello"]
    finally:
        for each in strangers:
            each.close()


class Peer:
    """Rank 0 by hand: a socket that has been welcomed by rank 1."""

    def __init__(self, pair: list[Tcp], ends: list[End]) -> None:
        port, token = parts_of(pair[1].endpoint())
        self.link = socket.create_connection(("127.0.0.1", port))
        self.link.sendall(hello(token))
        self.link.settimeout(0.001)
        self.answer = b""
        until(ends, self._is_welcome)
        assert self.answer == struct.pack("=q", WELCOME)

    def _is_welcome(self) -> bool:
        try:
            self.answer += self.link.recv(8 - len(self.answer))
        except TimeoutError:
            return False
        return len(self.answer) == 8


def message(payload: bytes, tag: int = 0) -> bytes:
    return struct.pack("=8q", EAGER, 4, tag, len(payload), 0, 0, 0, 0) + payload


def test_a_message_that_comes_byte_by_byte_is_handed_up_whole(pair: list[Tcp]) -> None:
    ends = ends_of(pair)
    peer = Peer(pair, ends)
    peer.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    given_ones = [b"", b"a", bytes(range(200)), b"the end"]
    sent = b"".join(map(message, given_ones))
    found: list[bytes] = []
    for at in range(len(sent)):
        peer.link.sendall(sent[at : at + 1])
        found += [seen.payload for seen in ends[1].received(2)]
    while len(found) < len(given_ones):
        found += payloads(ends[1], ends, 1)
    assert found == given_ones
    peer.link.close()


@given(
    sizes=st.lists(st.one_of(st.integers(0, 200), st.sampled_from([1000, MAX_EAGER - 1, MAX_EAGER])), min_size=1, max_size=8),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    refused=st.lists(st.booleans(), max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_messages_arrive_whole_and_in_order_wherever_they_are_cut(sizes: list[int], cuts: list[float], refused: list[bool]) -> None:
    """And whatever is refused meanwhile."""
    pair = [Tcp(0, 2, {1}), Tcp(1, 2, {0})]
    ends = ends_of(pair)
    peer = Peer(pair, ends)
    peer.link.settimeout(WITHIN)
    given_ones = [bytes([number]) * nbytes for number, nbytes in enumerate(sizes)]
    sent = b"".join(map(message, given_ones))
    edges = [0, *sorted(int(cut * len(sent)) for cut in cuts), len(sent)]
    found: list[bytes] = []
    for number, (first, end) in enumerate(itertools.pairwise(edges)):
        ends[1]._block[_refuses()] = int(number < len(refused) and refused[number])
        peer.link.sendall(sent[first:end])
        found += [seen.payload for seen in ends[1].received(3)]
    ends[1]._block[_refuses()] = 0
    if len(found) < len(given_ones):
        found += payloads(ends[1], ends, len(given_ones) - len(found))
    assert found == given_ones
    peer.link.close()
    for each in pair:
        each.close()


@pytest.mark.parametrize("cut", [1, HEADER.total - 1, HEADER.total, HEADER.total + 1, HEADER.total + MAX_EAGER - 1])
def test_the_rest_of_a_message_comes_with_others_behind_it(pair: list[Tcp], cut: int) -> None:
    """Where the first is refused when it is whole, too: then all stay, and none is lost."""
    ends = ends_of(pair)
    peer = Peer(pair, ends)
    given_ones = [os.urandom(MAX_EAGER), b"second", os.urandom(1000)]
    sent = b"".join(map(message, given_ones))
    for is_refused in (0, 1):
        peer.link.sendall(sent[:cut])
        for _ in range(50):
            assert not ends[1].received(1)
        ends[1]._block[_refuses()] = is_refused
        peer.link.settimeout(WITHIN)
        peer.link.sendall(sent[cut:])
        for _ in range(50 * is_refused):
            assert not ends[1].received(1)
        ends[1]._block[_refuses()] = 0
        assert payloads(ends[1], ends, 3) == given_ones
    peer.link.close()


def _refuses() -> int:
    from ncclx_mpi.testing.transport import RECORDER

    return int(RECORDER.refuses) // 8


def test_who_gives_up_before_it_has_sent_anything_is_not_dead(pair: list[Tcp], deaths: Deaths) -> None:
    ends = ends_of(pair)
    Peer(pair, ends).link.close()
    until(ends, lambda: not flags(ends[1], 0))
    assert ends[1].send(0, b"to you") and payloads(ends[0], ends, 1) == [b"to you"]
    assert ends[0].send(1, b"to you") and payloads(ends[1], ends, 1) == [b"to you"]
    assert 0 not in deaths


def test_what_was_to_go_to_who_gives_up_goes_by_another_connection(pair: list[Tcp], deaths: Deaths) -> None:
    ends = ends_of(pair)
    peer = Peer(pair, ends)
    assert ends[1].send(0, b"kept")
    for _ in range(50):
        ends[1]._poll(ends[1]._state)
    peer.link.close()
    assert payloads(ends[0], ends, 1) == [b"kept"] and 0 not in deaths


def test_a_peer_that_does_not_look_is_not_given_up(pair: list[Tcp], deaths: Deaths) -> None:
    """It computes, and has two addresses: both take the connection, and nobody answers for longer than an address has."""
    first, second = (each.endpoint() for each in pair)
    ends = ends_of(pair, first, at(second, "127.0.0.1", "127.0.0.2"))
    assert ends[0].send(1, b"kept")
    end = time.monotonic() + 6.5
    while time.monotonic() < end:
        ends[0]._poll(ends[0]._state)
        time.sleep(0.001)
    assert 1 not in deaths and payloads(ends[1], ends, 1) == [b"kept"]


@pytest.mark.parametrize("has_left", [False, True])
def test_who_ends_is_dead_unless_it_has_said_goodbye(pair: list[Tcp], deaths: Deaths, has_left: bool) -> None:
    """In the middle of a message, too; what came before is handed up."""
    ends = ends_of(pair)
    peer = Peer(pair, ends)
    peer.link.sendall(message(b"before"))
    if has_left:
        peer.link.sendall(struct.pack("=8q", GOODBYE, *[0] * 7))
    else:
        peer.link.sendall(message(b"never whole")[:-1])
    peer.link.close()
    until(ends, lambda: bool(flags(ends[1], 0) & FAILED))
    until(ends, lambda: has_left or 0 in deaths)
    for _ in range(100):
        ends[1]._poll(ends[1]._state)
    assert ends[1].received(1)[0].payload == b"before" and (0 in deaths) == (not has_left)
    assert bool(ends[1].send(0, b"to nobody")) == has_left and pair[1].has_left(0) == has_left


def test_what_was_sent_arrives_though_its_sender_has_closed_with_something_unread(pair: list[Tcp], deaths: Deaths) -> None:
    ends = ends_of(pair)
    assert ends[0].send(1, b"first") and payloads(ends[1], ends, 1) == [b"first"]
    for number in range(100):
        assert ends[1].send(0, b"never read") and ends[0].send(1, bytes([number]) * 1000)
    time.sleep(0.1)  # until it is there
    pair.pop(0).close()
    assert payloads(ends[1], ends[1:], 100) == [bytes([number]) * 1000 for number in range(100)]


def test_many_peers_take_many_descriptors() -> None:
    """Of a soft limit that is too low for them, in a process of its own."""
    code = (
        "import resource\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "from transports.tcp.transport import Tcp\nTcp(0, 2000, set(range(1, 2000))).close()\n"
        "soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\nassert soft == min(hard, 2255) or hard < 0, soft"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=60)


def at(endpoint: bytes, *hosts: str) -> bytes:
    """The same process, said to be at other addresses."""
    port, token = parts_of(endpoint)
    return transport._HEAD.pack(port, token, len(hosts)) + b"".join(map(socket.inet_aton, hosts))


def test_the_next_address_is_tried_where_one_does_not_answer(pair: list[Tcp]) -> None:
    first, second = (each.endpoint() for each in pair)
    ends = ends_of(pair, at(first, "240.0.0.1", "127.0.0.1"), at(second, "240.0.0.1", "255.255.255.255", "127.0.0.1"))
    assert ends[0].send(1, b"found") and payloads(ends[1], ends, 1) == [b"found"]


def test_a_peer_that_no_address_leads_to_is_dead_and_the_reason_is_said(pair: list[Tcp], deaths: Deaths) -> None:
    first, second = (each.endpoint() for each in pair)
    ends = ends_of(pair, first, at(second, "240.0.0.1", "255.255.255.255"))
    ends[0].send(1, b"to nobody")
    until(ends[:1], lambda: 1 in deaths)
    assert pair[0].why_lost(1).startswith("rank 1 cannot be connected with at 240.0.0.1, 255.255.255.255: ")
    assert not ends[0].send(1, b"to nobody")


def test_a_peer_that_ended_before_it_was_ever_talked_to_is_believed_to_have_left_for_a_while(
    pair: list[Tcp], deaths: Deaths
) -> None:
    ends = ends_of(pair)
    pair[1].close()
    begun = time.monotonic()
    ends[0].send(1, b"to nobody")
    until(ends[:1], lambda: 1 in deaths)
    assert 0.9 < time.monotonic() - begun < WITHIN and not pair[0].why_lost(1).startswith("UCX")
    pair.pop()


@pytest.mark.parametrize(("given", "said"), [("none9", "'none9', which has no IPv4 address"), ("lo,none9", "'none9'")])
def test_interfaces_that_there_are_not(given: str, said: str) -> None:
    with pytest.raises(OSError, match=said):
        Tcp(0, 2, {1}, interfaces=given)


def test_a_rank_without_an_address_is_refused() -> None:
    tcp = Tcp(0, 2, {1})
    with pytest.raises(ConnectionError, match="rank 1 has no IPv4 address"):
        tcp.connect(1, transport._HEAD.pack(1, bytes(32), 0))
    with pytest.raises(ConnectionError, match="has not said where"):
        tcp.connect(1, b"")
    tcp.close()
