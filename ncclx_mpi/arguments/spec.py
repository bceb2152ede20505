"""The resolver: every form in which a program may name a buffer, checked as mpi4py checks it.

Simple forms, for messages and equal blocks: ``buf``, ``[buf, type]``, ``[buf, count]``, ``[buf, (count, displ)]``,
``[buf, count, type]``, ``[buf, (count, displ), type]``, ``[buf, count, displ, type]``. Vector forms have sequences in the place of
count and displacement; a tuple in the place of the counts is always (counts, displs). In the last kind each rank has its own
type, and displacements are bytes.

Unlike mpi4py, an explicit count is checked against the memory that is known to be there (:mod:`ncclx_mpi.buffers.bounds`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from ncclx_mpi.arguments import kept
from ncclx_mpi.arguments.buffer import Buffer, VBuffer, WBuffer
from ncclx_mpi.buffers.bounds import check_inside
from ncclx_mpi.buffers.layout import Layout, committed
from ncclx_mpi.buffers.memory import C_CONTIGUOUS, F_CONTIGUOUS, WRITEABLE, array_words
from ncclx_mpi.buffers.sentinels import BOTTOM, IN_PLACE
from ncclx_mpi.buffers.source import check_byte_order, is_source, open_source
from ncclx_mpi.gpu_memory.memory import DeviceMemory
from ncclx_mpi.gpu_memory.memory import at as device_memory
from numba_kernels.late_numpy import is_array, np
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.api.datatype import Datatype

T = TypeVar("T")

CODES: dict[str, Datatype] = {}
"""Predefined datatype of each type code; :func:`register` fills it."""

_datatype: Any = type(None)


def register(datatype: type, codes: dict[str, Datatype]) -> None:
    """Make the class of datatypes known, and what the type codes mean: both are defined above this package."""
    global _datatype
    _datatype = datatype
    CODES.update(codes)


_EXPECT_ITEMS = "message: expecting 2 to 4 items"
_EXPECT_BUFFER = "message: expecting buffer or list/tuple"
_CONTIGUOUS_C, _CONTIGUOUS_F = C_CONTIGUOUS, F_CONTIGUOUS
_WRITABLE_C, _WRITABLE_F = C_CONTIGUOUS | WRITEABLE, F_CONTIGUOUS | WRITEABLE

_by_dtype: dict[int, tuple[Any, Layout, np.dtype[Any]]] = {}
"""Datatype and layout by the identity of a NumPy dtype object, which is kept alive here."""
_MOST_DTYPES = 256


class _Memory(NamedTuple):
    """Opened memory and its type; `nbytes` is -1 where the program gave an address only."""

    address: int
    nbytes: int
    owner: Any
    readonly: bool
    datatype: Datatype
    is_none: bool
    lent: DeviceMemory | None


def send(spec: Any, blocks: int = 1) -> Buffer:
    """Resolve what a call reads: one message, or `blocks` equal blocks (then `count` is of one block)."""
    return _quick(spec, blocks, _CONTIGUOUS_C, _CONTIGUOUS_F) or kept.find(spec, False, blocks) or _simple(spec, False, blocks)


def recv(spec: Any, blocks: int = 1) -> Buffer:
    """Resolve what a call writes: one message, or `blocks` equal blocks (then `count` is of one block)."""
    return _quick(spec, blocks, _WRITABLE_C, _WRITABLE_F) or kept.find(spec, True, blocks) or _simple(spec, True, blocks)


def _quick(spec: Any, blocks: int, flags_c: int, flags_f: int) -> Buffer | None:
    """Resolve ``array`` and ``[array, datatype]`` of a NumPy array and a predefined datatype.

    None for everything else, and for what is wrong: the long way knows what to say.
    """
    if is_array(spec):
        address, descr, flags = array_words(spec)
        found = _by_dtype.get(descr)
        if found is None:
            return None
        datatype, layout, _ = found
        array, count, rest = spec, spec.size, 0
    elif isinstance(spec, list | tuple) and len(spec) == 2:
        array, datatype = spec
        if not is_array(array) or type(datatype) is not _datatype:
            return None
        layout = datatype._state
        if layout is None or not layout.is_plain:
            return None
        address, _, flags = array_words(array)
        count, rest = divmod(array.nbytes, layout.size)
    else:
        return None
    if rest or (flags & flags_c != flags_c and flags & flags_f != flags_f):
        return None
    if blocks > 1:
        count, rest = divmod(count, blocks)
        if rest:
            return None
    return Buffer(address, count, datatype, layout, array, not flags & WRITEABLE)


def send_vector(spec: Any, size: int) -> VBuffer:
    """Resolve blocks of any length, one for each of `size` ranks, that a call reads."""
    return _vector(spec, size, writable=False)


def recv_vector(spec: Any, size: int) -> VBuffer:
    """Resolve blocks of any length, one for each of `size` ranks, that a call writes."""
    return _vector(spec, size, writable=True)


def send_w(spec: Any, size: int) -> WBuffer:
    """Resolve blocks of any type, one for each of `size` ranks, that a call reads."""
    return _vector_w(spec, size, writable=False)


def recv_w(spec: Any, size: int) -> WBuffer:
    """Resolve blocks of any type, one for each of `size` ranks, that a call writes."""
    return _vector_w(spec, size, writable=True)


def has_counts(spec: Any) -> bool:
    """Whether a vector form gives counts, rather than leave them to be inferred."""
    return _split(spec, tuple)[1] is not None


def is_in_place(spec: Any) -> bool:
    """Whether a send buffer says that the operand is in the receive buffer: IN_PLACE, or None."""
    return spec is None or spec is IN_PLACE


def _simple(spec: Any, writable: bool, blocks: int) -> Buffer:
    source, count, displ, kind = _split(spec, list | tuple)
    memory = _open(source, kind, writable=writable)
    if memory.datatype._state is None and displ:
        raise ValueError("message: cannot handle displacement, datatype is null")
    layout = _layout(memory, is_inferred=count is None)
    offset = _displacement(displ, memory, layout)
    if count is None:
        number = _inferred(memory, layout, memory.nbytes - offset, blocks)
    else:
        number = _index(count)
        if number < 0:
            raise ValueError(f"message: negative count {number}")
        if number > 0 and memory.is_none:
            raise ValueError(f"message: buffer is None but count is {number}")
    check_inside(memory, offset, number * max(blocks, 1), layout)
    device = _device(memory, layout, offset, number)
    buffer = Buffer(memory.address + offset, number, memory.datatype, layout, memory.owner, memory.readonly, device)
    if device is not None:
        kept.keep(spec, writable, blocks, buffer)
    return buffer


def _split(spec: Any, pair: Any) -> tuple[Any, Any, Any, Any]:
    """Buffer, counts, displacements and type of a form; None for what is left out. Both numbers may come as one: what a `pair` is."""
    if not isinstance(spec, list | tuple):
        if spec is None:
            raise TypeError(f"{_EXPECT_BUFFER}, got None")
        return spec, None, None, None
    counts = displs = kind = None
    match len(spec):
        case 2:
            source, counts = spec
            if isinstance(counts, (str, _datatype)):
                counts, kind = None, counts
            elif isinstance(counts, pair):
                counts, displs = counts
        case 3:
            source, counts, kind = spec
            if isinstance(counts, pair):
                counts, displs = counts
        case 4:
            source, counts, displs, kind = spec
        case _:
            raise ValueError(_EXPECT_ITEMS)
    return source, counts, displs, kind


def _vector(spec: Any, size: int, *, writable: bool) -> VBuffer:
    source, counts, displs, kind = _split(spec, tuple)
    memory = _open(source, kind, writable=writable)
    layout = _layout(memory, is_inferred=counts is None)
    if counts is None:
        total = _inferred(memory, layout, memory.nbytes, 1)
        numbers = [total // size + (total % size > rank) for rank in range(size)]
    else:
        numbers = [_index(counts)] * size if is_integral(counts) else _items(counts, size)
    if displs is None:
        places = list(accumulate(numbers, initial=0))[:-1]
    else:
        step = _index(displs) if is_integral(displs) else 0
        places = [step * rank for rank in range(size)] if is_integral(displs) else _items(displs, size)
    for number, place in zip(numbers, places, strict=True):
        if number < 0:
            raise ValueError(f"message: negative count {number}")
        if number > 0 and memory.is_none:
            raise ValueError(f"message: buffer is None but count is {number}")
        check_inside(memory, place * layout.extent, number, layout)
    used, place = next((pair for pair in zip(numbers, places, strict=True) if pair[0]), (0, 0))
    device = _device(memory, layout, place * layout.extent, used)
    return VBuffer(memory.address, numbers, places, memory.datatype, layout, memory.owner, memory.readonly, device)


def _vector_w(spec: Any, size: int, *, writable: bool) -> WBuffer:
    counts: Any = None
    displs: Any = None
    match len(spec):
        case 2:
            source, kinds = spec
        case 3:
            source, (counts, displs), kinds = spec
        case 4:
            source, counts, displs, kinds = spec
        case _:
            raise ValueError(_EXPECT_ITEMS)
    is_absolute = is_bottom(source)
    if is_absolute and counts is None:
        raise ValueError("message: BOTTOM requires counts")
    if is_absolute and displs is None:
        raise ValueError("message: BOTTOM requires displs")
    memory = None if is_absolute else open_source(source, writable=writable, with_format=False)
    numbers = [1] * size if counts is None and displs is None else _items(counts, size)
    places = [0] * size if counts is None and displs is None else _items(displs, size)
    types = _types(kinds, size)
    blocks = []
    for number, place, datatype in zip(numbers, places, types, strict=True):
        if number < 0:
            raise ValueError(f"message: negative count {number}")
        if number > 0 and source is None:
            raise ValueError(f"message: buffer is None but count is {number}")
        layout = committed(datatype._state, "message")
        if memory is not None:
            check_inside(memory, place, number, layout)
        base = 0 if memory is None else memory.address
        device = _device_at(layout, place, number) if memory is None else memory.lent
        blocks.append(Buffer(base + place, number, datatype, layout, memory, not writable, device))
    return WBuffer(blocks, memory, next((block.device for block in blocks if block.device is not None), None))


def target(spec: Any, origin: Buffer) -> tuple[int, int, Datatype]:
    """Resolve where in a window: displacement, count and type, those of `origin` where they are left out."""
    if spec is None:
        return 0, origin.count, origin.datatype
    if is_integral(spec):
        return _index(spec), origin.count, origin.datatype
    if not isinstance(spec, list | tuple):
        raise ValueError("target: expecting integral or list/tuple")
    if len(spec) > 3:
        raise ValueError("target: expecting 3 items at most")
    displ = _index(spec[0]) if len(spec) > 0 else 0
    count = _index(spec[1]) if len(spec) > 1 else origin.count
    return displ, count, as_datatype(spec[2]) if len(spec) > 2 else origin.datatype


def _open(source: Any, kind: Any, *, writable: bool) -> _Memory:
    if is_bottom(source):
        return _Memory(0, -1, None, False, as_datatype(kind), source is None, None)
    try:
        found = open_source(source, writable=writable, with_format=kind is None)
    except TypeError:
        if is_source(source):
            raise
        raise TypeError(f"{_EXPECT_BUFFER}, got {type(source).__name__}") from None
    datatype = _datatype_of(source, found.format) if kind is None else as_datatype(kind)
    return _Memory(found.address, found.nbytes, found.owner, found.readonly, datatype, False, found.lent)


def _device(memory: _Memory, layout: Layout, offset: int, count: int) -> DeviceMemory | None:
    """The GPU memory that elements are in, which for plain addresses nobody has said yet."""
    return memory.lent if memory.nbytes >= 0 else _device_at(layout, offset, count)


def _device_at(layout: Layout, address: int, count: int) -> DeviceMemory | None:
    """The GPU memory in which the first of some elements at an address begins."""
    if not count or not layout.size:
        return None
    first = next(layout.runs(address, 1))
    return device_memory(first.origin + int(first.layout.blocks[0, 0]))


def _datatype_of(source: Any, code: str | None) -> Datatype:
    """Datatype of a buffer's format; remembered by dtype object for arrays."""
    datatype = format_datatype(code)
    if is_array(source) and len(_by_dtype) < _MOST_DTYPES:
        layout = datatype._state
        if layout is not None and layout.size == source.itemsize:
            _by_dtype[id(source.dtype)] = (datatype, layout, source.dtype)
    return datatype


