"""MPI.buffer, and the singletons in the place of buffers."""

from __future__ import annotations

import array
import operator
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import errors
from ncclx_mpi.api.allocation import Alloc_mem, Free_mem
from ncclx_mpi.api.datatype import Get_address
from ncclx_mpi.api.memory import buffer, memory
from ncclx_mpi.buffers.sentinels import BOTTOM, BUFFER_AUTOMATIC, IN_PLACE


def test_views_an_object() -> None:
    data = bytearray(b"abcdef")
    view = buffer(data)
    assert (view.obj, view.nbytes, len(view), view.format, view.itemsize, view.readonly) == (data, 6, 6, "B", 1, False)
    view[0] = ord("x")
    view[1:3] = b"yz"
    view[4:] = 0
    assert data == b"xyzd\0\0"
    assert (view[0], view[-3], view[1:3].tobytes()) == (ord("x"), ord("d"), b"yz")
    assert list(view) == list(data)
    assert np.asarray(view).tolist() == list(data)
    assert memory is buffer


def test_read_only() -> None:
    for view in (buffer(b"abc"), buffer(bytearray(b"abc")).toreadonly(), buffer.frombuffer(bytearray(3), readonly=True)):
        assert view.readonly and memoryview(view).readonly
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            np.asarray(view)[0] = 1
    with pytest.raises(BufferError):
        buffer.frombuffer(b"abc")


def test_raw_memory() -> None:
    data = array.array("B", range(5))
    address, size = data.buffer_info()
    view = buffer.fromaddress(address, size)
    assert (view.address, view.obj, view.tobytes()) == (address, None, bytes(range(5)))
    assert (view[2:].address, view[2:].nbytes) == (address + 2, 3)
    for bad in ((address, -1), (0, 1), (-5, 1), (1 << 60, 1), (1, 1)):
        with pytest.raises((ValueError, OverflowError)):
            buffer.fromaddress(*bad)
    assert buffer.fromaddress(0, 0).nbytes == 0


def test_release_empties_the_view() -> None:
    data = bytearray(4)
    view = buffer(data)
    view.release()
    assert (view.address, view.nbytes, view.obj, view.readonly) == (0, 0, None, False)
    assert memoryview(view).tobytes() == b""
    data.append(1)


def test_allocate() -> None:
    assert buffer.allocate(16, clear=True).tobytes() == bytes(16)
    empty = buffer.allocate(0)
    assert empty.address and not empty
    grid = buffer.allocate(24).cast("i", (2, 3))
    grid[1, 2] = 7
    assert grid.tolist()[1][2] == 7
    with pytest.raises(ValueError):
        buffer.allocate(-1)
    with pytest.raises(TypeError):
        buffer.allocate(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda view: view[9], IndexError),
        (lambda view: view[::2], IndexError),
        (lambda view: view[None], TypeError),
        (lambda view: operator.setitem(view, 9, 0), IndexError),
        (lambda view: operator.setitem(view, slice(0, 2), b"abc"), ValueError),
        (lambda view: operator.setitem(view, slice(0, 2), None), TypeError),
        (lambda view: operator.delitem(view, 0), NotImplementedError),
        (lambda view: view + 1, TypeError),
        (lambda view: view.__reduce_ex__(5), TypeError),
        (lambda _view: buffer(3), TypeError),
        (lambda _view: buffer([]), TypeError),
    ],
)
def test_refused(use: Any, error: type) -> None:
    with pytest.raises(error):
        use(buffer(bytearray(4)))


def test_compares_and_hashes_by_identity() -> None:
    view = buffer(b"abc")
    assert view == view and view != buffer(b"abc")
    assert len({view, view}) == 1
    assert "buffer object at" in repr(view)


def test_alloc_mem_without_a_job() -> None:
    for size in (0, 1, 1000):
        found = Alloc_mem(size)
        assert type(found) is buffer and len(found) == size
        found[:] = 1
        Free_mem(found)
        assert (found.address, found.nbytes) == (0, 0)
    with pytest.raises(errors.Exception):
        Alloc_mem(-1)
    with pytest.raises(errors.Exception, match="did not come from Alloc_mem"):
        Free_mem(buffer(bytearray(3)))
    with pytest.raises(TypeError):
        Free_mem(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "name", "value"), [(BOTTOM, "BOTTOM", 0), (IN_PLACE, "IN_PLACE", -1), (BUFFER_AUTOMATIC, "BUFFER_AUTOMATIC", -2)]
)
def test_places(place: Any, name: str, value: int) -> None:
    assert repr(place) == str(place) == name == place.__reduce__()
    assert place == value and value == place and place != value + 1 and place != "x"
    assert int(place) == value and bool(place) is bool(value) and hash(place) == hash(value)
    assert type(place)() is place
    assert memoryview(place).nbytes == 0
    assert Get_address(place) == value
    with pytest.raises(TypeError):
        place + 1
    if value:
        with pytest.raises(TypeError):
            operator.index(place)


def test_memory_of_no_length_or_of_more_than_there_is() -> None:
    from ncclx_mpi.buffers import source

    for nbytes in (-1, 1 << 63, 1 << 62):
        with pytest.raises(MemoryError):
            source.allocate(nbytes)
    assert len(source.allocate(0)[1][-1]) == 0


def test_an_object_that_says_it_has_a_device_is_no_memory_of_ours() -> None:
    class Foreign(bytearray):
        _device = "of another library"

    from ncclx_mpi.buffers import bounds, source

    data = Foreign(b"abc")
    found = source.open_source(data, writable=True, with_format=False)
    assert (found.nbytes, bounds._behind(data)) == (3, data)


def test_a_class_that_is_derived_before_there_is_any_exports_its_memory() -> None:
    class Named(buffer):
        __slots__ = ()

    data = bytearray(b"abc")
    assert bytes(memoryview(Named(data))) == b"abc" and memoryview(Named(b"abc")).readonly
