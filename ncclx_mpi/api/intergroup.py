"""From the arguments of a collective between two groups to a :class:`~ncclx_mpi.api.collective_arguments.Call`, for its three flavours.

Of a rooted collective, the root says ROOT, the others of its group PROC_NULL, and the ranks of the other group which rank of it is the root.
Nothing that does not matter on a rank is looked at.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ncclx_mpi import arguments, collectives, errors
from ncclx_mpi.api import collective_arguments
from ncclx_mpi.api.collective_arguments import BETWEEN_GROUPS, IN_PLACE, Blocks, Call, check_sums, operation_of
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.op import Op, check_same
from ncclx_mpi.collectives import Neighborhood, Sides, intergroup
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, ALLTOALL, GATHER, SCATTER
from ncclx_mpi.constants import PROC_NULL, ROOT
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.layout import WORD, zeroed

if TYPE_CHECKING:
    from ncclx_mpi.arguments import Buffer
    from ncclx_mpi.device.pieces import Binding


class Intergroup:
    """The two groups of an intercommunicator, as one of its ranks sees them.

    Attributes
    ----------
    native : NativeComm
        A communicator of all ranks of both groups, on which their collectives go.
    sides : Sides
        Which of its ranks are in which group.
    mine, theirs : tuple of int
        World ranks of the own group, and of the other one.
    """

    __slots__ = ("mine", "native", "sides", "theirs")

    def __init__(self, native: NativeComm, mine: Sequence[int], theirs: Sequence[int]) -> None:
        self.native = native
        self.mine = tuple(mine)
        self.theirs = tuple(theirs)
        first = native.world_ranks.index(self.mine[0])
        if first == 0:
            self.sides = Sides(range(len(self.mine)), range(len(self.mine), native.size))
        else:
            self.sides = Sides(range(first, native.size), range(first))

    def root(self, root: Any) -> int:
        """The root as a rank of :attr:`native`, -1 where the call concerns others.

        Raises
        ------
        Exception
            ERR_ROOT: it is neither ROOT, nor PROC_NULL, nor a rank of the other group.
        """
        rank = integer(root, "root")
        if rank == ROOT:
            return self.native.rank
        if rank == PROC_NULL:
            return -1
        if not 0 <= rank < len(self.theirs):
            errors.fail(
                errors.ERR_ROOT,
                f"root {rank} is no rank of the remote group of {len(self.theirs)}; the root passes MPI.ROOT, and the others of its group "
                "MPI.PROC_NULL",
            )
        return self.sides.theirs[rank]

    # Arguments

    def bcast(self, buf: Any, root: Any) -> Call:
        """Arguments of Bcast."""
        root = self.root(root)
        if root < 0:
            return Call("inter_bcast", lambda call: (self.sides, IN_PLACE, 0, root))
        if root == self.native.rank:
            sent = arguments.send(buf)
            return Call("inter_bcast", lambda call: (self.sides, call.reading(sent), call.part(sent).nbytes, root), sent)
        received = arguments.recv(buf)
        return Call(
            "inter_bcast", lambda call: (self.sides, call.writing(received), call.part(received).nbytes, root), None, received
        )

    def gather(self, sendbuf: Any, recvbuf: Any, root: Any) -> Call:
        """Arguments of Gather."""
        root, count = self.root(root), len(self.theirs)
        received = arguments.recv(recvbuf, count).each(count) if root == self.native.rank else None
        return self._gather(root, sendbuf, received)

    def gatherv(self, sendbuf: Any, recvbuf: Any, root: Any) -> Call:
        """Arguments of Gatherv."""
        root = self.root(root)
        return self._gather(root, sendbuf, arguments.recv_vector(recvbuf, len(self.theirs)) if root == self.native.rank else None)

    def scatter(self, sendbuf: Any, recvbuf: Any, root: Any) -> Call:
        """Arguments of Scatter."""
        root, count = self.root(root), len(self.theirs)
        return self._scatter(root, arguments.send(sendbuf, count).each(count) if root == self.native.rank else None, recvbuf)

    def scatterv(self, sendbuf: Any, recvbuf: Any, root: Any) -> Call:
        """Arguments of Scatterv."""
        root = self.root(root)
        return self._scatter(root, arguments.send_vector(sendbuf, len(self.theirs)) if root == self.native.rank else None, recvbuf)

    def allgather(self, sendbuf: Any, recvbuf: Any) -> Call:
        """Arguments of Allgather."""
        self._refuse_in_place("allgather", sendbuf, recvbuf)
        count = len(self.theirs)
        return self._allgather(sendbuf, arguments.recv(recvbuf, count).each(count))

    def allgatherv(self, sendbuf: Any, recvbuf: Any) -> Call:
        """Arguments of Allgatherv."""
        self._refuse_in_place("allgatherv", sendbuf, recvbuf)
        return self._allgather(sendbuf, arguments.recv_vector(recvbuf, len(self.theirs)))

    def alltoall(self, sendbuf: Any, recvbuf: Any) -> Call:
        """Arguments of Alltoall."""
        self._refuse_in_place("alltoall", sendbuf, recvbuf)
        count = len(self.theirs)
        received = arguments.recv(recvbuf, count).each(count)
        return self._alltoall(arguments.send(sendbuf, count).each(count), received)

    def alltoallv(self, sendbuf: Any, recvbuf: Any) -> Call:
        """Arguments of Alltoallv."""
        self._refuse_in_place("alltoallv", sendbuf, recvbuf)
        received = arguments.recv_vector(recvbuf, len(self.theirs))
        return self._alltoall(arguments.send_vector(sendbuf, len(self.theirs)), received)

    def alltoallw(self, sendbuf: Any, recvbuf: Any) -> Call:
        """Arguments of Alltoallw."""
        self._refuse_in_place("alltoallw", sendbuf, recvbuf)
        received = arguments.recv_w(recvbuf, len(self.theirs))
        return self._alltoall(arguments.send_w(sendbuf, len(self.theirs)), received)

    def reduce(self, sendbuf: Any, recvbuf: Any, op: Op, root: Any) -> Call:
        """Arguments of Reduce."""
        root = self.root(root)
        if root < 0:
            return Call("inter_reduce", lambda call: (self.sides, IN_PLACE, IN_PLACE, 0, 1, 0, root))
        if root == self.native.rank:
            self._refuse_in_place("reduce", recvbuf)
            received = arguments.recv(recvbuf)
            itemsize, function = operation_of(op, received)[:2]
            return Call(
                "inter_reduce",
                lambda call: (self.sides, IN_PLACE, call.writing(received), call.part(received).count, itemsize, function, root),
                None,
                received,
                op=op,
            )
        self._refuse_in_place("reduce", sendbuf)
        sent = arguments.send(sendbuf)
        itemsize, function = operation_of(op, sent)[:2]
        return Call(
            "inter_reduce",
            lambda call: (self.sides, call.reading(sent), IN_PLACE, call.part(sent).count, itemsize, function, root),
            sent,
            op=op,
        )

    def allreduce(self, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
        """Arguments of Allreduce."""
        self._refuse_in_place("allreduce", sendbuf, recvbuf)
        received, sent = arguments.recv(recvbuf), arguments.send(sendbuf)
        check_same(sent, received)
        itemsize, function = operation_of(op, received)[:2]
        return Call(
            "inter_allreduce",
            lambda call: (self.sides, call.reading(sent), call.writing(received), call.part(received).count, itemsize, function),
            sent,
            received,
            op=op,
        )

    def reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op) -> Call:
        """Arguments of Reduce_scatter_block: what is sent has a block for each rank of the own group, as what comes back has."""
        self._refuse_in_place("reduce_scatter_block", sendbuf, recvbuf)
        received, given = arguments.recv(recvbuf), arguments.send(sendbuf, len(self.mine))
        check_same(given, received)
        return self._reduce_scatter(given.times(len(self.mine)), received, [received.count] * len(self.mine), op)

    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: Op) -> Call:
        """Arguments of Reduce_scatter; in a group that gives no counts, the ranks tell each other theirs first."""
        self._refuse_in_place("reduce_scatter", sendbuf, recvbuf)
        received, sent = arguments.recv(recvbuf), arguments.send(sendbuf)
        counts = self._counts(received.count, recvcounts)
        check_sums(sent.count, received.count, counts, self.sides.place(self.native.rank))
        return self._reduce_scatter(sent, received, counts, op)

    # What several have in common

    def _refuse_in_place(self, name: str, *buffers: Any) -> None:
        if any(arguments.is_in_place(buffer) for buffer in buffers):
            errors.fail(
                errors.ERR_BUFFER,
                f"rank {self.sides.place(self.native.rank)}: {name}: a buffer is None or MPI.IN_PLACE, which intercommunicators do not know: "
                "what comes is another group's; give both buffers",
            )

    def _gather(self, root: int, sendbuf: Any, received: Blocks | None) -> Call:
        sent = None
        if root >= 0 and received is None:
            self._refuse_in_place("gather", sendbuf)
            sent = arguments.send(sendbuf).each(1)
        return self._exchange("gather", GATHER, _toward(root, sent), self._from_all(received), sent, received, max(root, 0))

    def _scatter(self, root: int, sent: Blocks | None, recvbuf: Any) -> Call:
        received = None
        if root >= 0 and sent is None:
            self._refuse_in_place("scatter", recvbuf)
            received = arguments.recv(recvbuf).each(1)
        return self._exchange("scatter", SCATTER, self._from_all(sent), _toward(root, received), sent, received, max(root, 0))

    def _allgather(self, sendbuf: Any, received: Blocks) -> Call:
        sent, theirs = arguments.send(sendbuf), tuple(self.sides.theirs)

        def bind(call: Binding) -> tuple[Any, ...]:
            recv, offsets = call.writing_blocks(received)
            given = [call.part(sent).nbytes] * len(theirs), [0] * len(theirs)
            return "allgather", ALLGATHER, edges_of(theirs, theirs), call.reading(sent), *given, recv, received.sizes, offsets, 0

        return Call("inter_exchange", bind, sent, received)

    def _alltoall(self, sent: Blocks, received: Blocks) -> Call:
        theirs = tuple(self.sides.theirs)
        return self._exchange("alltoall", ALLTOALL, theirs, theirs, sent, received, 0)

    def _exchange(
        self,
        name: str,
        kind: int,
        destinations: tuple[int, ...],
        sources: tuple[int, ...],
        sent: Blocks | None,
        received: Blocks | None,
        root: int,
    ) -> Call:
        """A block of `sent` to each destination, and one from each source; None for no blocks."""
        edges = edges_of(sources, destinations)

        def bind(call: Binding) -> tuple[Any, ...]:
            given = (IN_PLACE, [], []) if sent is None else _laid_out(call.reading_blocks(sent), sent)
            taken = (IN_PLACE, [], []) if received is None else _laid_out(call.writing_blocks(received), received)
            return name, kind, edges, *given, *taken, root

        return Call("inter_exchange", bind, sent, received, root)

    def _from_all(self, blocks: Blocks | None) -> tuple[int, ...]:
        """All ranks of the other group, if there are blocks for them."""
        return () if blocks is None else tuple(self.sides.theirs)

    def _reduce_scatter(self, sent: Buffer, received: Buffer, counts: list[int], op: Op) -> Call:
        itemsize, function = operation_of(op, received)[:2]
        return Call(
            "inter_reduce_scatter",
            lambda call: (self.sides, call.reading(sent), call.writing(received), counts, itemsize, function),
            sent,
            received,
            op=op,
        )

    def _counts(self, own: int, given: Sequence[int] | None) -> list[int]:
        """Elements that each rank of the own group receives; where they are not given, its ranks tell each other.

        Both groups count a collective for it, whether they tell each other something or not.
        """
        size, mine = len(self.mine), tuple(self.sides.mine)
        counts = [] if given is None else arguments.of_length((integer(count, "recvcounts") for count in given), size)
        word, (table, rows) = array("q", [own]), zeroed(WORD * size)
        if given is None:
            rooms = [WORD] * size, [WORD * index for index in range(size)]
            task = edges_of(mine, mine), word.buffer_info()[0], [WORD] * size, [0] * size, rows, *rooms
        else:
            task = edges_of((), ()), IN_PLACE, [], [], IN_PLACE, [], []
        collectives.run(intergroup.inter_exchange(self.native, "reduce_scatter", ALLGATHER, *task, 0))
        return counts if given is not None else table.tolist()


@functools.lru_cache(maxsize=64)
def edges_of(sources: tuple[int, ...], destinations: tuple[int, ...]) -> Neighborhood:
    """Edges from these ranks, and to those."""
    return Neighborhood(sources, destinations, tuple(range(len(sources))))


def _toward(root: int, blocks: Blocks | None) -> tuple[int, ...]:
    """The root, if this rank has a block for it, or room for one."""
    return () if blocks is None else (root,)


def _laid_out(memory: tuple[int, list[int]], blocks: Blocks) -> tuple[int, list[int], list[int]]:
    """Address of packed blocks, bytes of each, and the offset of each."""
    address, offsets = memory
    return address, blocks.sizes, offsets


BETWEEN_GROUPS |= {
    collective_arguments.bcast: Intergroup.bcast,
    collective_arguments.gather: Intergroup.gather,
    collective_arguments.gatherv: Intergroup.gatherv,
    collective_arguments.scatter: Intergroup.scatter,
    collective_arguments.scatterv: Intergroup.scatterv,
    collective_arguments.allgather: Intergroup.allgather,
    collective_arguments.allgatherv: Intergroup.allgatherv,
    collective_arguments.alltoall: Intergroup.alltoall,
    collective_arguments.alltoallv: Intergroup.alltoallv,
    collective_arguments.alltoallw: Intergroup.alltoallw,
    collective_arguments.reduce: Intergroup.reduce,
    collective_arguments.allreduce: Intergroup.allreduce,
    collective_arguments.reduce_scatter_block: Intergroup.reduce_scatter_block,
    collective_arguments.reduce_scatter: Intergroup.reduce_scatter,
}
