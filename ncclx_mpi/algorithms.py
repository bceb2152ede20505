"""The table of algorithms: a row says what one is for, what it costs, and where none is forced, whether it runs.

Everything iterates over the rows: choosing (:mod:`ncclx_mpi.collectives.select`), the settings ``NCCLX_MPI_ALGO_<COLLECTIVE>``,
``ncclx info --plans``, the tables of the documentation, and the tests. So an algorithm is added by its file, its row, and a note for users.

An algorithm is named after its file in the folder of its collective. ``shm_oneshot`` and ``shm_pipelined`` go through the collective slot in
the arena, by lines and by streams; ``cma`` has the kernel copy between private buffers; all others are plans over messages: the
function ``plan`` of the file, with the arguments of all plans of the collective (:mod:`ncclx_mpi.collectives.prepare`).

The algorithm of an exscan is that of the scan, that of a call with counts the one of the collective without. This module needs neither
NumPy nor Numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from ncclx_mpi.costs import (
    AT_ONCE,
    SHARED_MEMORY,
    Cost,
    Crossing,
    Figures,
    Link,
    blocks_exchanged,
    blocks_reduced,
    blocks_spread,
    both,
    chain_segment,
    chained,
    doubled,
    doubled_blocks,
    doublings,
    gathered,
    halved,
    halved_to_blocks,
    hops,
    lanes_reduced,
    lanes_shared,
    rounds_of,
    scanned,
    shared,
    subtree,
    tree,
)
from ncclx_mpi.nodes import NodeMap
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.tuning import Table

UNFORCED, ONESHOT, PIPELINED, CMA, PLAN = range(5)
"""Kinds of algorithm, and the numbers of those that are compiled for a communicator's slot; numbers from `PLAN` on are those of plans."""
KINDS = ("", "oneshot", "pipelined", "cma", "plan")
ON_SLOT = ("shm_oneshot", "shm_pipelined", "cma")
RANK, GROUPS, ANY = "rank", "groups", "any"
"""How an algorithm reduces: ((0 op 1) op 2) ...; neighbouring groups of ranks, the lower ranks on the left; any other way."""

ONESHOT_UPTO = 16 << 10
"""Bytes of one rank that lines hold."""
LARGEST_ITEM = 4 << 10
"""Bytes of an element up to which reductions on the slot are cut into chunks of whole elements."""


class Case(NamedTuple):
    """What all ranks know of a call, by which they choose alike.

    Attributes
    ----------
    size
        Ranks.
    nbytes
        What each rank gives, in bytes; the largest block of an allgatherv, and 0 for other calls with counts, which only the two ends of a
        block know.
    itemsize
        Bytes of an element of a reduction.
    commutes
        Whether its operation commutes.
    order
        The setting ``reduction_order``.
    has_counts
        Whether the blocks of the ranks may differ.
    has_slot
        Whether the communicator has a slot in shared memory.
    nodes
        Where the ranks are, if they are on several nodes; None if on one, or if not all ranks know.
    table
        What was measured where the job runs, if all ranks have the same table; None if the model chooses.
    """

    size: int
    nbytes: int
    itemsize: int = 1
    commutes: bool = True
    order: str = "auto"
    has_counts: bool = False
    has_slot: bool = False
    nodes: NodeMap | None = None
    table: Table | None = None

    @property
    def layout(self) -> tuple[int, ...]:
        """The node of each rank, as the tuning table has it; the same for all of them if they share one."""
        return self.nodes.of if self.nodes else (0,) * self.size


OVERRULED_FROM = 1.1
"""How many times the best measured time the choice of the model may take."""
Choice = TypeVar("Choice")


