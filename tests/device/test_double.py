"""The driver double: what runs when, what it refuses, and how its processes share memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi.buffers.dlpack import open_tensor
from ncclx_mpi.testing.driver_double import MANAGED, PINNED, POOL, DeviceArray, Double, SendOnlyArray, Violation
from ncclx_mpi.testing.driver_double.arrays import using
from ncclx_mpi.testing.driver_double.deadlock import Detector
from numba_kernels.cuda.driver import WAIT_AT_LEAST, WRITE, DriverError, Step

SEEDS = range(8)
JOB = f"test_double-{os.getpid()}"


class Body:
    """A kernel given as a Python function."""

    def __init__(self, name: str, function: Callable[..., None]) -> None:
        self.name, self.function = name, function

    def cubin(self, arch: tuple[int, int]) -> tuple[bytes, str]:
        raise AssertionError("the double runs kernels on the CPU")

    def on_cpu(self, threads: int, *arguments: int) -> None:
        self.function(*arguments)


def _add_words(target: int, source: int, count: int) -> None:
    for k in range(count):
        ctypes.c_int64.from_address(target + 8 * k).value += ctypes.c_int64.from_address(source + 8 * k).value


add_words = Body("add_words", _add_words)


@pytest.fixture
def driver() -> Iterator[Double]:
    with Double(1) as made:
        made.use(0)
        yield made


def address_of(array: np.ndarray) -> int:
    return int(array.ctypes.data)


# Memory


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_arrays_come_back(seed: int, count: int) -> None:
    with Double(seed):
        values = np.arange(count) * 3
        np.testing.assert_array_equal(DeviceArray.from_host(values).get(), values)


def test_memory_is_described(driver: Double) -> None:
    base = driver.allocate(1000)
    found = driver.memory(base + 999)
    assert found is not None
    assert (found.is_device, found.device, found.base, found.nbytes, found.is_exportable) == (True, 0, base, 1000, True)
    assert driver.memory(base + 1000) is None
    for kind, is_device in ((MANAGED, False), (PINNED, False), (POOL, True)):
        other = driver.memory(driver.allocate_as(kind, 10))
        assert other is not None
        assert (other.is_device, other.is_exportable) == (is_device, False)


def test_buffer_ids_are_not_used_again_where_addresses_are(driver: Double) -> None:
    first = driver.allocate(100)
    before = driver.memory(first)
    driver.free(first)
    assert driver.memory(first) is None
    assert driver.allocate(200) == first
    after = driver.memory(first)
    assert before is not None and after is not None
    assert before.buffer_id != after.buffer_id


CRASH = """
import ctypes
from ncclx_mpi.testing.driver_double import Double
with Double() as driver:
    driver.use(0)
    address = driver.allocate(100)
    print("before", flush=True)
    ctypes.string_at(address, 1)
