"""From the arguments of a collective method to one call of :mod:`ncclx_mpi.collectives`, the same for its three flavours.

Each function here checks its arguments as mpi4py does, resolves the buffers that matter on this rank, and returns a
:class:`Call`. The blocking method runs it, the non-blocking one starts it, the persistent one prepares it and starts it as
often as it is asked to. What they are between two groups is in :mod:`ncclx_mpi.api.intergroup`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ncclx_mpi import arguments, collectives, errors
from ncclx_mpi.api import collective_requests, fast
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.op import Op, check_same, is_compiled, native
from ncclx_mpi.api.request import Prequest, Request
from ncclx_mpi.arguments import Buffer, VBuffer, WBuffer, is_in_place
from ncclx_mpi.arguments.buffer import Copy
from ncclx_mpi.collectives import Described, intergroup
from ncclx_mpi.collectives import prepare as plans
from ncclx_mpi.gpu_memory import streams
from ncclx_mpi.operations.collection import Collection
from ncclx_mpi.operations.operation import Operation, Persistent
from numba_kernels.layout import zeroed
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.device.parts import Cut, Parts
    from ncclx_mpi.device.pieces import Bind, Binding
    from ncclx_mpi.device.station import Work

Blocks = VBuffer | WBuffer
Operand = Buffer | Blocks
T = TypeVar("T", bound=Operand)

IN_PLACE = 0
"""Address that stands for a buffer that is not there."""

_FUNCTION = 4
"""Which argument of a reduction is its function."""

_nothing, _NOWHERE = zeroed(64)
"""Address of empty buffers, so that none looks like IN_PLACE."""


class Call:
    """A collective on resolved buffers.

    Parameters
    ----------
    name
        Function of :mod:`ncclx_mpi.collectives`.
    bind
        Makes the function's arguments after the communicator, with :meth:`reading` and :meth:`writing`, once they are needed. It
        asks for everything that a piece of the call has less of: see :class:`ncclx_mpi.device.pieces.Binding`.
    sent, received
        What this rank gives and gets; None where it gives in place, or its argument does not matter.
    root, op
        Of collectives that have one.
    counts
        Elements of the block of each rank, of a reduce_scatter or reduce_scatter_block.

    Attributes
    ----------
    before
        Copies of scattered or device operands into packed memory, made each time the call starts.
    after
        Copies of packed results to where they belong.
    owner
        What keeps all memory alive, and the functions of the operation, which the program may free at any time.
    """

    __slots__ = ("after", "before", "bind", "counts", "name", "op", "owner", "received", "root", "sent")

    def __init__(
        self,
        name: str,
        bind: Bind,
        sent: Operand | None = None,
        received: Operand | None = None,
        root: int = 0,
        op: Op | None = None,
        counts: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.bind = bind
        self.sent = sent
        self.received = received
        self.root = root
        self.op = op
        self.counts = counts
        self.before: list[Callable[[], None]] = []
        self.after: list[Callable[[], None]] = []
        self.owner: list[Any] = [] if op is None else [op._state.natives]

    def part(self, operand: T) -> T:
        """All of an operand."""
        return operand

    def reading(self, buffer: Buffer | None) -> int:
        """Return the address of packed elements to read, IN_PLACE for None."""
        if buffer is None:
            return IN_PLACE
        if buffer.is_direct:
            self.owner.append(buffer.owner)
            return buffer.address or _NOWHERE
        return self._read(buffer.copy()).address

    def writing(self, buffer: Buffer | None, *, filled: bool = False) -> int:
        """Return the address of packed elements to write, IN_PLACE for None; `filled`: they are read first."""
        if buffer is None:
            return IN_PLACE
        if buffer.is_direct:
            self.owner.append(buffer.owner)
            return buffer.address or _NOWHERE
        return self._write(buffer.copy(), buffer.owner, filled).address

    def reading_blocks(self, blocks: Blocks) -> tuple[int, list[int]]:
        """Return the address of packed blocks to read, and the offset of each."""
        if isinstance(blocks, VBuffer) and blocks.is_direct:
            self.owner.append(blocks.owner)
            return blocks.address or _NOWHERE, blocks.offsets
        copy = self._read(blocks.copy())
        return copy.address, copy.offsets

    def writing_blocks(self, blocks: Blocks, *, filled: bool = False) -> tuple[int, list[int]]:
        """Return the address of packed blocks to write, and the offset of each; `filled`: they are read first."""
        if isinstance(blocks, VBuffer) and blocks.is_direct:
            self.owner.append(blocks.owner)
            return blocks.address or _NOWHERE, blocks.offsets
        copy = self._write(blocks.copy(), blocks.owner, filled)
        return copy.address, copy.offsets

    def _read(self, copy: Copy) -> Copy:
        self.owner.append(copy)
        self.before.append(copy.load)
        return copy

    def _write(self, copy: Copy, owner: Any, filled: bool) -> Copy:
        self.owner.append((copy, owner))
        if filled:
            self.before.append(copy.load)
        self.after.append(copy.store)
        return copy

    @property
    def is_on_device(self) -> bool:
        """Whether some of its memory is a GPU's."""
        return any(operand is not None and operand.device is not None for operand in (self.sent, self.received))


