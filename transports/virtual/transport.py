"""Ranks of other nodes of a job whose nodes are simulated on one machine, or of another job there."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from numba_kernels.clock import ticks_per_us
from numba_kernels.layout import LINE, WORD, zeroed
from transports.base import Calls, Capabilities, Functions, Transport
from transports.virtual import channel, transfers
from transports.virtual.channel import LINK, STATE
from transports.virtual.delays import DELAYS, first_number
from transports.virtual.layout import PAYLOAD_BYTES, WIRE
from transports.virtual.network import Network


class VirtualNetwork(Transport):
    """Every rank that maps the same network.

    Parameters
    ----------
    network
        The job's network; the transport does not own it.
    rank
        This process's rank in it.
    places
        The rank in it of each peer that is reached; None: their world ranks.
    """

    name: ClassVar[str] = "virtual"

    def __init__(self, network: Network, rank: int, places: Mapping[int, int] | None = None) -> None:
        self._network = network
        self._rank = rank
        self._places = dict(enumerate(range(network.nranks))) if places is None else dict(places)
        self._peers: Sequence[int] = ()
        self._connected: list[int] = []
        self._block, block = zeroed(STATE.total + LINE)
        self._links, self._links_at = zeroed(network.nranks * WORD)
        self._state = -(-block // LINE) * LINE

    @property
    def caps(self) -> Capabilities:
        return Capabilities(max_eager=PAYLOAD_BYTES)

    @functools.cached_property
    def functions(self) -> Functions:
        return Functions.of(channel, transfers, transfers.poll)

    @property
    def is_busy(self) -> bool:
        return bool(_word_at(self._state + STATE.active_count).value)

    def why_not(self, peer: int) -> str:
        return "" if peer in self._places else f"rank {peer} is not one of the {self._network.nranks} of this network"

    def why(self, peer: int) -> str:
        return "they are on different nodes of NCCLX_MPI_TOPOLOGY: a network that is simulated on this machine"

    def endpoint(self) -> bytes:
        """Nothing: where wires are follows from the ranks."""
        return b""

    def attach(self, engine: int, peers: Sequence[int], calls: Calls) -> int:
        self._peers = peers
        for field, value in (
            *calls._asdict().items(),
            ("engine", engine),
            ("links", self._links_at),
            ("credits", self._network.plan.credits),
        ):
            _word_at(self._state + getattr(STATE, field)).value = value
        return self._state

    def connect(self, peer: int, endpoint: bytes) -> None:
        reason = self.why_not(peer)
        if reason:
            raise ConnectionError(f"virtual: {reason}")
        base, plan, place = self._network.base, self._network.plan, self._places[peer]
        for field, value in (
            ("state", self._state),
            ("outbox", base + plan.wire(self._rank, place)),
            ("inbox", base + plan.wire(place, self._rank)),
            ("member", base + plan.member(place)),
        ):
            _word_at(self._peers[peer] + getattr(LINK, field)).value = value
        settings, rate = self._network.settings, ticks_per_us()
        for field, value in (
            ("delay", int(settings.delay_us * rate)),
            ("jitter", int(settings.jitter_us * rate)),
            ("shuffled", int(settings.is_shuffled)),
            ("random", first_number(settings.seed, self._rank, place)),
        ):
            _word_at(self._peers[peer] + LINK.delays + getattr(DELAYS, field)).value = value
        self._links[len(self._connected)] = self._peers[peer]
        self._connected.append(peer)
        _word_at(self._state + STATE.count).value = len(self._connected)

    def is_drained(self) -> bool:
        """Whether all that peers have sent has been handed up."""
        blocks = [self._peers[peer] for peer in self._connected]
        return all(_word_at(_word_at(at + LINK.inbox).value + WIRE.sent).value == _word_at(at + LINK.next).value for at in blocks)

    def close(self) -> None:
        """Wires are parts of the network and end with it."""


def _word_at(address: int) -> Any:
    return ctypes.c_int64.from_address(address)
