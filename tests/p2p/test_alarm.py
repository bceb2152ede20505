"""A thread that sleeps until a message comes for it is woken by whoever finds the message."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ncclx_mpi.p2p.alarm import SERVED
from ncclx_mpi.p2p.layout import ANY_SOURCE, ANY_TAG
from tests.p2p.test_two_nodes import Nodes, nodes, pattern

__all__ = ["nodes"]


@pytest.fixture
def event() -> Iterator[int]:
    made = os.eventfd(0, os.EFD_NONBLOCK)
    yield made
    os.close(made)


@pytest.mark.parametrize("nbytes", [10, 100_000])
@pytest.mark.parametrize("space", [0, SERVED])
@pytest.mark.parametrize("sleeps", [0, 1])
def test_the_event_is_written_for_its_messages_while_it_sleeps(
    nodes: Nodes, event: int, nbytes: int, space: int, sleeps: int
) -> None:
    origin, comm, data = nodes.comms[0], nodes.comms[1], pattern(nbytes)
    engine = comm.engine
    engine.set_word("alarm", event)
    engine.set_word("sleeper", sleeps)
    for _ in range(2):
        origin.engine.free(origin.engine.start_send(origin, data.ctypes.data, data.size, 1, 0, 0, space), data)
    nodes.until(lambda: engine.probe(comm, ANY_SOURCE, ANY_TAG, space) is not None)
    for _ in range(1000):
        nodes.progress()
    if sleeps and space == SERVED:
        assert os.eventfd_read(event) == 1 and engine.word("sleeper") == 0
    else:
        with pytest.raises(BlockingIOError):
            os.eventfd_read(event)
        assert engine.word("sleeper") == sleeps
