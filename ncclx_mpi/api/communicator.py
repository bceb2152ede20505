"""What communicator handles refer to, and how the members of a new one agree on its context and slot.

A *context* tells the messages of communicators apart. The leader (rank 0) of a new communicator makes it, from its world rank
and a counter of its own, so that no agreement between leaders is needed; contexts step by 4 because each has four message
spaces. Once a leader has met processes of another job, whose leaders count alike, it draws them. The leader also leases the
collective *slot*, and the creating collective brings both to the members.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
import weakref
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ncclx_mpi import collectives, errors, runtime
from ncclx_mpi.api.attributes import Table
from ncclx_mpi.collectives import Pending, prepare, shm_making, shm_schedule
from ncclx_mpi.collectives.ready import SLOW
from ncclx_mpi.constants import UNDEFINED
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.fast import GIVEN_UP
from ncclx_mpi.p2p.native import Part
from ncclx_mpi.state import State
from numba_kernels.jit import entry
from numba_kernels.layout import WORD
from numba_kernels.rows import NamedTuple
from transports.shm.layout import SLOTS
from transports.shm.slots import SLOT, lease

if TYPE_CHECKING:
    from ncclx_mpi.api.buffering import SendBuffer
    from ncclx_mpi.api.comm import Comm
    from ncclx_mpi.api.errhandler import Errhandler
    from ncclx_mpi.api.intergroup import Intergroup
    from ncclx_mpi.api.topology import Topology
    from ncclx_mpi.device.prepared import Prepared
    from ncclx_mpi.device.repeats import Repeats
    from ncclx_mpi.locality.levels import Row

WORLD_CONTEXT = 0
_STEP = 4
_FEWEST_IN_SLOT = 2
_RANK_SHIFT, _RANDOM_SHIFT = 32, 62

Words: TypeAlias = "array[int]"
_Pair = ctypes.c_int64 * 2
_ZERO, _GIVEN, _LONE = array("q", [0]), shm_making.GIVEN.total // WORD, shm_making.PART.lone // WORD

_counter = itertools.count(1)


class CommState(State):
    """A communicator of this process.

    Attributes
    ----------
    native : NativeComm
        Its native side: whom its messages go to, which of an intercommunicator are the ranks of the other group.
    everyone : NativeComm
        Whom its collectives go among: `native`, but for an intercommunicator a communicator of both groups.
    of_all : NativeComm
        The same, also when it was revoked, which unsets those above and `pendings`.
    groups : tuple of tuple of int
        World ranks of the own group, and of the other one, if there are two.
    acknowledged : int
        How many of its ranks are known to have died, and were acknowledged.
    address, rank, size : int
        Address of the native block; own rank; number of ranks, of an intercommunicator those of the own group.
    pendings : dict of int to Pending
        Non-blocking collectives that go by lines, under 0 once there have been any.
    localities : sequence of Row
        Where its ranks are, once they have told each other.
    """

    __slots__ = (
        "acknowledged",
        "address",
        "attributes",
        "errhandler",
        "everyone",
        "groups",
        "hidden",
        "info",
        "intergroup",
        "localities",
        "locks",
        "name",
        "native",
        "of_all",
        "pendings",
        "prepared",
        "rank",
        "repeats",
        "retired",
        "revoked",
        "send_buffer",
        "size",
        "topology",
    )
    WHAT = "communicator"
    ERROR = errors.ERR_COMM
    LATE = ("retired",)
    native: NativeComm
    everyone: NativeComm
    intergroup: Intergroup | None
    pendings: dict[int, Pending]
    address: int
    rank: int
    size: int
    name: str
    info: dict[str, str]
    attributes: Table
    errhandler: Errhandler
    locks: dict[Hashable, threading.Lock]
    send_buffer: SendBuffer | None
    hidden: tuple[Comm, ...] | None
    prepared: Prepared | None
    repeats: Repeats | None
    topology: Topology | None
    localities: Sequence[Row]
    retired: tuple[Any, ...]
    of_all: NativeComm
    groups: tuple[tuple[int, ...], ...]
    acknowledged: int
    revoked: tuple[NativeComm, Pending, NativeComm]

    def fill(self, native: NativeComm, errhandler: Errhandler, name: str = "", intergroup: Intergroup | None = None) -> CommState:
        """Make this the state of the communicator `native`."""
        self.native = native
        self.intergroup = intergroup
        self.everyone = self.of_all = native if intergroup is None else intergroup.native
        self.groups = (native.world_ranks,) if intergroup is None else (intergroup.mine, intergroup.theirs)
        self.acknowledged = 0
        native.owner = self.everyone.owner = weakref.ref(self)
        self.pendings = {}
        self.address = native.address
        self.rank = native.rank
        self.size = len(self.groups[0])
        self.name = name
        self.info = {}
        self.attributes = {}
        self.errhandler = errhandler
        self.locks = {}
        self.send_buffer = None
        self.hidden = None
        self.prepared = None
        self.repeats = None
        self.topology = None
        self.localities = ()
        if self.of_all.is_revoked:
            self.revoke()
        return self

    def revoke(self) -> None:
        """Let all that is called from now on raise ERR_REVOKED: compiled calls find nobody to talk to, and others no native side.

        Who is inside a call has the addresses of what was there before, which stays.
        """
        native, nobody = self.native, self.native.engine.new_comm(new_context(self.native.engine), (), rank=self.rank)
        self.revoked = native, self.pending, nobody
        native.is_revoked = True
        native.engine.ended.raise_for(native)
        self.address = nobody.address
        self.repeats = None
        del self.native, self.everyone, self.pendings

    def __getattr__(self, name: str) -> NoReturn:
        try:
            object.__getattribute__(self, "revoked")
        except AttributeError:
            super().__getattr__(name)
        errors.fail(
            errors.ERR_REVOKED,
            f"rank {self.rank}: the communicator was revoked; only Shrink, Agree and Free are left to do with it",
        )

    @property
    def is_valid(self) -> bool:
        """Whether it was not freed."""
        try:
            object.__getattribute__(self, "address")
        except AttributeError:
            return False
        return True

    def lock(self, key: Hashable) -> threading.Lock:
        """The lock for one purpose; object collectives use one each, so that threads do not mix their messages."""
        found = self.locks.get(key)
        return found if found is not None else self.locks.setdefault(key, threading.Lock())

    @property
    def pending(self) -> Pending:
        """Non-blocking collectives that go by lines."""
        found = self.pendings.get(0)
        return found if found is not None else self.pendings.setdefault(0, Pending(self.native))

    def depart(self) -> errors.Exception | None:
        """As :meth:`leave`, after a look at what others called; returns what is to be raised, if they called other collectives."""
        native, lone = self.of_all, self.of_all.lone_slot
        has_slot = native.slot >= 0 or lone is not None
        is_plain = has_slot and not native.is_revoked and self.prepared is None and not self.pendings
        if is_plain and _kernels().depart(native.address) == 0:
            if lone is not None:
                native.engine.arena.return_lone_slot(lone)
            self.empty()
            self.retired = (native,)
            return None
        if self.prepared is not None:
            self.prepared.close()  # in which ranks wait for each other: afterwards this one is none that others can meet here
        wrong = collectives.disagreement(native)
        self.leave()
        return wrong

    def leave(self) -> None:
        """Give up this rank's part of the native communicator, and empty the state. What is pending goes on.

        The native block stays as long as the state: another thread may be inside a call that was given its address.
        """
        pending = self.revoked[1] if self.of_all.is_revoked else self.pending
        if self.prepared is not None:
            self.prepared.close()
        self.retire()
        pending.leave()

    def retire(self) -> None:
        """Empty the state, but keep the native block as long as it is there."""
        retired = self.revoked if self.of_all.is_revoked else (self.native, self.everyone)
        self.empty()
        self.retired = retired


def retire_all() -> None:
    """Make all communicators invalid that were not freed: communication has ended."""
    for native in runtime.engine().ended:
        state = native.owner()
        if state is not None and state.is_valid:
            collectives.part(state.of_all)
            state.retire()
    world.cache_clear()


@functools.cache
def _kernels() -> _Kernels:
    return _Kernels(entry(shm_making.duplicate), entry(shm_making.split), entry(shm_making.invite), entry(shm_making.depart))


class _Kernels(NamedTuple):
    """Entry points, looked up once."""

    duplicate: Callable[..., int]
    split: Callable[..., int]
    invite: Callable[..., int]
    depart: Callable[[int], int]


# Contexts and slots -----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)  # Init and sessions mean the same one, whichever comes first
def world(engine: Engine) -> NativeComm:
    """Return the native side of COMM_WORLD: on the first slot, which is nobody else's, if all ranks are on this node."""
    arena = engine.arena
    arena.set_word(arena.plan.slot(0) + SLOT.leased, 1)
    collectives.watch(engine)
    return engine.new_comm(WORLD_CONTEXT, range(engine.size), 0 if len(engine.near) == engine.size else -1)


