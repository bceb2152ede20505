"""Non-blocking and persistent collectives as Python sees them: what is pending in a communicator, and who goes how.

Small collectives go by lines (:mod:`ncclx_mpi.collectives.shm_schedule`), by the same table as blocking ones, if what they reduce with is
compiled: whoever makes progress carries a reduction out, with the engine's lock in hand, where a function in Python may not run.
Larger ones go by direct copies (:mod:`ncclx_mpi.collectives.cma_schedule`) where all ranks let the kernel copy. There, those with counts
go block by block, whatever their size (:mod:`ncclx_mpi.collectives.shm_vector_schedule`): nobody knows all counts. All others are plans
(:mod:`ncclx_mpi.collectives.prepare`), as are large scans. All of it is a function of what all ranks know; but
whether the kernel lets every rank reach every other one each finds out for itself, once all have said that they may be reached. They all
find the same unless something forbids it to some of them only: these go by plans and publish that they do, which
ends the collective on the others with an error that names the setting to use. (With counts, and between
neighbours, they go block by block all the same, since all that is small needs no copy by the kernel; a copy that is refused ends the
collective, with that error.)

Between neighbours (:mod:`ncclx_mpi.collectives.neighbor_alltoall.shm_edge_schedule`) that is so if all ranks know that none has more of
them than a notice holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ncclx_mpi import errors
from ncclx_mpi.algorithms import ONESHOT_UPTO
from ncclx_mpi.buffers.source import allocate
from ncclx_mpi.collectives import cma, cma_schedule, cma_tuning, select, shm_oneshot, shm_schedule, shm_vector_schedule
from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW
from ncclx_mpi.collectives.blocking import check
from ncclx_mpi.collectives.executor import entry
from ncclx_mpi.collectives.neighbor_alltoall import shm_edge_schedule, shm_edges
from ncclx_mpi.collectives.neighborhood import EDGES, NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL, PART, Neighborhood, introduce
from ncclx_mpi.collectives.select import LARGE, PLAN, SMALL
from ncclx_mpi.p2p.blocks import untouched_block
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import BROKEN, FREE, OPERATIONS, REQUEST
from numba_kernels.jit import c_address
from numba_kernels.layout import WORD, zeroed
from numba_kernels.memory import LINE

_LEAST_ENTRIES = 32
_FEW_OWNERS = 64
_WORDS = shm_schedule.ENTRY.total // WORD


class Described:
    """A collective that can be started any number of times.

    Attributes
    ----------
    address
        Of an entry (:mod:`ncclx_mpi.collectives.shm_schedule`) that says what it is.
    before, after
        Copies that are made each time, before it starts and once it is complete.
    is_refusal
        Whether it only tells the others that this rank goes by a plan.
    """

    __slots__ = ("_memory", "address", "after", "before", "is_refusal")

    def __init__(self) -> None:
        words, self.address = zeroed(_WORDS * WORD)
        self._memory: list[Any] = [words]
        self.before: list[Callable[[], Any]] = []
        self.after: list[Callable[[], Any]] = []
        self.is_refusal = False

    def show(self, comm: NativeComm, name: str, arguments: tuple[Any, ...]) -> list[Any]:
        """Return the arguments for direct copies: what the kernel does not copy from or to, or must not, has a copy of its own."""
        shown = list(arguments)
        parts = _PARTS[name](comm, *arguments)
        if name in _COPIED_IN_PLACE and not arguments[0]:
            shown[0] = self._copy(arguments[1], parts[0][1], False)
        for index, nbytes, is_written in parts:
            if arguments[index] and not entry(cma.is_shown)(comm.address, arguments[index]):
                shown[index] = self._copy(arguments[index], nbytes, is_written)
        return shown

    def show_rows(self, comm: NativeComm, kind: int, root: int, rows: list[_Row]) -> int:
        """Return the address of a table of `rows`, in which what the others must not copy from, or into, has a copy of its own."""
        table = self._table(rows)
        if entry(shm_vector_schedule.is_fit)(comm.address, kind, root, table):
            return table
        if kind in (shm_oneshot.GATHER, shm_oneshot.SCATTER) and (kind == shm_oneshot.GATHER) == (comm.rank == root):
            return self._table([(send, given, self._copy(recv, size, True), size) for send, given, recv, size in rows])
        if kind == shm_oneshot.ALLGATHER:
            send, given, recv, size = rows[comm.rank]
            rows[comm.rank] = self._copy(send, given, False), given, recv, size
            return self._table(rows)
        return self._table([(self._copy(send, given, False), given, recv, size) for send, given, recv, size in rows])

    def show_edges(self, comm: NativeComm, kind: int, sent: list[_Block], received: list[_Block]) -> int:
        """Likewise of what is sent along each edge, and received."""
        parts = [(address, nbytes, 0) for address, nbytes in (*(sent or [_NOTHING_SENT]), *received)]
        table = self._table(parts)
        if entry(shm_edge_schedule.is_fit)(comm.address, kind, table):
            return table
        copies = [(self._copy(address, nbytes, False), nbytes, 0) for address, nbytes in sent]
        return self._table([*copies, *parts[len(sent) :]])

    def _table(self, rows: Sequence[tuple[int, ...]]) -> int:
        table = array("q", (word for row in rows for word in row))
        self._memory.append(table)
        return table.buffer_info()[0]

    def _copy(self, address: int, nbytes: int, is_written: bool) -> int:
        at, memory = allocate(nbytes)
        self._memory.append(memory)
        self.before.append(functools.partial(ctypes.memmove, at, address, nbytes))
        if is_written:
            self.after.append(functools.partial(ctypes.memmove, address, at, nbytes))
        return at


_Row = tuple[int, int, int, int]
"""Address and bytes of what goes to a rank, and of what comes from it."""
_Block = tuple[int, int]
"""Address and bytes of what goes along an edge, or comes along it."""
_NOTHING_SENT = (0, 0)
assert (ROW.total, PART.total) == (4 * WORD, 3 * WORD)


_NOTHING = array("q")


class Pending:
    """The non-blocking collectives of one communicator that need no plan.

    Parameters
    ----------
    comm
        The communicator.

    Attributes
    ----------
    comm
        The communicator.
    owners
        What keeps the buffers of a collective alive, by its number, until it is complete: its request may be gone long before.
    """

    __slots__ = (
        "__weakref__",
        "_chunks",
        "_drop_at",
        "_entries",
        "_has_left",
        "_holders",
        "_is_left",
        "_landings",
        "comm",
        "owners",
    )

    def __init__(self, comm: NativeComm) -> None:
        self.comm = comm
        self.owners: dict[int, Any] = {}
        self._entries = _NOTHING
        self._drop_at = _FEW_OWNERS
        self._chunks: Any = _NOTHING
        self._landings: dict[int, list[Callable[[], Any]]] = {}
        self._holders: set[int] = set()
        self._is_left = self._has_left = False

    def start(self, name: str, arguments: tuple[Any, ...]) -> int:
        """Start a collective with the arguments of :mod:`ncclx_mpi.collectives.prepare`, if it needs no plan.

        Returns
        -------
        int
            Its number; 0 if it is left to a plan.

        Raises
        ------
        Exception
            ERR_OTHER: the communicator is broken.
        """
        described = self.describe(name, arguments)
        if described is None:
            return 0
        number = self.begin(described, name, described)
        return 0 if described.is_refusal else number

    def describe(self, name: str, arguments: tuple[Any, ...]) -> Described | None:
        """Return what a collective is, to be started any number of times; None if it is left to a plan."""
        comm, resolve = self.comm, _COLLECTIVES.get(name)
        if resolve is None:
            if name in _VECTORS:
                return self._describe_rows(*_VECTORS[name](comm, *arguments))
            return self._describe_edges(*_NEIGHBORS[name](*arguments)) if name in _NEIGHBORS else None
        kind, published, kernel, operands = resolve(comm, *arguments)
        algorithm, described = select.algorithm(comm, kind, published), Described()
        if algorithm == LARGE:
            ahead = self._look_ahead(kind) if name in _PARTS and _is_cut(name, arguments) else shm_oneshot.PLANNED
            if ahead == shm_oneshot.PLANNED:
                return None
            self._make_chunks()
            described.is_refusal = ahead == shm_oneshot.UNREACHED
            operands = resolve(comm, *described.show(comm, name, arguments))[-1]
        elif algorithm != SMALL or published > ONESHOT_UPTO:
            return None
        entry(kernel)(comm.address, described.address, *operands)
        if described.is_refusal:
            entry(shm_schedule.refuse)(described.address)
        return described

    def _describe_rows(self, kind: int, root: int, rows: list[_Row]) -> Described | None:
        """As :meth:`describe`, a collective with counts."""
        comm, described = self.comm, Described()
        if select.algorithm(comm, kind, 0) == PLAN:
            return None
        if comm.size > 1 and self._look_ahead(kind) == shm_oneshot.PLANNED:
            return None
        _word(comm.address + shm_oneshot.SCRATCH.by_blocks).value = c_address(shm_vector_schedule.step)
        table = described.show_rows(comm, kind, root, rows)
        entry(shm_vector_schedule.describe)(comm.address, described.address, kind, root, table, 0)
        return described

    def _describe_edges(
        self, kind: int, neighborhood: Neighborhood, sent: list[_Block], received: list[_Block]
    ) -> Described | None:
        """As :meth:`describe`, a collective between neighbours."""
        comm, described = self.comm, Described()
        if comm.slot < 0:
            return None
        introduce(comm, neighborhood)
        way = _word(comm.word("edges") + EDGES.way).value
        if way == shm_edges.PLANNED or (way == shm_edges.UNKNOWN and not 0 < neighborhood.degree <= shm_edges.MOST_EDGES):
            return None
        if comm.size > 1 and self._look_ahead(kind) == shm_oneshot.PLANNED:
            return None
        _word(comm.address + shm_oneshot.SCRATCH.by_edges).value = c_address(shm_edge_schedule.step)
        table = described.show_edges(comm, kind, sent, received)
        entry(shm_edge_schedule.describe)(comm.address, described.address, kind, table, 0)
        return described

    def begin(self, described: Described, name: str, owner: Any) -> int:
        """Start what :meth:`describe` returned; returns and raises as :meth:`start`.

        `owner` keeps that, and the buffers, alive until it is complete: from before the start on, as a signal handler may raise behind it.
        """
        self._make_room()
        for copy in described.before:
            copy()
        expected = self.comm.word("sequence") + 1
        self.keep(expected, owner)
        number = int(entry(shm_schedule.start_described)(self.comm.address, 0, described.address))
        if number < 0:
            self.owners.pop(expected, None)
            check(self.comm, -number, name)
        self.owners[number] = owner  # another thread may have started, or expected, the same one meanwhile
        if described.after:  # only now: of one that never started it would be the next one's
            self._landings[number] = described.after
        return number

    def _look_ahead(self, kind: int) -> int:
        """How what is large goes: AGREED, PLANNED or UNREACHED (:mod:`ncclx_mpi.collectives.shm_oneshot`)."""
        comm, ahead = self.comm, shm_oneshot.SCRATCH.ahead
        if comm.size == 1 or not entry(cma_tuning.may_be_direct)(comm.address, kind):
            return shm_oneshot.PLANNED
        if entry(cma_tuning.is_one_sided)(comm.address, kind):
            return shm_oneshot.AGREED
        if _word(comm.address + ahead).value == shm_oneshot.UNASKED:
            comm.engine.idle_wait(
                self._have_all_joined, "first non-blocking collective that is large or has counts, while a rank starts"
            )
            entry(cma_schedule.look_ahead)(comm.address)
        return _word(comm.address + ahead).value

    def _make_chunks(self) -> None:
        """Have memory for large reductions to work in, and say who carries out what is large."""
        if not len(self._chunks):
            self._chunks, address = untouched_block(cma_schedule.CHUNKS_BYTES + LINE)
            _word(self.comm.address + shm_oneshot.SCRATCH.chunks).value = address + -address % LINE
            _word(self.comm.address + shm_oneshot.SCRATCH.one_sided).value = c_address(cma_schedule.step)

    def _have_all_joined(self) -> bool:
        engine = self.comm.engine
        return all(engine.arena.control_word(engine.local(rank), "copies") for rank in self.comm.world_ranks)

    def begin_request(self, request: int, name: str) -> None:
        """Start a persistent request of this communicator, a FREE one; raises as :meth:`start`."""
        self._make_room()
        entry(shm_schedule.start_again)(request)
        if _word(request + REQUEST.state).value == FREE:
            check(self.comm, BROKEN, name)

    def hold(self, request: int) -> None:
        """Keep the slot for a persistent request after the communicator was freed, until :meth:`let_go`."""
        if not self.comm.engine.word("lines_start"):
            self.comm.engine.set_word("lines_start", c_address(shm_schedule.start_again))
        self._holders.add(request)

    def let_go(self, request: int) -> None:
        """A persistent request starts no more."""
        self._holders.discard(request)
        if self._is_left:
            self._leave()

    def keep(self, number: int, owner: Any) -> None:
        """Keep `owner` alive until collective `number` is complete."""
        if len(self.owners) >= self._drop_at:
            self._drop_complete()
        self.owners[number] = owner

    def wait(self, number: int, name: str) -> None:
        """Return when collective `number` is complete.

        Raises
        ------
        Exception
            ERR_PROC_FAILED: a rank died. ERR_PENDING: the deadline passed. ERR_TRUNCATE, ERR_ROOT, ERR_OTHER: ranks disagree.
        """
        code = entry(shm_schedule.wait_for)(self.comm.address, number)
        if code != 0:
            self._fail(code, name)
        self._land(number)

    def test(self, number: int, name: str) -> bool:
        """Whether collective `number` is complete, after some progress; raises as :meth:`wait`."""
        code = entry(shm_schedule.test_for)(self.comm.address, number)
        if code > 0:
            self._fail(code, name)
        if code == 0:
            self._land(number)
        else:
            self.comm.engine.ended.check(self.comm, name)
        return bool(code == 0)

    def _land(self, number: int) -> None:
        """Bring what a complete collective has brought to where it belongs."""
        for copy in self._landings.pop(number, ()):
            copy()
        self.owners.pop(number, None)

    def abandon(self) -> None:
        """Give all that is pending up: its buffers are the caller's again, and the communicator takes no more collectives."""
        entry(shm_schedule.abandon)(self.comm.address)
        self.owners.clear()
        self._landings.clear()

    def describe_request(self, request: int) -> tuple[int, str]:
        """Number and name of the collective of a request."""
        return _word(request + REQUEST.sequence).value, OPERATIONS[_word(request + REQUEST.tag).value]

    def forget(self, request: int, owner: Any) -> None:
        """Give the request of a collective back, which goes on by itself and keeps `owner` alive as long."""
        number = _word(request + REQUEST.sequence).value
        if entry(shm_schedule.detach)(self.comm.address, request):
            self.keep(number, owner)

    def leave(self) -> None:
        """Give the slot of a communicator that is freed back: now, or when nothing is pending, or persistent, any more."""
        self._is_left = True
        self._leave()

    def _leave(self) -> None:
        if self.comm.slot >= 0 and not self._holders:
            self._is_left, self._has_left = False, True
            entry(shm_schedule.leave)(self.comm.address)

    def _fail(self, code: int, name: str) -> None:
        self.abandon()
        check(self.comm, code, name)

    def _make_room(self) -> None:
        """Make room for another entry."""
        if self._has_left:
            errors.fail(
                errors.ERR_COMM, f"rank {self.comm.rank}: a persistent collective is started after its communicator was freed"
            )
        if entry(shm_schedule.has_room)(self.comm.address):
            return
        engine, room = self.comm.engine, max(2 * len(self._entries) // _WORDS, _LEAST_ENTRIES)
        if not engine.word("lines_step"):
            engine.set_word("lines_step", c_address(shm_schedule.step))
        entries, address = zeroed(room * _WORDS * WORD)
        entry(shm_schedule.move_entries)(self.comm.address, address, room)
        self._entries = entries
        _word(self.comm.address + shm_oneshot.SCRATCH.keeper).value = id(self)
        _let_go()

    def _drop_complete(self) -> None:
        """Let go of what complete collectives referred to whose requests were forgotten."""
        collected = _word(self.comm.address + shm_oneshot.SCRATCH.collected).value
        for number in list(self.owners):  # at once: a finalizer, or another thread, may add to them between two
            if number <= collected:
                self.owners.pop(number, None)
        self._drop_at = 2 * len(self.owners) + _FEW_OWNERS

    def __del__(self) -> None:
        if len(self._entries) and not entry(shm_schedule.unlink)(self.comm.address):
            _lingering.append(self)


def _word(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address)


_lingering: deque[Pending] = deque()
"""Those to which nobody refers any more although something is pending. Finalizers add to it whenever they happen to run."""


def _let_go() -> None:
    for _ in range(len(_lingering)):
        with contextlib.suppress(IndexError):  # another thread does the same
            left = _lingering.popleft()
            if not entry(shm_schedule.unlink)(left.comm.address):
                _lingering.append(left)


# What each collective is -------------------------------------------------------------------------------------------

_Resolved = tuple[int, int, Any, tuple[int, ...]]
"""Kind, bytes that every rank publishes, kernel that describes it, and what that takes after the communicator and the entry."""


_COLLECTIVES: dict[str, Callable[..., _Resolved]] = {
    "barrier": lambda comm: (shm_oneshot.BARRIER, 0, shm_schedule.describe_barrier, ()),
    "bcast": lambda comm, address, nbytes, root: (
        shm_oneshot.BCAST, nbytes, shm_schedule.describe_bcast, (address, nbytes, root)
    ),
    "gather": lambda comm, send, nbytes, recv, root: (
        shm_oneshot.GATHER, nbytes, shm_schedule.describe_gather, (send, nbytes, recv, root)
    ),
    "scatter": lambda comm, send, recv, nbytes, root: (
        shm_oneshot.SCATTER, nbytes * comm.size, shm_schedule.describe_scatter, (send, recv, nbytes, root)
    ),
    "allgather": lambda comm, send, nbytes, recv: (
        shm_oneshot.ALLGATHER, nbytes, shm_schedule.describe_allgather, (send, nbytes, recv)
    ),
    "alltoall": lambda comm, send, recv, nbytes: (
        shm_oneshot.ALLTOALL, nbytes * comm.size, shm_schedule.describe_alltoall, (send or recv, recv, nbytes)
    ),
    "reduce": lambda comm, *call: _reduction(shm_oneshot.REDUCE, shm_schedule.describe_reduce, *call),
    "allreduce": lambda comm, *call: _reduction(shm_oneshot.ALLREDUCE, shm_schedule.describe_allreduce, *call),
    "reduce_scatter_block": lambda comm, *call: _reduction(
        shm_oneshot.REDUCE_SCATTER, shm_schedule.describe_reduce_scatter_block, *call, blocks=comm.size
    ),
    "reduce_scatter": lambda comm, *call: _reduce_scatter(comm, *call),
    "scan": lambda comm, *call: _reduction(shm_oneshot.SCAN, shm_schedule.describe_scan, *call, 0),
    "exscan": lambda comm, *call: _reduction(shm_oneshot.EXSCAN, shm_schedule.describe_scan, *call, 1),
}  # fmt: skip


def _reduction(
    kind: int, kernel: Any, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool, *rest: int, blocks: int = 1
) -> _Resolved:
    return kind, blocks * count * itemsize, kernel, (send or recv, recv, count, itemsize, fn, *rest)


def _reduce_scatter(
    comm: NativeComm, send: int, recv: int, counts: Sequence[int], itemsize: int, fn: int, commutative: bool
) -> _Resolved:
    own, total = int(counts[comm.rank]), int(sum(counts))
    operands = send or recv, recv, total, int(sum(counts[: comm.rank])), own, itemsize, fn
    return shm_oneshot.REDUCE_SCATTER, total * itemsize, shm_schedule.describe_reduce_scatter, operands


# Those with counts: kind, root, and what goes to, and comes from, each rank -----------------------------------------

_Vector = tuple[int, int, list[_Row]]


def _gatherv(
    comm: NativeComm, send: int, nbytes: int, recv: int, counts: Sequence[int], offsets: Sequence[int], root: int
) -> _Vector:
    if comm.rank != root:
        return shm_oneshot.GATHER, root, [(send, nbytes, 0, 0) if rank == root else _NO_BLOCKS for rank in range(comm.size)]
    rows = [(0, 0, recv + offset, count) for count, offset in zip(counts, offsets, strict=True)]
    own = rows[root][2]
    rows[root] = (send or own, nbytes, own, nbytes)
    return shm_oneshot.GATHER, root, rows


def _scatterv(
    comm: NativeComm, send: int, counts: Sequence[int], offsets: Sequence[int], recv: int, nbytes: int, root: int
) -> _Vector:
    if comm.rank != root:
        return shm_oneshot.SCATTER, root, [(0, 0, recv, nbytes) if rank == root else _NO_BLOCKS for rank in range(comm.size)]
    rows = [(send + offset, count, 0, 0) for count, offset in zip(counts, offsets, strict=True)]
    own = rows[root][0]
    rows[root] = (own, nbytes, recv or own, nbytes)
    return shm_oneshot.SCATTER, root, rows


def _allgatherv(comm: NativeComm, send: int, nbytes: int, recv: int, counts: Sequence[int], offsets: Sequence[int]) -> _Vector:
    rows = [(0, 0, recv + offset, count) for count, offset in zip(counts, offsets, strict=True)]
    own = rows[comm.rank][2]
    rows[comm.rank] = (send or own, nbytes, own, nbytes)
    return shm_oneshot.ALLGATHER, 0, rows


def _alltoallv(
    comm: NativeComm,
    send: int,
    given: Sequence[int],
    given_at: Sequence[int],
    recv: int,
    counts: Sequence[int],
    offsets: Sequence[int],
) -> _Vector:
    blocks = zip(given, given_at, counts, offsets, strict=True)
    return shm_oneshot.ALLTOALL, 0, [((send or recv) + at, size, recv + offset, count) for size, at, count, offset in blocks]


_NO_BLOCKS = (0, 0, 0, 0)
_VECTORS: dict[str, Callable[..., _Vector]] = {
    "gatherv": _gatherv,
    "scatterv": _scatterv,
    "allgatherv": _allgatherv,
    "alltoallv": _alltoallv,
}


# Those between neighbours: kind, edges, and what is sent and received along each of them --------------------------

_Edges = tuple[int, Neighborhood, list[_Block], list[_Block]]


def _neighbor_allgather(
    edges: Neighborhood, send: int, nbytes: int, recv: int, counts: Sequence[int], offsets: Sequence[int]
) -> _Edges:
    return NEIGHBOR_ALLGATHER, edges, [(send, nbytes)], _blocks_at(recv, counts, offsets)


def _neighbor_alltoall(
    edges: Neighborhood,
    send: int,
    given: Sequence[int],
    given_at: Sequence[int],
    recv: int,
    counts: Sequence[int],
    offsets: Sequence[int],
) -> _Edges:
    return NEIGHBOR_ALLTOALL, edges, _blocks_at(send, given, given_at), _blocks_at(recv, counts, offsets)


def _blocks_at(address: int, counts: Sequence[int], offsets: Sequence[int]) -> list[_Block]:
    return [(address + offset, count) for count, offset in zip(counts, offsets, strict=True)]


_NEIGHBORS: dict[str, Callable[..., _Edges]] = {
    "neighbor_allgather": _neighbor_allgather,
    "neighbor_alltoall": _neighbor_alltoall,
}


# What of the arguments is memory, by direct copies: index, bytes, and whether it is written --------------------------

_Parts = tuple[tuple[int, int, bool], ...]


_PARTS: dict[str, Callable[..., _Parts]] = {
    "bcast": lambda comm, address, nbytes, root: ((0, nbytes, comm.rank != root),),
    "gather": lambda comm, send, nbytes, recv, root: ((0, nbytes, False), (2, nbytes * comm.size, True)),
    "scatter": lambda comm, send, recv, nbytes, root: ((0, nbytes * comm.size, False), (1, nbytes, True)),
    "allgather": lambda comm, send, nbytes, recv: ((0, nbytes, False), (2, nbytes * comm.size, True)),
    "alltoall": lambda comm, send, recv, nbytes: ((0, nbytes * comm.size, False), (1, nbytes * comm.size, True)),
    "reduce": lambda comm, *call: _parts_of_reduction(*call),
    "allreduce": lambda comm, *call: _parts_of_reduction(*call),
    "reduce_scatter_block": lambda comm, *call: _parts_of_reduction(*call, blocks=comm.size),
    "reduce_scatter": lambda comm, *call: _parts_of_reduce_scatter(comm, *call),
}


def _parts_of_reduce_scatter(comm: NativeComm, send: int, recv: int, counts: Sequence[int], itemsize: int, *_: Any) -> _Parts:
    return (0, int(sum(counts)) * itemsize, False), (1, int(counts[comm.rank]) * itemsize, True)


def _parts_of_reduction(send: int, recv: int, count: int, itemsize: int, *_: Any, blocks: int = 1) -> _Parts:
    return (0, blocks * count * itemsize, False), (1, count * itemsize, True)


_COPIED_IN_PLACE = ("alltoall", "reduce_scatter_block", "reduce_scatter")
_ITEMSIZE = 3
"""Which argument of a reduction is the bytes of an element."""


def _is_cut(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a collective can be cut into pieces: elements that are reduced must not be too large."""
    return "reduce" not in name or arguments[_ITEMSIZE] <= select.LARGEST_ITEM
