"""A buffer whose bytes are symbols, in pieces of any length: a byte is known by its term, and by which byte of that it is."""

from __future__ import annotations

from bisect import bisect_right

from ncclx_mpi.simulate.terms import NOTHING
from numba_kernels.rows import NamedTuple


class Piece(NamedTuple):
    """Bytes of one term that follow each other: `nbytes`, from byte `first` of it on."""

    nbytes: int
    term: int
    first: int

    def part(self, start: int, nbytes: int) -> Piece:
        """Some of its bytes."""
        return Piece(nbytes, self.term, self.first + start)


class Memory:
    """A buffer of a length; nothing is written in it at first.

    Pieces cover all of it. They lie where they begin, so `_starts` and `_pieces` are parallel.
    """

    def __init__(self, length: int) -> None:
        self._starts = [0]
        self._pieces = [Piece(length, NOTHING, 0)]

    def read(self, start: int, nbytes: int) -> list[Piece]:
        """The pieces of some bytes, which have to be inside."""
        found, end = [], start + nbytes
        index = bisect_right(self._starts, start) - 1
        while start < end:
            piece, skipped = self._pieces[index], start - self._starts[index]
            taken = min(piece.nbytes - skipped, end - start)
            if taken:
                found.append(piece.part(skipped, taken))
            start += taken
            index += 1
        return found

    def write(self, start: int, pieces: list[Piece]) -> None:
        """Replace bytes from `start` on, which have to be inside."""
        end = start + sum(piece.nbytes for piece in pieces)
        if start == end:
            return
        first, last = bisect_right(self._starts, start) - 1, bisect_right(self._starts, end - 1) - 1
        before = self._pieces[first].part(0, start - self._starts[first])
        skipped = end - self._starts[last]
        behind = self._pieces[last].part(skipped, self._pieces[last].nbytes - skipped)
        new = [piece for piece in (before, *pieces, behind) if piece.nbytes]
        at, starts = self._starts[first], []
        for piece in new:
            starts.append(at)
            at += piece.nbytes
        self._starts[first : last + 1] = starts
        self._pieces[first : last + 1] = new


def side_by_side(low: list[Piece], high: list[Piece]) -> list[tuple[Piece, Piece]]:
    """Cut two runs of as many bytes so that pieces of both have the same lengths."""
    pairs, rest_low, rest_high = [], low[::-1], high[::-1]
    while rest_low:
        left, right = rest_low.pop(), rest_high.pop()
        length = min(left.nbytes, right.nbytes)
        pairs.append((left.part(0, length), right.part(0, length)))
        if left.nbytes > length:
            rest_low.append(left.part(length, left.nbytes - length))
        if right.nbytes > length:
            rest_high.append(right.part(length, right.nbytes - length))
    return pairs
