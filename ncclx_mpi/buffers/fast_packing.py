"""Pack and Unpack in one compiled call: of predefined datatypes, and of derived ones that are known (:mod:`numba_kernels.pylayouts`)."""

from __future__ import annotations

from ncclx_mpi.p2p.gaps import LONGEST
from numba_kernels import types
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import copy, make_stack
from numba_kernels.pylayouts import LAYOUT, fits, pack_row, take_layout, unpack_row
from numba_kernels.pyobject import NONE, element_named, index_argument, index_of, item_sizes, object_argument, object_of
from numba_kernels.pysequence import VECTOR, let_go, open_memory
from numba_kernels.pyslots import decrease

SLOW = -1
"""Instead of a position: nothing was done, and Python does it, or says what is wrong."""
_WORK = words("Work", f"elements*{VECTOR.total // 8} packed*{VECTOR.total // 8} row*{LAYOUT.total // 8}")
_work_words = make_stack(_WORK.total // 8)


@kernel(types.int64(object_argument, object_argument, object_argument, index_argument, types.int64), is_entry=True, nogil=False)
def move_elements(datatype, elements, packed, position, unpacking):  # type: ignore[no-untyped-def]
    """Pack all elements in a buffer to another one from byte `position` on, or unpack as many there: the position after them, or SLOW."""
    work = _work_words()
    row, element = work + _WORK.row, element_named(object_of(datatype))
    store64(row + LAYOUT.key, 0)
    if element != NONE:
        _predefined(row, load64(item_sizes() + 8 * element))
    elif take_layout(object_of(datatype), row) == 0:
        return SLOW
    end = SLOW
    if open_memory(object_of(elements), work + _WORK.elements) != NONE:
        if open_memory(object_of(packed), work + _WORK.packed) != NONE:
            end = _move(row, work + _WORK.elements, work + _WORK.packed, index_of(position), unpacking)
            let_go(work + _WORK.packed)
        let_go(work + _WORK.elements)
    decrease(load64(row + LAYOUT.key))
    return end


@kernel("void(int64, int64)")
def _predefined(row, nbytes):  # type: ignore[no-untyped-def]
    """A layout without gaps, and without blocks."""
    store64(row + LAYOUT.size, nbytes)
    store64(row + LAYOUT.extent, nbytes)
    store64(row + LAYOUT.low, 0)
    store64(row + LAYOUT.high, nbytes)


@kernel("int64(int64, int64, int64, int64, int64)")
def _move(row, elements, packed, position, unpacking):  # type: ignore[no-untyped-def]
    """Move the bytes: the position after them, or SLOW if they do not fit, or are many."""
    size, extent, room = load64(row + LAYOUT.size), load64(row + LAYOUT.extent), load64(packed + VECTOR.nbytes)
    count = load64(elements + VECTOR.nbytes) // extent if extent > 0 else NONE
    target = elements if unpacking != 0 else packed
    if count < 0 or fits(row, count, 0, load64(elements + VECTOR.nbytes)) == 0 or load64(target + VECTOR.writable) == 0:
        return SLOW
    nbytes = count * size
    if nbytes > LONGEST or position < 0 or position > room - nbytes:
        return SLOW
    memory, stream = load64(elements + VECTOR.address), load64(packed + VECTOR.address) + position
    if load64(row + LAYOUT.key) == 0:
        copy(memory if unpacking != 0 else stream, stream if unpacking != 0 else memory, nbytes)
    elif unpacking != 0:
        unpack_row(row, stream, nbytes, memory)
    else:
        pack_row(row, memory, nbytes, stream)
    return position + nbytes
