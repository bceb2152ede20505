"""Collectives of each rank with its neighbours: blocking, non-blocking, persistent, and on objects.

One of plain arrays is one compiled call, unless it is persistent; where messages have to go between nodes all are plans.
Blocks of a buffer are in the order of the neighbours. In a grid these are, for each dimension, the one before and the one behind; what is
sent to the one before comes from the one behind, also where both are the same rank. Blocks of neighbours that do not exist, beyond the end
of a grid, are left as they are, and objects of them are None. How arguments are resolved is in :mod:`ncclx_mpi.api.neighbor_arguments`.
"""

from __future__ import annotations

from typing import Any

from ncclx_mpi.api import fast, neighbor_arguments, neighbor_objects
from ncclx_mpi.api.collective_arguments import prepare, run_on_host, start
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.request import Prequest, Request
from ncclx_mpi.collectives.fast_neighbor import ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW
from ncclx_mpi.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW


class NeighborCollectives:
    """Methods of Topocomm: neighbourhood collectives."""

    __slots__ = ()
    _state: CommState

    def Neighbor_allgather(self, sendbuf: BufSpec, recvbuf: BufSpecB) -> None:
        """Gather to all neighbors."""
        state = self._state
        code = fast.exchange_neighbors(state.address, ALLGATHER, sendbuf, recvbuf)
        if code and fast.settle(state, code, "neighbor_allgather"):
            run_on_host(state, neighbor_arguments.allgather(state, sendbuf, recvbuf))

    def Neighbor_allgatherv(self, sendbuf: BufSpec, recvbuf: BufSpecV) -> None:
        """Gather vector data to all neighbors."""
        state = self._state
        code = fast.exchange_neighbors(state.address, ALLGATHERV, sendbuf, recvbuf)
        if code and fast.settle(state, code, "neighbor_allgather"):
            run_on_host(state, neighbor_arguments.allgatherv(state, sendbuf, recvbuf))

    def Neighbor_alltoall(self, sendbuf: BufSpecB, recvbuf: BufSpecB) -> None:
        """Exchange a block of data with all neighbors."""
        state = self._state
        code = fast.exchange_neighbors(state.address, ALLTOALL, sendbuf, recvbuf)
        if code and fast.settle(state, code, "neighbor_alltoall"):
            run_on_host(state, neighbor_arguments.alltoall(state, sendbuf, recvbuf))

    def Neighbor_alltoallv(self, sendbuf: BufSpecV, recvbuf: BufSpecV) -> None:
        """Exchange vector data with all neighbors."""
        state = self._state
        code = fast.exchange_neighbors(state.address, ALLTOALLV, sendbuf, recvbuf)
        if code and fast.settle(state, code, "neighbor_alltoall"):
            run_on_host(state, neighbor_arguments.alltoallv(state, sendbuf, recvbuf))

    def Neighbor_alltoallw(self, sendbuf: BufSpecW, recvbuf: BufSpecW) -> None:
        """Exchange data of different types with all neighbors."""
        state = self._state
        code = fast.exchange_neighbors(state.address, ALLTOALLW, sendbuf, recvbuf)
        if code and fast.settle(state, code, "neighbor_alltoall"):
            run_on_host(state, neighbor_arguments.alltoallw(state, sendbuf, recvbuf))

    def Ineighbor_allgather(self, sendbuf: BufSpec, recvbuf: BufSpecB) -> Request:
        """Nonblocking: gather to all neighbors."""
        state = self._state
        request: Request | None = fast.iexchange_neighbors(state.address, ALLGATHER, sendbuf, recvbuf)
        return start(state, neighbor_arguments.allgather, sendbuf, recvbuf) if request is None else request

    def Ineighbor_allgatherv(self, sendbuf: BufSpec, recvbuf: BufSpecV) -> Request:
        """Nonblocking: gather vector data to all neighbors."""
        state = self._state
        request: Request | None = fast.iexchange_neighbors(state.address, ALLGATHERV, sendbuf, recvbuf)
        return start(state, neighbor_arguments.allgatherv, sendbuf, recvbuf) if request is None else request

    def Ineighbor_alltoall(self, sendbuf: BufSpecB, recvbuf: BufSpecB) -> Request:
        """Nonblocking: exchange a block of data with all neighbors."""
        state = self._state
        request: Request | None = fast.iexchange_neighbors(state.address, ALLTOALL, sendbuf, recvbuf)
        return start(state, neighbor_arguments.alltoall, sendbuf, recvbuf) if request is None else request

    def Ineighbor_alltoallv(self, sendbuf: BufSpecV, recvbuf: BufSpecV) -> Request:
        """Nonblocking: exchange vector data with all neighbors."""
        state = self._state
        request: Request | None = fast.iexchange_neighbors(state.address, ALLTOALLV, sendbuf, recvbuf)
        return start(state, neighbor_arguments.alltoallv, sendbuf, recvbuf) if request is None else request

    def Ineighbor_alltoallw(self, sendbuf: BufSpecW, recvbuf: BufSpecW) -> Request:
        """Nonblocking: exchange data of different types with all neighbors."""
        state = self._state
        request: Request | None = fast.iexchange_neighbors(state.address, ALLTOALLW, sendbuf, recvbuf)
        return start(state, neighbor_arguments.alltoallw, sendbuf, recvbuf) if request is None else request

    def Neighbor_allgather_init(self, sendbuf: BufSpec, recvbuf: BufSpecB, info: Info = INFO_NULL) -> Prequest:
        """Persistent: gather to all neighbors."""
        return prepare(self._state, neighbor_arguments.allgather, sendbuf, recvbuf)

    def Neighbor_allgatherv_init(self, sendbuf: BufSpec, recvbuf: BufSpecV, info: Info = INFO_NULL) -> Prequest:
        """Persistent: gather vector data to all neighbors."""
        return prepare(self._state, neighbor_arguments.allgatherv, sendbuf, recvbuf)

    def Neighbor_alltoall_init(self, sendbuf: BufSpecB, recvbuf: BufSpecB, info: Info = INFO_NULL) -> Prequest:
        """Persistent: exchange a block of data with all neighbors."""
        return prepare(self._state, neighbor_arguments.alltoall, sendbuf, recvbuf)

    def Neighbor_alltoallv_init(self, sendbuf: BufSpecV, recvbuf: BufSpecV, info: Info = INFO_NULL) -> Prequest:
        """Persistent: exchange vector data with all neighbors."""
        return prepare(self._state, neighbor_arguments.alltoallv, sendbuf, recvbuf)

    def Neighbor_alltoallw_init(self, sendbuf: BufSpecW, recvbuf: BufSpecW, info: Info = INFO_NULL) -> Prequest:
        """Persistent: exchange data of different types with all neighbors."""
        return prepare(self._state, neighbor_arguments.alltoallw, sendbuf, recvbuf)

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        """Gather objects of all neighbors."""
        return neighbor_objects.allgather(self._state, sendobj)

    def neighbor_alltoall(self, sendobj: list[Any]) -> list[Any]:
        """Exchange objects with all neighbors."""
        return neighbor_objects.alltoall(self._state, sendobj)
