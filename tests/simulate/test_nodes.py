"""Plans that are told where ranks are: proved for placements of all kinds, counted, and chosen by what they cost there."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

from ncclx_mpi.algorithms import ALGORITHMS, ANY, PLAN, RANK, ROWS, Algorithm, Case, candidates, choose, cost_of
from ncclx_mpi.collectives.plan import RECV, REDUCE, SEND, Plan
from ncclx_mpi.costs import Crossing
from ncclx_mpi.nodes import NodeMap, nodes_of, one_node
from ncclx_mpi.simulate import proof
from ncclx_mpi.simulate.calls import Call
from tests.collectives.pieces import in_pieces_of
from tests.simulate.mutants import mutants, proved_equivalent
from tests.simulate.test_proof import calls

BY_NODE = [row for row in ROWS if row.by_node is not None]
EVERY_ROW = pytest.mark.parametrize("row", BY_NODE, ids=lambda row: f"{row.collective}-{row.name}")
FOR_SMALL = {"barrier", "alltoall"}
"""Collectives of which plans by node save messages, and no bytes between nodes."""
SIZES, MANY = (2, 3, 4, 5, 6, 7, 8, 12), (16, 24, 33, 64)
MOST_NODES = 8


def placements(size: int, dice: random.Random) -> Iterator[tuple[int, ...]]:
    """Ranks on 2 to 8 nodes: nearly equal, node by node and round robin; anyhow, each node with a rank at least."""
    for number in range(2, min(MOST_NODES, size) + 1):
        yield tuple(rank * number // size for rank in range(size))
        yield tuple(rank % number for rank in range(size))
        drawn = [*range(number), *(dice.randrange(number) for _ in range(size - number))]
        dice.shuffle(drawn)
        yield tuple(drawn)


def in_few_pieces(call: Call, dice: random.Random) -> Call:
    """The same with blocks of some pieces of 64 bytes at most, not of hundreds: a proof looks at each pair of their steps."""
    if call.nbytes > 64 * 8 * call.size:
        call = call._replace(nbytes=8 * call.size * dice.randrange(1, 40))
    return call._replace(counts=tuple(min(count, 8 * dice.randrange(1, 40)) for count in call.counts))


@EVERY_ROW
@pytest.mark.parametrize("chunk", [None, 64])
def test_every_placement_is_proved(row: Algorithm, chunk: int | None, full: bool) -> None:
    with in_pieces_of(chunk) if chunk else contextlib.nullcontext():
        for size in range(2, 65) if full else SIZES if chunk else (*SIZES, *MANY):
            dice = random.Random(f"{row.collective} {row.name} {size}")
            found = list(placements(size, dice))
            for nodes in found if full or size <= 8 else dice.sample(found, 4):
                for call in calls(row, size):
                    if chunk:
                        call = in_few_pieces(call, dice)
                    faults = proof.faults(row, call._replace(nodes=nodes))
                    assert not faults, f"{call._replace(nodes=nodes)}:\n" + "\n".join(map(str, faults[:5]))


def counted(plans: list[Plan], nodes: NodeMap) -> Crossing:
    """What plans need, of the rank or the node that needs most."""
    messages, moved, left = {}, {}, {}
    for rank, plan in enumerate(plans):
        for kind in (SEND, RECV):
            steps = plan.steps[plan.steps["kind"] == kind]
            is_far = [nodes.of[peer] != nodes.of[rank] for peer in steps["peer"].tolist()]
            sizes = steps["nbytes"].tolist()
            for far in (False, True):
                chosen = [nbytes for nbytes, is_it in zip(sizes, is_far, strict=True) if is_it == far]
                messages[rank, kind, far], moved[rank, kind, far] = len(chosen), sum(chosen)
            key = (nodes.of[rank], kind)
            left[key] = left.get(key, 0) + moved[rank, kind, True]
    most = [max(values[key] for key in values if key[2] == far) for values in (messages, moved) for far in (False, True)]
    reduced = max(int(plan.steps["nbytes"][plan.steps["kind"] == REDUCE].sum()) for plan in plans)
    return Crossing(most[0], most[1], most[2], max(left.values()), reduced)


@EVERY_ROW
@pytest.mark.parametrize(
    "nodes", [(0, 0, 1, 1), (0, 1) * 4, (0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 2, 3), (0, 0, 0, 1, 1, 1, 2, 2, 2)], ids=str
)
def test_no_more_crosses_than_the_row_says(row: Algorithm, nodes: tuple[int, ...]) -> None:
    """Bytes out of a node as the formula has them; of messages and what is near, the formula is a bound, and no wide one."""
    size, where = len(nodes), nodes_of(nodes)
    nbytes = 0 if row.collective == "barrier" else 720 * size
    assert row.by_node is not None
    wanted = row.by_node(where, nbytes)
    found = counted(proof.plans_of(row, Call(size, nbytes, nodes=nodes)), where)
    assert found.far == pytest.approx(wanted.far)
    assert found.far_messages <= wanted.far_messages + 1 and found.near_messages <= wanted.near_messages + where.most
    assert found.reduced <= wanted.reduced and found.near <= wanted.near


@pytest.mark.parametrize("collective", [name for name in ALGORITHMS if name in {row.collective for row in BY_NODE} - FOR_SMALL])
def test_large_messages_go_by_node(collective: str) -> None:
    for nodes in ((0, 0, 1, 1), (0,) * 4 + (1,) * 4, (0, 1, 2, 3) * 4):
        case = Case(len(nodes), 16 << 20, 4, nodes=nodes_of(nodes))
        assert choose(collective, case).by_node is not None, nodes


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_what_is_chosen_serves_the_call_and_costs_least(collective: str) -> None:
    for nodes in ((0, 0, 1, 1), (0, 1, 1), (0, 1, 2)):
        for nbytes in (0, 8, 1 << 20):
            for case in (
                Case(len(nodes), nbytes, 4, nodes=nodes_of(nodes)),
                Case(len(nodes), nbytes, 4, order=RANK, nodes=nodes_of(nodes)),
                Case(len(nodes), nbytes, 4, commutes=False, nodes=nodes_of(nodes)),
                Case(len(nodes), nbytes, 1, has_counts=True, nodes=nodes_of(nodes)),
            ):
                row = choose(collective, case)
                assert row.kind == PLAN and not row.why_not(case)
                assert cost_of(row, case) == min(cost_of(other, case) for other in candidates(collective, case))
                assert row.order == RANK or (case.order != RANK and (case.commutes or row.order != ANY))


def test_on_one_node_nothing_is_chosen_in_another_way() -> None:
    """Where nobody says that there are several nodes, the first row that serves a call runs, and that is none by node."""
    for collective in ALGORITHMS:
        for size in (1, 2, 5, 64):
            for nbytes in (0, 8, 1 << 20):
                for has_slot in (False, True):
                    assert choose(collective, Case(size, nbytes, 4, has_slot=has_slot)).by_node is None


def test_faults_are_found_in_plans_that_are_told_where_ranks_are() -> None:
    dice, found = random.Random(1), []
    for row in BY_NODE:
        for nodes in ((0, 0, 1, 1), (0, 1, 0, 1, 0), (0, 1, 2, 0)):
            nbytes = 0 if row.collective == "barrier" else dice.randrange(1, 4) * len(nodes)
            found.append((row, Call(len(nodes), nbytes, 1, dice.randrange(len(nodes)), dice.random() < 0.5, nodes=nodes)))
    planted = list(mutants(found, 1))
    refuted = 0
    for mutant in planted:
        if proof.faults(mutant.row, mutant.call, mutant.plans):
            refuted += 1
        else:
            assert proved_equivalent(mutant), mutant
    assert refuted > 0.8 * len(planted)


def test_maps_of_a_layout_are_one_object() -> None:
    found = nodes_of((7, 3, 7, 3, 7))
    assert found is nodes_of([0, 1, 0, 1, 0]) and found is not nodes_of((0, 0, 1, 1, 0))
    assert found.ranks == ((0, 2, 4), (1, 3)) and found.place == ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2))
    assert (found.size, found.number, found.fewest, found.most, found.in_turn) == (5, 2, 2, 3, 2)
    assert found.column(1) == (2, 3) and one_node(3) is nodes_of((5, 5, 5))