# The flavours -----------------------------------------------------------------------------------------------------


class _Flavours(NamedTuple):
    """What carries a collective out, and what makes one that can be started."""

    run: Callable[..., None]
    prepare: Callable[..., collectives.Collective]


def _planned(prepare: Callable[..., collectives.Collective]) -> _Flavours:
    """Of a collective that is always a plan."""
    return _Flavours(lambda *arguments: collectives.run(prepare(*arguments)), prepare)


_FLAVOURS = {
    "barrier": _Flavours(collectives.barrier, plans.barrier),
    "bcast": _Flavours(collectives.bcast, plans.bcast),
    "gather": _Flavours(collectives.gather, plans.gather),
    "gatherv": _Flavours(collectives.gatherv, plans.gatherv),
    "scatter": _Flavours(collectives.scatter, plans.scatter),
    "scatterv": _Flavours(collectives.scatterv, plans.scatterv),
    "allgather": _Flavours(collectives.allgather, plans.allgather),
    "allgatherv": _Flavours(collectives.allgatherv, plans.allgatherv),
    "alltoall": _Flavours(collectives.alltoall, plans.alltoall),
    "alltoallv": _Flavours(collectives.alltoallv, plans.alltoallv),
    "neighbor_allgather": _Flavours(collectives.neighbor_allgather, plans.neighbor_allgather),
    "neighbor_alltoall": _Flavours(collectives.neighbor_alltoall, plans.neighbor_alltoall),
    "reduce": _Flavours(collectives.reduce, plans.reduce),
    "allreduce": _Flavours(collectives.allreduce, plans.allreduce),
    "reduce_scatter": _Flavours(collectives.reduce_scatter, plans.reduce_scatter),
    "reduce_scatter_block": _Flavours(collectives.reduce_scatter_block, plans.reduce_scatter_block),
    "scan": _Flavours(collectives.scan, plans.scan),
    "exscan": _Flavours(collectives.exscan, plans.exscan),
    "inter_exchange": _planned(intergroup.inter_exchange),
    "inter_bcast": _planned(intergroup.inter_bcast),
    "inter_reduce": _planned(intergroup.inter_reduce),
    "inter_allreduce": _planned(intergroup.inter_allreduce),
    "inter_reduce_scatter": _planned(intergroup.inter_reduce_scatter),
}

BETWEEN_GROUPS: dict[Callable[..., Call], Callable[..., Call]] = {}
"""By the functions of this module, what resolves their arguments between two groups: methods of what such a communicator has of its own."""


def _resolved(state: CommState, resolve: Callable[..., Call], arguments: Sequence[Any]) -> Call:
    """What a call is."""
    state.native  # noqa: B018  (raises if it is null, was freed, or revoked)
    if state.intergroup is not None and resolve in BETWEEN_GROUPS:
        return BETWEEN_GROUPS[resolve](state.intergroup, *arguments)
    return resolve(state, *arguments)


def carry_out(state: CommState, resolve: Callable[..., Call], *arguments: Any) -> None:
    """Carry a call out; `resolve` is the function of this module that takes `arguments`."""
    key = None if state.repeats is None else _values(resolve, arguments)
    cut = None if key is None or state.repeats is None else state.repeats.carry_out(key, arguments)
    if cut is not None and not cut.pieces:
        return
    call = _resolved(state, resolve, arguments)
    if cut is None and call.is_on_device and state.intergroup is None:
        cut = _run_on_devices(state, call, resolve, arguments)
    if cut is None or cut.pieces:
        run_on_host(state, call, cut)


