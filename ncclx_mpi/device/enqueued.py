"""Collectives in streams: what each copies, and what its executors launch.

::

    in a call's part of the heap        copied in       executors                                      copied out
    barrier         nothing
    bcast           given | got         the root's      block of the root -> got of all                all but the root
    allgather       given | got         its block       block of s -> place s of got of all            all blocks
    alltoall        given | got         all blocks      block t of s -> place s of got of t            all blocks
    allreduce       one block           its block       GPU k of K: part k of all -> part k of all     the block
    reduce_scatter  given | got         all blocks      block t of all -> got of t                     its block

Arrays are copied through the heap, in stream order, so that in place is as good as apart, and every address is known to all. A copy inside
of a GPU goes at its memory's bandwidth: an allreduce of m bytes by n ranks on one GPU reads and writes 6 n m bytes, where 2 n m are the
least.

T = alpha + m (copies + sources + targets) / bandwidth. Alpha is, on the host, one driver call or three, and two for the copies; on the GPU
the wait for the last rank.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from ncclx_mpi import errors
from ncclx_mpi.arguments import Buffer, VBuffer, WBuffer
from ncclx_mpi.collectives import shm_oneshot
from ncclx_mpi.device.prepared import ALIGNMENT, HeapCopy, Prepared, Task
from ncclx_mpi.device.process import current
from ncclx_mpi.device.reductions import share_of
from ncclx_mpi.device.watch import Call
from ncclx_mpi.gpu_memory.streams import Stream, handle_of
from numba_kernels.cuda import symmetric
from numba_kernels.cuda.driver import CAPTURED, FOREIGN, LEGACY_STREAM, PER_THREAD_STREAM, Launch
from numba_kernels.cuda.kernel import Kernel
from numba_kernels.cuda.limits import is_supported
from numba_kernels.rows import NamedTuple

Operand = Buffer | VBuffer | WBuffer | None


def task_of(prepared: Prepared, name: str, sent: Operand, received: Operand, root: int, op: str | None, is_captured: bool) -> Task:
    """What :meth:`Prepared.enqueue` takes, for a collective in a stream.

    Parameters
    ----------
    prepared
        The communicator.
    name
        Function of :mod:`ncclx_mpi.collectives`.
    sent, received, root
        What this rank gives and gets, None in place or where it does not matter, and the root.
    op
        Name of a predefined operation, None for others.
    is_captured
        Whether the stream is being captured.

    Raises
    ------
    Exception
        ERR_BUFFER: an array is the host's, or another GPU's. ERR_TYPE: elements with gaps. ERR_OP: no kernel does the operation.
        ERR_UNSUPPORTED_OPERATION: there is no such collective in streams, or its kernel is not loaded and cannot be under capture.
    """
    make = _MAKERS.get(name)
    if make is None or isinstance(sent, VBuffer | WBuffer) or isinstance(received, VBuffer | WBuffer):
        errors.fail(errors.ERR_UNSUPPORTED_OPERATION, f"{name} cannot be enqueued in a stream; {', '.join(_MAKERS)} can")
    given = _Operands(sent, received, root, op, is_captured)
    for operand in (sent, received):
        _check_place(prepared, name, operand)
    if make in _REDUCING:
        _check_operation(prepared, name, given)
    for operand in (sent, received):
        if operand is not None and operand.nbytes and not operand.contiguous:
            where = f"rank {prepared.comm.rank}: {name} in a stream"
            errors.fail(errors.ERR_TYPE, f"{where}: elements with gaps are not supported; call it on the communicator itself")
    return make(prepared, given)


def open_stream(prepared: Prepared, name: str, stream: Any) -> tuple[Stream, bool]:
    """The stream that a program gives, and whether it is being captured.

    Raises
    ------
    Exception
        ERR_ARG: a default stream, or one of another GPU or context than the communicator's.
    TypeError
        It is no stream.
    """
    handle, driver = handle_of(stream), prepared.driver
    about = f"rank {prepared.comm.rank}: {name} in a stream"
    if handle == LEGACY_STREAM:
        errors.fail(
            errors.ERR_ARG,
            f"{about}: this is the legacy default stream (NULL), which holds up other streams of the GPU while it waits for a peer, and "
            "cannot be captured; pass a stream of your own (cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream())",
        )
    if handle == PER_THREAD_STREAM:
        errors.fail(
            errors.ERR_ARG,
            f"{about}: this is the per-thread default stream, which is another one in each thread; pass a stream of your own",
        )
    with current(driver, prepared.device):
        state = driver.examine(handle, prepared.context)
        if state & FOREIGN:
            found = driver.stream_device(handle)
            where = f"GPU {found}" if found != prepared.device else f"another context of GPU {found}"
            errors.fail(
                errors.ERR_ARG,
                f"{about}: stream {handle:#x} belongs to {where}, and the communicator was prepared on GPU {prepared.device}, in the context "
                f"that was current; pass a stream that was made there (with cupy.cuda.Device({prepared.device}): cupy.cuda.Stream("
                f"non_blocking=True), torch.cuda.Stream({prepared.device})), or prepare the communicator while GPU {found} is current",
            )
    return Stream(handle, stream), bool(state & CAPTURED)


def _check_place(prepared: Prepared, name: str, operand: Buffer | None) -> None:
    """Raise unless an operand is memory of the communicator's GPU."""
    if operand is None or not operand.nbytes:
        return
    rank, memory = prepared.comm.rank, operand.device
    if memory is None:
        errors.fail(
            errors.ERR_BUFFER,
            f"rank {rank}: {name} in a stream: the array at {operand.address:#x} is in the host's memory; all arrays must be a GPU's. "
            "Call it on the communicator itself, or copy it to the GPU",
        )
    if memory.device != prepared.device:
        errors.fail(
            errors.ERR_BUFFER,
            f"rank {rank}: {name} in a stream: the array is on GPU {memory.device}, and the communicator was prepared on GPU "
            f"{prepared.device}; copy the array there, or prepare the communicator while GPU {memory.device} is current",
        )


