"""How segments are shared out among lanes, and sent again, over simulated ones: whatever comes when, and whichever lanes break."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kernels.layout import WORD, zeroed
from transports.ucx import lanes
from transports.ucx.layout import AHEAD, LANE, LANES, PIECE, RING

STARTS = (0, 1, (1 << 24) - 3, (1 << 32) - 3)
"""Numbers of the first segment: NCCLX's begin again at 2 ** 24, ours never do."""


class End:
    """The LANES of one end."""

    def __init__(self, count: int, limit: int, start: int) -> None:
        nbytes = LANES.total + count * LANE.total + 2 * RING * WORD
        self._memory, self.at = zeroed(nbytes)
        self._words = np.frombuffer(self._memory, np.int64)[: nbytes // WORD]
        for field, value in {"count": count, "limit": limit}.items():
            self[field] = value
        for field in ("next", "settled", "expected", "heard_expected"):
            self[field] = start

    def __getitem__(self, field: str) -> int:
        return int(self._words[getattr(LANES, field) // WORD])

    def __setitem__(self, field: str, value: int) -> None:
        self._words[getattr(LANES, field) // WORD] = value

    def flying(self, lane: int) -> int:
        return int(self._words[(LANES.total + lane * LANE.total + LANE.flying) // WORD])


class Simulation:
    """A sender and a receiver, and what is between them.

    Parameters
    ----------
    sizes
        Segments of each message.
    """

    def __init__(self, count: int, limit: int, start: int, sizes: list[int]) -> None:
        self.sender, self.receiver = End(count, limit, start), End(count, limit, start)
        self.limit = limit
        self.todo = [message for message, size in enumerate(sizes) for _ in range(size)]
        self.left = list(sizes)
        self.unsettled = list(sizes)
        self.of_segment: dict[int, int] = {}
        self.parts: dict[int, tuple[Any, int]] = {}
        self.on_lane: list[list[int]] = [[] for _ in range(count)]
        self.alive = set(range(count))
        self.said: list[tuple[int, int, int]] = []
        self.taken: set[int] = set()
        self.held: list[int] = []
        self.now = 0

    def send(self) -> bool:
        """Send one segment, one that is lost before others; whether one could be sent."""
        self.now += 1
        number = lanes.choose(self.sender.at)
        if self.sender["lost"]:
            if number < 0:
                return False
            part = lanes.rebook_lost(self.sender.at, number, self.now)
            self._sent(number, next(sequence for sequence, (_, at) in self.parts.items() if at == part))
            return True
        if not self.todo or number < 0 or not lanes.has_room(self.sender.at):
            return False
        memory, at = zeroed(PIECE.total)
        sequence = lanes.book(self.sender.at, number, at, self.now)
        self.parts[sequence] = memory, at
        self.of_segment[sequence] = self.todo.pop(0)
        self._sent(number, sequence)
        return True

    def _sent(self, number: int, sequence: int) -> None:
        lanes.pass_turn(self.sender.at, number)
        assert number in self.alive, "a broken lane is not used"
        assert self.sender.flying(number) <= self.limit, "no lane has more than its limit"
        assert self.sender["next"] - self.sender["settled"] <= AHEAD
        self.on_lane[number].append(sequence)

    def deliver(self, lane: int, place: int, is_held: bool = False) -> None:
        """One of the segments that go by a lane comes, in whatever order; it may have to wait."""
        if not self.on_lane[lane]:
            return
        sequence = self.on_lane[lane].pop(place % len(self.on_lane[lane]))
        if is_held and not lanes.is_here(self.receiver.at, sequence):
            self.held.append(sequence)
            lanes.hold(self.receiver.at, sequence)
        else:
            self._take(sequence)

    def let_in(self) -> None:
        """There is room for one that waits."""
        if self.held:
            self._take(self.held.pop())

    def _take(self, sequence: int) -> None:
        if lanes.is_here(self.receiver.at, sequence):
            assert sequence in self.taken, "what is dropped has come before"
            return
        assert sequence not in self.taken, "nothing is taken twice"
        self.taken.add(sequence)
        lanes.take_in(self.receiver.at, sequence)
        self.left[self.of_segment[sequence]] -= 1
        begun = self.receiver["expected"]
        assert begun not in self.taken and all(each in self.taken for each in self.of_segment if each < begun)

    def say(self) -> None:
        """The receiver says what it has."""
        self.said.append((self.receiver["expected"], self.receiver["early"], self.receiver["held"]))

    def hear(self, place: int) -> None:
        """The sender hears one of these, perhaps behind a later one."""
        if not self.said:
            return
        lanes.hear_said(self.sender.at, *self.said.pop(place % len(self.said)))
        while part := lanes.next_arrived(self.sender.at, self.now):
            sequence = next(sequence for sequence, (_, at) in self.parts.items() if at == part)
            assert sequence in self.taken, "only what has arrived is settled"
            del self.parts[sequence]
            self.unsettled[self.of_segment[sequence]] -= 1
        lanes.settle_held(self.sender.at, self.now)
        assert all(0 <= self.sender.flying(each) <= self.limit for each in range(len(self.on_lane)))

    def break_lane(self, lane: int, is_swallowed: bool) -> None:
        """A lane breaks: what goes by it never comes, or comes late, in the end."""
        if lane not in self.alive or len(self.alive) == 1:
            return
        self.alive.remove(lane)
        if is_swallowed:
            self.on_lane[lane].clear()
        lanes.give_up(self.sender.at, lane)
        assert lanes.given_up(self.sender.at) == sum(1 << each for each in range(len(self.on_lane)) if each not in self.alive)


ACTIONS = st.one_of(
    st.tuples(st.just("send")),
    st.tuples(st.just("deliver"), st.integers(0, 3), st.integers(0, 70), st.booleans()),
    st.tuples(st.just("let_in")),
    st.tuples(st.just("say")),
    st.tuples(st.just("hear"), st.integers(0, 9)),
    st.tuples(st.just("break_lane"), st.integers(0, 3), st.booleans()),
)


@settings(max_examples=300)
@given(
    st.integers(1, 4),
    st.integers(1, 40),
    st.sampled_from(STARTS),
    st.lists(st.integers(1, 90), min_size=1, max_size=4),
    st.lists(ACTIONS, max_size=300),
)
def test_nothing_is_lost_or_taken_twice(count: int, limit: int, start: int, sizes: list[int], actions: list[Any]) -> None:
    simulation = Simulation(count, limit, start, sizes)
    for name, *arguments in actions:
        if name in ("deliver", "break_lane"):
            arguments[0] %= count
        getattr(simulation, name)(*arguments)
    for _ in range(sum(sizes) + 1):
        while simulation.send():
            pass
        for lane in range(count):
            while simulation.on_lane[lane]:
                simulation.deliver(lane, 0)
        simulation.let_in()
        simulation.say()
        simulation.hear(-1)
    assert simulation.left == simulation.unsettled == [0] * len(sizes)
    sender, receiver = simulation.sender, simulation.receiver
    assert sender["next"] == sender["settled"] == receiver["expected"] == start + sum(sizes)
    assert sender["lost"] == receiver["early"] == receiver["held"] == receiver["coming"] == 0 and not any(
        map(sender.flying, simulation.alive)
    )


def test_a_lane_that_is_twice_as_fast_is_given_twice_as_many() -> None:
    simulation, given_to = Simulation(2, 4, 0, [300]), [0, 0]
    turns = 0
    while simulation.unsettled != [0]:
        turns += 1
        while simulation.send():
            pass
        for lane in (0, 0, 1):
            given_to[lane] += bool(simulation.on_lane[lane])
            simulation.deliver(lane, 0)
        simulation.say()
        simulation.hear(-1)
    assert turns < 110 and 190 < given_to[0] < 210


def test_a_lane_at_its_limit_is_skipped_and_without_room_there_is_none() -> None:
    simulation = Simulation(3, 2, 0, [100])
    sent = [[*map(len, simulation.on_lane)] for _ in range(7) if simulation.send()]
    assert sent == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2]]
    simulation.deliver(1, 0)
    simulation.say()
    simulation.hear(0)
    assert simulation.send() and [*map(len, simulation.on_lane)] == [2, 2, 2]
    wide = Simulation(1, 1000, 0, [100])
    assert sum(wide.send() for _ in range(100)) == AHEAD


def test_a_segment_that_no_peer_may_send_is_taken_for_one_that_came() -> None:
    end = End(2, 4, 100)
    for stranger in (-1, 99, 100 + AHEAD, 1 << 62):
        assert lanes.is_here(end.at, stranger)
    assert not lanes.is_here(end.at, 100) and not lanes.is_here(end.at, 100 + AHEAD - 1)


def test_what_is_being_written_is_known_at_its_place_when_others_come() -> None:
    end = End(2, 4, 0)
    for sequence in (3, 5):
        lanes.hold(end.at, sequence)
    lanes.begin_writing(end.at, 3)
    for sequence in (1, 0):
        lanes.take_in(end.at, sequence)
    assert [lanes.is_coming(end.at, sequence) for sequence in range(2, 6)] == [0, 1, 0, 0]
    lanes.take_in(end.at, 3)
    assert [end[word] for word in ("expected", "early", "held", "coming", "is_owed")] == [2, 2, 8, 0, 1]
    lanes.let_go(end.at, 5)
    assert end["held"] == 0


def test_a_lane_whose_segments_wait_takes_others_and_those_that_were_lost_with_another_go_by_it() -> None:
    """Room for what waits may be made only when a segment has come that was lost."""
    simulation = Simulation(2, 2, 0, [40])
    while simulation.send():
        pass
    assert simulation.on_lane == [[0, 2], [1, 3]]
    for _ in range(2):
        simulation.deliver(1, 0, is_held=True)
    simulation.break_lane(0, is_swallowed=True)
    assert not simulation.send()
    simulation.say()
    simulation.hear(0)
    assert simulation.send() and simulation.send() and not simulation.send() and simulation.on_lane == [[], [0, 2]]