"""


def test_the_cpu_cannot_read_device_memory() -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-11, "before\n")


def test_freed_memory_faults() -> None:
    with pytest.raises(Violation, match="been freed"), Double() as driver:
        driver.use(0)
        one, two = driver.allocate(100), driver.allocate(100)
        driver.free(two)
        driver.copy(one, two, 100, 0)


def test_memory_is_freed_once() -> None:
    with pytest.raises(Violation, match="been freed"), Double() as driver:
        driver.use(0)
        one = driver.allocate(100)
        driver.free(one)
        driver.free(one)


def test_bounds_are_checked() -> None:
    with pytest.raises(Violation, match="past the end"), Double() as driver:
        driver.use(0)
        driver.fill(driver.allocate(100), 0, 101, 0)


def test_free_waits_for_the_device(driver: Double) -> None:
    address, done = driver.allocate(8), []
    driver.compute(driver.create_stream(), "slow", lambda: (time.sleep(0.02), done.append(1)))
    driver.free(address)
    assert done


# Streams


@pytest.mark.parametrize("seed", SEEDS)
def test_work_of_one_stream_runs_in_order(seed: int) -> None:
    with Double(seed):
        array, expected = DeviceArray.from_host(np.zeros(3)), 0.0
        for value in range(20):
            array.later(lambda values, value=value: np.copyto(values, 2 * values + value))
            expected = 2 * expected + value
        np.testing.assert_array_equal(array.get(), expected)


def _order(seed: int) -> list[tuple[int, int]]:
    """In which order operations of four streams run: numbers of stream and operation."""
    order: list[tuple[int, int]] = []
    with Double() as driver:
        driver.use(0)
        streams = [driver.create_stream() for _ in range(4)]
        driver.reseed(seed)
        with driver.held():
            for k in range(5):
                for number, stream in enumerate(streams):
                    driver.compute(stream, "note", lambda place=(number, k): order.append(place))
    return order


def test_streams_overtake_each_other_as_the_seed_says() -> None:
    orders = [_order(seed) for seed in range(12)]
    assert orders == [_order(seed) for seed in range(12)]
    assert len({tuple(order) for order in orders}) > 6
    for order in orders:
        for number in range(4):
            assert [place for place in order if place[0] == number] == [(number, k) for k in range(5)]


def _order_of_two(seed: int, *, with_event: bool) -> tuple[str, ...]:
    order: list[str] = []
    with Double(seed) as driver:
        driver.use(0)
        first, second = driver.create_stream(), driver.create_stream()
        with driver.held():
            driver.compute(first, "a", lambda: order.append("first"))
            if with_event:
                driver.wait(second, driver.record(first))
            driver.compute(second, "b", lambda: order.append("second"))
    return tuple(order)


def test_only_an_event_orders_two_streams() -> None:
    assert {_order_of_two(seed, with_event=True) for seed in range(30)} == {("first", "second")}
    assert {_order_of_two(seed, with_event=False) for seed in range(30)} == {("first", "second"), ("second", "first")}


@pytest.mark.parametrize("seed", range(20))
def test_legacy_stream_and_blocking_streams_wait_for_each_other(seed: int) -> None:
    order: list[int] = []
    with Double(seed) as driver:
        driver.use(0)
        blocking, free = driver.create_stream(is_blocking=True), driver.create_stream()
        with driver.held():
            for number, stream in ((0, blocking), (1, 0), (2, blocking), (9, free)):
                driver.compute(stream, "note", lambda number=number: order.append(number))
    assert sorted(order) == [0, 1, 2, 9]
    assert [number for number in order if number != 9] == [0, 1, 2]


def test_destroyed_streams_still_run_and_are_not_used_again() -> None:
    done: list[int] = []
    with pytest.raises(Violation, match="destroyed"), Double() as driver:
        driver.use(0)
        stream = driver.create_stream()
        with driver.held():
            driver.compute(stream, "note", lambda: done.append(1))
            driver.destroy_stream(stream)
        driver.drain()
        assert done
        driver.is_idle(stream)


def test_waits_for_words(driver: Double) -> None:
    word = driver.allocate(8)
    first, second = driver.create_stream(), driver.create_stream()
    driver.fill(word, 0, 8, first)
    driver.synchronize(first)
    driver.batch(first, [Step(WAIT_AT_LEAST, word, 5)])
    for value in (1, 4):
        driver.batch(second, [Step(WRITE, word, value)])
        driver.synchronize(second)
        assert not driver.is_idle(first)
    driver.batch(second, [Step(WRITE, word, 7)])
    driver.synchronize(first)
    assert driver.is_idle(first)


def test_waits_are_cyclic(driver: Double) -> None:
    words = np.array([(1 << 64) - 2, 3], np.uint64)
    driver.register_host(address_of(words), words.nbytes)
    stream = driver.create_stream()
    driver.batch(stream, [Step(WAIT_AT_LEAST, address_of(words) + at, (1 << 64) - 3) for at in (0, 8)])
    driver.synchronize(stream)
    driver.unregister_host(address_of(words))


def test_the_host_releases_a_stream(driver: Double) -> None:
    words = np.zeros(2, np.int64)
    driver.register_host(address_of(words), words.nbytes)
    stream = driver.create_stream()
    driver.batch(stream, [Step(WAIT_AT_LEAST, address_of(words), 1), Step(WRITE, address_of(words) + 8, 9)])
    time.sleep(0.02)
    assert words[1] == 0
    words[0] = 1
    driver.synchronize(stream)
    assert words[1] == 9


def test_words_must_be_registered() -> None:
    words = np.zeros(1, np.int64)
    with pytest.raises(Violation, match="plain host memory"), Double() as driver:
        driver.use(0)
        driver.batch(driver.create_stream(), [Step(WRITE, address_of(words), 1)])


def test_memory_unregistered_too_early() -> None:
    words = np.zeros(1, np.int64)
    with pytest.raises(Violation, match="unregistered too early"), Double() as driver:
        driver.use(0)
        driver.register_host(address_of(words), 8)
        with driver.held():
            driver.batch(driver.create_stream(), [Step(WRITE, address_of(words), 1)])
            driver.unregister_host(address_of(words))


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_from_pageable_memory_take_what_is_there_at_the_call(seed: int) -> None:
    with Double(seed) as driver:
        array, host = DeviceArray(8, np.uint8), np.full(8, 3, np.uint8)
        driver.copy(array.address, address_of(host), 8, 0)
        host[:] = 4
        np.testing.assert_array_equal(array.get(), 3)
        driver.copy(address_of(host), array.address, 8, 0)
        np.testing.assert_array_equal(host, 3)


def test_copies_from_pinned_memory_are_asynchronous(driver: Double) -> None:
    array, host = DeviceArray(8, np.uint8), np.full(8, 3, np.uint8)
    driver.register_host(address_of(host), 8)
    with driver.held():
        driver.copy(array.address, address_of(host), 8, 0)
        host[:] = 4
    np.testing.assert_array_equal(array.get(), 4)


def test_kernels_run_on_device_addresses(driver: Double) -> None:
    target, source = DeviceArray.from_host(np.arange(5)), DeviceArray.from_host(np.arange(5) * 10)
    driver.launch(add_words, 0, 1, 32, (target.address, source.address, 5))
    np.testing.assert_array_equal(target.get(), np.arange(5) * 11)


@pytest.mark.parametrize("wrong, message", [("past", "behind the end"), ("host", "plain host memory"), ("freed", "been freed")])
def test_kernels_with_wrong_addresses(wrong: str, message: str) -> None:
    # The heap of some builds of Python lies below what is told from counts.
    host = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)
    with pytest.raises(Violation, match=message), Double() as driver:
        driver.use(0)
        one, two, gone = (driver.allocate(8 * 4) for _ in range(3))
        driver.free(gone)
        given = {"past": (one, two, 5), "host": (one, address_of(host), 4), "freed": (one, gone, 4)}[wrong]
        driver.launch(add_words, 0, 1, 32, given)


def test_calls_are_counted(driver: Double) -> None:
    stream, array = driver.create_stream(), DeviceArray.from_host(np.arange(3))
    array.get()
    driver.calls.clear()
    driver.fill(array.address, 0, 8, stream)
    driver.is_idle(stream)
    array.fill_later(1)
    assert driver.calls == {"fill": 1, "is_idle": 1}


def test_threads_have_devices_of_their_own() -> None:
    with Double(devices=3, visible=(2, 0)) as driver:
        assert driver.device_count() == 2
        assert driver.current_device() is None
        driver.use(1)
        seen: list[int | None] = []
        thread = threading.Thread(target=lambda: seen.append(driver.current_device()))
        thread.start()
        thread.join()
        assert seen == [None]
        stream = driver.create_stream()
        driver.use(0)
        with pytest.raises(DriverError, match="belongs to device 1"):
            driver.launch(add_words, stream, 1, 1, (0, 0, 0))
        with Double(devices=3, visible=(0,)) as other:
            assert driver.uuid(1) == other.uuid(0) != driver.uuid(0)


def test_a_deadlock_is_reported() -> None:
    words = np.zeros(2, np.int64)
    with pytest.raises(Violation, match="deadlock") as found, Double(patience=0.2) as driver:
        driver.use(0)
        driver.register_host(address_of(words), 16)
        first, second = driver.create_stream(), driver.create_stream()
        driver.batch(first, [Step(WAIT_AT_LEAST, address_of(words), 3), Step(WRITE, address_of(words) + 8, 1)])
        driver.batch(second, [Step(WAIT_AT_LEAST, address_of(words) + 8, 1), Step(WRITE, address_of(words), 3)])
        driver.synchronize(first)
    assert f"{address_of(words):#x} is at least 3, which holds 0" in str(found.value)
    assert "MainThread waits for stream" in str(found.value)


def test_a_blocked_stream_at_the_end_is_reported() -> None:
    words = np.zeros(1, np.int64)
    with pytest.raises(Violation, match="deadlock"), Double(patience=0.2) as driver:
        driver.use(0)
        driver.register_host(address_of(words), 8)
        driver.batch(driver.create_stream(), [Step(WAIT_AT_LEAST, address_of(words), 3)])


def test_other_memory_may_be_freed_while_a_kernel_runs() -> None:
    """Of another GPU, which nobody waits for; and what takes its addresses over is not closed at the end of the kernel."""
    has_begun, may_end = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        has_begun.set()
        assert may_end.wait(30)

    with Double(devices=2) as driver:
        driver.use(0)
        other = driver.allocate(100)
        driver.use(1)
        stream = driver.create_stream()
        driver.launch(Body("wait", wait), stream, 1, 1, (driver.allocate(100),))
        assert has_begun.wait(30)
        driver.free(other)
        on_host = driver.allocate_as(PINNED, 100)
        may_end.set()
        driver.synchronize(stream)
        assert on_host == other
        assert ctypes.memmove(on_host, bytes(100), 100)


def test_an_error_takes_the_violations_along() -> None:
    with pytest.raises(RuntimeError) as found, Double() as driver:
        driver.use(0)
        with pytest.raises(Violation):
            driver.fill(driver.allocate(8), 0, 9, 0)
        raise RuntimeError("mine")
    assert "past the end" in found.value.__notes__[0]


def test_a_closed_double_refuses_calls() -> None:
    with Double() as driver:
        driver.use(0)
        address = driver.allocate(8)
    with pytest.raises(DriverError, match="closed"):
        driver.free(address)


# Capture


def test_captured_work_runs_at_each_replay(driver: Double) -> None:
    stream, other = driver.create_stream(), driver.create_stream()
    array = DeviceArray.from_host(np.zeros(4, np.int64))
    driver.synchronize(0)
    driver.begin_capture(stream)
    assert driver.is_capturing(stream)
    with using(stream):
        array.later(lambda values: np.add(values, 1, values))
    driver.wait(other, driver.record(stream))
    with using(other):
        array.later(lambda values: np.multiply(values, 2, values))
    driver.wait(stream, driver.record(other))
    graph = driver.end_capture(stream)
    with using(stream):
        np.testing.assert_array_equal(array.get(), 0)
        for _ in range(3):
            driver.replay(graph, stream)
        np.testing.assert_array_equal(array.get(), 14)


@pytest.mark.parametrize("call", ["allocate", "synchronize", "is_idle", "first launch", "copy"])
def test_calls_refused_under_capture(driver: Double, call: str) -> None:
    stream, host = driver.create_stream(), np.zeros(8, np.uint8)
    address = driver.allocate(8)
    calls = {
        "allocate": lambda: driver.allocate(1),
        "synchronize": lambda: driver.synchronize(stream),
        "is_idle": lambda: driver.is_idle(stream),
        "first launch": lambda: driver.launch(add_words, stream, 1, 1, (0, 0, 0)),
        "copy": lambda: driver.copy(address, address_of(host), 8, stream),
    }
    driver.begin_capture(stream)
    with pytest.raises(DriverError) as found:
        calls[call]()
    assert found.value.code == 900
    with pytest.raises(DriverError, match="invalid since"):
        driver.end_capture(stream)


def test_the_legacy_stream_is_refused_while_a_blocking_one_is_captured(driver: Double) -> None:
    array = DeviceArray(3)
    driver.begin_capture(driver.create_stream(is_blocking=True))
    with pytest.raises(DriverError) as found:
        driver.fill(array.address, 0, 1, 0)
    assert found.value.code == 906


def test_unjoined_streams_and_foreign_events(driver: Double) -> None:
    stream, other, third = (driver.create_stream() for _ in range(3))
    driver.begin_capture(stream)
    driver.wait(other, driver.record(stream))
    driver.compute(other, "nothing", lambda: None)
    with pytest.raises(DriverError) as found:
        driver.end_capture(stream)
    assert found.value.code == 904
    before = driver.record(third)
    driver.begin_capture(stream)
    with pytest.raises(DriverError) as found:
        driver.wait(stream, before)
    assert found.value.code == 905


# Arrays


def test_slices_are_views(driver: Double) -> None:
    values = np.arange(24.0).reshape(4, 6)
    array = DeviceArray.from_host(values)
    for key in (np.s_[1], np.s_[:, 2], np.s_[::-1, ::2], np.s_[3, 5], np.s_[2:2]):
        np.testing.assert_array_equal(array[key].get(), values[key])
    array[:, 1].fill_later(-1)
    values[:, 1] = -1
    np.testing.assert_array_equal(array.T.get(), values.T)


def test_arrays_say_what_they_are(driver: Double) -> None:
    array = SendOnlyArray.from_host(np.arange(6, dtype=np.float32))[::2]
    interface = array.__cuda_array_interface__
    assert interface["data"] == (array.address, True)
    assert (interface["shape"], interface["strides"], interface["typestr"], interface["stream"]) == ((3,), (8,), "<f4", 1)
    stream = driver.create_stream()
    with using(stream):
        assert array.__cuda_array_interface__["stream"] == stream
    assert array.__dlpack_device__() == (2, 0)


class OldTensor:
    """An array of a library that knows version 0 of DLPack only."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.array.__dlpack__(stream=stream)


