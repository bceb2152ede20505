"""Whatever has memory can be sent and received as it is, with what mpi4py makes of its format; what cannot be, says why."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

COMM = MPI.COMM_SELF


def transfer(sent: Any, received: Any) -> int:
    """Send from one buffer to the other, and return how many bytes went."""
    request, status = COMM.Isend(sent, 0), MPI.Status()
    COMM.Recv(received, 0, status=status)
    request.Wait()
    return status.Get_count(MPI.BYTE)


class Pair(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("value", ctypes.c_double))


def mapped(text: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, 16)
    memory[: len(text)] = text
    return memory


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_array(code: str) -> None:
    received = array.array(code, [0, 0, 0])
    assert transfer(array.array(code, [1, 2, 3]), received) == 3 * received.itemsize
    assert received.tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [ctypes.c_byte, ctypes.c_ushort, ctypes.c_int, ctypes.c_longlong, ctypes.c_float, ctypes.c_double])
def test_ctypes(kind: Any) -> None:
    received, one = (kind * 3)(), kind(0)
    assert transfer((kind * 3)(1, 2, 3), received) == ctypes.sizeof(received) and list(received) == [1, 2, 3]
    assert transfer(kind(7), one) == ctypes.sizeof(kind) and one.value == 7
    rows = ((kind * 2) * 3)()
    assert transfer([np.arange(6, dtype=np.dtype(kind)), 6], rows) == ctypes.sizeof(rows)
    assert [list(row) for row in rows] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "make", [bytearray, mapped, lambda text: memoryview(bytearray(text))], ids=["bytearray", "mmap", "memoryview"]
)
def test_bytes(make: Callable[[bytes], Any]) -> None:
    received = make(bytes(16))
    assert transfer(make(b"0123456789abcdef"), received) == 16 and bytes(received[:16]) == b"0123456789abcdef"


@pytest.mark.parametrize("code", ["b", "B", "c", "?", "h", "H", "i", "I", "l", "L", "q", "Q", "f", "d", "@i", "@d"])
def test_memoryview_with_a_format(code: str) -> None:
    sent, received = bytearray(range(16)), bytearray(16)
    assert transfer(memoryview(sent).cast(code), memoryview(received).cast(code)) == 16 and received == sent


def test_memoryview_of_other_shapes() -> None:
    sent, received = bytearray(range(16)), bytearray(16)
    assert transfer(memoryview(sent).cast("i", [2, 2]), memoryview(received).cast("i", [2, 2])) == 16 and received == sent
    assert transfer(memoryview(sent)[4:8], memoryview(received)[:4]) == 4 and received[:4] == sent[4:8]
    assert (
        transfer(memoryview(sent)[:4].cast("i", []), memoryview(received)[8:12].cast("i", [])) == 4 and received[8:12] == sent[:4]
    )


def test_arrays_of_no_dimension_and_of_no_elements() -> None:
    received = np.zeros((), "D")
    assert transfer(np.array(1 + 2j), received) == 16 and received == 1 + 2j
    assert transfer(np.float64(3), received.real) == 8 and received == 3 + 2j
    assert transfer(np.zeros((0, 3)), np.zeros((3, 0))) == 0


def test_fortran_order() -> None:
    rows = np.arange(6.0).reshape(2, 3)
    sent, received = np.asfortranarray(rows), np.zeros((2, 3), order="F")
    assert transfer(sent, received) == 48 and (received == rows).all()
    plain = np.zeros(6)
    transfer(rows.T, plain)
    assert plain.tolist() == rows.ravel().tolist()  # as it lies in memory


@pytest.mark.parametrize("is_aligned", [False, True])
def test_structured_arrays_with_an_explicit_type(is_aligned: bool) -> None:
    form = np.dtype([("number", "i4"), ("value", "f8")], align=is_aligned)
    assert form.fields is not None
    places = [form.fields[name][1] for name in ("number", "value")]
    record = MPI.Datatype.Create_struct([1, 1], places, [MPI.INT, MPI.DOUBLE]).Create_resized(0, form.itemsize).Commit()
    sent, received = np.array([(1, 2.5), (3, 4.5)], form), np.zeros(2, form)
    assert transfer([sent, record], [received, record]) == 24 and received.tolist() == sent.tolist()
    received[:] = 0
    assert transfer([sent, (1, 1), record], [received, (1, 0), record]) == 12 and received.tolist() == [(3, 4.5), (0, 0)]
    assert transfer([sent, MPI.BYTE], [received, MPI.BYTE]) == 2 * form.itemsize and received.tolist() == sent.tolist()
    record.Free()


@pytest.mark.parametrize("code", "?bhilqBHILQfdgFDG")
def test_dlpack(code: str) -> None:
    class Exporter:
        def __init__(self, memory: Any) -> None:
            self.memory = memory

        def __dlpack__(self, **arguments: Any) -> Any:
            return self.memory.__dlpack__(**arguments)

        def __dlpack_device__(self) -> Any:
            return self.memory.__dlpack_device__()

    received = np.zeros(2, code)
    try:
        nbytes = transfer(Exporter(np.ones(2, code)), received)
    except BufferError:
        assert code in "gG"  # DLPack has no name for them
    else:
        assert nbytes == received.nbytes and received.tolist() == [1, 1]


@pytest.mark.parametrize(
    "name", ["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64", "complex128"]
)
def test_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name)
    received = torch.zeros(2, 3, dtype=kind)
    assert transfer(torch.ones(2, 3, dtype=kind), received) == 6 * received.element_size()
    assert received.tolist() == torch.ones(2, 3, dtype=kind).tolist()
    with pytest.raises(BufferError):
        transfer(torch.ones(6, dtype=kind)[::2], received)


NOT_SENT = {
    "memoryview that skips": lambda: memoryview(bytearray(16))[::2],
    "memoryview backwards": lambda: memoryview(bytearray(16))[::-1],
    "array that skips": lambda: np.arange(6.0)[::2],
    "array backwards": lambda: np.arange(6.0)[::-1],
    "one element for three": lambda: np.broadcast_to(np.zeros(1), (3,)),
    "other byte order": lambda: np.zeros(3, np.dtype("i4").newbyteorder()),
}


@pytest.mark.parametrize("make", NOT_SENT.values(), ids=NOT_SENT.keys())
def test_what_is_not_in_one_piece(make: Callable[[], Any]) -> None:
    with pytest.raises(BufferError):
        COMM.Send(make(), MPI.COMM_SELF.rank)


@pytest.mark.parametrize(
    "make", [lambda: np.zeros(2, "O"), lambda: np.zeros(2, "i4,f8"), lambda: Pair(1, 2.0)], ids=["objects", "records", "struct"]
)
def test_what_has_no_type(make: Callable[[], Any]) -> None:
    with pytest.raises(KeyError, match="cannot map"):
        COMM.Send(make(), 0)


@pytest.mark.parametrize(
    "memory", [b"abc", memoryview(b"abc"), mmap.mmap(-1, 3, access=mmap.ACCESS_READ)], ids=["bytes", "memoryview", "mmap"]
)
def test_what_is_read_only_receives_nothing(memory: Any) -> None:
    with pytest.raises(BufferError):
        COMM.Recv(memory, 0)


def test_released_memory() -> None:
    view = memoryview(bytearray(3))
    view.release()
    with pytest.raises(ValueError, match="released"):
        COMM.Send(view, 0)


@pytest.mark.parametrize("given", [3, object(), {}, [1], "text"], ids=["number", "object", "dict", "list", "text"])
def test_what_is_no_buffer(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        COMM.Send(given, 0)
