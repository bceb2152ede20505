"""From the arguments of a neighbourhood collective to a :class:`~ncclx_mpi.api.collective_arguments.Call`, for its three flavours.

Blocks are one for each edge, in the order of the neighbours. Those of neighbours that do not exist count as empty: so nothing of them is
read or written, whichever way a call goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ncclx_mpi import arguments, errors
from ncclx_mpi.api import fast
from ncclx_mpi.api.collective_arguments import Blocks, Call, check_block
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.collectives import Neighborhood
from ncclx_mpi.constants import PROC_NULL

if TYPE_CHECKING:
    from ncclx_mpi.device.pieces import Binding


def neighborhood_of(state: CommState, name: str) -> Neighborhood:
    """The edges of this rank.

    Raises
    ------
    Exception
        ERR_TOPOLOGY, on all ranks: there are no edges, or the two ends of some edge do not agree that there is one.
    """
    topology = state.topology
    if topology is None:
        errors.fail(
            errors.ERR_TOPOLOGY,
            f"rank {state.rank}: {name} on a communicator without a topology: make one by Create_cart or another",
        )
    if topology.mismatch:
        errors.fail(errors.ERR_TOPOLOGY, f"rank {state.rank}: {name}: {topology.mismatch}")
    return topology.neighborhood


def allgather(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Neighbor_allgather."""
    edges = _open(state, "neighbor_allgather", sendbuf, recvbuf)
    return _gather(state, edges, sendbuf, arguments.recv(recvbuf, len(edges.sources)).each(len(edges.sources)))


def allgatherv(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Neighbor_allgatherv."""
    edges = _open(state, "neighbor_allgather", sendbuf, recvbuf)
    return _gather(state, edges, sendbuf, arguments.recv_vector(recvbuf, len(edges.sources)))


def alltoall(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Neighbor_alltoall."""
    edges = _open(state, "neighbor_alltoall", sendbuf, recvbuf)
    indegree, outdegree = len(edges.sources), len(edges.destinations)
    sent, received = arguments.send(sendbuf, outdegree), arguments.recv(recvbuf, indegree)
    return _exchange(state, edges, sent.each(outdegree), received.each(indegree))


def alltoallv(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Neighbor_alltoallv."""
    edges = _open(state, "neighbor_alltoall", sendbuf, recvbuf)
    received = arguments.recv_vector(recvbuf, len(edges.sources))
    return _exchange(state, edges, arguments.send_vector(sendbuf, len(edges.destinations)), received)


def alltoallw(state: CommState, sendbuf: Any, recvbuf: Any) -> Call:
    """Arguments of Neighbor_alltoallw."""
    edges = _open(state, "neighbor_alltoall", sendbuf, recvbuf)
    received, sent = arguments.recv_w(recvbuf, len(edges.sources)), arguments.send_w(sendbuf, len(edges.destinations))
    fast.meet_all(block.layout for block in (*sent.blocks, *received.blocks))
    return _exchange(state, edges, sent, received)


def _open(state: CommState, name: str, sendbuf: Any, recvbuf: Any) -> Neighborhood:
    """The edges that a call goes along, if none of its buffers is IN_PLACE."""
    if arguments.is_in_place(sendbuf) or arguments.is_in_place(recvbuf):
        errors.fail(
            errors.ERR_BUFFER,
            f"rank {state.rank}: {name}: a buffer is None or MPI.IN_PLACE, which neighbourhood collectives do not know; give both buffers",
        )
    return neighborhood_of(state, name)


def _gather(state: CommState, edges: Neighborhood, sendbuf: Any, received: Blocks) -> Call:
    sent, received = arguments.send(sendbuf), received.only(_existing(edges.sources))
    _check_own(state, "neighbor_allgather", edges, [sent.nbytes] * len(edges.destinations), received.sizes)

    def bind(call: Binding) -> tuple[Any, ...]:
        recv, offsets = call.writing_blocks(received)
        return edges, call.reading(sent), call.part(sent).nbytes, recv, call.part(received).sizes, offsets

    return Call("neighbor_allgather", bind, sent, received)


def _exchange(state: CommState, edges: Neighborhood, given: Blocks, wanted: Blocks) -> Call:
    sent, received = given.only(_existing(edges.destinations)), wanted.only(_existing(edges.sources))
    _check_own(state, "neighbor_alltoall", edges, sent.sizes, received.sizes)

    def bind(call: Binding) -> tuple[Any, ...]:
        send, send_offsets = call.reading_blocks(sent)
        recv, offsets = call.writing_blocks(received)
        return edges, send, call.part(sent).sizes, send_offsets, recv, call.part(received).sizes, offsets

    return Call("neighbor_alltoall", bind, sent, received)


def _existing(peers: Sequence[int]) -> list[bool]:
    return [peer != PROC_NULL for peer in peers]


def _check_own(state: CommState, name: str, edges: Neighborhood, sent: Sequence[int], received: Sequence[int]) -> None:
    """Raise unless what a rank sends to itself is what it expects there."""
    for source, destination in edges.to_itself(state.rank):
        check_block(name, sent[destination], received[source])
