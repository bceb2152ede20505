"""All-to-all with counts that are read when the operation executes: NCCLX's AllToAllvDynamic (arXiv:2510.20171), on MPI's terms.

A router decides, token by token, which rank each goes to. With ``Alltoallv`` its counts must be known, on both sides, before the
call. Here they stay in the arrays in which the router leaves them, receivers give room instead of counts, and ranks find out in
the operation itself what moves. *Dispatch* takes segments to ranks, *combine* takes them back::

    rank 0 sends          splits 2 4 4 2        indices 0 1 | 0 2 3        blocklengths 2 | 3
      aabbbbccccdd  --->  rank 0, area of 0:  aabbbb......        rank 1, area of 0:  aa....ccccdd
                          combine:  aabbbb from rank 0, ....ccccdd from rank 1  --->  aabbbbccccdd

How the bytes are found is in :mod:`numba_kernels.alltoallv.plan`, how they travel in :mod:`ncclx_mpi.extensions.alltoallv_dynamic.on_host`,
and on GPUs in :mod:`ncclx_mpi.extensions.alltoallv_dynamic.device.execution`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclx_mpi import arguments, buffers, errors
from ncclx_mpi.api.dynamic_request import DynamicRequest
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.request import Request
from ncclx_mpi.arguments import Buffer as Resolved
from ncclx_mpi.arguments import VBuffer
from ncclx_mpi.extensions.alltoallv_dynamic.exchange import Exchange
from ncclx_mpi.extensions.alltoallv_dynamic.faults import NAME
from ncclx_mpi.extensions.alltoallv_dynamic.operands import NO_INTEGERS, Choice, Integers, Operands, Rooms
from ncclx_mpi.extensions.alltoallv_dynamic.operation import DynamicOperation
from ncclx_mpi.extensions.alltoallv_dynamic.recent import Recent
from ncclx_mpi.typing import Buffer, BufSpecV
from numba_kernels.alltoallv.layout import DENSE_SOURCE, DENSE_TARGET
from numba_kernels.layout import WORD

if TYPE_CHECKING:
    from ncclx_mpi.api.communicator import CommState

Resolve = Callable[..., Operands]
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
        Each array may be the host's or a GPU's. If all of all ranks are those of GPUs of one node, kernels read the metadata there and
        move the segments; else what is a GPU's is copied through the host. Either way the call comes after what the arrays' streams
        hold, and is complete when all has arrived.

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
        return _start(self._state, _dispatch, sendbuf, recvbuf, splits, indices, blocklengths, allsplits)

    def Alltoallv_dynamic_init(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        splits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        allsplits: Buffer | None = None,
        info: Info = INFO_NULL,
    ) -> DynamicRequest:
        """Persistent: as :meth:`Alltoallv_dynamic`; each ``Start`` reads `splits`, `indices` and `blocklengths` anew.

        Everything passed is borrowed while the request lives; between ``Wait`` and ``Start`` its contents are the program's. A
        start that ended in ERR_TRUNCATE leaves the request ready for the next one.
        """
        operands = _dispatch(self._state, sendbuf, recvbuf, splits, indices, blocklengths, allsplits)
        return DynamicRequest._refer(DynamicOperation(self._state, operands))

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
        return _start(self._state, _combine, sendbuf, recvbuf, allsplits, indices, blocklengths)

    def Alltoallv_dynamic_combine_init(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        allsplits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        info: Info = INFO_NULL,
    ) -> DynamicRequest:
        """Persistent: as :meth:`Alltoallv_dynamic_combine`; each ``Start`` reads `allsplits`, `indices` and `blocklengths` anew."""
        operands = _combine(self._state, sendbuf, recvbuf, allsplits, indices, blocklengths)
        return DynamicRequest._refer(DynamicOperation(self._state, operands))


_recent: Recent[Exchange | None] = Recent()


def _run(state: CommState, resolve: Resolve, *arguments: Any) -> None:
    """Carry a call out: on the devices if all ranks can, else by the host."""
    if state.native.slot < 0:
        _start(state, resolve, *arguments).Wait()
        return

    def resolved() -> Exchange | None:
        operands = resolve(state, *arguments)
        if operands.is_on_device and _run_on_devices(state, operands):
            return None
        return Exchange(state, operands.unowned())

    exchange = _recent.find((resolve, state.address, state.rank, state.size), arguments, resolved)
    if exchange is not None:
        exchange.run(state)


def _run_on_devices(state: CommState, operands: Operands) -> bool:
    """Carry a call out on the devices, if all ranks can."""
    from ncclx_mpi.extensions.alltoallv_dynamic.device import execution  # kernels are declared when the first device array comes

    return execution.carry_out(state.native, operands)


def _start(state: CommState, resolve: Resolve, *arguments: Any) -> Request:
    """Start a call on the host's way."""
    return Request._refer(Exchange(state, resolve(state, *arguments)).prepare(state)())


