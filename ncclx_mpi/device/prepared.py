"""Communicators prepared for collectives in streams: everything that ranks have to agree on, so that a call need not.

:func:`prepare` is collective, and the only time at which ranks wait for each other on the host. Each rank allocates a *symmetric heap*, of
one size; the lowest rank on each GPU, its *executor*, maps the heaps of all; words in the arena are pinned, and a watch is kept
over them (:mod:`ncclx_mpi.device.watch`). From then on a call is::

    every rank   [copy into the heap]  ready[e][me] = 1 of all e;  wait for done[e][me] of all e, reset  [copy out of the heap]

    executor     [copy into the heap]  ready[e][me] = 1 of other e;  wait for ready[me][r] of all r, reset
                 kernel
                 done[me][r] = 1 of all r;  wait for done[e][me] of other e, reset  [copy out of the heap]

in the stream that the program gave: a stream memory operation on each rank, two and a launch on an executor, besides copies. Where in
the heap a call has its bytes is a matter of its size alone, so that all ranks know it of each other. Ranks that differ are told
at their next call (ERR_TRUNCATE and the like): nobody writes beyond a heap, since all are of one size, and nobody writes to arrays but
their owner.

Calls outside of graphs follow each other, in whatever streams they are, and share the low end of the heap. A call that is captured has its
own words and its own part of the heap, from the high end down, for as long as the communicator lives: it may be replayed at any time.
All ranks capture the same calls in the same order, and replay them alike.

A call outside of graphs that is made again, with the same arrays in the same stream, enqueues what was bound for it the first time
(:meth:`Prepared.repeat`): nothing in it depends on how often it was made.

A new collective is a :class:`Task` for :meth:`Prepared.enqueue`; its kernels find the heaps of all ranks in :attr:`Prepared.table`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from ncclx_mpi import collectives, errors, runtime
from ncclx_mpi.device.agreement import Attempt
from ncclx_mpi.device.executor import BLOCKS_A_PROCESSOR, LEAST_PIECE
from ncclx_mpi.device.process import current
from ncclx_mpi.device.watch import ABORTED, DIED, DIFFERS, LANES, LEFT, Call, Watch, Wrong, board_bytes, lane_bytes
from ncclx_mpi.gpu_memory.streams import Stream, handle_of
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels.cuda import driver as drivers
from numba_kernels.cuda import symmetric
from numba_kernels.cuda.driver import HANDLE_BYTES, WAIT_AT_LEAST, WRITE, Batch, Copy, Driver, DriverError, Launch, Step, Work
from numba_kernels.cuda.kernel import Kernel
from numba_kernels.cuda.limits import GROUP
from numba_kernels.layout import WORD
from numba_kernels.rows import NamedTuple

ALIGNMENT = 256
"""Of what calls have in the heap."""

_PAGE = 4096
_FACTS = 3 + HANDLE_BYTES // WORD
"""Words of what ranks tell each other first: size of the heap, name of the GPU, handle of the heap."""
_READY, _DONE = 0, 1
_KEPT = 1024
"""Calls that a communicator remembers."""


class Prepared:
    """A communicator that is prepared, on one rank. Made by :func:`prepare`.

    Attributes
    ----------
    comm, driver, device, context
        The communicator; the driver, the GPU of this rank's heap, and the driver's context in which that is.
    heap, nbytes
        The heap of this rank, and the bytes of each.
    executors
        The executor of each rank.
    order
        All executors.
    members
        Ranks that this one executes for; empty if it is no executor.
    table
        Address of an executor's :data:`~numba_kernels.cuda.symmetric.TABLE`, with the heaps of all ranks, in device memory.
    lasting
        What streams may come to as long as the communicator is there.
    """

    def __init__(self, comm: NativeComm, driver: Driver, nbytes: int) -> None:
        self.comm = comm
        self.driver = driver
        self.device = driver.current_device() or 0
        self.context = 0
        self.nbytes = nbytes
        self.heap = self.table = 0
        self.executors: list[int] = []
        self.lasting: set[Lasting] = set()
        self._guard = threading.RLock()
        self._mapped: list[int] = []
        self._bound: dict[tuple[int, Hashable], Bound] = {}
        self._kernels: dict[tuple[str, ...], Kernel] = {}
        self._words = self._pinned = 0
        self._last: Stream | None = None
        self._used, self._top, self._has_captured = 0, nbytes, False
        self._watch: Watch | None = None
        self._is_open = True
        _open.add(self)
        try:
            with current(driver, self.device):
                self._build()
        except BaseException:
            self.close()
            raise

    # Building

    def _build(self) -> None:
        if not all(map(self.comm.engine.is_near, self.comm.world_ranks)):
            errors.fail(
                errors.ERR_COMM, f"rank {self.comm.rank}: prepare: the communicator has ranks of several nodes; Split it by node"
            )
        attempt = Attempt(self.comm, "prepare")
        mine = np.zeros(_FACTS, dtype=np.int64)
        with attempt:
            self.context = self.driver.context()
            self.heap = self.driver.allocate(self.nbytes + symmetric.TABLE.total)
            self._blocks = BLOCKS_A_PROCESSOR * self.driver.multiprocessors(self.device)
            mine[:3] = self.nbytes, *np.frombuffer(self.driver.uuid(self.device), dtype=np.int64)
            mine[3:] = np.frombuffer(self.driver.export(self.heap), dtype=np.int64)
        facts = attempt.agree(mine)
        self._check_sizes(facts[:, 0].tolist())
        uuids = [row[1:3].tobytes() for row in facts]
        self.executors = [uuids.index(uuid) for uuid in uuids]
        self.order = sorted(set(self.executors))
        self.members = [rank for rank, executor in enumerate(self.executors) if executor == self.comm.rank]
        self._lane_bytes = lane_bytes(self.comm.size, len(self.order))
        place = np.zeros(1, dtype=np.int64)
        with attempt:
            if self.members:
                self._become_executor([row[3:].tobytes() for row in facts])
            if self.comm.rank == 0:
                place[0] = self._allocate_words()
        board = self.comm.engine.arena.base + int(attempt.agree(place)[0, 0])
        with attempt:
            nbytes = board_bytes(self.comm.size) + LANES * self._lane_bytes
            self.driver.register_host(board, -(-nbytes // _PAGE) * _PAGE)
            self._pinned = board
        attempt.agree(np.zeros(1, dtype=np.int64))
        self._watch = Watch(self.comm, board, self.order)
        self._shared = self._lane(0)

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        other = next((rank for rank, nbytes in enumerate(sizes) if nbytes != sizes[0]), 0)
        if other:
            errors.fail(
                errors.ERR_ARG,
                f"rank {self.comm.rank}: prepare: rank 0 asks for a heap of {sizes[0]} bytes, rank {other} for {sizes[other]}; "
                "all ranks must ask for the same",
            )

    def _become_executor(self, handles: Sequence[bytes]) -> None:
        """Map the heaps of all ranks, and write down where they are."""
        heaps = []
        for rank, handle in enumerate(handles):
            if rank != self.comm.rank:
                self._mapped.append(self.driver.open(handle))
            heaps.append(self.heap if rank == self.comm.rank else self._mapped[-1])
        table = symmetric.pack_table(heaps, self.members)
        self.table = self.heap + self.nbytes
        stream = self.driver.create_stream()
        try:
            self.driver.copy(self.table, table.ctypes.data, table.nbytes, stream)
            self.driver.launch(symmetric.COPY, stream, 1, GROUP, (self.table, 0, 0, 1, *[0] * 5, ALIGNMENT))
            self.driver.synchronize(stream)
        finally:
            self.driver.destroy_stream(stream)

    def _allocate_words(self) -> int:
        """Offset in the arena of zeroed pages for board and lanes."""
        arena = self.comm.engine.arena
        nbytes = board_bytes(self.comm.size) + LANES * self._lane_bytes
        self._words = arena.open_heap(self.comm.engine.local_rank).allocate(-(-nbytes // _PAGE) * _PAGE + _PAGE)
        return -(-self._words // _PAGE) * _PAGE - arena.base

    def _lane(self, number: int) -> Lane:
        assert self._watch is not None
        size, me, executors = self.comm.size, self.comm.rank, len(self.order)
        base = self._watch.lanes + number * self._lane_bytes

        def word(executor: int, which: int, rank: int) -> int:
            return base + ((2 * executor + which) * size + rank) * WORD

        def awaited(words: Sequence[int]) -> list[Step]:
            waits = [Step(WAIT_AT_LEAST, address, 1) for address in words]
            return waits + [Step(WRITE, address, 0) for address in words]

        others = [k for k in range(executors) if self.order[k] != me]
        ready = [Step(WRITE, word(k, _READY, me), 1) for k in others]
        done = awaited([word(k, _DONE, me) for k in others])
        if not self.members:
            return Lane(None, self.driver.pack(ready + done))
        mine, peers = self.order.index(me), [rank for rank in range(size) if rank != me]
        before = ready + awaited([word(mine, _READY, rank) for rank in peers])
        behind = [Step(WRITE, word(mine, _DONE, rank), 1) for rank in peers] + done
        return Lane(*[self.driver.pack(steps) if steps else None for steps in (before, behind)])

    # Kernels

    def kernel(self, make: Callable[[str, str, int], Kernel], op: str, typecode: str) -> Kernel | None:
        """A kernel for a reduction over all ranks, None if it is not loaded."""
        return self._kernels.get((make.__name__, op, typecode))

    def load(self, reductions: Sequence[tuple[str, str]]) -> None:
        """Load the kernels of reductions, (operation, element type) each. Collective.

        Raises
        ------
        Exception
            ERR_OTHER: an executor cannot, and why.
        """
        made: dict[tuple[str, ...], Kernel] = {}
        attempt = Attempt(self.comm, "prepare")
        if self.comm.size > 1:
            for op, typecode in reductions:
                for make in (symmetric.reduce_kernel, symmetric.spread_kernel):
                    made[make.__name__, op, typecode] = make(op, typecode, self.comm.size)
        if self.members:
            with attempt, current(self.driver, self.device):
                self._launch_empty(set(made.values()))
        attempt.agree(np.zeros(1, dtype=np.int64))
        self._kernels |= made

    def _launch_empty(self, kernels: set[Kernel]) -> None:
        """Load kernels, by running them on nothing."""
        stream = self.driver.create_stream()
        try:
            for kernel in kernels:
                self.driver.launch(kernel, stream, 1, GROUP, (self.table, *[0] * (kernel.parameters - 2), 1))
        finally:
            self.driver.destroy_stream(stream)

    def piece(self, nbytes: int) -> int:
        """Bytes of the pieces into which kernels best cut `nbytes`."""
        return max(LEAST_PIECE, -(-nbytes // (self._blocks * LEAST_PIECE)) * LEAST_PIECE)

    def launch(self, kernel: Kernel, nbytes: int, arguments: Sequence[int]) -> Launch:
        """The launch of a kernel that has `nbytes` to work on, in pieces of :meth:`piece`."""
        blocks = min(self._blocks, -(-nbytes // LEAST_PIECE))
        return Launch(kernel, blocks, GROUP, (self.table, *arguments))

    # Calls

    def repeat(self, key: Hashable, stream: Any) -> bool:
        """Enqueue a call again; False if none with this key is bound to this stream, or the thread or the stream are not as usual.

        Parameters
        ----------
        key
            All that the call depends on, but the stream.
        stream
            What the program gave.

        Raises
        ------
        Exception
            As :meth:`enqueue`.
        """
        handle = handle_of(stream)
        with self._guard:
            bound = self._bound.get((handle, key))
            if bound is None or self.driver.examine(handle, self.context):
                return False
            self._follow(handle, stream)
            self._run(bound)
        return True

    def enqueue(self, task: Task, stream: Stream, key: Hashable = None) -> None:
        """Enqueue a call in a stream. Returns at once; arrays are the call's until the stream has passed it.

        Parameters
        ----------
        task
            The call.
        stream
            Where to; of this communicator's context.
        key
            For :meth:`repeat`: all that the task depends on, None if that cannot be told.

        Raises
        ------
        Exception
            ERR_COMM: the communicator was freed. ERR_NO_MEM: it does not fit into the heap, or there are too many captured calls.
            ERR_PROC_FAILED, ERR_TRUNCATE, ERR_OTHER and others: something went wrong in an earlier call. ERR_OTHER: the driver failed; the
            communicator takes no calls in streams any more, on any rank.
        """
        with self._guard, current(self.driver, self.device):
            if self._watch is None:
                errors.fail(
                    errors.ERR_COMM, f"rank {self.comm.rank}: the communicator was freed, it takes no calls in streams any more"
                )
            self._run(self._captured(task, stream.handle) if task.call.is_captured else self._eager(task, stream, key))

    def _run(self, bound: Bound) -> None:
        """Note a call, and enqueue it."""
        assert self._watch is not None
        wrong = self._watch.note(bound.what, bound.call.nbytes)
        if wrong is not None:
            self._raise(wrong)
        try:
            bound.enqueue()
        except BaseException as error:
            self._give_up(bound.call, error)

    def _give_up(self, call: Call, error: BaseException) -> NoReturn:
        """Take part in nothing more after an error, and raise it."""
        assert self._watch is not None
        self._watch.give_up()
        if not isinstance(error, DriverError):
            raise error
        errors.fail(errors.ERR_OTHER, f"rank {self.comm.rank}: {OPERATIONS[call.kind]} in a stream failed: {error}")

    def _bind(self, task: Task, stream: int, at: int, lane: Lane) -> Bound:
        """A call whose part of the heap begins at `at`."""
        space = self.heap + at
        work: list[Work] = [Copy(space + copy.at, copy.address, copy.nbytes) for copy in task.given if copy.nbytes]
        if lane.before is not None:
            work.append(Batch(lane.before))
        if self.members:
            work += task.launches(at)
        if lane.behind is not None:
            work.append(Batch(lane.behind))
        work += [Copy(copy.address, space + copy.at, copy.nbytes) for copy in task.got if copy.nbytes]
        try:
            enqueue = self.driver.bind(stream, work)
        except DriverError as error:
            self._give_up(task.call, error)
        return Bound(task.call, task.call.what, enqueue)

    def _eager(self, task: Task, stream: Stream, key: Hashable) -> Bound:
        """A call outside of graphs."""
        if task.space > self._top:
            self._fail_full(task, self._top)
        self._follow(*stream)
        self._used = max(self._used, task.space)
        bound = None if key is None else self._bound.get((stream.handle, key))
        if bound is None:
            bound = self._bind(task, stream.handle, 0, self._shared)
            if len(self._bound) >= _KEPT:
                self._bound.clear()
            if key is not None:
                self._bound[stream.handle, key] = bound
        return bound

    def _follow(self, handle: int, owner: Any) -> None:
        """Let a stream come after the one of the last call, wherever that was."""
        before = self._last
        if before is not None and before.handle != handle:
            if self.driver.is_capturing(before.handle):
                errors.fail(
                    errors.ERR_OTHER,
                    f"rank {self.comm.rank}: the last call of the communicator was in stream {before.handle:#x}, which is being "
                    "captured now; end the capture before communicating in another stream",
                )
            self.driver.wait(handle, self.driver.record(before.handle))
        if before is None or before.owner is not owner or before.handle != handle:
            self._last = Stream(handle, owner)

    def _captured(self, task: Task, stream: int) -> Bound:
        """A call in a graph."""
        assert self._watch is not None
        at = (self._top - task.space) // ALIGNMENT * ALIGNMENT
        if at < self._used:
            self._fail_full(task, self._top - self._used)
        number = self._watch.use_lane()
        if number >= LANES:
            errors.fail(
                errors.ERR_NO_MEM,
                f"rank {self.comm.rank}: {LANES - 1} calls of the communicator have been captured, which is the limit; "
                "duplicate the communicator and prepare that",
            )
        self._top, self._has_captured = at, True
        return self._bind(task, stream, at, self._lane(number))

    def _fail_full(self, task: Task, left: int) -> None:
        errors.fail(
            errors.ERR_NO_MEM,
            f"rank {self.comm.rank}: {OPERATIONS[task.call.kind]} of {task.call.nbytes} bytes needs {task.space} bytes of the heap, which "
            f"has {left} of {self.nbytes} left for it; prepare the communicator with a larger heap",
        )

    # Errors

    def check(self) -> None:
        """Raise what went wrong in calls so far, as far as it is known; see :meth:`enqueue`."""
        if self._watch is not None:
            self._raise(self._watch.look())

    def _raise(self, wrong: Wrong | None) -> None:
        if wrong is None:
            return
        rank, world = self.comm.rank, self.comm.world_ranks[wrong.rank]
        if wrong.code == DIFFERS:
            self._raise_difference(wrong)
        if wrong.code == DIED:
            errors.fail(
                errors.ERR_PROC_FAILED,
                f"rank {rank}: rank {world} died; what calls in streams have brought since is not valid. "
                "Look at that rank's output for why",
            )
        if wrong.code == LEFT:
            errors.fail(
                errors.ERR_PROC_FAILED,
                f"rank {rank}: rank {world} has left the job, so that a call in a stream waits for it in vain",
            )
        if wrong.code == ABORTED:
            errors.fail(errors.ERR_PROC_FAILED, f"rank {rank}: the job was aborted")
        errors.fail(
            errors.ERR_OTHER,
            f"rank {rank}: a call in a stream failed on rank {wrong.rank} of the communicator, which takes no more of them; "
            "free it, or look at that rank's error",
        )

    def _raise_difference(self, wrong: Wrong) -> None:
        assert self._watch is not None
        mine, theirs = self._watch.calls(wrong)
        classes = (
            (errors.ERR_OTHER, mine.kind != theirs.kind or mine.is_captured != theirs.is_captured),
            (errors.ERR_ROOT, mine.root != theirs.root),
            (errors.ERR_OP, mine.digest != theirs.digest),
        )
        error_class = next((each for each, applies in classes if applies), errors.ERR_TRUNCATE)
        errors.fail(
            error_class,
            f"rank {self.comm.rank}: call {wrong.number} in streams of the communicator is {_described(mine)} here, and "
            f"{_described(theirs)} on rank {wrong.rank}; all ranks must enqueue the same calls in the same order, with the same counts, "
            "operations and element types. What they have brought is not valid",
        )

    # The end

    def close(self) -> None:
        """Wait for what is under way, then give everything back. Collective; ends on the ranks that are left if one has died."""
        if not self._is_open:
            return
        self._is_open = False
        _open.discard(self)
        try:
            self.wait()
            while self.lasting:
                self.lasting.pop().let_go()
        finally:
            self._together(self._unmap)
            self._together(self._free)

    def leave(self) -> None:
        """As :meth:`close`, by oneself: at the end of the process, which frees the heap."""
        self._is_open = False
        if drivers.current() is self.driver:
            self.wait()
        self._unmap()

    def wait(self) -> None:
        """Wait until nothing is under way; the watch sees to it that this ends when a rank dies."""
        driver, last = self.driver, self._last
        with current(driver, self.device):
            if self._has_captured:
                driver.synchronize_device()  # graphs run in streams that are not known here
            elif last is not None:
                with contextlib.suppress(errors.Exception):
                    self.comm.engine.idle_wait(lambda: driver.is_idle(last.handle), "wait for the calls in streams")
                driver.synchronize(last.handle)

    def _together(self, step: Callable[[], None]) -> None:
        """Do something when all ranks have come here, or cannot come any more."""
        with contextlib.suppress(errors.Exception):
            collectives.barrier(self.comm)
        step()

    def _unmap(self) -> None:
        """Let go of what belongs to others."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
            self._bound.clear()
        if drivers.current() is self.driver:
            with (
                current(self.driver, self.device),
                contextlib.suppress(DriverError),
            ):  # the context may be gone, and all of this with it
                while self._mapped:
                    self.driver.close(self._mapped.pop())
                if self._pinned:
                    self.driver.unregister_host(self._pinned)

    def _free(self) -> None:
        """Give back what belongs to this rank."""
        if self._words:
            self.comm.engine.arena.open_heap(self.comm.engine.local_rank).free(self._words)
        if self.heap and drivers.current() is self.driver:
            with current(self.driver, self.device), contextlib.suppress(DriverError):
                self.driver.free(self.heap)


