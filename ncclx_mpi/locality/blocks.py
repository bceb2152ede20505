"""Grids cut along planes, so that each part of the network gets a block of it.

- Equal blocks, where all parts are of one size: of all shapes that fill the grid without rest the one with the fewest faces between
  blocks, then the same within each. These are the factors of W. Gropp, "Using node and socket information to implement MPI Cartesian
  topologies", 2019, for any number of levels. Cost: a look at each shape, of which a node of 64 ranks has 28 in three dimensions.
- Halves, where sizes differ or no block fits: a plane cuts grid and parts into two, and so on. It is the recursive bisection of
  coordinates (Berger and Bokhari 1987); where a plane leaves whole nodes on either side that is taken, which is the *hyperplane* mapping
  of Hunold, von Kirchbach, Lehr, Schulz and Träff, "Efficient process-to-node mapping algorithms for stencil computations", 2020. Else
  the plane is left in the middle of a row, which costs a face or, in three dimensions, some. Cost: N log N log P for N ranks on P nodes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ncclx_mpi.locality.parts import Part
from numba_kernels.rows import NamedTuple

# Equal blocks -----------------------------------------------------------------------------------------------------


def equal(dims: Sequence[int], periods: Sequence[bool], root: Part) -> list[int]:
    """Cut the grid into blocks of the sizes of the parts, with the smallest faces, and these again; where that cannot be, as ranks are."""
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    found = [0] * math.prod(dims)
    open_blocks = [([0] * len(dims), list(dims), root)]
    while open_blocks:
        origin, extents, part = open_blocks.pop()
        shape = _shape(dims, periods, extents, part)
        inside = part.inside
        if shape is None:
            shape, inside = [1] * len(dims), tuple(Part((seat,), ()) for seat in part.seats)
        starts = itertools.product(
            *(range(first, first + extent, step) for first, extent, step in zip(origin, extents, shape, strict=True))
        )
        for start, each in zip(starts, inside, strict=True):
            if len(each.seats) == 1:
                found[sum(at * stride for at, stride in zip(start, strides, strict=True))] = each.seats[0]
            else:
                open_blocks.append((list(start), shape, each))
    return found


def _shape(dims: Sequence[int], periods: Sequence[bool], extents: Sequence[int], part: Part) -> list[int] | None:
    """The blocks into which one is cut, so that each has as many ranks as each part, and few faces are between them; None if none fits."""
    sizes = {len(each.seats) for each in part.inside}
    if len(sizes) != 1:
        return None
    best: list[int] | None = None
    fewest = 0
    for shape in _shapes(list(extents), sizes.pop()):
        faces = 0
        for dim, is_periodic, extent, step in zip(dims, periods, extents, shape, strict=True):
            pieces = extent // step
            around = is_periodic and extent == dim and pieces > 1
            faces += (pieces - 1 + around) * (math.prod(extents) // extent)
        if best is None or faces < fewest:
            best, fewest = shape, faces
    return best


def _shapes(extents: list[int], size: int) -> Iterator[list[int]]:
    """All blocks of so many ranks that fill a larger block without rest."""
    if not extents:
        if size == 1:
            yield []
        return
    for step in range(1, extents[0] + 1):
        if extents[0] % step == 0 and size % step == 0:
            for rest in _shapes(extents[1:], size // step):
                yield [step, *rest]


# Halves -----------------------------------------------------------------------------------------------------------


class _Plane(NamedTuple):
    """A way to cut a region; the least is the best.

    Attributes
    ----------
    faces
        About as many as it cuts through.
    imbalance
        By how many vertices the two sides differ.
    axis, nparts
        It goes across this one, and leaves so many parts before it.
    """

    faces: int
    imbalance: int
    axis: int
    nparts: int


def halves(dims: Sequence[int], periods: Sequence[bool], root: Part) -> Iterator[list[int]]:
    """Cut the grid and the parts into two, and these again: the smallest faces first, and whole planes first."""
    for detour in (1, math.prod(dims)):
        yield _Halves(dims, periods, detour).placed(root)


class _Halves:
    """One such cutting.

    Attributes
    ----------
    detour
        What it counts, in faces, if the plane ends in the middle of a row.
    columns
        For each axis the coordinate of each vertex.
    """

    def __init__(self, dims: Sequence[int], periods: Sequence[bool], detour: int) -> None:
        self.dims, self.periods, self.detour = dims, periods, detour
        self.size = stride = math.prod(dims)
        self.columns = []
        for extent in dims:
            stride //= extent
            self.columns.append([vertex // stride % extent for vertex in range(self.size)])

    def placed(self, root: Part) -> list[int]:
        """The seat of each vertex."""
        found = [0] * self.size
        regions = [(list(range(self.size)), [root])]
        while regions:
            region, parts = regions.pop()
            while len(parts) == 1 and parts[0].inside:
                parts = sorted(parts[0].inside, key=lambda part: -len(part.seats))
            if len(parts) == 1:
                for vertex, seat in zip(region, parts[0].seats, strict=True):
                    found[vertex] = seat
                continue
            plane = min(self._planes(region, parts))
            region.sort(key=self.columns[plane.axis].__getitem__)
            taken = sum(len(part.seats) for part in parts[: plane.nparts])
            regions += [(sorted(region[taken:]), parts[plane.nparts :]), (sorted(region[:taken]), parts[: plane.nparts])]
        return found

    def _planes(self, region: list[int], parts: list[Part]) -> Iterator[_Plane]:
        """For each axis the best plane across it."""
        before = list(itertools.accumulate(len(part.seats) for part in parts))[:-1]
        imbalances = [abs(2 * taken - len(region)) for taken in before]
        for axis, column in enumerate(self.columns):
            layers = sorted(Counter(map(column.__getitem__, region)).items())
            if len(layers) == 1:
                continue
            ends = list(itertools.accumulate(count for _, count in layers))
            around = 2 if self.periods[axis] and len(layers) == self.dims[axis] else 1
            whole = [index for index, taken in enumerate(before) if taken in ends and 2 * imbalances[index] <= len(region)]
            index = min(whole or range(len(before)), key=imbalances.__getitem__)
            layer = next(count for (_, count), end in zip(layers, ends, strict=True) if end >= before[index])
            yield _Plane(around * layer + (0 if before[index] in ends else self.detour), imbalances[index], axis, index + 1)
