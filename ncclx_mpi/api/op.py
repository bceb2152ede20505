"""Reduction operations: predefined ones are compiled kernels, user-defined ones call back into Python.

What collectives see of either is the address of one C function, ``void(int64 out, int64 low, int64 high, int64 count)``:
``out[i] = low[i] OP high[i]`` on packed elements, `low` from the lower rank, `out` perhaps the same memory as either.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from ncclx_mpi import arguments, errors, late, process, runtime
from ncclx_mpi.api.datatype import Datatype, kind_of
from ncclx_mpi.api.handle import Handle, constant
from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.layout import Layout, committed
from ncclx_mpi.buffers.memory import view as memory_view
from ncclx_mpi.buffers.named import LAYOUTS
from ncclx_mpi.buffers.source import allocate
from ncclx_mpi.collectives.fast import ELEMENTS
from ncclx_mpi.state import State
from ncclx_mpi.typing import BufSpec
from numba_kernels import reduce
from numba_kernels.layout import WORD, zeroed
from numba_kernels.pyobject import TYPE_NUMBERS
from transports import messages

if TYPE_CHECKING:
    from ncclx_mpi.api import memory
    from ncclx_mpi.api.memory import buffer
    from ncclx_mpi.rma import by_network
    from ncclx_mpi.rma.by_network import WordOperations
else:
    memory, by_network = late.module("ncclx_mpi.api.memory"), late.module("ncclx_mpi.rma.by_network")

MAX_USER_OPS = 32
_ELEMENTS: dict[str, list[int]] = {
    kind: [TYPE_NUMBERS[code] for code in codes]
    for codes, kind in (
        ("?", "bool"), ("V", "byte"), ("b", "i8"), ("B", "u8"), ("h", "i16"), ("H", "u16"), ("i", "i32"), ("I", "u32"),
        ("lq", "i64"), ("LQ", "u64"), ("e", "f16"), ("f", "f32"), ("d", "f64"), ("F", "c64"), ("D", "c128"),
    )
}  # fmt: skip
"""NumPy type numbers of element types with compiled reductions."""

_WHY_NOT = {
    "byte": ", nor for arrays whose elements MPI has no type for (floats of 8 bits): they are moved as bytes; say what the elements are, as "
    "in [array, MPI.BFLOAT16_T], or convert them before the reduction"
}
"""What is added to the error about an operation, by element type."""

_IN_WINDOWS_ONLY = ("replace", "no_op")
"""They say whether a target's memory is written to; no function combines elements so."""

_User = Callable[[Any, Any, Datatype], None]
_REDUCE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_live: set[OpState] = set()
_lock = threading.Lock()


NO_WORDS, NO_TABLE = zeroed(2 * ELEMENTS * WORD)
"""Table of an operation that has no compiled function for any element."""


class OpState(State):
    """One operation: what it does to two Python objects, and native functions made so far.

    ``words`` holds those of plain NumPy elements by type number, and behind them by what all ranks know them, for the calls that never
    leave compiled code; ``table`` is its address, valid for ever: a user's operation, which another thread may free, has none and shares
    an empty table. Whoever calls a native function later keeps ``natives`` itself, since :meth:`Op.Free` empties the state.
    """

    __slots__ = ("commute", "function", "name", "natives", "table", "user", "words")
    WHAT = "reduction operation"
    ERROR = errors.ERR_OP
    name: str
    function: Callable[..., Any]
    commute: bool
    user: bool
    natives: dict[Any, tuple[int, Any]]
    table: int
    words: array[int]

    def __init__(self, name: str = "", function: Callable[..., Any] | None = None, commute: bool = True) -> None:
        if function is not None:
            self.name = name
            self.function = function
            self.commute = commute
            self.user = not name
            self.natives = {}
            self.words, self.table = (NO_WORDS, NO_TABLE) if self.user else zeroed(2 * ELEMENTS * WORD)


_NULL = OpState()


