"""Reductions of many pieces in one launch, each with results in one or several places: what collectives on devices run.

::

    table:  row | count, target 0, .., target t-1, source 0, .., source n-1 |       target 0   <-.
            row | ...                                                       |       target 1   <-+-  source 0 OP source 1 OP ...

The elements of a row are reduced as by :mod:`numba_kernels.cuda.reduce`, with the same bits; a result is stored to all targets as soon as it
is computed, so contributions are read once. Targets may be sources of the same row. The NumPy twin is that of
:mod:`numba_kernels.cuda.reduce`, and ``target[:] = result`` for each target. There are no flags: streams order what comes before and after.

T = alpha + m (sources + targets) / bandwidth.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic

from numba_kernels.cuda.intrinsics import load_i64
from numba_kernels.cuda.kernel import Kernel
from numba_kernels.cuda.limits import GROUP
from numba_kernels.cuda.reduce import machine_kind, span
from numba_kernels.cuda.rows import cut, place
from numba_kernels.emit.cuda import I64, SCALARS, emit_load
from numba_kernels.layout import WORD


def rows_kernel(op: str, typecode: str, sources: int, targets: int) -> Kernel:
    """The kernel for rows of `sources` contributions and `targets` results; its arguments are the table and the number of rows.

    `op` and `typecode` are ones that :func:`numba_kernels.cuda.reduce.is_supported`.
    """
    return _kernel(op, machine_kind(op, typecode), sources, targets)


def pack_reductions(pieces: Iterable[tuple[int, Sequence[int], Sequence[int]]], itemsize: int, most: int) -> npt.NDArray[np.int64]:
    """The table for reductions of (elements, targets, sources), in rows of at most `most` elements."""
    rows = []
    for count, targets, sources in pieces:
        for at, length in cut(count, most):
            rows.append([length, *[address + at * itemsize for address in (*targets, *sources)]])
    return np.array(rows, dtype=np.int64)


@functools.cache
def _kernel(op: str, kind: str, sources: int, targets: int) -> Kernel:
    reduce_span, load_sources = span(op, kind, targets - 1), addresses(sources)
    row_bytes, first_source = WORD * (1 + targets + sources), WORD * (1 + targets)

    def reduce_rows(thread, threads, table, rows):  # type: ignore[no-untyped-def]
        row, further, lane, lanes = place(thread, threads, rows)
        while row < rows:
            at = table + row * row_bytes
            target, others = load_i64(at + WORD), at + 2 * WORD
            reduce_span(lane, lanes, load_i64(at), target, load_sources(at + first_source, 0), others, 0)
            row += further

    return Kernel(f"reduce_rows_{op}_{kind}_{sources}_{targets}", reduce_rows, parameters=2, launch_bounds=GROUP)


@functools.cache
def addresses(count: int) -> Any:
    """Return an intrinsic ``(at, shift)`` that makes a tuple of the `count` words at an address, each plus `shift`."""

    @intrinsic
    def load_tuple(typingctx: Any, at: Any, shift: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            places = [builder.add(args[0], I64(WORD * k)) for k in range(count)]
            loaded = [builder.add(emit_load(builder, each, SCALARS["i64"]), args[1]) for each in places]
            return context.make_tuple(builder, sig.return_type, loaded)

        return types.UniTuple(types.int64, count)(types.int64, types.int64), codegen

    return load_tuple


def _kernels(ops: Sequence[str], kinds: Sequence[str], sources: Sequence[int]) -> tuple[Kernel, ...]:
    """With one target, and with one for each source."""
    wanted = product(ops, kinds, sources)
    return tuple(dict.fromkeys(rows_kernel(op, kind, n, targets) for op, kind, n in wanted for targets in (1, n)))


KERNELS = _kernels(("sum", "prod", "min", "max"), ("i32", "i64", "f16", "bf16", "f32", "f64"), (2, 4, 8))
"""The commonest; the others are compiled when they are first used."""
REPORTED = _kernels(("prod",), ("u8", "bf16", "f32", "c128"), (2, 16))
"""The fewest and the most sources and targets."""
