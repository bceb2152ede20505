"""From the arguments of a collective method to one call of :mod:`ncclx_mpi.collectives`, the same for its three flavours.

Each function here checks its arguments as mpi4py does, resolves the buffers that matter on this rank, and returns a
:class:`Call`. The blocking method runs it, the non-blocking one starts it, the persistent one prepares it and starts it as
often as it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclx_mpi import buffers, collectives, errors
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.op import Op, check_same, native
from ncclx_mpi.api.operations import Collection, Persistent
from ncclx_mpi.api.request import Prequest, Request
from ncclx_mpi.buffers import Buffer, VBuffer, WBuffer, is_in_place, packing

IN_PLACE = 0
"""Address that stands for a buffer that is not there."""

_nothing = np.zeros(64, dtype=np.uint8)
_NOWHERE = _nothing.ctypes.data
"""Address of empty buffers, so that none looks like IN_PLACE."""


class Call:
    """A collective on resolved buffers.

    Attributes
    ----------
    name, arguments
        Function of :mod:`ncclx_mpi.collectives` and its arguments after the communicator.
    before
        Copies of non-contiguous operands into packed memory; already made once, repeated when a persistent call starts again.
    after
        Copies of packed results to where they belong.
    owner
        What keeps all memory alive.
    """

    __slots__ = ("after", "arguments", "before", "name", "owner")

    def __init__(self, name: str) -> None:
        self.name = name
        self.arguments: tuple[Any, ...] = ()
        self.before: list[Callable[[], None]] = []
        self.after: list[Callable[[], None]] = []
        self.owner: list[Any] = []

    def reading(self, buffer: Buffer) -> int:
        """Return the address of packed elements to read."""
        address, owner = buffer.packed()
        self.owner.append(owner)
        if not buffer.contiguous:
            self.before.append(_packing(buffer, address))
        return address or _NOWHERE

    def writing(self, buffer: Buffer, *, filled: bool = False) -> int:
        """Return the address of packed elements to write; `filled`: they are read first."""
        address, owner, finish = buffer.landing(filled)
        self.owner.append(owner)
        if not buffer.contiguous:
            if filled:
                self.before.append(_packing(buffer, address))
            self.after.append(lambda: finish(buffer.nbytes))
        return address or _NOWHERE

    def reading_blocks(self, blocks: VBuffer | WBuffer) -> tuple[int, list[int]]:
        """Return the address of packed blocks to read, and the offset of each."""
        address, offsets, owner = blocks.packed()
        self.owner.append(owner)
        self._repack(blocks, address, offsets)
        return address or _NOWHERE, offsets

    def writing_blocks(self, blocks: VBuffer | WBuffer, *, filled: bool = False) -> tuple[int, list[int]]:
        """Return the address of packed blocks to write, and the offset of each; `filled`: they are read first."""
        address, offsets, owner, finish = blocks.landing(filled)
        self.owner.append(owner)
        self.after.append(finish)
        if filled:
            self._repack(blocks, address, offsets)
        return address or _NOWHERE, offsets

    def _repack(self, blocks: VBuffer | WBuffer, address: int, offsets: list[int]) -> None:
        if isinstance(blocks, WBuffer) or not blocks.contiguous:
            for rank, offset in enumerate(offsets):
                self.before.append(_packing(blocks.block(rank), address + offset))


def _packing(buffer: Buffer, target: int) -> Callable[[], None]:
    """Return what packs a buffer to `target`."""
    origin = buffer.address - buffer.layout.true_lb if buffer.contiguous else buffer.address

    def pack() -> None:
        packing.pack(buffer.layout, origin, buffer.count, target)

    return pack


def _whole(buffer: Buffer, blocks: int) -> Buffer:
    """Return all `blocks` equal blocks, of which `buffer` counts one, as one buffer."""
    origin = buffer.address - buffer.layout.true_lb if buffer.contiguous else buffer.address
    return Buffer(origin, buffer.count * blocks, buffer.datatype, buffer.layout, buffer.owner, buffer.readonly)


# The three flavours -----------------------------------------------------------------------------------------------

_BLOCKING = {
    name: getattr(collectives, name)
    for name in (
        "barrier", "bcast", "gather", "gatherv", "scatter", "scatterv", "allgather", "allgatherv", "alltoall", "alltoallv",
        "reduce", "allreduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan",
    )
}  # fmt: skip
_PREPARE = {name: getattr(collectives, f"prepare_{name}") for name in _BLOCKING}


def run(state: CommState, call: Call) -> None:
    """Carry a call out."""
    _BLOCKING[call.name](state.native, *call.arguments)
    for finish in call.after:
        finish()


def start(state: CommState, call: Call) -> Request:
    """Start a call."""
    collective = _PREPARE[call.name](state.native, *call.arguments)
    collective.owner = call
    collective.start()
    return Request._refer(Collection(collective, call, _finishing(call)))


def prepare(state: CommState, call: Call) -> Prequest:
    """Prepare a call for being started many times."""
    collective = _PREPARE[call.name](state.native, *call.arguments)
    collective.owner = call

    def begin() -> Collection:
        for pack in call.before:
            pack()
        collective.start()
        return Collection(collective, call, _finishing(call))

    return Prequest._refer(Persistent(begin))


def _finishing(call: Call) -> Callable[[], None] | None:
    if not call.after:
        return None

    def finish() -> None:
        for each in call.after:
            each()

    return finish


# Arguments --------------------------------------------------------------------------------------------------------


def check_root(state: CommState, root: Any) -> int:
    """Return `root` as a rank of the communicator."""
    rank = integer(root, "root")
    if not 0 <= rank < state.size:
        errors.fail(errors.ERR_ROOT, f"root {rank} is no rank of this communicator of {state.size}")
    return rank


def _check_block(name: str, sent: int, expected: int) -> None:
    """Raise unless the block that a rank sends to itself is as long as the one it expects."""
    if sent != expected:
        errors.fail(
            errors.ERR_TRUNCATE,
            f"{name}: this rank sends blocks of {sent} bytes and expects blocks of {expected}; counts and datatypes must agree",
        )


def barrier(state: CommState) -> Call:
    """Arguments of Barrier."""
    state.native  # noqa: B018  (raises if it is null or was freed)
    return Call("barrier")


def bcast(state: CommState, buf: Any, root: int) -> Call:
    """Arguments of Bcast."""
    root, call = check_root(state, root), Call("bcast")
    if state.rank == root:
        buffer = buffers.send(buf)
        address = call.reading(buffer)
    else:
        buffer = buffers.recv(buf)
        address = call.writing(buffer)
    call.arguments = (address, buffer.nbytes, root)
    return call


def gather(state: CommState, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Arguments of Gather."""
    root, call = check_root(state, root), Call("gather")
    if state.rank != root:
        sent = buffers.send(sendbuf)
        call.arguments = (call.reading(sent), sent.nbytes, IN_PLACE, root)
        return call
    received = buffers.recv(recvbuf, state.size)
    send = _read_unless_in_place(call, sendbuf, received.nbytes)
    recv = call.writing(_whole(received, state.size), filled=send == IN_PLACE)
    call.arguments = (send, received.nbytes, recv, root)
    return call


