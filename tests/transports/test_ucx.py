"""UCX keeps the contract of transports, between two workers in this process."""

from __future__ import annotations

import ctypes
import time
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi.testing.transport import End, Half, TransportTests
from numba_kernels.jit import c_address
from transports.base import Transport
from transports.messages import EAGER, GOODBYE, RTS
from transports.ucx import channel, transfers, transport
from transports.ucx.layout import EAGERLY, HEADER, LINK, MAX_EAGER_BY_SOCKETS, OK, PIECE_BY_SOCKETS, ROUTE, STATE, TRANSFER, WINDOW
from transports.ucx.library import Library, settings
from transports.ucx.transport import Lanes, Share, Ucx

Bytes = npt.NDArray[np.uint8]


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the loopback interface is used; ends that are closed one after the other do not wait for each other."""
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    monkeypatch.setattr(transport, "_FLUSH_SECONDS", 0.0)


def pair_of(library: Library, count: int = 1) -> tuple[Transport, Transport]:
    """Memory of peers is reached by sockets, too: the target's progress does what a device does. Lanes have few and short segments."""
    lanes = Lanes(["lo"] * count, share=lambda where: Share(segment=64 << 10, limit=2))
    return Ucx(library, 0, 2, {0, 1}, windows="direct", lanes=lanes), Ucx(library, 1, 2, {0, 1}, windows="direct", lanes=lanes)


def set_route(ucx: Ucx, place: int, **words: int) -> None:
    """Write words of the way to a rank."""
    for field, value in words.items():
        ctypes.c_int64.from_address(ucx._route(place) + getattr(ROUTE, field)).value = value


by_one_lane = pytest.mark.parametrize("pair", [1], indirect=True)


