"""The executor: runs plans over point-to-point messages, natively, whoever makes progress.

A started plan is linked into the engine and stepped from every progress call, so it moves on inside whatever the rank waits for. A step
starts when the steps that it names are complete. Its messages travel in the communicator's hidden context (+1), with a tag
made of the number of the collective, its kind and root, and the number of the message, so neither collectives nor the messages of one
mix. A message of the same number and another kind or root tells that ranks disagree: a plan that waits looks for one now and then, and
whoever frees the communicator for one that is left.

All functions run under the engine's lock, except a reduction: user-defined operations need the GIL, which nobody may wait for with the
lock in hand. A plan that is in a reduction is marked as busy meanwhile, and other threads pass it by.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections import deque
from typing import Any

from ncclx_mpi import errors
from ncclx_mpi.buffers.source import allocate
from ncclx_mpi.collectives.plan import COPY, INPUT, OUTPUT, RECV, REDUCE, SEND, STEP, TEMP, WINDOW, Plan
from ncclx_mpi.collectives.shm_leaving import is_death_suspected, parted
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import BROKEN, COMM, ENGINE, OPERATIONS, PEER_DEAD, PEER_LEFT, PENDING, REQUEST
from ncclx_mpi.p2p.leaving import GONE, ask, has_left
from ncclx_mpi.p2p.matching import release_request
from ncclx_mpi.p2p.progress import lock, progress, trace_begin, trace_end, unlock
from ncclx_mpi.p2p.requests import post_receive, post_send, withdraw
from ncclx_mpi.p2p.stirring import stir
from ncclx_mpi.p2p.waiting import keep_waiting
from numba_kernels.atomics import load64, load_acquire, store64, store_release, ticks
from numba_kernels.calls import call_reduce
from numba_kernels.jit import c_address, kernel
from numba_kernels.jit import entry as _entry
from numba_kernels.layout import WORD, words, zeroed
from numba_kernels.memory import move

PLAN = words(
    "Plan",
    "comm next state error busy tag fn itemsize count first_open buffers*3 failed_peer failed_bytes expected_bytes looks stranger number "
    "asked is_asking asked_peer left",
)
"""``first_open``: index of the first step that is not complete. ``looks``: how often it was stepped; ``stranger``: 1 + what another rank
called in its place. ``number``: of the plan on its communicator; ``asked``: when a rank was last asked whether it has left;
``is_asking``: its answer is under way; ``left``: the answer that it has. Steps follow the block."""
_COMM, _STATE, _ERROR, _TAG, _FN, _ITEMSIZE, _BUFFERS, _FAILED_PEER, _STRANGER, _NUMBER, _LEFT, _ASKED_PEER = (
    getattr(PLAN, name) // WORD
    for name in [
        "comm",
        "state",
        "error",
        "tag",
        "fn",
        "itemsize",
        "buffers",
        "failed_peer",
        "stranger",
        "number",
        "left",
        "asked_peer",
    ]
)
"""Indices of words."""
_MOST_SPARE, _SPARE_BYTES = 4, 40 << 20
"""Spare rooms of a plan, and bytes of all in this process: one of a collective of 16 MiB, which may need twice that, beside small ones."""
IDLE, RUNNING, FINISHED = 0, 1, 2
_WAITING, _STARTED, _DONE = 0, 1, 2
_CONTEXT_OFFSET = 1
entry = functools.cache(_entry)
_NUMBER_BITS, _KIND_BITS, _ROOT_BITS, _STARTS_BITS, _TAG_BITS = 20, 5, 11, 2, 58
KIND_MASK, _CALL_BITS = (1 << _KIND_BITS) - 1, _KIND_BITS + _ROOT_BITS
ROOT_SHIFT = _KIND_BITS
"""Where the root is in what tells a call: its kind is below."""
_LOOK_EVERY, _LOOK_AT, _ASK_EVERY = 1024, 1024, 64
"""Steps of a plan between two looks for a stranger, messages that are looked at, and steps between two looks at the clock."""


@kernel("int64(int64, int64)")
def _is_done(plan, index):  # type: ignore[no-untyped-def]
    return 1 if index < 0 or load64(plan + PLAN.total + index * STEP.total + STEP.state) == _DONE else 0


@kernel("int64(int64, int64, int64)")
def _place(plan, buffer, offset):  # type: ignore[no-untyped-def]
    return load64(plan + PLAN.buffers + 8 * buffer) + offset


@kernel("void(int64, int64)")
def _start_message(plan, step):  # type: ignore[no-untyped-def]
    comm, peer, nbytes = load64(plan + PLAN.comm), load64(step + STEP.peer), load64(step + STEP.nbytes)
    address = _place(plan, load64(step + STEP.buffer), load64(step + STEP.offset))
    tag = load64(plan + PLAN.tag) + load64(step + STEP.number)
    if load64(step + STEP.kind) == SEND:
        request = post_send(comm, _CONTEXT_OFFSET, address, nbytes, peer, tag, 0)
    else:
        request = post_receive(comm, _CONTEXT_OFFSET, address, nbytes, peer, tag)
    store64(step + STEP.request, request)
    store64(step + STEP.state, _STARTED)


@kernel("void(int64, int64)")
def _look_at_message(plan, step):  # type: ignore[no-untyped-def]
    """Note that a message is through, and whether it was what the plan expected."""
    request = load64(step + STEP.request)
    if load64(request + REQUEST.state) == PENDING:
        return
    error = load64(request + REQUEST.error)
    if load64(step + STEP.kind) == RECV and load64(request + REQUEST.message_bytes) != load64(step + STEP.nbytes):
        error = errors.ERR_TRUNCATE
    if error != 0 and load64(plan + PLAN.error) == 0:
        store64(plan + PLAN.error, error)
        store64(plan + PLAN.failed_peer, load64(step + STEP.peer))
        store64(plan + PLAN.failed_bytes, load64(request + REQUEST.message_bytes))
        store64(plan + PLAN.expected_bytes, load64(step + STEP.nbytes))
    release_request(load64(load64(plan + PLAN.comm) + COMM.engine), request)
    store64(step + STEP.state, _DONE)


@kernel("void(int64, int64, int64)")
def _reduce(engine, plan, step):  # type: ignore[no-untyped-def]
    """Run the operation with the engine unlocked."""
    out = _place(plan, load64(step + STEP.buffer), load64(step + STEP.offset))
    low = _place(plan, load64(step + STEP.low_buffer), load64(step + STEP.low_offset))
    high = _place(plan, load64(step + STEP.high_buffer), load64(step + STEP.high_offset))
    count = load64(step + STEP.nbytes) // load64(plan + PLAN.itemsize)
    store64(plan + PLAN.busy, 1)
    unlock(engine)
    call_reduce(load64(plan + PLAN.fn), out, low, high, count)
    lock(engine)
    store64(plan + PLAN.busy, 0)
    store64(step + STEP.state, _DONE)


@kernel("int64(int64, int64, int64)")
def _start_step(engine, plan, step):  # type: ignore[no-untyped-def]
    """Start a step that waits for nothing any more. Returns 1 if the engine was unlocked meanwhile."""
    kind = load64(step + STEP.kind)
    if kind in (SEND, RECV):
        _start_message(plan, step)
        _look_at_message(plan, step)
        return 0
    if kind == REDUCE:
        _reduce(engine, plan, step)
        return 1
    if kind == COPY:
        move(
            _place(plan, load64(step + STEP.buffer), load64(step + STEP.offset)),
            _place(plan, load64(step + STEP.low_buffer), load64(step + STEP.low_offset)),
            load64(step + STEP.nbytes),
        )
    store64(step + STEP.state, _DONE)
    return 0


@kernel("int64(int64, int64)")
def _advance(engine, plan):  # type: ignore[no-untyped-def]
    """Move one plan on. Returns 1 if the engine was unlocked meanwhile."""
    steps, count = plan + PLAN.total, load64(plan + PLAN.count)
    first, was_unlocked = load64(plan + PLAN.first_open), 0
    for index in range(first, min(count, first + WINDOW)):
        step = steps + index * STEP.total
        state = load64(step + STEP.state)
        if state == _STARTED:
            _look_at_message(plan, step)
        elif (
            state == _WAITING and _is_done(plan, load64(step + STEP.first)) != 0 and _is_done(plan, load64(step + STEP.second)) != 0
        ):
            was_unlocked |= _start_step(engine, plan, step)
    while first < count and _is_done(plan, first) != 0:
        first += 1
    store64(plan + PLAN.first_open, first)
    return was_unlocked


@kernel("void(int64, int64)")
def _look_for_stranger(engine, plan):  # type: ignore[no-untyped-def]
    """Note whether another rank called something else as this collective: a message of its number has come that no step receives."""
    comm, own, seen = load64(plan + PLAN.comm), load64(plan + PLAN.tag) >> _NUMBER_BITS, 0
    message = load64(engine + ENGINE.unexpected_first)
    while message != 0 and seen < _LOOK_AT:
        if load64(message + REQUEST.context) == load64(comm + COMM.context) + _CONTEXT_OFFSET:
            its = load64(message + REQUEST.tag) >> _NUMBER_BITS
            if its != own and its >> _CALL_BITS == own >> _CALL_BITS:
                store64(plan + PLAN.stranger, 1 + (its & ((1 << _CALL_BITS) - 1)))
                store64(plan + PLAN.failed_peer, load64(load64(comm + COMM.local) + 8 * load64(message + REQUEST.source)))
                return
        message = load64(message + REQUEST.order_next)
        seen += 1


@kernel("int64(int64, int64)")
def _world_rank_of(plan, peer):  # type: ignore[no-untyped-def]
    return load64(load64(load64(plan + PLAN.comm) + COMM.world) + 8 * peer)


@kernel("void(int64, int64)")
def _ask_who_left(engine, plan):  # type: ignore[no-untyped-def]
    """Once a slice, ask the rank that the first open step waits for whether it takes part at all."""
    now, first = ticks(), load64(plan + PLAN.first_open)
    if load64(plan + PLAN.asked) == 0:
        store64(plan + PLAN.asked, now)
    if load64(plan + PLAN.is_asking) != 0 and has_left(engine, _world_rank_of(plan, load64(plan + PLAN.asked_peer))) != 0:
        store64(plan + PLAN.is_asking, 0)  # it answers no more
    if load64(plan + PLAN.is_asking) != 0 or now - load64(plan + PLAN.asked) < load64(engine + ENGINE.slice_ticks):
        return
    step = plan + PLAN.total + first * STEP.total
    if first == load64(plan + PLAN.count) or load64(step + STEP.state) != _STARTED:
        return
    comm, peer = load64(plan + PLAN.comm), load64(step + STEP.peer)
    store64(plan + PLAN.is_asking, 1)
    store64(plan + PLAN.asked_peer, peer)
    world_rank, context = _world_rank_of(plan, peer), load64(comm + COMM.context)
    store64(plan + PLAN.left, ask(engine, world_rank, context, load64(plan + PLAN.number)))
    _look_for_stranger(engine, plan)  # which says more than that a rank has left the job


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True)
def take_answer(engine, source, context, number, word):  # type: ignore[no-untyped-def]
    """A rank that was asked answers: 0, or with which word it has left. The plan may be gone, or have heard of others meanwhile."""
    plan = load64(engine + ENGINE.plan_state)
    while plan != 0:
        comm = load64(plan + PLAN.comm)
        is_it = load64(comm + COMM.context) == context and load64(plan + PLAN.number) == number
        if is_it and _world_rank_of(plan, load64(plan + PLAN.asked_peer)) == source:
            store64(plan + PLAN.is_asking, 0)
            store64(plan + PLAN.asked, ticks())
            store64(plan + PLAN.left, word)
            if word != 0:  # perhaps because it called something else: its message came before its answer
                _look_for_stranger(engine, plan)
        plan = load64(plan + PLAN.next)
    return 0


@kernel("void(int64, int64)")
def _look_around(engine, plan):  # type: ignore[no-untyped-def]
    """Now and then, see why a plan takes so long."""
    looks = load64(plan + PLAN.looks) + 1
    store64(plan + PLAN.looks, looks)
    if looks % _LOOK_EVERY == 0:
        _look_for_stranger(engine, plan)
    if looks % _ASK_EVERY == 0 and load64(plan + PLAN.left) == 0:
        _ask_who_left(engine, plan)


@kernel("int64(int64)")
def _is_over(plan):  # type: ignore[no-untyped-def]
    """Whether all steps are complete, or never will be."""
    if load64(plan + PLAN.first_open) == load64(plan + PLAN.count):
        return 1
    return 1 if load64(plan + PLAN.stranger) != 0 or load64(plan + PLAN.left) != 0 else 0


@kernel("int64(int64, int64)", is_entry=True)
def find_left(engine, comm):  # type: ignore[no-untyped-def]
    """A message of a collective on this communicator that nobody has received: its address, or 0."""
    lock(engine)
    message = load64(engine + ENGINE.unexpected_first)
    while message != 0 and load64(message + REQUEST.context) != load64(comm + COMM.context) + _CONTEXT_OFFSET:
        message = load64(message + REQUEST.order_next)
    unlock(engine)
    return message


@kernel("void(int64, int64)")
def _unlink(engine, plan):  # type: ignore[no-untyped-def]
    link = engine + ENGINE.plan_state
    while load64(link) != 0:
        if load64(link) == plan:
            store64(link, load64(plan + PLAN.next))
            store64(engine + ENGINE.plan_count, load64(engine + ENGINE.plan_count) - 1)
            return
        link = load64(link) + PLAN.next


@kernel("void(int64)", is_entry=True)
def step_plans(engine):  # type: ignore[no-untyped-def]
    """Move every running plan on; called from progress, with the engine locked."""
    plan = load64(engine + ENGINE.plan_state)
    while plan != 0:
        was_unlocked = 0
        if load64(plan + PLAN.busy) == 0:
            was_unlocked = _advance(engine, plan)
            if was_unlocked == 0:  # else what it waits for may have come meanwhile, and its sender have left
                _look_around(engine, plan)
        following = load64(plan + PLAN.next)
        if load64(plan + PLAN.busy) == 0 and _is_over(plan) != 0:
            _unlink(engine, plan)
            store_release(plan + PLAN.state, FINISHED)
        if was_unlocked != 0:
            return  # the list may have changed; the next progress call begins anew
        plan = following


@kernel("void(int64, int64)", is_entry=True)
def start_plan(engine, plan):  # type: ignore[no-untyped-def]
    """Link a plan, all its steps waiting, behind those that run, and move all on."""
    for index in range(load64(plan + PLAN.count)):
        store64(plan + PLAN.total + index * STEP.total + STEP.state, _WAITING)
    store64(plan + PLAN.first_open, 0)
    store64(plan + PLAN.error, 0)
    store64(plan + PLAN.looks, 0)
    store64(plan + PLAN.stranger, 0)
    store64(plan + PLAN.asked, 0)
    store64(plan + PLAN.is_asking, 0)
    store64(plan + PLAN.left, 0)
    store64(plan + PLAN.next, 0)
    lock(engine)
    store_release(plan + PLAN.state, RUNNING)
    link = engine + ENGINE.plan_state
    while load64(link) != 0:
        link = load64(link) + PLAN.next
    store64(link, plan)
    store64(engine + ENGINE.plan_count, load64(engine + ENGINE.plan_count) + 1)
    stir(engine)
    step_plans(engine)
    unlock(engine)


@kernel("void(int64, int64, int64, int64, int64)")
def number_and_bind(comm, plan, call, source, target):  # type: ignore[no-untyped-def]
    """Make a plan the next one of its communicator, on these buffers: as :class:`Collective` does for one that is started once."""
    number = load64(comm + COMM.plans) + 1
    store64(comm + COMM.plans, number)
    store64(plan + PLAN.number, number)
    store64(plan + PLAN.tag, ((((number << _STARTS_BITS) | 1) << _CALL_BITS | call) << _NUMBER_BITS) & ((1 << _TAG_BITS) - 1))
    store64(plan + PLAN.buffers + 8 * INPUT, source)
    store64(plan + PLAN.buffers + 8 * OUTPUT, target)


@kernel("int64(int64, int64, int64, int64)", is_entry=True)
def wait_plan(engine, plan, kind, nbytes):  # type: ignore[no-untyped-def]
    """Wait until a plan is finished: 0, or why the wait was given up."""
    comm, call = load64(plan + PLAN.comm), load64(plan + PLAN.tag) >> _NUMBER_BITS
    root = (call >> _KIND_BITS) & ((1 << _ROOT_BITS) - 1)
    record = trace_begin(engine, kind, load64(comm + COMM.context), root, 0, nbytes)
    code = 0
    if load_acquire(plan + PLAN.state) != FINISHED:
        code = keep_waiting(engine, comm, plan + PLAN.state, FINISHED, 0)  # with progress at once: nobody else finishes it
    if code == 0:
        trace_end(record)
    return code


@kernel("int64(int64, int64)", is_entry=True)
def test_plan(engine, plan):  # type: ignore[no-untyped-def]
    """1 if a plan does not run (any more), after one progress if it did."""
    if load_acquire(plan + PLAN.state) == RUNNING:
        progress(engine)
    return 1 if load_acquire(plan + PLAN.state) != RUNNING else 0


@kernel("int64(int64, int64)", is_entry=True)
def abandon_plan(engine, plan):  # type: ignore[no-untyped-def]
    """Give a running plan up: nothing of it starts any more, and no message writes into its buffers.

    Returns the number of sends that still read them.
    """
    lock(engine)
    _unlink(engine, plan)
    store_release(plan + PLAN.state, IDLE)
    unlock(engine)
    reading = 0
    for index in range(load64(plan + PLAN.count)):
        step = plan + PLAN.total + index * STEP.total
        if load64(step + STEP.state) == _STARTED:
            reading += 1 - withdraw(engine, load64(step + STEP.request))
            store64(step + STEP.state, _DONE)
    return reading


class Room:
    """Native memory of a plan that runs: its words, its steps, and its temporary memory.

    Attributes
    ----------
    plan
        Whose steps they are.
    address, words, nbytes
        Where it is, its words, and how much memory it takes.
    """

    __slots__ = ("_block", "_temp", "address", "nbytes", "plan", "words")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        temp, self._temp = allocate(plan.temp + 64)
        self._block, self.address = zeroed(PLAN.total + WORD * len(plan.words))
        self._block[PLAN.total // WORD :] = plan.words
        self.nbytes = plan.temp + 64 + WORD * len(self._block)
        self.words = memoryview(self._block)
        self.words[PLAN.count // WORD] = plan.count
        self.words[_BUFFERS + TEMP] = (temp + 63) // 64 * 64


class SpareRooms:
    """Rooms of collectives that are complete, for the next ones by the same plan: a small one takes less time than making room for it.

    All of them together are bounded in bytes: those that were left longest ago go first. Finalizers leave rooms, wherever they
    happen to run, so nobody waits here: who finds another one at it does without.

    Attributes
    ----------
    nbytes
        Of all rooms.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rooms: dict[int, list[Room]] = {}
        self.nbytes = 0

    def take(self, plan: Plan) -> Room:
        """Return a room that a collective by the same plan has left, or a new one."""
        if self._rooms.get(id(plan)) and self._lock.acquire(blocking=False):
            try:
                if rooms := self._rooms.pop(id(plan), None):
                    room = rooms.pop()
                    self.nbytes -= room.nbytes
                    if rooms:
                        self._rooms[id(plan)] = rooms
                    return room
            finally:
                self._lock.release()
        return Room(plan)

    def leave(self, room: Room) -> None:
        """Keep a room, if it is small enough."""
        if room.nbytes > _SPARE_BYTES or not self._lock.acquire(blocking=False):
            return
        try:
            rooms = self._rooms.setdefault(id(room.plan), [])  # the rooms keep the plan alive, and nobody else has its id
            if len(rooms) < _MOST_SPARE:
                rooms.append(room)
                self.nbytes += room.nbytes
            while self.nbytes > _SPARE_BYTES:
                self.nbytes -= sum(oldest.nbytes for oldest in self._rooms.pop(next(iter(self._rooms))))
        finally:
            self._lock.release()


