"""Copies of lines, memory on the stack, and the end without memory: intrinsics of :mod:`numba_kernels.memory`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 64
_I64X8 = ir.VectorType(ir.IntType(64), 8)
_NO_MEMORY = b"ncclx_mpi: this process ends: there is no memory left; look at `ulimit -v` and at the memory that the job may use\n"
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def make_stack(nwords: int) -> Any:
    """Return an intrinsic that gives the address of so many words, which are the calling function's until it returns."""

    @intrinsic
    def on_stack(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.ptrtoint(cgutils.alloca_once(builder, ir.ArrayType(_I64, nwords)), _I64)

        return types.int64(), codegen

    return on_stack


@intrinsic
def end_without_memory(typingctx: Any) -> Any:
    """End the process, and say why on its stderr."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        text = cgutils.global_constant(builder, "ncclx_mpi_no_memory", cgutils.make_bytearray(bytearray(_NO_MEMORY)))
        pointer = builder.bitcast(text, ir.IntType(8).as_pointer())
        write = ir.FunctionType(_I64, [_I32, pointer.type, _I64])
        leave = ir.FunctionType(ir.VoidType(), [_I32])
        say = cgutils.get_or_insert_function(builder.module, write, "write")
        builder.call(say, [ir.Constant(_I32, 2), pointer, ir.Constant(_I64, len(_NO_MEMORY))])
        builder.call(cgutils.get_or_insert_function(builder.module, leave, "_exit"), [ir.Constant(_I32, 1)])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def copy_line(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy 64 bytes from any address to any other, through registers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = builder.load(builder.inttoptr(args[1], _I64X8.as_pointer()))
        value.align = 1
        builder.store(value, builder.inttoptr(args[0], _I64X8.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def stream_line(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy 64 bytes from any address to a 64-byte aligned one, past the caches."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = builder.load(builder.inttoptr(args[1], _I64X8.as_pointer()))
        value.align = 1
        store = builder.store(value, builder.inttoptr(args[0], _I64X8.as_pointer()))
        store.align = LINE
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen
