"""UCX keeps the contract of transports, between two workers in this process."""

from __future__ import annotations

from typing import ClassVar

import pytest

from ncclx_mpi.testing.transport import TransportTests
from transports.base import Transport
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
    monkeypatch.setattr(transport, "_CLOSING_SECONDS", 0.0)


def pair_of(library: Library) -> tuple[Transport, Transport]:
    return Ucx(library, 0, 2, {0, 1}), Ucx(library, 1, 2, {0, 1})


class TestUcx(TransportTests):
    turns: ClassVar[int] = 200

    @pytest.fixture
    def pair(self, library: Library) -> tuple[Transport, Transport]:
        return pair_of(library)
