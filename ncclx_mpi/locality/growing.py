"""Graphs of any kind cut into parts that grow along heavy edges, and placements improved by swaps.

Growing is greedy recursive bisection: half of the parts get the vertices that are taken from one at the rim on, always the one with the
most bytes to those that are taken; then each half is halved, down to caches. Cost: E log E log P for E edges and P parts. Swaps are those
of Kernighan and Lin (1970), two vertices of two neighbouring parts at a time, without passes through dearer placements.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from ncclx_mpi.locality.parts import Edges, Part, Prices

_MOST_ROUNDS, _MOST_WISHES, _MOST_PARTS = 4, 3, 3
"""Rounds of swaps; vertices of a part that are tried for a swap with those of another one; other parts that a vertex may go to."""


# Growing ----------------------------------------------------------------------------------------------------------


def grown(edges: Edges, root: Part) -> list[int]:
    """The seat of each vertex."""
    found = [0] * len(edges)
    regions = [(list(range(len(edges))), [root])]
    while regions:
        region, parts = regions.pop()
        while len(parts) == 1 and parts[0].inside:
            parts = list(parts[0].inside)
        if len(parts) == 1:
            for vertex, seat in zip(region, parts[0].seats, strict=True):
                found[vertex] = seat
            continue
        before = list(itertools.accumulate(len(part.seats) for part in parts))[:-1]
        half = min(range(len(before)), key=lambda index: abs(2 * before[index] - len(region)))
        taken = min(
            (_Growth(edges, region, ordered) for ordered in (True, False)), key=lambda growth: growth.cut(before[half])
        ).found
        rest = [vertex for vertex in region if vertex not in taken]
        regions += [(rest, parts[half + 1 :]), (sorted(taken), parts[: half + 1])]
    return found


class _Growth:
    """A part of a region that grows.

    Parameters
    ----------
    is_in_order
        Of vertices that are as good the first is taken; else the one that has been next to those that are taken for the longest time.

    Attributes
    ----------
    found
        The vertices that are taken.
    inside, outside
        For each vertex of the region its bytes to those that are taken, and to those that are not.
    queue, rim
        Vertices with neighbours that are taken; all. Both have entries of before, too.
    """

    def __init__(self, edges: Edges, region: list[int], is_in_order: bool) -> None:
        self.found: set[int] = set()
        self._edges = edges
        self._places = dict(zip(region, region, strict=True)) if is_in_order else {}
        self._inside = dict.fromkeys(region, 0)
        self._outside = {
            vertex: sum(nbytes for other, nbytes in edges[vertex].items() if other in self._inside) for vertex in region
        }
        self._rim = [(self._outside[vertex], vertex) for vertex in region]
        heapq.heapify(self._rim)
        self._queue: list[tuple[int, int, int, int]] = []

    def cut(self, count: int) -> int:
        """Take so many vertices; returns the bytes between them and those that are left."""
        while len(self.found) < count:
            vertex = self._next()
            self.found.add(vertex)
            for other, nbytes in self._edges[vertex].items():
                if other in self._inside and other not in self.found:
                    self._inside[other] += nbytes
                    self._outside[other] -= nbytes
                    place = self._places.setdefault(other, len(self._places))
                    heapq.heappush(self._queue, (-self._inside[other], self._outside[other], place, other))
                    heapq.heappush(self._rim, (self._outside[other], other))
        return sum(nbytes for vertex, nbytes in self._inside.items() if vertex not in self.found)

    def _next(self) -> int:
        """The vertex to take: with the most bytes to those that are, else at the rim."""
        while self._queue:
            inside, outside, _, vertex = heapq.heappop(self._queue)
            if vertex not in self.found and (-inside, outside) == (self._inside[vertex], self._outside[vertex]):
                return vertex
        while True:
            outside, vertex = heapq.heappop(self._rim)
            if vertex not in self.found and outside == self._outside[vertex]:
                return vertex


# Swaps ------------------------------------------------------------------------------------------------------------


def swapped(edges: Edges, seats: Sequence[int], prices: Prices) -> list[int]:
    """Swap two vertices as long as that is cheaper, within a bound; of all pairs, which takes the square of the vertices."""
    return _rounds(edges, seats, prices, lambda _: itertools.combinations(range(len(edges)), 2))


def exchanged(edges: Edges, seats: Sequence[int], prices: Prices) -> list[int]:
    """Likewise, of vertices that have neighbours in the parts of each other, and gain most by a move there."""
    return _rounds(edges, seats, prices, lambda kinds: _wishes(edges, kinds, prices))


def _rounds(
    edges: Edges, seats: Sequence[int], prices: Prices, pairs: Callable[[list[int]], Iterable[tuple[int, int]]]
) -> list[int]:
    found = list(seats)
    kinds = [prices.kinds[seat] for seat in found]
    for _ in range(_MOST_ROUNDS):
        is_any = False
        for one, other in pairs(kinds):
            if kinds[one] != kinds[other] and _change(edges, kinds, prices, one, other) < 0:
                found[one], found[other] = found[other], found[one]
                kinds[one], kinds[other] = kinds[other], kinds[one]
                is_any = True
        if not is_any:
            break
    return found


def _wishes(edges: Edges, kinds: Sequence[int], prices: Prices) -> Iterator[tuple[int, int]]:
    """Pairs of vertices that would be better off in the part of each other, taken together; as it was when the round began."""
    wishes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for vertex, neighbours in enumerate(edges):
        here = kinds[vertex]
        nbytes_to: dict[int, int] = {}
        for other, nbytes in neighbours.items():
            nbytes_to[kinds[other]] = nbytes_to.get(kinds[other], 0) + nbytes
        cost = sum(nbytes * prices[here * prices.count + kind] for kind, nbytes in nbytes_to.items())
        for there in heapq.nlargest(_MOST_PARTS, nbytes_to, key=nbytes_to.__getitem__):
            if there != here:
                its_cost = sum(nbytes * prices[there * prices.count + kind] for kind, nbytes in nbytes_to.items())
                wishes.setdefault((here, there), []).append((its_cost - cost, vertex))
    for (here, there), ones in sorted(wishes.items()):
        if here < there:
            others = heapq.nsmallest(_MOST_WISHES, wishes.get((there, here), ()))
            for (its_cost, one), (cost, other) in itertools.product(heapq.nsmallest(_MOST_WISHES, ones), others):
                if its_cost + cost < 0:
                    yield one, other


def _change(edges: Edges, kinds: Sequence[int], prices: Prices, one: int, other: int) -> int:
    """By how much all becomes dearer if two vertices swap their seats."""
    here, there = kinds[one] * prices.count, kinds[other] * prices.count
    change = 0
    for vertex, nbytes in edges[one].items():
        if vertex != other:
            change += nbytes * (prices[there + kinds[vertex]] - prices[here + kinds[vertex]])
    for vertex, nbytes in edges[other].items():
        if vertex != one:
            change += nbytes * (prices[here + kinds[vertex]] - prices[there + kinds[vertex]])
    return change
