"""Persistent collectives on buffers: the twins of :mod:`comm_collective` that are started again and again."""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.api import collective_arguments
from ncclx_mpi.api.collective_arguments import prepare
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.op import SUM, Op
from ncclx_mpi.api.request import Prequest
from ncclx_mpi.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace


class PersistentCollectives:
    """Methods of Comm: persistent collectives."""

    __slots__ = ()
    _state: CommState

    def Barrier_init(self, info: Info = INFO_NULL) -> Prequest:
        """Persistent: barrier synchronization."""
        return prepare(self._state, collective_arguments.barrier)

    def Bcast_init(self, buf: BufSpec, root: int = 0, info: Info = INFO_NULL) -> Prequest:
        """Persistent: broadcast data from one member to all members of a group."""
        return prepare(self._state, collective_arguments.bcast, buf, root)

    def Gather_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, info: Info = INFO_NULL) -> Prequest:
        """Persistent: gather data to one member of a group."""
        return prepare(self._state, collective_arguments.gather, sendbuf, recvbuf, root)

    def Gatherv_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, info: Info = INFO_NULL) -> Prequest:
        """Persistent: gather vector data to one member of a group."""
        return prepare(self._state, collective_arguments.gatherv, sendbuf, recvbuf, root)

    def Scatter_init(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, info: Info = INFO_NULL) -> Prequest:
        """Persistent: scatter data from one member to all members of a group."""
        return prepare(self._state, collective_arguments.scatter, sendbuf, recvbuf, root)

    def Scatterv_init(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, info: Info = INFO_NULL
    ) -> Prequest:
        """Persistent: scatter vector data from one member to all members of a group."""
        return prepare(self._state, collective_arguments.scatterv, sendbuf, recvbuf, root)

    def Allgather_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, info: Info = INFO_NULL) -> Prequest:
        """Persistent: gather data to all members of a group."""
        return prepare(self._state, collective_arguments.allgather, sendbuf, recvbuf)

    def Allgatherv_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, info: Info = INFO_NULL) -> Prequest:
        """Persistent: gather vector data to all members of a group."""
        return prepare(self._state, collective_arguments.allgatherv, sendbuf, recvbuf)

    def Alltoall_init(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, info: Info = INFO_NULL) -> Prequest:
        """Persistent: exchange a block of data between all members of a group."""
        return prepare(self._state, collective_arguments.alltoall, sendbuf, recvbuf)

    def Alltoallv_init(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, info: Info = INFO_NULL) -> Prequest:
        """Persistent: exchange vector data between all members of a group."""
        return prepare(self._state, collective_arguments.alltoallv, sendbuf, recvbuf)

    def Alltoallw_init(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, info: Info = INFO_NULL) -> Prequest:
        """Persistent: exchange data of different types between all members of a group."""
        return prepare(self._state, collective_arguments.alltoallw, sendbuf, recvbuf)

    def Reduce_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op = SUM, root: int = 0, info: Info = INFO_NULL
    ) -> Prequest:
        """Persistent: reduce to one member of a group."""
        return prepare(self._state, collective_arguments.reduce, sendbuf, recvbuf, op, root)

    def Allreduce_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM, info: Info = INFO_NULL) -> Prequest:
        """Persistent: reduce to all members of a group."""
        return prepare(self._state, collective_arguments.allreduce, sendbuf, recvbuf, op)

    def Reduce_scatter_block_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op = SUM, info: Info = INFO_NULL
    ) -> Prequest:
        """Persistent: reduce and scatter equal blocks of the result."""
        return prepare(self._state, collective_arguments.reduce_scatter_block, sendbuf, recvbuf, op)

    def Reduce_scatter_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None,
        op: Op = SUM,
        info: Info = INFO_NULL,
    ) -> Prequest:
        """Persistent: reduce and scatter the result."""
        return prepare(self._state, collective_arguments.reduce_scatter, sendbuf, recvbuf, recvcounts, op)


class PersistentScans:
    """Methods of Intracomm: persistent scans."""

    __slots__ = ()
    _state: CommState

    def Scan_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM, info: Info = INFO_NULL) -> Prequest:
        """Persistent: inclusive scan."""
        return prepare(self._state, collective_arguments.scan, sendbuf, recvbuf, op)

    def Exscan_init(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM, info: Info = INFO_NULL) -> Prequest:
        """Persistent: exclusive scan."""
        return prepare(self._state, collective_arguments.exscan, sendbuf, recvbuf, op)
