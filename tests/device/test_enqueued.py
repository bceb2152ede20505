"""Collectives in streams, on the driver double."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi import MPI, errors
from ncclx_mpi.device.prepared import prepare
from ncclx_mpi.device.watch import POISON
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.testing.driver_double import DeviceArray, Double
from ncclx_mpi.testing.driver_double.arrays import using
from numba_kernels.cuda.driver import DriverError
from tests.collectives.forked import run_ranks
from tests.device.cases import CASES, enqueuing
from tests.device.doubles import ONE_NODE, driver_of, refused, unaligned, values_of
from tests.device.in_streams import ENQUEUED
from tests.device.messages import spoil

HEAP = 4 << 20


@pytest.mark.ranks(1, 2, 3, 4, timeout=120, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", ["one", "each"])
def test_collectives(comm: Any, sharing: str) -> None:
    with driver_of(comm, sharing) as driver:
        driver.use(0)
        stream = driver.create_stream()
        comm.prepare(HEAP)
        for make in (DeviceArray.from_host, unaligned):
            for length in (0, 1, 7, 1001, 20_000):
                for name in ENQUEUED:
                    wanted = values_of(CASES[name](comm, lambda each, *a, **n: getattr(comm, each)(*a, **n), np.array, length))
                    with using(stream):
                        found = values_of(CASES[name](comm, enqueuing(comm, stream), make, length))
                    for one, other in zip(found, wanted, strict=True):
                        np.testing.assert_equal(one, other, err_msg=f"{name} of {length}")
        comm.in_stream(stream).Barrier()
        comm.check()


@pytest.mark.ranks(3, timeout=120, topology=ONE_NODE)
def test_what_is_freed_stays_until_all_ranks_are_there(comm: Any) -> None:
    """Streams of a rank that comes late still wait for words that an executor gives back."""
    last = comm.size - 1
    with driver_of(comm, "one") as driver:
        driver.use(0)
        own, stream = comm.Dup(), driver.create_stream()
        own.prepare(HEAP)
        own.in_stream(stream).Barrier()
        if comm.rank == last:
            time.sleep(0.3)
            assert not comm.Iprobe()
        own.Free()
        if comm.rank == last:
            assert sorted(comm.recv() for _ in range(last)) == list(range(last))
        else:
            comm.send(comm.rank, last)


REDUCTIONS = [
    (MPI.SUM, np.float32), (MPI.PROD, np.float16), (MPI.MAX, np.int64), (MPI.MIN, np.uint8), (MPI.LAND, np.int32), (MPI.BXOR, np.uint16),
    (MPI.SUM, np.complex128), (MPI.LOR, np.bool_),
]  # fmt: skip


@pytest.mark.ranks(2, 3, timeout=120, topology=ONE_NODE)
def test_operations_and_types(comm: Any) -> None:
    """With the bits of the host."""
    with Double(comm.rank) as driver:
        driver.use(0)
        stream = driver.create_stream()
        comm.prepare(HEAP)
        for op, dtype in REDUCTIONS:
            values = np.random.default_rng(comm.rank).integers(0, 3, 333 * comm.size).astype(dtype)
            sums, blocks = np.empty_like(values), np.empty(333, dtype)
            comm.Allreduce(values, sums, op)
            comm.Reduce_scatter_block(values, blocks, op)
            with using(stream):
                sent, all_, block = DeviceArray.from_host(values), DeviceArray(len(values), dtype), DeviceArray(333, dtype)
                comm.in_stream(stream).Allreduce(sent, all_, op)
                comm.in_stream(stream).Reduce_scatter_block(sent, block, op)
                np.testing.assert_array_equal(all_.get(), sums)
                np.testing.assert_array_equal(block.get(), blocks)


@pytest.mark.ranks(2, 4, timeout=60, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", ["one", "each"])
def test_driver_calls(comm: Any, sharing: str) -> None:
    """A rank makes one call besides copies, an executor three; nothing is waited for."""
    with driver_of(comm, sharing) as driver:
        driver.use(0)
        stream = driver.create_stream()
        comm.prepare(HEAP)
        one, same, all_, every = (DeviceArray(1024 * count, np.float32) for count in (1, 1, comm.size, comm.size))
        calls: dict[str, tuple[int, Callable[[], None]]] = {
            "Barrier": (0, lambda: comm.in_stream(stream).Barrier()),
            "Bcast": (1, lambda: comm.in_stream(stream).Bcast(one)),
            "Allgather": (2, lambda: comm.in_stream(stream).Allgather(one, all_)),
            "Alltoall": (2, lambda: comm.in_stream(stream).Alltoall(all_, every)),
            "Allreduce": (2, lambda: comm.in_stream(stream).Allreduce(one, same)),
            "Reduce_scatter_block": (2, lambda: comm.in_stream(stream).Reduce_scatter_block(all_, one)),
        }
        comm.in_stream(stream).Allreduce(one, same)
        is_executor = comm.rank == 0 or sharing == "each"
        asked = {"memory", "examine", "current_device"}
        for name, (copies, call) in calls.items():
            driver.calls.clear()
            call()
            made = {key: count for key, count in driver.calls.items() if key not in asked}
            wanted = {"batch": 1 + is_executor, "launch": is_executor and name != "Barrier", "copy": copies}
            assert made == {key: count for key, count in wanted.items() if count}, name


@pytest.mark.ranks(2, timeout=60)
def test_the_same_call_again_resolves_nothing(comm: Any) -> None:
    """But what it depends on is looked at: address, length, type, operation, root, and whether it is captured."""
    with Double(comm.rank) as driver:
        driver.use(0)
        stream = driver.create_stream()
        comm.prepare(HEAP, [(op, kind) for op in (MPI.SUM, MPI.MAX) for kind in (MPI.INT64_T, MPI.UINT64_T)])
        array = DeviceArray(6, np.int64)
        for turn in range(3):
            for view, op in ((array, MPI.SUM), (array, MPI.MAX), (array[:3], MPI.MAX), (array[3:], MPI.SUM)):
                with using(stream):
                    array.later(lambda values, rank=comm.rank: np.copyto(values, np.arange(6) + 10 * rank))
                driver.calls.clear()
                comm.in_stream(stream).Allreduce(MPI.IN_PLACE, view, op)
                assert driver.calls["memory"] == (turn == 0), (turn, op)
                low, high = np.arange(6), np.arange(6) + 10
                wanted = high if op is MPI.MAX else low + high
                first = (view.address - array.address) // 8
                with using(stream):
                    np.testing.assert_array_equal(view.get(), wanted[first : first + view.size])


# Graphs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, timeout=120, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", ["one", "each"])
def test_graphs_are_replayed(comm: Any, sharing: str) -> None:
    """Each replay takes what its arrays hold then; calls outside of the graph go on meanwhile, in another stream."""
    with driver_of(comm, sharing, 7 + comm.rank) as driver:
        driver.use(0)
        stream, other = driver.create_stream(), driver.create_stream(is_blocking=True)
        comm.prepare(HEAP, [(MPI.SUM, MPI.INT64_T)])
        size, length = comm.size, 700
        given, gathered, turned = (DeviceArray(length * size, np.int64) for _ in range(3))
        total, part, eager = DeviceArray(length * size, np.int64), DeviceArray(length, np.int64), DeviceArray(50, np.int64)
        driver.begin_capture(stream)
        comm.in_stream(stream).Barrier()
        comm.in_stream(stream).Allreduce(given, total)
        comm.in_stream(stream).Alltoall(given, turned)
        comm.in_stream(stream).Reduce_scatter_block(turned, part)
        comm.in_stream(stream).Allgather(part, gathered)
        comm.in_stream(stream).Bcast(total[:5], root=size - 1)
        graph = driver.end_capture(stream)
        ranks = np.arange(size)[:, None] * 1000
        for turn in range(3):
            whole = np.arange(length * size) + ranks + 10**6 * turn
            with using(stream):
                given.later(lambda target, mine=whole[comm.rank]: np.copyto(target, mine))
                driver.replay(graph, stream)
                spoil(given)
            with using(other):
                eager.fill_later(turn + comm.rank)
                comm.in_stream(other).Allreduce(MPI.IN_PLACE, eager)
            blocks = whole.reshape(size, size, length)
            with using(stream):
                np.testing.assert_array_equal(total.get(), whole.sum(axis=0))
                np.testing.assert_array_equal(turned.get(), blocks[:, comm.rank].reshape(-1))
                np.testing.assert_array_equal(gathered.get(), blocks.sum(axis=1).reshape(-1))
            with using(other):
                np.testing.assert_array_equal(eager.get(), np.full(50, size * turn + ranks.sum() // 1000))
        comm.check()


class Step:
    """A call on arrays of its own, which the host can repeat on the same values."""

    def __init__(self, comm: Any, common: random.Random) -> None:
        self.comm = comm
        self.name = common.choice(("Bcast", "Allgather", "Alltoall", "Allreduce", "Reduce_scatter_block"))
        length = common.choice((1, 5, 64, 1001))
        self.root, whole = common.randrange(comm.size), length * comm.size
        self.given = DeviceArray(length if self.name in ("Bcast", "Allreduce", "Allgather") else whole, np.int64)
        self.got = DeviceArray(length if self.name in ("Allreduce", "Reduce_scatter_block") else whole, np.int64)
        self.found: list[npt.NDArray[Any]] = []
        self.wanted: list[npt.NDArray[Any]] = []

    def call(self, where: Any, given: Any, got: Any) -> None:
        """Make it on the communicator, or in a stream of it."""
        if self.name == "Bcast":
            where.Bcast(given, root=self.root)
        else:
            getattr(where, self.name)(given, got)

    def give(self, salt: int) -> None:
        """New values in the current stream, and what shall come of them."""
        values = np.arange(self.given.size) + 1000 * self.comm.rank + 10**6 * salt
        self.given.later(lambda target: np.copyto(target, values))
        on_host = values.copy(), np.empty(self.got.size, np.int64)
        self.call(self.comm, *on_host)
        self.wanted.append(on_host[0 if self.name == "Bcast" else 1])

    def take(self) -> None:
        """Keep what has come, and spoil everything."""
        found = self.found
        (self.given if self.name == "Bcast" else self.got).later(lambda values: found.append(values.copy()))
        spoil(self.given)
        spoil(self.got)


def run_program(comm: Any, driver: Double, seed: int) -> None:
    """Graphs and calls outside of them: the same on all ranks and in the same order, in streams and with delays of each rank's own."""
    common, mine = random.Random(seed), random.Random(1000 * seed + comm.rank)
    driver.reseed(64 * seed + comm.rank)
    streams = [driver.create_stream(), driver.create_stream(), driver.create_stream(is_blocking=True)]
    graphs, steps = [], [Step(comm, common) for _ in range(3)]
    for _ in range(2):
        stream, inside = mine.choice(streams), [Step(comm, common) for _ in range(common.randrange(1, 4))]
        driver.begin_capture(stream)
        for step in inside:
            step.call(comm.in_stream(stream), step.given, step.got)
        graphs.append((driver.end_capture(stream), stream, inside))
        steps += inside
    for salt in range(8):
        if common.random() < 0.5:
            graph, stream, inside = common.choice(graphs)
        else:
            graph, stream, inside = None, mine.choice(streams), [steps[common.randrange(3)]]
        with using(stream):
            for step in inside:
                step.give(salt)
            if graph is None:
                inside[0].call(comm.in_stream(stream), inside[0].given, inside[0].got)
            else:
                driver.replay(graph, stream)
            for step in inside:
                step.take()
        if graph is None:  # the arrays are used in another stream next time
            driver.finish(stream)
    driver.drain()
    comm.check()
    for step in steps:
        for one, other in zip(step.found, step.wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"seed {seed}: {step.name}")
    for stream in streams:
        driver.destroy_stream(stream)