def _run_on_devices(state: CommState, call: Call, resolve: Callable[..., Call], arguments: Sequence[Any]) -> Cut:
    """Carry a call out on the devices of all ranks, or find out how else. Kernels are declared when one is first asked for."""
    from ncclx_mpi.device import collectives as on_devices
    from ncclx_mpi.device.repeats import Repeats

    def keep(work: Work) -> None:
        key = _values(resolve, arguments)
        if key is not None:
            state.repeats = state.repeats or Repeats(state.native)
            state.repeats.keep(key, work, arguments)

    operands = call.sent, call.received, call.root, _operation_name(call.op)
    return on_devices.carry_out(state.native, call.name, *operands, lambda: _parts(state, call), keep)


def run_on_host(state: CommState, call: Call, cut: Cut | None = None) -> None:
    """Carry a call out by way of the host, piece by piece if the ranks have agreed on pieces."""
    brought = None if cut is None or cut.pieces == 1 else _parts(state, call)
    if cut is not None and brought is not None:
        from ncclx_mpi.device import pieces

        return pieces.carry_out(
            state.native, _FLAVOURS[call.name].run, call.bind, (call.sent, call.received), call.counts, brought, cut
        )
    for operand in (call.sent, call.received):
        if isinstance(operand, WBuffer):
            fast.meet_all(block.layout for block in operand.blocks)
        elif operand is not None:
            fast.meet(operand.layout)
    arguments = call.bind(call)
    for copy in call.before:
        copy()
    _FLAVOURS[call.name].run(state.everyone, *arguments)
    for finish in call.after:
        finish()


def _parts(state: CommState, call: Call) -> Parts | None:
    """What a call has on devices, as blocks that can be cut."""
    from ncclx_mpi.device import parts

    return parts.bring(state.rank, state.size, call.name, call.sent, call.received, call.root, call.counts)


def enqueue(state: CommState, stream: Any, resolve: Callable[..., Call], *arguments: Any) -> None:
    """Enqueue a call in a stream of a GPU; `resolve` is the function of this module that takes `arguments`."""
    prepared = state.prepared
    if prepared is None:
        errors.fail(
            errors.ERR_COMM,
            f"rank {state.rank}: {resolve.__name__} in a stream: the communicator is not prepared for it; call comm.prepare() on all ranks "
            "first",
        )
    key = _values(resolve, arguments)
    if key is not None and prepared.repeat(key, stream):
        return
    from ncclx_mpi.device import enqueued

    opened, is_captured = enqueued.open_stream(prepared, resolve.__name__, stream)
    with streams.using(opened):
        call = resolve(state, *arguments)
    operands = call.name, call.sent, call.received, call.root, _operation_name(call.op)
    prepared.enqueue(enqueued.task_of(prepared, *operands, is_captured), opened, key)


def _values(resolve: Callable[..., Call], arguments: Sequence[Any]) -> tuple[Any, ...] | None:
    """All that a call on devices can depend on, None if that is not only operations, numbers and arrays that tell it quickly.

    A loop makes the same calls again and again, and to resolve their arguments costs more than to carry them out. To a call in a stream,
    an address that was freed meanwhile, and is another array's, is as good.
    """
    found: list[Any] = [resolve]
    for argument in arguments:
        if isinstance(argument, Op):
            found.append(argument._state)
        elif argument is None or is_in_place(argument) or type(argument) is int:
            found.append(argument)
        else:
            facts = streams.facts_of(argument)
            if facts is None:
                return None
            found.append(facts)
    return tuple(found)


def start(state: CommState, resolve: Callable[..., Call], *given: Any) -> Request:
    """Start a call; arguments as for :func:`carry_out`."""
    call = _resolved(state, resolve, given)
    arguments = call.bind(call)
    for copy in call.before:
        copy()
    described = _describe(state, call, arguments)
    number = 0 if described is None else state.pending.begin(described, call.name, call)
    if described is not None and not described.is_refusal:
        return collective_requests.request(state, number, call.name, _finishing(call))
    collective = _FLAVOURS[call.name].prepare(state.everyone, *arguments)
    return Request._refer(_begin(collective, call))