def format_datatype(code: str | None) -> Datatype:
    """Datatype of a buffer format."""
    if not code:
        return CODES["BYTE"]
    if code[0] in "@=<>":
        check_byte_order(code[0], f"format string {code!r}")
        code = code[1:]
    return _lookup(code)


def as_datatype(kind: Any) -> Datatype:
    """Datatype of a specification: a datatype, or a type code."""
    if isinstance(kind, _datatype):
        return kind  # type: ignore[no-any-return]
    return _lookup(kind)


def _lookup(code: Any) -> Datatype:
    try:
        return CODES[code]
    except KeyError:
        raise KeyError(f"cannot map {code!r} to MPI datatype") from None


def _layout(memory: _Memory, *, is_inferred: bool) -> Layout:
    """Layout of the elements; a null datatype where it must give the count is a mistake in the specification."""
    if memory.datatype._state is None and is_inferred and memory.nbytes > 0:
        raise ValueError("message: cannot infer count, datatype is null")
    return committed(memory.datatype._state, "message")


def is_bottom(source: Any) -> bool:
    """Whether addresses are given by the datatype: BOTTOM, or None."""
    return source is None or source is BOTTOM


def is_integral(value: Any) -> bool:
    """Whether a value is one integer rather than a sequence of them."""
    if isinstance(value, int):
        return True
    if isinstance(value, list | tuple):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


