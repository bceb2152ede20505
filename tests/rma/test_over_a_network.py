"""Origin and target of a window on two nodes in one process, with the simulated network between them."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi.buffers import shapes
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.named import LAYOUTS
from ncclx_mpi.p2p import joined
from ncclx_mpi.rma import far
from ncclx_mpi.rma.accumulate import Near, Reduction
from ncclx_mpi.rma.far import Far
from ncclx_mpi.rma.reach import Landing, Mapped, Place
from ncclx_mpi.rma.serving import Serving
from numba_kernels import reduce
from numba_kernels.jit import c_address, entry
from tests.p2p.test_two_nodes import Nodes, nodes

__all__ = ["nodes"]

Words = npt.NDArray[np.int64]
NUMBER = 5
WORD = LAYOUTS["INT64_T"]


class Ends(NamedTuple):
    """The origin's side, and the target's memory and lock."""

    far: Far
    memory: Words
    lock: Words


@contextmanager
def served(nodes: Nodes, count: int = 1000, is_watched: bool = True) -> Iterator[Ends]:
    """A window of words at rank 1, which a thread serves, if it `is_watched` with compiled code and the network, and rank 0's way to it."""
    transport = nodes.comms[0].engine.way_to(1)
    reaches = transport if is_watched and transport.remote_memory is not None else None
    memory, lock, guard, is_over = np.zeros(count, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), threading.Event()
    near = Near(Mapped(memory.ctypes.data), nullcontext())
    mapped = (memory.ctypes.data, memory.nbytes, guard.ctypes.data) if is_watched else (0, 0, 0)
    serving = Serving(
        nodes.comms[1],
        near,
        lock.ctypes.data,
        lambda number: (reduce.address("sum", "i64"), True) if number == NUMBER else (0, False),
        mapped,
    )
    if is_watched:
        serving.watch()

    def serve() -> None:
        while not is_over.is_set():
            serving.step()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Ends(Far(nodes.comms[0], 1, reaches), memory, lock)
    finally:
        is_over.set()
        thread.join()
        if is_watched:
            serving.unwatch()
        serving.close()


def landing(room: Words) -> Landing:
    return room.ctypes.data, room, lambda nbytes: None


def place(number: int, start: int = 0, layout: Layout = WORD) -> Place:
    return Place(layout, number, 8 * start)


def reaches_memory(nodes: Nodes) -> bool:
    """Whether the network does so by itself."""
    return nodes.comms[0].engine.transports[1].remote_memory is not None


@pytest.mark.parametrize("is_watched", [True, False])
def test_accesses_take_effect_in_their_order(nodes: Nodes, is_watched: bool) -> None:
    values, found, sums = np.arange(1000), np.zeros(1000, np.int64), Reduction(0, 8, NUMBER)
    with served(nodes, is_watched=is_watched) as (target, memory, _):
        target.write(place(1000), values.ctypes.data)
        for _ in range(20):
            target.combine(place(1000), sums, values.ctypes.data)
        fetch = target.combine(place(500, 500), sums, values.ctypes.data, landing(found))
        assert fetch is not None
        fetch.wait()
        assert found[:500].tolist() == (21 * values[500:]).tolist()
        assert memory[:500].tolist() == (21 * values[:500]).tolist()
        assert memory[500:].tolist() == (21 * values[500:] + values[:500]).tolist()
        target.replace(place(1), found.ctypes.data + 8)
        far.end_all([target])
        assert memory[0] == found[1]