@pytest.mark.ranks(2, 3, 4, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", ["one", "each"])
def test_no_order_of_streams_breaks_a_call(comm: Any, sharing: str, full: bool) -> None:
    with driver_of(comm, sharing) as driver:
        driver.use(0)
        for seed in range(400 if full else 20):
            own = comm.Dup()
            own.prepare(1 << 20, [(MPI.SUM, MPI.INT64_T)])
            try:
                run_program(own, driver, seed)
            except BaseException as error:
                error.add_note(f"in the run of seed {seed}")
                raise
            own.Free()


# What goes wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, timeout=60)
def test_what_is_refused(comm: Any) -> None:
    """On all ranks alike, with nothing done: afterwards calls work as before."""
    with Double(comm.rank, devices=2) as driver:
        driver.use(1)
        elsewhere, foreign = DeviceArray.from_host(np.arange(10.0)), driver.create_stream()
        driver.use(0)
        array, other = DeviceArray.from_host(np.arange(10.0)), DeviceArray(10)
        stream, large = driver.create_stream(), DeviceArray(2000)
        refused(lambda: comm.in_stream(stream).Barrier(), MPI.ERR_COMM, "not prepared")
        refused(comm.check, MPI.ERR_COMM, "not prepared")
        refused(lambda: comm.prepare(0), MPI.ERR_ARG, "heap of 0 bytes")
        refused(lambda: comm.prepare(1, [(MPI.MAXLOC, MPI.DOUBLE_INT)]), MPI.ERR_OP, "no kernel")
        comm.prepare(8192)
        refused(comm.prepare, MPI.ERR_OTHER, "prepared already")
        me = f"rank {comm.rank}: "
        for null in (0, 1, SimpleNamespace(ptr=0)):
            refused(
                lambda null=null: comm.in_stream(null).Barrier(),
                MPI.ERR_ARG,
                me + "barrier.*legacy default stream.*pass a stream of",
            )
        refused(
            lambda: comm.in_stream(2).Barrier(), MPI.ERR_ARG, me + "barrier.*per-thread default stream.*pass a stream of your own"
        )
        for given in (foreign, SimpleNamespace(ptr=foreign)):
            refused(
                lambda given=given: comm.in_stream(given).Allreduce(array, other),
                MPI.ERR_ARG,
                me
                + f"allreduce.*stream {foreign:#x} belongs to GPU 1, and the communicator was prepared on GPU 0.*pass a stream that",
            )
        with pytest.raises(TypeError, match="__cuda_stream__"):
            comm.in_stream("stream").Barrier()
        refused(lambda: comm.in_stream(stream).Bcast(np.zeros(10)), MPI.ERR_BUFFER, "in the host's memory")
        refused(lambda: comm.in_stream(stream).Allreduce(array, np.zeros(10)), MPI.ERR_BUFFER, "in the host's memory")
        refused(
            lambda: comm.in_stream(stream).Bcast(elsewhere), MPI.ERR_BUFFER, "on GPU 1, and the communicator was prepared on GPU 0"
        )
        gaps = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
        refused(lambda: comm.in_stream(stream).Bcast([array, 1, gaps]), MPI.ERR_TYPE, "gaps")
        own = MPI.Op.Create(lambda low, high, datatype: None)
        refused(lambda: comm.in_stream(stream).Allreduce(array, other, own), MPI.ERR_OP, "an operation of the program")
        pairs = [array, 5, MPI.DOUBLE_INT], [other, 5, MPI.DOUBLE_INT]
        refused(lambda: comm.in_stream(stream).Allreduce(*pairs, MPI.MAXLOC), MPI.ERR_OP, "no kernel for maxloc")
        wide = [array, 5, MPI.LONG_DOUBLE], [other, 5, MPI.LONG_DOUBLE]
        refused(lambda: comm.in_stream(stream).Allreduce(*wide), MPI.ERR_OP, "no kernel for sum")
        refused(
            lambda: comm.in_stream(stream).Bcast(large), MPI.ERR_NO_MEM, "needs 32128 bytes of the heap, which has 8192 of 8192"
        )
        comm.in_stream(stream).Allreduce(array, other)
        with using(stream):
            np.testing.assert_array_equal(other.get(), comm.size * np.arange(10.0))
        comm.check()


@pytest.mark.ranks(1, 2, timeout=60)
def test_the_gpu_of_a_stream_is_looked_at_each_time(comm: Any) -> None:
    """A handle may come back as a stream of another GPU; which one is current in the thread does not matter."""
    with Double(comm.rank, devices=2) as driver:
        driver.use(0)
        comm.prepare(8192, [(MPI.SUM, MPI.DOUBLE)])
        array, stream = DeviceArray.from_host(np.full(10, 1.0)), driver.create_stream()
        driver.synchronize(0)
        for turn in range(3):
            driver.use(turn % 2)
            driver.calls.clear()
            comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array)
            assert driver.current_device() == turn % 2
        driver.use(0)
        driver.synchronize(stream)
        driver.destroy_stream(stream)
        driver.use(1)
        driver._next_handle = stream
        assert driver.create_stream() == stream
        driver.calls.clear()
        for device in (1, 0):
            driver.use(device)
            refused(lambda: comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array), MPI.ERR_ARG, "belongs to GPU 1")
        assert not driver.calls.keys() & {"copy", "batch", "launch"}
        driver.use(0)
        assert (array.get() == float(comm.size) ** 3).all()
        comm.Barrier()


