"""Moves of one block through a register: intrinsics of :mod:`numba_kernels.pack`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def make_mover(nbytes: int) -> Any:
    """Return an intrinsic ``(target, source)`` that moves so many bytes, at any addresses."""
    word = ir.IntType(8 * nbytes)

    @intrinsic
    def mover(typingctx: Any, target: Any, source: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[1], word.as_pointer()))
            value.align = 1
            stored = builder.store(value, builder.inttoptr(args[0], word.as_pointer()))
            stored.align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return mover
