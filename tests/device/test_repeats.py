"""Blocking collectives that are made again with the same arrays: they resolve nothing, and see what has changed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, arguments
from ncclx_mpi.testing.driver_double import DeviceArray, Double
from ncclx_mpi.testing.driver_double.arrays import Array, InterfaceArray, using
from tests.device.doubles import ONE_NODE


class Resolved:
    """Counts the arrays that are resolved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("send", "recv"):
            monkeypatch.setattr(arguments, name, self.counting(getattr(arguments, name)))

    def counting(self, function: Any) -> Any:
        def call(*given: Any) -> Any:
            self.count += 1
            return function(*given)

        return call

    def taken(self) -> int:
        count, self.count = self.count, 0
        return count


@pytest.mark.ranks(2, 3, timeout=300, topology=ONE_NODE)
def test_nothing_is_resolved_again(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = Resolved(monkeypatch)
    with Double(comm.rank) as driver:
        one, same = DeviceArray(1000, np.float32), DeviceArray(1000, np.float32)
        all_ = DeviceArray(1000 * comm.size, np.float32)
        total = sum(range(1, comm.size + 1))
        for turn in range(4):
            one.fill_later(comm.rank + 1 + turn)
            comm.Allreduce(one, same)
            np.testing.assert_array_equal(same.get(), total + turn * comm.size)
            comm.Allreduce(one, same, MPI.MAX)
            np.testing.assert_array_equal(same.get(), comm.size + turn)
            comm.Allgather(one, all_)
            np.testing.assert_array_equal(all_.get(), np.repeat(np.arange(1, comm.size + 1) + turn, 1000))
            comm.Reduce(one, same if comm.rank == 0 else None)
            comm.Bcast(same)
            np.testing.assert_array_equal(same.get(), total + turn * comm.size)
            assert bool(resolved.taken()) == (turn == 0)
            assert driver.calls["batch"]


@pytest.mark.ranks(2, timeout=300)
def test_an_array_at_the_address_of_one_that_was_freed(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same address, shape and type, and another allocation: what peers have mapped shows the old one."""
    resolved = Resolved(monkeypatch)
    with Double(comm.rank):
        seen = set()
        for turn in range(6):
            array = DeviceArray(1 << 18)  # an allocation of its own
            seen.add(array.address)
            array.fill_later(comm.rank + turn)
            for _ in range(2):
                comm.Bcast(array, root=1)
                np.testing.assert_array_equal(array.get(), 1 + turn)
            assert resolved.taken() == 1
            array.free()
        assert len(seen) < 6, "no address came back"


@pytest.mark.ranks(2, timeout=300)
@pytest.mark.parametrize("kind", [InterfaceArray, DeviceArray])
def test_another_stream(comm: Any, kind: type[Array], monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface names it; an array with DLPack lets the legacy stream wait for it, each time."""
    resolved = Resolved(monkeypatch)
    with Double(comm.rank) as driver:
        array = kind(5000)
        for turn in range(6):
            with using(driver.create_stream()):
                array.fill_later(comm.rank + turn)  # late: a call in any other stream would be early
                comm.Allreduce(MPI.IN_PLACE, array)
                np.testing.assert_array_equal(array.get(), 2 * turn + 1)
            assert resolved.taken() == (kind is InterfaceArray or turn == 0)


@pytest.mark.ranks(2, timeout=300)
def test_a_stream_under_capture(comm: Any) -> None:
    with Double(comm.rank) as driver:
        array, stream = DeviceArray.from_host(np.zeros(20, np.int32)), driver.create_stream()
        with using(stream):
            for _ in range(2):
                comm.Allreduce(MPI.IN_PLACE, array)
                driver.begin_capture(stream, is_global=False)
                with pytest.raises(MPI.Exception, match="captured"):
                    comm.Allreduce(MPI.IN_PLACE, array)
                driver.end_capture(stream)
            comm.Allreduce(MPI.IN_PLACE, array)


@pytest.mark.ranks(3, timeout=300)
def test_a_partner_with_another_kind_of_array(comm: Any) -> None:
    with Double(comm.rank):
        device, host = DeviceArray(3000), np.zeros(3000)
        for turn in range(9):
            on_host = comm.rank == turn % 4
            if on_host:
                host[:] = comm.rank + turn
            else:
                device.fill_later(comm.rank + turn)
            comm.Allreduce(MPI.IN_PLACE, host if on_host else device)
            np.testing.assert_array_equal(host if on_host else device.get(), 3 + 3 * turn)


@pytest.mark.ranks(2, timeout=300)
def test_arrays_are_not_kept(comm: Any) -> None:
    with Double(comm.rank):
        array = DeviceArray(100)
        for _ in range(3):
            comm.Allreduce(MPI.IN_PLACE, array)
        gone = weakref.ref(array)
        del array
        gc.collect()
        assert gone() is None


@pytest.mark.ranks(2, timeout=300)
def test_a_call_that_differs_from_the_partners(comm: Any) -> None:
    """What a rank repeats is checked against what the others call."""
    with Double(comm.rank):
        other = comm.Dup()
        array, shorter = DeviceArray(100, np.int32), DeviceArray(50, np.int32)
        for _ in range(2):
            other.Bcast(array)
        with pytest.raises(MPI.Exception) as caught:
            other.Bcast(array if comm.rank == 0 else shorter)
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        other.Free()