class _Operands(NamedTuple):
    """What a rank brings to a call."""

    sent: Buffer | None
    received: Buffer | None
    root: int
    op: str | None
    is_captured: bool

    @property
    def any(self) -> Buffer:
        """An operand."""
        found = self.received if self.received is not None else self.sent
        assert found is not None
        return found


def _barrier(prepared: Prepared, given: _Operands) -> Task:
    return Task(Call(shm_oneshot.BARRIER, is_captured=given.is_captured), 0)


def _bcast(prepared: Prepared, given: _Operands) -> Task:
    array = given.any
    nbytes, got = array.nbytes, _aligned(array.nbytes)
    is_root = prepared.comm.rank == given.root

    def launches(at: int) -> Sequence[Launch]:
        return _copy(prepared, given.root, 1, at, 0, at + got, 0, nbytes)

    call = Call(shm_oneshot.BCAST, given.root, nbytes, 0, given.is_captured)
    copies = [HeapCopy(0 if is_root else got, array.address, nbytes)]
    return Task(call, got + nbytes, copies if is_root else (), () if is_root else copies, launches)


def _allgather(prepared: Prepared, given: _Operands) -> Task:
    array, size = given.any, prepared.comm.size
    nbytes = array.nbytes // size
    got = _aligned(nbytes)
    source = given.sent.address if given.sent is not None else array.address + prepared.comm.rank * nbytes

    def launches(at: int) -> Sequence[Launch]:
        return _copy(prepared, 0, size, at, 0, at + got, nbytes, nbytes)

    call = Call(shm_oneshot.ALLGATHER, 0, nbytes, 0, given.is_captured)
    return Task(call, got + array.nbytes, [HeapCopy(0, source, nbytes)], [HeapCopy(got, array.address, array.nbytes)], launches)


def _alltoall(prepared: Prepared, given: _Operands) -> Task:
    array, size = given.any, prepared.comm.size
    nbytes, got = array.nbytes // size, _aligned(array.nbytes)
    source = given.sent if given.sent is not None else array

    def launches(at: int) -> Sequence[Launch]:
        return _copy(prepared, 0, size, at, nbytes, at + got, nbytes, nbytes)

    call = Call(shm_oneshot.ALLTOALL, 0, nbytes, 0, given.is_captured)
    copies = [HeapCopy(0, source.address, source.nbytes)], [HeapCopy(got, array.address, array.nbytes)]
    return Task(call, got + array.nbytes, *copies, launches)