def own(engine: Engine) -> NativeComm:
    """Make the native side of COMM_SELF."""
    return engine.new_comm(new_context(engine), [engine.rank])


def lead(engine: Engine, world_ranks: Sequence[int]) -> tuple[int, int]:
    """Return context and slot (-1: none is left, or it is of several nodes) of a new communicator of these ranks. Its leader calls it."""
    return new_context(engine), _lease(engine, world_ranks)


def _lease(engine: Engine, world_ranks: Sequence[int]) -> int:
    """Lease a slot for these ranks: -1 if none is left, or they need none, or are of several nodes."""
    if len(world_ranks) < _FEWEST_IN_SLOT or not engine.are_near(world_ranks):
        return -1
    slot: int = entry(lease)(*engine.slots, SLOTS, len(world_ranks))
    return slot


def new_context(engine: Engine) -> int:
    """A context that no other communicator of the job has, nor any that its ranks have with those of another job."""
    if engine.guests.have_come:
        return random_context()
    return _counted(engine)


def _counted(engine: Engine) -> int:
    """As :func:`new_context`, where no guests have come."""
    return (engine.rank << _RANK_SHIFT) + next(_counter) * _STEP


def random_context() -> int:
    """A context that no communicator of any job has; none that is counted is as high."""
    return 1 << _RANDOM_SHIFT | (int.from_bytes(os.urandom(8), "little") % (1 << _RANDOM_SHIFT)) // _STEP * _STEP


