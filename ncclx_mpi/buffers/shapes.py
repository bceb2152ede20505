"""Makes layouts: one function for each way in which MPI derives a type from others.

Arguments arrive checked for type only; counts, lengths and bounds are checked here, and raise what MPI raises.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Sequence
from typing import Any

from ncclx_mpi import constants as mpi
from ncclx_mpi.buffers.layout import Integers, Layout, Listed, Part, Recipe, Strided, once
from ncclx_mpi.errors import ERR_ARG, ERR_COUNT, fail
from numba_kernels import typemap
from numba_kernels.jit import entry
from numba_kernels.layout import WORD, zeroed

_scale = functools.cache(functools.partial(entry, typemap.scale))
_REACH = 1 << 62
_DISTRIBUTIONS = (mpi.DISTRIBUTE_BLOCK, mpi.DISTRIBUTE_CYCLIC, mpi.DISTRIBUTE_NONE)


def dup(old: Layout) -> Layout:
    """Another handle's layout with the same meaning; it keeps the codes and the reduction kind."""
    layout = _derive(mpi.COMBINER_DUP, [once(old)], (), {})
    layout.resize(old.lb, old.extent)
    layout.has_bounds = old.has_bounds
    layout.committed = old.committed
    layout.kind, layout.code = old.kind, old.code
    layout.typechar, layout.typestr = old.typechar, old.typestr
    return layout


def contiguous(old: Layout, count: int) -> Layout:
    """`count` elements, one after the other."""
    _check_counts([count])
    return _derive(mpi.COMBINER_CONTIGUOUS, [Strided(old, 1, count)], (count,), {"count": count})


def vector(old: Layout, count: int, blocklength: int, stride: int, *, in_bytes: bool) -> Layout:
    """`count` blocks whose starts are `stride` elements (or bytes) apart."""
    _check_counts([count, blocklength])
    step = stride if in_bytes else stride * old.extent
    _check_reach(count * abs(step) + blocklength * abs(old.extent))
    params = {"count": count, "blocklength": blocklength, "stride": stride}
    combiner = mpi.COMBINER_HVECTOR if in_bytes else mpi.COMBINER_VECTOR
    return _derive(combiner, [Strided(old, count, blocklength, step)], (count, blocklength, stride), params)


def indexed(old: Layout, blocklengths: Integers, displacements: Integers, *, in_bytes: bool) -> Layout:
    """Blocks of given lengths at given displacements in elements (or bytes)."""
    _check_counts(blocklengths)
    _check_reach(max(blocklengths, default=0) * abs(old.extent))
    offsets = _offsets(old, displacements, in_bytes=in_bytes)
    params = {"blocklengths": blocklengths, "displacements": displacements}
    counts = (len(blocklengths), blocklengths, displacements)
    combiner = mpi.COMBINER_HINDEXED if in_bytes else mpi.COMBINER_INDEXED
    return _derive(combiner, [Listed(old, blocklengths, offsets)], counts, params)


def indexed_block(old: Layout, blocklength: int, displacements: Integers, *, in_bytes: bool) -> Layout:
    """Blocks of one length at given displacements in elements (or bytes)."""
    _check_counts([blocklength])
    offsets = _offsets(old, displacements, in_bytes=in_bytes)
    _check_reach(blocklength * abs(old.extent))
    lengths = array("q", [blocklength]) * len(displacements)
    params = {"blocklength": blocklength, "displacements": displacements}
    counts = (len(displacements), blocklength, displacements)
    combiner = mpi.COMBINER_HINDEXED_BLOCK if in_bytes else mpi.COMBINER_INDEXED_BLOCK
    return _derive(combiner, [Listed(old, lengths, offsets)], counts, params)


