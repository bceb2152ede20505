"""When a wait looks at the network, and when it gives its core away."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ncclx_mpi.p2p import requests
from ncclx_mpi.p2p.engine import Engine
from ncclx_mpi.p2p.layout import ENGINE, OPERATIONS, TRACE
from ncclx_mpi.p2p.progress import idle
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import c_address, entry, kernel
from transports.shm.arena import Arena
from transports.shm.lane import SHM
from transports.shm.transport import SharedMemory

LONG = 1_000


@kernel("void(int64)", is_entry=True)
def look(count):  # type: ignore[no-untyped-def]
    """A network that nothing comes from."""
    store64(count, load64(count) + 1)


@kernel("int64(int64, int64, int64)", is_entry=True)
def turn_of(engine, turn, waited_us):  # type: ignore[no-untyped-def]
    """A turn of a wait that has begun so long ago."""
    return idle(engine, turn, ticks() - waited_us * 3000)


AGO, LIMIT, SLICE = 1_000 * 10**9, 100 * 10**9, 500 * 10**9
"""Ticks, that no test takes."""
_DOZE = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 3)
"""What a wait dozes by, where there is a network: its result, the engine, and for how many microseconds."""


@pytest.fixture
def network() -> Iterator[tuple[Engine, np.ndarray]]:
    """An engine with a network, and how often that was looked at."""
    arena = Arena.create(1)
    arena.join(0)
    engine, count = Engine(arena, [SharedMemory(arena, 0)], 0, timeout=20), np.zeros(1, np.int64)
    engine.set_word("other_state", count.ctypes.data)
    engine.set_word("poll_other", c_address(look))
    engine.set_word("deadline_ticks", 0)
    engine.set_word("slice_ticks", 1 << 60)  # a yield may take as long as a slice where others want the core
    yield engine, count
    engine.set_word("poll_other", 0)
    arena.close()


def looks_of(count: np.ndarray, turn: Callable[[int], int]) -> list[int]:
    """How often the network has been looked at after each of six turns."""
    seen = []
    for number in range(6):
        assert turn(number) == 0
        seen.append(int(count[0]))
    return seen


@pytest.mark.parametrize(
    ("spins", "waited_us", "looks"),
    [
        pytest.param(4000, 0, [1, 2, 3, 4, 5, 6], id="spinning"),
        pytest.param(1, 0, [1, 1, 2, 2, 3, 3], id="more ranks than cores"),
        pytest.param(4000, LONG, [1, 1, 2, 2, 3, 3], id="after a while: each look is a system call"),
    ],
)
def test_a_core_is_given_away_after_a_look_that_the_caller_has_seen(
    network: tuple[Engine, np.ndarray], spins: int, waited_us: int, looks: list[int]
) -> None:
    """A message that a look has brought would wait for the core otherwise, for as long as others take it."""
    engine, count = network
    engine.set_word("spins", spins)
    assert looks_of(count, lambda turn: entry(turn_of)(engine.address, turn, waited_us)) == looks


def test_so_does_a_wait_whose_condition_python_checks(network: tuple[Engine, np.ndarray]) -> None:
    """It has waited since its record was opened, not since Python called again."""
    engine, count = network
    engine.set_word("spins", 4000)
    entry(requests.trace_open)(engine.address, OPERATIONS.index("wait"), 0, -1, -1, 0)
    time.sleep(LONG / 1e6)
    assert looks_of(count, lambda turn: entry(requests.wait_turn)(engine.address, turn)) == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("moved", "transfers", "dozes"),
    [
        pytest.param({}, 0, 1, id="nothing has come since it began"),
        pytest.param({"waited_from": 0}, 0, 0, id="what the wait before was for has come"),
        pytest.param({"moved_at": 0}, 1, 0, id="a transfer moves"),
        pytest.param({"moved_at": 2 * LIMIT}, 1, 0, id="one may move on at any moment"),
        pytest.param({"moved_at": 2 * LIMIT}, 0, 1, id="nothing is left to be moved"),
        pytest.param({}, 1, 1, id="a peer that does not take its part"),
    ],
)
def test_a_wait_dozes_when_nothing_has_come_for_a_while(
    network: tuple[Engine, np.ndarray], moved: dict[str, int], transfers: int, dozes: int
) -> None:
    """Not when it has begun a while ago: a message of a gigabyte through a pipe went at a 25th of its rate."""
    engine, slept = network[0], list[int]()
    doze = _DOZE(lambda _, us: slept.append(us) or 0)
    engine.set_word("poll_other", 0)
    engine.set_word("spins", 1)
    engine.set_word("doze", ctypes.cast(doze, ctypes.c_void_p).value or 0)
    engine.set_word("doze_ticks", LIMIT)
    engine.set_word("slice_ticks", SLICE)
    entry(requests.trace_open)(engine.address, OPERATIONS.index("wait"), 0, -1, -1, 0)
    record = engine.word("current")
    now = ctypes.c_int64.from_address(record + TRACE.start).value
    ctypes.c_int64.from_address(record + TRACE.start).value = now - AGO
    words = {"waited_from": engine.address + ENGINE.waited_from, "moved_at": engine.address + SHM.moved_at}
    for name, address in words.items():
        ctypes.c_int64.from_address(address).value = now - moved.get(name, AGO)
    ctypes.c_int64.from_address(engine.address + SHM.active_count).value = transfers
    assert entry(requests.wait_turn)(engine.address, 1) == 0
    ctypes.c_int64.from_address(engine.address + SHM.active_count).value = 0
    engine.set_word("doze", 0)
    assert slept == [1000] * dozes
