"""Ranks that are reached by UCX."""

from __future__ import annotations

import ctypes
import functools
import select
import struct
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from numba_kernels.clock import ticks_per_us
from numba_kernels.jit import c_address
from numba_kernels.layout import LINE, WORD, zeroed
from transports.addresses import addresses_of
from transports.base import Calls, Capabilities, DeathNotice, Functions, RemoteMemory
from transports.placed import PlacedTransport, word_at
from transports.ucx import channel, remote, segments, transfers
from transports.ucx.layout import (
    EAGERLY,
    FAILED,
    GONE,
    LANE,
    LANES,
    LARGEST_PIECE,
    LINK,
    MAX_EAGER,
    MAX_EAGER_BY_SOCKETS,
    MESSAGES,
    NOTED,
    PIECE_BY_SOCKETS,
    PIECES,
    RING,
    ROUTE,
    STATE,
    UNREACHED,
)
from transports.ucx.library import Library, Worker, has_rdma
from transports.ucx.routes import targets_of

_FLUSH_SECONDS, _CLOSING_SECONDS = 1.0, 1.0
"""At the end: until peers that make no progress are left alone with what they have; until UCX has ended its part of it."""
_CALLED = (
    ("progress", "ucp_worker_progress"),
    ("arm", "ucp_worker_arm"),
    ("send", "ucp_am_send_nbx"),
    ("receive", "ucp_am_recv_data_nbx"),
    ("release_data", "ucp_am_data_release"),
    ("free_request", "ucp_request_free"),
    ("create_endpoint", "ucp_ep_create"),
    ("map", "ucp_mem_map"),
    ("unmap", "ucp_mem_unmap"),
    ("pack_key", "ucp_rkey_pack"),
    ("release_key", "ucp_rkey_buffer_release"),
    ("unpack_key", "ucp_ep_rkey_unpack"),
    ("destroy_key", "ucp_rkey_destroy"),
    ("put", "ucp_put_nbx"),
    ("get", "ucp_get_nbx"),
    ("combine", "ucp_atomic_op_nbx"),
    ("flush", "ucp_ep_flush_nbx"),
    ("close_endpoint", "ucp_ep_close_nbx"),
)
"""Words of ``STATE``, and the functions of UCX whose addresses are there."""
_HEAD = struct.Struct("!HH")
_BY_RDMA = ("rc", "dc", "gga")
"""How the names of UCX's transports begin that reach memory without a processor there."""


class Share(NamedTuple):
    """What of a large message a lane to a peer has at once.

    Attributes
    ----------
    segment
        Bytes of each part, a power of two; 0, or more than a network has in one piece: as many as that.
    limit
        Parts that are not known to have arrived, at most.
    """

    segment: int
    limit: int


class Lanes(NamedTuple):
    """Several ways to each peer, which large messages share.

    Attributes
    ----------
    devices
        What each goes by, as UCX names it, on this host; one may be named more than once. Messages go by the first one that lives.
    where
        Numbers that peers are told, of the place of this rank.
    share
        By a peer's numbers, what the lanes to it have.
    """

    devices: Sequence[str] = ("",)
    where: tuple[int, ...] = ()
    share: Callable[[tuple[int, ...]], Share] = lambda where: Share(0, 4)


ONE = Lanes()
"""One lane, by the devices that UCX finds."""


