"""Sockets of ours, by the contract of all transports."""

from __future__ import annotations

from typing import ClassVar

import pytest

from ncclx_mpi.testing.transport import End, TransportTests
from transports.base import Transport
from transports.tcp.transport import Tcp


class TestTcp(TransportTests):
    """All that a transport has to do."""

    turns: ClassVar[int] = 200
    much: ClassVar[int] = 40_000_000
    flooding: ClassVar[int] = 16 << 10

    def test_who_is_killed_takes_nothing_along_that_was_sent(self, ends: tuple[End, End]) -> None:
        pytest.skip("a fork has the sockets of the process that it comes from, and both would take what comes")

    @pytest.fixture
    def pair(self) -> tuple[Transport, Transport]:
        return Tcp(0, 2, {0, 1}), Tcp(1, 2, {0, 1})
