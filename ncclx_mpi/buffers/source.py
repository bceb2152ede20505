"""From any object with a buffer to an address: the buffer protocol, DLPack, then the CUDA array interface.

The order, the accepted layouts (C or Fortran contiguous) and the types of errors are mpi4py's. An :class:`Export`
holds the object's buffer, so that a bytearray cannot be resized while a message is under way.

Whose memory an address is, the CUDA driver says where the process has loaded it, never the protocol that offers the address:
objects over host memory speak those for GPU arrays too.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclx_mpi import late
from ncclx_mpi.buffers import dlpack
from ncclx_mpi.buffers.kinds import CPU, CUDA, ON_GPU, check_kind
from ncclx_mpi.buffers.memory import C_CONTIGUOUS, F_CONTIGUOUS, WRITEABLE, array_words, is_contiguous
from ncclx_mpi.buffers.memory import view as memory_view
from ncclx_mpi.buffers.sentinels import BottomType, BufferAutomaticType, InPlaceType
from ncclx_mpi.gpu_memory.memory import DeviceMemory, check_readable
from ncclx_mpi.gpu_memory.streams import are_quickly_told, facts_of, library_of, stream_of
from numba_kernels import pyclasses
from numba_kernels.cuda import driver as drivers
from numba_kernels.late_numpy import is_array, np
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.buffers import learned
else:
    learned = late.module("ncclx_mpi.buffers.learned")

_WRITABLE, _FORMAT, _ANY_CONTIGUOUS = 0x0001, 0x0004, 0x0098
READ_ONLY = "buffer is not writable: the array is read-only (array.flags.writeable)"
_KEPT = 1024
"""Arrays of which is kept what they said of themselves, but not they."""


class Source(NamedTuple):
    """Memory of an object.

    Attributes
    ----------
    format
        None for bytes of no type.
    device
        Type of the device that the object says it is on.
    lent
        The GPU's memory that it is in, None if the CPU can use it as it is.
    """

    address: int
    nbytes: int
    readonly: bool
    format: str | None
    itemsize: int
    owner: Any
    device: int
    lent: DeviceMemory | None = None


_opened: dict[tuple[Any, ...], Source] = {}

_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.c_void_p]
_release.restype = None
_resize = ctypes.pythonapi.PyByteArray_Resize
_resize.argtypes = [ctypes.py_object, ctypes.c_ssize_t]
_advise = ctypes.CDLL(None).madvise
_advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_OWN_MAPPING = 32 << 20
"""Memory of so many bytes or more is new each time: the allocator has it from the kernel, which clears each of its pages. Large ones take
less; NumPy asks for them, too."""
_check_buffer = ctypes.pythonapi.PyObject_CheckBuffer
_check_buffer.argtypes = [ctypes.py_object]


class Export(ctypes.Structure):
    """A ``Py_buffer``: releases the object's buffer when it goes."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )

    def __del__(self, release: Callable[[int], None] = _release, addressof: Callable[[Any], int] = ctypes.addressof) -> None:
        """Give the buffer back; globals may be gone by then, at the end of the process."""
        if self.obj:
            release(addressof(self))


class Raw:
    """What ``MPI.buffer`` is derived from: memory of any device, of another object (``obj``) or at an address that somebody knew."""

    __slots__ = ()
    obj: Any
    _owner: Any


def has_buffer(obj: Any) -> bool:
    """Whether the class of an object speaks the buffer protocol."""
    return bool(_check_buffer(obj))


def is_source(obj: Any) -> bool:
    """Whether :func:`open_source` can open the object."""
    return has_buffer(obj) or hasattr(obj, "__dlpack__") or hasattr(obj, "__cuda_array_interface__")


def open_source(obj: Any, *, writable: bool, with_format: bool) -> Source:
    """Open the memory of an object.

    Raises
    ------
    TypeError
        The object has no buffer.
    BufferError
        The buffer is not contiguous, not writable, or not in native byte order.
    """
    if is_array(obj):
        return _open_array(obj, writable=writable, with_format=with_format)
    kind = type(obj)
    if are_quickly_told(kind):
        found = _located(_open_again(obj, writable=writable, with_format=with_format), obj)
    else:
        if writable and library_of(kind) == "jax":
            raise BufferError("JAX arrays are immutable: they can be sent, but nothing can be received into them")
        found = _located(_open_anew(obj, writable=writable, with_format=with_format), obj)
    if not pyclasses.is_decided(kind):
        learned.decide(obj, found)
    return found


