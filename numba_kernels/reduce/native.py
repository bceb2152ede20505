"""Compiled reductions by name, each compiled or loaded from the disk cache when it is first asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import product
from typing import Any

from numba_kernels import digests, jit
from numba_kernels.deferred import emitted
from numba_kernels.reduce.elements import OPERATIONS
from numba_kernels.reduce.table import BOOLEAN, BYTES, SIGNED, TYPES, defined

COMMON = tuple(product(("sum", "prod", "min", "max"), ("i32", "i64", "f32", "f64")))
"""What nearly every program uses: compiled before the ranks start."""

SIGNATURE = "void(int64, int64, int64, int64)"
"""What every reduction looks like to C: out, low, high, count."""

_WITHOUT_KERNEL = ("f80", "c160", "f80,i32")


@functools.cache
def address(op: str, kind: str) -> int:
    """Address of the C function ``void(int64 out, int64 low, int64 high, int64 count)``; 0 if there is none.

    Parameters
    ----------
    op
        Operation name, a key of :data:`~numba_kernels.reduce.elements.OPERATIONS`.
    kind
        Element type name, one of :data:`~numba_kernels.reduce.table.TYPES`.
    """
    if kind in _WITHOUT_KERNEL or not defined(op, kind):
        return 0
    return _compiled(op, same_machine_code(op, kind)).address


def warm(common_only: bool = True) -> int:
    """Compile, or load from the cache, the common kernels or all of them. Returns how many there are."""
    names = COMMON if common_only else product(OPERATIONS, TYPES)
    return sum(address(op, kind) != 0 for op, kind in names)


def natives(common_only: bool = True) -> list[jit.Native]:
    """The common kernels, or all of them, as they are compiled: several types may share one."""
    names = COMMON if common_only else product(OPERATIONS, TYPES)
    found = (_compiled(op, same_machine_code(op, kind)) for op, kind in names if kind not in _WITHOUT_KERNEL and defined(op, kind))
    return list(dict.fromkeys(found))


def same_machine_code(op: str, kind: str) -> str:
    """The type to compile `op` for: signs matter to order alone."""
    if op in ("min", "max"):
        return kind
    if kind in BOOLEAN + BYTES:
        return "u8"
    return "u" + kind[1:] if kind in SIGNED else kind


@functools.cache
def _compiled(op: str, kind: str) -> jit.Native:
    return declare(f"{op}_{kind.replace(',', '_')}", OPERATIONS[op], lambda: emitted("cells", "cell", kind).real)


def declare(name: str, element: Callable[..., Any], layout: Callable[[], Any]) -> jit.Native:
    """Declare the C function that applies `element` to arrays of ``layout()``; `name` tells it from others in the cache."""

    def make() -> Callable[..., None]:
        function: Callable[..., None] = emitted("loop", "reduction", element, layout()).real
        return function

    return jit.native(make, SIGNATURE, name, digests.module_digest(__file__), digests.sources_digest(__file__))
