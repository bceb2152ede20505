"""Lanes: several ways to a peer that share its large messages, each as it can; one that breaks loses nothing.

::

    sender                                                        receiver
      segment s, next = s + 1 --- lane 0 (0 of 4 under way) --->    s = expected: expected + 1, and past those that came early
      segment s + 1           --- lane 1 (4 of 4: skipped)          later: its bit in `early`
      segment s + 1           --- lane 2 ---------------------->    before, or its bit is set: it came before, and is dropped
      settled, booked  <------------------ SAID {expected, early, held}

    a lane breaks: its segments that are not known to have arrived are `lost`, and go by others, with the numbers that they had

As NCCLX's dynamic load balancing of queue pairs (arXiv:2510.20171): segments go to lanes in turn, and one that has its limit of them under
way is skipped, so a lane that is twice as fast is given twice as many. What is different: a segment counts as under way until the receiver
says that it is there, not until the sender's device has let go of it, since what is in a socket's memory, or on a wire, may be lost with the
lane. Numbers are words, and never begin again.

These kernels know nothing of a network: :mod:`transports.ucx.segments` does what they decide.

======================  ======================  ==================================================
word                    written by              read by
======================  ======================  ==================================================
next, lost, turn        who sends               who sends; under the engine's lock, as all of it
settled, booked         who hears SAID          who sends
expected, early         who takes a segment in  who says SAID
======================  ======================  ==================================================

T = 3 alpha + m / sum(1 / beta) + limit * segment * max(beta): the last term is the tail that the slowest lane leaves.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from transports.ucx.layout import AHEAD, BROKEN, GIVEN_UP, LANE, LANES, PIECE, RING


@kernel("int64(int64, int64)")
def lane_of(lanes, number):  # type: ignore[no-untyped-def]
    """The LANE of a number."""
    return lanes + LANES.total + number * LANE.total


@kernel("int64(int64, int64)")
def place_of_segment(lanes, sequence):  # type: ignore[no-untyped-def]
    """The word with the PIECE of a segment, 0 if it is not under way."""
    return lane_of(lanes, load64(lanes + LANES.count)) + WORD * (sequence % RING)


@kernel("int64(int64, int64)")
def place_of_frame(lanes, sequence):  # type: ignore[no-untyped-def]
    """The word with the FRAME of a message that is not known to have arrived."""
    return place_of_segment(lanes, 0) + WORD * (RING + sequence % RING)


@kernel("int64(int64)")
def has_room(lanes):  # type: ignore[no-untyped-def]
    """Whether one more segment may be under way to the peer."""
    return 1 if load64(lanes + LANES.next) - load64(lanes + LANES.settled) < AHEAD else 0


@kernel("int64(int64, int64)")
def is_free(lanes, number):  # type: ignore[no-untyped-def]
    """Whether a lane takes one more segment."""
    lane = lane_of(lanes, number)
    return 1 if load64(lane + LANE.flags) == 0 and load64(lane + LANE.flying) < load64(lanes + LANES.limit) else 0


@kernel("int64(int64)")
def choose(lanes):  # type: ignore[no-untyped-def]
    """The next lane in turn that takes one more segment; -1 if none does."""
    count, turn = load64(lanes + LANES.count), load64(lanes + LANES.turn)
    for step in range(count):
        number = (turn + step) % count
        if is_free(lanes, number) != 0:
            return number
    return -1


@kernel("int64(int64, int64)")
def living(lanes, other):  # type: ignore[no-untyped-def]
    """The first lane that is not broken, other than one, or -1 for any; -1 if there is none."""
    for number in range(load64(lanes + LANES.count)):
        if number != other and load64(lane_of(lanes, number) + LANE.flags) == 0:
            return number
    return -1


@kernel("int64(int64)")
def given_up(lanes):  # type: ignore[no-untyped-def]
    """A bit for each lane that is broken."""
    bits = 0
    for number in range(load64(lanes + LANES.count)):
        if load64(lane_of(lanes, number) + LANE.flags) != 0:
            bits |= 1 << number
    return bits


@kernel("int64(int64)")
def is_any_broken(lanes):  # type: ignore[no-untyped-def]
    """Whether there is a broken lane that others have not taken over from."""
    for number in range(load64(lanes + LANES.count)):
        if load64(lane_of(lanes, number) + LANE.flags) == BROKEN:
            return 1
    return 0


@kernel("void(int64, int64, int64, int64)")
def _set_out(lanes, number, part, now):  # type: ignore[no-untyped-def]
    """A segment goes by a lane."""
    lane = lane_of(lanes, number)
    flying = load64(lane + LANE.flying)
    if flying == 0:
        store64(lane + LANE.since, now)
    store64(lane + LANE.flying, flying + 1)
    store64(part + PIECE.lane, number)
    store64(part + PIECE.is_flying, 1)


@kernel("void(int64, int64, int64)")
def _come(lanes, part, now):  # type: ignore[no-untyped-def]
    """A segment has come by its lane, for which another one may go."""
    lane = lane_of(lanes, load64(part + PIECE.lane))
    if load64(part + PIECE.is_flying) != 0:
        store64(part + PIECE.is_flying, 0)
        store64(lane + LANE.flying, load64(lane + LANE.flying) - 1)
        store64(lane + LANE.since, now)


@kernel("int64(int64, int64, int64, int64)")
def book(lanes, number, part, now):  # type: ignore[no-untyped-def]
    """A new segment goes by a lane that takes it. Returns its number."""
    sequence = load64(lanes + LANES.next)
    store64(lanes + LANES.next, sequence + 1)
    store64(place_of_segment(lanes, sequence), part)
    store64(part + PIECE.is_booked, 1)
    store64(part + PIECE.sequence, sequence)
    _set_out(lanes, number, part, now)
    return sequence


@kernel("void(int64, int64)")
def pass_turn(lanes, number):  # type: ignore[no-untyped-def]
    """The lane behind this one is asked first from now on."""
    store64(lanes + LANES.turn, (number + 1) % load64(lanes + LANES.count))


@kernel("int64(int64, int64)")
def _bit(bits, place):  # type: ignore[no-untyped-def]
    return bits >> place & 1 if 0 <= place < AHEAD else 0


@kernel("int64(int64, int64, int64)")
def rebook_lost(lanes, number, now):  # type: ignore[no-untyped-def]
    """The first segment that is lost goes by another lane. Returns its PIECE; 0 if none is."""
    lost, settled = load64(lanes + LANES.lost), load64(lanes + LANES.settled)
    for place in range(AHEAD):
        if _bit(lost, place) != 0:
            part = load64(place_of_segment(lanes, settled + place))
            store64(lanes + LANES.lost, lost & ~(1 << place))
            _set_out(lanes, number, part, now)
            return part
    return 0


@kernel("void(int64)")
def _advance(lanes):  # type: ignore[no-untyped-def]
    """All before the first segment that is under way have arrived."""
    settled, lost = load64(lanes + LANES.settled), load64(lanes + LANES.lost)
    while settled < load64(lanes + LANES.next) and load64(place_of_segment(lanes, settled)) == 0:
        settled += 1
        lost >>= 1
    store64(lanes + LANES.settled, settled)
    store64(lanes + LANES.lost, lost)


@kernel("int64(int64, int64)")
def next_arrived(lanes, now):  # type: ignore[no-untyped-def]
    """A PIECE that the peer has said has arrived, and that was taken for under way; 0 if there is no other one."""
    expected, early = load64(lanes + LANES.heard_expected), load64(lanes + LANES.heard_early)
    settled = load64(lanes + LANES.settled)
    for sequence in range(settled, load64(lanes + LANES.next)):
        part = load64(place_of_segment(lanes, sequence))
        if part == 0 or (sequence >= expected and _bit(early, sequence - expected) == 0):
            continue
        store64(place_of_segment(lanes, sequence), 0)
        store64(part + PIECE.is_booked, 0)
        store64(lanes + LANES.lost, load64(lanes + LANES.lost) & ~(1 << (sequence - settled)))
        _come(lanes, part, now)
        _advance(lanes)
        return part
    return 0


@kernel("void(int64, int64)")
def settle_held(lanes, now):  # type: ignore[no-untyped-def]
    """Let others go for segments that have come, though there is no room for them yet, or they are being written."""
    expected, held = load64(lanes + LANES.heard_expected), load64(lanes + LANES.heard_held)
    for sequence in range(load64(lanes + LANES.settled), load64(lanes + LANES.next) if held != 0 else 0):
        part = load64(place_of_segment(lanes, sequence))
        if part != 0 and _bit(held, sequence - expected) != 0:
            _come(lanes, part, now)


@kernel("int64(int64)")
def next_dropped(lanes):  # type: ignore[no-untyped-def]
    """A PIECE that no lane is left for, which is forgotten; 0 if there is no other one."""
    for sequence in range(load64(lanes + LANES.settled), load64(lanes + LANES.next)):
        part = load64(place_of_segment(lanes, sequence))
        if part != 0:
            store64(place_of_segment(lanes, sequence), 0)
            store64(part + PIECE.is_booked, 0)
            return part
    store64(lanes + LANES.settled, load64(lanes + LANES.next))
    store64(lanes + LANES.lost, 0)
    return 0


@kernel("void(int64, int64)")
def give_up(lanes, number):  # type: ignore[no-untyped-def]
    """A lane is broken: what goes by it and is not known to have arrived is lost."""
    lane, settled, lost = lane_of(lanes, number), load64(lanes + LANES.settled), load64(lanes + LANES.lost)
    store64(lane + LANE.flags, BROKEN | GIVEN_UP)
    store64(lane + LANE.flying, 0)
    for sequence in range(settled, load64(lanes + LANES.next)):
        part = load64(place_of_segment(lanes, sequence))
        if part != 0 and load64(part + PIECE.lane) == number:
            store64(part + PIECE.is_flying, 0)
            lost |= 1 << (sequence - settled)
    store64(lanes + LANES.lost, lost)


@kernel("void(int64, int64, int64, int64)")
def hear_said(lanes, expected, early, held):  # type: ignore[no-untyped-def]
    """The peer has said what it has; of two that overtook each other, what both know."""
    known = load64(lanes + LANES.heard_expected)
    if expected == known:
        early |= load64(lanes + LANES.heard_early)
        held |= load64(lanes + LANES.heard_held)
    if expected >= known:
        store64(lanes + LANES.heard_expected, expected)
        store64(lanes + LANES.heard_early, early)
        store64(lanes + LANES.heard_held, held)


@kernel("int64(int64, int64)")
def is_here(lanes, sequence):  # type: ignore[no-untyped-def]
    """Whether a segment came before, or is none that a peer may send."""
    place = sequence - load64(lanes + LANES.expected)
    return 1 if not 0 <= place < AHEAD or _bit(load64(lanes + LANES.early), place) != 0 else 0


@kernel("int64(int64, int64)")
def is_coming(lanes, sequence):  # type: ignore[no-untyped-def]
    """Whether a segment is being written to where it belongs."""
    return _bit(load64(lanes + LANES.coming), sequence - load64(lanes + LANES.expected))


@kernel("void(int64, int64)")
def hold(lanes, sequence):  # type: ignore[no-untyped-def]
    """A segment has come, and waits; the peer is to be told, as its lane has room again."""
    bit = 1 << (sequence - load64(lanes + LANES.expected))
    store64(lanes + LANES.held, load64(lanes + LANES.held) | bit)
    store64(lanes + LANES.is_owed, 1)


@kernel("void(int64, int64)")
def begin_writing(lanes, sequence):  # type: ignore[no-untyped-def]
    """A segment that has waited is being written to where it belongs."""
    bit = 1 << (sequence - load64(lanes + LANES.expected))
    store64(lanes + LANES.coming, load64(lanes + LANES.coming) | bit)


@kernel("void(int64, int64)")
def let_go(lanes, sequence):  # type: ignore[no-untyped-def]
    """A segment is not being written any more, and has to come again unless it is taken in now."""
    bit = 1 << (sequence - load64(lanes + LANES.expected))
    for word in (lanes + LANES.held, lanes + LANES.coming):
        store64(word, load64(word) & ~bit)


@kernel("void(int64, int64)")
def take_in(lanes, sequence):  # type: ignore[no-untyped-def]
    """A segment is here, for the first time; the peer is to be told."""
    let_go(lanes, sequence)
    expected, early = load64(lanes + LANES.expected), load64(lanes + LANES.early)
    early |= 1 << (sequence - expected)
    passed = 0
    while early & 1 != 0:
        early >>= 1
        passed += 1
    store64(lanes + LANES.expected, expected + passed)
    store64(lanes + LANES.early, early)
    for word in (lanes + LANES.held, lanes + LANES.coming):
        store64(word, load64(word) >> passed)
    store64(lanes + LANES.is_owed, 1)
