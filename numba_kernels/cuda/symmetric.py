"""Collectives on symmetric heaps: memory of every rank in which a message lies at the same offset, so that no launch needs a table.

::

    heaps     rank 0 [ ... | given | got | ... ]        TABLE, written once:  heaps of all ranks     h0 h1 h2 h3
              rank 1 [ ... | given | got | ... ]                              ranks to write to      1 3
              rank 2 [ ... | given | got | ... ]                              their heaps            h1 h3

    COPY      block (s, t) of rank s, for rank t:  heap s + given + t * given_pitch  ->  heap t + got + s * got_pitch
    reduce    block t of all ranks, for rank t:    heap 0..n + given + t * pitch     ->  heap t + got
    spread    one block of all ranks, for all:     heap 0..n + given                 ->  heap 0..n + given

Blocks are cut into pieces of 512 threads each, as in :mod:`numba_kernels.cuda.rows`. A block that is the same for all (``given_pitch`` is 0)
is read once. Bits of reductions are those of :mod:`numba_kernels.cuda.reduce`, in the order of the heaps.

There are no flags: what precedes the launch in its stream has waited for all ranks, what follows tells them. The NumPy twin of the copy
is ``heaps[t][got + s * got_pitch:][:n] = heaps[s][given + t * given_pitch:][:n]``, that of the others the twin of
:mod:`numba_kernels.cuda.reduce` on such slices.

T = alpha + m (sources + targets) / bandwidth; alpha does not grow with the number of pieces.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from numba_kernels.cuda.copy import copy_block
from numba_kernels.cuda.intrinsics import load_i64
from numba_kernels.cuda.kernel import Kernel
from numba_kernels.cuda.limits import GROUP
from numba_kernels.cuda.reduce import SOURCES, machine_kind, span
from numba_kernels.cuda.reduce_rows import addresses
from numba_kernels.cuda.rows import place
from numba_kernels.layout import WORD, words
from numba_kernels.reduce import dtype

RANKS = max(SOURCES)
"""Most heaps of a table."""
TABLE = words("SymmetricTable", f"heaps*{RANKS} ranks*{RANKS} targets*{RANKS}")


def pack_table(heaps: Sequence[int], ranks: Sequence[int]) -> npt.NDArray[np.int64]:
    """The table for `heaps` of all ranks, of which those of `ranks` are written to."""
    table = np.zeros(TABLE.total // WORD, dtype=np.int64)
    for field, values in (("heaps", heaps), ("ranks", ranks), ("targets", [heaps[rank] for rank in ranks])):
        first = getattr(TABLE, field) // WORD
        table[first : first + len(values)] = values
    return table


def _copy_symmetric(  # type: ignore[no-untyped-def]
    thread, threads, table, first, sources, targets, given, given_pitch, got, got_pitch, nbytes, piece
):
    pieces = (nbytes + piece - 1) // piece
    fan = targets if given_pitch == 0 else 1
    groups = targets // fan
    row, further, lane, lanes = place(thread, threads, sources * groups * pieces)
    while row < sources * groups * pieces:
        pair = row // pieces
        at, source = (row - pair * pieces) * piece, pair // groups
        target = WORD * (pair - source * groups)
        begin = load_i64(table + TABLE.heaps + WORD * (first + source)) + given
        begin += given_pitch * load_i64(table + TABLE.ranks + target)
        shift = got + source * got_pitch + at
        copy_block(lane, lanes, min(piece, nbytes - at), begin + at, fan, table + TABLE.targets + target, shift)
        row += further


COPY = Kernel("copy_symmetric", _copy_symmetric, parameters=10, launch_bounds=GROUP)
"""Arguments: address of the table; first source, number of sources, number of targets; ``given``, ``given_pitch``, ``got``, ``got_pitch``;
bytes of a block; bytes of a piece, a multiple of 16."""


def reduce_kernel(op: str, typecode: str, sources: int) -> Kernel:
    """The kernel that reduces a block for each rank that it writes to.

    Arguments: address of the table, number of targets, ``given``, ``pitch``, ``got``, elements of a block, elements of a piece.
    """
    return _reduce(op, machine_kind(op, typecode), sources)


def spread_kernel(op: str, typecode: str, sources: int) -> Kernel:
    """The kernel that reduces one block in place, and stores the results to the heaps of all ranks.

    Arguments: address of the table, ``given``, elements, elements of a piece.
    """
    return _spread(op, machine_kind(op, typecode), sources)


@functools.cache
def _reduce(op: str, kind: str, sources: int) -> Kernel:
    reduce_span, load_sources, itemsize = span(op, kind, 0), addresses(sources), dtype(kind).itemsize

    def reduce_symmetric(thread, threads, table, targets, given, pitch, got, count, piece):  # type: ignore[no-untyped-def]
        pieces = (count + piece - 1) // piece
        row, further, lane, lanes = place(thread, threads, targets * pieces)
        while row < targets * pieces:
            target = row // pieces
            at = (row - target * pieces) * piece
            begin = given + pitch * load_i64(table + TABLE.ranks + WORD * target) + at * itemsize
            end = load_i64(table + TABLE.targets + WORD * target) + got + at * itemsize
            reduce_span(lane, lanes, min(piece, count - at), end, load_sources(table + TABLE.heaps, begin), 0, 0)
            row += further

    return Kernel(f"reduce_symmetric_{op}_{kind}_{sources}", reduce_symmetric, parameters=7, launch_bounds=GROUP)


@functools.cache
def _spread(op: str, kind: str, sources: int) -> Kernel:
    reduce_span, load_sources, itemsize = span(op, kind, sources - 1), addresses(sources), dtype(kind).itemsize

    def spread_symmetric(thread, threads, table, given, count, piece):  # type: ignore[no-untyped-def]
        pieces = (count + piece - 1) // piece
        row, further, lane, lanes = place(thread, threads, pieces)
        while row < pieces:
            at = row * piece
            begin = given + at * itemsize
            heaps = table + TABLE.heaps
            reduce_span(
                lane, lanes, min(piece, count - at), load_i64(heaps) + begin, load_sources(heaps, begin), heaps + WORD, begin
            )
            row += further

    return Kernel(f"spread_symmetric_{op}_{kind}_{sources}", spread_symmetric, parameters=4, launch_bounds=GROUP)


def _kernels(ops: Sequence[str], kinds: Sequence[str], sources: Sequence[int]) -> tuple[Kernel, ...]:
    """The copy, and both reductions of each."""
    wanted = product((reduce_kernel, spread_kernel), ops, kinds, sources)
    return COPY, *dict.fromkeys(kernel(op, kind, n) for kernel, op, kind, n in wanted)


KERNELS = _kernels(("sum", "prod", "min", "max"), ("i32", "i64", "f16", "bf16", "f32", "f64"), (2, 4, 8))
"""The commonest; the others are compiled when they are first used."""
REPORTED = _kernels(("prod",), ("u8", "bf16", "f32", "c128"), (2, 16))
"""The fewest and the most sources."""