def test_large_and_scattered_accesses(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "_MOST_UNDERWAY", 1 << 20)
    count = 1 << 19
    values, found = np.arange(count), np.zeros(count // 2, np.int64)
    every_other = shapes.vector(WORD, count // 2, 1, 2, in_bytes=False)
    with served(nodes, count) as (target, memory, _):
        target.write(place(count), values.ctypes.data)
        fetch = target.read(place(1, 1, every_other), landing(found))
        fetch.wait()
        assert (found == values[1::2]).all()
        target.close()


def test_what_the_network_does_itself_stays_in_order_with_what_is_asked_for(nodes: Nodes) -> None:
    """Large and small puts to the same elements; the memory of a peer is read while nobody there makes progress but the network."""
    count, found = 1 << 16, np.zeros(1 << 16, np.int64)
    with served(nodes, count) as (target, memory, _):
        for turn in range(20):
            values = np.arange(count) + turn
            small = np.array([-1 - turn])
            target.write(place(count), values.ctypes.data, values)
            assert target._opened is None or (memory == values).all(), "a put by the network is complete at both ends"
            target.write(place(1, turn), small.ctypes.data)
            fetch = target.read(place(count), landing(found))
            target.write(place(1, turn + 1), small.ctypes.data)
            fetch.wait()
            values[turn] = small[0]
            assert (np.delete(found, turn + 1) == np.delete(values, turn + 1)).all()
            far.end_all([target])
            assert memory[turn + 1] == small[0]
        assert (target._opened is not None) == reaches_memory(nodes)
        target.close()


def test_the_network_reaches_memory_also_when_peers_have_joined(nodes: Nodes) -> None:
    """Several transports are polled by a list then, and each is still called with what is its own."""
    lists = []
    for comm in nodes.comms:
        engine = comm.engine
        functions, state = engine.transports[1].functions, engine.states[engine.transports[1]]
        lists.append(np.array([1, functions.poll, functions.arm, state]))
        entry(joined.poll_from_now_on)(engine.address, c_address(joined.poll_all), c_address(joined.arm_all), lists[-1].ctypes.data)
    values, found = np.arange(1 << 16), np.zeros(1 << 16, np.int64)
    with served(nodes, 1 << 16) as (target, memory, _):
        target.write(place(1 << 16), values.ctypes.data, values)
        target.read(place(1 << 16), landing(found)).wait()
        assert (found == values).all() and (memory == values).all()
        target.close()


def test_an_access_that_is_given_up_keeps_its_buffer(nodes: Nodes) -> None:
    """The network cannot be told to stop: what it writes to is no one else's until it is done, and the window ends no sooner."""
    if not reaches_memory(nodes):
        pytest.skip("the network reaches no memory by itself")
    count = 1 << 20
    with served(nodes, count) as (target, memory, _):
        memory[:] = 1
        for _ in range(10):
            room = np.zeros(count, np.int64)
            fetch = target.read(place(count), landing(room))
            fetch.abandon()
            del room, fetch
            fillers = [np.zeros(count, np.int64) for _ in range(2)]
            nodes.progress()
        opened = target._opened
        target.close()
        assert opened is not None and opened.handle == 0 and target._opened is None
        assert not any(filler.any() for filler in fillers)


def test_a_put_that_a_signal_ends_as_it_starts_keeps_its_buffer(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    if not reaches_memory(nodes):
        pytest.skip("the network reaches no memory by itself")
    count = 1 << 20
    with served(nodes, count) as (target, memory, _):
        target.read(place(1), landing(np.zeros(1, np.int64))).wait()
        opened = target._opened
        assert opened is not None
        start = opened.start_put

        def start_and_raise(*words: int) -> int:
            start(*words)
            raise KeyboardInterrupt

        monkeypatch.setattr(opened, "start_put", start_and_raise)
        room = np.ones(count, np.int64)
        known = weakref.ref(room)
        with contextlib.suppress(KeyboardInterrupt):
            target.write(place(count), room.ctypes.data, room)
        del room
        gc.collect()
        assert known() is not None, "it is under way, as nobody here makes progress"
        target.close()
        assert (memory == 1).all()


def test_a_swap_tells_what_was_there(nodes: Nodes) -> None:
    old, new, found = np.array([0]), np.array([7]), np.zeros(1, np.int64)
    with served(nodes) as (target, memory, _):
        for expected in (0, 7):
            target.swap_if_same(place(1, 3), new.ctypes.data, old.ctypes.data, landing(found)).wait()
            assert found[0] == expected and memory[3] == 7


@pytest.mark.parametrize("is_watched", [True, False])
def test_locks_are_the_target_s_own_word(nodes: Nodes, is_watched: bool) -> None:
    """A near holder keeps the far origin out, and the other way round."""
    with served(nodes, is_watched=is_watched) as (target, memory, lock):
        target.lock(True)
        assert lock[0] == -1
        far.end_all([target], far.requests.UNLOCK)
        assert lock[0] == 0
        lock[0] = 2
        assert far.take_locks([target]) and lock[0] == 3
        target.forget_lock()
        assert not target.ask_for_lock(exclusive=True, is_patient=False).get()
        assert lock[0] == 2
        waiting = target.ask_for_lock(exclusive=True, is_patient=True)
        target.forget_lock()
        far.end_all([target])
        lock[0] = 0
        far.end_all([target], far.requests.FLUSH)
        assert lock[0] == 0
        del waiting
        target.close()


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_word_says_when_all_before_it_is_done(nodes: Nodes, is_watched: bool) -> None:
    values = np.ones(1000, np.int64)
    with served(nodes, is_watched=is_watched) as (target, memory, _):
        for turn in range(50):
            for at in range(0, 1000, 100):
                target.write(place(100, at), values.ctypes.data)
            values = values + 1
            far.end_all([target])
            assert (memory == turn + 1).all()
        assert target.start_end(far.requests.FLUSH)[1] is None