_index = operator.index


def of_length(values: Iterable[T], size: int) -> list[T]:
    """Return values as a list; raises ValueError unless there are `size` of them."""
    items = list(values)
    if len(items) != size:
        raise ValueError(f"expecting {size} items, got {len(items)}")
    return items


def _items(values: Sequence[int], size: int) -> list[int]:
    """`size` integers."""
    return of_length(map(_index, values), size)


def _types(kinds: Sequence[Any], size: int) -> list[Datatype]:
    """`size` datatypes."""
    types = of_length(kinds, size)
    for datatype in types:
        if not isinstance(datatype, _datatype):
            raise TypeError(f"expected a Datatype, got {type(datatype).__name__}")
    return types


def _displacement(displ: Any, memory: _Memory, layout: Layout) -> int:
    """Bytes before the first element."""
    if displ is None:
        return 0
    number = _index(displ)
    if number < 0:
        raise ValueError(f"message: negative displacement {number}")
    if number == 0:
        return 0
    if layout.extent <= 0:
        raise ValueError(f"message: cannot handle displacement, {_bounds(layout)}")
    if number * layout.extent > max(memory.nbytes, 0):
        raise ValueError(
            f"message: displacement {number} out of bounds, number of datatype entries {max(memory.nbytes, 0) // layout.extent}"
        )
    return number * layout.extent


def _inferred(memory: _Memory, layout: Layout, nbytes: int, blocks: int) -> int:
    """Number of elements (in one block) that fill the memory."""
    if nbytes <= 0:
        return 0
    if layout.extent <= 0:
        raise ValueError(f"message: cannot infer count, {_bounds(layout)}")
    number, rest = divmod(nbytes, layout.extent)
    if rest:
        raise ValueError(f"message: cannot infer count, buffer length {nbytes} is not a multiple of {_bounds(layout)}")
    if blocks < 2:
        return number
    if number % blocks:
        raise ValueError(
            f"message: cannot infer count, number of entries {number} is not a multiple of required number of blocks {blocks}"
        )
    return number // blocks


def _bounds(layout: Layout) -> str:
    return f"datatype extent {layout.extent} (lb:{layout.lb}, ub:{layout.ub})"
