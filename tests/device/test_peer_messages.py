"""Messages between device arrays without a copy on the host, and through a window where that cannot be, on the driver double."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.device import messages
from ncclx_mpi.gpu_memory import staging
from ncclx_mpi.testing.driver_double import POOL, DeviceArray, Double, InterfaceArray
from ncclx_mpi.testing.driver_double.arrays import using
from tests.device.doubles import ONE_NODE, unaligned, values_of
from tests.device.test_messages import METHODS, exchange

LARGE = 9000
"""Doubles that go by rendezvous."""
LONG = 400_001
"""Doubles that do not fit into a window of a test."""
COUNTED = ("batch", "copy", "record", "export", "open", "create_stream", "register_host")


_WINDOW = 1 << 20


@contextmanager
def small_windows() -> Iterator[None]:
    """While the body runs, what is longer than a megabyte goes through windows of that size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "WINDOW", _WINDOW)
        patch.setattr(messages, "_PIECE", _WINDOW // 4)
        yield


def ring(comm: Any) -> tuple[int, int]:
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def own(comm: Any, length: int = LARGE, number: int = 0) -> Any:
    """Values that no other rank, and no other message of this one, has."""
    return np.arange(length) + 1e7 * comm.rank + 1e8 * number + 0.5


def of(rank: int, length: int = LARGE, number: int = 0) -> Any:
    return np.arange(length) + 1e7 * rank + 1e8 * number + 0.5


def pooled(values: Any) -> DeviceArray:
    """An array that other processes cannot map."""
    return DeviceArray.from_host(values, kind=POOL)


# One copy ---------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, topology=ONE_NODE)
@pytest.mark.parametrize("make", [DeviceArray.from_host, unaligned])
def test_every_way_to_send(comm: Any, make: Any) -> None:
    left, _ = ring(comm)
    comm.Attach_buffer(bytearray(1 << 20))
    with Double(comm.rank) as driver:
        for number, method in enumerate(METHODS):
            received = make(own(comm, LARGE, number) if "replace" in method else np.full(LARGE, -1.0))
            exchange(comm, method, make(own(comm, LARGE, number)), received)
            np.testing.assert_array_equal(received.get(), of(left, LARGE, number), err_msg=method)
        assert bool(driver.calls["open"]) == (comm.size > 1)
    comm.Detach_buffer()


@pytest.mark.ranks(2)
def test_driver_calls(comm: Any) -> None:
    """Arrays that have met before: one stream write at the sender, an event and one copy at the receiver, nothing on the host."""
    with Double(comm.rank) as driver:
        array, other = (InterfaceArray.from_host(np.zeros(LARGE)) for _ in range(2))
        for turn in range(3):
            driver.calls.clear()
            if comm.rank:
                comm.Recv(other, 0)
            else:
                comm.Ssend([array, MPI.DOUBLE], 1)
            made = {name: driver.calls[name] for name in COUNTED}
            wanted = {"record": 1, "copy": 1} if comm.rank else {"batch": 1}
            if turn:
                assert made == {**dict.fromkeys(COUNTED, 0), **wanted}
            comm.Barrier()


@pytest.mark.ranks(2, 3, timeout=120, topology=ONE_NODE)
def test_ranks_on_different_gpus(comm: Any) -> None:
    """Each process sees the GPUs in an order of its own, and uses its ordinal 0."""
    left, right = ring(comm)
    visible = [comm.rank, *[other for other in range(comm.size) if other != comm.rank]][: 1 + comm.rank % 2]
    with Double(comm.rank, devices=comm.size, visible=visible) as driver:
        for number in range(3):
            received = DeviceArray(LARGE)
            comm.Sendrecv(DeviceArray.from_host(own(comm, LARGE, number)), right, 0, received, left, 0)
            np.testing.assert_array_equal(received.get(), of(left, LARGE, number))
        assert driver.calls["open"] == 1


@pytest.mark.ranks(2, 3, timeout=120, topology=ONE_NODE)
def test_gpus_that_cannot_reach_each_other(comm: Any) -> None:
    left, right = ring(comm)
    with Double(comm.rank, devices=comm.size, visible=[comm.rank], has_peer_access=False) as driver:
        for number in range(3):
            received = DeviceArray(LARGE)
            comm.Sendrecv(DeviceArray.from_host(own(comm, LARGE, number)), right, 0, received, left, 0)
            np.testing.assert_array_equal(received.get(), of(left, LARGE, number))
        assert driver.calls["open"] == 1  # it is not tried again


@pytest.mark.ranks(2, timeout=120)
def test_an_address_that_comes_back_is_another_array(comm: Any) -> None:
    length, seen = (1 << 21) // 8, set()
    with Double(comm.rank) as driver:
        for number in range(4):
            array = DeviceArray.from_host(own(comm, length, number))  # an allocation of its own
            seen.add(array.address)
            if comm.rank == 0:
                comm.Send(array, 1)
            else:
                comm.Recv(array, 0)
                np.testing.assert_array_equal(array.get(), of(0, length, number))
                assert driver.calls["open"] == number + 1
            comm.Barrier()
            array.free()
    assert len(seen) < 4


@pytest.mark.ranks(2, 3, topology=ONE_NODE)
def test_kept_mappings_are_used_for_all_arrays_in_an_allocation(comm: Any) -> None:
    left, right = ring(comm)
    with Double(comm.rank) as driver:
        pairs = [(DeviceArray.from_host(own(comm, LARGE, number)), DeviceArray(LARGE)) for number in range(5)]
        requests = [comm.Irecv(received, left, number) for number, (_, received) in enumerate(pairs)]
        requests += [comm.Isend(sent, right, number) for number, (sent, _) in reversed(list(enumerate(pairs)))]
        MPI.Request.Waitall(requests)
        for number, (_, received) in enumerate(pairs):
            np.testing.assert_array_equal(received.get(), of(left, LARGE, number))
        assert driver.calls["open"] == 1


@pytest.mark.ranks(2)
def test_order_of_streams(comm: Any) -> None:
    """What the stream holds when a call is made comes first; what is enqueued after it returned may overwrite what was sent."""
    for seed in range(25):
        with Double(2 * seed + comm.rank) as driver:
            array, stream = DeviceArray(LARGE), driver.create_stream()
            with using(stream):
                array.fill_later(-1.0)
                if comm.rank == 0:
                    array.fill_later(float(seed))
                    comm.Send(array, 1)
                    array.fill_later(-2.0)
                else:
                    before = DeviceArray(LARGE)
                    before.later(np.copyto, "copy", array)
                    comm.Recv(array, 0)
                    assert (values_of(before) == -1).all()
                    with using(0):
                        assert (values_of(array) == seed).all()


# Matching ---------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
def test_probes_tell_the_bytes_of_the_data(comm: Any) -> None:
    left, right = ring(comm)
    with Double(comm.rank):
        arrays = [DeviceArray.from_host(own(comm, LARGE + number, number)) for number in range(3)]
        requests = [comm.Isend(array, right, number) for number, array in enumerate(arrays)]
        for number in (2, 0, 1):
            status = MPI.Status()
            comm.Probe(MPI.ANY_SOURCE if number else left, number, status)
            assert (status.Get_source(), status.Get_tag()) == (left, number)
            assert (status.Get_count(MPI.DOUBLE), status.Get_elements(MPI.INT)) == (LARGE + number, 2 * (LARGE + number))
            received, message = DeviceArray(LARGE + 5), comm.Mprobe(left, number, status)
            assert status.Get_count(MPI.BYTE) == 8 * (LARGE + number)
            message.Recv(received, status)
            assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (left, number, LARGE + number)
            np.testing.assert_array_equal(received.get()[: LARGE + number], of(left, LARGE + number, number))
        MPI.Request.Waitall(requests)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("receiver", ["device", "host", "mixed"])
def test_messages_of_all_kinds_keep_their_order(comm: Any, receiver: str) -> None:
    """Small and large ones, from the host and from devices, sent under one tag and received by wildcards."""
    lengths = [3, LARGE, 100, 2 * LARGE, 0, LARGE, 1, LARGE]
    with Double(comm.rank):
        made = [pooled, DeviceArray.from_host, np.array]
        if comm.rank == 0:
            arrays: list[Any] = [made[k % 3](own(comm, length, k)) if length else np.zeros(0) for k, length in enumerate(lengths)]
            MPI.Request.Waitall([comm.Isend(array, 1, 7) for array in arrays])
            return
        for k, length in enumerate(lengths):
            on_device = receiver == "device" or (receiver == "mixed" and k % 2 == 0)
            array = DeviceArray(2 * LARGE) if on_device else np.zeros(2 * LARGE)
            status = MPI.Status()
            comm.Recv(array, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            assert (status.Get_count(MPI.DOUBLE), status.Get_source(), status.Get_tag()) == (length, 0, 7)
            np.testing.assert_array_equal(values_of(array)[:length], of(0, length, k))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("room", [DeviceArray, np.zeros])
@pytest.mark.parametrize("make", [DeviceArray.from_host, pooled, np.array])
def test_messages_that_are_too_long(comm: Any, make: Any, room: Any) -> None:
    with Double(comm.rank):
        if comm.rank == 0:
            comm.Send(make(own(comm, LARGE + 1)), 1)
            comm.Send(make(own(comm)), 1)
            return
        array = room(LARGE)
        with pytest.raises(MPI.Exception, match=rf"has {8 * LARGE} bytes, the message {8 * LARGE + 8}") as caught:
            comm.Recv(array, 0)
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        comm.Recv(array, 0)
        np.testing.assert_array_equal(values_of(array), of(0))


@pytest.mark.ranks(2)
def test_sends_are_cancelled_until_they_are_matched(comm: Any) -> None:
    with Double(comm.rank):
        array, status = DeviceArray.from_host(own(comm)), MPI.Status()
        if comm.rank == 0:
            requests = [comm.Isend(array, 1, tag) for tag in (1, 2)]
            comm.Barrier()  # the second one is matched now
            for request in requests:
                request.Cancel()
            comm.Barrier()
            for request, is_cancelled in zip(requests, (True, False), strict=True):
                request.Wait(status)
                assert status.Is_cancelled() == is_cancelled
            comm.Send(array, 1, 1)
        else:
            message = comm.Mprobe(0, 2)
            comm.Barrier()
            comm.Barrier()
            message.Recv(array)
            request = comm.Irecv(array, 0, 5)
            request.Cancel()
            request.Wait(status)
            assert status.Is_cancelled()
            assert (values_of(array) == of(0)).all()
            comm.Recv(array, 0, 1)


# Through windows --------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, timeout=120)
@pytest.mark.parametrize("length", [LARGE, (1 << 20) // 8, (1 << 20) // 8 + 1, LONG])
def test_all_pairs_of_kinds(comm: Any, length: int) -> None:
    left, right = ring(comm)
    makers = {"mapped": DeviceArray.from_host, "pooled": pooled, "host": np.array, "unaligned": unaligned}
    with Double(comm.rank), small_windows():
        for number, (one, make) in enumerate(makers.items()):
            for other, make_room in makers.items():
                sent, received = make(own(comm, length, number)), make_room(np.full(length + 1, -1.0))
                comm.Sendrecv(sent, right, number, received, left, number)
                found = values_of(received)
                np.testing.assert_array_equal(found[:-1], of(left, length, number), err_msg=f"{one} to {other}")
                assert found[-1] == -1


@pytest.mark.ranks(2, timeout=120)
def test_pinned_memory_is_bounded(comm: Any) -> None:
    """Of a message of 24 MB, a window at a time is pinned at each end."""
    with Double(comm.rank), small_windows():
        staging._Process.pool = None
        array = pooled(own(comm, 3_000_000))
        for _ in range(2):
            comm.Send(array, 1) if comm.rank == 0 else comm.Recv(array, 0)
        np.testing.assert_array_equal(array.get(), of(0, 3_000_000))
        pool = staging._Process.pool
        assert pool is not None
        assert sum(pool.driver.memory(address).nbytes for address in pool._regions) <= staging._SLAB + 2 * _WINDOW


@pytest.mark.ranks(2, timeout=120)
@pytest.mark.parametrize("receiver", ["host", "device"])
def test_a_sender_that_waits_for_something_else_goes_on(comm: Any, receiver: str) -> None:
    with Double(comm.rank), small_windows():
        if comm.rank == 0:
            request = comm.Isend(pooled(own(comm, LONG)), 1)
            comm.Recv(bytearray(1), 1)
            request.Wait()
        else:
            array = np.zeros(LONG) if receiver == "host" else DeviceArray(LONG)
            comm.Recv(array, 0)
            comm.Send(bytearray(1), 0)
            np.testing.assert_array_equal(values_of(array), of(0, LONG))


@pytest.mark.ranks(2, timeout=120)
@pytest.mark.parametrize("length", [LARGE, LONG])
def test_an_array_that_is_freed_while_it_is_sent(comm: Any, length: int) -> None:
    with Double(comm.rank), small_windows():
        if comm.rank == 0:
            array = pooled(own(comm, length))
            array.get()
            request = comm.Isend(array, 1)
            array.free()
            comm.Barrier()
            with pytest.raises(MPI.Exception, match="freed since it was given") as caught:
                request.Wait()
            assert caught.value.Get_error_class() == MPI.ERR_BUFFER
        else:
            comm.Barrier()
            with pytest.raises(MPI.Exception, match="failed") as caught:
                comm.Recv(np.zeros(length), 0)
            assert caught.value.Get_error_class() == MPI.ERR_OTHER
        comm.Barrier()


@pytest.mark.ranks(2, timeout=120)
def test_an_array_that_is_freed_before_its_message_comes(comm: Any) -> None:
    with Double(comm.rank):
        if comm.rank == 0:
            array = pooled(own(comm))
            request = comm.Irecv(array, 1)
            array.free()
            comm.Barrier()
            with pytest.raises(MPI.Exception, match="freed since it was given") as caught:
                request.Wait()
            assert caught.value.Get_error_class() == MPI.ERR_BUFFER
        else:
            comm.Barrier()
            comm.Send(DeviceArray.from_host(own(comm)), 0)


@pytest.mark.ranks(2)
def test_a_stream_under_capture_is_refused(comm: Any) -> None:
    with Double(comm.rank) as driver:
        array, stream = DeviceArray.from_host(own(comm)), driver.create_stream()
        with using(stream):
            driver.begin_capture(stream, is_global=False)
            for call in (comm.Isend, comm.Irecv):
                with pytest.raises(MPI.Exception, match="captured"):
                    call(array, 1 - comm.rank)
            driver.end_capture(stream)
        received = DeviceArray(LARGE)
        comm.Sendrecv(array, 1 - comm.rank, 0, received, 1 - comm.rank, 0)
        np.testing.assert_array_equal(received.get(), of(1 - comm.rank))


# Ends that come early ---------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
from ncclx_mpi.testing.driver_double import POOL, DeviceArray, Double
from numba_kernels.cuda.driver import WAIT_AT_LEAST, Step
from transports.shm.layout import DEAD

comm, word = MPI.COMM_WORLD, np.zeros(1, np.int64)
with Double(comm.rank, patience=60) as driver:
    driver.use(0)
"""


def run(body: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a program on two ranks, whose waits end after `timeout` seconds; each line of the body is indented already."""
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-c", PROGRAM + body]
    environ = {**os.environ, "NCCLX_MPI_TIMEOUT": str(timeout)}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ)


SENDER_DIES = """
    array = DeviceArray.from_host(np.arange(100000.0))
    if comm.rank == 1:
        request = comm.Isend(array, 0)
        comm.recv(source=0)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.send(None, 1)
    while comm._state.native.engine.arena.state(1) != DEAD:
        time.sleep(0.01)
    begun = time.monotonic()
    try:
        comm.Recv({into}, 1)
    except MPI.Exception as error:
        print(error.Get_error_class() == MPI.ERR_PROC_FAILED, time.monotonic() - begun < 5, flush=True)
"""


@pytest.mark.parametrize("into", ["array", "np.zeros(100000)"])
def test_a_sender_dies_before_its_array_is_read(into: str) -> None:
    done = run(SENDER_DIES.replace("{into}", into))
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert done.returncode == 128 + signal.SIGKILL


RECEIVER_DIES = """
    array = DeviceArray.from_host(np.arange(100000.0))
    if comm.rank == 1:
        comm.Probe()
        os.kill(os.getpid(), signal.SIGKILL)
    request, begun = comm.Isend(array, 1), time.monotonic()
    try:
        request.Wait()
    except MPI.Exception as error:
        print(error.Get_error_class() == MPI.ERR_PROC_FAILED, time.monotonic() - begun < 5, flush=True)
"""


def test_a_receiver_dies() -> None:
    done = run(RECEIVER_DIES)
    assert done.stdout.split() == ["True", "True"], done.stderr


DEADLINE = """
    array = DeviceArray.from_host(np.arange(100000.0))
    if comm.rank == 0:
        driver.register_host(word.ctypes.data, 8)
        driver.batch(0, [Step(WAIT_AT_LEAST, word.ctypes.data, 1)])  # the stream does not come to the message
        request = comm.Isend(array, 1)
        while not comm.iprobe(source=1):
            time.sleep(0.01)
        word[0] = 1
        while not request.Test():
            time.sleep(0.01)
        comm.recv(source=1)
        print(True, flush=True)
    else:
        while not comm.Iprobe(0):
            time.sleep(0.01)
        try:
            comm.Recv(array, 0)
        except MPI.Exception as error:
            print(error.Get_error_class() == MPI.ERR_PENDING, "receive from rank 0" in str(error), flush=True)
        comm.send("given up", 0)
"""


def test_a_deadline_that_passes_gives_up_the_receive_and_frees_the_sender() -> None:
    done = run(DEADLINE, timeout=1.0)
    assert sorted(done.stdout.split()) == ["True"] * 3, done.stderr
    assert done.returncode == 0, done.stderr


FORGOTTEN = """
    for kind in ("device", POOL):
        if comm.rank == 0:
            comm.Isend(DeviceArray.from_host(np.arange(100000.0), kind=kind), 1).Free()
            continue
        array = np.zeros(100000)
        time.sleep(0.3)
        comm.Recv(array, 0)
        print((array == np.arange(100000.0)).all(), flush=True)
    MPI.Finalize()
"""


def test_a_send_that_nobody_waits_for_is_carried_out_before_the_rank_leaves() -> None:
    done = run(FORGOTTEN)
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert done.returncode == 0, done.stderr
