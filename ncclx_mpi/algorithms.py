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

from collections.abc import Callable, Mapping
from typing import NamedTuple

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
    """

    size: int
    nbytes: int
    itemsize: int = 1
    commutes: bool = True
    order: str = "auto"
    has_counts: bool = False
    has_slot: bool = False


class Link(NamedTuple):
    """What costs are computed from, in us: a message, a line of the slot, a byte moved, a byte reduced."""

    message: float
    line: float
    byte: float
    reduced: float


SHARED_MEMORY = Link(message=1.0, line=0.2, byte=1e-4, reduced=5e-5)
"""Ranks of one machine, in round numbers: for comparing algorithms, not for predicting times."""

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
    """

    steps: int
    moved: int = 0
    reduced: int = 0
    memory: int = 0


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


def _rounds(n: int) -> int:
    """The number of rounds in which n ranks hear of each other."""
    return (n - 1).bit_length()


def _doublings(n: int) -> int:
    """How many of them a rank takes part in that stands for two where n is no power of two."""
    return n.bit_length() - 1 + (n & (n - 1) > 0)


def _hops(n: int) -> int:
    """How many blocks a rank passes on if the one for the rank j further on hops as often as j has bits."""
    return sum(j.bit_count() for j in range(n))


def _shared(n: int, m: int, rounds: int) -> Figures:
    """Every rank reduces its block of what all give, in `rounds` of exchanges with all others."""
    return Figures(rounds * (n - 1), rounds * (n - 1) * m // n, (n - 1) * m // n, (n + 1) * m // n)


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
    Algorithm("barrier", "dissemination", PLAN, lambda n, m, link: _rounds(n) * link.message, chosen=_always,
              figures=lambda n, m: Figures(_rounds(n))),
    *_on_slot("bcast", ONESHOT_UPTO, _once, _once),
    Algorithm("bcast", "binomial", PLAN, lambda n, m, link: _rounds(n) * (link.message + m * link.byte), chosen=_always,
              figures=lambda n, m: Figures(_rounds(n), _rounds(n) * m)),
    *_on_slot("reduce", ONESHOT_UPTO, _from_others, _once, reduces=True),
    Algorithm(
        "reduce", "reduce_scatter_gather", PLAN,
        lambda n, m, link: 2 * (n - 1) * link.message + 2 * m * link.byte + m * link.reduced,
        chosen=_shared_from(64 << 10),
        figures=lambda n, m: _shared(n, m, 2),
    ),
    Algorithm(
        "reduce", "gather_reduce", PLAN,
        lambda n, m, link: link.message + (n - 1) * m * (link.byte + link.reduced),
        chosen=_always,
        figures=lambda n, m: Figures(n - 1, (n - 1) * m, (n - 1) * m, n * m),
    ),
    *_on_slot("allreduce", 4 << 10, _from_others, lambda n: 2 * (n - 1) / n, reduces=True),
    Algorithm(
        "allreduce", "reduce_scatter_allgather", PLAN,
        lambda n, m, link: 2 * (n - 1) * link.message + (n - 1) / n * m * (2 * link.byte + link.reduced),
        chosen=_shared_from(32 << 10),
        figures=lambda n, m: _shared(n, m, 2),
    ),
    Algorithm(
        "allreduce", "allgather_reduce", PLAN,
        lambda n, m, link: (n - 1) * (link.message + m * (link.byte + link.reduced)),
        chosen=_always,
        figures=lambda n, m: Figures(n - 1, (n - 1) * m, (n - 1) * m, n * m),
    ),
    Algorithm(
        "allreduce", "recursive_doubling", PLAN,
        lambda n, m, link: (_rounds(n) + (n & (n - 1) > 0)) * (link.message + m * (link.byte + link.reduced)),
        order=GROUPS,
        figures=lambda n, m: Figures(_rounds(n) + (n & (n - 1) > 0), _doublings(n) * m, _doublings(n) * m, 4 * m * (n > 1)),
    ),
    Algorithm(
        "allreduce", "ring", PLAN,
        lambda n, m, link: 2 * (n - 1) * link.message + (n - 1) / n * m * (2 * link.byte + link.reduced),
        order=ANY,
        figures=lambda n, m: _shared(n, m, 2)._replace(memory=2 * m // n * (n > 1)),
    ),
    *_on_slot("gather", ONESHOT_UPTO, _from_others, _from_others),
    Algorithm("gather", "linear", PLAN, lambda n, m, link: link.message + (n - 1) * m * link.byte, chosen=_always,
              figures=lambda n, m: Figures(n - 1, (n - 1) * m)),
    *_on_slot("scatter", ONESHOT_UPTO, _once, _once),
    Algorithm("scatter", "linear", PLAN, lambda n, m, link: link.message + (n - 1) / n * m * link.byte, chosen=_always,
              figures=lambda n, m: Figures(n - 1, (n - 1) * m // n)),
    *_on_slot("allgather", ONESHOT_UPTO, _from_others, _from_others),
    Algorithm("allgather", "ring", PLAN, lambda n, m, link: (n - 1) * (link.message + m * link.byte), chosen=_always,
              figures=lambda n, m: Figures(n - 1, (n - 1) * m)),
    Algorithm("allgather", "bruck", PLAN, lambda n, m, link: _rounds(n) * link.message + (n - 1) * m * link.byte,
              figures=lambda n, m: Figures(_rounds(n), (n - 1) * m, memory=n * m)),
    *_on_slot("alltoall", ONESHOT_UPTO, _once, _once),
    Algorithm("alltoall", "pairwise", PLAN, lambda n, m, link: (n - 1) * (link.message + m / n * link.byte), chosen=_always,
              figures=lambda n, m: Figures(n - 1, (n - 1) * m // n)),
    Algorithm("alltoall", "bruck", PLAN, lambda n, m, link: _rounds(n) * (link.message + m / 2 * link.byte), equal_blocks=True,
              figures=lambda n, m: Figures(_rounds(n), _hops(n) * m // n, memory=2 * _hops(n) * m // n)),
    *_on_slot("reduce_scatter", ONESHOT_UPTO, _once, _once, reduces=True),
    Algorithm(
        "reduce_scatter", "pairwise", PLAN,
        lambda n, m, link: (n - 1) * link.message + (n - 1) / n * m * (link.byte + link.reduced),
        chosen=_always,
        figures=lambda n, m: _shared(n, m, 1),
    ),
    *_on_slot("scan", ONESHOT_UPTO, _from_others, _once, reduces=True, has_cma=False),
    Algorithm(
        "scan", "chain", PLAN,
        lambda n, m, link: (n - 1) * link.message + 2 * m * (link.byte + link.reduced),
        chosen=_always,
        figures=lambda n, m: Figures(n - 1, m * (n > 1), m * (n > 1), m * (n > 1)),
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
    """The algorithm that a call goes by where none is forced."""
    return next(row for row in rows_of(collective) if row.is_chosen(case))


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
