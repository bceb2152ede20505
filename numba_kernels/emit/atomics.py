"""Intrinsics of :mod:`numba_kernels.atomics`: the only code that touches memory which another process or thread writes at the same time.

All take raw addresses (int64) of 8-byte aligned 64-bit words, in memory that is known to be mapped.
Names give the memory order: acquire, release, relaxed. Plain ``load64``/``store64`` are for private memory.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_X86 = platform.machine() in ("x86_64", "AMD64")


def _pointer(builder: Any, address: Any, kind: Any = I64) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _make_load(order: str | None, bits: int = 64) -> Any:
    kind = ir.IntType(bits)

    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _pointer(builder, args[0], kind)
            value = builder.load_atomic(pointer, order, bits // 8) if order else builder.load(pointer)
            if order is None:
                value.align = 1 if bits < 64 else 8
            return builder.sext(value, I64) if bits < 64 else value

        return types.int64(types.int64), codegen

    return load


def _make_store(order: str | None, bits: int = 64) -> Any:
    kind = ir.IntType(bits)

    @intrinsic
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _pointer(builder, args[0], kind)
            word = builder.trunc(args[1], kind) if bits < 64 else args[1]
            if order:
                builder.store_atomic(word, pointer, order, bits // 8)
            else:
                stored = builder.store(word, pointer)
                stored.align = 1 if bits < 64 else 8
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return store


load_acquire = _make_load("acquire")
load_relaxed = _make_load("monotonic")
load64 = _make_load(None)
load32 = _make_load(None, 32)
load8 = _make_load(None, 8)
store_release = _make_store("release")
store_relaxed = _make_store("monotonic")
store64 = _make_store(None)
store32 = _make_store(None, 32)
store8 = _make_store(None, 8)


@intrinsic
def fetch_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add `value` to the word; returns what it held before (sequentially consistent)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def exchange(typingctx: Any, address: Any, value: Any) -> Any:
    """Store `value`; returns what the word held before (sequentially consistent)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", _pointer(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def compare_exchange(typingctx: Any, address: Any, expected: Any, new: Any) -> Any:
    """Store `new` if the word holds `expected`; returns what it held before (sequentially consistent)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_pointer(builder, args[0]), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 0)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typingctx: Any) -> Any:
    """Tell the core that this is a spin loop."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _X86:
            name, params = "llvm.x86.sse2.pause", []
        else:
            name, params = "llvm.aarch64.hint", [ir.Constant(I32, 1)]
        kind = ir.FunctionType(ir.VoidType(), [p.type for p in params])
        builder.call(builder.module.declare_intrinsic(name, (), kind), params)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def full_fence(typingctx: Any) -> Any:
    """Order all earlier loads and stores before all later ones."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def publish_streamed(typingctx: Any) -> Any:
    """Order non-temporal stores before the release store that announces them.

    x86: ``sfence`` (a release fence emits nothing there, and streamed stores are not ordered by it);
    elsewhere a sequentially consistent fence.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse.sfence", (), kind), [])
        else:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def ticks(typingctx: Any) -> Any:
    """The core's constant-rate counter (x86: time stamp counter); about 8 ns."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [])
        return builder.call(builder.module.declare_intrinsic("llvm.readcyclecounter", (), kind), [])

    return types.int64(), codegen
