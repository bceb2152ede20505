"""What the algorithms by leaders have in common: the first rank of each node speaks for it.

On a node, ranks form a binomial tree below the leader. Where there is a root, it is the leader of its node, and leaders form a tree below it.
"""

from __future__ import annotations

from ncclx_mpi.collectives.bcast.binomial import family
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Place
from ncclx_mpi.nodes import NodeMap


class Tree:
    """Writes the steps of one rank on its node.

    Attributes
    ----------
    node, index : int
        The rank's node, and its place there; the leader has place 0.
    leaders : tuple of int
        The leaders of all nodes.
    """

    def __init__(self, steps: Builder, rank: int, nodes: NodeMap) -> None:
        self._steps = steps
        self.node, self.index = nodes.place[rank]
        self._mates = nodes.ranks[self.node]
        self.leaders = nodes.column(0)
        self._parent, self._children = family(self.index, len(self._mates))

    def reduce(self, nbytes: int) -> tuple[Place, int]:
        """Reduce INPUT of all ranks to the leader, in the order of the node; returns where it is there, and the last step."""
        steps, have, done = self._steps, (INPUT, 0), -1
        total = (TEMP, steps.temp(nbytes) if self._children else 0)
        for child in reversed(self._children):
            its = (TEMP, steps.temp(nbytes))
            came = steps.recv(self._mates[child], its, nbytes)
            done = steps.reduce(total, have, its, nbytes, [came, done])
            have = total
        if self._parent >= 0:
            done = steps.send(self._mates[self._parent], have, nbytes, [done])
        return have, done

    def bcast(self, nbytes: int, there: int) -> None:
        """Give OUTPUT of the leader, which is there after a step, to all ranks of the node."""
        steps = self._steps
        if self._parent >= 0:
            there = steps.recv(self._mates[self._parent], (OUTPUT, 0), nbytes)
        for child in self._children:
            steps.send(self._mates[child], (OUTPUT, 0), nbytes, [there])

    def gather_signals(self) -> int:
        """Return the step of the leader after which all ranks of the node have come."""
        steps = self._steps
        there = steps.join([steps.await_signal(self._mates[child]) for child in self._children])
        if self._parent >= 0:
            there = steps.signal(self._mates[self._parent], [there])
        return there

    def spread_signals(self, there: int) -> None:
        """Let the ranks of the node go on when the leader does, after a step."""
        steps = self._steps
        if self._parent >= 0:
            there = steps.await_signal(self._mates[self._parent])
        for child in self._children:
            steps.signal(self._mates[child], [there])


def ways(rank: int, root: int, nodes: NodeMap) -> tuple[int, list[int]]:
    """The parent of a rank in a tree over all nodes, -1 for the root, and its children, those on other nodes first.

    The root speaks for its node, the first rank for each other one.
    """
    (home, at), (node, index) = nodes.place[root], nodes.place[rank]
    mates, first = nodes.ranks[node], at if node == home else 0
    parent, children = family((index - first) % len(mates), len(mates))
    near = [mates[(child + first) % len(mates)] for child in children]
    if parent >= 0:
        return mates[(parent + first) % len(mates)], near
    parent, children = family((node - home) % nodes.number, nodes.number)
    leaders = [root if other == home else ranks[0] for other, ranks in enumerate(nodes.ranks)]
    far = [leaders[(child + home) % nodes.number] for child in children]
    return leaders[(parent + home) % nodes.number] if parent >= 0 else -1, far + near
