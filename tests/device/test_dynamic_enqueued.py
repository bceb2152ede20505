"""Alltoallv_dynamic in streams, on the driver double: counts may change until the stream has come to the call, and between replays."""

from __future__ import annotations

import contextlib
import gc
import signal
import subprocess
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.device.process import process
from ncclx_mpi.extensions.alltoallv_dynamic.device.reports import Report, _let_go, _retired
from ncclx_mpi.testing.driver_double import POOL, DeviceArray, Double
from ncclx_mpi.testing.driver_double.arrays import using
from tests.device.doubles import ONE_NODE, driver_of, late, refused
from tests.device.test_dynamic_fastpath import QUESTIONS
from tests.extensions.tables import HOLE, INDICES, SPLIT, draw
from tests.extensions.test_alltoallv_dynamic import check

HEAP = 1 << 16


class Started(ABC):
    """A flavour: what is called is made a request, which is started in a stream, eagerly or by replays of a graph."""

    def __init__(self, stream: Any, *, is_captured: bool) -> None:
        self.stream, self.is_captured = stream, is_captured

    @abstractmethod
    def captured(self, start: Callable[[], None]) -> Callable[[], None]:
        """Capture what `start` enqueues; returns what replays it."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for the stream."""

    def __call__(self, comm: Any, name: str, *arguments: Any) -> None:
        request = getattr(comm, f"{name}_init")(*arguments)
        errors = []
        try:

            def start() -> None:
                request.Start(stream=self.stream)

            again = self.captured(start) if self.is_captured else start
            for _ in range(2):
                errors += raised(again)
            self.finish()
            errors += raised(request.check)
        finally:
            request.Free()
        if errors:
            raise errors[0]


class OnDouble(Started):
    def __init__(self, driver: Double, stream: int, *, is_captured: bool) -> None:
        super().__init__(stream, is_captured=is_captured)
        self.driver = driver

    def captured(self, start: Callable[[], None]) -> Callable[[], None]:
        self.driver.begin_capture(self.stream)
        start()
        graph = self.driver.end_capture(self.stream)
        return lambda: self.driver.replay(graph, self.stream)

    def finish(self) -> None:
        self.driver.finish(self.stream)


def raised(call: Callable[[], None]) -> list[MPI.Exception]:
    """What a call raises: a start is enqueued nevertheless."""
    try:
        call()
    except MPI.Exception as error:
        return [error]
    return []


def prepared(comm: Any) -> Any:
    other = comm.Dup()
    other.prepare(HEAP)
    return other