class TestUcx(TransportTests):
    turns: ClassVar[int] = 200
    much: ClassVar[int] = 40_000_000

    @pytest.fixture(params=[1, 3], ids=["1lane", "3lanes"])
    def pair(self, library: Library, request: pytest.FixtureRequest) -> tuple[Transport, Transport]:
        return pair_of(library, request.param)

    def test_who_is_killed_takes_nothing_along_that_was_sent(self, ends: tuple[End, End]) -> None:
        pytest.skip("a fork of a process that uses UCX cannot use it")

    @pytest.mark.parametrize("protocols", ["y", "n", ""])
    def test_atomic_operations_are_those_of_the_old_protocols(
        self, library: Library, monkeypatch: pytest.MonkeyPatch, protocols: str
    ) -> None:
        if protocols:
            monkeypatch.setenv("UCX_PROTO_ENABLE", protocols)
        functions = pair_of(library)[0].remote_memory
        assert functions is not None and bool(functions.combine) == (
            protocols == "n" or (not protocols and library.version < (1, 16, 0))
        )

    def test_without_rdma_more_goes_out_unasked(self, pair: tuple[Transport, Transport]) -> None:
        assert [end.caps.max_eager for end in pair] == [MAX_EAGER_BY_SOCKETS] * 2

    @by_one_lane
    def test_through_sockets_pieces_and_eager_messages_fit_a_segment_of_ucx(self, ends: tuple[End, End]) -> None:
        zero, one = ends
        data = np.zeros(3 * PIECE_BY_SOCKETS, np.uint8)
        sent, fetched = (Half(data.ctypes.data, data.size, data.size) for _ in range(2))
        assert zero.tell(1, RTS, data.size, sent.at, 0, 0)
        (seen,) = one.received()
        one.fetch_as(seen, fetched)
        begun, given = ctypes.c_int64.from_address(sent.at + TRANSFER.begun), []
        while not sent["finished"] or not fetched["finished"]:
            before = begun.value
            zero.go_on(sent)
            given.append(begun.value - before)
            one.go_on(fetched)
        assert ctypes.c_int64.from_address(sent.at + TRANSFER.piece).value == PIECE_BY_SOCKETS
        assert ctypes.c_int64.from_address(sent.at + TRANSFER.flags).value == EAGERLY, "UCX does not ask for each"
        assert max(given) <= 2 * PIECE_BY_SOCKETS, "one in each look, or what is to be said to the peer waits behind many"
        segment = int(settings()["UCX_TCP_RX_SEG_SIZE"].removesuffix("K")) << 10
        assert segment >= max(PIECE_BY_SOCKETS, MAX_EAGER_BY_SOCKETS) + HEADER.total + 1024, "UCX puts some words in front, too"

    @by_one_lane
    def test_who_was_away_takes_little_at_once_while_it_has_large_messages_to_send(self, ends: tuple[End, End]) -> None:
        """Or the other direction would stand still, and then be sent in one go."""
        state = ctypes.c_int64.from_address(ends[0].peers[1] + LINK.state).value
        made: list[int] = []

        def progress(worker: int) -> int:
            made.append(worker)
            return 1

        count = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(progress)
        words = {name: ctypes.c_int64.from_address(state + getattr(STATE, name)) for name in ("progress", "polled", "active_count")}
        true_progress, words["progress"].value = words["progress"].value, ctypes.cast(count, ctypes.c_void_p).value or 0
        counts = {}
        for sends in (0, 1):
            words["active_count"].value, words["polled"].value = sends, 0
            ctypes.CFUNCTYPE(None, ctypes.c_int64)(c_address(transfers.poll))(state)
            counts[sends] = len(made)
            made.clear()
        words["progress"].value, words["active_count"].value = true_progress, 0
        assert counts == {0: channel.MOST_PROGRESS, 1: transfers._MOST_WHILE_SENDING}

    def test_a_farewell_to_a_stranger_makes_no_connection(self, pair: tuple[Transport, Transport]) -> None:
        endpoints = [transport.endpoint() for transport in pair]
        zero, one = (End(transport, endpoints) for transport in pair)
        endpoint = ctypes.c_int64.from_address(zero.peers[1] + LINK.endpoint)
        assert zero.tell(1, GOODBYE, 0, 0, 0, 0)
        assert [zero.received(50), one.received(50), endpoint.value] == [[], [], 0]
        assert one.send(0, b"heard")
        seen = []
        while not seen:
            one.received(1)
            seen = zero.received(1)
        assert endpoint.value == 0
        assert zero.tell(1, GOODBYE, 0, 0, 0, 0) and endpoint.value != 0, "one that knows of this rank is told"
        for each in pair:
            each.close()

    def test_what_is_said_while_there_is_no_route_waits_for_one(self, library: Library) -> None:
        """In the place of a link that is down: an address of no family. Whoever has waited in vain is told that there is no way."""
        pair = [Ucx(library, rank, 2, {0, 1}, patience=0.5) for rank in range(2)]
        endpoints = [each.endpoint() for each in pair]
        zero, one = (End(each, endpoints) for each in pair)
        nowhere = np.full(2, -1)
        for each in pair:
            for place in range(2):
                set_route(each, place, targets=nowhere.ctypes.data, count=1)
        began = time.monotonic()
        assert not zero.send(1, b"early") and pair[0].why_lost(1) == ""
        set_route(pair[0], 1, count=0)
        assert zero.send(1, b"now")
        while not pair[1].why_lost(0):
            assert not one.send(0, b"never")
        assert time.monotonic() - began >= 0.5
        assert "finds no way to rank 0: Destination is unreachable" in pair[1].why_lost(0)
        for each in pair:
            each.close()

    def test_numbers_restore_the_order_and_what_no_peer_sends_is_dropped(self, ends: tuple[End, End]) -> None:
        one = ends[1]
        deliver = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)(c_address(channel.on_message))
        expected = ctypes.c_int64.from_address(one.peers[0] + LINK.next).value
        state = ctypes.c_int64.from_address(one.peers[0] + LINK.state).value
        cannot_be_held = np.zeros(2, np.int64)

        def come(sequence: int, sender: int = 0, cut: int = 0) -> None:
            message = np.zeros(HEADER.total // 8 + 1, np.int64)
            for field, value in (("kind", EAGER), ("sender", sender), ("sequence", sequence), ("tag", sequence), ("nbytes", 8)):
                message[getattr(HEADER, field) // 8] = value
            message[-1] = sequence
            assert deliver(state, 0, 0, message.ctypes.data, message.nbytes - cut, cannot_be_held.ctypes.data) == OK
            message[:] = -1

        numbers = list(range(expected, expected + WINDOW))
        np.random.default_rng(1).shuffle(numbers)
        for number in numbers:
            come(number)
        for stranger in (-1, 2, 1 << 40):
            come(expected, sender=stranger)
        for far in (expected - 1, expected + WINDOW, -1):
            come(far)
        for cut in (8, 16):
            come(expected, cut=cut)
        seen = one.received(1)
        assert [message.tag for message in seen] == list(range(expected, expected + WINDOW))
        assert [int.from_bytes(message.payload, "little") for message in seen] == [message.tag for message in seen]

    @pytest.mark.parametrize("window", [4 << 20, 96 << 10, 1000])
    @pytest.mark.parametrize("which", ["sender", "receiver", "both"])
    def test_what_passes_through_windows_arrives_whole_and_waits_for_room(
        self, ends: tuple[End, End], window: int, which: str
    ) -> None:
        """The owner of a send fills its window in, that of a receive takes out of it, each as far as ``passed`` lets it."""
        zero, one = ends
        nbytes = 5 * window + 777
        data, arrived = (np.arange(nbytes) % 251).astype(np.uint8), np.zeros(nbytes, np.uint8)
        full, empty = np.zeros(window, np.uint8), np.zeros(window, np.uint8)
        is_filled, is_emptied = which != "receiver", which != "sender"
        sent = Half((full if is_filled else data).ctypes.data, window if is_filled else nbytes, nbytes)
        sent["window"] = window if is_filled else 0
        assert zero.tell(1, RTS, nbytes, sent.at, 0, 0)
        (seen,) = one.received()
        fetched = Half((empty if is_emptied else arrived).ctypes.data, window if is_emptied else nbytes, nbytes)
        fetched["window"] = window if is_emptied else 0
        one.fetch_as(seen, fetched)
        for _ in range(100_000):
            if is_filled and not sent["finished"]:
                put(full, data, sent["moved"], min(nbytes, sent["passed"] + window))
                sent["moved"] = min(nbytes, sent["passed"] + window)
            zero.go_on(sent)
            one.go_on(fetched)
            assert fetched["passed"] <= fetched["moved"] + window or not is_emptied
            if is_emptied:
                take(arrived, empty, fetched["moved"], fetched["passed"])
                fetched["moved"] = fetched["passed"]
            if sent["finished"] and fetched["finished"]:
                break
        assert sent["finished"] and fetched["finished"] and (arrived == data).all()


def put(window: Bytes, data: Bytes, begin: int, end: int) -> None:
    """Bytes of a message to where they belong in its window."""
    places = np.arange(begin, end)
    window[places % window.size] = data[places]


def take(data: Bytes, window: Bytes, begin: int, end: int) -> None:
    """Bytes of a message out of its window, which others may overwrite now."""
    places = np.arange(begin, end)
    data[places] = window[places % window.size]
    window[places % window.size] = 255
