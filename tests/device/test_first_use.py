"""What a process has once, two threads may want first at the same moment: they must get the same one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ncclx_mpi.device.process import Process, process
from ncclx_mpi.gpu_memory import staging
from ncclx_mpi.testing.driver_double import Double
from numba_kernels.cuda import driver as drivers
from transports.shm.arena import Arena

_OVERTAKING_SECONDS = 0.3
"""How long the first waits for a second that does not come, because it is kept waiting, as it should be."""


class _Slow:
    """Stands for a function: whoever calls it first goes on only when somebody else has called it too, or has had the time to."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._has_second = threading.Event()
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            self._has_second.set()
        self._has_second.wait(_OVERTAKING_SECONDS)
        return self._function(*arguments)


def _of_two_threads(function: Callable[[], Any]) -> list[Any]:
    """What two threads get that call it at once."""
    found: list[Any] = []
    start = threading.Barrier(2)

    def call() -> None:
        start.wait()
        found.append(function())

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    return found


def test_one_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch bound to the stream of one, and the word that says that it is done written in the stream of another, have no order."""
    with Double() as driver:
        mine = Process(driver)
        slow = _Slow(driver.create_stream)
        monkeypatch.setattr(driver, "create_stream", slow)

        def executor() -> object:
            driver.use(0)
            return mine.executor(0)

        first, second = _of_two_threads(executor)
        assert first is second
        assert slow.calls == 1


def test_a_page_is_pinned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Double() as driver:
        mine = Process(driver)
        slow = _Slow(driver.register_host)
        monkeypatch.setattr(driver, "register_host", slow)
        page = Arena.create(1).base

        def pin() -> bool:
            driver.use(0)
            return mine.pin(page)

        assert _of_two_threads(pin) == [True, True]
        assert slow.calls == 1


def test_one_process_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    with Double() as driver:
        slow = _Slow(Process.__init__)
        monkeypatch.setattr(Process, "__init__", lambda self, driver: slow(self, driver))
        first, second = _of_two_threads(lambda: process(driver))
        assert first is second
        assert slow.calls == 1


def test_one_pool_of_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with Double() as driver:
        slow = _Slow(staging.Pool)
        monkeypatch.setattr(staging, "Pool", slow)

        def lease() -> object:
            driver.use(0)
            return staging.lease(driver, 100)._pool

        first, second = _of_two_threads(lease)
        assert first is second
        assert slow.calls == 1


def test_nobody_overlooks_the_gpu_while_its_driver_is_being_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with Double() as driver:
        drivers.install(None)
        find = _Slow(lambda: driver)
        monkeypatch.setattr(drivers._Use, "machine", None)
        monkeypatch.setattr(drivers._Use, "is_tried", False)
        monkeypatch.setattr(drivers, "find", find)
        monkeypatch.setattr(drivers.loaded, "library", lambda: driver)
        assert _of_two_threads(drivers.current) == [driver, driver]
        assert find.calls == 1


def test_one_heap_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heaps of the same memory would lend it twice."""
    arena = Arena.create(1)
    monkeypatch.setattr("transports.shm.arena.Heap", _Slow(lambda *arguments: object()))
    first, second = _of_two_threads(lambda: arena.open_heap(0))
    assert first is second
