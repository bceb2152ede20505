"""Alltoallv_dynamic carried out on the devices, on the driver double: no count passes the host, nothing is written out of bounds."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, arguments, errors
from ncclx_mpi.device.station import why_not
from ncclx_mpi.extensions.alltoallv_dynamic.device import execution
from ncclx_mpi.extensions.alltoallv_dynamic.device.reports import Reports, _let_go, _retired
from ncclx_mpi.extensions.alltoallv_dynamic.operands import NO_INTEGERS, Choice, Integers, Operands, Rooms
from ncclx_mpi.gpu_memory import staging
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.testing.driver_double import POOL, DeviceArray, Double, InterfaceArray
from ncclx_mpi.testing.driver_double.arrays import using
from numba_kernels.alltoallv.layout import DENSE_TARGET
from tests.collectives.forked import run_ranks
from tests.device.doubles import ONE_NODE, driver_of, late, values_of
from tests.device.test_alltoallv_dynamic import dispatch_and_combine
from tests.device.test_fastpath import Mortal
from tests.extensions.tables import HOLE, draw
from tests.extensions.test_alltoallv_dynamic import BAD, blocking, check

QUESTIONS = ("is_capturing", "examine", "current_device", "memory")
"""Driver functions that only answer, and enqueue nothing."""


@pytest.mark.ranks(1, 2, 3, 4, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", ["one", "each"])
def test_random_tables_in_random_orders(comm: Any, sharing: str) -> None:
    """125 tables for each number of ranks and layout, 1,000 in all; metadata and data arrive late, in streams of other paces each time."""
    with driver_of(comm, sharing) as driver:
        driver.use(0)
        streams = [0, driver.create_stream(), driver.create_stream(is_blocking=True)]
        for seed in range(125):
            driver.reseed(64 * seed + comm.rank)
            choices = np.random.default_rng((seed, comm.rank))
            table = draw(10_000 * comm.size + 2 * seed + (sharing == "each"), comm.size)
            try:
                with using(streams[choices.integers(0, 3)]):
                    check(comm, table, blocking, late, values_of)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
        assert driver.calls["batch"] >= 125
        assert why_not(comm._state.native) == ""


@pytest.mark.ranks(4, timeout=300, topology=ONE_NODE)
def test_two_ranks_on_each_gpu(comm: Any) -> None:
    with driver_of(comm, "two") as driver:
        driver.use(0)
        for seed in range(40):
            check(comm, draw(seed, comm.size), blocking, late, values_of)
        assert bool(driver.calls["launch"]) == (comm.rank % 2 == 0)


@pytest.mark.ranks(1, 2, 3, topology=ONE_NODE)
def test_dispatch_then_combine(comm: Any) -> None:
    wanted = dispatch_and_combine(comm, np.array, "blocking")
    with Double(comm.rank) as driver:
        found = dispatch_and_combine(comm, late, "blocking")
        assert driver.calls["batch"] == (12 if comm.rank == 0 else 6)
        for one, other in zip(map(values_of, found), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.ranks(2, 4, timeout=120, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", ["one", "two", "each"])
def test_driver_calls(comm: Any, sharing: str) -> None:
    """Arrays that have met before, and name one stream: one call of the driver on each rank, three on an executor, none of them a copy."""
    size = comm.size
    with driver_of(comm, sharing) as driver:
        driver.use(0)
        with using(driver.create_stream()):
            send, recv, back = (InterfaceArray(shape) for shape in (8 * size, (size, 8), 8 * size))
            splits, every = InterfaceArray.from_host(np.full(size, 8)), InterfaceArray((size, size), np.int64)
            indices, blocks = InterfaceArray.from_host(np.arange(size)), InterfaceArray.from_host(np.ones(size, np.int8))
            wide = InterfaceArray((size, 8 * size))
            for array in (send, recv, back, wide):
                array.fill_later(1)
            calls: list[Callable[[], None]] = [
                lambda: comm.Alltoallv_dynamic([send, [8] * size], recv, splits, allsplits=every),
                lambda: comm.Alltoallv_dynamic(send, recv, splits, allsplits=every),
                lambda: comm.Alltoallv_dynamic_combine(recv, back, every),
                lambda: comm.Alltoallv_dynamic(send, wide, splits, indices, blocks, every),
            ]
            is_executor = comm.rank % {"one": size, "two": 2, "each": 1}[sharing] == 0
            wanted = {"batch": 2, "launch": 1} if is_executor else {"batch": 1}
            for call in calls:
                call()
                driver.calls.clear()
                call()
                assert {name: count for name, count in driver.calls.items() if name not in QUESTIONS} == wanted


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", BAD)
def test_metadata_out_of_range(comm: Any, name: str) -> None:
    """Rank 0 has garbage for rank 1 on its GPU: both get the error that says so, what is fine moves, and the next call works."""
    wrong, text = BAD[name]
    rank = comm.rank
    good: dict[str, Any] = {"splits": [2, 2, 2, 2], "indices": [0, 3], "blocklengths": [1, 1]}
    with Double(rank) as driver:
        given = {key: late(np.array(value)) for key, value in (good | (wrong if rank == 0 else {})).items()}
        send, recv = late(np.arange(8) + 10 * rank), late(np.full((2, 8), -1))
        every = late(np.zeros((2, 4), np.int64))
        with pytest.raises(MPI.Exception, match="from rank 0 to rank") as caught:
            comm.Alltoallv_dynamic(send, recv, **given, allsplits=every)
        assert caught.value.error_class == MPI.ERR_TRUNCATE
        assert text in str(caught.value)
        assert driver.calls["batch"]
        only_at, found = (6 if rank == 1 else 0), recv.get()
        assert (found[1] == [10 + at if only_at <= at < only_at + 2 else -1 for at in range(8)]).all()
        assert (found[0][2:] == -1).all()
        assert (every.get()[0] == np.array(wrong.get("splits", good["splits"])).astype(np.int64)).all()
        comm.Alltoallv_dynamic(send, recv, **{key: late(np.array(value)) for key, value in good.items()})


@pytest.mark.ranks(2)
def test_faults_outlive_the_communicator_of_the_executor(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has freed the communicator of a call in which rank 1 has not looked for faults yet."""
    late_reports: list[Reports] = []

    def later(reports: Reports) -> None:
        late_reports.append(reports)

    if comm.rank == 1:
        monkeypatch.setattr(Reports, "leave", later)
    with Double(comm.rank):
        other = comm.Dup()
        other.Alltoallv_dynamic(late(np.arange(4.0)), late(np.zeros((2, 2))), late(np.full(2, 2)))
        other.Free()
        del other
        gc.collect()
        _let_go()
        assert bool(_retired) == (comm.rank == 0)
        comm.Barrier()
        monkeypatch.undo()
        for reports in late_reports:
            reports.leave()
        comm.Barrier()
        _let_go()
        assert not _retired


