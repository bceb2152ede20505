"""Partitioned messages: one message that threads bring part by part, and of which a receiver can tell what has come.

::

    sender                                              receiver
      made: CHANNEL {number, parts, bytes of one} ------> made: posts a receive of it; tag, and order, are those of the program's calls
      a part is ready: part i, tag (number, i) ---------> started: posts a receive for each part of the sender, where it belongs

The two sides may cut the message into other numbers of parts. A turn of the receiver whose CHANNEL has not come posts its receives later: in
whatever is asked of it, or in the library's own thread. Elements that lie scattered, or in a GPU's memory, come through packed memory, and
are unpacked when all have come; their parts have not arrived before.

Cost: a message each part, and one more for the channel, once.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from ncclx_mpi import errors
from ncclx_mpi.operations import background_progress
from ncclx_mpi.operations.operation import NO_PROC, Operation, Persistent, on_behalf, write_status
from ncclx_mpi.operations.transfer import Transfer
from ncclx_mpi.p2p.engine import NativeComm, Result
from numba_kernels.late_numpy import np

if TYPE_CHECKING:
    from ncclx_mpi.api.status import Status
    from ncclx_mpi.arguments import Buffer

_OFFSET = 3
"""The message space, which has other tags for the making of communicators of groups."""
_CHANNEL, _PART, _PART_BITS, _NUMBER_BITS = 1 << 41, 1 << 58, 30, 27
MOST_PARTS = 1 << _PART_BITS

_numbers = itertools.count()


class PartitionedSend(Persistent):
    """A message of equal parts, each sent when the program says that it is ready.

    Parameters
    ----------
    comm, peer, tag
        Where it goes.
    first
        The first of the parts, which lie one behind the other; borrowed as long as this lives.
    parts
        How many there are.
    """

    __slots__ = ("channel", "comm", "first", "parts", "peer")

    def __init__(self, comm: NativeComm, first: Buffer, parts: int, peer: int, tag: int) -> None:
        self.current = None
        self.comm, self.first, self.parts, self.peer = comm, first, parts, peer
        self.channel = next(_numbers) % (1 << _NUMBER_BITS)
        words = np.array([self.channel, parts, first.nbytes], dtype=np.int64)
        Transfer(comm, words).send(words.ctypes.data, words.nbytes, peer, _CHANNEL | tag, offset=_OFFSET).release()

    def turn(self) -> Operation:
        """What one start begins."""
        return _Sending(self)

    def ready(self, part: int) -> None:
        """Send a part.

        Raises
        ------
        Exception
            ERR_ARG: there is no such part, or it was ready before. ERR_REQUEST: the message is not started.
        """
        sending = self.current
        if not isinstance(sending, _Sending):
            errors.fail(
                errors.ERR_REQUEST, f"partition {part} of a message that is not started is said to be ready; Start it first"
            )
        sending.send(_checked(part, self.parts))


class _Sending(Operation):
    """One turn of a send."""

    __slots__ = ("claimed", "message", "sent")
    claimed: dict[int, object]
    """Parts that a thread has said to be ready, by what tells that thread from others."""
    sent: dict[int, Transfer]

    def __init__(self, message: PartitionedSend) -> None:
        self.message = message
        self.claimed, self.sent = {}, {}

    def send(self, part: int) -> None:
        message, own = self.message, object()
        if self.claimed.setdefault(part, own) is not own:
            errors.fail(errors.ERR_ARG, f"rank {message.comm.rank}: partition {part} is said to be ready twice in one turn")
        buffer = message.first.at(part)
        address, owner = buffer.packed()
        transfer = Transfer(message.comm, owner)
        self.sent[part] = transfer.send(address, buffer.nbytes, message.peer, _tag(message.channel, part), offset=_OFFSET)

    def poll(self) -> bool:
        """Whether all parts were ready and are sent, after some progress."""
        self.message.comm.engine.progress()
        return len(self.sent) == self.message.parts and all(transfer.poll() for transfer in self.sent.values())

    def wait(self) -> None:
        """Return when all parts are sent; other threads may bring them meanwhile."""
        comm = self.message.comm
        on_behalf(comm, comm.engine.idle_wait, self.poll, f"partitioned send to rank {self.message.peer}")

    def finish(self) -> Any:
        """Let it be started again."""
        for transfer in self.sent.values():
            transfer.finish()

    def cancel(self) -> None:
        """Ask for its cancellation."""
        errors.fail(errors.ERR_REQUEST, "a partitioned message cannot be cancelled")

    def release(self) -> None:
        """Give it up; what was ready is still sent."""
        for transfer in list(self.sent.values()):
            transfer.release()

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        for transfer in list(self.sent.values()):  # another thread may bring one more
            transfer.abandon()


class PartitionedReceive(Persistent):
    """A message of equal parts, of which the program asks which have come.

    Parameters
    ----------
    comm, peer, tag
        Where it comes from.
    first
        The first of the parts, which lie one behind the other; written to from each start until the turn is complete.
    parts
        How many there are.
    """

    __slots__ = ("channel", "comm", "first", "parts", "peer", "tag", "words")

    def __init__(self, comm: NativeComm, first: Buffer, parts: int, peer: int, tag: int) -> None:
        self.current = None
        self.comm, self.first, self.parts, self.peer, self.tag = comm, first, parts, peer, tag
        self.words = np.zeros(3, dtype=np.int64)
        what = f"the announcement of a partitioned message from rank {peer}, tag {tag}"
        self.channel: Transfer | None = Transfer(comm, self.words, what=what)
        self.channel.receive(self.words.ctypes.data, self.words.nbytes, peer, _CHANNEL | tag, _OFFSET)

    def turn(self) -> Operation:
        """What one start begins."""
        return _Receiving(self)

    def has_arrived(self, part: int) -> bool:
        """Whether a part has come; so has every part of a message that is not started.

        Raises
        ------
        Exception
            ERR_ARG: there is no such part.
        """
        part = _checked(part, self.parts)
        return not isinstance(self.current, _Receiving) or self.current.has_arrived(part)

    def release(self) -> None:
        """Give it up; what is announced to it is still taken."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.release()
        super().release()


