"""What a byte holds, as a symbol: the contribution of a rank, or a reduction of two other terms.

Terms are numbers; equal expressions have the same number, so ranks that compute the same bits hold the same term.
"""

from __future__ import annotations

from ncclx_mpi.algorithms import ANY, RANK

NOTHING = -1
"""Nobody has written there."""


class Terms:
    """All terms of a run.

    Attributes
    ----------
    ranks
        Of each term, whose contributions are in it, from left to right.
    """

    def __init__(self) -> None:
        self.ranks: list[tuple[int, ...]] = []
        self._operands: list[tuple[int, int] | None] = []
        self._is_comb: list[bool] = []
        self._leaves: dict[int, int] = {}
        self._reduced: dict[tuple[int, int], int] = {}

    def contribution(self, rank: int) -> int:
        """What a rank gives."""
        if rank not in self._leaves:
            self._leaves[rank] = self._add((rank,), None, True)
        return self._leaves[rank]

    def reduce(self, low: int, high: int) -> int:
        """``low op high``."""
        if (low, high) not in self._reduced:
            is_comb = self._is_comb[low] and self._operands[high] is None
            self._reduced[low, high] = self._add(self.ranks[low] + self.ranks[high], (low, high), is_comb)
        return self._reduced[low, high]

    def is_reduction_of(self, term: int, ranks: range, order: str) -> bool:
        """Whether a term has each of `ranks` once, in the order that an algorithm promises."""
        if term == NOTHING:
            return False
        found = self.ranks[term]
        if order == ANY:
            return sorted(found) == list(ranks)
        return found == tuple(ranks) and (order != RANK or self._is_comb[term])

    def text(self, term: int) -> str:
        """``((0 op 1) op 2)``, and of a large term only whose contributions are in it."""
        if term == NOTHING:
            return "what nobody has written"
        if len(self.ranks[term]) > 8:
            return f"a reduction of ranks {', '.join(map(str, self.ranks[term]))}"
        operands = self._operands[term]
        return str(self.ranks[term][0]) if operands is None else f"({self.text(operands[0])} op {self.text(operands[1])})"

    def _add(self, ranks: tuple[int, ...], operands: tuple[int, int] | None, is_comb: bool) -> int:
        self.ranks.append(ranks)
        self._operands.append(operands)
        self._is_comb.append(is_comb)
        return len(self.ranks) - 1
