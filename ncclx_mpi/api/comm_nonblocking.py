"""Non-blocking collectives on buffers: the twins of :mod:`comm_collective` that return a request."""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.api import collective_arguments, fast
from ncclx_mpi.api.collective_arguments import start
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.op import SUM, Op
from ncclx_mpi.api.request import Request
from ncclx_mpi.buffers.sentinels import IN_PLACE
from ncclx_mpi.collectives.fast_vector import TYPED
from ncclx_mpi.collectives.shm_oneshot import ALLTOALL, GATHER, SCATTER
from ncclx_mpi.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace


class NonBlockingCollectives:
    """Methods of Comm: non-blocking collectives."""

    __slots__ = ()
    _state: CommState

    def Ibarrier(self) -> Request:
        """Nonblocking: barrier synchronization."""
        state = self._state
        request: Request | None = fast.ibarrier(state.address)
        return start(state, collective_arguments.barrier) if request is None else request

    def Ibcast(self, buf: BufSpec, root: int = 0) -> Request:
        """Nonblocking: broadcast data from one member to all members of a group."""
        state = self._state
        request: Request | None = fast.ibcast_array(state.address, buf, root)
        return start(state, collective_arguments.bcast, buf, root) if request is None else request

    def Igather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> Request:
        """Nonblocking: gather data to one member of a group."""
        state = self._state
        request: Request | None = fast.igather_arrays(state.address, sendbuf, recvbuf, root)
        return start(state, collective_arguments.gather, sendbuf, recvbuf, root) if request is None else request

    def Igatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> Request:
        """Nonblocking: gather vector data to one member of a group."""
        state = self._state
        request: Request | None = fast.iexchange_vectors(state.address, GATHER, sendbuf, recvbuf, root)
        return start(state, collective_arguments.gatherv, sendbuf, recvbuf, root) if request is None else request

    def Iscatter(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> Request:
        """Nonblocking: scatter data from one member to all members of a group."""
        state = self._state
        request: Request | None = fast.iscatter_arrays(state.address, sendbuf, recvbuf, root)
        return start(state, collective_arguments.scatter, sendbuf, recvbuf, root) if request is None else request

    def Iscatterv(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> Request:
        """Nonblocking: scatter vector data from one member to all members of a group."""
        state = self._state
        request: Request | None = fast.iexchange_vectors(state.address, SCATTER, sendbuf, recvbuf, root)
        return start(state, collective_arguments.scatterv, sendbuf, recvbuf, root) if request is None else request

    def Iallgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> Request:
        """Nonblocking: gather data to all members of a group."""
        state = self._state
        request: Request | None = fast.iallgather_arrays(state.address, sendbuf, recvbuf)
        return start(state, collective_arguments.allgather, sendbuf, recvbuf) if request is None else request

    def Iallgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> Request:
        """Nonblocking: gather vector data to all members of a group."""
        state = self._state
        request: Request | None = fast.iallgatherv_arrays(state.address, sendbuf, recvbuf)
        return start(state, collective_arguments.allgatherv, sendbuf, recvbuf) if request is None else request

    def Ialltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> Request:
        """Nonblocking: exchange a block of data between all members of a group."""
        state = self._state
        request: Request | None = fast.ialltoall_arrays(state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf)
        return start(state, collective_arguments.alltoall, sendbuf, recvbuf) if request is None else request

    def Ialltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> Request:
        """Nonblocking: exchange vector data between all members of a group."""
        state = self._state
        request: Request | None = fast.iexchange_vectors(
            state.address, ALLTOALL, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, 0
        )
        return start(state, collective_arguments.alltoallv, sendbuf, recvbuf) if request is None else request

    def Ialltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW) -> Request:
        """Nonblocking: exchange data of different types between all members of a group."""
        state = self._state
        request: Request | None = fast.iexchange_vectors(
            state.address, TYPED, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, 0
        )
        return start(state, collective_arguments.alltoallw, sendbuf, recvbuf) if request is None else request

    def Ireduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op = SUM, root: int = 0) -> Request:
        """Nonblocking: reduce to one member of a group."""
        state = self._state
        request: Request | None = fast.ireduce_arrays(state.address, sendbuf, recvbuf, fast.table_of(op), root)
        return start(state, collective_arguments.reduce, sendbuf, recvbuf, op, root) if request is None else request

    def Iallreduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> Request:
        """Nonblocking: reduce to all members of a group."""
        state = self._state
        request: Request | None = fast.iallreduce_arrays(
            state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, fast.table_of(op)
        )
        return start(state, collective_arguments.allreduce, sendbuf, recvbuf, op) if request is None else request

    def Ireduce_scatter_block(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op = SUM) -> Request:
        """Nonblocking: reduce and scatter equal blocks of the result."""
        state = self._state
        request: Request | None = fast.ireduce_scatter_block_arrays(state.address, sendbuf, recvbuf, fast.table_of(op))
        return start(state, collective_arguments.reduce_scatter_block, sendbuf, recvbuf, op) if request is None else request

    def Ireduce_scatter(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> Request:
        """Nonblocking: reduce and scatter the result."""
        state = self._state
        request: Request | None = fast.ireduce_scatter_arrays(state.address, sendbuf, recvbuf, recvcounts, fast.table_of(op))
        return start(state, collective_arguments.reduce_scatter, sendbuf, recvbuf, recvcounts, op) if request is None else request


class NonBlockingScans:
    """Methods of Intracomm: non-blocking scans."""

    __slots__ = ()
    _state: CommState

    def Iscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> Request:
        """Nonblocking: inclusive scan."""
        state = self._state
        request: Request | None = fast.iscan_arrays(
            state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, fast.table_of(op), 0
        )
        return start(state, collective_arguments.scan, sendbuf, recvbuf, op) if request is None else request

    def Iexscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> Request:
        """Nonblocking: exclusive scan."""
        state = self._state
        request: Request | None = fast.iscan_arrays(
            state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, fast.table_of(op), 1
        )
        return start(state, collective_arguments.exscan, sendbuf, recvbuf, op) if request is None else request
