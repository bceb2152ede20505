"""What speakers of two groups of one job tell each other where they are on different hosts: messages of the job, which reach all of them.

::

    root of a group                               root that accepts at its port
      who we are, and a number of ours  --------->  on the tag of the port
      <--- the same                                 on the tag of the number, as all that follows
      contexts, from either root  <-------------->

An empty message says that its sender has given up. All go through the world in the space of messages that make communicators, each with
a tag that nobody else uses there.
"""

from __future__ import annotations

import json
import secrets
from array import array
from typing import TYPE_CHECKING, Any

from ncclx_mpi.api import communicator
from ncclx_mpi.constants import ANY_SOURCE

if TYPE_CHECKING:
    from ncclx_mpi.p2p.engine import Engine

_OFFSET, _TAG, _NUMBER_BITS = 3, 1 << 47, 40
_MESSAGES = 3
"""That two speakers exchange."""


class JobTalk:
    """As :class:`ncclx_mpi.bootstrap.port.SocketTalk`, with a rank of this job.

    Parameters
    ----------
    engine
        Of this rank.
    peer
        World rank of the other speaker.
    number
        Which talk it is of those that its client has.
    """

    def __init__(self, engine: Engine, peer: int, number: int) -> None:
        self._engine = engine
        self._world = communicator.world(engine)
        self._peer = peer
        self._number = number
        self._out: list[tuple[int, array[int]]] = []
        self._in: list[Any] = []
        self._count = 0

    def knock(self, port: int, greeting: dict[str, Any]) -> None:
        """Begin it at a port of the other rank, as its client."""
        self._send(json.dumps({**greeting, "talk": self._number}).encode(), _port_tag(port))
        self._count += 1

    def heard(self, message: Any) -> None:
        """Begin it with the first message of its client, which has come: :meth:`poll` returns it."""
        self._in.append(message)

    def say(self, message: Any) -> None:
        """Send what JSON can write."""
        self._send(json.dumps(message).encode(), _talk_tag(self._number))
        self._count += 1

    def _send(self, data: bytes, tag: int) -> None:
        memory = array("B", data)
        sent = self._engine.start_send(self._world, memory.buffer_info()[0], len(memory), self._peer, tag, 0, _OFFSET)
        self._out.append((sent, memory))

    def poll(self) -> Any:
        """The next message, None while there is none.

        Raises
        ------
        ConnectionError
            The other side has given up.
        """
        self.flush()
        if not self._in:
            return None
        self._count += 1
        return self._in.pop(0)

    def flush(self) -> bool:
        """Whether all that was said has been taken; raises as :meth:`poll`."""
        while self._out and self._engine.done(self._out[0][0]):
            self._engine.free(self._out.pop(0)[0])
        data = _received(self._engine, self._peer, _talk_tag(self._number))
        if data is not None:
            if not data[1]:
                self._count = _MESSAGES  # it needs not be told
                raise ConnectionResetError("the other side has gone")
            self._in.append(json.loads(data[1]))
        return not self._out

    def close(self) -> None:
        """End it; one that is not over yet ends for the other side, too."""
        if self._count < _MESSAGES:
            self._send(b"", _talk_tag(self._number))
        for sent, memory in self._out:
            self._engine.free(sent, memory)
        self._out.clear()


def towards(engine: Engine, peer: int, port: int, greeting: dict[str, Any]) -> JobTalk:
    """Ask at a port of another rank of this job."""
    talk = JobTalk(engine, peer, secrets.randbits(_NUMBER_BITS))
    talk.knock(port, greeting)
    return talk


def arrived(engine: Engine, port: int) -> JobTalk | None:
    """The talk of the next rank that asks at a port of this one, None while there is none."""
    found = _received(engine, ANY_SOURCE, _port_tag(port))
    if found is None:
        return None
    client, data = found
    greeting = json.loads(data)
    talk = JobTalk(engine, client, greeting.pop("talk"))
    talk.heard(greeting)
    return talk


def refuse_all(engine: Engine, port: int) -> None:
    """Send away whoever has asked at a port of this rank, which is closed."""
    while (talk := arrived(engine, port)) is not None:
        talk.close()


def _port_tag(port: int) -> int:
    return _TAG | port << 1 | 1


def _talk_tag(number: int) -> int:
    return _TAG | number << 1


def _received(engine: Engine, source: int, tag: int) -> tuple[int, bytes] | None:
    """The next message, and who sent it; None if none has come."""
    world = communicator.world(engine)
    message = engine.match(world, source, tag, _OFFSET)
    if not message:
        return None
    about = engine.result(message)
    memory = array("B", bytes(about.nbytes))
    request = engine.start_matched_recv(world, message, memory.buffer_info()[0], len(memory))
    engine.wait_all([request], "Connect", memory)
    return about.source, memory.tobytes()
