"""The memory behind a DLPack capsule, versions 0 and 1 of the protocol."""

from __future__ import annotations

import ctypes
import operator
from typing import Any

from ncclx_mpi.buffers.memory import is_contiguous
from ncclx_mpi.gpu_memory.streams import library_of

_CPU = 1
_VERSIONED, _UNVERSIONED = b"dltensor_versioned", b"dltensor"
_READ_ONLY, _IS_PADDED = 1, 4
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_FORMATS = {
    (_BOOL, 8): "?",
    (_INT, 8): "b",
    (_INT, 16): "h",
    (_INT, 32): "i",
    (_INT, 64): "l",
    (_UINT, 8): "B",
    (_UINT, 16): "H",
    (_UINT, 32): "I",
    (_UINT, 64): "L",
    (_FLOAT, 16): "e",
    (_FLOAT, 32): "f",
    (_FLOAT, 64): "d",
    (_FLOAT, 128): "g",
    (_BFLOAT, 16): "bfloat16",
    (_COMPLEX, 32): "Ze",
    (_COMPLEX, 64): "Zf",
    (_COMPLEX, 128): "Zd",
    (_COMPLEX, 256): "Zg",
}
_TWO_LANES = {32: "Zf", 64: "Zd", 128: "Zg"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer.restype = ctypes.c_void_p


def open_tensor(obj: Any, *, writable: bool) -> tuple[int, int, bool, str | None, int, Any, int]:
    """Address, bytes, read-only flag, format, item size, owner and device type of an object's tensor."""
    device, device_number = map(operator.index, obj.__dlpack_device__())
    del device_number  # which of several devices: the address says that too
    capsule = _capsule(obj, device)
    name = next((name for name in (_VERSIONED, _UNVERSIONED) if _is_valid(capsule, name)), None)
    if name is None:
        raise BufferError("dlpack: invalid capsule object")
    tensor, flags = _tensor(_get_pointer(capsule, name), name is _VERSIONED)
    readonly = bool(flags & _READ_ONLY)
    shape, strides = _checked_shape(tensor)
    if strides is not None and not is_contiguous(shape, strides, 1):
        raise BufferError("dlpack: buffer is not contiguous")
    if readonly and writable:
        raise BufferError("dlpack: buffer is not writable")
    count = 1
    for dim in shape:
        count *= dim
    code, itemsize = _format(tensor)
    nbytes = _bytes_of(count, tensor.bits * tensor.lanes, is_padded=bool(flags & _IS_PADDED))
    return (tensor.data or 0) + tensor.byte_offset, nbytes, readonly, code, itemsize, capsule, device


def _capsule(obj: Any, device: int) -> Any:
    """Ask for a capsule of version 1, which an object may answer with one of version 0, or not know of.

    No stream is to be made to wait for the array: who copies it asks for its stream. JAX, which shows none, would take -1 for a handle.
    """
    stream = {} if device == _CPU or library_of(type(obj)) == "jax" else {"stream": -1}
    try:
        return obj.__dlpack__(**stream, max_version=(1, 0), copy=False)
    except TypeError:
        return obj.__dlpack__(**stream)


def _tensor(pointer: int, is_versioned: bool) -> tuple[_Tensor, int]:
    """What a capsule holds, and its flags; older capsules have none."""
    if not is_versioned:
        return _Managed.from_address(pointer).tensor, 0
    versioned = _Versioned.from_address(pointer)
    if versioned.major < 1:
        raise BufferError("dlpack: unexpected version")
    return versioned.tensor, int(versioned.flags)


def _bytes_of(count: int, bits: int, *, is_padded: bool) -> int:
    """Bytes of `count` elements; those of less than 8 bits lie packed, unless a flag says that each has bytes of its own."""
    return count * -(-bits // 8) if is_padded else -(-count * bits // 8)


def _checked_shape(tensor: _Tensor) -> tuple[list[int], list[int] | None]:
    ndim = tensor.ndim
    if ndim < 0:
        raise BufferError("dlpack: number of dimensions is negative")
    if ndim > 0 and not tensor.shape:
        raise BufferError("dlpack: shape is NULL")
    shape = tensor.shape[:ndim] if ndim else []
    strides = tensor.strides[:ndim] if tensor.strides else None
    if min(shape, default=0) < 0:
        raise BufferError("dlpack: shape item is negative")
    if strides is not None and min(strides, default=0) < 0:
        raise BufferError("dlpack: strides item is negative")
    return shape, strides


def _format(tensor: _Tensor) -> tuple[str | None, int]:
    """Format and item size; types without a code are bytes."""
    if tensor.lanes == 1:
        code = _FORMATS.get((tensor.code, tensor.bits))
        return code, (tensor.bits + 7) // 8 if code else 1
    if tensor.lanes == 2 and tensor.code == _FLOAT and tensor.bits in _TWO_LANES:
        return _TWO_LANES[tensor.bits], tensor.bits // 8 * 2
    return None, 1