class Ucx(PlacedTransport):
    """Ranks whose processes have a worker of UCX, too: on other hosts, as a rule.

    Parameters
    ----------
    library
        The UCX of this process.
    rank
        This process's world rank.
    size
        Number of ranks of the job.
    reached
        World ranks that are reached by it.
    on_death
        What is called when a peer is found dead; None: nothing.
    patience
        Seconds in which a link that is down may come back: a peer to which there is no way at first is dead only after them.
    windows
        How memory of peers is reached: ``"direct"``: by UCX itself, for which, over sockets, the target's progress does it; ``"messages"``:
        not at all; ``"auto"``: by UCX where it has RDMA.
    lanes
        Where there is more than one way to each peer. As many are used as both have, the first with the first.

    Raises
    ------
    OSError
        UCX cannot be started; says why.
    """

    name: ClassVar[str] = "ucx"
    needs: ClassVar[str] = "worker of UCX"

    def __init__(
        self,
        library: Library,
        rank: int,
        size: int,
        reached: Collection[int],
        on_death: DeathNotice | None = None,
        patience: float = 0.0,
        windows: str = "auto",
        lanes: Lanes = ONE,
    ) -> None:
        self.library = library
        super().__init__(rank, size, reached, on_death, patience, LINK.total)
        self._is_direct = windows == "direct"
        self._has_remote = self._is_direct or (windows == "auto" and has_rdma())
        self._where = lanes.where
        self._share = lanes.share
        self._workers = [Worker(library, self._has_remote and not number, device) for number, device in enumerate(lanes.devices)]
        self._worker = self._workers[0]
        self._worker_words = array("q", [worker.address for worker in self._workers])
        self._block, block_at = zeroed(STATE.total + LINE)
        self._state = -(-block_at // LINE) * LINE
        self._own_link, self._own = zeroed(LINK.total)
        self._routes, self._routes_at = zeroed(len(lanes.devices) * size * ROUTE.total)
        self._targets: dict[bytes, tuple[array[int], int]] = {}
        self._addresses: dict[int, list[Any]] = {}
        self._lanes = array("q", [0]) * size
        self._lane_blocks: dict[int, Any] = {}

    @functools.cached_property
    def caps(self) -> Capabilities:
        return Capabilities(max_eager=MAX_EAGER_BY_SOCKETS if self._has_only_sockets else MAX_EAGER)

    @functools.cached_property
    def _ways(self) -> list[tuple[str, str]]:
        return [way for worker in self._workers for way in worker.resources()]

    @property
    def _has_only_sockets(self) -> bool:
        return {transport for transport, _ in self._ways} <= {"tcp", "self"}

    @functools.cached_property
    def functions(self) -> Functions:
        return Functions.of(channel, transfers, transfers.poll, transfers.arm)

    @functools.cached_property
    def _events(self) -> select.epoll:
        """Those of all workers, as one."""
        events = select.epoll()
        for worker in self._workers:
            events.register(worker.event, select.EPOLLIN)
        return events

    @property
    def event(self) -> int:
        if len(self._workers) == 1:
            return self._worker.event
        return self._events.fileno() if all(worker.event >= 0 for worker in self._workers) else -1

    @functools.cached_property
    def remote_memory(self) -> RemoteMemory | None:
        is_by_rdma = self._has_remote and any(transport.startswith(_BY_RDMA) for transport, _ in self._ways)
        if not (is_by_rdma or self._is_direct):
            return None
        return RemoteMemory(
            expose=c_address(remote.expose),
            conceal=c_address(remote.conceal),
            open=c_address(remote.open_key),
            shut=c_address(remote.shut_key),
            put=c_address(remote.put),
            get=c_address(remote.get),
            combine=c_address(remote.combine) if self.library.has_atomics else 0,
            own=self._own,
        )

    @property
    def is_busy(self) -> bool:
        is_sending = any(word_at(self._state + owed).value for owed in (STATE.active_count, STATE.sending))
        return is_sending or any(map(self._keeps, self._lane_blocks))

    def _keeps(self, peer: int) -> bool:
        """Whether there are messages that a peer, to which there are lanes, may not have: they can be lost with the lane by which they go."""
        sent, taken, flags = (word_at(self._link(peer) + word).value for word in (LINK.sent, LINK.acknowledged, LINK.flags))
        return bool(sent != taken and not flags & (FAILED | GONE))

    def why(self, peer: int) -> str:
        found = f"they are on different hosts: UCX {self.library.name} of {self.library.path}, as {self.library.reason}"
        windows = "; it reads and writes windows by itself" if self.remote_memory is not None else ""
        ways = "; ".join(self._ways_to(peer))
        return f"{found}; it goes by {ways}{windows}" if ways else found + windows

    def _ways_to(self, peer: int) -> Iterator[str]:
        """By what a peer is reached, lane by lane, if there are several; nothing if there is no connection yet."""
        endpoints = self._endpoints_to(peer)
        for number, (worker, endpoint) in enumerate(zip(self._workers, endpoints, strict=False)):
            if len(endpoints) > 1:
                yield f"lane {number}: {worker.ways_of(endpoint) if endpoint else f'{worker.device}, not used yet'}"
            elif endpoint:
                yield worker.ways_of(endpoint)

    def why_lost(self, peer: int) -> str:
        if peer not in self._addresses or not word_at(self._link(peer) + LINK.flags).value & UNREACHED:
            return ""
        status = self._worker.status(word_at(self._link(peer) + LINK.address).value)
        return f"UCX {self.library.name} finds no way to rank {peer}: {status}; UCX_LOG_LEVEL=warn lets it say more"

    def endpoint(self) -> bytes:
        """Where this rank is; of each worker the addresses of its interfaces, if UCX goes by sockets, and that of the worker."""
        parts = [_HEAD.pack(len(self._where), len(self._workers)), struct.pack(f"!{len(self._where)}q", *self._where)]
        for worker in self._workers:
            found = addresses_of(device for _, device in worker.resources()) if self._has_only_sockets else []
            address = worker.endpoint()
            parts += [_HEAD.pack(len(found), len(address)), *found, address]
        return b"".join(parts)

    def attach(self, engine: int, peers: Sequence[int], calls: Calls) -> int:
        for field, value in (
            *calls._asdict().items(),
            *((field, self.library.address_of(function)) for field, function in _CALLED),
            ("engine", engine),
            *self._words_of_peers(peers),
            ("worker", self._worker.address),
            ("context", self._worker.context),
            ("on_sent", c_address(channel.on_sent)),
            ("on_failed", c_address(channel.on_failed)),
            ("on_piece_sent", c_address(transfers.on_piece_sent)),
            ("on_piece_received", c_address(transfers.on_piece_received)),
            ("on_access", c_address(remote.on_access)),
            ("on_segment_sent", c_address(segments.on_segment_sent)),
            ("on_lane_failed", c_address(channel.on_lane_failed)),
            ("on_closed", c_address(segments.on_closed)),
            ("worker_count", len(self._workers)),
            ("workers", self._worker_words.buffer_info()[0]),
            ("lanes", self._lanes.buffer_info()[0] if len(self._workers) > 1 else 0),
            ("ticks_per_us", int(ticks_per_us())),
            ("routes", self._routes_at),
            ("patience", int(self._patience * 1e6 * ticks_per_us())),
            ("piece", self._piece),
            ("piece_flags", EAGERLY if self._has_only_sockets else 0),
        ):
            word_at(self._state + getattr(STATE, field)).value = value
        if self._has_remote:
            self._connect_own(self._worker.endpoint())
        for worker in self._workers:
            worker.handle(MESSAGES, c_address(channel.on_message), self._state)
            worker.handle(PIECES, c_address(transfers.on_piece), self._state)
        return self._state

    @property
    def _piece(self) -> int:
        return PIECE_BY_SOCKETS if self._has_only_sockets else LARGEST_PIECE

    def _connect_own(self, worker: bytes) -> None:
        """Let this rank's own memory be reached by the network; where there is no way to it, nobody is taken for dead."""
        self._own_worker = address = ctypes.create_string_buffer(worker, len(worker))
        for field, value in (
            ("address", ctypes.addressof(address)),
            ("rank", self._rank),
            ("state", self._state),
            ("flags", NOTED),
        ):
            word_at(self._own + getattr(LINK, field)).value = value

    def connect(self, peer: int, endpoint: bytes) -> None:
        reason = self.why_not(peer)
        if reason:
            raise ConnectionError(f"ucx: {reason}")
        if not endpoint:
            raise ConnectionError(f"ucx: rank {peer} has not said where its worker is")
        place, (where, workers) = self._places[peer], _parts_of(endpoint)
        addresses = []
        for lane, (hosts, worker) in enumerate(workers[: len(self._workers)]):
            if hosts not in self._targets:
                self._targets[hosts] = targets_of(hosts[at : at + 4] for at in range(0, len(hosts), 4))
            targets, count = self._targets[hosts]
            for field, value in (("targets", targets.buffer_info()[0]), ("count", count)):
                word_at(self._route(place, lane) + getattr(ROUTE, field)).value = value
            addresses.append(ctypes.create_string_buffer(worker, len(worker)))
        self._addresses[peer] = addresses
        for field, value in (("address", ctypes.addressof(addresses[0])), ("rank", place), ("state", self._state)):
            word_at(self._link(peer) + getattr(LINK, field)).value = value
        if len(addresses) > 1:
            self._make_lanes(peer, [ctypes.addressof(address) for address in addresses], self._share(where))

    def _make_lanes(self, peer: int, addresses: Sequence[int], share: Share) -> None:
        """Reach a peer by as many lanes as there are addresses of its workers."""
        self._lane_blocks[peer], lanes = zeroed(LANES.total + len(addresses) * LANE.total + 2 * RING * WORD)
        for field, value in (
            ("link", self._link(peer)),
            ("count", len(addresses)),
            ("segment", min(share.segment or self._piece, self._piece)),
            ("limit", share.limit),
        ):
            word_at(lanes + getattr(LANES, field)).value = value
        for number, address in enumerate(addresses):
            for field, value in (("lanes", lanes), ("number", number), ("address", address)):
                word_at(lanes + LANES.total + number * LANE.total + getattr(LANE, field)).value = value
        self._lanes[self._places[peer]] = lanes

    def greeting(self, peer: int) -> tuple[int, int, int]:
        """A function by C address, and its two arguments: sends a message that says nothing, after which UCX notices when the peer ends."""
        return c_address(channel.send_note), self._state, self._link(peer)

    def has_left(self, peer: int) -> bool:
        """Whether a peer has said goodbye."""
        return bool(word_at(self._link(peer) + LINK.flags).value & GONE)

    def close(self) -> None:
        """Send what is left to be sent, as far as peers take it, and end the worker."""
        if not self._worker.address:
            return
        endpoints = self._endpoints()
        flushes = [(worker, worker.begin_flush(each)) for worker, each, has_failed in endpoints if not has_failed]
        flushes = _finish(flushes, _FLUSH_SECONDS)
        closings = [(worker, worker.begin_closing(each)) for worker, each, _ in endpoints]
        _finish([*closings, *flushes], _CLOSING_SECONDS)
        self._await_closed_lanes()
        for worker in self._workers:
            worker.close()
        if "_events" in vars(self):
            self._events.close()

    def _await_closed_lanes(self) -> None:
        """Endpoints of lanes that were given up may be being closed as well."""
        end, closing = time.monotonic() + _CLOSING_SECONDS, word_at(self._state + STATE.closing)
        while closing.value and time.monotonic() < end:
            for worker in self._workers:
                worker.progress()

    def _route(self, place: int, lane: int = 0) -> int:
        """Address of the :data:`ROUTE` of a rank, by a lane."""
        return int(self._routes_at + (lane * len(self._links) + place) * ROUTE.total)

    def _endpoints(self) -> list[tuple[Worker, int, bool]]:
        """The worker of each endpoint that was made, and whether that has failed."""
        found = []
        for peer in self._addresses:
            has_failed = bool(word_at(self._link(peer) + LINK.flags).value & FAILED)
            found += [(worker, each, has_failed) for worker, each in zip(self._workers, self._endpoints_to(peer), strict=False)]
        own, flags = (word_at(self._own + word).value for word in (LINK.endpoint, LINK.flags))
        return [
            (worker, each, has_failed) for worker, each, has_failed in (*found, (self._worker, own, flags & FAILED != 0)) if each
        ]

    def _endpoints_to(self, peer: int) -> list[int]:
        """The endpoint of each lane to a peer, 0 of one without."""
        if peer not in self._lane_blocks:
            return [word_at(self._link(peer) + LINK.endpoint).value]
        first = self._lanes[self._places[peer]] + LANES.total
        return [word_at(first + number * LANE.total + LANE.endpoint).value for number in range(len(self._addresses[peer]))]


def _parts_of(endpoint: bytes) -> tuple[tuple[int, ...], list[tuple[bytes, bytes]]]:
    """Where a peer is; of each of its workers the addresses of the interfaces, one behind the other, and that of the worker."""
    numbers, count = _HEAD.unpack_from(endpoint)
    at, workers = _HEAD.size + 8 * numbers, []
    for _ in range(count):
        hosts, length = _HEAD.unpack_from(endpoint, at)
        first = at + _HEAD.size
        at = first + 4 * hosts + length
        workers.append((endpoint[first : first + 4 * hosts], endpoint[at - length : at]))
    return struct.unpack_from(f"!{numbers}q", endpoint, _HEAD.size), workers


def _finish(begun: Sequence[tuple[Worker, int]], seconds: float) -> list[tuple[Worker, int]]:
    """Have workers make progress until what was begun is over, or for so long. Returns what is not."""
    end, left = time.monotonic() + seconds, [(worker, each) for worker, each in begun if not worker.is_over(each)]
    while left and time.monotonic() < end:
        for worker in {worker for worker, _ in left}:
            worker.progress()
        left = [(worker, each) for worker, each in left if not worker.is_over(each)]
    return left
