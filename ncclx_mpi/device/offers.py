"""What a rank brings to a collective on the devices: which bytes of which arrays it gives and gets.

No offer is made for what the devices are not asked to do: arrays that are not contiguous or not on one GPU, nothing to move,
operations and element types without a kernel, and what would overwrite in place what is still to be read.
"""

from __future__ import annotations

from collections.abc import Callable

from ncclx_mpi.arguments import Buffer, VBuffer, WBuffer
from ncclx_mpi.collectives import shm_oneshot
from numba_kernels.cuda.driver import Driver, Memory
from numba_kernels.cuda.limits import is_supported
from numba_kernels.layout import words
from numba_kernels.rows import NamedTuple

ROW = words("OfferRow", "send send_bytes recv recv_bytes")
"""A :class:`Row` in words."""

Operand = Buffer | VBuffer | WBuffer | None
"""What a rank gives or gets; None in place, or where it does not matter. Equal blocks for all ranks are one buffer."""
Operands = Buffer | VBuffer | None


class Row(NamedTuple):
    """What a rank sends to one rank, and receives from it: offsets in its arrays, and bytes."""

    send: int = 0
    send_bytes: int = 0
    recv: int = 0
    recv_bytes: int = 0


class Array(NamedTuple):
    """An array in a GPU's memory: its address, and what the driver says of that."""

    address: int
    memory: Memory


class Task(NamedTuple):
    """What a collective does with a rank's arrays.

    Attributes
    ----------
    kind, root, nbytes
        What it is signed with, as on the host path.
    rows
        One for each rank. Of a reduction the first one says what the rank contributes and gets, the others nothing.
    operation
        Names of operation and element type of a reduction, empty for others.
    itemsize
        Bytes of an element of a reduction.
    """

    kind: int
    root: int
    nbytes: int
    rows: tuple[Row, ...]
    operation: tuple[str, ...] = ()
    itemsize: int = 1


class Offer(NamedTuple):
    """One rank's part.

    Attributes
    ----------
    driver, device, streams
        The driver and the GPU that its arrays are on, and the streams in which they are used.
    send, recv
        Its arrays, None for one that is not there. In place, what is read is in `recv`, and `send` is None.
    task
        What is done with them.
    """

    driver: Driver
    device: int
    streams: tuple[int, ...]
    send: Array | None
    recv: Array | None
    task: Task


def offer(rank: int, size: int, name: str, sent: Operand, received: Operand, root: int, op: str | None) -> Offer | None:
    """The offer of `rank` for collective `name` of :mod:`ncclx_mpi.collectives`; None if there is none to be made.

    `op` is the name of a predefined operation, None for others.
    """
    if isinstance(sent, WBuffer) or isinstance(received, WBuffer):
        return None
    operands = [operand for operand in (sent, received) if operand is not None]
    memories = [operand.device for operand in operands if operand.device is not None and operand.contiguous]
    if len(memories) < len(operands) or len({memory.device for memory in memories}) != 1:
        return None
    if name in _REDUCTIONS:
        task = _reduction(size, _REDUCTIONS[name], sent, received, root, op or "")
    else:
        task = _moves(rank, size, name, sent, received, root)
    if task is None:
        return None
    streams = tuple(dict.fromkeys(memory.stream.handle for memory in memories))
    return Offer(memories[0].driver, memories[0].device, streams, _array(sent), _array(received), task)


def _array(operand: Operands) -> Array | None:
    return None if operand is None or operand.device is None else Array(operand.address, operand.device.known)


def _blocks(operand: Buffer | VBuffer, size: int) -> list[tuple[int, int]]:
    """Offset and bytes of the block for each rank."""
    if isinstance(operand, VBuffer):
        return list(zip(operand.offsets, operand.sizes, strict=True))
    each = operand.nbytes // size
    return [(rank * each, each) for rank in range(size)]


