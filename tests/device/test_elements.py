"""Elements that NumPy and the CUDA array interface have no name for, on the driver double."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.testing.driver_double import DEVICE, POOL, DeviceArray, Double, InterfaceArray, TensorArray
from tests.device.doubles import ONE_NODE

_BFLOAT, _COMPLEX, _FLOAT8_E4M3FN = 4, 5, 10
_CODE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Offset of the type code (8 bits) in what a capsule of that name holds."""


class Tensor(TensorArray):
    """Elements of a type that :attr:`code` is DLPack's number of, with the bits of the integers that the array has for NumPy."""

    code = 0

    def __dlpack__(self, **options: Any) -> Any:
        capsule = super().__dlpack__(**options)
        name = _name_of(capsule)
        ctypes.c_uint8.from_address(_pointer_of(capsule, name) + _CODE_AT[name]).value = self.code
        return capsule


class Float8(Tensor):
    code = _FLOAT8_E4M3FN


class Bfloat16(Tensor):
    code = _BFLOAT


class Complex32(Tensor):
    code = _COMPLEX


class Float4(Float8):
    """Two in a byte: as many of them as the array has bytes are in its first half."""

    code, bits = 17, 4

    def __dlpack__(self, **options: Any) -> Any:
        capsule = super().__dlpack__(**options)
        name = _name_of(capsule)
        ctypes.c_uint8.from_address(_pointer_of(capsule, name) + _CODE_AT[name] + 1).value = self.bits
        return capsule