class Op(Handle):
    """Reduction operation."""

    __slots__ = ("_is_found",)
    _is_found: bool
    """Unset but on a handle that a number led to: mpi4py knows of no Python function then."""
    _NULL = _NULL
    _STATE = (OpState,)
    _state: OpState

    def __new__(cls, op: Op | None = None) -> Self:
        """Create a handle of the same operation, or a null one."""
        return cls._copy(op, "op")

    def __call__(self, x: Any, y: Any, /) -> Any:
        """Apply the operation to two Python objects."""
        if not self:
            raise ValueError("cannot call user-defined operation: it is null")
        state = self._state
        return state.function(x, y, None) if state.user else state.function(x, y)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle predefined operations by name, user-defined ones by their function."""
        if self and self._state.user:
            if hasattr(self, "_is_found"):
                raise ValueError("cannot serialize a user-defined operation that was found by its number")
            return type(self).Create, (self._state.function, self._state.commute)
        return super().__reduce__()

    @classmethod
    def fromhandle(cls, handle: int) -> Self:
        """Create object from the integer that `handle` gave."""
        found = super().fromhandle(handle)
        found._is_found = True
        return found

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Datatype], None], commute: bool = False) -> Self:
        """Create a user-defined reduction operation.

        `function(inbuf, inoutbuf, datatype)` gets two `memory` objects and leaves in the second what
        ``inbuf OP inoutbuf`` is, `inbuf` from the lower rank. Both are ``count * extent`` bytes from the origin of the first
        element on; where a datatype reaches beyond, that memory is there too, by address. At most 32 operations can be alive.
        """
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        memory.buffer()  # imported now: the function may be called in the middle of any import, by a finalizer's progress
        state = OpState("", function, bool(commute))
        with _lock:
            if len(_live) >= MAX_USER_OPS:
                raise RuntimeError(f"cannot create too many user-defined reduction operations: {MAX_USER_OPS} are alive, Free some")
            _live.add(state)
        return cls._refer(state)

    def Free(self) -> None:
        """Free a user-defined reduction operation."""
        if not self._state.user:
            errors.fail(errors.ERR_OP, f"MPI.{self._state.name} is predefined and cannot be freed")
        with _lock:
            _live.discard(self._state)
        self._state.empty()
        self._become_null()

    def Is_commutative(self) -> bool:
        """Query reduction operations for their commutativity."""
        return self._state.commute

    @property
    def is_commutative(self) -> bool:
        """Is a commutative operation."""
        return self.Is_commutative()

    @property
    def is_predefined(self) -> bool:
        """Is a predefined operation."""
        return not self or not self._state.user

    def Reduce_local(self, inbuf: BufSpec, inoutbuf: BufSpec) -> None:
        """Apply a reduction operation to local data."""
        inout = arguments.recv(inoutbuf)
        low = arguments.send(inbuf)
        check_same(low, inout)
        function, _natives = native(self, inout.datatype), self._state.natives
        address, _owner = low.packed()
        out, _kept, finish = inout.landing(filled=True)
        _REDUCE(function)(out, address, out, inout.count)
        finish(inout.nbytes)


def check_same(sendbuf: Any, recvbuf: Any) -> None:
    """Raise unless two buffers of a reduction have the same datatype and count."""
    if sendbuf.datatype != recvbuf.datatype:
        raise ValueError(f"mismatch in send and receive MPI datatypes ({sendbuf.datatype.name} and {recvbuf.datatype.name})")
    if sendbuf.count != recvbuf.count:
        raise ValueError(f"mismatch in send count {sendbuf.count} and receive count {recvbuf.count}")


def native(op: Op, datatype: Datatype) -> int:
    """Return the address of the C function that applies `op` to packed elements of `datatype`.

    It is valid as long as the ``natives`` of the operation's state live.

    Raises
    ------
    TypeError
        `op` is no MPI operation.
    Exception
        ERR_OP: the operation is null or not defined for this datatype.
    """
    if not isinstance(op, Op):
        raise TypeError(f"op must be an MPI.Op, not {type(op).__name__}")
    state = op._state
    key = datatype.handle if state.user else kind_of(datatype)
    found = state.natives.get(key)
    if found is None:
        made = _user_function(state, datatype) if state.user else _predefined_function(state, datatype)
        found = state.natives.setdefault(key, made)  # another thread may have made one, which may be in use, and stays
    return found[0]


def number_of(op: Op, datatype: Datatype) -> int:
    """Return by what all ranks know a predefined operation on packed elements of a datatype, for which it is defined."""
    return _NUMBERS[op._state] + _TYPE_NUMBERS[kind_of(datatype)]


def word_operations() -> WordOperations:
    """What a network's operations on words are to MPI: on integers of eight bytes."""
    kinds = ("i64", "u64")
    reductions = ((SUM, messages.ADD), (BAND, messages.AND), (BOR, messages.OR), (BXOR, messages.XOR))
    return by_network.WordOperations(
        tables={op._state.table: number for op, number in (*reductions, (REPLACE, messages.SWAP), (NO_OP, messages.READ))},
        numbers={_NUMBERS[op._state] + _TYPE_NUMBERS[kind]: number for op, number in reductions for kind in kinds},
        kinds=kinds,
        types=[number for kind in kinds for number in _ELEMENTS[kind]],
    )


