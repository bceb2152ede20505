"""What calls of Alltoallv_dynamic pass, checked and carried out: imported by programs that make one (:mod:`ncclx_mpi.api.comm_dynamic`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclx_mpi import arguments, buffers, errors
from ncclx_mpi.api.dynamic_request import DynamicRequest
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

_recent: Recent[Exchange | None] = Recent()


def run(state: CommState, resolve: Resolve, *arguments: Any) -> None:
    """Carry a call out: on the devices if all ranks can, else by the host."""
    if state.native.slot < 0:
        start(state, resolve, *arguments).Wait()
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


def start(state: CommState, resolve: Resolve, *arguments: Any) -> Request:
    """Start a call on the host's way."""
    return Request._refer(Exchange(state, resolve(state, *arguments)).prepare(state)())


def persistent(state: CommState, operands: Operands) -> DynamicRequest:
    """Make a call that can be started again and again."""
    return DynamicRequest._refer(DynamicOperation(state, operands))


def dispatch(
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


def combine(
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
