"""Notes: what compiled calls that return objects of peers say to Python when there is more to do.

A note is a bytearray, which no plain value is (:mod:`numba_kernels.pickling`), so one look at its type tells it from what was
received::

    | kind | a pickle, or one word |

=========== ==================================================================================================
`RAW`       a message as it came: a pickle that is not one of a plain value, or nothing where more follows
`SLOW`      the caller goes the general way; nothing was done
`CODE`      word: the code of a failure (:mod:`ncclx_mpi.p2p.layout`)
`MATCHED`   word: the handle of a message that was taken out of matching, 0 if none came within a slice
`NOT_YET`   what was asked for is not complete
=========== ==================================================================================================
"""

from __future__ import annotations

from numba_kernels import symbols, types
from numba_kernels.atomics import load64, store8
from numba_kernels.calls import make_symbol
from numba_kernels.jit import kernel
from numba_kernels.memory import copy
from numba_kernels.pickling import read_pickle
from numba_kernels.pyobject import OB_TYPE

RAW, SLOW, CODE, MATCHED, NOT_YET = range(5)

symbols.add("ncclx_mpi_bytearray_type", id(bytearray))
_bytearray_type = make_symbol("ncclx_mpi_bytearray_type")

_new_bytearray = types.external("PyByteArray_FromStringAndSize", types.intp(types.intp, types.intp))
_data_of = types.external("PyByteArray_AsString", types.intp(types.intp))


@kernel("int64(int64)")
def is_note(obj):  # type: ignore[no-untyped-def]
    """Whether an object is a note."""
    return 1 if load64(obj + OB_TYPE) == _bytearray_type() else 0


@kernel("int64(int64, int64, int64)")
def note(kind, address, nbytes):  # type: ignore[no-untyped-def]
    """A new note with the `nbytes` at `address`; 0 with MemoryError set."""
    made = _new_bytearray(0, 1 + nbytes)
    if made != 0:
        store8(_data_of(made), kind)
        if nbytes > 0:
            copy(_data_of(made) + 1, address, nbytes)
    return made


@kernel("int64(int64, int64)")
def note_word(kind, word):  # type: ignore[no-untyped-def]
    """A new note with one word; 0 with MemoryError set."""
    made = _new_bytearray(0, 9)
    if made != 0:
        store8(_data_of(made), kind)
        for index in range(8):
            store8(_data_of(made) + 1 + index, word >> 8 * index)
    return made


@kernel("int64(int64, int64, int64)")
def opened(address, nbytes, decodes):  # type: ignore[no-untyped-def]
    """The object of a message if it is a plain value, and `decodes` allows to look; else a note with the message."""
    found = read_pickle(address, nbytes) if decodes != 0 else 0
    return found if found != 0 else note(RAW, address, nbytes)
