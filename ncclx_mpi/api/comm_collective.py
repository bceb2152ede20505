"""Blocking collectives on buffers. What each means, and when its arguments matter, is in :mod:`ncclx_mpi.api.collective_arguments`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ncclx_mpi.api import collective_arguments, fast
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.op import SUM, Op
from ncclx_mpi.buffers.sentinels import IN_PLACE
from ncclx_mpi.collectives.fast_vector import TYPED
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, ALLTOALL, BCAST, GATHER, SCATTER
from ncclx_mpi.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace
from numba_kernels.pylayouts import is_any_known


class Collectives:
    """Methods of Comm: blocking collectives."""

    __slots__ = ()
    _state: CommState

    def Barrier(self) -> None:
        """Barrier synchronization."""
        state = self._state
        code = fast.barrier_now(state.address)
        if code and fast.settle(state, code, "barrier"):
            collective_arguments.carry_out(state, collective_arguments.barrier)

    def barrier(self) -> None:
        """Barrier synchronization."""
        self.Barrier()

    def Bcast(self, buf: BufSpec, root: int = 0) -> None:
        """Broadcast data from one member to all members of a group."""
        state = self._state
        code = fast.bcast_array(state.address, buf, root)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out(state.address, BCAST, buf, buf, root)
        if code and fast.settle(state, code, "bcast"):
            _go_on(self, Collectives.Bcast, collective_arguments.bcast, buf, root)

    def Gather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> None:
        """Gather data to one member of a group."""
        state = self._state
        code = fast.gather_arrays(state.address, sendbuf, recvbuf, root)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out(state.address, GATHER, sendbuf, recvbuf, root)
        if code and fast.settle(state, code, "gather"):
            _go_on(self, Collectives.Gather, collective_arguments.gather, sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> None:
        """Gather vector data to one member of a group."""
        state = self._state
        code = fast.exchange_vectors(state.address, GATHER, sendbuf, recvbuf, root)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out_vectors(state.address, GATHER, sendbuf, recvbuf, root)
        if code and fast.settle(state, code, "gatherv"):
            _go_on(self, Collectives.Gatherv, collective_arguments.gatherv, sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """Scatter data from one member to all members of a group."""
        state = self._state
        code = fast.scatter_arrays(state.address, sendbuf, recvbuf, root)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out(state.address, SCATTER, sendbuf, recvbuf, root)
        if code and fast.settle(state, code, "scatter"):
            _go_on(self, Collectives.Scatter, collective_arguments.scatter, sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """Scatter vector data from one member to all members of a group."""
        state = self._state
        code = fast.exchange_vectors(state.address, SCATTER, sendbuf, recvbuf, root)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out_vectors(state.address, SCATTER, sendbuf, recvbuf, root)
        if code and fast.settle(state, code, "scatterv"):
            _go_on(self, Collectives.Scatterv, collective_arguments.scatterv, sendbuf, recvbuf, root)

    def Allgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> None:
        """Gather data to all members of a group."""
        state = self._state
        code = fast.allgather_arrays(state.address, sendbuf, recvbuf)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out(state.address, ALLGATHER, sendbuf, recvbuf, 0)
        if code and fast.settle(state, code, "allgather"):
            _go_on(self, Collectives.Allgather, collective_arguments.allgather, sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> None:
        """Gather vector data to all members of a group."""
        state = self._state
        code = fast.allgatherv_arrays(state.address, sendbuf, recvbuf)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out_vectors(state.address, ALLGATHER, sendbuf, recvbuf, 0)
        if code and fast.settle(state, code, "allgatherv"):
            _go_on(self, Collectives.Allgatherv, collective_arguments.allgatherv, sendbuf, recvbuf)

    def Alltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> None:
        """Exchange a block of data between all members of a group."""
        state = self._state
        code = fast.alltoall_arrays(state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out(state.address, ALLTOALL, sendbuf, recvbuf, 0)
        if code and fast.settle(state, code, "alltoall"):
            _go_on(self, Collectives.Alltoall, collective_arguments.alltoall, sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> None:
        """Exchange vector data between all members of a group."""
        state = self._state
        code = fast.exchange_vectors(state.address, ALLTOALL, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, 0)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out_vectors(state.address, ALLTOALL, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, 0)
        if code and fast.settle(state, code, "alltoallv"):
            _go_on(self, Collectives.Alltoallv, collective_arguments.alltoallv, sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW) -> None:
        """Exchange data of different types between all members of a group."""
        state = self._state
        code = fast.exchange_vectors(state.address, TYPED, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, 0)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_laid_out_vectors(state.address, TYPED, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, 0)
        if code and fast.settle(state, code, "alltoallw"):
            _go_on(self, Collectives.Alltoallw, collective_arguments.alltoallw, sendbuf, recvbuf)

    def Reduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op = SUM, root: int = 0) -> None:
        """Reduce to one member of a group."""
        state = self._state
        code = fast.reduce_arrays(state.address, sendbuf, recvbuf, fast.table_of(op), root)
        if code and fast.settle(state, code, "reduce"):
            collective_arguments.carry_out(state, collective_arguments.reduce, sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> None:
        """Reduce to all members of a group."""
        state = self._state
        given = recvbuf if sendbuf is IN_PLACE else sendbuf
        code = fast.allreduce_arrays(state.address, given, recvbuf, fast.table_of(op))
        if code and fast.settle(state, code, "allreduce"):
            collective_arguments.carry_out(state, collective_arguments.allreduce, sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op = SUM) -> None:
        """Reduce and scatter equal blocks of the result."""
        state = self._state
        code = fast.reduce_scatter_block_arrays(state.address, sendbuf, recvbuf, fast.table_of(op))
        if code and fast.settle(state, code, "reduce_scatter_block"):
            collective_arguments.carry_out(state, collective_arguments.reduce_scatter_block, sendbuf, recvbuf, op)

    def Reduce_scatter(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> None:
        """Reduce and scatter the result."""
        state = self._state
        code = fast.reduce_scatter_arrays(state.address, sendbuf, recvbuf, recvcounts, fast.table_of(op))
        if code and fast.settle(state, code, "reduce_scatter"):
            collective_arguments.carry_out(state, collective_arguments.reduce_scatter, sendbuf, recvbuf, recvcounts, op)


class Scans:
    """Methods of Intracomm: blocking scans."""

    __slots__ = ()
    _state: CommState

    def Scan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> None:
        """Inclusive scan."""
        state = self._state
        code = fast.scan_arrays(state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, fast.table_of(op), 0)
        if code and fast.settle(state, code, "scan"):
            collective_arguments.carry_out(state, collective_arguments.scan, sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM) -> None:
        """Exclusive scan."""
        state = self._state
        code = fast.scan_arrays(state.address, recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, fast.table_of(op), 1)
        if code and fast.settle(state, code, "exscan"):
            collective_arguments.carry_out(state, collective_arguments.exscan, sendbuf, recvbuf, op)


def _go_on(
    comm: Collectives, again: Callable[..., None], resolve: Callable[..., collective_arguments.Call], *arguments: Any
) -> None:
    """A call that compiled code did not take is made again if there was a layout to learn, and goes the general way if not."""
    if fast.learns(*arguments):
        again(comm, *arguments)
    else:
        collective_arguments.carry_out(comm._state, resolve, *arguments)
