"""Calls of the driver's functions by compiled code, several in a row: Python enters it once for all of them.

A call through ctypes costs half a microsecond, and what Python does around it as much again; a collective in a stream takes up to eight.

::

    table:   | function | up to 11 arguments |   a row for each call, made in order until one fails

Functions are plain C that returns an int, 0 for success; arguments are integers and addresses, in the words in which 64-bit Linux passes
them. The GIL is released while they run: the driver may wait for room in a stream.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from numba_kernels.atomics import load64
from numba_kernels.cuda.driver import CAPTURED, FOREIGN, NOT_CURRENT
from numba_kernels.jit import entry, kernel
from numba_kernels.layout import WORD, words
from numba_kernels.rows import NamedTuple

_FEW, _MANY = 4, 11
CALL = words("DriverCall", f"function is_long arguments*{_MANY}")

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _make_call(count: int) -> Any:
    @intrinsic
    def call(typingctx: Any, function: Any, arguments: Any) -> Any:
        """Call a function by its address, with the words at `arguments`."""

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(_I32, [_I64] * count)
            first = builder.inttoptr(args[1], _I64.as_pointer())
            given = [builder.load(builder.gep(first, [_I64(k)])) for k in range(count)]
            return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), given), _I64)

        return types.int64(types.int64, types.int64), codegen

    return call


_call_few, _call_many = _make_call(_FEW), _make_call(_MANY)


def _make_query(before: int, after: int) -> Any:
    """A call with so many words before the one that says where the result goes, and behind it."""

    @intrinsic
    def query(typingctx: Any, function: Any, one: Any, other: Any) -> Any:
        """What a function writes to where it is told; -1 if it fails."""

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(_I32, [*[_I64] * before, _I64.as_pointer(), *[_I64] * after])
            found = cgutils.alloca_once_value(builder, _I64(0))
            given = [*args[1 : 1 + before], found, *args[1 + before : 1 + before + after]]
            status = builder.call(builder.inttoptr(args[0], kind.as_pointer()), given)
            return builder.select(builder.icmp_signed("==", status, _I32(0)), builder.load(found), _I64(-1))

        return types.int64(types.int64, types.int64, types.int64), codegen

    return query


_query, _query_of, _query_attribute = _make_query(0, 0), _make_query(1, 0), _make_query(0, 2)

BEFORE = words("Before", "current capturing attribute context buffer_id streams known")
"""Addresses of three functions, what is expected, and how many streams, and pairs of an address and a number, follow."""


@kernel("int64(int64, int64)", is_entry=True)
def _call_all(table, count):  # type: ignore[no-untyped-def]
    """Make calls: 0, or the status of one that failed and, above 32 bits, which."""
    for row in range(count):
        at = table + row * CALL.total
        function, arguments = load64(at + CALL.function), at + CALL.arguments
        status = _call_many(function, arguments) if load64(at + CALL.is_long) != 0 else _call_few(function, arguments)
        if status != 0:
            return status | row << 32
    return 0


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def examine(current, of_stream, capturing, stream, context):  # type: ignore[no-untyped-def]
    """What :meth:`numba_kernels.cuda.driver.Driver.examine` finds, by three functions of the driver; -1 if one of them fails."""
    here, there, is_captured = _query(current, 0, 0), _query_of(of_stream, stream, 0), _query_of(capturing, stream, 0)
    if here == -1 or there == -1 or is_captured == -1:
        return -1
    found = NOT_CURRENT if here != context else 0
    found |= FOREIGN if there != context else 0
    return found | (CAPTURED if is_captured != 0 else 0)


@kernel("int64(int64)", is_entry=True, nogil=False)
def _is_as_before(table):  # type: ignore[no-untyped-def]
    """1 if :meth:`numba_kernels.cuda.driver.Driver.watch` finds everything as before; 0 if not, or if a function of the driver fails."""
    if _query(load64(table + BEFORE.current), 0, 0) != load64(table + BEFORE.context):
        return 0
    at, capturing, attribute = table + BEFORE.total, load64(table + BEFORE.capturing), load64(table + BEFORE.attribute)
    for _ in range(load64(table + BEFORE.streams)):
        if _query_of(capturing, load64(at), 0) != 0:
            return 0
        at += WORD
    for _ in range(load64(table + BEFORE.known)):
        if _query_attribute(attribute, load64(table + BEFORE.buffer_id), load64(at)) != load64(at + WORD):
            return 0
        at += 2 * WORD
    return 1


class Row(NamedTuple):
    """A call: the function's address and its arguments."""

    function: int
    arguments: Sequence[int]


class Calls:
    """Calls of functions, in a table.

    Parameters
    ----------
    rows
        The calls, of 4 or fewer, or of 11 arguments.
    keep
        What must live as long as the table: memory that arguments point to.
    """

    def __init__(self, rows: Sequence[Row], keep: Any) -> None:
        self._table = np.zeros((len(rows), CALL.total // WORD), dtype=np.int64)
        self._keep = keep
        first = CALL.arguments // WORD
        for row, (function, arguments) in zip(self._table, rows, strict=True):
            row[CALL.function // WORD], row[CALL.is_long // WORD] = function, len(arguments) > _FEW
            row[first : first + len(arguments)] = arguments
        self._point, self._address, self._count = entry(_call_all), self._table.ctypes.data, len(rows)

    def __call__(self) -> tuple[int, int]:
        """Make them: status and number of the first that fails, 0 and 0 if none does."""
        found = self._point(self._address, self._count)
        return (found & 0xFFFFFFFF, found >> 32) if found else (0, 0)


class Watch:
    """What looks whether all is as before, in one call of compiled code.

    Parameters
    ----------
    functions
        Addresses of ``cuCtxGetCurrent``, ``cuStreamIsCapturing`` and ``cuPointerGetAttribute``.
    context
        The context that is to be current.
    buffer_id
        The driver's number of the attribute by which allocations are told apart.
    streams
        Those that must not be captured.
    known
        Addresses, and the number of the allocation of each.
    """

    def __init__(
        self, functions: Iterable[int], context: int, buffer_id: int, streams: Sequence[int], known: Sequence[tuple[int, int]]
    ) -> None:
        counts = len(streams), len(known)
        words = [*functions, context, buffer_id, *counts, *streams, *itertools.chain(*known)]
        self._table = np.array(words, np.uint64)
        self._look, self._address = entry(_is_as_before), self._table.ctypes.data

    def __call__(self) -> bool:
        """Whether it is so."""
        return bool(self._look(self._address))
