"""Non-blocking collectives on buffers: the twins of :mod:`comm_collective` that return a request."""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.api import calls
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.op import SUM, Op
from ncclx_mpi.api.request import Request
from ncclx_mpi.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace


class NonBlockingCollectives:
    """Methods of Comm: non-blocking collectives."""

    __slots__ = ()
    _state: CommState

    def Ibarrier(self) -> Request:
        """Nonblocking: barrier synchronization."""
        return calls.start(self._state, calls.barrier(self._state))

    def Ibcast(self, buf: BufSpec, root: int = 0) -> Request:
        """Nonblocking: broadcast data from one member to all members of a group."""
        return calls.start(self._state, calls.bcast(self._state, buf, root))

    def Igather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> Request:
        """Nonblocking: gather data to one member of a group."""
        return calls.start(self._state, calls.gather(self._state, sendbuf, recvbuf, root))

    def Igatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> Request:
        """Nonblocking: gather vector data to one member of a group."""
        return calls.start(self._state, calls.gatherv(self._state, sendbuf, recvbuf, root))

    def Iscatter(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> Request:
        """Nonblocking: scatter data from one member to all members of a group."""
        return calls.start(self._state, calls.scatter(self._state, sendbuf, recvbuf, root))

    def Iscatterv(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> Request:
        """Nonblocking: scatter vector data from one member to all members of a group."""
        return calls.start(self._state, calls.scatterv(self._state, sendbuf, recvbuf, root))

    def Iallgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> Request:
        """Nonblocking: gather data to all members of a group."""
        return calls.start(self._state, calls.allgather(self._state, sendbuf, recvbuf))

    def Iallgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> Request:
        """Nonblocking: gather vector data to all members of a group."""
        return calls.start(self._state, calls.allgatherv(self._state, sendbuf, recvbuf))

    def Ialltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> Request:
        """Nonblocking: exchange a block of data between all members of a group."""
        return calls.start(self._state, calls.alltoall(self._state, sendbuf, recvbuf))

    def Ialltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> Request:
        """Nonblocking: exchange vector data between all members of a group."""
        return calls.start(self._state, calls.alltoallv(self._state, sendbuf, recvbuf))

    def Ialltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW) -> Request:
        """Nonblocking: exchange data of different types between all members of a group."""
        return calls.start(self._state, calls.alltoallw(self._state, sendbuf, recvbuf))

    def Ireduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op = SUM, root: int = 0) -> Request:
        """Nonblocking: reduce to one member of a group."""
        return calls.start(self._state, calls.reduce(self._state, sendbuf, recvbuf, op, root))

    def Iallreduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> Request:
        """Nonblocking: reduce to all members of a group."""
        return calls.start(self._state, calls.allreduce(self._state, sendbuf, recvbuf, op))

    def Ireduce_scatter_block(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op = SUM) -> Request:
        """Nonblocking: reduce and scatter equal blocks of the result."""
        return calls.start(self._state, calls.reduce_scatter_block(self._state, sendbuf, recvbuf, op))

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
        return calls.start(self._state, calls.scan(self._state, sendbuf, recvbuf, op))

    def Iexscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> Request:
        """Nonblocking: exclusive scan."""
        return calls.start(self._state, calls.exscan(self._state, sendbuf, recvbuf, op))