def struct(blocklengths: Integers, displacements: Integers, olds: Sequence[Layout]) -> Layout:
    """Blocks of different types at given displacements in bytes, padded like a C struct."""
    _check_counts(blocklengths)
    parts: list[Part] = []
    for old, length, displacement in zip(olds, blocklengths, displacements, strict=True):
        _check_reach(abs(displacement) + length * abs(old.extent))
        parts.append(Strided(old, 1, length, start=displacement))
    params = {"blocklengths": blocklengths, "displacements": displacements}
    counts = (len(parts), blocklengths, displacements)
    layout = _derive(mpi.COMBINER_STRUCT, parts, counts, params, layouts=tuple(olds))
    layout.pad()
    return layout


def resized(old: Layout, lb: int, extent: int) -> Layout:
    """The same bytes with other bounds."""
    _check_reach(max(abs(lb), abs(extent)))
    layout = _derive(mpi.COMBINER_RESIZED, [once(old)], (lb, extent), {"lb": lb, "extent": extent})
    layout.resize(lb, extent)
    return layout


def subarray(old: Layout, sizes: list[int], subsizes: list[int], starts: list[int], order: int) -> Layout:
    """A box out of a larger array."""
    if not sizes:
        fail(ERR_ARG, "a subarray needs at least one dimension")
    for size, subsize, start in zip(sizes, subsizes, starts, strict=True):
        if not (1 <= subsize <= size and 0 <= start <= size - subsize):
            fail(ERR_ARG, f"a subarray of {subsize} from {start} does not fit into a dimension of {size}")
    _check_order(order)
    chosen = [range(start, start + subsize) for start, subsize in zip(starts, subsizes, strict=True)]
    integers = (len(sizes), order)
    params = {"sizes": sizes, "subsizes": subsizes, "starts": starts, "order": order}
    recipe = Recipe(mpi.COMBINER_SUBARRAY, integers, (*sizes, *subsizes, *starts), (old,), params)
    return _box(old, sizes, chosen, order, recipe)


def darray(old: Layout, size: int, rank: int, dims: Sequence[Sequence[int]], order: int) -> Layout:
    """One rank's part of an array distributed in blocks or cycles over a grid of ranks.

    `dims` is (gsizes, distribs, dargs, psizes), one number a dimension each.
    """
    gsizes, distribs, dargs, psizes = (list(dim) for dim in dims)
    if not gsizes:
        fail(ERR_ARG, "a distributed array needs at least one dimension")
    if min(gsizes) < 1 or min(psizes) < 1 or math.prod(psizes) != size:
        fail(ERR_ARG, f"the process grid {psizes} is not one of {size} processes over an array of shape {gsizes}")
    if not 0 <= rank < size:
        fail(ERR_ARG, f"rank {rank} is not in the process grid of {size}")
    _check_order(order)
    chosen = [_owned(*dim) for dim in zip(gsizes, distribs, dargs, psizes, _coords(rank, psizes), strict=True)]
    integers = (size, rank, len(gsizes), *distribs, *dargs, *psizes, order)
    names = ("gsizes", "distribs", "dargs", "psizes")
    params: dict[str, Any] = {"size": size, "rank": rank}
    params.update(zip(names, (gsizes, distribs, dargs, psizes), strict=True), order=order)
    recipe = Recipe(mpi.COMBINER_DARRAY, integers, tuple(gsizes), (old,), params)
    return _box(old, gsizes, chosen, order, recipe)


def fortran(base: Layout, combiner: int, params: dict[str, Any]) -> Layout:
    """A predefined type of Fortran, chosen by precision and range."""
    layout = Layout([once(base)], Recipe(combiner, tuple(params.values()), (), (), params))
    layout.committed = True
    layout.kind, layout.typechar, layout.typestr = base.kind, base.typechar, base.typestr
    layout.code = base.typestr
    return layout


def _derive(
    combiner: int,
    parts: list[Part],
    counts: tuple[int | Integers, ...],
    params: dict[str, Any],
    *,
    layouts: tuple[Layout, ...] | None = None,
) -> Layout:
    layout = Layout(parts, Recipe(combiner, (), counts, (parts[0].old,) if layouts is None else layouts, params))
    _check_reach(layout.size)
    return layout