def _open_anew(obj: Any, *, writable: bool, with_format: bool) -> Source:
    """Open an object by the first protocol that it speaks."""
    try:
        return _open_export(obj, writable=writable, with_format=with_format)
    except Exception:  # an object says no with any, and may have another protocol
        if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
            return Source(*dlpack.open_tensor(obj, writable=writable))
        if hasattr(obj, "__cuda_array_interface__"):
            return _open_interface(obj, writable=writable, with_format=with_format)
        raise


def _open_again(array: Any, *, writable: bool, with_format: bool) -> Source:
    """Open an array of a library that quickly tells all by which its arrays differ: a protocol is asked once for each kind of array.

    A capsule takes 30 us, and a GPU copies a megabyte meanwhile.
    """
    key = type(array), writable, with_format, facts_of(array)
    found = _opened.get(key)
    if found is None:
        found = _open_anew(array, writable=writable, with_format=with_format)
        if found.device not in ON_GPU:
            return found
        if len(_opened) >= _KEPT:
            _opened.clear()
        found = _opened[key] = found._replace(owner=None)
    return found._replace(owner=array)


def _located(found: Source, obj: Any) -> Source:
    """Find out whose memory it is that an object says is a GPU's."""
    if found.device == CPU:
        return found
    check_kind(found.device)
    driver = drivers.current()
    if found.device not in ON_GPU or not found.nbytes or driver is None:
        return found
    known = driver.memory(found.address)
    if known is None:
        check_readable(found.address, found.nbytes)
    if known is None or known.device < 0:
        return found
    array = obj.obj if isinstance(obj, Raw) else obj
    return found._replace(lent=DeviceMemory(driver, known, found.address, stream_of(array, known.device)))


def _open_array(array: np.ndarray[Any, Any], *, writable: bool, with_format: bool) -> Source:
    address, _, flags = array_words(array)
    if not flags & (C_CONTIGUOUS | F_CONTIGUOUS):
        raise BufferError(
            f"buffer is not contiguous: an array of shape {array.shape} with strides {array.strides}; "
            "pass a contiguous copy (numpy.ascontiguousarray), or its base array with a derived datatype"
        )
    if writable and not flags & WRITEABLE:
        raise BufferError(READ_ONLY)
    code = array_format(array.dtype) if with_format else None
    return Source(address, array.nbytes, not flags & WRITEABLE, code, array.itemsize, array, CPU)


def array_format(dtype: np.dtype[Any]) -> str:
    """The buffer format of a NumPy dtype; datetimes, which NumPy does not export, have their kind."""
    if dtype.kind in "?biufc" and dtype.isnative:
        return _COMPLEX.get(dtype.char, dtype.char)
    if dtype.kind in "mM" and dtype.isnative:
        return str(dtype.kind)
    if dtype.name == "bfloat16":
        return "bfloat16"
    try:
        empty: Any = np.empty(0, dtype)
        return memoryview(empty).format
    except ValueError as reason:
        raise BufferError(f"an array of {dtype} needs an explicit MPI datatype: {reason}") from None


_COMPLEX = {"F": "Zf", "D": "Zd", "G": "Zg"}


def open_export(obj: Any, flags: int = 0) -> Export:
    """Hold the buffer that an object exports, which must be contiguous; the object says no with any exception."""
    export = Export()
    _get_buffer(obj, ctypes.addressof(export), _ANY_CONTIGUOUS | flags)
    return export


def _open_export(obj: Any, *, writable: bool, with_format: bool) -> Source:
    export = open_export(obj, (_WRITABLE if writable else 0) | (_FORMAT if with_format else 0))
    code = export.format.decode() if with_format and export.format else None
    return Source(export.buf or 0, export.len, bool(export.readonly), code, export.itemsize or 1, (export, obj), CPU)


