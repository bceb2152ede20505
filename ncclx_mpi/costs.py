"""What algorithms cost: the formulas of the table, from numbers of ranks, bytes, and the nodes that ranks are on.

Rounds, bytes and memory of a plan are counted in it by the simulator, too, for every size, and held against these. This module needs neither
NumPy nor Numba.
"""

from __future__ import annotations

from collections.abc import Callable

from ncclx_mpi.nodes import NodeMap
from numba_kernels.rows import NamedTuple

HALVES_CHUNK, HALVES_ROOMS = 1 << 20, 4
"""Bytes of a piece of what is halved, and how many of them are under way."""
CHAIN_LEAST, CHAIN_MOST, CHAIN_PARTS = 64 << 10, 1 << 20, 8
"""Bytes of a segment along a chain, at least and at most; between these, how many a message has."""


class Link(NamedTuple):
    """What costs are computed from, in us: a message, a line of the slot, a byte moved, a byte reduced."""

    message: float
    line: float
    byte: float
    reduced: float


SHARED_MEMORY = Link(message=1.0, line=0.2, byte=1e-4, reduced=5e-5)
"""Ranks of one machine, in round numbers: for comparing algorithms, not for predicting times."""
NETWORK = Link(message=8.0, line=0.0, byte=6e-4, reduced=1e-4)
"""Ranks of two hosts, by TCP between namespaces of one machine; a byte is one of all that leave a node."""
AT_ONCE = 0.4
"""What each further message of a rank costs that all others send to, or get from, of what one does that comes after another one."""
MATES = Link(message=0.5, line=0.0, byte=6e-5, reduced=1e-4)
"""Ranks of one of several hosts: the round numbers that, beside these, chose best among plans that were measured (design/026)."""

Cost = Callable[[int, int, Link], float]
"""From ranks, bytes of each rank and the link to us."""


class Figures(NamedTuple):
    """What a plan needs where all blocks are of one size and in one piece: of the rank that needs most.

    Attributes
    ----------
    steps
        Rounds, if a rank sends one message and receives one at a time.
    moved
        Bytes that a rank sends, or that it receives, whichever are more.
    reduced
        Bytes that it reduces.
    memory
        Bytes of temporary memory; blocks there begin at multiples of 64.
    copied
        Bytes that it copies there, or from there.
    """

    steps: int
    moved: int = 0
    reduced: int = 0
    memory: int = 0
    copied: int = 0


class Crossing(NamedTuple):
    """What a plan needs where ranks are on several nodes.

    Attributes
    ----------
    near_messages, far_messages
        Of the rank that sends, or receives, most, to ranks of its node, and to others.
    near, far
        Bytes that a rank sends, or that it receives, on its node, and copies; that leave a node, or come to it, of all its ranks.
    reduced
        Bytes that a rank reduces.
    fill
        Bytes that go from node to node before the last one has anything, of what goes along a chain.
    """

    near_messages: float
    far_messages: float
    near: float = 0
    far: float = 0
    reduced: float = 0
    fill: float = 0

    def cost(self, near: Link = MATES, far: Link = NETWORK) -> float:
        """What that takes, in us."""
        messages = self.near_messages * near.message + self.far_messages * far.message
        return messages + self.near * near.byte + (self.far + self.fill) * far.byte + self.reduced * near.reduced


def rounds_of(n: int) -> int:
    """The number of rounds in which n ranks hear of each other."""
    return (n - 1).bit_length()


def doublings(n: int) -> int:
    """How many of them a rank takes part in that stands for two where n is no power of two."""
    return n.bit_length() - 1 + (n & (n - 1) > 0)


def hops(n: int) -> int:
    """How many blocks a rank passes on if the one for the rank j further on hops as often as j has bits."""
    return sum(j.bit_count() for j in range(n))