def _box(old: Layout, sizes: list[int], chosen: Sequence[range | list[range]], order: int, recipe: Recipe) -> Layout:
    """The elements with the `chosen` indices of each dimension, with the bounds of the whole array."""
    total = math.prod(sizes) * old.extent
    _check_reach(total)
    stride, inner = old.extent, old
    fastest_first = range(len(sizes)) if order == mpi.ORDER_FORTRAN else reversed(range(len(sizes)))
    for dim in fastest_first:
        inner = Layout([_along(inner, chosen[dim], stride, can_join=inner is old)], recipe)
        stride *= sizes[dim]
    layout = Layout([once(inner)], recipe)
    layout.resize(0, total)
    return layout


def _along(inner: Layout, chosen: range | list[range], stride: int, *, can_join: bool) -> Part:
    """The elements of one dimension with the `chosen` indices, `stride` bytes apart; `can_join`: these follow each other in memory."""
    if isinstance(chosen, range):
        return Strided(inner, len(chosen), 1, stride, chosen.start * stride)
    runs = chosen if can_join else [range(index, index + 1) for indices in chosen for index in indices]
    return Listed(inner, array("q", map(len, runs)), array("q", [run.start * stride for run in runs]))


def _coords(rank: int, psizes: Sequence[int]) -> list[int]:
    """Where a rank is in a grid, the last dimension going round fastest."""
    coords: list[int] = []
    for psize in reversed(psizes):
        rank, coord = divmod(rank, psize)
        coords.insert(0, coord)
    return coords


def _owned(gsize: int, distrib: int, darg: int, psize: int, coord: int) -> range | list[range]:
    """Indices of one dimension of a distributed array that belong to grid coordinate `coord`, as runs that do not touch."""
    if distrib not in _DISTRIBUTIONS:
        fail(ERR_ARG, f"{distrib} is not one of DISTRIBUTE_BLOCK, DISTRIBUTE_CYCLIC and DISTRIBUTE_NONE")
    if distrib == mpi.DISTRIBUTE_NONE:
        if psize != 1:
            fail(ERR_ARG, f"a dimension with DISTRIBUTE_NONE needs a process grid of 1 there, not {psize}")
        return range(gsize)
    is_block = distrib == mpi.DISTRIBUTE_BLOCK
    if darg == mpi.DISTRIBUTE_DFLT_DARG:
        darg = -(-gsize // psize) if is_block else 1
    if darg < 1 or (is_block and darg * psize < gsize):
        fail(ERR_ARG, f"blocks of {darg} over {psize} processes do not cover a dimension of {gsize}")
    if is_block:
        return range(min(coord * darg, gsize), min((coord + 1) * darg, gsize))
    if psize == 1:
        return range(gsize)
    return [range(first, min(first + darg, gsize)) for first in range(coord * darg, gsize, psize * darg)]


def _offsets(old: Layout, displacements: Integers, *, in_bytes: bool) -> Integers:
    factor = 1 if in_bytes else old.extent
    offsets, at = zeroed(WORD * len(displacements))
    _check_reach(_scale()(displacements.buffer_info()[0], len(displacements), factor, at) * abs(factor))
    return offsets


def _check_counts(counts: Sequence[int] | Integers) -> None:
    lowest = min(counts, default=0)
    if lowest < 0:
        fail(ERR_COUNT, f"a datatype cannot have a count or block length of {lowest}")


def _check_reach(nbytes: int) -> None:
    if nbytes >= _REACH:
        fail(ERR_ARG, f"a datatype cannot reach over {nbytes} bytes")


def _check_order(order: int) -> None:
    if order not in (mpi.ORDER_C, mpi.ORDER_FORTRAN):
        fail(ERR_ARG, f"storage order {order} is neither ORDER_C nor ORDER_FORTRAN")
