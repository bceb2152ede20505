"""``ncclx info --plans``: the algorithms that a call could go by, what they cost, and which one it goes by.

Costs are those of the rows (:mod:`ncclx_mpi.algorithms`) for ranks of one machine, or of nodes that a network joins: they compare
algorithms, and predict no times.
``ncclx simulate`` prices the steps themselves, on any network.
"""

from __future__ import annotations

from ncclx_mpi import rc
from ncclx_mpi.algorithms import KINDS, PLAN, Algorithm, Case, choose, cost_of, measured_us, rows_of, variable
from ncclx_mpi.bench.points import size_text
from ncclx_mpi.costs import SHARED_MEMORY
from ncclx_mpi.nodes import nodes_of
from ncclx_mpi.tuning import Table

_ITEMSIZE = 4
"""Bytes of an element of a reduction: a float32."""


def table(collective: str, ranks: int, nbytes: int, number: int = 1, tuned: Table | None = None) -> str:
    """The candidates for a call in which each of `ranks` ranks, on a number of nodes, gives `nbytes`; by a tuning table, if there is one."""
    itemsize = _ITEMSIZE if collective in _REDUCTIONS else 1
    case = Case(ranks, 0 if collective == "barrier" else nbytes, itemsize, table=tuned)
    if number > 1:
        lines = _between_nodes(collective, case._replace(nodes=nodes_of(rank * number // ranks for rank in range(ranks))))
    else:
        lines = _on_one_node(collective, case._replace(has_slot=True))
    forced = getattr(rc, f"algo_{collective}")
    if forced != "auto":
        lines.append(f"{variable(collective)}={forced} is set: that runs, unless its line says why not")
    return "\n".join(lines)


def _on_one_node(collective: str, case: Case) -> list[str]:
    """The algorithms for ranks that share a node, those on the slot and plans."""
    ranks, measured = case.size, _measured(collective, case._replace(has_slot=False))
    on_slot, as_plan = choose(collective, case), choose(collective, case._replace(has_slot=False))
    lines = [f"{collective} of {size_text(case.nbytes)} from each of {ranks} ranks", ""]
    lines.append(
        f"{'':2}{'algorithm':26}{'kind':11}{'steps':>7}{'rounds':>8}{'memory':>10}{'cost, us':>12}{_HEAD * bool(measured)}  if it is forced"
    )
    for row in rows_of(collective):
        mark = "*" if row is on_slot else "+" if row is as_plan else " "
        steps, rounds, memory = _needs(row, case)
        cost, reason = row.cost(ranks, case.nbytes, SHARED_MEMORY), row.why_not(case) or "runs"
        needs = f"{steps:>7}{rounds:>8}{memory:>10}{cost:>12.1f}{measured.get(row.name, _NONE * bool(measured))}"
        lines.append(f"{mark:2}{row.name:26}{KINDS[row.kind]:11}{needs}  {reason}")
    lines += ["", f"* runs if none is forced{'; shm_pipelined and cma are tried in turn' * (on_slot.name == 'shm_pipelined')}"]
    lines.append(
        "+ runs where there is no slot in shared memory; steps are those of rank 0; memory is temporary; calls are blocking"
    )
    return [*lines, *_about_table(case, bool(measured), "+")]


def _between_nodes(collective: str, case: Case) -> list[str]:
    """The plans for ranks on several nodes: what crosses between these, and what all of it costs."""
    assert case.nodes is not None
    nodes, chosen, measured = case.nodes, choose(collective, case), _measured(collective, case)
    lines = [f"{collective} of {size_text(case.nbytes)} from each of {nodes.size} ranks on {nodes.number} nodes", ""]
    lines.append(
        f"{'':2}{'algorithm':26}{'messages: near':>15}{'far':>6}{'bytes: near':>14}{'far':>10}{'cost, us':>12}{_HEAD * bool(measured)}"
        "  if it is forced"
    )
    for row in (row for row in rows_of(collective) if row.kind == PLAN):
        needs, reason = row.crossing(nodes, case.nbytes), row.why_not(case) or "runs"
        counts = f"{needs.near_messages:>15.0f}{needs.far_messages:>6.0f}{size_text(round(needs.near)):>14}{size_text(round(needs.far)):>10}"
        counts += f"{cost_of(row, case):>12.1f}{measured.get(row.name, _NONE * bool(measured))}"
        lines.append(f"{'*' if row is chosen else '':2}{row.name:26}{counts}  {reason}")
    why = "is best by measured times" if measured else "costs least"
    lines += ["", f"* runs if none is forced: it {why}; messages, and bytes on a node, are those of the busiest rank, and bytes"]
    return [*lines, "between nodes those out of the busiest node, or into it", *_about_table(case, bool(measured), "*")]


def _measured(collective: str, case: Case) -> dict[str, str]:
    """What the tuning table says of each plan, as a column."""
    return {row.name: f"{us:>14.1f}" for row, us in measured_us(collective, case).items()}


def _about_table(case: Case, is_used: bool, mark: str) -> list[str]:
    """Whether the choice came from the tuning table."""
    if case.table is None:
        return []
    chosen = (
        f"{mark} is the choice of the tuning table"
        if is_used
        else "the model chooses: nothing of these ranks is in the tuning table"
    )
    return [f"{chosen} {case.table.source}"]


def _needs(row: Algorithm, case: Case) -> tuple[str, ...]:
    """Of a plan: steps of rank 0, which is the root; rounds, and bytes of temporary memory of the rank that needs most."""
    from ncclx_mpi.simulate.calls import Call, plan_of

    if row.kind != PLAN:
        return ("-", "-", "-")
    needs = row.figures(case.size, case.nbytes)
    steps = len(plan_of(row, Call(case.size, case.nbytes, case.itemsize), 0).steps)
    return str(steps), str(needs.steps), size_text(needs.memory)


_HEAD, _NONE = f"{'measured, us':>14}", f"{'-':>14}"
_REDUCTIONS = ("reduce", "allreduce", "reduce_scatter", "scan")