def _dispatch(
    state: CommState,
    sendbuf: BufSpecV,
    recvbuf: BufSpecV,
    splits: Buffer,
    indices: Buffer | None,
    blocklengths: Buffer | None,
    allsplits: Buffer | None,
) -> Operands:
    """Resolve the arguments of Alltoallv_dynamic."""
    size = state.size
    _check_buffer(sendbuf, "sendbuf")
    is_plain = arguments.has_counts(sendbuf)
    lengths = _integers(splits, "splits")
    if is_plain and (indices is not None or lengths.length != size):
        raise ValueError(
            f"{NAME}: a sendbuf with counts takes one split length for each of {size} ranks and no indices, got {lengths.length}"
            + (" and indices" if indices is not None else "")
        )
    send = _areas(arguments.send_vector(sendbuf, size)) if is_plain else _one_area(arguments.send(sendbuf), size)
    choice = _choice(size, lengths.length, indices, blocklengths, first=0, step=lengths.length // size)
    form = (DENSE_TARGET if indices is None else 0) | (DENSE_SOURCE if is_plain else 0)
    wanted = NO_INTEGERS if allsplits is None else _integers(allsplits, "allsplits", writable=True)
    if allsplits is not None and (wanted.kind != WORD or wanted.length != size * lengths.length):
        raise ValueError(f"{NAME}: allsplits must be int64 of shape ({size}, {lengths.length}), it has {wanted.length} integers")
    recv = _areas(arguments.recv_vector(recvbuf, size))
    return _checked(state, Operands(send, recv, lengths, 0, lengths.length, choice, form, wanted))


def _combine(
    state: CommState,
    sendbuf: BufSpecV,
    recvbuf: BufSpecV,
    allsplits: Buffer,
    indices: Buffer | None,
    blocklengths: Buffer | None,
) -> Operands:
    """Resolve the arguments of Alltoallv_dynamic_combine."""
    size = state.size
    _check_buffer(sendbuf, "sendbuf")
    _check_buffer(recvbuf, "recvbuf")
    lengths = _integers(allsplits, "allsplits")
    segments, rest = divmod(lengths.length, size)
    if rest:
        raise ValueError(f"{NAME}: allsplits must have a row for each of {size} ranks, it has {lengths.length} integers")
    choice = _choice(size, segments, indices, blocklengths, first=state.rank * (segments // size), step=0)
    send = _areas(arguments.send_vector(sendbuf, size))
    recv = (
        _areas(arguments.recv_vector(recvbuf, size)) if arguments.has_counts(recvbuf) else _one_area(arguments.recv(recvbuf), size)
    )
    form = DENSE_SOURCE if indices is None else 0
    return _checked(state, Operands(send, recv, lengths, segments, segments, choice, form))


def _checked(state: CommState, operands: Operands) -> Operands:
    """The same, if both buffers have one element size."""
    sent, taken = operands.send.itemsize, operands.recv.itemsize
    if sent != taken:
        errors.fail(
            errors.ERR_TYPE,
            f"rank {state.rank}: {NAME}: elements of {sent} bytes are sent, but there is room for elements of {taken} bytes; "
            "both buffers need one element size",
        )
    return operands


def _check_buffer(spec: Any, name: str) -> None:
    """Raise TypeError for what other calls take as in place."""
    if arguments.is_in_place(spec):
        raise TypeError(f"{NAME}: {name} must be a buffer of its own, it cannot be None or IN_PLACE")


def _choice(size: int, segments: int, indices: Any, blocklengths: Any, first: int, step: int) -> Choice:
    """Check what says which segments go where."""
    if (indices is None) != (blocklengths is None):
        raise ValueError(f"{NAME}: indices and blocklengths go together: give both or neither")
    if indices is None:
        if segments % size:
            raise ValueError(f"{NAME}: without indices, the {segments} segments must be a multiple of {size} ranks")
        return Choice(NO_INTEGERS, NO_INTEGERS, first, step, segments // size)
    blocks = _integers(blocklengths, "blocklengths")
    if blocks.length != size:
        raise ValueError(f"{NAME}: expecting {size} blocklengths, got {blocks.length}")
    return Choice(_integers(indices, "indices"), blocks)


def _integers(array: Any, name: str, *, writable: bool = False) -> Integers:
    """Resolve an array of integers that is read, or written, when the operation executes."""
    try:
        found = buffers.open_source(array, writable=writable, with_format=True)
    except TypeError:
        raise TypeError(f"{NAME}: {name} must be an array of integers, got {type(array).__name__}") from None
    kind = _KINDS.get((found.format or "").lstrip("@=<"))
    if kind is None:
        raise TypeError(f"{NAME}: {name} must be an array of integers, its elements are {found.format!r}")
    if found.nbytes and found.address % abs(kind):
        raise ValueError(f"{NAME}: {name} is not aligned to its elements; pass a copy of the array")
    return Integers(found.address, kind, found.nbytes // abs(kind), found.owner, found.lent)


def _areas(vector: VBuffer) -> Rooms:
    """Room for each peer, as a vector form gives it."""
    itemsize = _element(vector)
    addresses = [vector.address + displ * itemsize for displ in vector.displs]
    return Rooms(vector.counts, addresses, itemsize, vector.owner, vector.device)


def _one_area(buffer: Resolved, size: int) -> Rooms:
    """One buffer for all peers."""
    return Rooms([buffer.count] * size, [buffer.address] * size, _element(buffer), buffer.owner, buffer.device)


def _element(buffer: Resolved | VBuffer) -> int:
    """Bytes of an element, which must be contiguous."""
    if not buffer.contiguous:
        errors.fail(errors.ERR_TYPE, f"{NAME}: {buffer.layout.name or 'this derived datatype'} has gaps; use a contiguous datatype")
    return buffer.itemsize
