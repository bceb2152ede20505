"""Which stores a rank uses: found by both ranks together, kept where the user has chosen, and given up where nobody answers."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ncclx_mpi import collectives
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.jit import entry
from tests.collectives.forked import run_ranks
from transports.shm.arena import Arena
from transports.shm.store_kind import BLOCK, COUNTED, better_stores, measured


def test_nobody_answers() -> None:
    memory = np.zeros(4 * BLOCK + 1024, np.uint8)
    words, blocks = memory.ctypes.data, memory.ctypes.data + 1024
    begun = time.monotonic()
    assert entry(better_stores)(words, words + 512, 0, 1_000_000, blocks, blocks + 2 * BLOCK) == -1
    assert time.monotonic() - begun < 5
    assert 0 < memory[:8].view(np.int64)[0] < COUNTED


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_comes(rank: int) -> None:
    """The default is streamed stores: they are never far from the best."""
    assert measured(Arena.create(2), rank) == 1


def chosen(comm: NativeComm, stores: str) -> None:
    engine = comm.engine
    engine.transport.choose_stores(stores)
    first = engine.transport.word("streamed")
    assert first in ((0, 1) if stores == "auto" else (int(stores == "streamed"),))
    data = np.full(20_000, comm.rank, np.uint8)
    for call in range(600):
        data[:] = (comm.rank + call) % 256
        collectives.bcast(comm, data.ctypes.data, data.size, call % 2)
        assert (data == (call % 2 + call) % 256).all()
    if stores != "auto":
        assert engine.transport.word("streamed") == first


@pytest.mark.parametrize("stores", ["auto", "plain", "streamed"])
def test_stores_are_compared_anew_unless_the_user_has_chosen(stores: str) -> None:
    run_ranks(2, chosen, stores)