spare_rooms = SpareRooms()


class Collective:
    """A non-blocking or persistent collective: a plan bound to buffers.

    Parameters
    ----------
    comm
        The communicator.
    name
        What it is called in errors.
    kind
        Number of the collective in trace records.
    plan
        The steps.
    buffers
        Addresses of INPUT and OUTPUT; borrowed until the collective is complete.
    fn, itemsize
        Reduction function and bytes of an element; 0 and 1 for collectives without one.
    root
        The root; 0 for collectives without one.
    nbytes
        By how many bytes compiled code knows a call that may be repeated there (:mod:`ncclx_mpi.collectives.ready`); -1 for others.
    """

    def __init__(
        self,
        comm: NativeComm,
        name: str,
        kind: int,
        plan: Plan,
        buffers: tuple[int, int],
        fn: int = 0,
        itemsize: int = 1,
        root: int = 0,
        nbytes: int = -1,
    ) -> None:
        self.comm = comm
        self.name = name
        self.nbytes = nbytes if root < 1 << _ROOT_BITS else -1  # larger ones are told apart by fewer bits
        self.owner: Any = None
        self._kind = kind
        self._call = kind | (root & ((1 << _ROOT_BITS) - 1)) << _KIND_BITS
        self._engine = comm.engine
        self._room = spare_rooms.take(plan)
        self._words = words = self._room.words
        self._address = self._room.address
        self._is_given_up = False
        self._starts = 0
        self._number = words[_NUMBER] = comm.word("plans") + 1
        comm.set_word("plans", self._number)
        words[_COMM], words[_FN], words[_ITEMSIZE] = comm.address, fn, itemsize
        words[_BUFFERS + INPUT], words[_BUFFERS + OUTPUT] = buffers

    def start(self) -> Collective:
        """Start it, or start it again after it has completed.

        Raises
        ------
        Exception
            ERR_REQUEST: it is running. ERR_OTHER: the communicator is broken.
        """
        if self.running:
            errors.fail(errors.ERR_REQUEST, f"{self.name} is started again before it is complete; wait for it first")
        if self.comm.word("broken"):
            raise broken(self.comm, self.name)
        _let_go()
        self._starts += 1
        turn = self._number << _STARTS_BITS | (self._starts & ((1 << _STARTS_BITS) - 1))
        self._words[_TAG] = ((turn << _CALL_BITS | self._call) << _NUMBER_BITS) & ((1 << _TAG_BITS) - 1)
        if not self._engine.word("plan_step"):
            self._engine.set_word("plan_step", c_address(step_plans))
            self._engine.set_word("take_answer", c_address(take_answer))
        entry(start_plan)(self._engine.address, self._address)
        return self

    def step_address(self, index: int) -> int:
        """Where a step is, for plans whose sizes are filled in by an earlier step."""
        return int(self._address + PLAN.total + index * STEP.total)

    @property
    def running(self) -> bool:
        """Whether it was started and is not complete."""
        return bool(self._words[_STATE] == RUNNING)

    def test(self) -> bool:
        """Make progress; True once it is complete (or was never started)."""
        if not entry(test_plan)(self._engine.address, self._address):
            self._engine.ended.check(self.comm, self.name)
            return False
        self.finish()
        return True

    def wait(self) -> None:
        """Return when it is complete.

        Raises
        ------
        Exception
            ERR_PROC_FAILED: a rank died. ERR_PENDING: the deadline passed. ERR_TRUNCATE: ranks disagree about sizes.
        """
        if self._words[_STATE] == RUNNING:
            self.give_up(entry(wait_plan)(self._engine.address, self._address, self._kind, 0))
        self.finish()

    def give_up(self, code: int) -> None:
        """Raise why a wait was given up, if it was."""
        if code != 0:
            self.abandon()
            if code == BROKEN:
                raise broken(self.comm, self.name)
            if code == PEER_LEFT:
                raise parted(self.comm, self.name)
            self.comm.engine.fail(code, self.name)

    @property
    def key(self) -> tuple[int, int, int, int]:
        """By what compiled code knows the call: its kind and root, bytes, bytes of an element, and function."""
        return self._call, self.nbytes, self._words[_ITEMSIZE], self._words[_FN]

    @property
    def room_bytes(self) -> int:
        """Bytes of memory of the plan."""
        return self._room.nbytes

    def hand_over(self) -> Room:
        """Give its room away, once it is complete: it cannot be started any more."""
        room, self._address = self._room, 0
        return room

    @classmethod
    def taken_up(cls, comm: NativeComm, name: str, key: tuple[int, int, int, int], room: Room) -> Collective:
        """Return the collective that runs in a room which was handed over, to be finished, or given up."""
        found = cls.__new__(cls)
        found.comm, found.name, found.owner, found.nbytes = comm, name, None, key[1]
        found._call, found._kind = key[0], key[0] & KIND_MASK
        found._engine, found._room, found._words, found._address = comm.engine, room, room.words, room.address
        found._is_given_up, found._starts, found._number = False, 1, room.words[_NUMBER]
        return found

    def abandon(self) -> None:
        """Give it up in the middle: its buffers are the caller's again, and the communicator takes no more collectives."""
        self._is_given_up = True
        self.comm.set_word("broken", 1)
        self._engine.note_left(self.comm, self._number - 1, is_given_up=True)
        if entry(abandon_plan)(self._engine.address, self._address):
            _quarantine.append(self)  # for good: its sends may be read long after

    def __del__(self) -> None:
        if getattr(self, "_address", 0):
            if self.running:
                _forgotten.append(self)
            elif not self._is_given_up:
                spare_rooms.leave(self._room)

    def finish(self) -> None:
        """Raise what went wrong, once it is complete."""
        words, error = self._words, self._words[_ERROR]
        words[_STATE] = IDLE
        words[_ERROR] = 0
        if words[_STRANGER]:
            self.abandon()
            raise self._stranger(words[_STRANGER] - 1)
        if words[_LEFT] and words[PLAN.first_open // WORD] < words[PLAN.count // WORD]:
            self.abandon()
            raise self._left(words[_LEFT])
        if error:
            self.comm.set_word("broken", 1)
            errors.fail(
                error,
                f"rank {self.comm.rank}: {self.name}: {words[PLAN.expected_bytes // WORD]} bytes are expected of rank "
                f"{words[_FAILED_PEER]}, which sent {words[PLAN.failed_bytes // WORD]} bytes; "
                "counts and datatypes must agree between the ranks",
            )

    def _left(self, word: int) -> errors.Exception:
        """What is raised if a rank takes no part in it."""
        if GONE < word < 0:
            return broken(self.comm, self.name)
        how = "finalized" if word == GONE else f"finalized, or freed it, after {word - 1}"
        return errors.error(
            errors.ERR_PROC_FAILED,
            f"rank {self.comm.rank}: {self.name} is collective {self._number} by a plan of the communicator, but rank "
            f"{self._words[_ASKED_PEER]} has {how}; all ranks must call the same collectives before they leave",
        )

    def _stranger(self, its: int) -> errors.Exception:
        """What is raised if another rank called something else as this collective."""
        is_root = its & KIND_MASK == self._kind
        return errors.error(
            errors.ERR_ROOT if is_root else errors.ERR_OTHER,
            f"rank {self.comm.rank}: called {_called(self._call)}, but rank {self._words[_FAILED_PEER]} of the communicator called "
            f"{_called(its)}; all ranks must call the same collectives in the same order, with the same root",
        )


def _called(call: int) -> str:
    return f"{OPERATIONS[call & KIND_MASK]} with root {call >> _KIND_BITS}"


def left_over(comm: NativeComm) -> errors.Exception | None:
    """What is wrong if another rank has sent a message of a collective that this rank did not call; None while any is under way here."""
    engine = comm.engine
    engine.progress()
    if not engine.word("unexpected_first") or engine.word("plan_count"):
        return None
    message = entry(find_left)(engine.address, comm.address)
    if not message:
        return None
    source, tag = (ctypes.c_int64.from_address(message + word).value for word in (int(REQUEST.source), int(REQUEST.tag)))
    its = (tag >> _NUMBER_BITS) & ((1 << _CALL_BITS) - 1)
    return errors.error(
        errors.ERR_OTHER,
        f"rank {comm.rank}: rank {comm.world_ranks.index(source)} of the communicator called {_called(its)}, and this rank did not, or "
        "with another root; all ranks must call the same collectives in the same order, with the same root",
    )


_quarantine: list[Collective] = []
"""Collectives that were given up while peers still read their buffers."""
_forgotten: deque[Collective] = deque()
"""Collectives that run although nobody refers to them any more. Finalizers add to it whenever they happen to run."""


def _let_go() -> None:
    """Drop the forgotten collectives that are complete."""
    for _ in range(len(_forgotten)):
        with contextlib.suppress(IndexError):  # another thread does the same
            collective = _forgotten.popleft()
            if collective.running:
                _forgotten.append(collective)


def broken(comm: NativeComm, name: str) -> errors.Exception:
    """What a collective raises on a communicator on which one was given up: that a rank died, if that is why."""
    engine = comm.engine
    engine.progress()  # who gave it up because it was revoked has said so before
    engine.ended.heed()
    if comm.word("ended"):
        return engine.ended.failure(comm, name)
    if engine.arena.dead_ranks() or (is_death_suspected(comm) and engine.is_death_noticed()):
        return engine.failure(PEER_DEAD, name)
    return errors.error(
        errors.ERR_OTHER,
        f"rank {comm.rank}: {name} on a communicator on which a collective was interrupted or failed, here or on another rank: "
        "the ranks no longer agree on what comes next. Make a new communicator",
    )
