"""All-to-all with counts that are read when the operation executes: NCCLX's AllToAllvDynamic (arXiv:2510.20171), on MPI's terms.

A router decides, token by token, which rank each goes to. With ``Alltoallv`` its counts must be known, on both sides, before the
call. Here they stay in the arrays in which the router leaves them, receivers give room instead of counts, and ranks find out in
the operation itself what moves. *Dispatch* takes segments to ranks, *combine* takes them back::

    rank 0 sends          splits 2 4 4 2        indices 0 1 | 0 2 3        blocklengths 2 | 3
      aabbbbccccdd  --->  rank 0, area of 0:  aabbbb......        rank 1, area of 0:  aa....ccccdd
                          combine:  aabbbb from rank 0, ....ccccdd from rank 1  --->  aabbbbccccdd

How the bytes are found is in :mod:`numba_kernels.alltoallv.plan`, how they travel in :mod:`ncclx_mpi.collectives.alltoall.dynamic`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ncclx_mpi import buffers, collectives, errors
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.operations import Collection, Persistent
from ncclx_mpi.api.request import Prequest, Request
from ncclx_mpi.buffers import Buffer as Resolved
from ncclx_mpi.buffers import VBuffer
from ncclx_mpi.collectives.alltoall import dynamic
from ncclx_mpi.collectives.alltoall.slot_large import ROW
from ncclx_mpi.extensions.mirror import Mirror, Range
from ncclx_mpi.extensions.recent import Recent
from ncclx_mpi.typing import Buffer, BufSpecV
from numba_kernels.alltoallv import layout
from numba_kernels.alltoallv.layout import CALL, DENSE_SOURCE, DENSE_TARGET, OFFER, PAIR, RUN
from numba_kernels.jit import entry as _entry
from numba_kernels.layout import WORD

if TYPE_CHECKING:
    from ncclx_mpi.api.communicator import CommState

entry = functools.cache(_entry)

_NAME = "alltoallv_dynamic"
_KINDS = {"b": 1, "h": 2, "i": 4, "l": 8, "q": 8, "B": -1, "H": -2, "I": -4, "L": -8, "Q": -8}
"""Buffer formats of integers: bytes of one, negative for unsigned ones."""


class DynamicAlltoall:
    """Methods of Intracomm: all-to-all with counts that are read when it executes."""

    __slots__ = ()
    _state: CommState

    def Alltoallv_dynamic(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        splits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        allsplits: Buffer | None = None,
    ) -> None:
        """Send each rank its segments of a buffer, whose lengths are read when the operation executes.

        The send buffer is cut into ``n`` segments by `splits`; ``n`` is the same on all ranks. Which segments go to which rank,
        and where they arrive, depends on the form:

        *plain*: `sendbuf` with counts, ``[array, capacities]`` or ``[array, (capacities, displacements)]``, and ``n`` the number
        of ranks. Segment ``r`` begins at displacement ``r`` and goes to rank ``r``. It arrives at the begin of the area of its
        sender.

        *split*: `sendbuf` without counts, no `indices`, and ``n`` is ``k`` times the number of ranks. Segments stand one
        after another; rank ``r`` gets segments ``r * k`` to ``(r + 1) * k - 1``, one after another from the begin of the area of
        their sender.

        *indices*: rank ``r`` gets the segments listed in the ``r``-th block of `indices`. They arrive at the offset that they
        have in the send buffer, so that the area of the sender has a hole wherever a segment is missing; holes keep what was in
        them. A segment may go to several ranks. Within a block neither order nor repetition matters.

        Parameters
        ----------
        sendbuf
            Elements of a contiguous datatype, in one of the forms above.
        recvbuf
            ``[array, capacities]`` or ``[array, (capacities, displacements)]``, one for each source: the most elements that may
            arrive from it, and where its area begins; an array alone has equal areas. Of the same element size as `sendbuf`, and
            apart from it.
        splits : integers, shape (n,)
            Length of each segment, in elements of `sendbuf`; zero is fine.
        indices : integers, shape (m,), optional
            Numbers of segments, the block of rank 0 first; ``m`` may differ between ranks, and the blocks need not use all of it.
        blocklengths : integers, shape (ranks,), optional
            How many of the indices belong to each rank. Given if and only if `indices` is.
        allsplits : int64, shape (ranks, n), optional
            Receives the split lengths of all ranks: what is in the areas, and what :meth:`Alltoallv_dynamic_combine` takes.

        Raises
        ------
        Exception
            ERR_TRUNCATE: segments do not fit where they should go or come from, or a split length, an index or a block length is
            out of range. The pair of ranks that it concerns has moved nothing, all others everything; the error says which pair,
            how many elements it needs and how many there is room for. Both of its ranks raise it. The communicator stays usable.
            ERR_TYPE: elements of different sizes, or a datatype with gaps. ERR_PROC_FAILED: a rank died.
        TypeError, ValueError, BufferError
            What is passed cannot be used, on this rank: nothing was sent.

        Notes
        -----
        Each array may be the host's or a GPU's. Those of a GPU are copied through the host, after what their stream holds, and the
        call is complete when all has arrived.

        Metadata (`splits`, `indices`, `blocklengths`) are arrays of any integer type, aligned. They are read when the operation
        executes: in this call, or whenever a persistent request is started, not when it was made. Ranks that pass different ``n``
        get ERR_TRUNCATE, and the communicator is broken then.

        Time: one alltoall of 56 + 8 n bytes, then one alltoallv of what is really there. Segments that are neighbours at the sender
        travel as one piece.
        """
        _run(self._state, _dispatch, sendbuf, recvbuf, splits, indices, blocklengths, allsplits)

    def Ialltoallv_dynamic(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        splits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        allsplits: Buffer | None = None,
    ) -> Request:
        """Nonblocking: as :meth:`Alltoallv_dynamic`; everything passed is borrowed until the request is complete."""
        exchange = _dispatch(self._state, sendbuf, recvbuf, splits, indices, blocklengths, allsplits)
        return Request._refer(exchange.prepare(self._state)())

    def Alltoallv_dynamic_init(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        splits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        allsplits: Buffer | None = None,
        info: Info = INFO_NULL,
    ) -> Prequest:
        """Persistent: as :meth:`Alltoallv_dynamic`; each ``Start`` reads `splits`, `indices` and `blocklengths` anew.

        Everything passed is borrowed while the request lives; between ``Wait`` and ``Start`` its contents are the program's. A
        start that ended in ERR_TRUNCATE leaves the request ready for the next one.
        """
        exchange = _dispatch(self._state, sendbuf, recvbuf, splits, indices, blocklengths, allsplits)
        return Prequest._refer(Persistent(exchange.prepare(self._state)))

    def Alltoallv_dynamic_combine(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        allsplits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
    ) -> None:
        """Send segments back to the ranks that they came from: the inverse of :meth:`Alltoallv_dynamic` but for *plain*.

        Every segment goes from where dispatch put it to where dispatch took it from, so that dispatch and combine give back the
        input where each segment went to one rank. (The inverse of the *plain* form is the plain form, with the column of this
        rank in `allsplits` as its `splits`.)

        Parameters
        ----------
        sendbuf
            The areas that dispatch filled, as it had them in its `recvbuf`: ``[array, capacities]``, ``[array, (capacities,
            displacements)]``, or an array of equal areas.
        recvbuf
            An array alone: all ranks' segments return to it, at the offsets that they had in dispatch's `sendbuf`. With
            capacities, ``[array, (capacities, displacements)]``: each rank's segments return to an area of their own, at those
            offsets in it, which is for segments that several ranks had.
        allsplits : integers, shape (ranks, n)
            The split lengths of all ranks, as dispatch returned them.
        indices : integers, shape (m,), optional
            Numbers, in the rows of `allsplits`, of the segments that this rank sends back: first those for rank 0. Without them,
            the segments ``r * k`` to ``(r + 1) * k - 1`` of each row, for this rank ``r`` and ``k = n / ranks``: what the form
            *split* brought.
        blocklengths : integers, shape (ranks,), optional
            How many of the indices belong to each rank. Given if and only if `indices` is.

        Raises
        ------
        Exception
            As :meth:`Alltoallv_dynamic`.
        """
        _run(self._state, _combine, sendbuf, recvbuf, allsplits, indices, blocklengths)

    def Ialltoallv_dynamic_combine(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        allsplits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
    ) -> Request:
        """Nonblocking: as :meth:`Alltoallv_dynamic_combine`; everything passed is borrowed until the request is complete."""
        exchange = _combine(self._state, sendbuf, recvbuf, allsplits, indices, blocklengths)
        return Request._refer(exchange.prepare(self._state)())

    def Alltoallv_dynamic_combine_init(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        allsplits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        info: Info = INFO_NULL,
    ) -> Prequest:
        """Persistent: as :meth:`Alltoallv_dynamic_combine`; each ``Start`` reads `allsplits`, `indices` and `blocklengths` anew."""
        exchange = _combine(self._state, sendbuf, recvbuf, allsplits, indices, blocklengths)
        return Prequest._refer(Persistent(exchange.prepare(self._state)))


class _Integers(NamedTuple):
    """An array of integers of the caller, or its mirror; `kind` as in :func:`numba_kernels.alltoallv.plan.integer_at`."""

    address: int
    kind: int
    length: int
    owner: Any
    mirror: Mirror | None = None

    def ranges(self) -> list[Range]:
        """All of it, in a GPU's memory."""
        return [] if self.mirror is None else [(self.address - self.mirror.shift, self.length * abs(self.kind))]


