"""The simulated network keeps the contract of transports, and numbers restore the order of packets."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from ncclx_mpi.testing.transport import End, TransportTests
from transports.base import Transport
from transports.virtual.layout import MOST_CREDITS, PACKET, PACKET_BYTES, PAGE, NetworkPlan
from transports.virtual.network import Network, Settings
from transports.virtual.transport import VirtualNetwork


def pair_on(network: Network) -> tuple[Transport, Transport]:
    return VirtualNetwork(network, 0), VirtualNetwork(network, 1)


class TestVirtualNetwork(TransportTests):
    @pytest.fixture
    def pair(self) -> tuple[Transport, Transport]:
        """Both ends live in this process: the network does not care."""
        return pair_on(Network.create(2))


class TestFewCredits(TransportTests):
    @pytest.fixture
    def pair(self) -> tuple[Transport, Transport]:
        """As few as leave room for three messages."""
        return pair_on(Network.create(2, Settings(credits=3)))


class TestShuffled(TransportTests):
    @pytest.fixture
    def pair(self) -> tuple[Transport, Transport]:
        """Packets overtake each other."""
        return pair_on(Network.create(2, Settings(is_shuffled=True, seed=1)))


def test_a_sender_has_as_many_packets_under_way_as_it_has_credits() -> None:
    zero, one = (End(transport, [b"", b""]) for transport in pair_on(Network.create(2, Settings(credits=5))))
    assert [zero.send(1, b"x", tag=number) for number in range(6)] == [True] * 5 + [False]
    assert [message.tag for message in one.received()] == list(range(5))


@pytest.mark.parametrize("credits", [0, MOST_CREDITS + 1])
def test_credits_have_bounds(credits: int) -> None:
    with pytest.raises(ValueError, match=f"{MOST_CREDITS} credits, not {credits}"):
        Settings(credits=credits)


def test_nothing_of_a_silent_rank_arrives_until_it_speaks_again() -> None:
    network = Network.create(2)
    zero, one = (End(transport, [b"", b""]) for transport in pair_on(network))
    network.silence(0)
    assert zero.send(1, b"unheard") and one.received() == []
    assert one.send(0, b"heard") and [message.payload for message in zero.received()] == [b"heard"]
    network.silence(0, is_silent=False)
    assert [message.payload for message in one.received()] == [b"unheard"]


def test_who_attaches_finds_the_same_network() -> None:
    settings = Settings(7, 20, 30, True, 5)
    network = Network.create(3, settings)
    network.join(2, 4711, 99)
    other = Network.attach(os.dup(network.fd))
    assert (other.plan, other.settings) == (NetworkPlan(3, 7), settings)
    assert [other.process_of(rank) for rank in range(3)] == [(0, 0), (0, 0), (4711, 99)]
    other.close()
    network.close()


def test_something_else_is_refused() -> None:
    fd = os.memfd_create("else")
    with pytest.raises(ValueError, match="not the network"):
        Network.attach(fd)
    os.close(fd)


def places_taken(seed: int) -> list[int]:
    """In which places of the wire 16 packets come to lie."""
    network = Network.create(2, Settings(is_shuffled=True, seed=seed))
    zero = End(pair_on(network)[0], [b"", b""])
    for number in range(16):
        assert zero.send(1, b"", tag=number)
    first = network.base + network.plan.wire(0, 1) + PAGE
    return [ctypes.c_int64.from_address(first + place * PACKET_BYTES + PACKET.sequence).value for place in range(16)]


def test_packets_overtake_each_other_alike_with_one_seed() -> None:
    assert places_taken(1) == places_taken(1) != places_taken(2)
    assert sorted(places_taken(1)) == list(range(16)) != places_taken(1)


def test_a_packet_is_on_its_way_for_the_delay() -> None:
    network = Network.create(2, Settings(delay_us=50_000, jitter_us=1000))
    zero, one = (End(transport, [b"", b""]) for transport in pair_on(network))
    begun = time.monotonic()
    assert zero.send(1, b"late") and one.received() == []
    while not one.received():
        assert time.monotonic() < begun + 20
    assert time.monotonic() - begun >= 0.049


def test_what_was_sent_later_waits_for_what_was_sent_before() -> None:
    network = Network.create(2, Settings(jitter_us=2000, is_shuffled=True, seed=3))
    zero, one = (End(transport, [b"", b""]) for transport in pair_on(network))
    sent, seen = 0, []
    while len(seen) < 300:
        sent += sent < 300 and zero.send(1, b"", tag=sent)
        seen += [message.tag for message in one.received()]
    assert seen == list(range(300))


def test_delays_are_not_negative() -> None:
    with pytest.raises(ValueError, match="before they are sent"):
        Settings(jitter_us=-1)


@pytest.mark.parametrize("nranks", [1, 2, 1024, 4096])
def test_a_network_fits_into_the_address_space(nranks: int) -> None:
    assert NetworkPlan(nranks, 16).nbytes < 2 << 40
