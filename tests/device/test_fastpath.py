"""Blocking collectives on device arrays by kernels on mapped memory, on the driver double."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi import MPI, arguments, errors
from ncclx_mpi.device import collectives as on_devices
from ncclx_mpi.device import parts
from ncclx_mpi.device.station import why_not
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.testing.driver_double import POOL, DeviceArray, Double
from ncclx_mpi.testing.driver_double.arrays import using
from tests.collectives.forked import Signals, run_ranks
from tests.device.cases import doing
from tests.device.doubles import ONE_NODE, check_calls_that_differ, check_collectives, unaligned


@pytest.mark.ranks(1, 2, 3, 4, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("seed", range(3))
def test_collectives(comm: Any, seed: int) -> None:
    with Double(10 * seed + comm.rank) as driver:
        check_collectives(comm, doing(comm, "blocking"), DeviceArray.from_host, (0, 1, 1001) if seed else (5, 40_001))
        assert driver.calls["batch"]
        assert why_not(comm._state.native) == ""


@pytest.mark.ranks(3, timeout=300, topology=ONE_NODE)
def test_arrays_at_odd_addresses(comm: Any) -> None:
    with Double(comm.rank) as driver:
        check_collectives(comm, doing(comm, "blocking"), unaligned, (7, 3000))
        assert driver.calls["batch"]


@pytest.mark.ranks(2, 3, 4, timeout=300)
@pytest.mark.parametrize("seed", range(3))
def test_kinds_that_change_from_call_to_call(comm: Any, seed: int) -> None:
    """Each array of each rank is NumPy's or a device's, as the dice say; also at roots and leaves, which run ahead on the host."""
    dice = random.Random(100 * seed + comm.rank)

    def make(values: npt.NDArray[Any]) -> Any:
        return np.array(values) if dice.random() < 0.2 else DeviceArray.from_host(values)

    with Double(seed + comm.rank):
        check_collectives(comm, doing(comm, "blocking"), make, (0, 3, 200, 5000))


# Each rank calls it with (comm, arrays of its own); it names what goes to one executor in one launch
CALLS: dict[str, Callable[[Any, Any, Any, Any, Any], None]] = {
    "Allreduce": lambda comm, one, same, all_, every: comm.Allreduce(one, same),
    "Allreduce in place": lambda comm, one, same, all_, every: comm.Allreduce(MPI.IN_PLACE, same),
    "Reduce": lambda comm, one, same, all_, every: comm.Reduce(one, same, root=1),
    "Reduce_scatter_block": lambda comm, one, same, all_, every: comm.Reduce_scatter_block(all_, same),
    "Reduce_scatter": lambda comm, one, same, all_, every: comm.Reduce_scatter(all_, same, [len(same)] * comm.size),
    "Bcast": lambda comm, one, same, all_, every: comm.Bcast(one, root=1),
    "Allgather": lambda comm, one, same, all_, every: comm.Allgather(one, all_),
    "Allgather in place": lambda comm, one, same, all_, every: comm.Allgather(MPI.IN_PLACE, all_),
    "Allgatherv": lambda comm, one, same, all_, every: comm.Allgatherv(one, [all_, [len(one)] * comm.size]),
    "Alltoall": lambda comm, one, same, all_, every: comm.Alltoall(all_, every),
    "Alltoallv": lambda comm, one, same, all_, every: comm.Alltoallv(
        [all_, [len(one)] * comm.size], [every, [len(one)] * comm.size]
    ),
    "Gather": lambda comm, one, same, all_, every: comm.Gather(one, all_, root=1),
    "Gatherv": lambda comm, one, same, all_, every: comm.Gatherv(one, [all_, [len(one)] * comm.size], root=1),
    "Scatter": lambda comm, one, same, all_, every: comm.Scatter(all_, one, root=1),
    "Scatterv": lambda comm, one, same, all_, every: comm.Scatterv([all_, [len(one)] * comm.size], one, root=1),
}


@pytest.mark.ranks(2, 4, timeout=300, topology=ONE_NODE)
def test_driver_calls(comm: Any) -> None:
    """Arrays that have met before cost a rank one stream operation, an executor two and a launch; nothing goes through the host."""
    with Double(comm.rank) as driver:
        one, same = DeviceArray(64, np.float32), DeviceArray(64, np.float32)
        all_, every = (DeviceArray(64 * comm.size, np.float32) for _ in range(2))
        for array in (one, same, all_, every):
            array.fill_later(1)
        for name, call in CALLS.items():
            for turn in range(2):
                driver.calls.clear()
                call(comm, one, same, all_, every)
                made = {
                    key: driver.calls[key] for key in ("batch", "launch", "open", "export", "register_host", "synchronize", "copy")
                }
                wanted = {"batch": 2, "launch": 1} if comm.rank == 0 else {"batch": 1, "launch": 0}
                if turn:
                    assert made == {**dict.fromkeys(made, 0), **wanted}, name


@pytest.mark.ranks(2, 4, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("sharing", [1, 2])
def test_ranks_on_different_gpus(comm: Any, sharing: int) -> None:
    """Each process sees the GPUs in an order of its own, and uses its ordinal 0."""
    devices = -(-comm.size // sharing)
    mine = comm.rank // sharing
    visible = [mine, *[other for other in range(devices) if other != mine]][: 1 + comm.rank % 2]
    with Double(comm.rank, devices=devices, visible=visible) as driver:
        check_collectives(comm, doing(comm, "blocking"), DeviceArray.from_host, (1, 1001, 20_000))
        assert bool(driver.calls["open"]) == (comm.rank % sharing == 0)
        assert why_not(comm._state.native) == ""


@pytest.mark.ranks(2, timeout=300)
def test_arrays_of_one_rank_on_two_gpus_are_staged(comm: Any) -> None:
    with Double(comm.rank, devices=2) as driver:
        driver.use(0)
        send = DeviceArray.from_host(np.arange(5.0))
        driver.use(1)
        recv = DeviceArray(5)
        comm.Allreduce(send, recv)
        assert not driver.calls["batch"]
        np.testing.assert_array_equal(recv.get(), 2 * np.arange(5.0))


@pytest.mark.ranks(3, timeout=300, topology=ONE_NODE)
def test_gpus_that_cannot_reach_each_other(comm: Any) -> None:
    """Executors find out when they map memory: all go the host's way, then and from then on."""
    with Double(comm.rank, devices=2, visible=[comm.rank % 2], has_peer_access=False) as driver:
        for turn in range(3):
            send, recv = DeviceArray.from_host(np.arange(100) + comm.rank), DeviceArray(100, np.int64)
            driver.calls.clear()
            comm.Allreduce(send, recv)
            assert not driver.calls["launch"]
            np.testing.assert_array_equal(recv.get(), 3 * np.arange(100) + 3)
            assert turn == 0 or not driver.calls["open"]
        assert "cannot be mapped" in "".join(comm.allgather(why_not(comm._state.native)))


