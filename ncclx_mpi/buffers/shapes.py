"""Makes layouts: one function for each way in which MPI derives a type from others.

Arguments arrive checked for type only; counts, lengths and bounds are checked here, and raise what MPI raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ncclx_mpi import constants as mpi
from ncclx_mpi.buffers.layout import Layout, Listed, Part, Recipe, Strided, Words, once
from ncclx_mpi.errors import ERR_ARG, ERR_COUNT, fail
from numba_kernels.late_numpy import is_any_array, np

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


def indexed(old: Layout, blocklengths: Words, displacements: Words, *, in_bytes: bool) -> Layout:
    """Blocks of given lengths at given displacements in elements (or bytes)."""
    _check_counts(blocklengths)
    offsets = _offsets(old, displacements, in_bytes=in_bytes)
    params = {"blocklengths": blocklengths, "displacements": displacements}
    counts = (len(blocklengths), blocklengths, displacements)
    combiner = mpi.COMBINER_HINDEXED if in_bytes else mpi.COMBINER_INDEXED
    return _derive(combiner, [Listed(old, blocklengths, offsets)], counts, params)


def indexed_block(old: Layout, blocklength: int, displacements: Words, *, in_bytes: bool) -> Layout:
    """Blocks of one length at given displacements in elements (or bytes)."""
    _check_counts([blocklength])
    offsets = _offsets(old, displacements, in_bytes=in_bytes)
    lengths = np.broadcast_to(np.int64(blocklength), len(displacements))
    params = {"blocklength": blocklength, "displacements": displacements}
    counts = (len(displacements), blocklength, displacements)
    combiner = mpi.COMBINER_HINDEXED_BLOCK if in_bytes else mpi.COMBINER_INDEXED_BLOCK
    return _derive(combiner, [Listed(old, lengths, offsets)], counts, params)


def struct(blocklengths: Words, displacements: Words, olds: Sequence[Layout]) -> Layout:
    """Blocks of different types at given displacements in bytes, padded like a C struct."""
    _check_counts(blocklengths)
    parts: list[Part] = []
    for old, length, displacement in zip(olds, blocklengths.tolist(), displacements.tolist(), strict=True):
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
    if min(gsizes) < 1 or min(psizes) < 1 or np.prod(psizes, dtype=object) != size:
        fail(ERR_ARG, f"the process grid {psizes} is not one of {size} processes over an array of shape {gsizes}")
    if not 0 <= rank < size:
        fail(ERR_ARG, f"rank {rank} is not in the process grid of {size}")
    _check_order(order)
    coords = np.unravel_index(rank, psizes)
    chosen = [_owned(*dim) for dim in zip(gsizes, distribs, dargs, psizes, map(int, coords), strict=True)]
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
    counts: tuple[int | Words, ...],
    params: dict[str, Any],
    *,
    layouts: tuple[Layout, ...] | None = None,
) -> Layout:
    olds = tuple(part.old for part in parts) if layouts is None else layouts
    layout = Layout(parts, Recipe(combiner, (), counts, olds, params))
    _check_reach(layout.size)
    return layout


def _box(old: Layout, sizes: list[int], chosen: Sequence[range | Words], order: int, recipe: Recipe) -> Layout:
    """The elements with the `chosen` indices of each dimension, with the bounds of the whole array."""
    total = int(np.prod(sizes, dtype=object)) * old.extent
    _check_reach(total)
    stride, inner = old.extent, old
    fastest_first = range(len(sizes)) if order == mpi.ORDER_FORTRAN else reversed(range(len(sizes)))
    for dim in fastest_first:
        inner = Layout([_along(inner, chosen[dim], stride, can_join=inner is old)], recipe)
        stride *= sizes[dim]
    layout = Layout([once(inner)], recipe)
    layout.resize(0, total)
    return layout


def _along(inner: Layout, chosen: range | Words, stride: int, *, can_join: bool) -> Part:
    """The elements of one dimension with the `chosen` indices, `stride` bytes apart; `can_join`: these follow each other in memory."""
    if isinstance(chosen, range):
        return Strided(inner, len(chosen), 1, stride, chosen.start * stride)
    starts, lengths = _join(chosen) if can_join else (chosen, np.broadcast_to(np.int64(1), len(chosen)))
    return Listed(inner, lengths, starts * stride)


def _join(indices: Words) -> tuple[Words, Words]:
    """Starts and lengths of the runs of consecutive indices."""
    if not len(indices):
        return indices, indices
    first = np.flatnonzero(np.concatenate([[True], np.diff(indices) != 1]))
    return indices[first], np.diff(np.append(first, len(indices)))


def _owned(gsize: int, distrib: int, darg: int, psize: int, coord: int) -> range | Words:
    """Indices of one dimension of a distributed array that belong to grid coordinate `coord`."""
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
    index = np.arange(gsize, dtype=np.int64)
    found: Words = index[index // darg % psize == coord]
    return found


def _offsets(old: Layout, displacements: Words, *, in_bytes: bool) -> Words:
    scale = 1 if in_bytes else old.extent
    if len(displacements):
        _check_reach(max(abs(int(displacements.min())), abs(int(displacements.max()))) * abs(scale))
    return displacements if in_bytes else displacements * scale


def _check_counts(counts: Sequence[int] | Words) -> None:
    if not len(counts):
        return
    lowest = int(counts.min()) if is_any_array(counts) else min(counts)
    if lowest < 0:
        fail(ERR_COUNT, f"a datatype cannot have a count or block length of {lowest}")


def _check_reach(nbytes: int) -> None:
    if nbytes >= _REACH:
        fail(ERR_ARG, f"a datatype cannot reach over {nbytes} bytes")


def _check_order(order: int) -> None:
    if order not in (mpi.ORDER_C, mpi.ORDER_FORTRAN):
        fail(ERR_ARG, f"storage order {order} is neither ORDER_C nor ORDER_FORTRAN")