def gatherv(state: CommState, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Arguments of Gatherv."""
    root, call = check_root(state, root), Call("gatherv")
    if state.rank != root:
        sent = buffers.send(sendbuf)
        call.arguments = (call.reading(sent), sent.nbytes, IN_PLACE, [], [], root)
        return call
    received = buffers.recv_vector(recvbuf, state.size)
    sizes = received.sizes
    send = _read_unless_in_place(call, sendbuf, sizes[root])
    recv, offsets = call.writing_blocks(received, filled=send == IN_PLACE)
    call.arguments = (send, sizes[root], recv, sizes, offsets, root)
    return call


def scatter(state: CommState, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Arguments of Scatter."""
    root, call = check_root(state, root), Call("scatter")
    if state.rank != root:
        received = buffers.recv(recvbuf)
        call.arguments = (IN_PLACE, call.writing(received), received.nbytes, root)
        return call
    sent = buffers.send(sendbuf, state.size)
    recv = _write_unless_in_place(call, recvbuf, sent.nbytes)
    call.arguments = (call.reading(_whole(sent, state.size)), recv, sent.nbytes, root)
    return call


def scatterv(state: CommState, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Arguments of Scatterv."""
    root, call = check_root(state, root), Call("scatterv")
    if state.rank != root:
        received = buffers.recv(recvbuf)
        call.arguments = (IN_PLACE, [], [], call.writing(received), received.nbytes, root)
        return call
    sent = buffers.send_vector(sendbuf, state.size)
    sizes = sent.sizes
    send, offsets = call.reading_blocks(sent)
    recv = _write_unless_in_place(call, recvbuf, sizes[root])
    call.arguments = (send, sizes, offsets, recv, sizes[root], root)
    return call


def allgather(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Allgather."""
    size, call = state.size, Call("allgather")
    received = buffers.recv(recvbuf, size)
    send = _read_unless_in_place(call, sendbuf, received.nbytes)
    recv = call.writing(_whole(received, size), filled=send == IN_PLACE)
    call.arguments = (send, received.nbytes, recv)
    return call


def allgatherv(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Allgatherv."""
    size, call = state.size, Call("allgatherv")
    received = buffers.recv_vector(recvbuf, size)
    sizes = received.sizes
    send = _read_unless_in_place(call, sendbuf, sizes[state.rank])
    recv, offsets = call.writing_blocks(received, filled=send == IN_PLACE)
    call.arguments = (send, sizes[state.rank], recv, sizes, offsets)
    return call


def alltoall(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Alltoall."""
    size, call, send = state.size, Call("alltoall"), IN_PLACE
    received = buffers.recv(recvbuf, size)
    if not is_in_place(sendbuf):
        sent = buffers.send(sendbuf, size)
        _check_block("alltoall", sent.nbytes, received.nbytes)
        send = call.reading(_whole(sent, size))
    recv = call.writing(_whole(received, size), filled=send == IN_PLACE)
    call.arguments = (send, recv, received.nbytes)
    return call


def alltoallv(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Alltoallv."""
    received = buffers.recv_vector(recvbuf, state.size)
    sent = None if is_in_place(sendbuf) else buffers.send_vector(sendbuf, state.size)
    return _exchange(state, sent, received)


def alltoallw(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Alltoallw."""
    received = buffers.recv_w(recvbuf, state.size)
    sent = None if is_in_place(sendbuf) else buffers.send_w(sendbuf, state.size)
    return _exchange(state, sent, received)


def _exchange(state: CommState, sent: VBuffer | WBuffer | None, received: VBuffer | WBuffer) -> Call:
    call, sizes = Call("alltoallv"), received.sizes
    if sent is None:
        recv, offsets = call.writing_blocks(received, filled=True)
        call.arguments = (IN_PLACE, sizes, offsets, recv, sizes, offsets)
        return call
    _check_block("alltoall", sent.sizes[state.rank], sizes[state.rank])
    send, send_offsets = call.reading_blocks(sent)
    recv, offsets = call.writing_blocks(received)
    call.arguments = (send, sent.sizes, send_offsets, recv, sizes, offsets)
    return call


def reduce(state: CommState, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> Call:
    """Arguments of Reduce."""
    root, call = check_root(state, root), Call("reduce")
    if state.rank == root:
        send, recv, count, rest = _operands(call, sendbuf, recvbuf, op)
        call.arguments = (send, recv, count, *rest, root)
        return call
    sent = buffers.send(sendbuf)
    call.arguments = (call.reading(sent), IN_PLACE, sent.count, *_operation(call, op, sent), root)
    return call


def allreduce(state: CommState, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
    """Arguments of Allreduce."""
    return _reduction(state, "allreduce", sendbuf, recvbuf, op)


def scan(state: CommState, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
    """Arguments of Scan."""
    return _reduction(state, "scan", sendbuf, recvbuf, op)


def exscan(state: CommState, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
    """Arguments of Exscan."""
    return _reduction(state, "exscan", sendbuf, recvbuf, op)


def reduce_scatter_block(state: CommState, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
    """Arguments of Reduce_scatter_block."""
    size, call = state.size, Call("reduce_scatter_block")
    if is_in_place(sendbuf):
        received = buffers.recv(recvbuf, size)
        send, recv = IN_PLACE, call.writing(_whole(received, size), filled=True)
    else:
        received = buffers.recv(recvbuf)
        sent = buffers.send(sendbuf, size)
        check_same(sent, received)
        send, recv = call.reading(_whole(sent, size)), call.writing(received)
    call.arguments = (send, recv, received.count, *_operation(call, op, received))
    return call


def reduce_scatter(state: CommState, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: Op) -> Call:
    """Arguments of Reduce_scatter; without counts, ranks tell each other theirs first."""
    call = Call("reduce_scatter")
    received = buffers.recv(recvbuf)
    sent = None if is_in_place(sendbuf) else buffers.send(sendbuf)
    counts = _receive_counts(state, recvcounts, received.count, is_known=sent is None)
    _check_sums(state, sent, received, counts)
    send = IN_PLACE if sent is None else call.reading(sent)
    recv = call.writing(received, filled=sent is None)
    call.arguments = (send, recv, counts, *_operation(call, op, received))
    return call


def _receive_counts(state: CommState, given: Sequence[int] | None, own: int, *, is_known: bool) -> list[int]:
    if given is not None or is_known:
        counts = [integer(count, "recvcounts") for count in given] if given is not None else []
        if len(counts) != state.size:
            raise ValueError(f"expecting {state.size} items, got {len(counts)}")
        return counts
    mine, table = np.array([own], dtype=np.int64), np.empty(state.size, dtype=np.int64)
    collectives.allgather(state.native, mine.ctypes.data, mine.nbytes, table.ctypes.data)
    return [int(count) for count in table]


def _check_sums(state: CommState, sent: Buffer | None, received: Buffer, counts: list[int]) -> None:
    """Raise ValueError unless counts fit the buffers of a Reduce_scatter."""
    total, rank = sum(counts), state.rank
    if sent is None:
        if received.count != total:
            raise ValueError(f"mismatch in receive count {received.count} and sum(counts) {total}")
        return
    if sent.datatype != received.datatype:
        raise ValueError("mismatch in send and receive MPI datatypes")
    if sent.count != total:
        raise ValueError(f"mismatch in send count {sent.count} and sum(counts) {total}")
    if received.count != counts[rank]:
        raise ValueError(f"mismatch in receive count {received.count} and counts[{rank}] {counts[rank]}")


def _reduction(state: CommState, name: str, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
    state.native  # noqa: B018  (raises if it is null or was freed)
    call = Call(name)
    send, recv, count, rest = _operands(call, sendbuf, recvbuf, op)
    call.arguments = (send, recv, count, *rest)
    return call


def _operands(call: Call, sendbuf: Any, recvbuf: Any, op: Op) -> tuple[int, int, int, tuple[int, int, bool]]:
    """Resolve both buffers of a reduction: addresses, count, and what :func:`_operation` returns."""
    received = buffers.recv(recvbuf)
    if is_in_place(sendbuf):
        send = IN_PLACE
    else:
        sent = buffers.send(sendbuf)
        check_same(sent, received)
        send = call.reading(sent)
    # Exscan leaves rank 0's result buffer as it is, so that has to survive the way through packed memory
    recv = call.writing(received, filled=send == IN_PLACE or call.name == "exscan")
    return send, recv, received.count, _operation(call, op, received)


def _operation(call: Call, op: Op, buffer: Buffer) -> tuple[int, int, bool]:
    """Bytes of an element, reduction function, and whether it commutes."""
    fn = native(op, buffer.datatype)
    call.owner.append(op._state)
    return buffer.itemsize, fn, op._state.commute


def _read_unless_in_place(call: Call, sendbuf: Any, expected: int) -> int:
    """Return the address of what a rank contributes, of `expected` bytes, or IN_PLACE."""
    if is_in_place(sendbuf):
        return IN_PLACE
    sent = buffers.send(sendbuf)
    _check_block(call.name, sent.nbytes, expected)
    return call.reading(sent)


def _write_unless_in_place(call: Call, recvbuf: Any, expected: int) -> int:
    """Return the address of where a rank's block goes, of `expected` bytes, or IN_PLACE."""
    if is_in_place(recvbuf):
        return IN_PLACE
    received = buffers.recv(recvbuf)
    _check_block(call.name, expected, received.nbytes)
    return call.writing(received)
