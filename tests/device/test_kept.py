"""Device arrays of messages that come again: what one was resolved to is used until something of it has changed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.arguments import kept, spec
from ncclx_mpi.gpu_memory import streams
from ncclx_mpi.testing.driver_double import Double
from ncclx_mpi.testing.driver_double.arrays import InterfaceArray, using


class NoArray(InterfaceArray):
    """Something of an array library that has no memory, as its streams and pools."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise AttributeError("no array")


def openings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Sources that were opened; the arrays of these tests are of a library that quickly tells the facts."""
    found: list[Any] = []
    opens = spec._open

    def noted(source: Any, *given: Any, **named: Any) -> Any:
        found.append(source)
        return opens(source, *given, **named)

    monkeypatch.setattr(spec, "_open", noted)
    monkeypatch.setattr(kept, "are_quickly_told", lambda kind: issubclass(kind, InterfaceArray))
    monkeypatch.setitem(streams._READERS, InterfaceArray, streams._interface_facts)
    monkeypatch.setattr(kept, "_resolved", {})
    return found


def taken(found: list[Any]) -> int:
    """How many sources were opened since the last call."""
    count = len(found)
    found.clear()
    return count


def exchange(comm: Any, sent: Any, received: Any) -> None:
    peer = comm.rank ^ 1
    comm.Sendrecv(sent, peer, 0, received, peer, 0)


@pytest.mark.ranks(2, timeout=30)
@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_nothing_is_opened_again(comm: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = openings(monkeypatch)
    with Double(comm.rank):
        one, two = InterfaceArray(count, np.float32), InterfaceArray(count, np.float32)
        for turn in range(4):
            one.fill_later(comm.rank + 10 * turn)
            exchange(comm, one, two)
            np.testing.assert_array_equal(two.get(), (comm.rank ^ 1) + 10 * turn)
            assert taken(opened) == (2 if turn == 0 else 0)
            exchange(comm, [two, MPI.FLOAT], (one, MPI.FLOAT))
            np.testing.assert_array_equal(one.get(), comm.rank + 10 * turn)
            assert taken(opened) == (2 if turn == 0 else 0)


@pytest.mark.ranks(2, timeout=30)
def test_an_array_at_the_address_of_one_that_was_freed(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same address, shape and type, and another allocation: peers have mapped the old one."""
    opened = openings(monkeypatch)
    with Double(comm.rank):
        seen = set()
        for turn in range(6):
            one, two = InterfaceArray(1 << 18), InterfaceArray(1 << 18)  # allocations of their own
            seen.add(one.address)
            for again in range(2):
                one.fill_later(comm.rank + turn)
                exchange(comm, one, two)
                np.testing.assert_array_equal(two.get(), (comm.rank ^ 1) + turn)
                assert taken(opened) == (0 if again else 2)
            one.free()
            two.free()
        assert len(seen) < 6, "no address came back"


@pytest.mark.ranks(2, timeout=30)
def test_another_stream(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed in the stream of now is sent, and what is used in it next sees what has come."""
    opened = openings(monkeypatch)
    with Double(comm.rank) as driver:
        one, two = InterfaceArray(5000), InterfaceArray(5000)
        for turn in range(6):
            with using(driver.create_stream()):
                one.fill_later(comm.rank + turn)  # late: a message in any other stream would be early
                exchange(comm, one, two)
                np.testing.assert_array_equal(two.get(), (comm.rank ^ 1) + turn)
            assert taken(opened) == 2


@pytest.mark.ranks(2, timeout=30)
def test_a_stream_under_capture(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    openings(monkeypatch)
    with Double(comm.rank) as driver:
        one, two, stream = InterfaceArray(20), InterfaceArray(20), driver.create_stream()
        with using(stream):
            for turn in range(2):
                one.fill_later(comm.rank + turn)
                exchange(comm, one, two)
                np.testing.assert_array_equal(two.get(), (comm.rank ^ 1) + turn)
                driver.begin_capture(stream, is_global=False)
                with pytest.raises(MPI.Exception, match="captured"):
                    exchange(comm, one, two)
                driver.end_capture(stream)
                comm.barrier()  # a receive that is to be withdrawn would take the next message
            exchange(comm, one, two)


@pytest.mark.ranks(1)
def test_another_type_shape_or_part_of_the_same_memory(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = openings(monkeypatch)
    with Double(comm.rank):
        array = InterfaceArray(1024, np.float32)
        for _ in range(2):
            assert spec.send(array).nbytes == 4096
            assert spec.send(array[:100]).nbytes == 400
            assert spec.send(array[:100], 2).count == 50
            assert spec.send([array, MPI.FLOAT]).count == 1024
            assert spec.send([array, MPI.BYTE]).count == 4096
            assert spec.recv(array[512:]).origin == array.address + 2048
        assert taken(opened) == 6


@pytest.mark.ranks(1)
def test_a_datatype_that_was_freed(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    openings(monkeypatch)
    with Double(comm.rank):
        array, datatype = InterfaceArray(1024, np.float32), MPI.FLOAT.Dup().Commit()
        for _ in range(2):
            assert spec.send([array, datatype]).count == 1024
        datatype.Free()
        with pytest.raises(ValueError, match="datatype is null"):
            spec.send([array, datatype])


@pytest.mark.ranks(1)
def test_what_is_of_the_library_and_no_array(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    openings(monkeypatch)
    with Double(comm.rank):
        spec.send(InterfaceArray(10))
        none = NoArray(10)
        for _ in range(2):
            with pytest.raises((TypeError, BufferError)):
                spec.send(none)


@pytest.mark.ranks(2, timeout=30)
def test_arrays_are_not_kept_alive(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = openings(monkeypatch)
    with Double(comm.rank):
        array = InterfaceArray(100)
        for _ in range(3):
            exchange(comm, array, InterfaceArray(100))
        gone = weakref.ref(array)
        del array
        opened.clear()
        gc.collect()
        assert gone() is None
        assert kept._resolved


@pytest.mark.ranks(1)
def test_what_is_kept_is_bounded(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    openings(monkeypatch)
    monkeypatch.setattr(kept, "_KEPT", 8)
    with Double(comm.rank):
        array = InterfaceArray(1024, np.uint8)
        for k in range(50):
            assert spec.send(array[k:]).nbytes == 1024 - k
            assert 0 < len(kept._resolved) <= 8