@pytest.mark.parametrize("library", [lambda array: array, OldTensor])
def test_dlpack(driver: Double, library: Callable[[DeviceArray], Any]) -> None:
    array = DeviceArray((3, 4), np.int32)
    address, nbytes, readonly, code, itemsize, _, device = open_tensor(library(array), writable=True)
    assert (address, nbytes, readonly, code, itemsize, device) == (array.address, 48, False, "i", 4, 2)


def test_dlpack_of_arrays_that_never_change(driver: Double) -> None:
    with pytest.raises(BufferError, match="not writable"):
        open_tensor(SendOnlyArray(3), writable=True)


# Processes


def _write(driver: Double, address: int, connection: Any) -> None:
    driver.fill(address, 7, 64, 0)
    driver.batch(0, [Step(WRITE, address + 64, 1)])


def _use_after_free(driver: Double, address: int, connection: Any) -> None:
    connection.send("opened")
    connection.recv()
    driver.fill(address, 7, 64, 0)
    driver.synchronize(0)


def _wait_forever(driver: Double, address: int, connection: Any) -> None:
    driver.batch(0, [Step(WAIT_AT_LEAST, address + 64, 1)])
    driver.synchronize(0)


def _work_long(driver: Double, address: int, connection: Any) -> None:
    def work() -> None:
        connection.send("working")
        time.sleep(4)

    driver.compute(0, "long work", work)
    driver.batch(0, [Step(WRITE, address + 64, 1)])