def check_own_job(engine: Engine, ranks: Iterable[int]) -> None:
    """Raise unless all are ranks of this job, which alone can be talked to without a communicator."""
    strangers = [engine.guests.in_words(rank) for rank in ranks if rank >= engine.size]
    if strangers:
        errors.fail(errors.ERR_GROUP, f"{strangers[0]} is in the group; groups without a communicator are of ranks of one job")


def return_slot(native: NativeComm) -> None:
    """Say that this rank is done with the slot of `native`, on which nothing is pending."""
    if native.slot >= 0:
        entry(shm_schedule.leave)(native.address)


# Agreement --------------------------------------------------------------------------------------------------------


def duplicate(parent: NativeComm) -> NativeComm:
    """Make a communicator of the same ranks. Collective over `parent`."""
    births = parent.engine.births
    if births and parent.slot >= 0:
        made, context = parent.sibling(), 0 if parent.rank else _counted(parent.engine)
        code = _kernels().duplicate(parent.address, made.address, *births, context)
        if code == 0:
            return made.settle()
        if code != SLOW:
            collectives.check(parent, code, "bcast")
    pair = _Pair(*lead(parent.engine, parent.world_ranks)) if parent.rank == 0 else _Pair()
    if parent.size > 1:
        collectives.bcast(parent, ctypes.addressof(pair), ctypes.sizeof(pair), 0)
    return parent.engine.new_comm(pair[0], parent.world_ranks, pair[1])


def start_duplicate(parent: NativeComm, fill: Callable[[NativeComm], None]) -> tuple[collectives.Collective, Callable[[], None]]:
    """Start making a communicator of the same ranks; returns the collective, and what to do after it."""
    pair = _Pair(*lead(parent.engine, parent.world_ranks)) if parent.rank == 0 else _Pair()

    def after() -> None:
        fill(parent.engine.new_comm(pair[0], parent.world_ranks, pair[1]))

    started = prepare.bcast(parent, ctypes.addressof(pair), ctypes.sizeof(pair), 0).start()
    started.owner = pair  # the program may forget the request; what is on its way then still lands here
    return started, after


def split(parent: NativeComm, color: int, key: int) -> NativeComm | None:
    """Make one communicator for each color, ranks in the order of (key, old rank); None for color UNDEFINED."""
    made, table = _split_together(parent, color, key)
    if made is not None:
        return made
    engine = parent.engine
    mine = [rank for rank in range(parent.size) if table[rank][0] == color]
    mine.sort(key=lambda rank: table[rank][1])
    if color != UNDEFINED and len(mine) == parent.size:
        return engine.new_comm(table[0][2], [parent.world_ranks[rank] for rank in mine], table[0][3])
    if parent.rank == 0 and table[0][3] >= 0:
        engine.arena.set_word(engine.arena.plan.slot(table[0][3]) + SLOT.leased, 0)
    colors = [row[0] for row in table if row[0] != UNDEFINED]  # groups of one need no slot, and so not to meet again
    members = mine if color != UNDEFINED else []
    slot = _slot_of_leader(parent, members) if len(set(colors)) < len(colors) else -1
    if not members:
        return None
    made = engine.new_comm(table[mine[0]][2], [parent.world_ranks[rank] for rank in mine], slot)
    parent.part = Part(made)
    return made


