"""Copies between addresses: cached (libc's memcpy) and streamed past the caches.

A plain store to a line that another core has cached must first take the line back. Between two core complexes
("far" placement) that costs 2 GB/s for a block that the reader reads again and again; 64-byte non-temporal stores
reach 16 GB/s in both placements, and reading the block back costs the same either way. In the near placement plain stores
are the faster ones for blocks that stay in cache, and some processors stream slowly in any placement, so callers measure both.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from numba_kernels.atomics import publish_streamed
from numba_kernels.jit import kernel

LINE = 64
_I64X8 = ir.VectorType(ir.IntType(64), 8)

copy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
move = types.ExternalFunction("memmove", types.intp(types.intp, types.intp, types.intp))
fill = types.ExternalFunction("memset", types.intp(types.intp, types.int32, types.intp))
allocate = types.ExternalFunction("malloc", types.intp(types.intp))
"""Memory, or 0: whoever allocates says what happens then. What is small and of one size is better on the stack (:func:`make_stack`)."""
release = types.ExternalFunction("free", types.void(types.intp))

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


@kernel("int64(int64)")
def allocate_or_end(nbytes):  # type: ignore[no-untyped-def]
    """Memory for what is promised to a peer already, so that nobody can be told that there is none: the process ends then, and says why."""
    found = allocate(nbytes)
    if found == 0:
        end_without_memory()
    return found


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


@kernel("void(int64, int64, int64)")
def stream(target, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` to shared memory past the caches, ready for a release store. Any alignment."""
    head = min(nbytes, (-target) & (LINE - 1))
    if head:
        copy(target, source, head)
    lines = (nbytes - head) // LINE
    for i in range(lines):
        stream_line(target + head + i * LINE, source + head + i * LINE)
    done = head + lines * LINE
    if done < nbytes:
        copy(target + done, source + done, nbytes - done)
    publish_streamed()


STREAM_FROM = 1024
"""Bytes from which streaming pays; below it the fence and the write-combining buffers cost more."""


@kernel("void(int64, int64, int64, int64)")
def write_shared(target, source, nbytes, streamed):  # type: ignore[no-untyped-def]
    """Copy into memory that another core reads: streamed if the placement asks for it and the block is worth it."""
    if streamed and nbytes >= STREAM_FROM:
        stream(target, source, nbytes)
    else:
        copy(target, source, nbytes)
