"""Calls of C functions by their address, and addresses of symbols."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I8, I64 = ir.IntType(8), ir.IntType(64)


@intrinsic
def call_one(typingctx: Any, function: Any, first: Any) -> Any:
    """Call a C function of a word, which returns one, by its address."""
    return types.int64(*[types.int64] * 2), _call


@intrinsic
def call_two(typingctx: Any, function: Any, first: Any, second: Any) -> Any:
    """Call a C function of two words, which returns one, by its address."""
    return types.int64(*[types.int64] * 3), _call


@intrinsic
def call_four(typingctx: Any, function: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
    """Call a C function of four words, which returns one, by its address."""
    return types.int64(*[types.int64] * 5), _call


@intrinsic
def call_five(typingctx: Any, function: Any, first: Any, second: Any, third: Any, fourth: Any, fifth: Any) -> Any:
    """Call a C function of five words, which returns one, by its address."""
    return types.int64(*[types.int64] * 6), _call


@intrinsic
def call_six(typingctx: Any, function: Any, first: Any, second: Any, third: Any, fourth: Any, fifth: Any, sixth: Any) -> Any:
    """Call a C function of six words, which returns one, by its address."""
    return types.int64(*[types.int64] * 7), _call


@intrinsic
def call_seven(
    typingctx: Any, function: Any, first: Any, second: Any, third: Any, fourth: Any, fifth: Any, sixth: Any, seventh: Any
) -> Any:
    """Call a C function of seven words, which returns one, by its address."""
    return types.int64(*[types.int64] * 8), _call


@intrinsic
def call_step(typingctx: Any, function: Any, state: Any) -> Any:
    """Call a C function of a word, which returns nothing, by its address."""
    return types.void(*[types.int64] * 2), _call_for_nothing


@intrinsic
def call_reduce(typingctx: Any, function: Any, out: Any, low: Any, high: Any, count: Any) -> Any:
    """Call a C function of four words, which returns nothing, by its address."""
    return types.void(*[types.int64] * 5), _call_for_nothing


@intrinsic
def call_three(typingctx: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Call a C function of three words, which returns one, by its address."""
    return types.int64(*[types.int64] * 4), _call


@intrinsic
def call_message(
    typingctx: Any,
    function: Any,
    engine: Any,
    peer: Any,
    kind: Any,
    context: Any,
    tag: Any,
    nbytes: Any,
    first: Any,
    second: Any,
    third: Any,
) -> Any:
    """Call a C function that takes a message, from or to a transport (:mod:`transports.messages`), by its address."""
    return types.int64(*[types.int64] * 10), _call


def _call(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _emit_call(builder, I64, args)


def _call_for_nothing(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    _emit_call(builder, ir.VoidType(), args)
    return context.get_dummy_value()


def _emit_call(builder: Any, result: Any, args: Any) -> Any:
    kind = ir.FunctionType(result, [I64] * (len(args) - 1))
    return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])


def make_symbol(name: str) -> Any:
    """Return an intrinsic that gives the address which :mod:`numba_kernels.symbols` was told for `name`."""

    @intrinsic
    def symbol(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return address_of_symbol(builder, name)

        return types.int64(), codegen

    return symbol


def address_of_symbol(builder: Any, name: str) -> Any:
    """Emit the address of a symbol."""
    found = builder.module.globals.get(name)
    if found is None:
        found = ir.GlobalVariable(builder.module, I8, name)
        found.linkage = "external"
    return builder.ptrtoint(found, I64)