@pytest.mark.ranks(1, 2, timeout=60)
def test_what_is_refused_under_capture(comm: Any) -> None:
    with Double(comm.rank) as driver:
        driver.use(0)
        stream, other = driver.create_stream(), driver.create_stream()
        array = DeviceArray.from_host(np.full(100, 1.0 + comm.rank))
        comm.prepare(4096)
        comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array)
        driver.begin_capture(stream, is_global=False)
        if comm.size > 1:
            refused(
                lambda: comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array, MPI.MAX),
                MPI.ERR_UNSUPPORTED_OPERATION,
                "kernels cannot be loaded",
            )
        refused(lambda: comm.in_stream(other).Barrier(), MPI.ERR_OTHER, "which is being captured now")
        for _ in range(3):
            comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array)
        refused(lambda: comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array), MPI.ERR_NO_MEM, "has 224 of 4096 left")
        graph = driver.end_capture(stream)
        driver.replay(graph, stream)
        with using(stream):
            np.testing.assert_array_equal(array.get(), np.full(100, sum(range(1, comm.size + 1)) * comm.size**3))


@pytest.mark.ranks(2, 3, timeout=60, topology=ONE_NODE)
def test_ranks_that_differ_are_told(comm: Any) -> None:
    """At their next call, even where streams would wait for each other for ever."""
    array = object()
    with Double(comm.rank, patience=20) as driver:
        driver.use(0)
        stream = driver.create_stream()
        array, more = DeviceArray.from_host(np.zeros(100)), DeviceArray.from_host(np.zeros(50))
        is_odd = comm.rank == 1
        calls: list[Callable[[Any], Any]] = [
            lambda own: own.in_stream(stream).Bcast(more if is_odd else array),
            lambda own: own.in_stream(stream).Bcast(array, root=int(is_odd)),
            lambda own: own.in_stream(stream).Allreduce(MPI.IN_PLACE, array, MPI.MIN if is_odd else MPI.MAX),
            lambda own: own.in_stream(stream).Barrier() if is_odd else own.in_stream(stream).Bcast(array),
            lambda own: own.in_stream(stream).Bcast(array[:0] if is_odd else array),
        ]
        errors = [
            (MPI.ERR_TRUNCATE, "bcast of .00 bytes .* bcast of .00 bytes"),
            (MPI.ERR_ROOT, "with root (0.* with root 1|1.* with root 0)"),
            (MPI.ERR_OP, "operations"),
            (MPI.ERR_OTHER, "barrier.*bcast|bcast.*barrier"),
            (MPI.ERR_TRUNCATE, " 0 bytes"),
        ]
        for call, (error_class, text) in zip(calls, errors, strict=True):
            own = comm.Dup()
            own.prepare(1 << 16, [(MPI.MIN, MPI.DOUBLE), (MPI.MAX, MPI.DOUBLE)])
            own.in_stream(stream).Barrier()
            with contextlib.suppress(MPI.Exception):  # the rank that comes later hears of it at once
                call(own)
            driver.synchronize(stream)
            comm.Barrier()
            refused(own.check, error_class, text)
            refused(lambda own=own: own.in_stream(stream).Barrier(), error_class, text)
            own.Free()


