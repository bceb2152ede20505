"""Processes of another job that are met by a network, since one of the two groups is on several hosts.

::

    all: a transport each        FarMeeting, its endpoint   --->  the root of the group, the other root, its group
    all: who is who              reach                            from now on messages can be taken
    all have: a first message    greet                      --->  everybody else, so that the end of each is noticed by all

A meeting counts its processes by *places*, which both groups agree on; what each of them is to this process is a number of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncclx_mpi import far_transport
from ncclx_mpi.bootstrap.heartbeat import heartbeat
from ncclx_mpi.p2p import joined
from ncclx_mpi.p2p.guests import Way
from ncclx_mpi.p2p.progress import call_locked
from numba_kernels.jit import c_address, entry
from numba_kernels.layout import WORD, zeroed
from transports.base import DeathNotice

if TYPE_CHECKING:
    from ncclx_mpi.p2p.engine import Engine

_NAME_BYTES = 8


class FarMeeting:
    """The part that a process has in a meeting.

    Parameters
    ----------
    place
        Of this process.
    size
        Processes that take part.

    Raises
    ------
    OSError
        There is nothing to reach others by; says why.
    """

    def __init__(self, place: int, size: int) -> None:
        self._ends, ends_at = zeroed(size * WORD)
        self._table, self._table_at = zeroed((1 + size) * WORD)
        notice = DeathNotice(c_address(joined.note_guest_end), self._table_at, ends_at)
        try:
            self._transport = far_transport.make(place, size, (), notice, heartbeat().limit)
        except ImportError as error:
            raise OSError(str(error)) from None
        self._places: dict[int, int] = {}

    @property
    def endpoint(self) -> bytes:
        """By what the others reach this process: the name of its transport, in so many bytes, and what that says."""
        return self._transport.name.encode().ljust(_NAME_BYTES, b"\0") + self._transport.endpoint()

    def reach(self, engine: Engine, numbers: Sequence[int], places: Sequence[int], endpoints: Sequence[bytes]) -> Way:
        """What joins this process with those at some places, which it knows by these numbers; `endpoints` are those of all places.

        Raises
        ------
        OSError
            One of them goes by another transport.
        """
        others = {name for place in places if (name := _name_in(endpoints[place])) != self._transport.name}
        if others:
            raise OSError(
                f"this process reaches other hosts by {self._transport.name}, and some that it is to meet by {', '.join(sorted(others))}: "
                "set NCCLX_MPI_FAR_TRANSPORT alike for both"
            )
        self._places = dict(zip(numbers, places, strict=True))
        self._table[0] = engine.address
        for number, place in self._places.items():
            self._table[1 + place] = number
        self._transport.meet(self._places)
        known = {number: endpoints[place][_NAME_BYTES:] for number, place in self._places.items()}
        # A goodbye is a message here, which every peer is sent: there is nothing else to let them know.
        return Way(self._transport, self._is_drained, lambda: None, self.close, known, self.ended)

    def greet(self) -> None:
        """Connect with all, so that the end of each is noticed."""
        for number in self._places:
            entry(call_locked)(self._table[0], *self._transport.greeting(number))

    def ended(self) -> list[tuple[int, bool]]:
        """The numbers of those that have ended, and whether each did so in order."""
        left = {number for number in self._places if self._transport.has_left(number)}
        return [(number, number in left) for number, place in self._places.items() if number in left or self._ends[place]]

    def _is_drained(self) -> bool:
        return len(self.ended()) == len(self._places)

    def close(self) -> None:
        """Give it up."""
        self._transport.close()


def _name_in(endpoint: bytes) -> str:
    """The name of a transport, at the beginning of what a process is reached by."""
    return endpoint[:_NAME_BYTES].rstrip(b"\0").decode()