def prepare(state: CommState, resolve: Callable[..., Call], *given: Any) -> Prequest:
    """Prepare a call for being started many times, each time from its operands as they are then; arguments as for :func:`carry_out`."""
    call = _resolved(state, resolve, given)
    arguments, pending, name = call.bind(call), state.pending, call.name
    described = _describe(state, call, arguments)
    if described is not None and not (described.is_refusal or described.before or described.after or call.before or call.after):
        return Prequest._refer(collective_requests.Repeated(pending, name, described, call))
    collective = _FLAVOURS[name].prepare(state.everyone, *arguments) if described is None or described.is_refusal else None

    def begin() -> Operation:
        for copy in call.before:
            copy()
        number = 0 if described is None else pending.begin(described, name, call)
        if collective is not None:
            return _begin(collective, call)
        return collective_requests.Started(pending, number, name, _finishing(call))

    return Prequest._refer(Persistent(begin))


def _describe(state: CommState, call: Call, arguments: tuple[Any, ...]) -> Described | None:
    """What a call is, if it needs no plan; the call keeps it."""
    described = state.pending.describe(call.name, arguments) if _is_compiled(call, arguments) else None
    if described is not None:
        call.owner.append(described)
    return described


def _begin(collective: collectives.Collective, call: Call) -> Collection:
    collective.owner = call
    collective.start()
    return Collection(collective, call, _finishing(call))


def _is_compiled(call: Call, arguments: tuple[Any, ...]) -> bool:
    """Whether what a call reduces with, if anything, is compiled."""
    return call.op is None or is_compiled(call.op, arguments[_FUNCTION])


def _operation_name(op: Op | None) -> str | None:
    """Name of a predefined operation in lower case, None for all others."""
    return None if op is None or op._state.user else op._state.name.lower()


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


def check_block(name: str, sent: int, expected: int) -> None:
    """Raise unless the block that a rank sends to itself is as long as the one it expects."""
    if sent != expected:
        errors.fail(
            errors.ERR_TRUNCATE,
            f"{name}: this rank sends blocks of {sent} bytes and expects blocks of {expected}; counts and datatypes must agree",
        )


def barrier(state: CommState) -> Call:
    """Arguments of Barrier."""
    return Call("barrier", lambda call: ())


def bcast(state: CommState, buf: Any, root: int) -> Call:
    """Arguments of Bcast."""
    root = check_root(state, root)
    if state.rank == root:
        sent = arguments.send(buf)
        return Call("bcast", lambda call: (call.reading(sent), call.part(sent).nbytes, root), sent, None, root)
    received = arguments.recv(buf)
    return Call("bcast", lambda call: (call.writing(received), call.part(received).nbytes, root), None, received, root)