class Nameless(InterfaceArray):
    """As CuPy has elements of other packages' NumPy types: so many bytes."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return super().__cuda_array_interface__ | {"typestr": f"|V{self.dtype.itemsize}"}


_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.argtypes, _name_of.restype = [ctypes.py_object], ctypes.c_char_p
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


@pytest.mark.ranks(1, 2, 3, timeout=120)
@pytest.mark.parametrize("make", [Float8, Nameless])
@pytest.mark.parametrize("kind", [DEVICE, POOL])
def test_bytes_are_moved(comm: Any, make: type[DeviceArray], kind: str) -> None:
    """By kernels, and by way of the host."""
    with Double(comm.rank):
        for length in (1, 1000):
            own = make.from_host(np.full(length, 16 + comm.rank, np.uint8), kind=kind)
            every = make(length * comm.size, np.uint8, kind=kind)
            comm.Allgather(own, every)
            wanted = np.repeat(np.arange(16, 16 + comm.size), length)
            np.testing.assert_array_equal(every.get(), wanted)
            comm.Bcast(own, root=comm.size - 1)
            np.testing.assert_array_equal(own.get(), 15 + comm.size)
            turned = make(length * comm.size, np.uint8, kind=kind)
            comm.Alltoall(every, turned)
            np.testing.assert_array_equal(turned.get(), 16 + comm.rank)
            comm.Sendrecv(every, (comm.rank + 1) % comm.size, 0, turned, (comm.rank - 1) % comm.size, 0)
            np.testing.assert_array_equal(turned.get(), wanted)


@pytest.mark.ranks(2)
def test_elements_of_half_a_byte_lie_packed(comm: Any) -> None:
    """So that nothing beyond the tensor is read."""
    other, status = 1 - comm.rank, MPI.Status()
    with Double(comm.rank):
        for length, nbytes in ((9, 5), (8, 4), (1, 1)):
            array = Float4.from_host(np.full(length, 16 + comm.rank, np.uint8))
            received = np.zeros(length, np.uint8)
            comm.Sendrecv(array, other, 0, received, other, 0, status)
            assert status.Get_count(MPI.BYTE) == nbytes
            np.testing.assert_array_equal(received, [16 + other] * nbytes + [0] * (length - nbytes))


def _calls(comm: Any, send: Any, recv: Any) -> list[Callable[[], Any]]:
    return [
        lambda: comm.Allreduce(send, recv),
        lambda: comm.Allreduce(MPI.IN_PLACE, recv, MPI.MAX),
        lambda: comm.Reduce(send, recv, MPI.PROD),
        lambda: comm.Scan(send, recv),
        lambda: comm.Iallreduce(send, recv),
        lambda: comm.Allreduce_init(send, recv),
        lambda: MPI.SUM.Reduce_local(send, recv),
    ]


@pytest.mark.ranks(1, 2, 3, timeout=120, topology=ONE_NODE)
@pytest.mark.parametrize("make", [Float8, Nameless])
@pytest.mark.parametrize("kind", [DEVICE, POOL])
def test_bytes_are_not_added(comm: Any, make: type[DeviceArray], kind: str) -> None:
    """Sums of the bytes would be wrong, without a word: no call makes them, and the communicator stays usable."""
    with Double(comm.rank) as driver:
        send, recv = (make.from_host(np.full(300, 56, np.uint8), kind=kind) for _ in range(2))
        comm.prepare(1 << 20)
        stream = driver.create_stream()
        for call in (*_calls(comm, send, recv), lambda: comm.in_stream(stream).Allreduce(send, recv)):
            with pytest.raises(MPI.Exception, match="of type MPI_BYTE") as caught:
                call()
            assert caught.value.Get_error_class() == MPI.ERR_OP
        with pytest.raises(MPI.Exception, match="elements of type byte"):
            comm.Dup().prepare(1 << 20, [(MPI.SUM, MPI.BYTE)])
        np.testing.assert_array_equal(recv.get(), 56)
        comm.Allreduce(send, recv, MPI.BOR)
        comm.in_stream(stream).Allreduce(MPI.IN_PLACE, recv, MPI.BAND)
        driver.finish(stream)
        comm.check()
        np.testing.assert_array_equal(recv.get(), 56)


@pytest.mark.ranks(1, 2, 3, timeout=120)
@pytest.mark.parametrize("kind", [DEVICE, POOL])
def test_bfloat16(comm: Any, kind: str) -> None:
    """Known by DLPack; by the CUDA array interface with the type named."""
    bits = (np.arange(1, 300, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    wanted = np.zeros_like(bits)
    comm.Allreduce([bits, MPI.BFLOAT16_T], [wanted, MPI.BFLOAT16_T])
    with Double(comm.rank):
        send, recv = Bfloat16.from_host(bits, kind=kind), Bfloat16(len(bits), np.uint16, kind=kind)
        comm.Allreduce(send, recv)
        np.testing.assert_array_equal(recv.get(), wanted)
        send, recv = Nameless.from_host(bits, kind=kind), Nameless(len(bits), np.uint16, kind=kind)
        comm.Allreduce([send, MPI.BFLOAT16_T], [recv, MPI.BFLOAT16_T])
        np.testing.assert_array_equal(recv.get(), wanted)


def test_complex_numbers_of_half_precision_are_no_mpi_type() -> None:
    """They are named by DLPack, so that they are not taken for bytes."""
    with Double(0):
        array = Complex32(4, np.uint32)
        with pytest.raises(KeyError, match="cannot map 'Ze' to MPI datatype"):
            MPI.COMM_SELF.Allreduce(MPI.IN_PLACE, array)
        MPI.COMM_SELF.Bcast([array, 16, MPI.BYTE])


@pytest.mark.ranks(2, timeout=120)
@pytest.mark.parametrize("make", [DeviceArray, TensorArray, InterfaceArray])
def test_truth_values_and_shapes(comm: Any, make: type[DeviceArray]) -> None:
    with Double(comm.rank):
        flags = make.from_host(np.array([True, comm.rank == 1, False]))
        comm.Allreduce(MPI.IN_PLACE, flags, MPI.LAND)
        assert flags.get().tolist() == [True, False, False]
        with pytest.raises(MPI.Exception, match="MPI.SUM is not defined for elements of type MPI_C_BOOL"):
            comm.Allreduce(MPI.IN_PLACE, flags)
        single = make.from_host(np.full(3, 5.0 + comm.rank))[1]
        assert single.shape == ()
        comm.Allreduce(MPI.IN_PLACE, single)
        assert single.get() == 11.0
        columns = make.from_host(np.zeros((4, 4)))
        for view in (columns[:, 1], columns[::-1], columns[::2]):
            with pytest.raises(BufferError, match=r"not contiguous|negative"):
                comm.Allreduce(MPI.IN_PLACE, view)
        comm.Allreduce(MPI.IN_PLACE, columns[2:2])
        comm.Allreduce(MPI.IN_PLACE, columns.T)