@pytest.mark.ranks(2, 3, timeout=60, topology=ONE_NODE)
def test_what_one_rank_cannot_none_does(comm: Any) -> None:
    """And all say which rank and why; afterwards the communicator can be prepared."""
    refused(lambda: comm.prepare(1024), MPI.ERR_OTHER, "rank 0 of the communicator cannot: no CUDA driver")
    with contextlib.ExitStack() as stack:
        if comm.rank:
            stack.enter_context(Double(comm.rank))
        refused(lambda: comm.prepare(1024), MPI.ERR_OTHER, "rank 0 of the communicator cannot: no CUDA driver")
    with Double(comm.rank, devices=2, visible=[comm.rank % 2], has_peer_access=False):
        refused(lambda: comm.prepare(1024), MPI.ERR_OTHER, "cannot: open: device 0 cannot access memory")
    with Double(comm.rank) as driver:
        driver.use(0)
        refused(lambda: comm.prepare(1024 + comm.rank), MPI.ERR_ARG, "heap of 1024 bytes, rank 1 for 1025")
        with pytest.MonkeyPatch.context() as patch:
            if comm.rank == 1:
                patch.setattr(driver, "register_host", failing)
            refused(lambda: comm.prepare(1024), MPI.ERR_OTHER, "rank 1 of the communicator cannot: it does not work today")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "launch", failing)
            refused(lambda: comm.prepare(1024), MPI.ERR_OTHER, "rank 0 of the communicator cannot: it does not work today")
        comm.prepare(1024)
        stream = driver.create_stream()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "launch", failing)
            array = DeviceArray.from_host(np.zeros(10))
            refused(
                lambda: comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array), MPI.ERR_OTHER, "rank 0 of the communicator cannot"
            )
        comm.in_stream(stream).Barrier()
        driver.synchronize(stream)
        comm.check()


