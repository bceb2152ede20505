"""How two groups that did not start together become one intercommunicator.

::

    root of a group                                             root of the other group
      who we are: identities, processes, machine, a number --->
      <--- the same                                               the one with the higher number is the host
      host: where it hands the memory out, contexts ---------->
    each root: all of that to its group
    all, unless both groups are of one job: their part of the memory from the host; or, if they are not on one host,
      <--- by what each is reached by UCX -------------------->   and then <--- that all are ready --->

What goes wrong at a root is raised on all ranks of its group; the other root finds the connection closed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import select
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ncclx_mpi import collectives, errors, runtime
from ncclx_mpi.api import bridge, communicator, job_talk
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.job_talk import JobTalk
from ncclx_mpi.bootstrap import handover, port
from ncclx_mpi.bootstrap.patience import Patience
from ncclx_mpi.bootstrap.port import Port, SocketTalk
from ncclx_mpi.p2p.guests import Identity, Member
from numba_kernels.layout import WORD, zeroed
from transports.shm.arena import start_time
from transports.virtual.network import Network

if TYPE_CHECKING:
    from ncclx_mpi.api.errhandler import Errhandler
    from ncclx_mpi.p2p.engine import Engine, NativeComm

_NAP_SECONDS = 1e-3
_STRANGER_SECONDS = 5.0
"""For a client to say who it is, before the next one has its turn."""


@dataclass
class Side:
    """One of the two groups, as its root sees it.

    Attributes
    ----------
    local
        Its communicator.
    members
        Its ranks.
    hosts
        How many hosts they are on.
    number
        Random; the higher one is the host.
    """

    local: NativeComm
    members: list[Member]
    hosts: int
    number: int

    @property
    def greeting(self) -> dict[str, Any]:
        """What the other root is told."""
        return {"number": self.number, "members": self.members, "machine": port.machine() if self.hosts == 1 else ""}


Done = TypeVar("Done")
Talk = SocketTalk | JobTalk
Connect = Callable[[Side], tuple[Talk, dict[str, Any]]]
"""Finds the other root, and returns what it has said of its group, after it was told of this one."""


def meet(local: NativeComm, root: int, connect: Connect, what: str, error_class: int, errhandler: Errhandler) -> CommState:
    """Make the intercommunicator with a group of another job, or of this one. Collective over `local`; `connect` is called at the root.

    Raises
    ------
    Exception
        `error_class`: the groups did not meet, for the reason that the root found.
    """
    engine = local.engine
    engine.guests.forget_ended()
    members, machines = _gather_members(local)
    agreed: dict[str, Any] = {}
    talk, network = None, None
    failure: Exception | None = None
    if local.rank == root:
        try:
            side = Side(local, members, len(set(machines)), secrets.randbits(62))
            talk, agreed, network = _agree(side, connect, what, error_class)
        except errors.Exception as error:
            failure, agreed = error, {"class": error.Get_error_class(), "why": str(error)}
        except Exception as error:  # of wrong arguments, which count at the root alone: the others wait for it
            failure, agreed = error, {"class": error_class, "why": f"{type(error).__name__}: {error}"}
    try:
        agreed = _spread(local, root, agreed)
        if failure is not None:
            raise failure
        if "class" in agreed:
            errors.fail(agreed["class"], f"rank {local.rank}: {what}: rank {root}, the root, found: {agreed['why']}")
        if agreed["is_far"]:
            theirs = _reach_far(local, root, members, agreed, talk, what, error_class)
        else:
            theirs = _reach(engine, local, members, agreed, network, what, error_class)
    finally:
        _close(talk, network)
    return bridge.fill(CommState(), engine, agreed["contexts"], local.world_ranks, theirs, errhandler)


def _gather_members(local: NativeComm) -> tuple[list[Member], list[int]]:
    """Who is in a group, and on which machine each is, as a number."""
    engine = local.engine
    machine = int.from_bytes(hashlib.sha256(port.machine().encode()).digest()[:7], "little")
    own = engine.guests.identity(engine.rank)
    row = array("q", [own.job, own.rank, os.getpid(), start_time(os.getpid()), machine])
    width, (table, place) = len(row), zeroed(local.size * len(row) * row.itemsize)
    collectives.allgather(local, row.buffer_info()[0], width * row.itemsize, place)
    rows = [table[first : first + width].tolist() for first in range(0, len(table), width)]
    return [Member(Identity(job, rank), pid, started) for job, rank, pid, started, _ in rows], [found[-1] for found in rows]


def _agree(side: Side, connect: Connect, what: str, error_class: int) -> tuple[Talk, dict[str, Any], _Handout | None]:
    """At a root: agree with the other one on everything that the ranks of both groups have to know."""
    talk, greeting = connect(side)
    engine, handout = side.local.engine, None
    try:
        theirs = [Member(Identity(*identity), pid, started) for identity, pid, started in greeting["members"]]
        are_one_job = len({member.identity.job for member in [*side.members, *theirs]}) == 1
        shared = [member.identity for member in side.members if member in theirs]
        if shared:
            errors.fail(
                error_class,
                f"rank {side.local.rank}: {what}: {len(shared)} processes are in both groups; they must have none in common",
            )
        is_host = side.number > greeting["number"]
        if is_host:
            is_far = side.hosts > 1 or greeting["machine"] != port.machine()
            if not (are_one_job or is_far):  # who are of one job reach each other already
                handout = _Handout(engine, len(side.members) + len(theirs))
            contexts = [communicator.random_context(), communicator.random_context()]
            told = {"contexts": contexts, "place": handout.place if handout else None, "is_far": is_far and not are_one_job}
            talk.say(told)
            engine.idle_wait(talk.flush, what)
        else:
            told = hear(engine, talk, what, error_class)
    except OSError as error:
        _close(talk, handout)
        raise errors.error(error_class, f"rank {side.local.rank}: {what}: {error}") from None
    except BaseException:
        _close(talk, handout)
        raise
    return talk, {**told, "theirs": theirs, "is_host": is_host, "key": max(side.number, greeting["number"])}, handout


def _close(talk: Talk | None, handout: _Handout | None) -> None:
    for each in (talk, handout):
        if each is not None:
            each.close()


def _await(engine: Engine, predicate: Callable[[], bool], files: Callable[[], Sequence[Any]], what: str) -> None:
    """Wait for another process, asleep on `files`, a millisecond at a time, unless this rank owes somebody something.

    Processes that are just being started need the cores more than this one does.
    """

    def has_come() -> bool:
        if predicate():
            return True
        if not engine.is_owing():
            with contextlib.suppress(OSError, ValueError):
                select.select([each for each in files() if not isinstance(each, JobTalk)], [], [], _NAP_SECONDS)
        return False

    engine.idle_wait(has_come, what)


def hear(engine: Engine, talk: Talk, what: str, error_class: int, seconds: float = 0.0) -> Any:
    """The next message of the other root.

    Raises
    ------
    Exception
        `error_class`: it has gone, or said nothing in time.
    """
    patience, heard = Patience(seconds or handover.join_timeout()), []

    def has_come() -> bool:
        message = talk.poll()
        if message is not None:
            heard.append(message)
        return bool(heard) or patience.is_over

    try:
        _await(engine, has_come, lambda: [talk], what)
    except OSError as error:
        raise errors.error(error_class, f"rank {engine.rank}: {what}: {error}") from None
    if not heard:
        errors.fail(
            error_class,
            f"rank {engine.rank}: {what}: the other side did not come within {patience.seconds:g} s (more time: "
            f"{handover.TIMEOUT_VARIABLE})",
        )
    return heard[0]


def _spread(local: NativeComm, root: int, agreed: dict[str, Any]) -> dict[str, Any]:
    """What the root has agreed on, on all ranks."""
    data = json.dumps(agreed).encode()
    length = array("q", [len(data)])
    collectives.bcast(local, length.buffer_info()[0], length.itemsize, root)
    text = array("B", data if local.rank == root else bytes(length[0]))
    collectives.bcast(local, text.buffer_info()[0], len(text), root)
    found: dict[str, Any] = json.loads(text.tobytes())
    return found


def _reach(
    engine: Engine,
    local: NativeComm,
    mine: Sequence[Member],
    agreed: dict[str, Any],
    handout: _Handout | None,
    what: str,
    error_class: int,
) -> list[int]:
    """The numbers here of the ranks of the other group, once this process reaches them."""
    theirs = [Member(Identity(*identity), pid, started) for identity, pid, started in agreed["theirs"]]
    own_job = engine.guests.identity(engine.rank).job
    if agreed["place"] is None:
        return [member.identity.rank for member in theirs]
    first, behind = (0, len(mine)) if agreed["is_host"] else (len(theirs), 0)
    place, size = first + local.rank, len(mine) + len(theirs)
    try:
        name, token = agreed["place"]
        fd = handout.serve(what) if handout else handover.fetch(name, token, place, size)[0]
    except errors.Exception:
        raise
    except (OSError, RuntimeError) as error:
        raise errors.error(error_class, f"rank {local.rank}: {what}: {error}") from None
    met = [rank for rank, member in enumerate(theirs) if member.identity.job != own_job]
    numbers = iter(runtime.admit(agreed["key"], fd, place, [theirs[rank] for rank in met], [behind + rank for rank in met]))
    return [next(numbers) if rank in set(met) else member.identity.rank for rank, member in enumerate(theirs)]


def _reach_far(
    local: NativeComm, root: int, mine: Sequence[Member], agreed: dict[str, Any], talk: Talk | None, what: str, error_class: int
) -> list[int]:
    """As :func:`_reach`, by UCX."""
    from ncclx_mpi.bootstrap.far_guests import FarMeeting

    engine = local.engine
    theirs = [Member(Identity(*identity), pid, started) for identity, pid, started in agreed["theirs"]]
    first, behind = (0, len(mine)) if agreed["is_host"] else (len(theirs), 0)
    own_job = engine.guests.identity(engine.rank).job
    met = [rank for rank, member in enumerate(theirs) if member.identity.job != own_job]
    made: list[FarMeeting] = []

    def endpoint() -> str:
        made.append(FarMeeting(first + local.rank, len(mine) + len(theirs)))
        return made[0].endpoint.hex()

    def admit() -> list[int]:
        places = [behind + rank for rank in met]
        return runtime.admit_far(agreed["key"], made[0], [theirs[rank] for rank in met], places, endpoints)

    try:
        _, ours, others = _done_by_all(local, root, talk, endpoint, what, error_class)
    except BaseException:
        for each in made:  # nobody has it yet
            each.close()
        raise
    endpoints = [bytes.fromhex(each) for each in ((*ours, *others) if agreed["is_host"] else (*others, *ours))]
    numbers, _, _ = _done_by_all(local, root, talk, admit, what, error_class)
    made[0].greet()
    of_number = dict(zip(met, numbers, strict=True))
    return [of_number.get(rank, member.identity.rank) for rank, member in enumerate(theirs)]


def _done_by_all(
    local: NativeComm, root: int, talk: Talk | None, act: Callable[[], Done], what: str, error_class: int
) -> tuple[Done, list[Any], list[Any]]:
    """Have each rank of both groups do something; returns what came of it here, and on all ranks of this group and of the other.

    Raises
    ------
    Exception
        `error_class`, on all ranks of both groups: one could not, or the other group did not say so in time.
    """
    result: list[Done] = []
    said: dict[str, Any]
    try:
        result.append(act())
        said = {"done": result[0]}
    except (OSError, errors.Exception) as error:
        said = {"why": f"rank {local.rank}: {error}"}
    own = [json.loads(text) for text in _gather_texts(local, json.dumps(said))]
    told: dict[str, Any] = {}
    failure: errors.Exception | None = None
    if talk is not None:
        try:
            talk.say(own)
            told = {"others": hear(local.engine, talk, what, error_class)}
        except errors.Exception as error:
            failure, told = error, {"others": [{"why": str(error)}]}
    others = _spread(local, root, told)["others"]
    if failure is not None:
        raise failure
    for each in (*own, *others):
        if "why" in each:
            errors.fail(error_class, f"rank {local.rank}: {what}: the groups are on several hosts, and {each['why']}")
    return result[0], [each["done"] for each in own], [each["done"] for each in others]


def _gather_texts(local: NativeComm, text: str) -> list[str]:
    """What each rank of a group says, on all of them."""
    data = text.encode()
    lengths, (table, place) = array("q", [len(data)]), zeroed(local.size * WORD)
    collectives.allgather(local, lengths.buffer_info()[0], WORD, place)
    longest = max(table)
    own, all_of_it = array("B", data.ljust(longest)), array("B", bytes(longest * local.size))
    collectives.allgather(local, own.buffer_info()[0], longest, all_of_it.buffer_info()[0])
    found = all_of_it.tobytes()
    return [found[rank * longest : rank * longest + length].decode() for rank, length in enumerate(table)]


class _Handout:
    """Hands the memory of a meeting to all who take part; its root has made it."""

    def __init__(self, engine: Engine, size: int) -> None:
        self._engine = engine
        self._size = size
        name, token = f"ncclx_mpi-meeting-{os.getpid()}-{secrets.token_hex(8)}", secrets.token_hex(16)
        self.place = [f"\0{name}", token]
        self._token = token
        self._network = Network.create(size)
        self._server = handover.listen(f"\0{name}", size)
        self._server.setblocking(False)
        self._missing = set(range(size))

    def serve(self, what: str) -> int:
        """Give it to all others, and return a descriptor of it for this process.

        Raises
        ------
        TimeoutError
            Not all have come in time.
        """
        patience = Patience(handover.join_timeout())
        _await(self._engine, lambda: self._serve_next() or patience.is_over, lambda: [self._server], what)
        if len(self._missing) > 1:
            raise TimeoutError(f"{len(self._missing) - 1} processes did not come within {patience.seconds:g} s")
        return os.dup(self._network.fd)

    def _serve_next(self) -> bool:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return False
        rank = handover.answer(connection, self._token, self._size, lambda _: [self._network.fd])
        self._missing.discard(-1 if rank is None else rank)
        return len(self._missing) == 1

    def close(self) -> None:
        """Hand out no more."""
        self._server.close()
        self._network.close()


def at(opened: Port, engine: Engine, what: str, error_class: int, why_in_vain: Callable[[], str] = lambda: "") -> Connect:
    """How a root waits for a client of a port; `why_in_vain` says why none comes any more, if that is so."""

    def accept(side: Side) -> tuple[Talk, dict[str, Any]]:
        while True:
            talk, greeting = _next_client(opened, engine, what, error_class, why_in_vain)
            try:
                talk.say(side.greeting)
                engine.idle_wait(talk.flush, what)
            except OSError:  # who asked has given up meanwhile
                talk.close()
                continue
            return talk, greeting

    return accept


def _next_client(
    opened: Port, engine: Engine, what: str, error_class: int, why_in_vain: Callable[[], str]
) -> tuple[Talk, dict[str, Any]]:
    """The next client that knows the name of the port, and what it says of its group."""
    found: list[tuple[Talk, dict[str, Any]]] = []

    def has_come() -> bool:
        if opened.lock.acquire(blocking=False):  # else another thread takes the next one
            try:
                for come in (opened.accept(), job_talk.arrived(engine, opened.number)):
                    if come is not None:
                        opened.clients.append((come, Patience(_STRANGER_SECONDS)))
                found.extend(_first_known(opened))
            finally:
                opened.lock.release()
        return bool(found or why_in_vain())

    _await(engine, has_come, lambda: [opened, *(talk for talk, _ in opened.clients)], what)
    if not found:
        errors.fail(error_class, f"rank {engine.rank}: {what}: {why_in_vain()}")
    return found[0]


def _first_known(opened: Port) -> list[tuple[Talk, dict[str, Any]]]:
    """The first of the clients of a port that has said who it is, and knows the name; those that know it not are sent away."""
    for client in opened.clients[:]:
        talk, patience = client
        try:
            greeting = talk.poll()
        except OSError:
            greeting = {}
        if greeting is None and not patience.is_over:
            continue
        opened.clients.remove(client)
        if isinstance(greeting, dict) and opened.is_for(greeting.get("token")):
            return [(talk, greeting)]
        talk.close()
    return []


def towards(name: str, engine: Engine, what: str, error_class: int) -> Connect:
    """How a root connects with the port of this name."""

    def connect(side: Side) -> tuple[Talk, dict[str, Any]]:
        greeting, place = {**side.greeting, "token": port.token_of(name)}, port.place(name)
        is_of_this_job = place is not None and place.job == engine.guests.identity(engine.rank).job
        if place is not None and is_of_this_job and not place.is_here:
            if place.rank >= engine.size:
                errors.fail(
                    error_class,
                    f"rank {engine.rank}: {what}: {name!r} names rank {place.rank} of this job, which has {engine.size}",
                )
            talk = job_talk.towards(engine, place.rank, place.number, greeting)
            return _heard(talk, engine, what, error_class)
        return _greet(_connected(name, engine, what, error_class), greeting, engine, what, error_class)

    return connect


def _greet(talk: Talk, greeting: dict[str, Any], engine: Engine, what: str, error_class: int) -> tuple[Talk, dict[str, Any]]:
    """Tell the other root who is here; returns what it says of its group."""
    talk.say(greeting)
    return _heard(talk, engine, what, error_class)


def _heard(talk: Talk, engine: Engine, what: str, error_class: int) -> tuple[Talk, dict[str, Any]]:
    try:
        return talk, hear(engine, talk, what, error_class)
    except BaseException:
        talk.close()
        raise


def _connected(name: str, engine: Engine, what: str, error_class: int) -> SocketTalk:
    patience, found = Patience(handover.join_timeout()), []

    def is_connected() -> bool:
        try:
            found.append(port.connect(name))
        except BlockingIOError:
            return patience.is_over
        return True

    try:
        engine.idle_wait(is_connected, what)
    except OSError as error:
        raise errors.error(
            error_class, f"rank {engine.rank}: {what}: there is no port {name!r} of this user on this host any more ({error})"
        ) from None
    if not found:
        errors.fail(error_class, f"rank {engine.rank}: {what}: too many ask at the port {name!r} for {patience.seconds:g} s")
    return found[0]


def over(fd: int, engine: Engine, what: str, error_class: int) -> Connect:
    """How a root finds the process at the other end of a connected socket of the program."""

    def connect(side: Side) -> tuple[Talk, dict[str, Any]]:
        try:
            talk = port.talk_over(fd)
        except OSError as error:
            why = f"descriptor {fd} is no connected socket ({error.strerror})"
            raise errors.error(error_class, f"rank {engine.rank}: {what}: {why}") from None
        return _greet(talk, side.greeting, engine, what, error_class)

    return connect
