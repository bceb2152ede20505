"""Ranks that do the same: where a plan looks the same from every node, those of one node stand for all.

Ranks r, r + p, r + 2 p ... are a class if their plans differ only by whom they talk to: by the same distance around all ranks (a ring,
Bruck), or by the same bits of the rank's number (recursive doubling). Then one rank of each class is enough: what it sends to a rank
of a class it gets of one of that class. As it cannot be far from one and near to another, a message takes the longest way that one of its
class takes: a price is exact where all of a class are as far apart. Else it is an estimate, as queues before links and receivers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ncclx_mpi.algorithms import Algorithm
from ncclx_mpi.collectives.plan import RECV, SEND, Plan
from ncclx_mpi.simulate.calls import Call, plan_of
from ncclx_mpi.simulate.network import Network
from numba_kernels.rows import NamedTuple

MOST_STEPS = 1_500_000
"""That are priced: a minute."""
_FEW_RANKS = 128
"""Up to which every rank is looked at for itself."""
Distance = Callable[[int, int, int], int]
_DISTANCES: tuple[Distance, ...] = (lambda one, other, size: (other - one) % size, lambda one, other, size: one ^ other)
_MOVES: tuple[Distance, ...] = (lambda rank, by, size: (rank + by) % size, lambda rank, by, size: rank ^ by)
"""How a rank is moved by so many; in the order of `_DISTANCES`."""


class Classes(NamedTuple):
    """Plans that stand for all.

    Attributes
    ----------
    plans
        Of ranks 0, 1, ..., one of each class.
    partner
        For each step of these plans, counted through, the other end of its message; -1 for other steps.
    levels
        How far each message goes.
    """

    plans: list[Plan]
    partner: list[int]
    levels: list[int]


def of(row: Algorithm, call: Call, network: Network) -> Classes:
    """Return the plans that have to be looked at.

    Raises
    ------
    ValueError
        They have too many steps.
    """
    period = network.ranks[0] or 1
    if call.size > _FEW_RANKS and call.size % period == 0 and period < call.size:
        found = _symmetric(row, call, network, period)
        if found:
            return found
    fewest = min(len(plan_of(row, call, rank).steps) for rank in {0, call.size // 2, call.size - 1})
    if fewest * call.size > MOST_STEPS:
        raise ValueError(f"some {fewest * call.size:,} steps, and no ranks that do the same")
    plans = [plan_of(row, call, rank) for rank in range(call.size)]
    found = _matched(plans, call.size, call.size, network, _DISTANCES[0])
    if found is None:
        raise ValueError("there are messages without another end")
    return found


def _symmetric(row: Algorithm, call: Call, network: Network, period: int) -> Classes | None:
    """The first ranks, if all others do the same as they, as far as some of these tell."""
    first = plan_of(row, call, 0)
    if len(first.steps) * period > MOST_STEPS:
        raise ValueError(f"some {len(first.steps) * period:,} steps for the ranks of one node")
    moved_by = sorted({period, call.size // 2 // period * period, call.size - period})
    for distance, move in zip(_DISTANCES, _MOVES, strict=True):
        if all(_is_alike(first, 0, row, call, move(0, by, call.size), distance) for by in moved_by):
            plans = [first, *(plan_of(row, call, rank) for rank in range(1, period))]
            if _is_alike(plans[-1], period - 1, row, call, move(period - 1, moved_by[-1], call.size), distance):
                return _matched(plans, call.size, period, network, distance)
    return None


def _is_alike(plan: Plan, rank: int, row: Algorithm, call: Call, other: int, distance: Distance) -> bool:
    """Whether another rank has the same steps, with peers at the same distance."""
    if other >= call.size:
        return False
    its = plan_of(row, call, other).steps
    if len(its) != len(plan.steps):
        return False
    if not all((its[field] == plan.steps[field]).all() for field in ("kind", "number", "nbytes", "first", "second")):
        return False
    is_message = np.isin(its["kind"], (SEND, RECV))
    pairs = zip(plan.steps["peer"][is_message].tolist(), its["peer"][is_message].tolist(), strict=True)
    return all(distance(rank, one, call.size) == distance(other, two, call.size) for one, two in pairs)


def _matched(plans: Sequence[Plan], size: int, period: int, network: Network, distance: Distance) -> Classes | None:
    """Find the other end of each message, at a rank of the class of the peer; None if one has none."""
    ends: dict[tuple[int, int, int, int, int], tuple[int, int]] = {}
    partner: list[int] = []
    levels: list[int] = []
    for rank, plan in enumerate(plans):
        columns = (plan.steps[field].tolist() for field in ("kind", "peer", "number"))
        for kind, peer, number in zip(*columns, strict=True):
            index = len(partner)
            partner.append(-1)
            levels.append(0)
            if kind not in (SEND, RECV):
                continue
            way = (rank, peer) if kind == SEND else (peer, rank)
            far = network.level(rank, peer)
            key = (way[0] % period, way[1] % period, distance(way[0], way[1], size), number, RECV + SEND - kind)
            other, its = ends.pop(key, (-1, 0))
            if other < 0:
                ends[(*key[:4], kind)] = (index, far)
            else:
                partner[index], partner[other] = other, index
                levels[index] = levels[other] = max(far, its)
    return None if ends else Classes(list(plans), partner, levels)