def shared(n: int, m: int, rounds: int) -> Figures:
    """Every rank reduces its block of what all give, in `rounds` of exchanges with all others."""
    return Figures(rounds * (n - 1), rounds * (n - 1) * m // n, (n - 1) * m // n, m)


def pairs_of(n: int) -> int:
    """How many ranks have to act as one with another, so that there are as many as a power of two."""
    return n & ~(1 << log2(n))


def log2(n: int) -> int:
    """The logarithm, without what is behind its point."""
    return n.bit_length() - 1


def halved(n: int, m: int, is_returned: bool) -> Figures:
    """Halves are exchanged and reduced, and come back by the same way: to all, in place of what was halved; or to a root."""
    halves, pairs = [-(-m >> turn) for turn in range(1, log2(n) + 1)], pairs_of(n)
    whole = [m] * (pairs > 0)
    memory = rooms(whole + halves)
    if not is_returned:  # a root reduces where its result goes, another rank beside it
        memory = m + memory if pairs > 1 else max(memory, lines(max(halves, default=0)) + rooms(halves))
    return Figures(2 * log2(n) + (1 + is_returned) * len(whole), sum(whole) + 2 * sum(halves), sum(whole) + sum(halves), memory)


def halved_to_blocks(n: int, m: int) -> Figures:
    """Halves of blocks of m / n bytes are exchanged and reduced; pairs have two of them: the first ranks have most."""
    pairs, block = pairs_of(n), m // n
    halves = [((1 << turn) + min(pairs, 1 << turn)) * block for turn in reversed(range(log2(n)))]
    taken = [m] * (pairs > 0) + halves
    memory = lines(taken[0]) + rooms(taken) if taken else 0
    return Figures(log2(n) + 2 * (pairs > 0), sum(taken), sum(taken), memory, block * (n > 1))


def rooms(taken: list[int]) -> int:
    """Bytes for some pieces, of those that come of so many bytes one after the other."""
    pieces = sum(-(-nbytes // HALVES_CHUNK) for nbytes in taken)
    return min(HALVES_ROOMS, pieces) * lines(min(HALVES_CHUNK, max(taken, default=0)))


def lines(nbytes: int) -> int:
    """Bytes of temporary memory: blocks there begin at multiples of 64."""
    return -(-nbytes // 64) * 64


def chain_segment(m: int) -> int:
    """Bytes that go along a chain before the next rank has any."""
    return min(m, CHAIN_MOST, max(CHAIN_LEAST, m // CHAIN_PARTS))


def doubled_blocks(n: int, m: int) -> Figures:
    """What ranks have is exchanged, and is twice as much; of pairs, one gives the other one all in the end."""
    pairs = pairs_of(n)
    sent = sum((1 << turn) + min(pairs, 1 << turn) for turn in range(log2(n)))
    return Figures(log2(n) + 2 * (pairs > 0), (sent + n * (pairs > 0)) * m)


def subtree(n: int) -> int:
    """Ranks in the largest subtree of a binomial one whose first rank has others below it; 0 if there is none."""
    half = 1 << max(0, rounds_of(n) - 1)
    most = max(n - half, half // 2)
    return most if most > 1 else 0


def scanned(n: int) -> int:
    """How often the rank that does most reduces, in a scan by doubling.

    A rank adds what each lower partner has to its prefix, and what all partners but the last one have to its total. Of all ranks, one that
    does most is the last, or one whose number has a bit of the last one's less, and all bits below.
    """
    candidates = [n - 1] + [(n - 1) >> bit + 1 << bit + 1 | (1 << bit) - 1 for bit in range(rounds_of(n)) if (n - 1) >> bit & 1]
    return max(rank.bit_count() + max(0, sum(rank ^ 1 << turn < n for turn in range(rounds_of(n))) - 1) for rank in candidates)


def lanes_reduced(nodes: NodeMap, m: int) -> Crossing:
    """A reduce-scatter on each node, and one in each column."""
    number, lane = nodes.number, m / nodes.fewest
    part, mates = (number - 1) / number, nodes.most - 1
    return Crossing(mates, number - 1, mates * lane, part * m, (mates + part) * lane)


def lanes_shared(nodes: NodeMap, m: int) -> Crossing:
    """The opposite: all that is in the columns is gathered there, and on each node."""
    return lanes_reduced(nodes, m)._replace(reduced=0)


def blocks_spread(nodes: NodeMap, m: int) -> Crossing:
    """Blocks of m bytes to each column, and from there to each rank."""
    most, others = nodes.most, nodes.number - 1
    far = -(-most // nodes.fewest) * others
    near = nodes.size - 1 - far
    return Crossing(near, far, near * m, most * others * m)


def blocks_reduced(nodes: NodeMap, m: int) -> Crossing:
    """The blocks of all ranks to columns on each node, and from there to the node of each."""
    number, lane, mates = nodes.number, m / nodes.fewest, nodes.most - 1
    part = (number - 1) / number
    blocks = -(-nodes.most // nodes.fewest)
    return Crossing(mates * number * blocks, (number - 1) * blocks, mates * lane, part * m, (mates + part) * lane)


def blocks_exchanged(nodes: NodeMap, m: int) -> Crossing:
    """Blocks for other nodes to columns on each node, and from there to the node of each; what packs and unpacks them is near, too."""
    block, most, others = m / nodes.size, nodes.most, nodes.number - 1
    blocks = -(-most // nodes.fewest)
    handed = (blocks - 1) * nodes.size
    near = (most - 1) * (1 + others * blocks) + handed + 2 * most * others
    far = max(len(ranks) * (nodes.size - len(ranks)) for ranks in nodes.ranks)
    return Crossing(2 * (most - 1) + blocks - 1, others, near * block, far * block)


def tree(nodes: NodeMap, m: int, reduces: bool = False) -> Crossing:
    """Up, or down, the trees on nodes."""
    rounds = rounds_of(nodes.most)
    return Crossing(rounds, 0, rounds * m, 0, rounds * m * reduces)


def gathered(nodes: NodeMap, m: int) -> Crossing:
    """Up a tree of one rank of each node."""
    rounds = rounds_of(nodes.number)
    return Crossing(0, rounds, 0, rounds * m, rounds * m)


def doubled(nodes: NodeMap, m: int) -> Crossing:
    """Recursive doubling among one rank of each node."""
    rounds = rounds_of(nodes.number) + (nodes.number & (nodes.number - 1) > 0)
    moved = doublings(nodes.number) * m
    return Crossing(0, rounds, 0, moved, moved)


def chained(nodes: NodeMap, m: int) -> Crossing:
    """Along a chain of all ranks, node by node: the last one has anything when a segment has gone along all of it."""
    hops_near, hops_far, segment = nodes.size - nodes.number, nodes.number - 1, chain_segment(m)
    near = m * (nodes.most > 1) + max(0, hops_near - 1) * segment
    return Crossing(hops_near, hops_far, near, m, fill=(hops_far - 1) * segment)


def both(*parts: Crossing) -> Crossing:
    """One after the other."""
    return Crossing(*map(sum, zip(*parts, strict=True)))
