"""What transports to other hosts have in common: peers have places, which are world ranks, or count those of several jobs that meet."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from numba_kernels.layout import zeroed
from transports.base import DeathNotice, Transport


class PlacedTransport(Transport):
    """A transport whose state has a table of the blocks of its peers, by their places.

    Parameters
    ----------
    rank
        This process's place: its world rank, unless jobs meet.
    size
        Number of places.
    reached
        World ranks that are reached by it.
    on_death
        What is called when a peer is found dead; None: nothing.
    patience
        Seconds in which a link that is down may come back.
    link_bytes
        Of the block of a peer that are the transport's.
    """

    needs: ClassVar[str]
    """What a peer has to have to be reached."""

    def __init__(
        self, rank: int, size: int, reached: Collection[int], on_death: DeathNotice | None, patience: float, link_bytes: int
    ) -> None:
        self._rank = rank
        self._size = size
        self._reached = frozenset(reached)
        self._places = dict(enumerate(range(size)))
        self._on_death = on_death
        self._patience = patience
        self._nobody, nobody_at = zeroed(link_bytes)
        self._links = array("q", [nobody_at]) * size

    def meet(self, places: Mapping[int, int]) -> None:
        """Reach peers of other jobs, by the rank that each has here; before it is attached."""
        self._places = dict(places)
        self._reached = frozenset(places)

    def why_not(self, peer: int) -> str:
        if peer not in self._places:
            return f"rank {peer} is not one of the {self._size} of this job"
        return "" if peer in self._reached else f"rank {peer} has no {self.needs}"

    def _link(self, peer: int) -> int:
        address: int = self._links[self._places[peer]]
        return address

    def _words_of_peers(self, peers: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Words of the state: where the blocks of peers are, who this is, and what to call for one that is dead."""
        for peer, place in self._places.items():
            self._links[place] = peers[peer]
        yield from (("peers", self._links.buffer_info()[0]), ("count", len(self._links)), ("rank", self._rank))
        if self._on_death is not None:
            yield from zip(("note_death", "deaths", "death_words"), self._on_death, strict=True)


def word_at(address: int) -> Any:
    """A word of memory, as ``value``."""
    return ctypes.c_int64.from_address(address)
