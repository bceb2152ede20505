"""Peers of other jobs, which join while the program runs: how they are counted, and what their end means here.

A rank counts its own job's ranks first, as the job does, and behind them whoever it has met since, each meeting anew and each rank in an
order of its own. What all agree on is a process's *identity*: the number of its job, and its rank there.

The death of such a peer ends the communicators of which it was a rank, and no other wait: jobs that have met do not live or die together.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ncclx_mpi import errors
from ncclx_mpi.p2p import joined
from numba_kernels.jit import c_address, entry
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.p2p.engine import Engine
    from transports.base import Transport

MOST_GUESTS = 1 << 14
"""That a process may meet in its life; a meeting with a process that it has met before counts anew."""


class Identity(NamedTuple):
    """What all processes know one by: the number of its job, and its rank there."""

    job: int
    rank: int


class Member(NamedTuple):
    """A process that takes part in a meeting: who it is, and by what it is watched over."""

    identity: Identity
    pid: int
    start_time: int


class Way(NamedTuple):
    """What joins a process with those that it has met at once.

    Attributes
    ----------
    transport
        What reaches them.
    is_drained
        Says whether nothing has come from them that was not taken in.
    leave
        Lets them know that this process ends in order.
    close
        Gives it up.
    endpoints
        By what the transport reaches each, if it has to be told.
    ended
        Says who has ended, and whether in order, where no process of this machine can be watched over.
    """

    transport: Transport
    is_drained: Callable[[], bool]
    leave: Callable[[], None]
    close: Callable[[], None]
    endpoints: Mapping[int, bytes]
    ended: Callable[[], Iterable[tuple[int, bool]]]


class Meeting:
    """Those that were met at once.

    Attributes
    ----------
    key
        A number that all who took part know it by.
    way
        What joins this process with them.
    poll
        The functions that poll and arm it, and with what.
    members
        Who is known by which number.
    living
        Those that have not ended.
    """

    def __init__(self, key: int, way: Way, poll: tuple[int, int, int], members: dict[int, Member], living: set[int]) -> None:
        self.key = key
        self.way = way
        self.poll = poll
        self.members = members
        self.living = living


class Guests:
    """The peers of other jobs that a rank knows.

    Attributes
    ----------
    dead : dict
        Those that ended without leaving in order, by their number, in words.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._meetings: list[Meeting] = []
        self._members: dict[int, Member] = {}
        self._list = array("q")
        self._own = [_polled(transport, engine.word("other_state")) for transport in engine.transports if not transport.is_inlined]
        self.dead: dict[int, str] = {}

    @property
    def have_come(self) -> bool:
        """Whether there ever were any."""
        return bool(self._members)

    @property
    def are_living(self) -> bool:
        """Whether there are some now."""
        self.learn()
        return any(meeting.living for meeting in self._meetings)

    def identity(self, rank: int) -> Identity:
        """Who a peer is."""
        member = self._members.get(rank)
        return member.identity if member is not None else Identity(self._engine.arena.job, rank)

    def find(self, identity: Identity) -> int:
        """The number of a process here: both ends of a pair that has met several times mean the same meeting.

        Raises
        ------
        Exception
            ERR_COMM: this process has not met it.
        """
        if identity.job == self._engine.arena.job:
            return identity.rank
        found = [
            (meeting.key, number)
            for meeting in list(self._meetings)
            for number, member in meeting.members.items()
            if member.identity == identity
        ]
        if not found:
            errors.fail(
                errors.ERR_COMM,
                f"rank {self._engine.rank} and rank {identity.rank} of another job have not met; make a communicator that has both "
                "first, by Accept and Connect, or by Merge",
            )
        return min(found)[1]

    def in_words(self, rank: int) -> str:
        """A peer, for errors."""
        member = self._members.get(rank)
        return f"rank {rank}" if member is None else f"rank {member.identity.rank} of another job (process {member.pid})"

    def all_in_words(self, ranks: Sequence[int]) -> str:
        """Some peers, for errors."""
        own = [str(rank) for rank in ranks if rank not in self._members]
        first = [f"rank{'s' if len(own) > 1 else ''} {', '.join(own)}"] if own else []
        return ", ".join([*first, *(self.in_words(rank) for rank in ranks if rank in self._members)])

    def admit(self, key: int, members: Sequence[Member], reach: Callable[[Sequence[int]], Way]) -> list[int]:
        """Take in those that are met; `reach` is given their numbers, and makes what reaches them. Returns the numbers.

        Raises
        ------
        Exception
            ERR_NO_MEM: there have been too many.
        """
        engine = self._engine
        with self._lock:
            first = engine.known
            numbers = list(range(first, first + len(members)))
            if numbers[-1] >= engine.size + MOST_GUESTS:
                errors.fail(
                    errors.ERR_NO_MEM,
                    f"rank {engine.rank} has met {first - engine.size} processes of other jobs, and cannot meet {len(members)} more; "
                    f"a process may meet {MOST_GUESTS} in its life: start it anew",
                )
            way = reach(numbers)
            known = dict(zip(numbers, members, strict=True))
            poll = _polled(way.transport, engine.attach(way.transport))
            meeting = Meeting(key, way, poll, known, set(numbers))
            for number in numbers:
                engine.connect(way.transport, number, way.endpoints.get(number, b""))
            self._members.update(known)
            self._engine.births = ()
            self._meetings.append(meeting)
            engine.transports = (*engine.transports, way.transport)
            engine.set_word("nranks", numbers[-1] + 1)
            self._poll()
        return numbers

    def ended(self, number: int, has_left: bool) -> None:
        """Be told, by the thread that watches over them, that the process of a peer has ended, in order or not."""
        self._engine.set_peer(number, send=c_address(joined.drop), credit=c_address(joined.drop_credit))
        if not has_left:
            self.dead[number] = self.in_words(number)
        for meeting in list(self._meetings):
            meeting.living.discard(number)
        if not has_left:
            entry(joined.note_end)(self._engine.address, -1 - number)

    def dead_of(self, ranks: Iterable[int]) -> list[int]:
        """Those of some peers that have died."""
        self.learn()
        return [rank for rank in ranks if rank in self.dead]

    def learn(self) -> None:
        """Look at what has become of those over whom nobody watches."""
        for meeting in list(self._meetings):
            for number, has_left in meeting.way.ended():
                if number in meeting.living:
                    self.ended(number, has_left)

    def forget_ended(self) -> None:
        """Give up what joined us with those of whom nothing is left to come."""
        self.learn()
        with self._lock:
            over = [meeting for meeting in self._meetings if not meeting.living and self._is_over(meeting)]
            if not over:
                return
            self._meetings = [meeting for meeting in self._meetings if meeting not in over]
            gone = [meeting.way.transport for meeting in over]
            self._engine.transports = tuple(transport for transport in self._engine.transports if transport not in gone)
            self._poll()
            for meeting in over:
                meeting.way.close()

    def leave(self) -> None:
        """Let all that live know that this process ends in order."""
        for meeting in self._meetings:
            meeting.way.leave()

    def _is_over(self, meeting: Meeting) -> bool:
        return meeting.way.is_drained() and not meeting.way.transport.is_busy

    def _poll(self) -> None:
        """Poll all transports that there are from now on."""
        polled = [*self._own, *(meeting.poll for meeting in self._meetings)]
        words = [len(polled), *itertools.chain.from_iterable(polled)]
        before, self._list = self._list, array("q", words)
        poll, arm = c_address(joined.poll_all), c_address(joined.arm_all)
        entry(joined.poll_from_now_on)(self._engine.address, poll, arm, self._list.buffer_info()[0])
        del before  # nobody reads it any more


def _polled(transport: Transport, state: int) -> tuple[int, int, int]:
    """A transport, as in a list of :mod:`ncclx_mpi.p2p.joined`."""
    return transport.functions.poll, transport.functions.arm, state