@pytest.mark.ranks(1, 2, 3, 4, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", ["one", "each"])
def test_random_tables_in_random_orders(comm: Any, sharing: str) -> None:
    """Faults included: they are found by `check`, or by the second start, and leave everything else as it should be."""
    with driver_of(comm, sharing) as driver:
        driver.use(0)
        own = prepared(comm)
        for seed in range(16):
            driver.reseed(64 * seed + comm.rank)
            stream = driver.create_stream(is_blocking=bool(seed % 2))
            table = draw(20_000 * comm.size + 2 * seed + (sharing == "each"), comm.size)
            try:
                with using(stream):
                    check(own, table, OnDouble(driver, stream, is_captured=seed % 4 > 1), late, lambda array: array.get())
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
        own.Free()


class Program:
    """Segments to every rank by indices and back, in a stream; what the router would decide is written by work in that stream."""

    def __init__(self, comm: Any, seed: int) -> None:
        self.comm, self.rng = comm, np.random.default_rng(seed)
        self.segments, self.most = 2 * comm.size, 9
        total = self.most * self.segments
        self.send = DeviceArray.from_host(np.arange(total) + 1000 * comm.rank)
        self.splits = DeviceArray.from_host(np.zeros(self.segments, np.int32))
        self.indices = DeviceArray.from_host(np.zeros(self.segments, np.int16))
        self.blocks = DeviceArray.from_host(np.zeros(comm.size, np.int64))
        self.areas = DeviceArray((comm.size, total), np.int64)
        self.every = DeviceArray((comm.size, self.segments), np.int64)
        self.back = DeviceArray(total, np.int64)
        self.theirs, self.counts = DeviceArray(comm.size * self.segments, np.int64), DeviceArray(comm.size, np.int64)
        self.dispatch = comm.Alltoallv_dynamic_init(self.send, self.areas, self.splits, self.indices, self.blocks, self.every)
        self.combine = comm.Alltoallv_dynamic_combine_init(self.areas, self.back, self.every, self.theirs, self.counts)
        self.found: list[np.ndarray] = []
        self.wanted: list[np.ndarray] = []

    def start(self, stream: int) -> None:
        self.areas.fill_later(HOLE)
        self.back.fill_later(HOLE)
        self.dispatch.Start(stream=stream)
        self.areas.later(lambda values: np.multiply(values, 2, out=values), "the experts' work")
        self.combine.Start(stream=stream)
        self.areas.fill_later(-1)
        self.every.fill_later(-1)

    def route(self) -> None:
        """Decide anew, all ranks alike, in the current stream; each segment goes to one rank."""
        size, mine = self.comm.size, self.comm.rank
        splits = self.rng.integers(0, self.most, (size, self.segments)) * self.rng.integers(0, 2, (size, self.segments))
        owners = self.rng.integers(0, size, (size, self.segments))
        chosen = [np.argsort(owners[source], kind="stable") for source in range(size)]
        blocks = [np.bincount(owners[source], minlength=size) for source in range(size)]
        held = [np.flatnonzero(owners[source] == mine) for source in range(size)]
        for array, values in (
            (self.splits, splits[mine]), (self.indices, chosen[mine]), (self.blocks, blocks[mine]),
            (self.theirs, np.resize(np.concatenate([*held, [0]]), self.theirs.size)), (self.counts, [len(each) for each in held]),
        ):  # fmt: skip
            array.later(lambda target, values=values: np.copyto(target, values, casting="unsafe"), "the router")
        total = int(splits[mine].sum())
        self.wanted.append(np.where(np.arange(self.back.size) < total, 2 * (np.arange(self.back.size) + 1000 * mine), HOLE))

    def take(self) -> None:
        self.back.later(lambda values: self.found.append(values.copy()))


@pytest.mark.ranks(1, 2, 3, 4, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", ["one", "each"])
@pytest.mark.parametrize("is_captured", [False, True], ids=["eager", "graph"])
def test_dispatch_and_combine_with_counts_that_change(comm: Any, sharing: str, is_captured: bool) -> None:
    """Each turn the counts are written behind what is enqueued already; no host looks before the end."""
    with driver_of(comm, sharing) as driver:
        driver.use(0)
        own = prepared(comm)
        for seed in range(3):
            driver.reseed(10 * seed + comm.rank)
            stream = driver.create_stream()
            with using(stream):
                program = Program(own, seed)
                if is_captured:
                    driver.begin_capture(stream)
                    program.start(stream)
                    graph = driver.end_capture(stream)
                for _ in range(6):
                    program.route()
                    if is_captured:
                        driver.replay(graph, stream)
                    else:
                        program.start(stream)
                    program.take()
                driver.finish(stream)
            program.dispatch.check()
            program.combine.check()
            np.testing.assert_array_equal(program.found, program.wanted, err_msg=f"seed {seed}")
            program.dispatch.Free()
            program.combine.Free()
        own.Free()


@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("form", [SPLIT, INDICES])
def test_counts_changed_after_the_start_was_enqueued(comm: Any, form: str) -> None:
    """A kernel that is enqueued before the start, and runs long after it was enqueued, halves the counts."""
    with Double(comm.rank) as driver:
        driver.use(0)
        own, stream = prepared(comm), driver.create_stream()
        with using(stream):
            send, splits = late(np.arange(16.0) + 100 * comm.rank), late(np.full(4, 4))
            recv = late(np.full((2, 16), float(HOLE)))
            rest = (late(np.arange(4)), late(np.full(2, 2))) if form == INDICES else ()
            request = own.Alltoallv_dynamic_init(send, recv, splits, *rest)
            with driver.held():
                splits.later(lambda values: np.floor_divide(values, 2, out=values), "halving")
                request.Start(stream=stream)
                splits.fill_later(1 << 40)
            wanted = np.full((2, 16), float(HOLE))
            first = 4 * comm.rank
            for source in range(2):
                there = first if form == INDICES else 0
                wanted[source, there : there + 4] = 100 * source + first + np.arange(4)
            np.testing.assert_array_equal(recv.get(), wanted)
        request.check()
        request.Free()
        own.Free()


@pytest.mark.ranks(2, 4, timeout=60, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", ["one", "two", "each"])
def test_driver_calls(comm: Any, sharing: str) -> None:
    """A rank makes one call, an executor three, outside of graphs and into them, and nothing is waited for."""
    size = comm.size
    with driver_of(comm, sharing) as driver:
        driver.use(0)
        own, stream = prepared(comm), driver.create_stream()
        with using(stream):
            send, splits, recv = (DeviceArray.from_host(np.ones(shape)) for shape in (size, size, (size, 4)))
            splits = DeviceArray.from_host(np.ones(size, int))
            request = own.Alltoallv_dynamic_init(send, recv, splits)
            request.Start(stream=stream)
            for is_captured in (False, False, True, True):
                if is_captured:
                    driver.begin_capture(stream)
                driver.calls.clear()
                request.Start(stream=stream)
                made = {name: count for name, count in driver.calls.items() if name not in QUESTIONS}
                if is_captured:
                    driver.end_capture(stream)
                is_executor = comm.rank % {"one": size, "two": 2, "each": 1}[sharing] == 0
                assert made == ({"batch": 2, "launch": 1} if is_executor else {"batch": 1})
            driver.finish(stream)
        request.Free()
        own.Free()


@pytest.mark.ranks(3, timeout=60, topology=ONE_NODE)
def test_faults_stay_until_a_host_looks(comm: Any) -> None:
    """In the middle of many replays rank 0 sends rank 1 too much; both hear of it, once; the third one does not."""
    with Double(comm.rank) as driver:
        driver.use(0)
        own, stream = prepared(comm), driver.create_stream()
        with using(stream):
            send, splits = late(np.arange(12.0) + 100 * comm.rank), late(np.full(3, 2))
            recv = late(np.full((3, 3), float(HOLE)))
            request = own.Alltoallv_dynamic_init(send, recv, splits)
            driver.begin_capture(stream)
            request.Start(stream=stream)
            graph = driver.end_capture(stream)
            for length in (2, 4, 1):
                if comm.rank == 0:
                    splits.later(lambda values, length=length: np.copyto(values, [2, length, 2]))
                driver.replay(graph, stream)
            found = recv.get()
        if comm.rank < 2:
            with pytest.raises(
                MPI.Exception, match="needs room for 4 elements, but rank 1 has a capacity of 3 for rank 0"
            ) as caught:
                request.check()
            assert caught.value.error_class == MPI.ERR_TRUNCATE
        request.check()
        own.check()
        if comm.rank == 1:
            np.testing.assert_array_equal(found[0], [2, 3, HOLE])
        request.Free()
        own.Free()


@pytest.mark.ranks(2, timeout=60)
def test_faults_outlive_the_request_of_the_executor(comm: Any) -> None:
    """Rank 0 is done with its request, and has made another one, before rank 1 looks what became of its own."""
    with Double(comm.rank) as driver:
        driver.use(0)
        own, stream = prepared(comm), driver.create_stream()
        with using(stream):
            request = own.Alltoallv_dynamic_init(late(np.arange(4.0)), late(np.zeros((2, 1))), late(np.full(2, 2)))
            request.Start(stream=stream)
            driver.finish(stream)
        if comm.rank == 0:
            request.Free()
            assert Report(driver, comm.size) and _retired
        comm.Barrier()
        if comm.rank == 1:
            with pytest.raises(MPI.Exception, match="needs room for 2 elements"):
                request.check()
            request.Free()
        comm.Barrier()
        _let_go()
        assert not _retired
        own.Free()


@pytest.mark.ranks(2, timeout=60)
def test_a_start_says_what_an_earlier_one_met(comm: Any) -> None:
    with Double(comm.rank) as driver:
        driver.use(0)
        own, stream = prepared(comm), driver.create_stream()
        with using(stream):
            send, splits, recv = late(np.arange(4.0) + 10 * comm.rank), late(np.full(2, -1)), late(np.zeros(4))
            request = own.Alltoallv_dynamic_init(send, recv, splits)
            request.Start(stream=stream)
            driver.finish(stream)
            splits.fill_later(2)
            with pytest.raises(MPI.Exception, match="split length 0 of rank . is -1"):
                request.Start(stream=stream)
            np.testing.assert_array_equal(recv.get(), np.array([0, 1, 10, 11]) + 2 * comm.rank)
        request.check()
        request.Free()
        own.Free()


@pytest.mark.ranks(2, timeout=60)
def test_requests_beside_other_calls_in_streams(comm: Any) -> None:
    """They share words and order with them, and the host's starts go on."""
    with Double(comm.rank) as driver:
        driver.use(0)
        own, stream, other = prepared(comm), driver.create_stream(), driver.create_stream()
        with using(stream):
            send, splits = late(np.arange(4) + 10 * comm.rank), late(np.full(2, 2))
            recv, total = DeviceArray((2, 2), np.int64), DeviceArray((2, 2), np.int64)
            request = own.Alltoallv_dynamic_init(send, recv, splits)
            for turn in range(5):
                where = (stream, other)[turn % 2]
                request.Start(stream=where)
                own.in_stream(where).Allreduce(recv, total)
                if turn == 2:
                    driver.drain()
                    request.Start()
                    request.Wait()
            driver.drain()
            np.testing.assert_array_equal(recv.get(), np.array([[0, 1], [10, 11]]) + 2 * comm.rank)
            np.testing.assert_array_equal(total.get(), [[2, 4], [22, 24]])
        request.Free()
        own.Free()


@pytest.mark.ranks(2, timeout=60)
def test_what_cannot_be_started_in_streams(comm: Any) -> None:
    """The host can start it nevertheless, and says in streams why not."""
    with Double(comm.rank, devices=2) as driver:
        driver.use(0)
        own, stream = prepared(comm), driver.create_stream()
        splits = DeviceArray.from_host(np.ones(2, int))
        good = DeviceArray.from_host(np.ones(2))
        of_the_host, of_a_pool = np.ones(2), DeviceArray.from_host(np.ones(2), kind=POOL)
        for where, send, text in (
            (comm, good, "was not prepared"),
            (own, of_the_host if comm.rank else good, "rank 1 of the communicator cannot: not all of its arrays are a GPU's"),
            (own, of_a_pool if comm.rank else good, "rank 1 .* memory that processes cannot share"),
        ):
            recv = DeviceArray.from_host(np.zeros((2, 1)))
            request = where.Alltoallv_dynamic_init(send, recv, splits)
            refused(lambda request=request: request.Start(stream=stream), MPI.ERR_UNSUPPORTED_OPERATION, text)
            refused(request.check, MPI.ERR_UNSUPPORTED_OPERATION, text)
            request.Start()
            request.Wait()
            np.testing.assert_array_equal(recv.get(), [[1], [1]])
            request.Free()
        request = own.Alltoallv_dynamic_init(good, DeviceArray((2, 1)), splits)
        refused(lambda: request.Start(stream=0), MPI.ERR_ARG, f"rank {comm.rank}: alltoallv_dynamic.*legacy default stream")
        driver.use(1)
        foreign = driver.create_stream()
        driver.use(0)
        refused(lambda: request.Start(stream=foreign), MPI.ERR_ARG, "belongs to GPU 1, and the communicator was prepared on GPU 0")
        request.Start()
        refused(lambda: request.Start(stream=stream), MPI.ERR_REQUEST, "active")
        request.Wait()
        request.Free()
        refused(lambda: request.Start(stream=stream), MPI.ERR_REQUEST, "null")
        uneven = DeviceArray.from_host(np.ones(2 + 2 * comm.rank, int))
        refused(
            lambda: own.Alltoallv_dynamic_init(good, DeviceArray((2, 1)), uneven),
            MPI.ERR_TRUNCATE,
            "rank 0 has 2 split lengths, rank 1 has 4",
        )
        late_request = own.Alltoallv_dynamic_init(good, DeviceArray((2, 1)), splits)
        own.Free()
        refused(lambda: late_request.Start(stream=stream), MPI.ERR_COMM, "freed")
        late_request.Free()


@pytest.mark.ranks(2, timeout=60)
def test_ranks_that_start_different_requests(comm: Any) -> None:
    with Double(comm.rank) as driver:
        driver.use(0)
        own, stream = prepared(comm), driver.create_stream()
        arrays = DeviceArray.from_host(np.ones(2)), DeviceArray((2, 1)), DeviceArray.from_host(np.ones(2, int))
        requests = [own.Alltoallv_dynamic_init(*arrays) for _ in range(2)]
        with contextlib.suppress(MPI.Exception):  # raised here where the other one was first
            requests[comm.rank].Start(stream=stream)
        comm.Barrier()
        refused(requests[0].check, MPI.ERR_OP, "request 2")
        driver.finish(stream)
        own.Free()


@pytest.mark.ranks(1, 2, timeout=60)
def test_requests_go_with_their_communicator(comm: Any) -> None:
    """One that is never freed keeps nothing alive, and nothing of a peer mapped; one that is freed later touches nothing any more."""
    with Double(comm.rank) as driver:
        driver.use(0)
        own, stream = prepared(comm), driver.create_stream()
        arrays = (
            DeviceArray.from_host(np.ones(comm.size)),
            DeviceArray((comm.size, 1)),
            DeviceArray.from_host(np.ones(comm.size, int)),
        )
        forgotten, kept = (own.Alltoallv_dynamic_init(*arrays) for _ in range(2))
        for request in (forgotten, kept):
            request.Start(stream=stream)
        gone = [weakref.ref(each) for each in (own._state.prepared, own._state.native, forgotten._in_streams())]
        own.Free()
        driver.destroy_stream(stream)
        kept.check()
        kept.Free()
        del own, forgotten, kept, request
        end = time.monotonic() + 20
        while any(each() is not None for each in gone) and time.monotonic() < end:  # threads may have them in hand for a moment
            gc.collect()
            time.sleep(0.01)
        assert [each() for each in gone] == [None] * 3
        assert not any(mapping.users for mapping in process(driver).ipc._mapped.values())
        np.testing.assert_array_equal(arrays[1].get(), 1)


PEER_DIES = """
import os, signal, time
import numpy as np
from mpi4py import MPI
from ncclx_mpi.testing.driver_double import DeviceArray, Double

comm = MPI.COMM_WORLD
with Double(comm.rank, patience=60) as driver:
    driver.use(0)
    comm.prepare(1 << 12)
    stream = driver.create_stream()
    send, recv, splits = (DeviceArray.from_host(values) for values in (np.arange(6.0), np.zeros((3, 2)), np.full(3, 2)))
    request = comm.Alltoallv_dynamic_init(send, recv, splits)
    request.Start(stream=stream)
    driver.begin_capture(stream)
    request.Start(stream=stream)
    graph = driver.end_capture(stream)
    driver.synchronize(stream)
    if comm.rank == VICTIM:
        for other in {0, 1, 2} - {VICTIM}:
            comm.recv(source=other)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    request.Start(stream=stream)
    driver.replay(graph, stream)
    waits, begun = not driver.is_idle(stream), time.time()
    comm.send(None, VICTIM)
    driver.synchronize(stream)
    print("released" if waits and time.time() < begun + 10 else (waits, time.time() - begun), flush=True)
    for touch in (request.check, lambda: request.Start(stream=stream)):
        try:
            touch()
        except MPI.Exception as error:
            print("failed" if error.Get_error_class() == MPI.ERR_PROC_FAILED else error, flush=True)
    open(f"FOLDER/{comm.rank}", "w").close()
    while len(os.listdir("FOLDER")) < 2:  # what the other may still read is not freed before its streams have run through
        time.sleep(0.01)
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_peer_dies_while_streams_wait_for_it(victim: int, tmp_path: Path) -> None:
    program = PEER_DIES.replace("VICTIM", str(victim)).replace("FOLDER", str(tmp_path))
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "3", "--timeout", "60", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert sorted(done.stdout.split()) == [*4 * ["failed"], *2 * ["released"]], done.stdout + done.stderr
    assert done.returncode == 128 + signal.SIGKILL
