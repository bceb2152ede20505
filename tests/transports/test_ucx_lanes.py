"""A lane that breaks, or falls silent, loses nothing: what went by it goes by others."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi.testing.transport import End, Half
from numba_kernels.jit import c_address
from transports.messages import EAGER, RTS
from transports.ucx import channel, transfers, transport
from transports.ucx.layout import (
    BROKEN,
    FAILED,
    GIVEN_UP,
    IN_PROGRESS,
    IS_DESCRIPTION,
    LANE,
    LANES,
    LINK,
    MOST_FLYING,
    OK,
    PARAMS,
    PIECES,
    ROUTE,
    SEGMENT_HEADER_BYTES,
    STATE,
    TRANSFER,
    WAY_SHIFT,
)
from transports.ucx.library import Library
from transports.ucx.transport import Lanes, Share, Ucx

Words = npt.NDArray[np.uint8]
SEGMENT = 64 << 10
_SEND = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 7)


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    monkeypatch.setattr(transport, "_FLUSH_SECONDS", 0.0)


class Cut:
    """One end, with lanes that can be cut: what is sent by them is gone, and UCX says that it was sent.

    Parameters
    ----------
    haste
        How many times faster the clock runs by which it is found that a lane stands still.
    """

    def __init__(self, ucx: Ucx, endpoints: list[bytes], haste: int = 10) -> None:
        self.ucx, self.end, self.peer = ucx, End(ucx, endpoints), 1 - ucx._rank
        self.cut: set[int] = set()
        self.sent: dict[int, int] = {}
        self._words = {name: ctypes.c_int64.from_address(ucx._state + getattr(STATE, name)) for name in ("send", "ticks_per_us")}
        self._true = _SEND(self._words["send"].value)
        self._false = _SEND(self._send)
        self._words["send"].value = ctypes.cast(self._false, ctypes.c_void_p).value or 0
        self._words["ticks_per_us"].value //= haste

    def _send(self, endpoint: int, number: int, *rest: int) -> int:
        lane = self.ucx._endpoints_to(self.peer).index(endpoint)
        if lane in self.cut:
            return 0
        if number == PIECES:
            self.sent[lane] = self.sent.get(lane, 0) + 1
        return self._true(endpoint, number, *rest)

    def break_lane(self, lane: int) -> None:
        """As UCX says that it is broken."""
        failed = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(c_address(channel.on_lane_failed))
        failed(self._lane(lane), 0, -80)

    def flags(self) -> list[int]:
        """Of each lane."""
        return [ctypes.c_int64.from_address(self._lane(number) + LANE.flags).value for number in range(len(self.ucx._workers))]

    def flying(self) -> list[int]:
        """Of each lane."""
        return [ctypes.c_int64.from_address(self._lane(number) + LANE.flying).value for number in range(len(self.ucx._workers))]

    def word(self, field: str) -> int:
        return ctypes.c_int64.from_address(self._lanes + getattr(LANES, field)).value

    @property
    def unacknowledged(self) -> int:
        """Messages that the peer may not have taken."""
        link = self.end.peers[self.peer]
        sent, known = (ctypes.c_int64.from_address(link + at).value for at in (LINK.sent, LINK.acknowledged))
        return sent - known

    @property
    def is_lost(self) -> bool:
        return bool(ctypes.c_int64.from_address(self.end.peers[self.peer] + LINK.flags).value & FAILED)

    @property
    def _lanes(self) -> int:
        return int(self.ucx._lanes[self.peer])

    def _lane(self, number: int) -> int:
        return self._lanes + LANES.total + number * LANE.total


@pytest.fixture
def ends(library: Library, request: pytest.FixtureRequest) -> Iterator[tuple[Cut, Cut]]:
    """Two, with three lanes between them."""
    lanes = Lanes(["lo"] * 3, share=lambda where: Share(SEGMENT, 4))
    pair = [Ucx(library, rank, 2, {0, 1}, lanes=lanes) for rank in range(2)]
    endpoints = [each.endpoint() for each in pair]
    yield Cut(pair[0], endpoints), Cut(pair[1], endpoints)
    for each in pair:
        each.close()
    assert not any(ctypes.c_int64.from_address(each._state + STATE.closing).value for each in pair)


def pattern(nbytes: int) -> Words:
    return (np.arange(nbytes) * 7 % 251).astype(np.uint8)


class Taken:
    """A receive through a window, which is emptied as it fills: of a buffer of so many bytes, or of all.

    Attributes
    ----------
    room
        What has been taken out.
    """

    def __init__(self, nbytes: int, window: int) -> None:
        self.room, self._window = np.zeros(nbytes, np.uint8), np.zeros(window or nbytes, np.uint8)
        into = self._window if window else self.room
        self.half = Half(into.ctypes.data, into.size, nbytes)
        self.half["window"] = window

    def empty(self) -> None:
        """Make room."""
        begin, end = self.half["moved"], self.half["passed"]
        if self.half["window"]:
            places = np.arange(begin, end)
            self.room[places] = self._window[places % self._window.size]
            self.half["moved"] = end


def announce(ends: tuple[Cut, Cut], sent: Half, fetched: Half) -> None:
    """A large message, which a receive meets."""
    zero, one = (each.end for each in ends)
    assert zero.tell(1, RTS, sent["message_bytes"], sent.at, 0, 0)
    seen: list[Any] = []
    while not seen:
        zero.go_on(sent)
        seen = one.received(1)
    one.fetch_as(seen[0], fetched)


def transfer(
    ends: tuple[Cut, Cut], nbytes: int, happens: Callable[[Half], Any], window: int = 0, is_full: bool = False
) -> tuple[Half, Half]:
    """A large message, in whose course something happens, within a minute, as lanes are given up by the clock: when a fourth of it has come,
    or when the window is full, as many segments wait for it as may, and nothing else is under way."""
    zero, one = (each.end for each in ends)
    data, taken = pattern(nbytes), Taken(nbytes, window)
    sent, fetched, room = Half(data.ctypes.data, nbytes, nbytes), taken.half, taken.room
    announce(ends, sent, fetched)
    has_happened, end = False, time.monotonic() + 60
    while time.monotonic() < end:
        zero.go_on(sent)
        one.go_on(fetched)
        if has_happened or not is_full:
            taken.empty()
        waiting = ends[0].word("next") - ends[0].word("settled")
        is_quiet = waiting == MOST_FLYING and not any(ends[0].flying()) and ends[1].unacknowledged == 0
        is_time = is_quiet if is_full else fetched["passed"] > nbytes // 4
        if is_time and not has_happened:
            has_happened = True
            happens(fetched)
        if (sent["finished"] and fetched["finished"]) or ends[0].is_lost:
            break
    assert has_happened
    if not ends[0].is_lost:
        assert fetched["finished"] and (room == data).all()
    return sent, fetched


def test_all_lanes_share_a_message_and_those_of_one_segment_leave_the_turn(ends: tuple[Cut, Cut]) -> None:
    sent, fetched = transfer(ends, 300 * SEGMENT + 1, lambda _: None)
    assert sent["finished"] and fetched["finished"]
    assert sum(ends[0].sent.values()) == 301 and min(ends[0].sent.values()) > 30
    turn, before = ends[0].word("turn"), dict(ends[0].sent)
    for _ in range(3):
        transfer(ends, SEGMENT, lambda _: None)
    assert ends[0].word("turn") == turn and ends[0].sent == {**before, 0: before[0] + 3}


@pytest.mark.parametrize("lane", range(3))
@pytest.mark.parametrize(
    ("how", "window"),
    [
        ("silent", 0),
        ("broken", 0),
        ("broken_there", 0),
        ("deaf", 0),
        ("silent", 8 * SEGMENT),
        ("broken", 8 * SEGMENT),
        ("broken_there", 8 * SEGMENT),
    ],
)
def test_a_lane_that_breaks_in_the_middle_loses_nothing(ends: tuple[Cut, Cut], lane: int, how: str, window: int) -> None:
    """It takes what is given to it and loses it; or UCX finds it broken, here or there; or what comes back by it is lost only."""
    zero, one = ends

    def happens(fetched: Half) -> None:
        if how == "silent":
            zero.cut.add(lane)
        if how in ("silent", "deaf"):
            one.cut.add(lane)
        else:
            (zero if how == "broken" else one).break_lane(lane)

    sent, _ = transfer(ends, 400 * SEGMENT + 777, happens, window)
    is_used = how != "deaf" or lane == 0
    if not is_used:
        return
    transfer(ends, 100 * SEGMENT, lambda _: None)
    assert sent["finished"]
    given_up = [BROKEN | GIVEN_UP if number == lane else 0 for number in range(3)]
    assert zero.flags() == one.flags() == given_up
    assert [each.word("main") for each in ends] == [int(lane == 0)] * 2


def test_with_the_last_lane_the_peer_is_lost_and_nothing_is_left_under_way(ends: tuple[Cut, Cut]) -> None:
    def happens(fetched: Half) -> None:
        for lane in range(3):
            ends[0].break_lane(lane)

    sent, _ = transfer(ends, 400 * SEGMENT, happens)
    assert ends[0].is_lost
    for _ in range(1000):
        ends[0].end.go_on(sent)
    words = [ctypes.c_int64.from_address(sent.at + getattr(TRANSFER, name)).value for name in ("flying", "booked")]
    assert words == [0, 0] and not ends[0].ucx.is_busy and not sent["finished"]


@pytest.mark.parametrize("others", [(), (1,)], ids=["of three", "of two"])
def test_the_lane_by_which_a_receiver_says_what_has_come_may_fall_silent_when_no_segment_goes_by_it(
    ends: tuple[Cut, Cut], others: tuple[int, ...]
) -> None:
    """Nobody misses a segment by that lane, nor by any other one; questions go by each in turn."""

    def happens(fetched: Half) -> None:
        for each in ends:
            each.cut.add(each.word("main"))

    for lane in others:
        for each in ends:
            each.break_lane(lane)
    transfer(ends, 100 * SEGMENT + 777, happens, 8 * SEGMENT, is_full=True)
    assert not ends[0].is_lost


@pytest.mark.parametrize("how", ["silent", "broken"])
def test_messages_that_were_lost_with_their_lane_come_by_another_in_order_and_once(ends: tuple[Cut, Cut], how: str) -> None:
    zero, one = ends
    expected = list(range(200))
    sent, seen = 0, []
    for turn in range(400_000):
        if turn == 20:
            for each in ends:
                each.cut.add(0) if how == "silent" else each.break_lane(0)
        if sent < len(expected) and zero.end.send(1, bytes(sent % 7), tag=sent):
            sent += 1
        zero.end.received(1)
        seen += [message.tag for message in one.end.received(1) if message.kind == EAGER]
        if len(seen) == len(expected):
            break
    assert seen == expected
    assert one.end.send(0, b"back") and [each.word("main") for each in ends] == [1, 1]
    answer: list[Any] = []
    while not answer:
        one.end.received(1)
        answer = zero.end.received(1)
    assert answer[0].payload == b"back"


def test_a_peer_that_takes_nothing_for_long_keeps_its_lanes(ends: tuple[Cut, Cut]) -> None:
    """It computes, say: nobody answers, so nothing is known to stand still."""
    zero, one = ends
    data, room = pattern(100 * SEGMENT), np.zeros(100 * SEGMENT, np.uint8)
    sent, fetched = Half(data.ctypes.data, data.size, data.size), Half(room.ctypes.data, room.size, room.size)
    announce(ends, sent, fetched)
    for _ in range(100_000):
        zero.end.go_on(sent)
    assert zero.word("asked") != 0 and zero.word("answered") == 0
    while not (sent["finished"] and fetched["finished"]):
        zero.end.go_on(sent)
        one.end.go_on(fetched)
    assert zero.flags() == [0, 0, 0] and (room == data).all()


def test_a_window_that_is_not_emptied_for_long_is_no_lane_that_stands_still(ends: tuple[Cut, Cut]) -> None:
    """And other messages do not wait behind it, as long as there are places."""
    zero, one = ends
    data, taken = pattern(100 * SEGMENT), Taken(100 * SEGMENT, 4 * SEGMENT)
    sent = Half(data.ctypes.data, data.size, data.size)
    announce(ends, sent, taken.half)
    for _ in range(100_000):
        zero.end.go_on(sent)
        one.end.go_on(taken.half)
    assert zero.flags() == [0, 0, 0] and taken.half["passed"] == 4 * SEGMENT
    transfer(ends, 40 * SEGMENT, lambda _: None)
    while not (sent["finished"] and taken.half["finished"]):
        zero.end.go_on(sent)
        one.end.go_on(taken.half)
        taken.empty()
    assert zero.flags() == [0, 0, 0] and (taken.room == data).all()


@pytest.mark.parametrize("how", ["whole", "revoked"])
def test_a_segment_that_comes_while_it_is_being_written_waits_and_is_dropped(ends: tuple[Cut, Cut], how: str) -> None:
    _, one = ends
    state, room, data = one.ucx._state, np.zeros(2 * SEGMENT, np.uint8), pattern(SEGMENT)
    receive = Half(room.ctypes.data, room.size, room.size)
    for field, value in (("link", one.end.peers[0]), ("remote", 0), ("wanted", room.size)):
        ctypes.c_int64.from_address(receive.at + getattr(TRANSFER, field)).value = value
    parts = []

    def get(worker: int, description: int, target: int, length: int, params: int) -> int:
        parts.append(ctypes.c_int64.from_address(params + PARAMS.user_data).value)
        return 1 << 16  # it is under way

    called = {
        "receive": ctypes.CFUNCTYPE(*[ctypes.c_int64] * 6)(get),
        "free_request": ctypes.CFUNCTYPE(*[ctypes.c_int64] * 2)(lambda request: 0),
        "release_data": ctypes.CFUNCTYPE(*[ctypes.c_int64] * 3)(lambda worker, description: 0),
    }
    for name, function in called.items():
        word = ctypes.c_int64.from_address(state + getattr(STATE, name))
        word.value = ctypes.cast(function, ctypes.c_void_p).value or 0
    on_piece = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 7)(c_address(transfers.on_piece))

    def come(lane: int, how: int) -> int:
        header, said = np.array([receive.at, 0, 0, lane << WAY_SHIFT]), np.array([how])
        return on_piece(state, header.ctypes.data, SEGMENT_HEADER_BYTES, data.ctypes.data, SEGMENT, said.ctypes.data)

    assert come(1, IS_DESCRIPTION) == IN_PROGRESS and len(parts) == 1
    if how == "revoked":
        receive["nbytes"] = 0
    assert come(2, 0 if how == "whole" else IS_DESCRIPTION) == (OK if how == "whole" else IN_PROGRESS)
    assert receive["passed"] == 0 and one.word("coming") == 1
    received = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)(c_address(transfers.on_piece_received))
    received(1 << 16, OK, SEGMENT, parts[0])
    for _ in range(3):
        one.end.received(1)
    assert receive["passed"] == SEGMENT and not receive["finished"] and len(parts) == 1
    words = [one.word(name) for name in ("expected", "early", "held", "coming")]
    assert words == [1, 0, 0, 0] and not ctypes.c_int64.from_address(state + STATE.waiting_first).value


def test_windows_that_ucx_accesses_end_with_the_first_lane_and_the_peer_lives_on(library: Library) -> None:
    lanes = Lanes(["lo"] * 3)
    pair = [Ucx(library, rank, 2, {0, 1}, windows="direct", lanes=lanes) for rank in range(2)]
    endpoints = [each.endpoint() for each in pair]
    zero, one = (Cut(each, endpoints) for each in pair)
    memory, data = np.zeros(1000, np.uint8), pattern(1000)
    exposed = one.end.expose(memory.ctypes.data, memory.size)
    opened = zero.end.open(1, exposed)

    def put() -> int:
        half = zero.end.access("put", 1, opened, data.ctypes.data, data.size, 0)
        for _ in range(100_000):
            zero.end.received(1)
            one.end.received(1)
            if half["finished"]:
                return half["error"]
        raise AssertionError("it does not end")

    assert put() == 0 and (memory == data).all()
    zero.break_lane(0)
    transfer((zero, one), 10 * SEGMENT, lambda _: None)
    assert put() != 0 and not zero.is_lost and zero.flags()[1:] == [0, 0]
    transfer((zero, one), 10 * SEGMENT, lambda _: None)
    assert zero.end.shut(opened)
    one.end.conceal(exposed)
    for each in pair:
        each.close()


def test_what_is_owed_by_a_lane_that_breaks_is_not_owed_for_ever(ends: tuple[Cut, Cut]) -> None:
    zero, one = ends
    transfer(ends, 10 * SEGMENT, lambda _: None)
    answer_by = ctypes.c_int64.from_address(one._lanes + LANES.answer_by)
    answer_by.value = 1 + 2
    one.break_lane(2)
    for _ in range(1000):
        zero.end.received(1)
        one.end.received(1)
    listed = ctypes.c_int64.from_address(one.ucx._state + STATE.lanes_first).value
    assert answer_by.value == listed == 0 and zero.flags() == one.flags() == [0, 0, BROKEN | GIVEN_UP]


def test_who_has_said_something_is_busy_until_the_peer_has_taken_it(ends: tuple[Cut, Cut]) -> None:
    zero, one = ends
    transfer(ends, 10 * SEGMENT, lambda _: None)
    zero.cut.add(0)
    assert zero.end.send(1, b"last") and zero.ucx.is_busy
    seen: list[Any] = []
    while not seen:
        zero.end.received(1)
        seen = one.end.received(1)
    assert seen[0].payload == b"last" and zero.word("main") == 1
    for _ in range(10_000):
        zero.end.received(1)
        one.end.received(1)
    assert not zero.ucx.is_busy


@pytest.mark.parametrize("first", [0, 1])
def test_a_lane_without_a_route_waits_for_one_and_others_go_on(library: Library, first: int) -> None:
    """In the place of a link that is down: an address of no family."""
    lanes = Lanes(["lo"] * 3, share=lambda where: Share(SEGMENT, 4))
    pair = [Ucx(library, rank, 2, {0, 1}, patience=60, lanes=lanes) for rank in range(2)]
    endpoints = [each.endpoint() for each in pair]
    ends = Cut(pair[0], endpoints, haste=1), Cut(pair[1], endpoints, haste=1)
    nowhere = np.full(2, -1)
    routes = [ctypes.c_int64.from_address(each._route(place, first) + ROUTE.count) for each in pair for place in range(2)]
    for each in pair:
        for place in range(2):
            ctypes.c_int64.from_address(each._route(place, first) + ROUTE.targets).value = nowhere.ctypes.data
    for route in routes:
        route.value = 1
    transfer(ends, 100 * SEGMENT, lambda _: None)
    assert set(ends[0].sent) == {0, 1, 2} - {first} and ends[0].flags() == [0, 0, 0]
    for route in routes:
        route.value = 0
    transfer(ends, 100 * SEGMENT, lambda _: None)
    assert ends[0].sent[first] > 10 and ends[0].flags() == [0, 0, 0]
    for each in pair:
        each.close()