class Algorithm(NamedTuple):
    """One row.

    Attributes
    ----------
    collective, name, kind
        Which file it is.
    cost
        Its alpha-beta cost.
    upto
        Of ``shm_oneshot``: bytes up to which it is chosen.
    chosen
        Of a plan: whether it is chosen for a case that it serves, if no row above it is. Else it runs by its name only.
    order
        How it reduces.
    equal_blocks
        Whether all blocks have to be of one size.
    figures
        Of a plan: what it needs, from ranks and bytes of each rank. The simulator counts it for every size.
    is_ring
        Of a plan: whether a rank sends to its right neighbour only.
    by_node
        Of a plan that is told where ranks are: what it needs then, from their nodes and the bytes of each rank.
    has_center
        Of a plan: whether one rank sends to all others, or receives from all, and nobody does more than that.
    """

    collective: str
    name: str
    kind: int
    cost: Cost
    upto: int = 0
    chosen: Callable[[Case], bool] = lambda case: False
    order: str = RANK
    equal_blocks: bool = False
    figures: Callable[[int, int], Figures] = lambda n, m: Figures(0)
    is_ring: bool = False
    by_node: Callable[[NodeMap, int], Crossing] | None = None
    has_center: bool = False

    def crossing(self, nodes: NodeMap, nbytes: int) -> Crossing:
        """What a plan needs on several nodes; if it knows nothing of them, as if a rank had to do with all others alike, or in a ring."""
        size = nodes.size
        needs = self.figures(size, nbytes)
        if self.by_node is not None:
            found = self.by_node(nodes, nbytes)
            return found._replace(near=found.near + needs.copied)
        far = (size - nodes.fewest) / (size - 1)
        leaving = max(len(ranks) * (size - len(ranks)) for ranks in nodes.ranks) / (size - 1)
        if self.is_ring:
            has_mates = nodes.most > 1
            return Crossing(0, needs.steps, needs.moved * has_mates + needs.copied, needs.moved * nodes.in_turn, needs.reduced)
        near = needs.moved * (1 - far) + needs.copied
        messages = 1 + AT_ONCE * (needs.steps - 1) if self.has_center else needs.steps
        return Crossing(messages * (1 - far), messages * far, near, leaving * needs.moved, needs.reduced)

    def why_not(self, case: Case) -> str:
        """Why a call cannot go by it; empty if it can."""
        return self._why_not_as_plan(case) if self.kind == PLAN else self._why_not_on_slot(case)

    def _why_not_as_plan(self, case: Case) -> str:
        if self.equal_blocks and case.has_counts:
            return "it is for blocks of one size, and the sizes of a call with counts are known to the two ends of a block only"
        if case.size == 1 or self.order == RANK:
            return ""
        if case.order == RANK:
            return "reduction_order=rank asks for ((0 op 1) op 2) ..., and it combines the ranks in another way"
        if self.order == ANY and not case.commutes:
            return "the operation does not commute, and it combines the ranks in another order for each block"
        return ""

    def _why_not_on_slot(self, case: Case) -> str:
        if not case.has_slot:
            return "the communicator has no slot in shared memory"
        if self.kind == ONESHOT:
            return f"a rank gives more than {ONESHOT_UPTO >> 10} KiB" if case.nbytes > ONESHOT_UPTO else ""
        if case.size == 1 or (case.nbytes == 0 and not case.has_counts):
            return "there is nothing to move"
        return f"an element has more than {LARGEST_ITEM >> 10} KiB" if case.itemsize > LARGEST_ITEM else ""

    def is_chosen(self, case: Case) -> bool:
        """Whether it runs if no row above it does. Of the two for bulk data on the slot, which are tried in turn, it is the first."""
        if self.why_not(case):
            return False
        if self.kind == PLAN:
            return self.chosen(case)
        return case.nbytes <= self.upto if self.kind == ONESHOT else self.kind == PIPELINED


def _always(case: Case) -> bool:
    return True


def _shared_from(nbytes: int) -> Callable[[Case], bool]:
    """Whether it is worth it that every rank reduces a block."""
    return lambda case: case.size > 2 and case.nbytes >= case.size * case.itemsize and case.nbytes >= nbytes


def _on_slot(
    collective: str,
    upto: int,
    small: Callable[[int], float],
    bulk: Callable[[int], float],
    reduces: bool = False,
    has_cma: bool = True,
) -> list[Algorithm]:
    """Rows of the algorithms on the slot; `small`, `bulk`: how often what a rank gives is read by whoever reads most."""

    def oneshot(n: int, m: int, link: Link) -> float:
        return link.line + small(n) * m * (link.byte + reduces * link.reduced)

    def pipelined(n: int, m: int, link: Link) -> float:
        return 2 * link.line + 2 * bulk(n) * m * link.byte + reduces * m * link.reduced

    def cma(n: int, m: int, link: Link) -> float:
        return 2 * link.line + bulk(n) * m * link.byte + reduces * m * link.reduced

    costs = (oneshot, pipelined, cma) if has_cma else (oneshot, pipelined)
    return [
        Algorithm(collective, name, kind, cost, upto if kind == ONESHOT else 0)
        for kind, (name, cost) in enumerate(zip(ON_SLOT, costs, strict=False), ONESHOT)
    ]


