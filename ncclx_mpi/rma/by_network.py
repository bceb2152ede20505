"""Windows into which the network itself combines integers of eight bytes: what a program asks for by the hint ``disable_shm_accumulate``.

A network's atomic operations are atomic among themselves, not with those of processors. So all ranks have the network combine such words,
into their own memory, too, and no two of them may share memory. What the network has no operation for goes the usual way, under the
target's guard: a program that says nothing of ``accumulate_ops`` promises not to do both to one word at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ncclx_mpi.buffers.memory import Words as Numbers
from ncclx_mpi.buffers.memory import view
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import REQUEST
from ncclx_mpi.p2p.remote_memory import Exposed, Opened, functions_of, start_combine
from ncclx_mpi.rma.accumulate import Near, Reduction, element_of
from ncclx_mpi.rma.far import Far, Fetch, fail_lost
from ncclx_mpi.rma.layout import NETWORK, Words
from ncclx_mpi.rma.reach import Landing, Place
from numba_kernels.jit import entry
from numba_kernels.late_numpy import np
from numba_kernels.layout import WORD, zeroed
from numba_kernels.rows import NamedTuple
from transports.base import Transport
from transports.messages import COMPARE_AND_SWAP, READ, SWAP


class WordOperations(NamedTuple):
    """What a network's operations are to MPI.

    Attributes
    ----------
    tables
        Addresses of tables of reduction functions, REPLACE and NO_OP among them, each with the network's number of what it does.
    numbers
        Numbers of reductions (:class:`ncclx_mpi.rma.accumulate.Reduction`) of such elements, with the same.
    kinds
        Kinds of elements of predefined layouts that are such words.
    types
        Their type numbers in compiled code.
    """

    tables: Mapping[int, int]
    numbers: Mapping[int, int]
    kinds: Collection[str]
    types: Collection[int]


class OwnMemory:
    """The memory of this rank in a window, as the network reaches it: peers, and this rank through the network.

    Parameters
    ----------
    comm
        The window's communicator.
    address, nbytes
        Where the memory is.

    Attributes
    ----------
    exposed
        To peers, by what transport; None where it has no bytes, or is not reached.
    opened
        To this rank.
    is_reached
        Whether all who may access it reach it so: the ranks are on as many nodes, and one network leads to all of them.
    """

    def __init__(self, comm: NativeComm, address: int, nbytes: int) -> None:
        self.exposed: tuple[Transport, Exposed] | None = None
        self.opened: Opened | None = None
        transport = _network_of(comm)
        self.is_reached = transport is not None
        if transport is None or not nbytes:
            return
        exposed = Exposed(comm.engine, transport, address, nbytes)
        if exposed.key:
            self.exposed = transport, exposed
            self.opened = Opened(comm, comm.rank, transport, address, exposed.key)
        self.is_reached = self.opened is not None and self.opened.handle != 0

    def close(self) -> None:
        """Reach it by the network no more; peers may still."""
        if self.opened is not None:
            self.opened.shut("Win.Free")

    def conceal(self) -> None:
        """Let peers reach it no more, where nobody serves far ranks, who does that in the end."""
        if self.exposed is not None:
            self.exposed[1].conceal()


def _network_of(comm: NativeComm) -> Transport | None:
    """The transport that leads from this rank to all others of a communicator, and combines words there; None if there is none."""
    engine = comm.engine
    others = [world for rank, world in enumerate(comm.world_ranks) if rank != comm.rank]
    if not others or any(world >= engine.size or engine.is_near(world) for world in others):
        return None
    (first, *more) = {id(way): way for way in map(engine.way_to, others)}.values()
    functions = first.remote_memory
    return first if not more and functions is not None and functions.combine else None


class ByNetwork:
    """The window memory of a rank, whose words the network itself combines; everything else goes another way.

    Parameters
    ----------
    comm, rank
        The window's communicator, and the target in it.
    words
        Of the window.
    way
        The other way.
    opened
        The memory, if it is that of this rank; a far one is opened with the first access.
    operations
        What the network does.
    """

    def __init__(
        self, comm: NativeComm, rank: int, words: Words, way: Near | Far, opened: Opened | None, operations: WordOperations
    ) -> None:
        self._comm = comm
        self._rank = rank
        self._way = way
        self._opened = opened
        self._operations = operations
        self._words, address = zeroed(NETWORK.total)
        words.set_of(rank, "network", address)

    def write(self, place: Place, packed: int, owner: Any = None) -> None:
        """Copy packed bytes to elements."""
        self._way.write(place, packed, owner)

    def read(self, place: Place, landing: Landing) -> Fetch | None:
        """Copy elements to this rank, or start to."""
        return self._way.read(place, landing)

    def combine(self, place: Place, reduction: Reduction | None, origin: int, landing: Landing | None = None) -> Fetch | None:
        """Combine packed elements at address `origin` into the memory, None leaves it as it is; copy what it held before to this rank."""
        operation = READ if reduction is None else self._operations.numbers.get(reduction.number)
        if operation is None or not self._combine(place, operation, origin, landing):
            return self._way.combine(place, reduction, origin, landing)
        return None

    def replace(self, place: Place, origin: int, landing: Landing | None = None) -> Fetch | None:
        """Write packed elements at address `origin` to the memory; copy what it held before to this rank."""
        return None if self._combine(place, SWAP, origin, landing) else self._way.replace(place, origin, landing)

    def swap_if_same(self, place: Place, origin: int, compare: int, landing: Landing) -> Fetch | None:
        """Write one element to the memory if it holds the bytes at `compare`; copy what it held before to this rank."""
        if self._combine(place, COMPARE_AND_SWAP, compare, landing, origin):
            return None
        return self._way.swap_if_same(place, origin, compare, landing)

    def _combine(self, place: Place, operation: int, operands: int, landing: Landing | None, swaps: int = 0) -> bool:
        """Have the network do it to each element, with operands at an address, one after the other; whether they are such words."""
        element = element_of(place.layout)
        if element is None or element.kind not in self._operations.kinds:
            return False
        opened = self._reached()
        starts = list(_starts(place))
        if any((opened.address + start) % WORD for start in starts):
            return False
        none = np.zeros(len(starts), np.int64)
        given, other = none if operation == READ else _words_at(operands, place), _words_at(swaps, place) if swaps else none
        held = np.empty_like(none) if landing is None else _words_at(landing[0], place)
        for index, start in enumerate(starts):
            held[index] = self._do(opened, start, operation, int(given[index]), int(other[index]))
        if landing is not None:
            landing[2](place.nbytes)
        return True

    def _reached(self) -> Opened:
        """The memory, which compiled code reaches from now on; what was asked of it before is done."""
        if isinstance(self._way, Far):
            self._way.end_changes()
            self._opened = self._opened or self._way.opened()
        opened = self._opened
        assert opened is not None
        if not self._words[NETWORK.handle // WORD]:
            functions = functions_of(opened.transport)
            for field, value in (
                ("base", opened.address),
                ("peer", opened.peer),
                ("combine", functions.combine),
                ("get", functions.get),
                ("handle", opened.handle),
            ):
                self._words[getattr(NETWORK, field) // WORD] = value
        return opened

    def _do(self, opened: Opened, start: int, operation: int, operand: int, swap: int) -> int:
        """Do an operation on one word, and return what was there."""
        engine, functions, what = self._comm.engine, functions_of(opened.transport), f"an access to the window of rank {self._rank}"
        function, there = functions.get if operation == READ else functions.combine, opened.address + start
        request = int(
            entry(start_combine)(
                self._comm.address, function, opened.peer, self._rank, operation, operand, swap, there, opened.handle
            )
        )
        try:
            engine.await_request(request, what)
            held, error = view(request + REQUEST.passed, WORD).view(np.int64)[0], engine.result(request).error
        except BaseException:
            engine.withdraw(request)
            raise
        engine.free(request)
        if error:
            fail_lost(self._comm, self._rank, what)
        return int(held)


def _starts(place: Place) -> Iterator[int]:
    """First byte of each word of elements that are made of words, in packing order."""
    for layout, start, number in place.layout.runs(place.start, place.number):
        for element in range(number):
            for offset, nbytes in layout.blocks.tolist():
                first = start + element * layout.extent + offset
                yield from range(first, first + nbytes, WORD)


def _words_at(address: int, place: Place) -> Numbers:
    """As many words as elements have when packed, at an address."""
    return view(address, place.nbytes).view(np.int64)