def _allreduce(prepared: Prepared, given: _Operands) -> Task:
    array = given.any
    source = given.sent if given.sent is not None else array
    kernel, digest = _reduction(prepared, "allreduce", given, symmetric.spread_kernel)
    nbytes, itemsize = array.nbytes, array.itemsize
    first, share = share_of(nbytes, len(prepared.order), prepared.order.index(prepared.executors[prepared.comm.rank]))
    counts = share // itemsize, prepared.piece(share) // itemsize

    def launches(at: int) -> Sequence[Launch]:
        return [prepared.launch(kernel, share, (at + first, *counts))] if kernel is not None and share else ()

    call = Call(shm_oneshot.ALLREDUCE, 0, nbytes, digest, given.is_captured)
    return Task(call, nbytes, [HeapCopy(0, source.address, nbytes)], [HeapCopy(0, array.address, nbytes)], launches)


def _reduce_scatter_block(prepared: Prepared, given: _Operands) -> Task:
    array, size = given.any, prepared.comm.size
    source = given.sent if given.sent is not None else array
    kernel, digest = _reduction(prepared, "reduce_scatter_block", given, symmetric.reduce_kernel)
    nbytes, itemsize = source.nbytes // size, array.itemsize
    got = _aligned(source.nbytes) if size > 1 else 0

    targets = len(prepared.members)
    total = nbytes * targets
    counts = nbytes // itemsize, prepared.piece(total) // itemsize

    def launches(at: int) -> Sequence[Launch]:
        return [prepared.launch(kernel, total, (targets, at, nbytes, at + got, *counts))] if kernel is not None and total else ()

    call = Call(shm_oneshot.REDUCE_SCATTER, 0, source.nbytes, digest, given.is_captured)
    return Task(call, got + nbytes, [HeapCopy(0, source.address, source.nbytes)], [HeapCopy(got, array.address, nbytes)], launches)


_MAKERS: dict[str, Callable[[Prepared, _Operands], Task]] = {
    "barrier": _barrier,
    "bcast": _bcast,
    "allgather": _allgather,
    "alltoall": _alltoall,
    "allreduce": _allreduce,
    "reduce_scatter_block": _reduce_scatter_block,
}
_REDUCING = (_allreduce, _reduce_scatter_block)


def _copy(
    prepared: Prepared, first: int, sources: int, given: int, given_pitch: int, got: int, got_pitch: int, nbytes: int
) -> Sequence[Launch]:
    """Launches of :data:`~numba_kernels.cuda.symmetric.COPY` for all ranks that this one executes for."""
    targets = len(prepared.members)
    total = sources * targets * nbytes
    if not total:
        return ()
    arguments = first, sources, targets, given, given_pitch, got, got_pitch, nbytes, prepared.piece(total)
    return [prepared.launch(symmetric.COPY, total, arguments)]


def _check_operation(prepared: Prepared, name: str, given: _Operands) -> None:
    """Raise unless there is a kernel for a reduction."""
    op, datatype = given.op, given.any.datatype
    if op is None or not is_supported(op, given.any.layout.kind or ""):
        errors.fail(
            errors.ERR_OP,
            f"rank {prepared.comm.rank}: {name} in a stream: there is no kernel for {op or 'an operation of the program'} on elements of "
            f"type {datatype.name}; call it on the communicator itself",
        )


def _reduction(
    prepared: Prepared, name: str, given: _Operands, make: Callable[[str, str, int], Kernel]
) -> tuple[Kernel | None, int]:
    """The kernel of a reduction, None if there is nothing to reduce, and its digest. A kernel is loaded when it is first asked for."""
    op, element, rank = given.op or "", given.any.layout.kind or "", prepared.comm.rank
    kernel = prepared.kernel(make, op, element)
    if kernel is None and prepared.comm.size > 1:
        if given.is_captured:
            errors.fail(
                errors.ERR_UNSUPPORTED_OPERATION,
                f"rank {rank}: {name} in a stream: kernels cannot be loaded while a stream is captured; name {op} and "
                f"{given.any.datatype.name} in prepare(reductions=), or make such a call before the capture",
            )
        prepared.load([(op, element)])
        kernel = prepared.kernel(make, op, element)
    return kernel, zlib.crc32(f"{op} {element}".encode())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