def _once(n: int) -> float:
    return 1


def _from_others(n: int) -> float:
    return n - 1


ROWS: tuple[Algorithm, ...] = (
    Algorithm("barrier", "shm_oneshot", ONESHOT, lambda n, m, link: link.line),
    Algorithm("barrier", "dissemination", PLAN, lambda n, m, link: rounds_of(n) * link.message, chosen=_always,
              figures=lambda n, m: Figures(rounds_of(n))),
    Algorithm("barrier", "leaders", PLAN, lambda n, m, link: 2 * rounds_of(n) * link.message,
              figures=lambda n, m: Figures(2 * rounds_of(n)),
              by_node=lambda nodes, m: Crossing(2 * rounds_of(nodes.most), rounds_of(nodes.number))),
    *_on_slot("bcast", ONESHOT_UPTO, _once, _once),
    Algorithm("bcast", "binomial", PLAN, lambda n, m, link: rounds_of(n) * (link.message + m * link.byte), chosen=_always,
              figures=lambda n, m: Figures(rounds_of(n), rounds_of(n) * m)),
    Algorithm("bcast", "leaders", PLAN, lambda n, m, link: rounds_of(n) * (link.message + m * link.byte),
              figures=lambda n, m: Figures(rounds_of(n), rounds_of(n) * m),
              by_node=lambda nodes, m: both(tree(nodes, m), Crossing(0, rounds_of(nodes.number), 0, rounds_of(nodes.number) * m))),
    Algorithm("bcast", "full_lane", PLAN, lambda n, m, link: 2 * (n - 1) * link.message + 2 * m * link.byte,
              figures=lambda n, m: Figures(2 * (n - 1), 2 * m * (n - 1) // n),
              by_node=lambda nodes, m: Crossing(nodes.most + nodes.fewest, rounds_of(nodes.number), 2 * m, rounds_of(nodes.number) * m)),
    Algorithm("bcast", "scatter_allgather", PLAN, lambda n, m, link: (rounds_of(n) + n - 1) * link.message + 2 * (n - 1) / n * m * link.byte,
              figures=lambda n, m: Figures((rounds_of(n) + n - 1) * (n > 1), 2 * (n - 1) * m // n)),
    Algorithm("bcast", "chain", PLAN, lambda n, m, link: (n - 1) * link.message + (m + max(0, n - 2) * chain_segment(m)) * link.byte,
              figures=lambda n, m: Figures(n - 1, m * (n > 1)),
              by_node=chained),
    *_on_slot("reduce", ONESHOT_UPTO, _from_others, _once, reduces=True),
    Algorithm(
        "reduce", "reduce_scatter_gather", PLAN,
        lambda n, m, link: 2 * (n - 1) * link.message + 2 * m * link.byte + m * link.reduced,
        chosen=_shared_from(64 << 10),
        figures=lambda n, m: shared(n, m, 2)),
    Algorithm(
        "reduce", "gather_reduce", PLAN,
        lambda n, m, link: link.message + (n - 1) * m * (link.byte + link.reduced),
        chosen=_always,
        figures=lambda n, m: Figures(n - 1, (n - 1) * m, (n - 1) * m, n * m), has_center=True),
    Algorithm(
        "reduce", "leaders", PLAN,
        lambda n, m, link: rounds_of(n) * (link.message + m * (link.byte + link.reduced)),
        order=ANY,
        figures=lambda n, m: Figures(rounds_of(n), rounds_of(n) * m, rounds_of(n) * m, rounds_of(n) * min(m, 512 << 10)),
        by_node=lambda nodes, m: both(tree(nodes, m, reduces=True), gathered(nodes, m)),
    ),
    Algorithm(
        "reduce", "rabenseifner", PLAN,
        lambda n, m, link: 2 * rounds_of(n) * link.message + (n - 1) / n * m * (2 * link.byte + link.reduced),
        order=ANY,
        figures=lambda n, m: halved(n, m, is_returned=False),
    ),
    *_on_slot("allreduce", 4 << 10, _from_others, lambda n: 2 * (n - 1) / n, reduces=True),
    Algorithm(
        "allreduce", "reduce_scatter_allgather", PLAN,
        lambda n, m, link: 2 * (n - 1) * link.message + (n - 1) / n * m * (2 * link.byte + link.reduced),
        chosen=_shared_from(32 << 10),
        figures=lambda n, m: shared(n, m, 2)),
    Algorithm(
        "allreduce", "allgather_reduce", PLAN,
        lambda n, m, link: (n - 1) * (link.message + m * (link.byte + link.reduced)),
        chosen=_always,
        figures=lambda n, m: Figures(n - 1, (n - 1) * m, (n - 1) * m, n * m)),
    Algorithm(
        "allreduce", "recursive_doubling", PLAN,
        lambda n, m, link: (rounds_of(n) + (n & (n - 1) > 0)) * (link.message + m * (link.byte + link.reduced)),
        order=GROUPS,
        figures=lambda n, m: Figures(rounds_of(n) + (n & (n - 1) > 0), doublings(n) * m, doublings(n) * m, 4 * m * (n > 1)),
    ),
    Algorithm(
        "allreduce", "full_lane", PLAN,
        lambda n, m, link: 2 * (n - 1) * link.message + (n - 1) / n * m * (2 * link.byte + link.reduced),
        order=ANY,
        figures=lambda n, m: shared(n, m, 2)._replace(memory=(n - 1 + (n > 2)) * m // n),
        by_node=lambda nodes, m: both(lanes_reduced(nodes, m), lanes_shared(nodes, m)),
    ),
    Algorithm(
        "allreduce", "ring", PLAN,
        lambda n, m, link: 2 * (n - 1) * link.message + (n - 1) / n * m * (2 * link.byte + link.reduced),
        order=ANY,
        figures=lambda n, m: shared(n, m, 2)._replace(memory=2 * m // n * (n > 1)),
        is_ring=True,
    ),
    Algorithm(
        "allreduce", "leaders", PLAN,
        lambda n, m, link: 2 * rounds_of(n) * (link.message + m * link.byte) + rounds_of(n) * m * link.reduced,
        order=ANY,
        figures=lambda n, m: Figures(2 * rounds_of(n), rounds_of(n) * m, rounds_of(n) * m, (rounds_of(n) + 1) * m * (n > 1), m * (n > 1)),
        by_node=lambda nodes, m: both(tree(nodes, m, reduces=True), tree(nodes, m), doubled(nodes, m)),
    ),
    Algorithm(
        "allreduce", "rabenseifner", PLAN,
        lambda n, m, link: 2 * rounds_of(n) * link.message + (n - 1) / n * m * (2 * link.byte + link.reduced),
        order=ANY,
        figures=lambda n, m: halved(n, m, is_returned=True),
    ),
    *_on_slot("gather", ONESHOT_UPTO, _from_others, _from_others),
    Algorithm("gather", "linear", PLAN, lambda n, m, link: link.message + (n - 1) * m * link.byte, chosen=_always,
              figures=lambda n, m: Figures(n - 1, (n - 1) * m), has_center=True),
    Algorithm("gather", "binomial", PLAN, lambda n, m, link: rounds_of(n) * link.message + (n - 1) * m * link.byte, equal_blocks=True,
              figures=lambda n, m: Figures(rounds_of(n), (n - 1) * m, memory=subtree(n) * m, copied=m * (subtree(n) > 0))),
    *_on_slot("scatter", ONESHOT_UPTO, _once, _once),
    Algorithm("scatter", "linear", PLAN, lambda n, m, link: link.message + (n - 1) / n * m * link.byte, chosen=_always,
              figures=lambda n, m: Figures(n - 1, (n - 1) * m // n), has_center=True),
    Algorithm("scatter", "binomial", PLAN, lambda n, m, link: rounds_of(n) * link.message + (n - 1) / n * m * link.byte, equal_blocks=True,
              figures=lambda n, m: Figures(
                  rounds_of(n), (n - 1) * m // n, memory=subtree(n) * m // n, copied=m // n * (subtree(n) > 0)
              )),
    *_on_slot("allgather", ONESHOT_UPTO, _from_others, _from_others),
    Algorithm("allgather", "ring", PLAN, lambda n, m, link: (n - 1) * (link.message + m * link.byte), chosen=_always, is_ring=True,
              figures=lambda n, m: Figures(n - 1, (n - 1) * m)),
    Algorithm("allgather", "bruck", PLAN, lambda n, m, link: rounds_of(n) * link.message + (n - 1) * m * link.byte,
              figures=lambda n, m: Figures(rounds_of(n), (n - 1) * m, memory=n * m, copied=(n + 1) * m)),
    Algorithm("allgather", "full_lane", PLAN, lambda n, m, link: (n - 1) * (link.message + m * link.byte),
              figures=lambda n, m: Figures(n - 1, (n - 1) * m),
              by_node=lambda nodes, m: blocks_spread(nodes, m)),
    Algorithm("allgather", "recursive_doubling", PLAN, lambda n, m, link: rounds_of(n) * link.message + (n - 1) * m * link.byte,
              equal_blocks=True, figures=doubled_blocks),
    Algorithm("allgather", "neighbor_exchange", PLAN, lambda n, m, link: (n + 1) // 2 * link.message + (n - 1) * m * link.byte,
              equal_blocks=True, figures=lambda n, m: Figures((n - 1) if n % 2 else n // 2, (n - 1) * m)),
    *_on_slot("alltoall", ONESHOT_UPTO, _once, _once),
    Algorithm("alltoall", "pairwise", PLAN, lambda n, m, link: (n - 1) * (link.message + m / n * link.byte), chosen=_always,
              figures=lambda n, m: Figures(n - 1, (n - 1) * m // n)),
    Algorithm("alltoall", "bruck", PLAN, lambda n, m, link: rounds_of(n) * (link.message + m / 2 * link.byte), equal_blocks=True,
              figures=lambda n, m: Figures(
                  rounds_of(n), hops(n) * m // n, memory=2 * hops(n) * m // n, copied=(hops(n) + n - 1) * m // n
              )),
    Algorithm("alltoall", "full_lane", PLAN, lambda n, m, link: (n - 1) * (link.message + m / n * link.byte), equal_blocks=True,
              figures=lambda n, m: Figures(n - 1, (n - 1) * m // n),
              by_node=lambda nodes, m: blocks_exchanged(nodes, m)),
    *_on_slot("reduce_scatter", ONESHOT_UPTO, _once, _once, reduces=True),
    Algorithm(
        "reduce_scatter", "pairwise", PLAN,
        lambda n, m, link: (n - 1) * link.message + (n - 1) / n * m * (link.byte + link.reduced),
        chosen=_always,
        figures=lambda n, m: shared(n, m, 1)._replace(memory=(n + 1) * m // n, copied=m // n * (1 + (n == 1)))),
    Algorithm(
        "reduce_scatter", "full_lane", PLAN,
        lambda n, m, link: (n - 1) * link.message + (n - 1) / n * m * (link.byte + link.reduced),
        order=ANY,
        figures=lambda n, m: shared(n, m, 1)._replace(memory=m * (n > 1), copied=m // n * (n > 1)),
        by_node=lambda nodes, m: blocks_reduced(nodes, m),
    ),
    Algorithm(
        "reduce_scatter", "recursive_halving", PLAN,
        lambda n, m, link: rounds_of(n) * link.message + (n - 1) / n * m * (link.byte + link.reduced),
        order=ANY,
        figures=halved_to_blocks,
    ),
    *_on_slot("scan", ONESHOT_UPTO, _from_others, _once, reduces=True, has_cma=False),
    Algorithm(
        "scan", "chain", PLAN,
        lambda n, m, link: (n - 1) * link.message + 2 * m * (link.byte + link.reduced),
        chosen=_always,
        figures=lambda n, m: Figures(n - 1, m * (n > 1), m * (n > 1), m * (n > 1)),
    ),
    Algorithm(
        "scan", "recursive_doubling", PLAN,
        lambda n, m, link: rounds_of(n) * (link.message + m * (link.byte + 2 * link.reduced)),
        order=GROUPS,
        figures=lambda n, m: Figures(rounds_of(n), rounds_of(n) * m, scanned(n) * m, 5 * m * (n > 1), m * (n > 1)),
    ),
)  # fmt: skip
"""In the order in which they are looked at: the first one that serves a call, and is chosen for it, runs."""

NAMES = ("auto", *ON_SLOT, *dict.fromkeys(row.name for row in ROWS if row.kind == PLAN))
"""The number of an algorithm, in words of communicators and of the arena, is its index here."""
ALGORITHMS = {
    collective: tuple(row.name for row in ROWS if row.collective == collective)
    for collective in dict.fromkeys(row.collective for row in ROWS)
}
"""The names of a collective's algorithms."""
ORDER = "reduction_order"
ORDERS = ("auto", RANK)

_PUBLISHED = 1
_BITS = 5
_ORDER_SHIFT = 1 + len(ALGORITHMS) * _BITS
assert len(NAMES) <= 1 << _BITS and _ORDER_SHIFT < 63
assert all(NAMES.index(row.name) == row.kind or row.kind == PLAN for row in ROWS)


def rows_of(collective: str) -> list[Algorithm]:
    """The rows of a collective."""
    return [row for row in ROWS if row.collective == collective]


def row_of(collective: str, name: str) -> Algorithm:
    """The row of an algorithm."""
    return next(row for row in rows_of(collective) if row.name == name)


def choose(collective: str, case: Case) -> Algorithm:
    """The algorithm that a call goes by where none is forced: as measured times have it, else the model."""
    return preferred(_by_model(collective, case), measured_us(collective, case))


def preferred(model: Choice, us: Mapping[Choice, float]) -> Choice:
    """What took least, if the choice of the model took longer by more than measuring is sure of, or was not measured."""
    best = min(us, key=lambda each: us[each], default=model)
    return best if us and us.get(model, math.inf) > OVERRULED_FROM * us[best] else model


def _by_model(collective: str, case: Case) -> Algorithm:
    """On several nodes, the plan that costs least."""
    if case.nodes is None:
        return next(row for row in rows_of(collective) if row.is_chosen(case))
    return min(candidates(collective, case), key=lambda row: cost_of(row, case))


def candidates(collective: str, case: Case) -> list[Algorithm]:
    """The plans by which a call can go."""
    return [row for row in rows_of(collective) if row.kind == PLAN and not row.why_not(case)]


def measured_us(collective: str, case: Case) -> dict[Algorithm, float]:
    """The plans by which a call can go that the tuning table has times of, with these, in us; none on the slot.

    There is no telling how many bytes a call with counts moves that only the two ends of a block know.
    """
    if case.table is None or case.has_slot or (case.has_counts and not case.nbytes):
        return {}
    times = case.table.times(collective, case.layout, case.nbytes)
    return {row: times[row.name] for row in candidates(collective, case) if row.name in times} if times else {}


def cost_of(row: Algorithm, case: Case) -> float:
    """What a call costs, in us: with near and far links, if its ranks are on several nodes."""
    if case.nodes is None:
        return row.cost(case.size, case.nbytes, SHARED_MEMORY)
    return row.crossing(case.nodes, case.nbytes).cost()


def variable(name: str) -> str:
    """The environment variable that forces the algorithm of a collective, or that of ``reduction_order``."""
    return f"NCCLX_MPI_{name.upper()}" if name == ORDER else f"NCCLX_MPI_ALGO_{name.upper()}"


def pack(forced: Mapping[str, str]) -> int:
    """One word, not 0, that says what is forced: the name of an algorithm for each collective, ``auto`` for none, and ``reduction_order``.

    Raises
    ------
    ValueError
        A collective has no algorithm of that name, or there is no such order.
    """
    order = str(forced.get(ORDER, "")).strip().lower() or "auto"
    if order not in ORDERS:
        raise ValueError(
            f"{variable(ORDER)}={forced[ORDER]}: there is no such order of reductions; it may be {' or '.join(ORDERS)}"
        )
    word = _PUBLISHED | ORDERS.index(order) << _ORDER_SHIFT
    for index, (collective, names) in enumerate(ALGORITHMS.items()):
        name = str(forced[collective]).strip().lower() or "auto"
        if name != "auto" and name not in names:
            import difflib

            close = difflib.get_close_matches(name, names, 1, 0.5)
            raise ValueError(
                f"{variable(collective)}={forced[collective]}: {collective} has no such algorithm; it has {', '.join(names)}, and auto"
                + (f"; did you mean {close[0]}?" if close else "")
            )
        word |= NAMES.index(name) << (1 + _BITS * index)
    return word


def unpack(word: int) -> dict[str, str]:
    """The opposite of :func:`pack`, without the collectives of which none is forced, and without an order that is ``auto``."""
    numbers = {collective: word >> (1 + _BITS * index) & ((1 << _BITS) - 1) for index, collective in enumerate(ALGORITHMS)}
    found = {collective: NAMES[number] for collective, number in numbers.items() if number != UNFORCED}
    return {**found, ORDER: ORDERS[word >> _ORDER_SHIFT]} if word >> _ORDER_SHIFT else found