@pytest.mark.ranks(2, 3, timeout=300)
@pytest.mark.parametrize("odd", [0, 1])
def test_memory_that_cannot_be_exported(comm: Any, odd: int) -> None:
    def make(values: npt.NDArray[Any]) -> DeviceArray:
        return DeviceArray.from_host(values, kind=POOL if comm.rank == odd and values.size else "device")

    with Double(comm.rank) as driver:
        check_collectives(comm, doing(comm, "blocking"), make, (1, 1001))
        assert not driver.calls["open"]


@pytest.mark.ranks(2, timeout=300)
def test_operations_without_a_kernel_are_staged(comm: Any) -> None:
    def last(low: Any, high: Any, datatype: Any) -> None:
        high[:] = bytes(high)

    with Double(comm.rank) as driver:
        own = MPI.Op.Create(last)
        for op, datatype in ((own, MPI.DOUBLE), (MPI.MAXLOC, MPI.DOUBLE_INT)):
            send, recv = (DeviceArray.from_host(np.zeros(64, np.uint8)) for _ in range(2))
            comm.Allreduce([send, 4, datatype], [recv, 4, datatype], op)
        own.Free()
        assert not driver.calls["batch"]


@pytest.mark.ranks(2, timeout=300)
def test_pending_work_of_the_array_s_stream_comes_first(comm: Any) -> None:
    with Double(comm.rank) as driver:
        send, recv = DeviceArray(1000, np.int64), DeviceArray(1000, np.int64)
        for turn in range(20):
            send.fill_later(turn + comm.rank)
            recv.fill_later(-1)
            comm.Allreduce(send, recv)
            recv.later(lambda values: values.__iadd__(1))
            np.testing.assert_array_equal(recv.get(), np.full(1000, 2 * turn + 2))
        assert driver.calls["batch"] == 20 * (2 - comm.rank)


@pytest.mark.ranks(2, 3, timeout=300, topology=ONE_NODE)
def test_arrays_that_are_freed_and_allocated_again(comm: Any) -> None:
    """Mappings of freed memory are closed, and memory at the same address is mapped anew."""
    with Double(comm.rank) as driver:
        for turn in range(6):
            send = DeviceArray.from_host(np.arange(1 << 19) + turn * comm.rank)  # 4 MiB: an allocation of its own
            recv = DeviceArray(1 << 19, np.int64)
            comm.Allreduce(send, recv)
            wanted = comm.size * np.arange(1 << 19) + turn * sum(range(comm.size))
            np.testing.assert_array_equal(recv.get(), wanted)
            comm.Barrier()
            (send if turn % 2 else recv).free()
        if comm.rank == 0:
            assert driver.calls["close"] > 0