def numbered(number: int) -> tuple[int, bool]:
    """Return the address of the C function that :func:`number_of` has numbered, and whether it is compiled."""
    operation, element = divmod(number, len(reduce.TYPES))
    layout = next(layout for layout in LAYOUTS.values() if layout.kind == reduce.TYPES[element])
    op = _PREDEFINED[operation]
    function = native(op, Datatype._refer(layout))
    return function, is_compiled(op, function)


def is_compiled(op: Op, function: int) -> bool:
    """Whether `function`, which :func:`native` has returned, is compiled: it needs no GIL and calls no Python."""
    return (function, None) in op._state.natives.values()


def _predefined_function(state: OpState, datatype: Datatype) -> tuple[int, Any]:
    """Return a compiled function, which the table knows from now on, or NumPy's: address, and what keeps it alive."""
    operation, kind = state.name.lower(), kind_of(datatype)
    if operation in _IN_WINDOWS_ONLY:
        errors.fail(errors.ERR_OP, f"MPI.{state.name} is for windows only: it reduces nothing")
    if kind is None or not reduce.defined(operation, kind):
        errors.fail(
            errors.ERR_OP, f"MPI.{state.name} is not defined for elements of type {datatype.name}{_WHY_NOT.get(kind or '', '')}"
        )
    address = reduce.address(operation, kind)
    if address:
        for number in _ELEMENTS.get(kind, ()):
            state.words[ELEMENTS + number] = _NUMBERS[state] + _TYPE_NUMBERS[kind]
            state.words[number] = address
        return address, None
    twin, element = reduce.numpy_twin(operation, kind), reduce.dtype(kind)

    def apply(out: int, low: int, high: int, count: int) -> None:
        nbytes = count * element.itemsize
        twin(*(memory_view(at, nbytes).view(element) for at in (out, low, high)))

    return _callback(apply)


def _user_function(state: OpState, datatype: Datatype) -> tuple[int, Any]:
    """Wrap a user's function: it wants its result where its second argument is, and elements as laid out in memory."""
    layout = committed(datatype._state, "reduction")
    apply = _on_packed if layout.contiguous and layout.true_lb == 0 else _on_laid_out
    return _callback(functools.partial(apply, state.function, layout, Datatype(datatype)))