def failing(*_: Any) -> None:
    raise DriverError(999, "it does not work today")


@pytest.mark.ranks(2, 3, timeout=60, topology=ONE_NODE)
def test_a_driver_that_fails_in_a_call(comm: Any) -> None:
    """The rank raises, the streams of the others go on, and they raise at their next touch."""
    with Double(comm.rank, patience=20) as driver:
        driver.use(0)
        stream, array = driver.create_stream(), DeviceArray.from_host(np.zeros(10))
        own = comm.Dup()
        own.prepare(1024)
        if comm.rank == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(driver, "batch", failing)
                refused(
                    lambda: own.in_stream(stream).Bcast(array),
                    MPI.ERR_OTHER,
                    "rank 1: bcast in a stream failed: it does not work today",
                )
        else:
            with contextlib.suppress(MPI.Exception):  # it may have failed already
                own.in_stream(stream).Bcast(array)
            driver.synchronize(stream)
        comm.Barrier()
        refused(own.check, MPI.ERR_OTHER, "failed on rank 1")
        refused(lambda: own.in_stream(stream).Barrier(), MPI.ERR_OTHER, "failed on rank 1")
        own.Free()


@pytest.mark.ranks(1, 2, 3, timeout=60, topology=ONE_NODE)
def test_free_waits_for_what_is_under_way(comm: Any) -> None:
    with Double(comm.rank) as driver:
        driver.use(0)
        for seed in range(5):
            driver.reseed(3 * seed + comm.rank)
            own = comm.Dup()
            own.prepare(1 << 16, [(MPI.SUM, MPI.DOUBLE)])
            stream, array = driver.create_stream(), DeviceArray(1000)
            graph = None
            if seed % 2:
                driver.begin_capture(stream)
                own.in_stream(stream).Allreduce(MPI.IN_PLACE, array)
                graph = driver.end_capture(stream)
            with using(stream):
                array.later(lambda values: values.fill(1.0))
                for _ in range(3):
                    driver.replay(graph, stream) if graph else own.in_stream(stream).Allreduce(MPI.IN_PLACE, array)
                own.Free()
                np.testing.assert_array_equal(array.get(), np.full(1000, float(comm.size) ** 3))
            driver.destroy_stream(stream)