@pytest.mark.ranks(2, 3, timeout=300, topology=ONE_NODE)
def test_counts_that_differ(comm: Any) -> None:
    with Double(comm.rank):
        other = comm.Dup()
        send, recv = DeviceArray.from_host(np.zeros(20, np.int32)), DeviceArray(20, np.int32)
        sent = [1 + (comm.rank == 1)] * comm.size
        sent[comm.rank] = 1
        with pytest.raises(MPI.Exception, match="rank 1 sends 8 bytes to rank 0, which expects 4") as caught:
            other.Alltoallv([send, sent], [recv, [1] * comm.size])
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        with pytest.raises(MPI.Exception, match="interrupted or failed"):
            other.Barrier()
        other.Free()


@pytest.mark.ranks(2, timeout=300)
def test_calls_that_differ(comm: Any) -> None:
    with Double(comm.rank):
        array = DeviceArray.from_host(np.zeros(20, np.int32))
        more = [(lambda comm: comm.Allreduce(MPI.IN_PLACE, array, MPI.MAX if comm.rank else MPI.MIN), MPI.ERR_OP)]
        check_calls_that_differ(comm, array, more)


@pytest.mark.ranks(2, timeout=300)
def test_a_stream_under_capture_is_refused(comm: Any) -> None:
    with Double(comm.rank) as driver:
        array = DeviceArray.from_host(np.zeros(20, np.int32))
        stream = driver.create_stream()
        with using(stream):
            driver.begin_capture(stream, is_global=False)
            with pytest.raises(MPI.Exception, match="captured"):
                comm.Allreduce(MPI.IN_PLACE, array)
            driver.end_capture(stream)
        comm.Allreduce(MPI.IN_PLACE, array)
        assert driver.calls["batch"]


@pytest.mark.ranks(2, timeout=300)
def test_threads_with_communicators_of_their_own(comm: Any) -> None:
    with Double(comm.rank) as driver:
        comms = [comm.Dup() for _ in range(3)]
        failures: list[BaseException] = []

        def work(own: Any, seed: int) -> None:
            try:
                driver.use(0)
                with using(driver.create_stream()):
                    for turn in range(15):
                        array = DeviceArray.from_host(np.full(50 + seed, turn + own.rank))
                        own.Allreduce(MPI.IN_PLACE, array)
                        np.testing.assert_array_equal(array.get(), np.full(50 + seed, 2 * turn + 1))
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(own, seed)) for seed, own in enumerate(comms)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        for own in comms:
            own.Free()


def carry_out(comm: NativeComm, sent: Any, received: Any) -> bool:
    """Whether the sum of all ranks was made on the devices."""

    def bring() -> parts.Parts | None:
        return parts.bring(comm.rank, comm.size, "allreduce", sent, received, 0, ())

    return on_devices.carry_out(comm, "allreduce", sent, received, 0, "sum", bring) == parts.DONE


class Mortal(Double):
    """Ends its process, as a crash would, when it is to do something."""

    def die_at(self, comm: NativeComm, name: str) -> None:
        def die(*arguments: Any) -> None:
            comm.engine.arena.declare_dead(comm.rank)
            os._exit(0)

        setattr(self, name, die)


def survive(comm: NativeComm, victim: int, moment: str) -> None:
    """The ranks that are left raise, and none of their streams waits for anything."""
    with Mortal(comm.rank) as driver:
        send, recv = DeviceArray.from_host(np.arange(100_000.0)), DeviceArray(100_000)
        for turn in range(3):
            operands = arguments.send(send), arguments.recv(recv)
            if turn == 2:
                if comm.rank == victim:
                    driver.die_at(comm, moment)
                with pytest.raises(errors.Exception, match=f"rank {victim} died") as caught:
                    carry_out(comm, *operands)
                assert caught.value.Get_error_class() == errors.ERR_PROC_FAILED
                break
            assert carry_out(comm, *operands)
            np.testing.assert_array_equal(recv.get(), comm.size * np.arange(100_000.0))


@pytest.mark.parametrize(
    ("victim", "moment"), [(2, "is_capturing"), (2, "batch"), (0, "is_capturing"), (0, "batch"), (0, "launch")]
)
def test_a_rank_that_dies(victim: int, moment: str) -> None:
    run_ranks(3, survive, victim, moment, timeout=20)


def interrupted(comm: NativeComm, raised: Signals) -> None:
    """Ctrl-C ends the wait for a rank that does not come, and tells the others."""
    with Double(comm.rank):
        operand = arguments.recv(DeviceArray.from_host(np.arange(10.0)))
        assert carry_out(comm, None, operand)
        if comm.rank:
            raised.wait()
            with pytest.raises(errors.Exception, match="interrupted or failed"):
                carry_out(comm, None, operand)
            return
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            carry_out(comm, None, operand)
        raised.give()


def test_an_interrupt_ends_the_wait() -> None:
    run_ranks(2, interrupted, Signals())