class Lasting(Protocol):
    """What was made for many calls of a prepared communicator."""

    def let_go(self) -> None:
        """Give everything back: streams have passed it, and come to it no more."""


class HeapCopy(NamedTuple):
    """Bytes between an array and a call's part of the heap: offset in that part, address of the array, bytes."""

    at: int
    address: int
    nbytes: int


class Task(NamedTuple):
    """One rank's part in a call.

    Attributes
    ----------
    call
        What ranks must agree on.
    space
        Bytes of the heap that the call takes, the same on all ranks.
    given, got
        What this rank copies into its heap before, and out of it afterwards.
    launches
        What an executor launches, given the offset of the call's part in all heaps.
    """

    call: Call
    space: int
    given: Sequence[HeapCopy] = ()
    got: Sequence[HeapCopy] = ()
    launches: Callable[[int], Sequence[Launch]] = lambda at: ()


class Bound(NamedTuple):
    """A call in a stream, which can be enqueued again and again.

    Attributes
    ----------
    call, what
        What ranks must agree on, and its first word.
    enqueue
        Enqueues it.
    """

    call: Call
    what: int
    enqueue: Callable[[], None]


class Lane(NamedTuple):
    """Stream memory operations of a call on this rank, packed for the driver: before the kernel of an executor, and behind it.

    Others have none in front. Either may be None.
    """

    before: object
    behind: object


