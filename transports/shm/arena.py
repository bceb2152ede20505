"""The shared arena of a node's ranks: created once, passed by file descriptor, mapped by all, gone with the last process.

Nothing is ever in /dev/shm: the file is anonymous (``memfd_create``), so the kernel frees it when the last process that
holds it ends, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import resource
import sys
from array import array
from collections.abc import Sequence

from numba_kernels.atomics import compare_exchange, fetch_add, load_acquire, store_release
from numba_kernels.jit import c_address, entry, kernel
from numba_kernels.rows import NamedTuple
from transports.base import DeathNotice
from transports.shm.caches import l2_bytes
from transports.shm.heap import Heap
from transports.shm.layout import (
    ABSENT,
    ALIVE,
    CONTROL,
    DEAD,
    FINALIZED,
    HEADER,
    MAGIC,
    TRACE_BYTES,
    VERSION,
    ArenaPlan,
)
from transports.shm.slots import SLOT, lease, slot_bytes

MAX_RANKS = 4096
_MOST_LONE_SLOTS = 8
_WORD = 8
_MAP_NORESERVE, _MAP_FIXED = 0x4000, 0x10  # Linux; in the mmap module only from Python 3.13 on, or not at all


class LoneSlot(NamedTuple):
    """What a communicator of one rank has in the place of a slot: private memory, and where it is."""

    memory: mmap.mmap
    address: int


class EngineWords(NamedTuple):
    """Addresses of what an engine reads and writes in the arena for others to see.

    Attributes
    ----------
    deaths, abort
        Words that are not 0 once a rank of the node has died, and once the job is to end.
    records, trace
        The word that counts the records of what this rank does, and where these begin; `trace_bytes` of them.
    """

    deaths: int
    abort: int
    records: int
    trace: int
    trace_bytes: int


class Arena:
    """One mapping of the arena.

    Attributes
    ----------
    fd : int
        The memory file; inheritable only across fork. The arena owns it.
    base : int
        Address of the mapping in this process.
    nbytes : int
        Size of the (sparse) mapping.
    plan : ArenaPlan
        Offsets of all regions.
    """

    def __init__(self, fd: int, plan: ArenaPlan) -> None:
        self.fd = fd
        self.plan = plan
        self.nbytes = plan.nbytes
        try:
            self._map = mmap.mmap(fd, self.nbytes, flags=mmap.MAP_SHARED | _MAP_NORESERVE)
        except OSError as error:
            os.close(fd)
            raise _too_low(error, plan, "address space", "ulimit -v") from error
        with contextlib.suppress(OSError):  # a core dump would write out gigabytes of it, of every rank
            self._map.madvise(mmap.MADV_DONTDUMP)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.base = ctypes.addressof(self._anchor)
        self._heaps: dict[int, Heap] = {}
        self._lone_slots: list[LoneSlot] = []

    @classmethod
    def create(cls, nranks: int, near: Sequence[int] = (), world_size: int = 0, job: int = 0, machine_size: int = 0) -> Arena:
        """Make the arena of the `nranks` ranks of a job that are on this node.

        Parameters
        ----------
        nranks
            How many there are.
        near
            Their world ranks; none: they are the first ones.
        world_size
            Ranks of the job; 0: these.
        job
            A number that the arenas of all nodes of the job have, and no other's; 0: one is drawn.
        machine_size
            Ranks of the job on this machine, of which there are more than of the node where nodes are simulated; 0: as many.

        Raises
        ------
        ValueError
            `nranks` is not within 1 to 4096.
        OSError
            The limits of this process are too low for it.
        """
        if not 1 <= nranks <= MAX_RANKS:
            raise ValueError(f"an arena holds 1 to {MAX_RANKS} ranks, not {nranks}; start fewer ranks on this node")
        plan = ArenaPlan.within(nranks, world_size or nranks, _address_space_left())
        arena = cls(_sparse_file(plan), plan)
        key = new_key()
        for field, value in (
            ("version", VERSION),
            ("nranks", nranks),
            ("nbytes", plan.nbytes),
            ("creator", os.getpid()),
            ("key", key),
            ("job", job or key),
            ("world_size", plan.world_size),
            ("machine_size", machine_size or nranks),
            ("l2_bytes", l2_bytes()),
            ("heap_bytes", plan.heap_bytes),
            ("magic", MAGIC),
        ):
            arena.set_word(getattr(HEADER, field), value)
        for rank, world_rank in enumerate(near or range(nranks)):
            arena.set_control_word(rank, "world_rank", world_rank)
        return arena

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Map an arena that another process of the job made; takes over `fd`.

        Raises
        ------
        ValueError
            The file is no arena, or one of another version of this package.
        """
        head = memoryview(os.pread(fd, HEADER.total, 0))
        head = head[: len(head) // _WORD * _WORD].cast("q")
        if len(head) * _WORD < HEADER.total or head[HEADER.magic // _WORD] != MAGIC:
            raise ValueError("the descriptor passed by the launcher is not an ncclx_mpi arena")
        version = int(head[HEADER.version // _WORD])
        if version != VERSION:
            raise ValueError(
                f"the arena has layout version {version}, this process has {VERSION}: "
                "all ranks must run the same version of ncclx_mpi"
            )
        return cls(fd, ArenaPlan(*(int(head[at // _WORD]) for at in (HEADER.nranks, HEADER.world_size, HEADER.heap_bytes))))

    @property
    def nranks(self) -> int:
        return self.plan.nranks

    @property
    def job(self) -> int:
        """The number of the job, the same in the arenas of all its nodes."""
        return self.word(HEADER.job)

    @functools.cached_property
    def near(self) -> tuple[int, ...]:
        """World ranks of the node, in the order of their ranks in it."""
        return tuple(self.control_word(rank, "world_rank") for rank in range(self.nranks))

    @property
    def is_crowded(self) -> bool:
        """Whether the job has more ranks on this machine than it may use cores there.

        A rank may be bound to some: counted are those of who made the arena, and of all ranks that have joined.
        """
        cpus: set[int] = set()
        for pid in (0, self.word(HEADER.creator), *(self.control_word(rank, "pid") for rank in range(self.nranks))):
            with contextlib.suppress(OSError):
                cpus |= os.sched_getaffinity(pid)
        return self.word(HEADER.machine_size) > len(cpus)

    def word(self, offset: int) -> int:
        """The 64-bit word at `offset`."""
        return int.from_bytes(self._map[offset : offset + _WORD], "little", signed=True)

    def set_word(self, offset: int, value: int) -> None:
        """Write the word at `offset`, of which the caller is the only writer."""
        self._map[offset : offset + _WORD] = value.to_bytes(_WORD, "little", signed=True)

    def words(self, offset: int, count: int) -> array[int]:
        """A copy of `count` words from `offset`."""
        return array("q", self._map[offset : offset + count * _WORD])

    def control_word(self, rank: int, field: str) -> int:
        """A word of the control block of `rank`: ``pid``, ``state``, ``turns`` ..."""
        return self.word(self.plan.control(rank) + getattr(CONTROL, field))

    def set_control_word(self, rank: int, field: str, value: int) -> None:
        """Write a word of the control block of `rank`, which is this process's."""
        self.set_word(self.plan.control(rank) + getattr(CONTROL, field), value)

    def engine_words(self, rank: int) -> EngineWords:
        """What the engine of `rank` reads and writes."""
        records = self.base + self.plan.control(rank) + CONTROL.records
        return EngineWords(
            self.base + HEADER.dead_count, self.base + HEADER.abort, records, self.base + self.plan.trace(rank), TRACE_BYTES
        )

    def join(self, rank: int) -> None:
        """Enter this process as `rank`.

        Raises
        ------
        RuntimeError
            Another living process is that rank already.
        """
        control = self.plan.control(rank)
        if self.word(control + CONTROL.state) == ALIVE and self.word(control + CONTROL.pid) != os.getpid():
            raise RuntimeError(
                f"rank {rank} is already taken by process {self.word(control + CONTROL.pid)}; "
                "two processes were started with the same rank"
            )
        self.set_word(control + CONTROL.pid, os.getpid())
        self.set_word(control + CONTROL.start_time, start_time(os.getpid()))
        entry(_set_state)(self.base + control + CONTROL.state, ALIVE)

    def finalized(self, rank: int) -> None:
        """Say that `rank` ended its communication in order: its exit is no death."""
        entry(_set_state)(self.base + self.plan.control(rank) + CONTROL.state, FINALIZED)

    def state(self, rank: int) -> int:
        """ABSENT, ALIVE, FINALIZED or DEAD."""
        return self.control_word(rank, "state")

    def declare_dead(self, rank: int, why: str = "") -> bool:
        """Mark `rank` as dead, unless it finalized, and wake all who wait. Returns whether it was marked now."""
        state = self.base + self.plan.control(rank) + CONTROL.state
        return bool(entry(_mark_dead)(self.base, state, self.near[rank]) > 0)

    def ended_elsewhere(self, world_rank: int, state: int) -> None:
        """Note that a rank of another node is DEAD, which wakes all who wait, or FINALIZED; the first call counts."""
        word = self.base + self.plan.end_elsewhere(world_rank)
        if state == DEAD:
            entry(_mark_dead)(self.base, word, world_rank)
        else:
            entry(_first_wins)(word, state)

    @property
    def death_notice(self) -> DeathNotice:
        """How a transport notes in compiled code that a rank of another node is DEAD: as :meth:`ended_elsewhere` does."""
        return DeathNotice(c_address(_mark_dead), self.base, self.base + self.plan.end_elsewhere(0))

    def load_death_notice(self) -> None:
        """Have what :meth:`declare_dead` and :meth:`ended_elsewhere` call loaded: later, there may be no descriptors left to load it."""
        entry(_mark_dead)
        entry(_first_wins)

    def declare_abort(self, code: int) -> None:
        """Say that the job is to end with exit `code`; the first call counts."""
        entry(_first_wins)(self.base + HEADER.abort, code + 1)

    @property
    def abort_code(self) -> int | None:
        """The exit code of an Abort, None while there was none."""
        value = self.word(HEADER.abort)
        return value - 1 if value else None

    @property
    def has_dead_ranks(self) -> bool:
        """Whether a rank died."""
        return self.word(HEADER.death) != 0

    @property
    def deaths(self) -> int:
        """How many ranks died."""
        return self.word(HEADER.dead_count)

    def acknowledge(self, deaths: int) -> None:
        """Say that ranks know of so many deaths, and go on without those ranks."""
        entry(_raise_to)(self.base + HEADER.acknowledged, deaths)

    @property
    def acknowledged(self) -> int:
        """How many deaths ranks know of, and go on without those ranks."""
        return self.word(HEADER.acknowledged)

    def has_others(self, rank: int) -> bool:
        """Whether a rank other than `rank` is, or may still come, alive, on this node or another."""
        states = self._world_states()
        states[self.near[rank]] = FINALIZED
        return any(state in (ABSENT, ALIVE) for state in states)

    def world_state(self, world_rank: int) -> int:
        """As :meth:`state`, of any rank of the job; one of another node is ABSENT until this node knows of its end."""
        return self._world_states()[world_rank]

    def _world_states(self) -> list[int]:
        states: list[int] = self.words(self.plan.end_elsewhere(0), self.plan.world_size).tolist()
        for rank, world_rank in enumerate(self.near):
            states[world_rank] = self.state(rank)
        return states

    def dead_ranks(self) -> list[int]:
        """World ranks of those that died, on this node or another."""
        if not self.has_dead_ranks:
            return []
        return [rank for rank, state in enumerate(self._world_states()) if state == DEAD]

    def absent_ranks(self) -> list[int]:
        """World ranks of those of the node that have not joined yet."""
        return [world_rank for rank, world_rank in enumerate(self.near) if self.state(rank) == ABSENT]

    def is_shared(self, address: int) -> bool:
        """Whether peers can read what lies at `address` in this process: whether it is in a heap of the arena."""
        return self.plan.heaps <= address - self.base < self.plan.nbytes

    def lone_slot(self) -> LoneSlot:
        """Private memory in the place of a slot, for a communicator of one rank: addresses rather than memory, as few pages are touched."""
        is_new = not self._lone_slots
        found = self.spare_lone_slot()
        if not is_new:  # a new one is as a leased one is, and no start has to load the function for it
            entry(lease)(found.address, 0, 1, 1)
        return found

    def spare_lone_slot(self) -> LoneSlot:
        """The same, which whoever makes the communicator leases: one that was returned, or a new one."""
        try:
            return self._lone_slots.pop()
        except IndexError:
            memory = mmap.mmap(-1, slot_bytes(1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return LoneSlot(memory, ctypes.addressof(ctypes.c_char.from_buffer(memory)))

    def return_lone_slot(self, slot: LoneSlot) -> None:
        """Take a slot back that is not leased: a new one is eight times as much work as to zero its counters."""
        if len(self._lone_slots) < _MOST_LONE_SLOTS and not slot.memory[SLOT.bulk]:
            self._lone_slots.append(slot)

    def open_heap(self, rank: int) -> Heap:
        """The part of the arena from which `rank` allocates memory that its peers read without a copy."""
        found = self._heaps.get(rank)
        if found is None:
            start = self.plan.heap(rank)
            found = self._heaps.setdefault(
                rank, Heap(self.base, start, self.plan.heap(rank + 1) - start)
            )  # one, whatever threads do
        return found

    def detach(self) -> None:
        """Cut a process that a rank has forked off from the job: its mapping becomes a private copy, in which every wait ends."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        if libc.mmap(self.base, self.nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, self.fd, 0) != self.base:
            raise OSError(ctypes.get_errno(), "the arena cannot be mapped privately in a fork of a rank")
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.madvise(self.base, self.nbytes, mmap.MADV_DONTDUMP)
        self.set_word(HEADER.abort, 1)

    def close(self) -> None:
        """Unmap. Addresses inside the arena become invalid."""
        del self._anchor
        self._map.close()
        os.close(self.fd)


def new_key() -> int:
    """A random number that nobody else has."""
    return int.from_bytes(os.urandom(8), sys.byteorder) >> 2 | (1 << 62)


def _sparse_file(plan: ArenaPlan) -> int:
    fd = os.memfd_create("ncclx_mpi-arena", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, plan.nbytes)
    except OSError as error:
        os.close(fd)
        raise _too_low(error, plan, "a sparse file", "ulimit -f") from error
    return fd


def _too_low(error: OSError, plan: ArenaPlan, what: str, limit: str) -> OSError:
    words = f"the arena of {plan.nranks} ranks takes {plan.nbytes / 2**30:.1f} GiB of {what}; raise the limit (`{limit}`)"
    return OSError(error.errno, f"{error.strerror}: {words}")


def _address_space_left() -> float:
    """Bytes that this process may still map by its limit (`ulimit -v`); infinite without one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return float("inf")
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped_pages = int(file.read().split()[0])
    return limit - mapped_pages * resource.getpagesize()


def start_time(pid: int) -> int:
    """Start of process `pid` in clock ticks since boot (field 22 of /proc/PID/stat); 0 if there is none.

    Raises
    ------
    OSError
        That cannot be told: no descriptors are left.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rsplit(")", 1)[1].split()[19])


@kernel("void(int64, int64)", is_entry=True)
def _set_state(address, state):  # type: ignore[no-untyped-def]
    store_release(address, state)


@kernel("int64(int64, int64, int64)", is_entry=True)
def _mark_dead(base, state, world_rank):  # type: ignore[no-untyped-def]
    while True:
        seen = load_acquire(state)
        if seen in (FINALIZED, DEAD):
            return 0 if seen == DEAD else -1
        if compare_exchange(state, seen, DEAD) == seen:
            break
    compare_exchange(base + HEADER.death, 0, world_rank + 1)
    fetch_add(base + HEADER.dead_count, 1)
    return 1


@kernel("void(int64, int64)", is_entry=True)
def _raise_to(address, value):  # type: ignore[no-untyped-def]
    while True:
        seen = load_acquire(address)
        if seen >= value or compare_exchange(address, seen, value) == seen:
            return


@kernel("void(int64, int64)", is_entry=True)
def _first_wins(address, value):  # type: ignore[no-untyped-def]
    compare_exchange(address, 0, value)
