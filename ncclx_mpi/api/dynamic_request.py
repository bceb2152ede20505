"""Persistent requests of Alltoallv_dynamic: started by the host, or in streams of a GPU, also while these are captured into graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclx_mpi import errors
from ncclx_mpi.api.request import Prequest
from ncclx_mpi.extensions.alltoallv_dynamic.faults import NAME
from ncclx_mpi.extensions.alltoallv_dynamic.operation import DynamicOperation
from ncclx_mpi.typing import Stream

if TYPE_CHECKING:
    from ncclx_mpi.extensions.alltoallv_dynamic.device.in_stream import Enqueued


class DynamicRequest(Prequest):
    """Persistent request handler of ``Alltoallv_dynamic_init`` and ``Alltoallv_dynamic_combine_init``."""

    __slots__ = ()

    def Start(self, *, stream: Stream = None) -> None:
        """Start it: on the host, or in a stream of a GPU, which returns at once.

        In a stream, the arrays are read and written after what the stream holds, and all results are there when it has passed the
        call; `splits`, `indices` and `blocklengths` hold what they hold then, and no host learns it. There is nothing to wait for:
        the request is not active afterwards. A stream that is being captured takes the start into its graph, as often as it is captured;
        each replay reads the metadata anew. All ranks start the same requests, in the same order among all calls in streams
        of the communicator, and replay the same graphs; starts of one request are in one stream, or in streams that follow each other.

        Parameters
        ----------
        stream
            A stream of CuPy or Torch, an object with ``__cuda_stream__``, or a handle of the driver. The communicator must have been
            prepared (:meth:`~ncclx_mpi.api.comm_streams.StreamOrdered.prepare`) when the request was made, with all arrays of
            all ranks on the GPUs that it was prepared on. None: the host.

        Raises
        ------
        Exception
            ERR_TRUNCATE, ERR_TYPE: in an earlier start in a stream pairs of this rank moved nothing; this start is enqueued all the same.
            ERR_UNSUPPORTED_OPERATION: it cannot be started in streams; the message says why. ERR_ARG: a default stream, or
            one of another GPU.
            ERR_PROC_FAILED, ERR_OTHER: an earlier call in a stream of the communicator failed; this one is not enqueued.
        """
        if stream is None:
            super().Start()
        else:
            self._in_streams().start(stream)

    def check(self) -> None:
        """Raise what went wrong in starts in streams so far; call it when their streams have passed them, before results are used.

        Raises
        ------
        Exception
            As :meth:`Start`, and as ``check`` of the communicator.
        """
        self._in_streams().check()

    def _in_streams(self) -> Enqueued:
        operation = self._operation()
        assert isinstance(operation, DynamicOperation)
        if operation.current is not None:
            errors.fail(errors.ERR_REQUEST, "the persistent request is active: wait for it before starting it again")
        if isinstance(operation.enqueued, str):
            errors.fail(errors.ERR_UNSUPPORTED_OPERATION, f"this {NAME} cannot be started in streams: {operation.enqueued}")
        return operation.enqueued