def _importer(connection: Any, job: str, work: Callable[[Double, int, Any], None]) -> None:
    """The other process: opens what it is sent, works on it, says how that went."""
    try:
        with Double(7, job=job, patience=2.0, devices=2, visible=(1, 0)) as driver:
            driver.use(1)
            connection.send("")
            handle = connection.recv()
            address = driver.open(handle)
            assert driver.open(handle) == address
            driver.close(address)
            work(driver, address, connection)
            driver.synchronize(0)
            driver.close(address)
            if work is _write:
                connection.send("closed")
                connection.recv()
                driver.open(handle)
        connection.send("")
    except BaseException as error:
        connection.send(f"{type(error).__name__}: {error}")


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Start a second process, ready to be sent a handle."""
    context, processes = get_context("spawn"), []

    def begin(work: Callable[[Double, int, Any], None]) -> Any:
        ours, theirs = context.Pipe()
        process = context.Process(daemon=True, target=_importer, args=(theirs, JOB, work))
        process.start()
        processes.append(process)
        theirs.close()
        assert ours.recv() == ""
        return ours

    yield begin
    for process in processes:
        process.join(20)
        process.kill()


def test_memory_is_passed_between_processes(start: Callable[..., Any]) -> None:
    connection = start(_write)
    with Double(3, job=JOB, devices=2) as driver:
        driver.use(0)
        address, host = driver.allocate(72), np.zeros(72, np.uint8)
        driver.fill(address, 0, 72, 0)
        driver.synchronize(0)
        handle = driver.export(address)
        with pytest.raises(DriverError) as found:
            driver.open(handle)
        assert found.value.code == 201
        driver.batch(0, [Step(WAIT_AT_LEAST, address + 64, 1)])
        connection.send(handle)
        driver.copy(address_of(host), address, 72, 0)
        np.testing.assert_array_equal(host[:64], 7)
        assert connection.recv() == "closed"
        driver.free(address)
        connection.send("freed")
        assert "stale handle" in connection.recv()


def test_memory_that_its_owner_freed(start: Callable[..., Any]) -> None:
    connection = start(_use_after_free)
    with Double(3, job=JOB) as driver:
        driver.use(0)
        address = driver.allocate(72)
        connection.send(driver.export(address))
        assert connection.recv() == "opened"
        driver.free(address)
        connection.send("freed")
        assert "which the process that exported it has freed" in connection.recv()


def test_a_deadlock_of_two_processes_names_both(start: Callable[..., Any]) -> None:
    connection = start(_wait_forever)
    with pytest.raises(Violation, match="deadlock") as found, Double(3, job=JOB, patience=2.0) as driver:
        driver.use(0)
        address = driver.allocate(72)
        driver.fill(address, 0, 72, 0)
        driver.synchronize(0)
        connection.send(driver.export(address))
        driver.batch(0, [Step(WAIT_AT_LEAST, address, 1)])
        driver.synchronize(0)
    reports = [str(found.value), connection.recv()]
    assert max(report.count("is at least 1, which holds 0") for report in reports) == 2, reports


def test_a_process_is_seen_while_its_descriptors_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not seen counts as none: others would declare a deadlock that is none, or leave it out of the report."""
    detector, really = Detector(f"{JOB}-seen", 1.0), os.readlink

    def vanishing(link: Path) -> str:
        if link.name == "0":
            raise FileNotFoundError(link)
        return really(link)

    monkeypatch.setattr(os, "readlink", vanishing)
    assert detector._states().keys() == {os.getpid()}
    detector.close()