def _on_packed(function: _User, layout: Layout, datatype: Datatype, out: int, low: int, high: int, count: int) -> None:
    """Call a user's function on packed elements, which are laid out in memory just so."""
    nbytes = count * layout.size
    inbuf = (
        memory.buffer(bytearray(ctypes.string_at(low, nbytes)))
        if out == low
        else memory.buffer._over(low, nbytes, False, None, None)
    )
    if out != high:
        ctypes.memmove(out, high, nbytes)
    function(inbuf, memory.buffer._over(out, nbytes, False, None, None), Datatype(datatype))


def _on_laid_out(function: _User, layout: Layout, datatype: Datatype, out: int, low: int, high: int, count: int) -> None:
    """Call a user's function on elements with the gaps of their datatype."""
    inbuf, inoutbuf = _laid_out(layout, low, count), _laid_out(layout, high, count)
    function(inbuf, inoutbuf, Datatype(datatype))
    packing.pack(layout, inoutbuf.address, count, out)


def _laid_out(layout: Layout, packed: int, count: int) -> buffer:
    """Unpack elements into new memory: ``count * extent`` bytes from the origin of the first one on, and as many around as they reach."""
    low, high = layout.reach(count)
    nbytes = max(count * layout.extent, 0)
    start = min(low, 0)
    address, area = allocate(max(high, nbytes) - start, clear=True)
    origin = address - start
    packing.unpack(layout, packed, count * layout.size, origin)
    return memory.buffer._over(origin, nbytes, False, area[-1], area)


def _callback(apply: Callable[[int, int, int, int], None]) -> tuple[int, Any]:
    """Return the address of a C function that runs `apply`, and the object that keeps it alive."""

    def guarded(out: int, low: int, high: int, count: int) -> None:
        try:
            apply(out, low, high, count)
        except BaseException:
            process.print_exception()
            print("Fatal Python error: exception in user-defined reduction operation", file=sys.stderr, flush=True)
            runtime.abort(1)

    pointer = _REDUCE(guarded)
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0, pointer


def predefined(op: Any) -> Callable[[Any, Any], Any] | None:
    """Return what a predefined operation does to two Python objects; None of anything else."""
    state = op._state if type(op) is Op else _NULL
    return None if state is _NULL or state.user else state.function


def _maxloc(x: Any, y: Any) -> Any:
    (u, i), (v, j) = x, y
    if u > v:
        return u, i
    return (v, j) if v > u or j < i else (u, i)


def _minloc(x: Any, y: Any) -> Any:
    (u, i), (v, j) = x, y
    if u < v:
        return u, i
    return (v, j) if v < u or j < i else (u, i)


def _define(name: str, function: Callable[[Any, Any], Any]) -> Op:
    return constant(Op._refer(OpState(name, function)), name)


OP_NULL = constant(Op(), "OP_NULL")
MAX = _define("MAX", lambda x, y: y if y > x else x)
MIN = _define("MIN", lambda x, y: y if y < x else x)
SUM = _define("SUM", lambda x, y: x + y)
PROD = _define("PROD", lambda x, y: x * y)
LAND = _define("LAND", lambda x, y: bool(x) & bool(y))
BAND = _define("BAND", lambda x, y: x & y)
LOR = _define("LOR", lambda x, y: bool(x) | bool(y))
BOR = _define("BOR", lambda x, y: x | y)
LXOR = _define("LXOR", lambda x, y: bool(x) ^ bool(y))
BXOR = _define("BXOR", lambda x, y: x ^ y)
MAXLOC = _define("MAXLOC", _maxloc)
MINLOC = _define("MINLOC", _minloc)
REPLACE = _define("REPLACE", lambda x, y: y)
NO_OP = _define("NO_OP", lambda x, y: x)
_PREDEFINED = (MAX, MIN, SUM, PROD, LAND, BAND, LOR, BOR, LXOR, BXOR, MAXLOC, MINLOC)
_NUMBERS = {op._state: k * len(reduce.TYPES) for k, op in enumerate(_PREDEFINED)}
_TYPE_NUMBERS: dict[str | None, int] = {kind: k for k, kind in enumerate(reduce.TYPES)}