def _slot_of_leader(parent: NativeComm, members: Sequence[int]) -> int:
    """Let the leader of each group of `members` (ranks of `parent`) tell everybody its slot."""
    leads = bool(members) and members[0] == parent.rank
    slots = collectives.gather_words(parent, _lease(parent.engine, [parent.world_ranks[rank] for rank in members]) if leads else -1)
    return slots[members[0]][0] if members else -1


def _split_together(parent: NativeComm, color: int, key: int) -> tuple[NativeComm | None, list[list[int]]]:
    """Return what compiled code can make: the communicator of all ranks in their order, or of those of the last split; else what each gives.

    That is color, key, context and slot. Each gives a context for the case that it leads. Rank 0 leads if all are of one color, as they
    often are, and brings a slot, too.
    """
    births = parent.engine.births
    if births and parent.slot >= 0:
        context, rows = _counted(parent.engine), _ZERO * (_GIVEN * parent.size)
        made = parent.sibling()
        part, lone = parent.part, None
        if part is not None and part.size == 1:
            lone = parent.engine.arena.spare_lone_slot()
            part.words[_LONE] = lone.address
        at = 0 if part is None else part.words.buffer_info()[0]
        code = _kernels().split(parent.address, made.address, *births, context, rows.buffer_info()[0], color, key, at)
        if code == shm_making.PARTED and part is not None:
            made.have_ranks_of(part)
            made.lone_slot = lone
            return made.settle(), []
        if lone is not None:
            parent.engine.arena.return_lone_slot(lone)
        if code == 0:
            return made.settle(), []
        if code == shm_making.MIXED:
            return None, collectives.in_rows(rows, _GIVEN)
        if code != SLOW:
            collectives.check(parent, code, "allgather")
    slot = _lease(parent.engine, parent.world_ranks) if parent.rank == 0 else -1
    return None, collectives.gather_words(parent, color, key, new_context(parent.engine), slot)


def create(parent: NativeComm, world_ranks: Sequence[int]) -> NativeComm | None:
    """Make a communicator of these ranks; None for a rank that is none of them. Collective over `parent`."""
    me = parent.world_ranks[parent.rank]
    members = [parent.world_ranks.index(rank) for rank in world_ranks] if me in world_ranks else []
    return agree(parent, members)


def create_group(parent: NativeComm, world_ranks: Sequence[int], tag: int, offset: int) -> NativeComm:
    """Make a communicator of these ranks, which alone take part: the leader tells the others one by one."""
    engine = parent.engine
    births = engine.births
    if births and parent.slot >= 0 and parent.size > 1 and world_ranks == parent.world_ranks:
        made, context = parent.sibling(), 0 if parent.rank else _counted(parent.engine)
        code = _kernels().invite(parent.address, made.address, *births, context, tag, offset, made)
        if code != 0:
            engine.fail(GIVEN_UP - code, "Create_group")
        return made.settle()
    members = [parent.world_ranks.index(rank) for rank in world_ranks]
    leads = members[0] == parent.rank
    pair = _Pair(*lead(engine, world_ranks)) if leads else _Pair()
    address, nbytes = ctypes.addressof(pair), ctypes.sizeof(pair)
    if leads:
        requests = [engine.start_send(parent, address, nbytes, rank, tag, 0, offset) for rank in members[1:]]
    else:
        requests = [engine.start_recv(parent, address, nbytes, members[0], tag, offset)]
    engine.wait_all(requests, "Create_group", pair)
    return engine.new_comm(pair[0], world_ranks, pair[1])


def agree(parent: NativeComm, members: Sequence[int]) -> NativeComm | None:
    """Let the leader of each group of `members` (ranks of `parent`) tell its context and slot to everybody."""
    engine = parent.engine
    leads = bool(members) and members[0] == parent.rank
    world_ranks = [parent.world_ranks[rank] for rank in members]
    table = collectives.gather_words(parent, *(lead(engine, world_ranks) if leads else (0, -1)))
    if not members:
        return None
    context, slot = table[members[0]]
    return engine.new_comm(context, world_ranks, slot)


def check_members(state: CommState, ranks: Iterable[int]) -> None:
    """Raise unless all world ranks are members, of an intercommunicator's own group."""
    mine = state.groups[0]
    strangers = () if ranks == mine else set(ranks) - set(mine)
    if strangers:
        errors.fail(errors.ERR_GROUP, f"world ranks {sorted(strangers)} of the group are not in this communicator")