def prepare(comm: NativeComm, nbytes: int, reductions: Sequence[tuple[str, str]]) -> Prepared:
    """Prepare a communicator. Collective; this rank's heap is on the current device of the calling thread.

    Parameters
    ----------
    comm
        The communicator, of at most :data:`~numba_kernels.cuda.symmetric.RANKS` ranks.
    nbytes
        Bytes of each heap, the same on all ranks.
    reductions
        Names of operations and element types whose kernels are loaded now.

    Raises
    ------
    Exception
        On all ranks: ERR_UNSUPPORTED_OPERATION: too many ranks. ERR_ARG: heaps of different sizes. ERR_OTHER: a rank has no driver or
        memory, or cannot map that of another one, or has no compiler; the message says which and why.
    """
    if comm.size > symmetric.RANKS:
        errors.fail(
            errors.ERR_UNSUPPORTED_OPERATION,
            f"a communicator of {comm.size} ranks cannot be prepared for calls in streams: they are for {symmetric.RANKS} ranks at most",
        )
    attempt = Attempt(comm, "prepare")
    with attempt:
        driver = drivers.current() or drivers.find()
    attempt.agree(np.zeros(1, dtype=np.int64))
    made = Prepared(comm, driver, nbytes)
    try:
        made.load(reductions)
    except BaseException:
        made.close()
        raise
    return made


_open: set[Prepared] = set()


def _leave() -> None:
    """Wait for what is under way, while the arena is there."""
    while _open:
        _open.pop().leave()


runtime.before_leaving(_leave)


def _described(call: Call) -> str:
    kind = OPERATIONS[call.kind]
    more = f", operation or request {call.digest}" if call.digest else ""
    return f"{kind} of {call.nbytes} bytes with root {call.root}{more}{', captured into a graph' if call.is_captured else ''}"