def test_at_most_sixteen_ranks() -> None:
    refused(lambda: prepare(SimpleNamespace(size=17), 1, []), MPI.ERR_UNSUPPORTED_OPERATION, "17 ranks")  # type: ignore[arg-type]


PEER_DIES = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
from ncclx_mpi.testing.driver_double import DeviceArray, Double

comm = MPI.COMM_WORLD
with Double(comm.rank, patience=60) as driver:
    driver.use(0)
    stream, array = driver.create_stream(), DeviceArray.from_host(np.arange(1000.0))
    comm.prepare(1 << 20, [(MPI.SUM, MPI.DOUBLE)])
    driver.begin_capture(stream)
    comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array)
    graph = driver.end_capture(stream)
    comm.in_stream(stream).Barrier()
    driver.synchronize(stream)
    if comm.rank == VICTIM:
        for other in {0, 1, 2} - {VICTIM}:
            comm.recv(source=other)
        time.sleep(0.5)
        print("died", time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(3):
        comm.in_stream(stream).Allreduce(MPI.IN_PLACE, array)
        driver.replay(graph, stream)
    comm.send(None, VICTIM)
    driver.synchronize(stream)
    print("released", time.time(), flush=True)
    for touch in (comm.check, lambda: comm.in_stream(stream).Barrier()):
        try:
            touch()
        except MPI.Exception as error:
            print("failed", error.Get_error_class() == MPI.ERR_PROC_FAILED, flush=True)
    open(f"FOLDER/{comm.rank}", "w").close()
    while len(os.listdir("FOLDER")) < 2:  # what the other may still read is not freed before its streams have run through
        time.sleep(0.01)
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_peer_dies_while_streams_wait_for_it(victim: int, tmp_path: Path) -> None:
    program = PEER_DIES.replace("VICTIM", str(victim)).replace("FOLDER", str(tmp_path))
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "3", "--timeout", "60", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    lines = [line.split() for line in done.stdout.splitlines()]
    died, *others = [float(value) for word, value in sorted(lines) if word in ("died", "released")]
    assert len(others) == 2 and all(died < time < died + 2 for time in others), done.stdout + done.stderr
    assert lines.count(["failed", "True"]) == 4, done.stdout + done.stderr
    assert done.returncode == 128 + signal.SIGKILL


PEER_LEAVES = """
import os
import time
from mpi4py import MPI
from ncclx_mpi.testing.driver_double import Double


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


comm = MPI.COMM_WORLD
with Double(comm.rank, patience=60) as driver:
    driver.use(0)
    stream = driver.create_stream()
    comm.prepare(1024)
    comm.in_stream(stream).Barrier()
    driver.synchronize(stream)
    comm.check()
    if comm.rank == 1:
        comm.send(os.getpid(), 0)
        if WAITED_FOR:
            comm.recv(source=0)
    else:
        process = comm.recv(source=1)
        while not WAITED_FOR and is_there(process):
            time.sleep(0.01)
        for moment in ("first", "again"):
            try:
                comm.in_stream(stream).Barrier()
                if moment == "first":
                    comm.send(None, 1)
                driver.synchronize(stream)
                moment += ", waited"
                comm.check()
            except MPI.Exception as error:
                print(moment, error.Get_error_class() == MPI.ERR_PROC_FAILED, error)
"""


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_peer_that_has_left_is_not_waited_for(is_waited_for: bool) -> None:
    """A call that has waited in vain is an error, as is one that would: neither brings anything valid."""
    program = PEER_LEAVES.replace("WAITED_FOR", str(is_waited_for))
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "--timeout", "60", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    moments = ["first, waited" if is_waited_for else "first", "again"]
    said = [f"{moment} True rank 0: rank 1 has left the job" for moment in moments]
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(map(str.startswith, lines, said)), done.stdout + done.stderr
    assert done.returncode == 0


def hold_the_gil(comm: NativeComm) -> None:
    """A rank that lets no Python thread run is watched over nevertheless."""
    with Double(comm.rank) as driver:
        driver.use(0)
        prepared = prepare(comm, 1024, [])
        if comm.rank == 0:
            comm.engine.arena.declare_dead(0)
            os._exit(0)
        assert prepared._watch is not None
        words, holding_the_gil = (ctypes.c_int64 * 4).from_address(prepared._watch.lanes), ctypes.PyDLL(None)
        sys.setswitchinterval(1000)  # nor between two calls
        for _ in range(20):
            holding_the_gil.usleep(100_000)
            if words[3]:
                break
        assert list(words) == [0, 0, 0, POISON]
        with pytest.raises(errors.Exception, match="rank 0 died"):
            prepared.check()


def test_the_watch_needs_no_gil() -> None:
    run_ranks(2, hold_the_gil, timeout=60)
