"""Messages that go aside: in order, whole, whatever their sizes; with the kind of stores that their own writes ask for."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclx_mpi.testing.transport import End
from transports.shm.arena import Arena
from transports.shm.lane import LANE
from transports.shm.layout import PAGE, side_bytes
from transports.shm.side import NEVER, SIDE_FROM, STREAMED_SHIFT, side_of
from transports.shm.store_kind import SAMPLED_EVERY, SAMPLES, judge_writes
from transports.shm.transport import SharedMemory

LARGEST = 16_000
FEW = 32
PLAIN, STREAMED = 1, 2


@pytest.fixture
def ends() -> tuple[End, End]:
    return two_ends()


def shm(end: End) -> SharedMemory:
    assert isinstance(end.transport, SharedMemory)
    return end.transport


def two_ends(nranks: int = 2) -> tuple[End, End]:
    """Ranks 0 and 1 in this process, on however many cores it has, whose messages soon go aside."""
    arena = Arena.create(nranks)
    zero, one = (End(SharedMemory(arena, rank), [b""] * nranks) for rank in (0, 1))
    shm(zero).set_word("streamed", 0)
    if side_bytes(nranks):
        shm(zero).set_word("aside_after", FEW)
    return zero, one


def lane(end: End, field: str) -> int:
    """A word of the lane between an end and the other one."""
    peer = end.peers[1 - shm(end)._rank]
    return int(ctypes.c_int64.from_address(peer + getattr(LANE, field)).value)


def pattern(number: int, nbytes: int) -> bytes:
    """Bytes that no other message has at the same places."""
    return bytes((number * 7 + place // 64 + place) & 0xFF for place in range(nbytes))


def exchange(zero: End, one: End, sizes: list[int], first: int = 0) -> None:
    """Send messages of some sizes, and read them."""
    for number, nbytes in enumerate(sizes, first):
        assert zero.send(1, pattern(number, nbytes), tag=number)
        (seen,) = one.received()
        assert (seen.tag, seen.payload) == (number, pattern(number, nbytes))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.integers(0, LARGEST), st.just(-1)), max_size=60))
def test_what_is_sent_comes_in_order(steps: list[int]) -> None:
    zero, one = two_ends()
    exchange(zero, one, [SIDE_FROM + 1] * FEW)
    sent: list[int] = []

    def read() -> None:
        assert [(seen.tag, seen.payload) for seen in one.received()] == [
            (number, pattern(number, sizes[number])) for number in sent
        ]
        sent.clear()

    sizes = dict(enumerate(steps))
    for number, nbytes in sizes.items():
        if nbytes < 0:
            read()
        elif not zero.send(1, pattern(number, nbytes), tag=number):
            read()
            assert zero.send(1, pattern(number, nbytes), tag=number)
            sent.append(number)
        else:
            sent.append(number)
    read()


def test_a_side_ring_goes_round(ends: tuple[End, End]) -> None:
    sizes = [LARGEST - 64 * (number % 5) - number % 3 for number in range(2 * side_bytes(2) // LARGEST)]
    exchange(*ends, [SIDE_FROM + 1] * FEW + sizes)
    assert lane(ends[0], "side_tail") == lane(ends[1], "side_head") > side_bytes(2)
    behind = side_of(lane(ends[0], "outbox"), shm(ends[0]).ring_lines) + side_bytes(2)
    assert ctypes.string_at(behind, PAGE) == bytes(PAGE), "the ring behind it, which nobody uses here"


def test_a_side_ring_that_is_full_takes_no_more_until_some_of_it_was_read(ends: tuple[End, End]) -> None:
    zero, one = ends
    exchange(zero, one, [LARGEST] * FEW)
    payload, count = bytes(LARGEST), 0
    while zero.send(1, payload, tag=count):
        count += 1
    assert count == side_bytes(2) // LARGEST
    assert zero.send(1, bytes(8), tag=count)
    assert [message.tag for _ in range(4) for message in one.received()] == list(range(count + 1))
    assert zero.send(1, payload)


def test_a_tag_keeps_all_its_bits(ends: tuple[End, End]) -> None:
    """Those of partitioned messages have 58."""
    exchange(*ends, [LARGEST] * FEW)
    tags = [(1 << 58) - 1, 1 << 57, 5]
    for tag in tags:
        assert ends[0].send(1, bytes(LARGEST), tag=tag) and ends[0].send(1, bytes(8), tag=tag)
    assert [seen.tag for seen in ends[1].received()] == [tag for tag in tags for _ in range(2)]


def test_few_messages_take_no_pages_of_a_side_ring(ends: tuple[End, End]) -> None:
    exchange(*ends, [LARGEST] * FEW + [SIDE_FROM, 8])
    assert lane(ends[0], "side_tail") == lane(ends[1], "side_head") == 0
    exchange(*ends, [LARGEST], 100)
    assert lane(ends[0], "side_tail") == lane(ends[1], "side_head") > 0


def test_many_ranks_have_no_side_rings() -> None:
    zero, one = two_ends(9)
    assert shm(zero).word("aside_after") == NEVER
    exchange(zero, one, [zero.transport.caps.max_eager] * (2 * FEW))
    assert lane(zero, "side_tail") == lane(one, "side_head") == 0


def test_streamed_messages_go_aside_later(ends: tuple[End, End]) -> None:
    shm(ends[0]).set_word("streamed", 1)
    exchange(*ends, [LARGEST] * (FEW << STREAMED_SHIFT))
    assert lane(ends[0], "side_tail") == 0
    exchange(*ends, [LARGEST])
    assert lane(ends[0], "side_tail") > 0


@pytest.mark.parametrize("stores", ["auto", "plain", "streamed"])
def test_payloads_are_timed_unless_the_user_has_chosen(ends: tuple[End, End], stores: str) -> None:
    if stores != "auto":
        shm(ends[0]).choose_stores(stores)
    exchange(*ends, [LARGEST] * (FEW << STREAMED_SHIFT))
    exchange(*ends, [LARGEST] * (SAMPLED_EVERY + 2 * SAMPLES))
    was_timed = [lane(ends[0], field) > 0 for field in ("plain_ticks", "streamed_ticks")]
    assert was_timed == [stores == "auto"] * 2


@pytest.mark.parametrize(
    ("plain", "streamed", "before", "then"),
    [
        # ticks a KiB of 4, 8 and 15 KB: near cores
        (45, 39, 0, PLAIN), (52, 35, STREAMED, PLAIN), (130, 58, PLAIN, PLAIN), (97, 42, 0, 0), (55, 52, STREAMED, PLAIN),
        # far ones
        (409, 104, PLAIN, STREAMED), (507, 110, 0, STREAMED), (195, 110, STREAMED, STREAMED), (763, 71, PLAIN, STREAMED),
        (917, 58, PLAIN, STREAMED),
        # a clock that does not tell
        (0, 0, PLAIN, PLAIN), (0, 0, STREAMED, STREAMED),
    ],
)  # fmt: skip
def test_verdicts_on_recorded_times(plain: int, streamed: int, before: int, then: int) -> None:
    assert judge_writes(plain, streamed, before) == then
