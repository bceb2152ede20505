"""Ranks in as many groups as the largest power of two: the first groups are pairs of neighbors, and the others are one rank each.

::

    n = 6, four groups:    {0 1}  {2 3}  {4}  {5}

One rank of a pair gives what it has to the other one, which speaks for both, and gives it its result in the end.
"""

from __future__ import annotations

from numba_kernels.rows import NamedTuple


class Groups(NamedTuple):
    """So many ranks in groups.

    Attributes
    ----------
    size
        How many ranks.
    first
        A rank that speaks for its pair; in other pairs it is the higher one. -1: in all of them.
    """

    size: int
    first: int = -1

    @property
    def rounds(self) -> int:
        """The logarithm of how many groups there are."""
        return self.size.bit_length() - 1

    @property
    def number(self) -> int:
        """How many groups there are."""
        return 1 << self.rounds

    @property
    def pairs(self) -> int:
        """How many of them are pairs: the first ones."""
        return self.size - self.number

    def group_of(self, rank: int) -> int:
        """Where a rank is."""
        return rank // 2 if rank < 2 * self.pairs else rank - self.pairs

    def mate_of(self, rank: int) -> int:
        """The other rank of a pair; -1 if there is none."""
        return rank ^ 1 if rank < 2 * self.pairs else -1

    def speaker_of(self, group: int) -> int:
        """The rank that speaks for a group."""
        if group >= self.pairs:
            return group + self.pairs
        return self.first if self.first // 2 == group else 2 * group + 1

    def speaks(self, rank: int) -> bool:
        """Whether a rank speaks for its group."""
        return self.speaker_of(self.group_of(rank)) == rank

    def first_rank_of(self, group: int) -> int:
        """The lowest rank of a group; of the number of groups, where the last one ends."""
        return group + min(group, self.pairs)

    def halves(self, group: int, turn: int) -> tuple[range, range]:
        """The groups that a group has joined before a round of doubling, or acts as one with after one of halving; and their partners."""
        own, theirs = (range(first, first + (1 << turn)) for first in (group >> turn << turn, (group >> turn ^ 1) << turn))
        return own, theirs
