"""UCX keeps the contract of transports, between two workers in this process."""

from __future__ import annotations

from typing import ClassVar

import pytest

from ncclx_mpi.testing.transport import End, TransportTests
from transports.base import Transport
from transports.messages import CREDIT
from transports.ucx import transport
from transports.ucx.library import Library, LibraryError, find
from transports.ucx.transport import Ucx


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        return find()
    except LibraryError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the loopback interface is used; ends that are closed one after the other do not wait for each other."""
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    monkeypatch.setattr(transport, "_FLUSH_SECONDS", 0.0)


def pair_of(library: Library) -> tuple[Transport, Transport]:
    return Ucx(library, 0, 2, {0, 1}), Ucx(library, 1, 2, {0, 1})


class TestUcx(TransportTests):
    turns: ClassVar[int] = 200
    much: ClassVar[int] = 40_000_000

    @pytest.fixture
    def pair(self, library: Library) -> tuple[Transport, Transport]:
        return pair_of(library)

    def credited(self, end: End, peer: int) -> int:
        """It waits for a message to ride on, but not for long."""
        for _ in range(10_000):
            seen = [message.words[0] for message in end.received() if (message.peer, message.kind) == (peer, CREDIT)]
            if seen:
                return seen[-1]
        raise AssertionError("no credit came")

    def test_who_is_killed_takes_nothing_along_that_was_sent(self, ends: tuple[End, End]) -> None:
        pytest.skip("a fork of a process that uses UCX cannot use it")