@pytest.mark.ranks(3, topology=ONE_NODE)
def test_a_pair_without_room(comm: Any) -> None:
    """Both of its ranks say which, how much and how little; the third one notices nothing."""
    with Double(comm.rank) as driver:
        send, splits = late(np.arange(12.0) + 100 * comm.rank), late(np.full(3, 4))
        recv = late(np.full(12, float(HOLE)))
        spec = [recv, ([3 if comm.rank == 1 else 4, 4, 4], [0, 4, 8])]
        for _ in range(2):
            if comm.rank < 2:
                with pytest.raises(
                    MPI.Exception, match="needs room for 4 elements, but rank 1 has a capacity of 3 for rank 0"
                ) as caught:
                    comm.Alltoallv_dynamic(send, spec, splits)
                assert caught.value.error_class == MPI.ERR_TRUNCATE
            else:
                comm.Alltoallv_dynamic(send, spec, splits)
        wanted = np.concatenate([np.arange(4.0) + 100 * source + 4 * comm.rank for source in range(3)])
        if comm.rank == 1:
            wanted[:4] = HOLE
        np.testing.assert_array_equal(recv.get(), wanted)
        assert driver.calls["batch"]


@pytest.mark.ranks(3, topology=ONE_NODE)
@pytest.mark.parametrize("odd", ["metadata", "one rank", "unshared", "no arrays"])
def test_ranks_that_cannot_take_part(comm: Any, odd: str) -> None:
    """One rank's arrays are partly or wholly the host's, or cannot be shared: all go the host's way, to the same end."""
    size, rank = comm.size, comm.rank
    with Double(rank) as driver:
        for turn in range(3):
            is_odd = rank == 1 and turn == 1
            kinds = {
                "metadata": [np.array, np.array, late], "one rank": [np.array] * 3, "no arrays": [np.array] * 3,
                "unshared": [partial(DeviceArray.from_host, kind=POOL), late, late],
            }[odd]  # fmt: skip
            make_send, make_splits, make_recv = kinds if is_odd else [late] * 3
            length = 0 if is_odd and odd == "no arrays" else 2
            send, splits = make_send(np.arange(2.0 * size) + 100 * rank), make_splits(np.full(size, length))
            recv = make_recv(np.full((size, 2), -1.0))
            driver.calls.clear()
            comm.Alltoallv_dynamic(send, recv, splits)
            wanted = np.arange(2.0) + 2 * rank + 100 * np.arange(size)[:, None]
            if turn == 1 and odd == "no arrays":
                wanted[1] = -1
            np.testing.assert_array_equal(values_of(recv), wanted)
            assert bool(driver.calls["batch"]) == (turn != 1)