def test_an_operation_that_takes_long_is_no_deadlock(start: Callable[..., Any]) -> None:
    """The process that runs it neither calls the driver nor needs a core meanwhile."""
    connection = start(_work_long)
    with Double(3, job=JOB, patience=1.0) as driver:
        driver.use(0)
        address = driver.allocate(72)
        driver.fill(address, 0, 72, 0)
        driver.synchronize(0)
        connection.send(driver.export(address))
        assert connection.recv() == "working"
        driver.batch(0, [Step(WAIT_AT_LEAST, address + 64, 1)])
        driver.synchronize(0)
        assert connection.recv() == ""


def test_only_exportable_memory_is_exported_and_peer_access_is_needed(driver: Double) -> None:
    for address in (driver.allocate_as(POOL, 10), driver.allocate(10) + 1):
        with pytest.raises(DriverError, match="no exportable"):
            driver.export(address)
    with Double(devices=2, visible=(1,), has_peer_access=False) as other:
        other.use(0)
        with pytest.raises(DriverError) as found:
            other.open(driver.export(driver.allocate(10)))
    assert found.value.code == 217


# Ranks


@pytest.mark.ranks(2)
def test_a_deadlock_interrupts_a_rank_that_waits_for_a_message(comm: Any) -> None:
    words = np.zeros(1, np.int64)
    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt) as found, Double(patience=2.0) as driver:
            comm.Barrier()
            driver.use(0)
            driver.register_host(address_of(words), 8)
            driver.batch(0, [Step(WAIT_AT_LEAST, address_of(words), 1)])
            comm.recv(source=1)
        report = found.value.__notes__[0]
        assert "is at least 1, which holds 0" in report
        assert report.count("process ") == report.count("< recv (") == 2
        comm.send("over", dest=1)
    else:
        with Double(patience=2.0):
            comm.Barrier()
            assert comm.recv(source=0) == "over"
