"""A view names an address: derived datatypes are held against the memory that is there, predefined ones against the view."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, arguments

SHAPE = (4, 6)
NBYTES = 4 * 6 * 8
COLUMN = MPI.DOUBLE.Create_vector(4, 1, 6).Commit()
BEYOND = MPI.DOUBLE.Create_vector(5, 1, 6).Commit()
BEFORE = MPI.DOUBLE.Create_hindexed([1, 1], [-16, 0]).Commit()
FAR_BEFORE = MPI.DOUBLE.Create_hindexed([1], [-8 * 4]).Commit()


class Tensor:
    """An object with nothing but DLPack: an address, and a shape that it claims."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        options.pop("stream", None)
        return self.data.__dlpack__(**options)


class Interface:
    """An object with nothing but an array interface."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.__cuda_array_interface__ = {**data.__array_interface__, "version": 3}


def ctypes_array() -> Any:
    return (ctypes.c_double * 24)()


def slice_of(owner: Any) -> Any:
    """Bytes 8 * 2 to 8 * 3 of an owner."""
    return np.frombuffer(owner, np.float64)[2:3]


KNOWN: dict[str, Callable[[], Any]] = {
    "array": lambda: np.zeros(SHAPE)[0, 2:3],
    "view of a view": lambda: np.zeros((2, *SHAPE))[0][0][1:4][1:2].view(np.int64),
    "subclass": lambda: np.zeros(SHAPE).view(np.recarray)[0, 2:3],
    "bytearray": lambda: slice_of(bytearray(NBYTES)),
    "array.array": lambda: slice_of(array.array("d", bytes(NBYTES))),
    "mmap": lambda: slice_of(mmap.mmap(-1, NBYTES)),
    "ctypes": lambda: slice_of(ctypes_array()),
    "part of ctypes": lambda: (ctypes.c_double * 6 * 4)()[0],
    "ctypes over an array": lambda: ctypes.c_double.from_buffer(np.zeros(SHAPE), 16),
    "memoryview": lambda: memoryview(np.zeros(24))[2:3],
    "MPI.buffer": lambda: MPI.buffer(np.zeros(24))[16:24],
    "MPI.buffer of a view": lambda: MPI.buffer(np.zeros(24)[2:3]),
    "allocated": lambda: MPI.buffer.allocate(NBYTES)[16:24],
}


@pytest.mark.parametrize("kind", KNOWN)
def test_a_type_may_reach_over_a_view(kind: str) -> None:
    view = KNOWN[kind]()
    for resolve in (arguments.send, arguments.recv):
        assert resolve([view, 1, COLUMN]).count == 1
        if "part of" not in kind:
            assert resolve([view, 1, BEFORE]).count == 1
        with pytest.raises(ValueError, match="in memory from byte"):
            resolve([view, 9, BEYOND])
        with pytest.raises(ValueError, match="in memory from byte -?[0-9]+ to"):
            resolve([view, 1, FAR_BEFORE])
    for datatype in (MPI.DOUBLE, MPI.Datatype.Create_f90_real(15, 300)):
        with pytest.raises(ValueError, match="reach from byte 0 to 72, but the buffer has"):
            arguments.send([view, 9, datatype])


def claims() -> Iterator[tuple[str, Any, Any]]:
    whole = np.arange(24.0).reshape(SHAPE)
    at = whole.ctypes.data + 16
    yield "fromaddress", MPI.memory.fromaddress(at, 8), whole
    yield "slice of an address", MPI.memory.fromaddress(at - 8, 16)[8:], whole
    yield "tensor", Tensor(whole[0, 2:3]), whole
    yield "interface", Interface(whole[0, 2:3]), whole
    yield "array over an address", np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_double)), (1,)), whole
    yield "array over a tensor", np.from_dlpack(Tensor(whole[0, 2:3])), whole
    yield "memoryview of an address", memoryview(ctypes.c_double.from_address(at)), whole
    yield "array interface", np.asarray(ArrayInterface(whole[0, 2:3])), whole


class ArrayInterface:
    """An object whose array NumPy makes of an address."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.__array_interface__ = dict(data.__array_interface__)


