"""Non-blocking collectives on buffers: the twins of :mod:`comm_collective` that return a request."""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.api import calls, fast, started
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.memory import IN_PLACE
from ncclx_mpi.api.op import SUM, Op
from ncclx_mpi.api.request import Request
from ncclx_mpi.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace


class NonBlockingCollectives:
    """Methods of Comm: non-blocking collectives."""

    __slots__ = ()
    _state: CommState

    def Ibarrier(self) -> Request:
        """Nonblocking: barrier synchronization."""
        state = self._state
        number = fast.ibarrier(state.address)
        if number > 0:
            return started.request(state, number, "barrier", None)
        return calls.start(state, calls.barrier(state))

    def Ibcast(self, buf: BufSpec, root: int = 0) -> Request:
        """Nonblocking: broadcast data from one member to all members of a group."""
        state = self._state
        number = fast.ibcast_array(state.address, buf, root)
        if number > 0:
            return started.request(state, number, "bcast", buf)
        return calls.start(state, calls.bcast(state, buf, root))

    def Igather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> Request:
        """Nonblocking: gather data to one member of a group."""
        state = self._state
        number = fast.igather_arrays(state.address, sendbuf, recvbuf, root)
        if number > 0:
            return started.request(state, number, "gather", (sendbuf, recvbuf))
        return calls.start(state, calls.gather(state, sendbuf, recvbuf, root))

    def Igatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> Request:
        """Nonblocking: gather vector data to one member of a group."""
        return calls.start(self._state, calls.gatherv(self._state, sendbuf, recvbuf, root))

    def Iscatter(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> Request:
        """Nonblocking: scatter data from one member to all members of a group."""
        state = self._state
        number = fast.iscatter_arrays(state.address, sendbuf, recvbuf, root)
        if number > 0:
            return started.request(state, number, "scatter", (sendbuf, recvbuf))
        return calls.start(state, calls.scatter(state, sendbuf, recvbuf, root))

    def Iscatterv(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> Request:
        """Nonblocking: scatter vector data from one member to all members of a group."""
        return calls.start(self._state, calls.scatterv(self._state, sendbuf, recvbuf, root))

    def Iallgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> Request:
        """Nonblocking: gather data to all members of a group."""
        state = self._state
        number = fast.iallgather_arrays(state.address, sendbuf, recvbuf)
        if number > 0:
            return started.request(state, number, "allgather", (sendbuf, recvbuf))
        return calls.start(state, calls.allgather(state, sendbuf, recvbuf))

    def Iallgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> Request:
        """Nonblocking: gather vector data to all members of a group."""
        return calls.start(self._state, calls.allgatherv(self._state, sendbuf, recvbuf))

    def Ialltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> Request:
        """Nonblocking: exchange a block of data between all members of a group."""
        state = self._state
        number = fast.ialltoall_arrays(state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf)
        if number > 0:
            return started.request(state, number, "alltoall", (sendbuf, recvbuf))
        return calls.start(state, calls.alltoall(state, sendbuf, recvbuf))

    def Ialltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> Request:
        """Nonblocking: exchange vector data between all members of a group."""
        return calls.start(self._state, calls.alltoallv(self._state, sendbuf, recvbuf))

    def Ialltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW) -> Request:
        """Nonblocking: exchange data of different types between all members of a group."""
        return calls.start(self._state, calls.alltoallw(self._state, sendbuf, recvbuf))

    def Ireduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op = SUM, root: int = 0) -> Request:
        """Nonblocking: reduce to one member of a group."""
        state = self._state
        number = fast.ireduce_arrays(state.address, sendbuf, recvbuf, fast.table_of(op), root)
        if number > 0:
            return started.request(state, number, "reduce", (sendbuf, recvbuf))
        fast.learn_from(op, sendbuf)
        return calls.start(state, calls.reduce(state, sendbuf, recvbuf, op, root))

    def Iallreduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> Request:
        """Nonblocking: reduce to all members of a group."""
        state = self._state
        number = fast.iallreduce_arrays(state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, fast.table_of(op))
        if number > 0:
            return started.request(state, number, "allreduce", (sendbuf, recvbuf))
        fast.learn_from(op, recvbuf)
        return calls.start(state, calls.allreduce(state, sendbuf, recvbuf, op))

    def Ireduce_scatter_block(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op = SUM) -> Request:
        """Nonblocking: reduce and scatter equal blocks of the result."""
        state = self._state
        number = fast.ireduce_scatter_block_arrays(state.address, sendbuf, recvbuf, fast.table_of(op))
        if number > 0:
            return started.request(state, number, "reduce_scatter_block", (sendbuf, recvbuf))
        fast.learn_from(op, recvbuf)
        return calls.start(state, calls.reduce_scatter_block(state, sendbuf, recvbuf, op))

    def Ireduce_scatter(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> Request:
        """Nonblocking: reduce and scatter the result."""
        return calls.start(self._state, calls.reduce_scatter(self._state, sendbuf, recvbuf, recvcounts, op))


class NonBlockingScans:
    """Methods of Intracomm: non-blocking scans."""

    __slots__ = ()
    _state: CommState

    def Iscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> Request:
        """Nonblocking: inclusive scan."""
        state = self._state
        number = fast.iscan_arrays(state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, fast.table_of(op), 0)
        if number > 0:
            return started.request(state, number, "scan", (sendbuf, recvbuf))
        fast.learn_from(op, recvbuf)
        return calls.start(state, calls.scan(state, sendbuf, recvbuf, op))

    def Iexscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> Request:
        """Nonblocking: exclusive scan."""
        state = self._state
        number = fast.iscan_arrays(state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, fast.table_of(op), 1)
        if number > 0:
            return started.request(state, number, "exscan", (sendbuf, recvbuf))
        fast.learn_from(op, recvbuf)
        return calls.start(state, calls.exscan(state, sendbuf, recvbuf, op))