def _reduction(size: int, kind: int, sent: Operands, received: Operands, root: int, op: str) -> Task | None:
    source = sent if sent is not None else received
    assert source is not None
    operation, got = (op, source.layout.kind or ""), received.nbytes if received is not None else 0
    is_overwritten = sent is None and kind == shm_oneshot.REDUCE_SCATTER
    if is_overwritten or not source.nbytes or not is_supported(*operation):
        return None
    rows = Row(0, source.nbytes, 0, got), *[Row()] * (size - 1)
    return Task(kind, root, source.nbytes, rows, operation, source.itemsize)


def _moves(rank: int, size: int, name: str, sent: Operands, received: Operands, root: int) -> Task | None:
    if name.removesuffix("v") not in _MOVES:
        return None
    kind, rows_of = _MOVES[name.removesuffix("v")]
    nbytes, rows = rows_of(rank, size, sent, received, root)
    if not any(row.send_bytes or row.recv_bytes for row in rows):
        return None
    return Task(kind, root, 0 if name.endswith("v") else nbytes, tuple(rows))


Moves = tuple[int, list[Row]]
"""Bytes that all ranks give alike where they do, and the rows."""


def _bcast(rank: int, size: int, sent: Operands, received: Operands, root: int) -> Moves:
    if received is None:
        nbytes = sent.nbytes if sent is not None else 0
        return nbytes, [Row(0, nbytes * (other != root)) for other in range(size)]
    return received.nbytes, [Row(0, 0, 0, received.nbytes * (other == root)) for other in range(size)]


def _gather(rank: int, size: int, sent: Operands, received: Operands, root: int) -> Moves:
    own = sent.nbytes if sent is not None else 0
    if rank != root or received is None:
        return own, [Row(0, own * (other == root)) for other in range(size)]
    blocks = _blocks(received, size)
    rows = [Row(0, own * (other == root), *block) for other, block in enumerate(blocks)]
    if sent is None:
        rows[root] = Row()
    return blocks[root][1], rows


def _scatter(rank: int, size: int, sent: Operands, received: Operands, root: int) -> Moves:
    own = received.nbytes if received is not None else 0
    if rank != root or sent is None:
        return own, [Row(0, 0, 0, own * (other == root)) for other in range(size)]
    blocks = _blocks(sent, size)
    rows = [Row(*block, 0, own * (other == root)) for other, block in enumerate(blocks)]
    if received is None:
        rows[root] = Row()
    return blocks[root][1], rows


def _allgather(rank: int, size: int, sent: Operands, received: Operands, root: int) -> Moves:
    assert received is not None
    blocks = _blocks(received, size)
    first, own = blocks[rank]
    rows = [Row(0 if sent is not None else first, own, *block) for block in blocks]
    if sent is None:
        rows[rank] = Row()
    return own, rows


def _alltoall(rank: int, size: int, sent: Operands, received: Operands, root: int) -> Moves:
    if sent is None or received is None:
        return 0, []
    outgoing = _blocks(sent, size)
    return outgoing[0][1], [Row(*out, *into) for out, into in zip(outgoing, _blocks(received, size), strict=True)]


_MOVES: dict[str, tuple[int, Callable[[int, int, Operands, Operands, int], Moves]]] = {
    "bcast": (shm_oneshot.BCAST, _bcast),
    "gather": (shm_oneshot.GATHER, _gather),
    "scatter": (shm_oneshot.SCATTER, _scatter),
    "allgather": (shm_oneshot.ALLGATHER, _allgather),
    "alltoall": (shm_oneshot.ALLTOALL, _alltoall),
}
"""Kinds and rows; those with counts have the same."""
_REDUCTIONS = {
    "reduce": shm_oneshot.REDUCE,
    "allreduce": shm_oneshot.ALLREDUCE,
    "reduce_scatter": shm_oneshot.REDUCE_SCATTER,
    "reduce_scatter_block": shm_oneshot.REDUCE_SCATTER,
}
_SCANS = {"scan": shm_oneshot.SCAN, "exscan": shm_oneshot.EXSCAN}


def is_reduction(name: str) -> bool:
    """Whether a collective reduces elements."""
    return name in _REDUCTIONS or name in _SCANS


def kind_of(name: str) -> int:
    """What a collective is signed with."""
    moves = _MOVES.get(name.removesuffix("v"))
    return (_REDUCTIONS | _SCANS)[name] if moves is None else moves[0]