@pytest.mark.ranks(2)
def test_a_rank_that_has_nothing_to_send(comm: Any) -> None:
    """Empty arrays are nobody's memory; the call stays on the devices."""
    with Double(comm.rank) as driver:
        send = late(np.arange(2.0 * comm.rank))
        splits, recv = late(np.full(2, comm.rank)), late(np.full((2, 2), -1.0))
        comm.Alltoallv_dynamic(send, recv, splits)
        np.testing.assert_array_equal(recv.get(), [[-1, -1], [comm.rank, -1]])
        assert driver.calls["batch"]


@pytest.mark.ranks(2)
def test_ranks_that_disagree(comm: Any) -> None:
    """About the number of segments, or about what is called."""
    with Double(comm.rank):
        array, area = late(np.ones(8)), late(np.ones((2, 8)))
        calls: list[Callable[[Any], None]] = [
            lambda other: other.Alltoallv_dynamic(array, area, late(np.ones(2 + 2 * comm.rank, int))),
            lambda other: (
                other.Alltoallv_dynamic(array, area, late(np.ones(2, int)))
                if comm.rank
                else other.Alltoall(array, late(np.ones(8)))
            ),
        ]
        for call in calls:
            other = comm.Dup()
            with pytest.raises(MPI.Exception) as caught:
                call(other)
            assert caught.value.error_class in (MPI.ERR_TRUNCATE, MPI.ERR_OTHER)
            with pytest.raises(MPI.Exception):
                other.Barrier()
            other.Free()


@pytest.mark.ranks(2)
def test_arrays_that_are_freed_and_allocated_again(comm: Any) -> None:
    size = comm.size
    with Double(comm.rank):
        for turn in range(4):
            send = DeviceArray.from_host(np.arange(1 << 19) + turn * comm.rank)  # 4 MiB: an allocation of its own
            recv, splits = DeviceArray(1 << 19, np.int64), DeviceArray.from_host(np.full(size, 1 << 18))
            comm.Alltoallv_dynamic(send, recv, splits)
            half = np.arange(1 << 18) + comm.rank * (1 << 18)
            np.testing.assert_array_equal(recv.get(), np.concatenate([half, half + turn]))
            comm.Barrier()
            (send if turn % 2 else recv).free()


def operands(size: int, driver: Double) -> tuple[Operands, list[DeviceArray]]:
    """Two elements to each rank."""
    arrays = [DeviceArray.from_host(values) for values in (np.arange(2.0 * size), np.zeros((size, 2)), np.full(size, 2))]
    send, recv, splits = map(arguments.recv, arrays)
    rooms = Rooms([2 * size] * size, [send.address] * size, 8, None, send.device)
    areas = Rooms([2] * size, [recv.address + 16 * source for source in range(size)], 8, None, recv.device)
    lengths = Integers(splits.address, 8, size, None, splits.device)
    return Operands(rooms, areas, lengths, 0, size, Choice(NO_INTEGERS, NO_INTEGERS, 0, 1, 1), DENSE_TARGET), arrays


def survive(comm: NativeComm, victim: int, moment: str) -> None:
    heap = comm.engine.arena.open_heap(comm.rank)
    staging._allocate = lambda nbytes: (heap.allocate(nbytes), None)  # there is no runtime in a forked rank
    with Mortal(comm.rank) as driver:
        passed, _arrays = operands(comm.size, driver)
        for _ in range(2):
            assert execution.carry_out(comm, passed)
        if comm.rank == victim:
            driver.die_at(comm, moment)
        with pytest.raises(errors.Exception, match=f"rank {victim} died") as caught:
            execution.carry_out(comm, passed)
        assert caught.value.Get_error_class() == errors.ERR_PROC_FAILED


@pytest.mark.parametrize(("victim", "moment"), [(2, "is_capturing"), (2, "batch"), (0, "batch"), (0, "launch")])
def test_a_rank_that_dies(victim: int, moment: str) -> None:
    run_ranks(3, survive, victim, moment, timeout=20)
