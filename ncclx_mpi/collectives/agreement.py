"""Agreement among the ranks of a communicator that live, whoever dies meanwhile.

::

    exchange        every rank -- its value --> every other one; each merges all that come, until all others have sent theirs or died
    round r         rank r -- what it has --> every other one, which takes it over; nothing, if rank r dies
    after n rounds  all that live have the same

The first rank that lives through its round makes all alike, and none that comes later has anything else to send: so it is no matter whom a
rank that died had reached. Messages of 8 * (3 + n / 63) bytes, n - 1 from each rank in the exchange and in its round: T = 2 n * alpha.
Values are merged by what each of their words means:

=============  ==================================================================
flag           bitwise and
contexts       two that one of the ranks has to offer: those of the lowest
failed         bitwise or: the ranks that anybody knows to have died, 63 to a word
=============  ==================================================================

Deaths end no wait here; they are acknowledged when they are noticed (:meth:`~ncclx_mpi.p2p.ended.EndedComms.acknowledge`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.layout import WORD, zeroed

_OFFSET, _TAG, _NUMBER_BITS = 3, 1 << 46, 16
"""The message space, the tags above those of the other messages there, and the bits of a rank in them."""
_FLAG, _CONTEXT, _SECOND, _FAILED = range(4)
_RANKS = 63
"""Ranks to a word."""


class Agreement:
    """One agreement, which :meth:`poll` moves on. All ranks begin the same ones in the same order.

    Parameters
    ----------
    comm
        The communicator; it may have been revoked, and have ranks that died.
    flag
        What this rank has to say.
    contexts
        What it has to offer.
    """

    def __init__(self, comm: NativeComm, flag: int, contexts: Sequence[int]) -> None:
        comm.agreements += 1
        self.comm = comm
        self._engine = comm.engine
        self._tag = _TAG | comm.agreements << _NUMBER_BITS
        self._value = array("q", [flag, *contexts, *[0] * -(-comm.size // _RANKS)])
        self._round = -1
        self._dead: set[int] = set()
        self._rooms: dict[int, tuple[int, array[int]]] = {}
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._note_deaths()
        self._expect(others, 0)
        self._send(0)

    @property
    def flag(self) -> int:
        """What all have agreed on."""
        return self._value[_FLAG]

    @property
    def contexts(self) -> tuple[int, int]:
        """Contexts that no other communicator has, the same ones on all ranks."""
        return self._value[_CONTEXT], self._value[_SECOND]

    @property
    def failed(self) -> list[int]:
        """The ranks that have died, as all agree."""
        words = self._value[_FAILED:]
        return [rank for rank in range(self.comm.size) if words[rank // _RANKS] >> rank % _RANKS & 1]

    def poll(self) -> bool:
        """Whether all have agreed, after some progress."""
        self._engine.progress()
        self._note_deaths()
        while self._round < self.comm.size:
            self._take()
            if self._rooms:
                return False
            self._next_round()
        return True

    def abandon(self) -> None:
        """Expect nothing more of it."""
        for request, room in self._rooms.values():
            self._engine.withdraw(request, room)
        self._rooms.clear()
        self._round = self.comm.size

    def __del__(self) -> None:
        self.abandon()

    def _note_deaths(self) -> None:
        if not self._engine.has_dead_ranks:
            return
        dead = set(self._engine.ended.acknowledge())
        for rank, world in enumerate(self.comm.world_ranks):
            if world in dead and rank not in self._dead:
                self._dead.add(rank)
                if self._round < 0:
                    self._value[_FAILED + rank // _RANKS] |= 1 << rank % _RANKS

    def _expect(self, ranks: Sequence[int], turn: int) -> None:
        for rank in ranks:
            room, address = zeroed(WORD * len(self._value))
            request = self._engine.start_recv(self.comm, address, WORD * len(room), rank, self._tag + turn, _OFFSET)
            self._rooms[rank] = request, room

    def _send(self, turn: int) -> None:
        """Send what this rank has to all that live; a small message is on its way at once, and nobody waits for it."""
        data = self._value[:]
        address, count = data.buffer_info()
        for rank in range(self.comm.size):
            if rank != self.comm.rank and rank not in self._dead:
                request = self._engine.start_send(self.comm, address, count * WORD, rank, self._tag + turn, 0, _OFFSET)
                self._engine.free(request, (self.comm, data))

    def _take(self) -> None:
        """Take over what has come, and expect nothing more of those that have died."""
        for rank, (request, room) in list(self._rooms.items()):
            if self._engine.is_complete(request):
                self._engine.free(request)
                self._merge(room)
            elif rank in self._dead:
                self._engine.withdraw(request, room)
            else:
                continue
            del self._rooms[rank]

    def _merge(self, other: array[int]) -> None:
        if self._round >= 0:
            self._value = other
            return
        value = self._value
        value[_FLAG] &= other[_FLAG]
        if other[_CONTEXT] < value[_CONTEXT]:
            value[_CONTEXT:_FAILED] = other[_CONTEXT:_FAILED]
        for word in range(_FAILED, len(value)):
            value[word] |= other[word]

    def _next_round(self) -> None:
        self._round += 1
        if self._round == self.comm.rank:
            self._send(self._round + 1)
        elif self._round < self.comm.size and self._round not in self._dead:
            self._expect([self._round], self._round + 1)