class _Receiving(Operation):
    """One turn of a receive."""

    __slots__ = ("lock", "message", "posted", "store")
    posted: list[Transfer] | None

    def __init__(self, message: PartitionedReceive) -> None:
        self.message = message
        self.lock = threading.Lock()
        self.posted = None
        self.store: Any = None
        if not self.post():
            background_progress.add(_Posting(self))

    @property
    def is_stepped(self) -> bool:
        """Whether polling moves it on, beyond what the engine does by itself."""
        return self.posted is None

    def post(self) -> bool:
        """Post the receives, once the message was announced; whether they are."""
        if self.posted is None:
            with self.lock:
                channel = self.message.channel
                if self.posted is None and (channel is None or channel.poll()):
                    self._post()
        return self.posted is not None

    def _post(self) -> None:
        message = self.message
        if message.channel is not None:
            message.channel.finish()
            message.channel = None
        whole = message.first.times(message.parts)
        address, owner, self.store = (whole.address, whole.owner, None) if whole.is_direct else whole.landing()
        number, parts, nbytes = message.words.tolist()
        posted = []
        for part in range(parts):
            start = min(part * nbytes, whole.nbytes)
            room = min(nbytes, whole.nbytes - start)
            transfer = Transfer(message.comm, owner, what=f"partition {part} of {parts} of a message")
            posted.append(transfer.receive(address + start, room, message.peer, _tag(number, part), _OFFSET))
        self.posted = posted

    def has_arrived(self, part: int) -> bool:
        """Whether all has come that belongs to a part."""
        if not self.post() or self.posted is None:
            return False
        if self.store is not None:
            return self.poll()
        return all(transfer.poll() for transfer in self.posted[self._parts_in(part)])

    def _parts_in(self, part: int) -> slice:
        """The parts of the sender that reach into one of the receiver's."""
        mine, theirs = self.message.first.nbytes, int(self.message.words[2])
        if not mine or not theirs:  # then they are as many pieces of nothing
            mine, theirs = int(self.message.words[1]), self.message.parts
        return slice(part * mine // theirs, -(-(part + 1) * mine // theirs))

    def poll(self) -> bool:
        """Whether all has come, after some progress."""
        if not self.post() or self.posted is None or not all(transfer.poll() for transfer in self.posted):
            return False
        if self.store is not None:
            with self.lock:  # whoever else asks waits until all is unpacked
                if self.store is not None:
                    self.store(sum(self.message.comm.engine.result(transfer.request).nbytes for transfer in self.posted))
                    self.store = None
        return True

    def wait(self) -> None:
        """Return when all has come."""
        comm, what = self.message.comm, f"partitioned receive from rank {self.message.peer}, tag {self.message.tag}"
        on_behalf(comm, comm.engine.idle_wait, self.poll, what)

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        message = self.message
        nbytes = int(message.words[1] * message.words[2])
        write_status(status, Result(message.peer, message.tag, nbytes, errors.SUCCESS, False))

    def finish(self) -> Any:
        """Let it be started again; raises ERR_TRUNCATE if more has come than there is room for."""
        first: errors.Exception | None = None
        for transfer in self.posted or ():
            try:
                transfer.finish()
            except errors.Exception as error:
                first = first or error
        if first is not None:
            raise first

    def cancel(self) -> None:
        """Ask for its cancellation."""
        errors.fail(errors.ERR_REQUEST, "a partitioned message cannot be cancelled")

    def release(self) -> None:
        """Give it up; what comes still lands where it belongs, if that lies together."""
        with self.lock:
            posted, self.posted = self.posted, []
        for transfer in posted or ():
            transfer.release()

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        with self.lock:
            posted, self.posted = self.posted, []
        for transfer in posted or ():
            transfer.abandon()


class _Posting:
    """A turn whose message was not announced when it began: the library's thread posts its receives, for senders that wait for them."""

    is_owed = False

    def __init__(self, turn: _Receiving) -> None:
        self._turn = turn

    def poll(self) -> bool:
        """Post them if the announcement has come."""
        return self._turn.post()


class NoPartner(Persistent):
    """A partitioned message with PROC_NULL: every part is sent, or has come, at once.

    Parameters
    ----------
    parts
        How many there are.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: int) -> None:
        self.current = None
        self.parts = parts

    def turn(self) -> Operation:
        """What one start begins: it is complete."""
        return Operation(NO_PROC)

    def ready(self, part: int) -> None:
        """Send a part to nobody."""
        _checked(part, self.parts)

    def has_arrived(self, part: int) -> bool:
        """A part of nobody has come."""
        _checked(part, self.parts)
        return True


def _tag(number: int, part: int) -> int:
    return _PART | number << _PART_BITS | part


def _checked(part: int, parts: int) -> int:
    if not 0 <= part < parts:
        errors.fail(errors.ERR_ARG, f"partition {part} is none of a message of {parts}")
    return part
