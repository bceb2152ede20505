"""Views of raw memory as NumPy arrays, and the words of a NumPy array object, without a C extension.

``SPACE`` is one ctypes array over the whole address space. Arrays over a piece of it cost one NumPy call, where
``(c_char * n).from_address`` would make a new ctypes type for every length. Nothing here checks addresses: callers
pass only such as came from a buffer, the arena, or the user's own raw address.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

from numba_kernels.late_numpy import at_import, np, npt

ADDRESS_BITS = 48
ORIGIN = 64
SPACE: Any = (ctypes.c_ubyte * ((1 << ADDRESS_BITS) - ORIGIN)).from_address(ORIGIN)
"""All memory from address ORIGIN on; not from 0, since NumPy takes a null buffer for none."""

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Words: TypeAlias = "npt.NDArray[np.int64]"

C_CONTIGUOUS, F_CONTIGUOUS, WRITEABLE = 0x1, 0x2, 0x400
_FIELDS = struct.Struct(f"={object.__basicsize__}xqi4xqqqqi")
_read = _FIELDS.unpack_from
_VIEW = memoryview(SPACE).cast("B")


def view(address: int, nbytes: int) -> Bytes:
    """The bytes at an address, as a writable array."""
    return np.ndarray((nbytes,), np.uint8, SPACE, address - ORIGIN if nbytes else 0)


def span(address: int, nbytes: int) -> memoryview:
    """The bytes at an address, without NumPy."""
    return _VIEW[address - ORIGIN : address - ORIGIN + nbytes] if nbytes else _VIEW[:0]


def array_words(array: npt.NDArray[Any]) -> tuple[int, int, int]:
    """Address of the data, identity of the dtype object, and flags of an array.

    Reads the C structure (the same in NumPy 1 and 2): 150 ns, where ``array.ctypes.data`` alone takes 1,000.
    """
    fields: tuple[int, ...] = _read(_VIEW, id(array) - ORIGIN)
    return fields[0], fields[5], fields[6]


def _check_structure() -> None:
    """Refuse to run where the C structure of arrays is not the known one."""
    probe = np.zeros((2, 3), np.int16)
    probe.flags.writeable = False
    address, descr, flags = array_words(probe)
    expected = (probe.__array_interface__["data"][0], id(probe.dtype), C_CONTIGUOUS, 0)
    if (address, descr, flags & (C_CONTIGUOUS | F_CONTIGUOUS), flags & WRITEABLE) != expected:
        raise ImportError(f"NumPy {np.__version__} lays out arrays in an unknown way; ncclx_mpi needs 1.24 to 2.x")


at_import(_check_structure)


def is_contiguous(shape: Sequence[int], strides: Sequence[int], unit: int) -> bool:
    """Whether an array is C or Fortran contiguous; its elements take `unit` of what its strides count."""
    for order in (range(len(shape)), reversed(range(len(shape)))):
        size = unit
        for dim in order:
            if shape[dim] > 1 and strides[dim] != size:
                break
            size *= shape[dim]
        else:
            return True
    return False
