"""Collectives in streams of GPUs: after a collective ``prepare``, calls by ``in_stream`` return at once, as those of NCCL do.

::

    comm.prepare(heap=256 << 20, reductions=[(MPI.SUM, MPI.FLOAT)])
    enqueued = comm.in_stream(stream)
    with stream:
        gradient = model(batch)
        enqueued.Allreduce(MPI.IN_PLACE, gradient)                 # enqueued behind the kernels above
        weights -= rate * gradient                                 # enqueued behind it
    stream.synchronize()
    comm.check()

How it works is in :mod:`ncclx_mpi.device.prepared` and :mod:`ncclx_mpi.device.enqueued`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncclx_mpi import errors
from ncclx_mpi.api import collective_arguments
from ncclx_mpi.api.datatype import Datatype, kind_of
from ncclx_mpi.api.op import SUM, Op
from ncclx_mpi.typing import BufSpec, BufSpecB, InPlace, Stream

if TYPE_CHECKING:
    from ncclx_mpi.api.communicator import CommState


class InStream:
    """Collectives of a communicator in one stream; see :meth:`StreamOrdered.in_stream`."""

    __slots__ = ("_state", "_stream")

    def __init__(self, state: CommState, stream: Stream) -> None:
        self._state = state
        self._stream = stream

    def Barrier(self) -> None:
        """Barrier synchronization of streams."""
        collective_arguments.enqueue(self._state, self._stream, collective_arguments.barrier)

    def Bcast(self, buf: BufSpec, root: int = 0) -> None:
        """Broadcast data from one member to all members of a group."""
        collective_arguments.enqueue(self._state, self._stream, collective_arguments.bcast, buf, root)

    def Allgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> None:
        """Gather data to all members of a group."""
        collective_arguments.enqueue(self._state, self._stream, collective_arguments.allgather, sendbuf, recvbuf)

    def Alltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> None:
        """Exchange a block of data between all members of a group."""
        collective_arguments.enqueue(self._state, self._stream, collective_arguments.alltoall, sendbuf, recvbuf)

    def Allreduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> None:
        """Reduce to all members of a group."""
        collective_arguments.enqueue(self._state, self._stream, collective_arguments.allreduce, sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op = SUM) -> None:
        """Reduce and scatter equal blocks of the result."""
        collective_arguments.enqueue(self._state, self._stream, collective_arguments.reduce_scatter_block, sendbuf, recvbuf, op)


class StreamOrdered:
    """Methods of Intracomm: collectives in streams."""

    __slots__ = ()
    _state: CommState

    def prepare(self, heap: int = 64 << 20, reductions: Sequence[tuple[Op, Datatype]] = ()) -> None:
        """Prepare the communicator for collectives in streams. Collective.

        Afterwards :meth:`in_stream` makes calls in streams. Such a call comes after what the stream holds, and returns at once. Its arrays
        are contiguous GPU memory, and the call's until the stream has passed it; no other stream is taken into account. A stream that is
        being captured takes calls too, which run whenever the graph is replayed.

        Parameters
        ----------
        heap
            Bytes of GPU memory through which calls copy, on each rank. At least twice the largest array of a call, or once that of an
            allreduce, and the same once more for each call that is captured.
        reductions
            Operations and datatypes that will be used, so that their kernels are loaded now. Others are loaded at their first use,
            in which ranks wait for each other; under capture they are refused.

        Raises
        ------
        Exception
            On all ranks. ERR_OTHER: prepared already; or one of the ranks has no driver or memory, or cannot map that of another rank, or
            has no compiler. ERR_ARG: heaps of different sizes. ERR_OP: there is no kernel for a reduction.
            ERR_UNSUPPORTED_OPERATION: more than 16 ranks.

        Notes
        -----
        The GPU is the current one of the calling thread, and streams must have been made on it. ``Free`` waits for calls that are under
        way; graphs with captured calls must not be replayed after it. All ranks make the same calls in the same order; calls in different
        streams of one rank are ordered as they are made. When a rank dies, streams that wait for it go on: what they bring is not valid,
        and the next call, or :meth:`check`, raises.
        """
        from ncclx_mpi.device.prepared import prepare
        from numba_kernels.cuda.limits import is_supported

        state = self._state
        if state.prepared is not None:
            errors.fail(errors.ERR_OTHER, "the communicator is prepared already; duplicate it to have another heap")
        if heap < 1:
            errors.fail(errors.ERR_ARG, f"a heap of {heap} bytes; it must hold at least one")
        named = [(op._state.name.lower() if not op._state.user else "", kind_of(datatype) or "") for op, datatype in reductions]
        for op, kind in named:
            if not is_supported(op, kind):
                errors.fail(
                    errors.ERR_OP,
                    f"prepare: there is no kernel for {op or 'a user operation'} on elements of type {kind or 'unknown'}",
                )
        state.prepared = prepare(state.native, heap, named)

    def in_stream(self, stream: Stream) -> InStream:
        """Give the collectives that are enqueued in a stream of a GPU, on a communicator that is prepared for it.

        Parameters
        ----------
        stream
            A stream of CuPy or Torch, an object with ``__cuda_stream__``, or a handle of the driver. It is looked at in each call.

        Returns
        -------
        InStream
            Its methods ``Barrier``, ``Bcast``, ``Allgather``, ``Alltoall``, ``Allreduce`` and ``Reduce_scatter_block`` take what those of
            the communicator take. It may be kept and used again.
        """
        return InStream(self._state, stream)

    def check(self) -> None:
        """Raise what went wrong in calls in streams so far; call it when their streams have passed them, before results are used.

        Raises
        ------
        Exception
            ERR_PROC_FAILED: a rank died. ERR_TRUNCATE, ERR_ROOT, ERR_OP: ranks gave different counts, roots or operations in a call.
            ERR_OTHER: they made different calls, or one failed. ERR_COMM: the communicator is not prepared.
        """
        if self._state.prepared is None:
            errors.fail(errors.ERR_COMM, "the communicator is not prepared for calls in streams")
        self._state.prepared.check()