def gather(state: CommState, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Arguments of Gather."""
    root = check_root(state, root)
    if state.rank != root:
        own = arguments.send(sendbuf)
        return Call("gather", lambda call: (call.reading(own), call.part(own).nbytes, IN_PLACE, root), own, None, root)
    block = arguments.recv(recvbuf, state.size)
    sent, received = _given("gather", sendbuf, block.nbytes), block.times(state.size)

    def bind(call: Binding) -> tuple[Any, ...]:
        nbytes = call.part(received).nbytes // state.size
        return call.reading(sent), nbytes, call.writing(received, filled=sent is None), root

    return Call("gather", bind, sent, received, root)


def gatherv(state: CommState, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Arguments of Gatherv."""
    root = check_root(state, root)
    if state.rank != root:
        own = arguments.send(sendbuf)
        return Call("gatherv", lambda call: (call.reading(own), call.part(own).nbytes, IN_PLACE, [], [], root), own, None, root)
    received = arguments.recv_vector(recvbuf, state.size)
    sent = _given("gatherv", sendbuf, received.sizes[root])

    def bind(call: Binding) -> tuple[Any, ...]:
        recv, offsets = call.writing_blocks(received, filled=sent is None)
        sizes = call.part(received).sizes
        return call.reading(sent), sizes[root], recv, sizes, offsets, root

    return Call("gatherv", bind, sent, received, root)


def scatter(state: CommState, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Arguments of Scatter."""
    root = check_root(state, root)
    if state.rank != root:
        own = arguments.recv(recvbuf)
        return Call("scatter", lambda call: (IN_PLACE, call.writing(own), call.part(own).nbytes, root), None, own, root)
    block = arguments.send(sendbuf, state.size)
    received, sent = _wanted("scatter", recvbuf, block.nbytes), block.times(state.size)

    def bind(call: Binding) -> tuple[Any, ...]:
        return call.reading(sent), call.writing(received), call.part(sent).nbytes // state.size, root

    return Call("scatter", bind, sent, received, root)


def scatterv(state: CommState, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Arguments of Scatterv."""
    root = check_root(state, root)
    if state.rank != root:
        own = arguments.recv(recvbuf)
        return Call("scatterv", lambda call: (IN_PLACE, [], [], call.writing(own), call.part(own).nbytes, root), None, own, root)
    sent = arguments.send_vector(sendbuf, state.size)
    received = _wanted("scatterv", recvbuf, sent.sizes[root])

    def bind(call: Binding) -> tuple[Any, ...]:
        send, offsets = call.reading_blocks(sent)
        sizes = call.part(sent).sizes
        return send, sizes, offsets, call.writing(received), sizes[root], root

    return Call("scatterv", bind, sent, received, root)


def allgather(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Allgather."""
    block = arguments.recv(recvbuf, state.size)
    sent, received = _given("allgather", sendbuf, block.nbytes), block.times(state.size)

    def bind(call: Binding) -> tuple[Any, ...]:
        return call.reading(sent), call.part(received).nbytes // state.size, call.writing(received, filled=sent is None)

    return Call("allgather", bind, sent, received)


def allgatherv(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Allgatherv."""
    received = arguments.recv_vector(recvbuf, state.size)
    sent = _given("allgatherv", sendbuf, received.sizes[state.rank])

    def bind(call: Binding) -> tuple[Any, ...]:
        recv, offsets = call.writing_blocks(received, filled=sent is None)
        sizes = call.part(received).sizes
        return call.reading(sent), sizes[state.rank], recv, sizes, offsets

    return Call("allgatherv", bind, sent, received)


def alltoall(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Alltoall."""
    block, sent = arguments.recv(recvbuf, state.size), None
    if not is_in_place(sendbuf):
        given = arguments.send(sendbuf, state.size)
        check_block("alltoall", given.nbytes, block.nbytes)
        sent = given.times(state.size)
    received = block.times(state.size)

    def bind(call: Binding) -> tuple[Any, ...]:
        return call.reading(sent), call.writing(received, filled=sent is None), call.part(received).nbytes // state.size

    return Call("alltoall", bind, sent, received)


def alltoallv(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Alltoallv."""
    received = arguments.recv_vector(recvbuf, state.size)
    sent = None if is_in_place(sendbuf) else arguments.send_vector(sendbuf, state.size)
    return _exchange(state, sent, received)


def alltoallw(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Alltoallw."""
    received = arguments.recv_w(recvbuf, state.size)
    sent = None if is_in_place(sendbuf) else arguments.send_w(sendbuf, state.size)
    return _exchange(state, sent, received)


def _exchange(state: CommState, sent: Blocks | None, received: Blocks) -> Call:
    if sent is not None:
        check_block("alltoall", sent.sizes[state.rank], received.sizes[state.rank])

    def bind(call: Binding) -> tuple[Any, ...]:
        recv, offsets = call.writing_blocks(received, filled=sent is None)
        sizes = call.part(received).sizes
        if sent is None:
            return IN_PLACE, sizes, offsets, recv, sizes, offsets
        send, send_offsets = call.reading_blocks(sent)
        return send, call.part(sent).sizes, send_offsets, recv, sizes, offsets

    return Call("alltoallv", bind, sent, received)


def reduce(state: CommState, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> Call:
    """Arguments of Reduce."""
    root = check_root(state, root)
    if state.rank == root:
        return _reduction("reduce", sendbuf, recvbuf, op, root)
    sent = arguments.send(sendbuf)
    operation = operation_of(op, sent)
    return Call(
        "reduce", lambda call: (call.reading(sent), IN_PLACE, call.part(sent).count, *operation, root), sent, None, root, op
    )


def allreduce(state: CommState, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
    """Arguments of Allreduce."""
    return _reduction("allreduce", sendbuf, recvbuf, op)


def scan(state: CommState, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
    """Arguments of Scan."""
    return _reduction("scan", sendbuf, recvbuf, op)


def exscan(state: CommState, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
    """Arguments of Exscan."""
    return _reduction("exscan", sendbuf, recvbuf, op)


def reduce_scatter_block(state: CommState, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
    """Arguments of Reduce_scatter_block."""
    size, sent = state.size, None
    if is_in_place(sendbuf):
        block = arguments.recv(recvbuf, size)
        received = block.times(size)
    else:
        block = received = arguments.recv(recvbuf)
        given = arguments.send(sendbuf, size)
        check_same(given, received)
        sent = given.times(size)
    operation = operation_of(op, received)

    def bind(call: Binding) -> tuple[Any, ...]:
        return call.reading(sent), call.writing(received, filled=sent is None), call.counts[state.rank], *operation

    return Call("reduce_scatter_block", bind, sent, received, op=op, counts=[block.count] * size)


def reduce_scatter(state: CommState, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: Op) -> Call:
    """Arguments of Reduce_scatter; without counts, ranks tell each other theirs first."""
    received = arguments.recv(recvbuf)
    sent = None if is_in_place(sendbuf) else arguments.send(sendbuf)
    counts = _receive_counts(state, recvcounts, received.count, is_known=sent is None)
    _check_sums(state, sent, received, counts)
    operation = operation_of(op, received)

    def bind(call: Binding) -> tuple[Any, ...]:
        return call.reading(sent), call.writing(received, filled=sent is None), call.counts, *operation

    return Call("reduce_scatter", bind, sent, received, op=op, counts=counts)


def _receive_counts(state: CommState, given: Sequence[int] | None, own: int, *, is_known: bool) -> list[int]:
    if given is not None or is_known:
        return arguments.of_length((integer(count, "recvcounts") for count in (given if given is not None else ())), state.size)
    return [count for (count,) in collectives.gather_words(state.native, own)]


def _check_sums(state: CommState, sent: Buffer | None, received: Buffer, counts: list[int]) -> None:
    """Raise ValueError unless counts fit the buffers of a Reduce_scatter."""
    if sent is None:
        if received.count != sum(counts):
            raise ValueError(f"mismatch in receive count {received.count} and sum(counts) {sum(counts)}")
        return
    if sent.datatype != received.datatype:
        raise ValueError("mismatch in send and receive MPI datatypes")
    check_sums(sent.count, received.count, counts, state.rank)


def check_sums(sent: int, received: int, counts: list[int], rank: int) -> None:
    """Raise ValueError unless counts fit the elements that a rank gives to a Reduce_scatter, and has room for."""
    if sent != sum(counts):
        raise ValueError(f"mismatch in send count {sent} and sum(counts) {sum(counts)}")
    if received != counts[rank]:
        raise ValueError(f"mismatch in receive count {received} and counts[{rank}] {counts[rank]}")


def _reduction(name: str, sendbuf: Any, recvbuf: Any, op: Op, root: int | None = None) -> Call:
    """Resolve both buffers of a reduction."""
    received = arguments.recv(recvbuf)
    sent = None if is_in_place(sendbuf) else arguments.send(sendbuf)
    if sent is not None:
        check_same(sent, received)
    rest = operation_of(op, received) if root is None else (*operation_of(op, received), root)
    # Exscan leaves rank 0's result buffer as it is, so that has to survive the way through packed memory
    filled = sent is None or name == "exscan"

    def bind(call: Binding) -> tuple[Any, ...]:
        return call.reading(sent), call.writing(received, filled=filled), call.part(received).count, *rest

    return Call(name, bind, sent, received, root or 0, op)


def operation_of(op: Op, buffer: Buffer) -> tuple[int, int, bool]:
    """Bytes of an element, reduction function, and whether it commutes."""
    return buffer.itemsize, native(op, buffer.datatype), op._state.commute


def _given(name: str, sendbuf: Any, expected: int) -> Buffer | None:
    """Resolve what a rank contributes, of `expected` bytes; None in place."""
    if is_in_place(sendbuf):
        return None
    sent = arguments.send(sendbuf)
    check_block(name, sent.nbytes, expected)
    return sent


def _wanted(name: str, recvbuf: Any, expected: int) -> Buffer | None:
    """Resolve where a rank's block of `expected` bytes goes; None in place."""
    if is_in_place(recvbuf):
        return None
    received = arguments.recv(recvbuf)
    check_block(name, expected, received.nbytes)
    return received
