"""Plans that are ready for the next call: blocking collectives of plain arrays between nodes without a step in Python.

The general way resolves arguments, chooses a plan, makes room for it and binds it, in Python, which takes longer than a small message
between hosts. So the room of a plan that has carried out a blocking call stays with its communicator, with what told the call from others.
A call of the same collective, root, bytes and operation finds it here, in compiled code, and only binds the buffers. What a plan is
depends on nothing else, so ranks of which some go the general way meet all the same.
"""

from __future__ import annotations

import weakref

from ncclx_mpi.collectives.executor import IDLE, KIND_MASK, PLAN, Collective, Room, number_and_bind, start_plan, wait_plan
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_seven
from numba_kernels.jit import c_address, kernel
from numba_kernels.layout import WORD, words, zeroed

SLOW, UNFINISHED = -1, -2
"""No plan is ready: nothing was done. One ran, and there is something to raise: :func:`raise_failure`."""
_MOST, _LARGEST = 16, 256 << 10
"""Plans of a communicator, and bytes of the room of one."""
READY = words("Ready", "run failed code next")
"""``run``: the address of :func:`run_ready`; ``failed``: 1 + the index of the plan that failed, and the ``code`` of its wait."""
ENTRY = words("Entry", "call nbytes itemsize function room busy")
_KEY = tuple(range(ENTRY.busy // WORD))


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def run_ready(comm, call, nbytes, itemsize, function, source, target):  # type: ignore[no-untyped-def]
    """Carry a call out if its plan is ready: 0, SLOW or UNFINISHED. The GIL is held, which keeps other threads from the same plan."""
    ready = load64(comm + COMM.ready)
    if load64(comm + COMM.broken) != 0:
        return SLOW
    for index in range(_MOST):
        entry = ready + READY.total + index * ENTRY.total
        if (
            load64(entry + ENTRY.room) != 0
            and load64(entry + ENTRY.call) == call
            and load64(entry + ENTRY.nbytes) == nbytes
            and load64(entry + ENTRY.itemsize) == itemsize
            and load64(entry + ENTRY.function) == function
            and load64(entry + ENTRY.busy) == 0
        ):
            return _run(comm, ready, index, call, source, target)
    return SLOW


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _run(comm, ready, index, call, source, target):  # type: ignore[no-untyped-def]
    entry = ready + READY.total + index * ENTRY.total
    engine, room = load64(comm + COMM.engine), load64(entry + ENTRY.room)
    store64(entry + ENTRY.busy, 1)
    number_and_bind(comm, room, call, source, target)
    state = leave_gil()
    start_plan(engine, room)
    code = wait_plan(engine, room, call & KIND_MASK, 0)
    enter_gil(state)
    if code == 0 and load64(room + PLAN.error) == 0 and load64(room + PLAN.first_open) == load64(room + PLAN.count):
        store64(room + PLAN.state, IDLE)
        store64(entry + ENTRY.busy, 0)
        return 0
    store64(ready + READY.failed, 1 + index)
    store64(ready + READY.code, code)
    return UNFINISHED


@kernel("int64(int64)")
def is_any_ready(comm):  # type: ignore[no-untyped-def]
    """Whether a communicator has ready plans."""
    return 1 if load64(comm + COMM.ready) != 0 else 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def by_plan(comm, call, nbytes, itemsize, function, source, target):  # type: ignore[no-untyped-def]
    """As :func:`run_ready`, which is called by its address: it is no part of the calls that go through the slot."""
    if is_any_ready(comm) == 0:
        return SLOW
    ready = load64(comm + COMM.ready)
    return call_seven(load64(ready + READY.run), comm, call, nbytes, itemsize, function, source, target)


class ReadyPlans:
    """The ready plans of a communicator, to which it leads in compiled code.

    Parameters
    ----------
    comm
        The communicator.
    """

    def __init__(self, comm: NativeComm) -> None:
        self._words, address = zeroed(READY.total + _MOST * ENTRY.total)
        self._rooms: list[Room | None] = [None] * _MOST
        self._words[READY.run // WORD] = c_address(run_ready)
        comm.set_word("ready", address)

    def keep(self, collective: Collective) -> None:
        """Keep the plan of a blocking call that is complete, in the place of the one that was kept longest ago."""
        index = self._words[READY.next // WORD]
        at = (READY.total + index * ENTRY.total) // WORD
        if self._words[at + ENTRY.busy // WORD] or collective.key in self._keys():
            return
        room = self._rooms[index] = collective.hand_over()
        self._words[READY.next // WORD] = (index + 1) % _MOST
        for offset, value in zip(_KEY, (*collective.key, room.address), strict=True):
            self._words[at + offset] = value

    def failed(self) -> tuple[int, tuple[int, int, int, int], Room]:
        """Return the code of the wait that was given up last, and which call it was; its plan is no more ready."""
        index = self._words[READY.failed // WORD] - 1
        at = (READY.total + index * ENTRY.total) // WORD
        room, key = self._rooms[index], self._keys()[index]
        assert room is not None
        self._rooms[index] = None
        for word in range(at, at + ENTRY.total // WORD):
            self._words[word] = 0
        return self._words[READY.code // WORD], key, room

    def _keys(self) -> list[tuple[int, int, int, int]]:
        rows = (self._words[at : at + len(_KEY)] for at in range(READY.total // WORD, len(self._words), ENTRY.total // WORD))
        return [(row[0], row[1], row[2], row[3]) if row[4] else (-1, -1, -1, -1) for row in rows]


_known: weakref.WeakKeyDictionary[NativeComm, ReadyPlans] = weakref.WeakKeyDictionary()


def keep(collective: Collective) -> None:
    """Keep the plan of a blocking call for the next one, if it may be repeated."""
    if collective.nbytes < 0 or collective.room_bytes > _LARGEST:
        return
    known = _known.get(collective.comm)
    if known is None:
        known = _known[collective.comm] = ReadyPlans(collective.comm)
    known.keep(collective)


def raise_failure(comm: NativeComm, name: str) -> None:
    """Raise why a ready plan was given up, or what it has found."""
    code, key, room = _known[comm].failed()
    collective = Collective.taken_up(comm, name, key, room)
    collective.give_up(code)
    collective.finish()
