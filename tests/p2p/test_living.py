"""What is found by a number as long as somebody refers to it."""

from __future__ import annotations

from ncclx_mpi.p2p.living import Living


class Thing:
    pass


def test_what_goes_is_not_found() -> None:
    known: Living[Thing] = Living()
    first, second = Thing(), Thing()
    known.add(1, first)
    known.add(2, second)
    assert known.get(1) is first and known.get(3) is None and list(known) == [first, second]
    del first
    assert known.get(1) is None and list(known) == [second]


def test_room_of_those_that_have_gone_is_given_back() -> None:
    known: Living[Thing] = Living()
    kept = [Thing() for _ in range(100)]
    for number, thing in enumerate(kept):
        known.add(number, thing)
    for number in range(100, 10_000):
        known.add(number, Thing())
    assert list(known) == kept and len(known._references) <= 300