@pytest.mark.parametrize("number", range(8))
def test_a_claimed_length_is_no_bound_for_a_type(number: int) -> None:
    _kind, view, whole = list(claims())[number]
    copy = arguments.send([view, 1, COLUMN]).copy()
    copy.load()
    assert np.frombuffer(copy.owner[-1], "d").tolist() == whole[:, 2].tolist()
    with pytest.raises(ValueError, match="the buffer has 8 bytes"):
        arguments.send([view, 2, MPI.DOUBLE])


def test_vectors_of_a_view() -> None:
    whole = np.zeros(SHAPE)
    view, step = whole[0, :1], COLUMN.Create_resized(0, 8).Commit()
    assert arguments.recv_vector([view, ([1, 1], [0, 5]), step], 2).displs == [0, 5]
    assert arguments.recv_w([view, ([1, 1], [0, 40]), [step, step]], 2).blocks[1].count == 1
    with pytest.raises(ValueError, match="byte 48 to 200"):
        arguments.recv_vector([view, ([1, 1], [0, 6]), step], 2)
    with pytest.raises(ValueError, match="byte 48 to 200"):
        arguments.recv_w([view, ([1, 1], [0, 48]), [step, step]], 2)


def test_packing_of_a_view() -> None:
    whole, packed = np.arange(24.0).reshape(SHAPE), np.zeros(4)
    step = COLUMN.Create_resized(0, 8).Commit()
    assert step.Pack(whole[0, 2:3], packed, 0, MPI.COMM_SELF) == 32
    assert packed.tolist() == whole[:, 2].tolist()
    step.Unpack(packed, 0, whole[0, 3:4], MPI.COMM_SELF)
    assert whole[:, 3].tolist() == whole[:, 2].tolist()
    with pytest.raises(MPI.Exception, match="not in buffer") as refused:
        step.Pack(whole[1, 2:3], packed, 0, MPI.COMM_SELF)
    assert refused.value.Get_error_class() == MPI.ERR_ARG


@pytest.mark.ranks(2)
def test_columns_in_every_call(comm: Any) -> None:
    peer, whole = 1 - comm.rank, np.arange(24.0).reshape(SHAPE)
    sent = (whole + comm.rank)[0, 1:2]
    received = [np.zeros(SHAPE) for _ in range(7)]
    spec, rooms = [sent, 1, COLUMN], [[room[0, 3:4], 1, COLUMN] for room in received]
    if comm.rank == 0:
        comm.Send(spec, 1)
        comm.Recv(rooms[0], 1)
    else:
        comm.Recv(rooms[0], 0)
        comm.Send(spec, 0)
    MPI.Request.Waitall([comm.Irecv(rooms[1], peer), comm.Isend(spec, peer)])
    requests = [comm.Recv_init(rooms[2], peer), comm.Send_init(spec, peer)]
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()
    step = COLUMN.Create_resized(0, 8).Commit()
    both = np.zeros(SHAPE)
    comm.Allgather(spec, [both[0, :1], 1, step])
    assert both[:, 0].tolist() == whole[:, 1].tolist() and both[:, 1].tolist() == (whole[:, 1] + 1).tolist()
    mine = [0, 0]
    mine[peer] = 1
    comm.Alltoallv([sent, (mine, [0, 0]), COLUMN], [received[3][0, 3:4], (mine, [0, 0]), COLUMN])
    comm.Alltoallw([sent, (mine, [0, 0]), [COLUMN] * 2], [received[4][0, 3:4], (mine, [0, 0]), [COLUMN] * 2])
    comm.Sendrecv(spec, peer, 0, rooms[5], peer, 0)
    comm.Ialltoallv([sent, (mine, [0, 0]), COLUMN], [received[6][0, 3:4], (mine, [0, 0]), COLUMN]).Wait()
    for room in received:
        assert room[:, 3].tolist() == (whole[:, 1] + peer).tolist()
        assert room.sum() == room[:, 3].sum()