def _open_interface(obj: Any, *, writable: bool, with_format: bool) -> Source:
    """Open a CUDA array interface."""
    name = "__cuda_array_interface__"
    interface: dict[str, Any] = obj.__cuda_array_interface__
    pointer, readonly = interface["data"]
    typestr, shape = interface["typestr"], tuple(interface["shape"])
    itemsize, count = int(typestr[2:]), 1
    for dim in shape:
        count *= dim
    if with_format:
        check_byte_order(typestr[0], f"{name}: typestr {typestr!r}", known="<>|")
    if interface.get("mask") is not None:
        raise BufferError(f"{name}: cannot handle masked arrays")
    if count < 0:
        raise BufferError(f"{name}: buffer with negative size (shape:{shape}, size:{count})")
    strides = interface.get("strides")
    if strides is not None and not is_contiguous(shape, tuple(strides), itemsize):
        raise BufferError(f"{name}: buffer is not contiguous (shape:{shape}, strides:{strides}, itemsize:{itemsize})")
    if readonly and writable:
        raise BufferError(f"{name}: buffer is not writable")
    descr = interface.get("descr")
    if descr is not None and not isinstance(descr, list):
        raise TypeError(f"{name}: 'descr' must be a list, not {type(descr).__name__}")
    if descr is not None and descr != [("", typestr)]:
        warnings.warn(f"{name}: ignoring 'descr' key", RuntimeWarning, stacklevel=2)
    if pointer is None and count == 0:
        pointer = 0
    code, address = _INTERFACE_FORMATS.get(typestr[1:]), _pointer(pointer)
    return Source(address, count * itemsize, bool(readonly), code, itemsize, obj, CUDA)


_INTERFACE_FORMATS = {
    "b1": "?",
    **{f"i{struct.calcsize(code)}": code for code in "bhil"},
    **{f"u{struct.calcsize(code)}": code for code in "BHIL"},
    "f2": "e",
    "f4": "f",
    "f8": "d",
    "f16": "g",
    "c4": "Ze",
    "c8": "Zf",
    "c16": "Zd",
    "c32": "Zg",
}


def _pointer(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"an integer address is required, not {type(value).__name__}")
    return value


def check_byte_order(order: str, what: str, *, known: str = "@=<>|") -> None:
    """Raise BufferError unless the byte order is this machine's."""
    if order not in known:
        raise BufferError(f"{what} with unrecognized byte order")
    if order == ">":
        raise BufferError(f"{what} with non-native byte order")


def content(found: Source) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of an opened object; the caller keeps the source alive."""
    return memory_view(found.address, found.nbytes)


def allocate(nbytes: int, *, clear: bool = False) -> tuple[int, tuple[Export, bytearray]]:
    """Address of new memory, zeroed if it is to be clear, and what keeps it there, and is it.

    Raises
    ------
    MemoryError
        There is none left.
    """
    if not 0 <= nbytes <= sys.maxsize:  # CPython does not look
        raise MemoryError(nbytes)
    made = new_bytes(nbytes, clear)
    export = open_export(made, _WRITABLE)
    address = export.buf or 0
    if nbytes >= _OWN_MAPPING:
        _advise(address + -address % mmap.PAGESIZE, nbytes - mmap.PAGESIZE, mmap.MADV_HUGEPAGE)  # a kernel without them says no
    return address, (export, made)


def new_bytes(nbytes: int, clear: bool) -> bytearray:
    """Bytes, zeroed or not written to."""
    made = bytearray(nbytes if clear else 0)
    _resize(made, nbytes)
    return made


def address(location: Any) -> int:
    """Address of a buffer; of None 0, and of BOTTOM and its like what they stand for."""
    if location is None or isinstance(location, BottomType | InPlaceType | BufferAutomaticType):
        return 0 if location is None else int(location)
    return open_source(location, writable=False, with_format=False).address


def wrapped(base: int, offset: int) -> int:
    """Sum of an address and an offset, wrapped around like C's."""
    for value in (base, offset):
        if not -(1 << 63) <= value <= (1 << 63):
            raise OverflowError(f"{value} does not fit into an address")
    return (base + offset + (1 << 63)) % (1 << 64) - (1 << 63)