_NO_INTEGERS = _Integers(0, WORD, 0, None)


class _Side(NamedTuple):
    """Room for each peer in one buffer, or in its mirror: elements, and address of the begin."""

    capacities: list[int]
    addresses: list[int]
    itemsize: int
    owner: Any
    mirror: Mirror | None


class _Choice(NamedTuple):
    """Which segments go to each peer: lists of indices, or `taken` from ``first + peer * step`` on."""

    indices: _Integers
    blocklengths: _Integers
    first: int = 0
    step: int = 0
    taken: int = 0


class Exchange:
    """One call on resolved arguments: the words that compiled code reads, and what keeps all memory alive.

    Parameters
    ----------
    state
        The communicator.
    send, recv
        Room for each peer.
    splits, row_step
        Split lengths; those for peer ``p`` begin at ``p * row_step``.
    segments
        How many split lengths a peer has.
    choice
        Which segments go to each peer.
    form
        ``DENSE_SOURCE``, ``DENSE_TARGET``.
    all_splits
        Where the splits of all ranks go.
    """

    def __init__(
        self,
        state: CommState,
        send: _Side,
        recv: _Side,
        splits: _Integers,
        row_step: int,
        segments: int,
        choice: _Choice,
        form: int,
        all_splits: _Integers = _NO_INTEGERS,
    ) -> None:
        if send.itemsize != recv.itemsize:
            errors.fail(
                errors.ERR_TYPE,
                f"rank {state.rank}: {_NAME}: elements of {send.itemsize} bytes are sent, but there is room for elements of "
                f"{recv.itemsize} bytes; both buffers need one element size",
            )
        size = state.size
        self.rank, self.size = state.rank, size
        self._send, self._recv, self._all_splits = send, recv, all_splits
        self._metadata: list[_Integers] = [splits, choice.indices, choice.blocklengths]
        self.offer_bytes = layout.offer_bytes(segments)
        tables = layout.tables(size, segments) | {"rows": size * ROW.total}
        self._words = np.empty((CALL.total + sum(tables.values())) // WORD, np.int64)
        self._words[: CALL.total // WORD] = 0
        self.address = at = self._words.ctypes.data
        at += CALL.total
        for name, nbytes in tables.items():
            self.set_word(name, at)
            at += nbytes
        self._table("send_places", 2 * size)[:] = [*send.capacities, *send.addresses]
        self._table("recv_places", 2 * size)[:] = [*recv.capacities, *recv.addresses]
        for name, value in (
            ("rank", self.rank), ("size", size), ("segments", segments), ("form", form), ("itemsize", send.itemsize),
            ("splits", splits.address), ("splits_kind", splits.kind), ("row_step", row_step),
            ("most_runs", layout.most_runs(segments)),
            ("indices", choice.indices.address), ("indices_kind", choice.indices.kind), ("most_indices", choice.indices.length),
            ("blocklengths", choice.blocklengths.address), ("blocklengths_kind", choice.blocklengths.kind),
            ("first", choice.first), ("first_step", choice.step), ("taken", choice.taken), ("all_splits", all_splits.address),
        ):  # fmt: skip
            self.set_word(name, value)

    def __del__(self) -> None:
        if hasattr(self, "address") and self.word("packed"):
            entry(dynamic.give_room_back)(self.address)

    def word(self, field: str) -> int:
        """A word of ``CALL``."""
        return int(self._words[getattr(CALL, field) // WORD])

    def set_word(self, field: str, value: int) -> None:
        """Set a word of ``CALL``."""
        self._words[getattr(CALL, field) // WORD] = value

    def _table(self, name: str, words: int) -> npt.NDArray[np.int64]:
        """A table that a word of ``CALL`` refers to."""
        first = (self.word(name) - self.address) // WORD
        return self._words[first : first + words]

    def prepare(self, state: CommState) -> Callable[[], Collection]:
        """Return what starts it, as often as it is complete."""
        collective, steps = dynamic.prepare(state.native, self.address, self.word("offers"), self.word("answers"), self.offer_bytes)
        collective.owner = self
        self.set_word("steps", steps)

        def begin() -> Collection:
            if not collective.running:  # else the start below says what is wrong
                self.read()
            collective.start()
            return Collection(collective, self, self.finish)

        return begin

    def unowned(self) -> Exchange:
        """Leave it to the caller to keep all arrays alive."""
        self._send, self._recv = self._send._replace(owner=None), self._recv._replace(owner=None)
        self._all_splits = self._all_splits._replace(owner=None)
        self._metadata = [integers._replace(owner=None) for integers in self._metadata]
        return self

    def run(self, state: CommState) -> None:
        """Carry it out on the slot of the communicator."""
        if self.is_on_device:
            self.read()
        collectives.check(state.native, entry(dynamic.exchange)(state.address, self.address), _NAME)
        self.finish()

    @property
    def is_on_device(self) -> bool:
        """Whether some of its memory is a GPU's."""
        mirrors = [self._send.mirror, self._recv.mirror, self._all_splits.mirror, *(each.mirror for each in self._metadata)]
        return any(mirror is not None for mirror in mirrors)

    def read(self) -> None:
        """Read the metadata, and what they say will be sent of a buffer on a GPU."""
        for integers in self._metadata:
            if integers.mirror is not None:
                integers.mirror.load(integers.ranges())
        entry(dynamic.offer)(self.address)
        mirror = self._send.mirror
        if mirror is not None:
            offers = self._table("offers", self.size * self.offer_bytes // WORD).reshape(self.size, -1)
            lengths = offers[:, OFFER.total // WORD :][:, : self.word("segments")]
            used: dict[int, int] = {}
            for peer in np.flatnonzero(offers[:, OFFER.fault // WORD] == layout.FINE).tolist():
                elements = min(int(lengths[peer].sum()), self._send.capacities[peer])
                address = self._send.addresses[peer] - mirror.shift
                used[address] = max(used.get(address, 0), elements * self._send.itemsize)
            mirror.load(used.items())

    def finish(self) -> None:
        """Copy what arrived for buffers on a GPU to them, then raise what went wrong with pairs of this rank, if anything did."""
        if self._recv.mirror is not None:
            self._recv.mirror.store(self._landed(self._recv.mirror.shift))
        if self._all_splits.mirror is not None:
            self._all_splits.mirror.store(self._all_splits.ranges())
        if self.word("faults"):
            self._raise_fault()

    def _landed(self, shift: int) -> list[Range]:
        """What the runs of all sources have filled, in a GPU's memory."""
        pairs = self._table("incoming", self.size * PAIR.total // WORD).reshape(self.size, -1)
        most_runs, width = self.word("most_runs"), RUN.total // WORD
        runs = self._table("incoming_runs", self.size * most_runs * width).reshape(self.size, most_runs, width)
        return [
            (int(pair[PAIR.target // WORD] + run[RUN.target // WORD]) - shift, int(run[RUN.nbytes // WORD]))
            for pair, rows in zip(pairs, runs, strict=True)
            for run in rows[: pair[PAIR.runs // WORD]]
        ]

    def _raise_fault(self) -> NoReturn:
        found = [(source, target, pair) for source, target, pair in self._pairs() if pair[PAIR.fault // WORD] != layout.FINE]
        source, target, pair = found[0]
        more = f" (and {len(found) - 1} more such pairs)" if len(found) > 1 else ""
        fault, segment, needed, limit = (pair[getattr(PAIR, field) // WORD] for field in ("fault", "segment", "needed", "limit"))
        errors.fail(
            errors.ERR_TYPE if fault == layout.ITEM else errors.ERR_TRUNCATE,
            f"rank {self.rank}: {_NAME}: nothing was moved from rank {source} to rank {target}{more}: "
            + _TEXTS[fault].format(source=source, target=target, segment=segment, needed=needed, limit=limit),
        )

    def _pairs(self) -> list[tuple[int, int, list[int]]]:
        """Source, destination and words of every pair with this rank."""
        found = []
        for name in ("outgoing", "incoming"):
            rows = self._table(name, self.size * PAIR.total // WORD).reshape(self.size, -1).tolist()
            for peer, row in enumerate(rows):
                if name == "outgoing":
                    found.append((self.rank, peer, row))
                elif peer != self.rank:
                    found.append((peer, self.rank, row))
        return found


_TEXTS = {
    layout.SPLIT: "split length {segment} of rank {source} is {needed}; it must be 0 to {limit}",
    layout.INDEX: "index {segment} of rank {source} is {needed}, but there are {limit} segments, numbered from 0",
    layout.BLOCK: "block length {segment} of rank {source} is {needed}, but {limit} indices are left",
    layout.SEND: "its segments reach to element {needed}, but the send buffer of rank {source} has {limit} there; "
    "the split lengths are too large",
    layout.RECEIVE: "it needs room for {needed} elements, but rank {target} has a capacity of {limit} for rank {source}; "
    "make the capacity larger",
    layout.ITEM: "elements of {needed} bytes are sent, but rank {target} has room for elements of {limit} bytes",
}


_recent: Recent[Exchange] = Recent()


def _run(state: CommState, resolve: Callable[..., Exchange], *arguments: Any) -> None:
    """Carry a call out."""
    if state.native.slot < 0:
        Request._refer(resolve(state, *arguments).prepare(state)()).Wait()
        return

    def resolved() -> Exchange:
        return resolve(state, *arguments).unowned()

    _recent.find((resolve, state.address, state.rank, state.size), arguments, resolved).run(state)


def _dispatch(
    state: CommState,
    sendbuf: BufSpecV,
    recvbuf: BufSpecV,
    splits: Buffer,
    indices: Buffer | None,
    blocklengths: Buffer | None,
    allsplits: Buffer | None,
) -> Exchange:
    """Resolve the arguments of Alltoallv_dynamic."""
    size = state.size
    _check_buffer(sendbuf, "sendbuf")
    is_plain = buffers.has_counts(sendbuf)
    lengths = _integers(splits, "splits")
    if is_plain and (indices is not None or lengths.length != size):
        raise ValueError(
            f"{_NAME}: a sendbuf with counts takes one split length for each of {size} ranks and no indices, got {lengths.length}"
            + (" and indices" if indices is not None else "")
        )
    send = _areas(buffers.send_vector(sendbuf, size)) if is_plain else _one_area(buffers.send(sendbuf), size)
    choice = _choice(size, lengths.length, indices, blocklengths, first=0, step=lengths.length // size)
    form = (DENSE_TARGET if indices is None else 0) | (DENSE_SOURCE if is_plain else 0)
    wanted = _NO_INTEGERS if allsplits is None else _integers(allsplits, "allsplits", writable=True)
    if allsplits is not None and (wanted.kind != WORD or wanted.length != size * lengths.length):
        raise ValueError(f"{_NAME}: allsplits must be int64 of shape ({size}, {lengths.length}), it has {wanted.length} integers")
    recv = _areas(buffers.recv_vector(recvbuf, size))
    return Exchange(state, send, recv, lengths, 0, lengths.length, choice, form, wanted)


def _combine(
    state: CommState,
    sendbuf: BufSpecV,
    recvbuf: BufSpecV,
    allsplits: Buffer,
    indices: Buffer | None,
    blocklengths: Buffer | None,
) -> Exchange:
    """Resolve the arguments of Alltoallv_dynamic_combine."""
    size = state.size
    _check_buffer(sendbuf, "sendbuf")
    _check_buffer(recvbuf, "recvbuf")
    lengths = _integers(allsplits, "allsplits")
    segments, rest = divmod(lengths.length, size)
    if rest:
        raise ValueError(f"{_NAME}: allsplits must have a row for each of {size} ranks, it has {lengths.length} integers")
    choice = _choice(size, segments, indices, blocklengths, first=state.rank * (segments // size), step=0)
    send = _areas(buffers.send_vector(sendbuf, size))
    recv = _areas(buffers.recv_vector(recvbuf, size)) if buffers.has_counts(recvbuf) else _one_area(buffers.recv(recvbuf), size)
    form = DENSE_SOURCE if indices is None else 0
    return Exchange(state, send, recv, lengths, segments, segments, choice, form)


def _check_buffer(spec: Any, name: str) -> None:
    """Raise TypeError for what other calls take as in place."""
    if buffers.is_in_place(spec):
        raise TypeError(f"{_NAME}: {name} must be a buffer of its own, it cannot be None or IN_PLACE")


def _choice(size: int, segments: int, indices: Any, blocklengths: Any, first: int, step: int) -> _Choice:
    """Check what says which segments go where."""
    if (indices is None) != (blocklengths is None):
        raise ValueError(f"{_NAME}: indices and blocklengths go together: give both or neither")
    if indices is None:
        if segments % size:
            raise ValueError(f"{_NAME}: without indices, the {segments} segments must be a multiple of {size} ranks")
        return _Choice(_NO_INTEGERS, _NO_INTEGERS, first, step, segments // size)
    blocks = _integers(blocklengths, "blocklengths")
    if blocks.length != size:
        raise ValueError(f"{_NAME}: expecting {size} blocklengths, got {blocks.length}")
    return _Choice(_integers(indices, "indices"), blocks)


def _integers(array: Any, name: str, *, writable: bool = False) -> _Integers:
    """Resolve an array of integers that is read, or written, when the operation executes."""
    try:
        found = buffers.open_source(array, writable=writable, with_format=True)
    except TypeError:
        raise TypeError(f"{_NAME}: {name} must be an array of integers, got {type(array).__name__}") from None
    kind = _KINDS.get((found.format or "").lstrip("@=<"))
    if kind is None:
        raise TypeError(f"{_NAME}: {name} must be an array of integers, its elements are {found.format!r}")
    if found.nbytes and found.address % abs(kind):
        raise ValueError(f"{_NAME}: {name} is not aligned to its elements; pass a copy of the array")
    address, mirror = found.address, None
    if found.lent is not None:
        mirror = Mirror(found.lent, found.address, found.nbytes)
        address += mirror.shift
    return _Integers(address, kind, found.nbytes // abs(kind), found.owner, mirror)


def _areas(vector: VBuffer) -> _Side:
    """Room for each peer, as a vector form gives it."""
    itemsize = _element(vector)
    addresses = [vector.address + displ * itemsize for displ in vector.displs]
    return _side(vector.counts, addresses, itemsize, vector)


def _one_area(buffer: Resolved, size: int) -> _Side:
    """One buffer for all peers."""
    return _side([buffer.count] * size, [buffer.address] * size, _element(buffer), buffer)


def _side(capacities: list[int], addresses: list[int], itemsize: int, buffer: Resolved | VBuffer) -> _Side:
    """Room for each peer in a buffer; a mirror stands for one on a GPU."""
    if buffer.device is None:
        return _Side(capacities, addresses, itemsize, buffer.owner, None)
    first = min(addresses)
    end = max(address + capacity * itemsize for address, capacity in zip(addresses, capacities, strict=True))
    mirror = Mirror(buffer.device, first, end - first)
    return _Side(capacities, [address + mirror.shift for address in addresses], itemsize, buffer.owner, mirror)


def _element(buffer: Resolved | VBuffer) -> int:
    """Bytes of an element, which must be contiguous."""
    if not buffer.contiguous:
        errors.fail(
            errors.ERR_TYPE, f"{_NAME}: {buffer.layout.name or 'this derived datatype'} has gaps; use a contiguous datatype"
        )
    return buffer.itemsize
