"""``ncclx info --plans``: the algorithms that a call could go by, what they cost, and which one it goes by.

Costs are those of the rows (:mod:`ncclx_mpi.algorithms`) for ranks of one machine: they compare algorithms, and predict no times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclx_mpi import rc
from ncclx_mpi.algorithms import KINDS, PLAN, SHARED_MEMORY, Algorithm, Case, choose, rows_of, variable
from ncclx_mpi.bench.points import size_text

if TYPE_CHECKING:
    from ncclx_mpi.collectives.plan import Plan

_ITEMSIZE = 4
"""Bytes of an element of a reduction: a float32."""


def table(collective: str, ranks: int, nbytes: int) -> str:
    """The candidates for a call in which each of `ranks` ranks gives `nbytes`."""
    case = Case(ranks, 0 if collective == "barrier" else nbytes, _ITEMSIZE if collective in _REDUCTIONS else 1, has_slot=True)
    on_slot, as_plan = choose(collective, case), choose(collective, case._replace(has_slot=False))
    lines = [f"{collective} of {size_text(case.nbytes)} from each of {ranks} ranks", ""]
    lines.append(f"{'':2}{'algorithm':26}{'kind':11}{'steps':>7}{'cost, us':>12}  if it is forced")
    for row in rows_of(collective):
        mark = "*" if row is on_slot else "+" if row is as_plan else " "
        steps = str(len(plan_of(row, case, 0).steps)) if row.kind == PLAN else "-"
        cost = row.cost(ranks, case.nbytes, SHARED_MEMORY)
        lines.append(f"{mark:2}{row.name:26}{KINDS[row.kind]:11}{steps:>7}{cost:>12.1f}  {row.why_not(case) or 'runs'}")
    lines += ["", f"* runs if none is forced{'; shm_pipelined and cma are tried in turn' * (on_slot.name == 'shm_pipelined')}"]
    lines.append("+ runs where there is no slot in shared memory; steps are those of rank 0; calls are blocking")
    forced = getattr(rc, f"algo_{collective}")
    if forced != "auto":
        lines.append(f"{variable(collective)}={forced} is set: that runs, unless its line says why not")
    return "\n".join(lines)


def plan_of(row: Algorithm, case: Case, rank: int) -> Plan:
    """What `rank` does; the root is rank 0."""
    from ncclx_mpi.collectives.prepare import equal_blocks
    from ncclx_mpi.collectives.select import function_of

    size, nbytes = case.size, case.nbytes
    whole, parts, elements = equal_blocks(nbytes, size), equal_blocks(nbytes // size, size), (nbytes // _ITEMSIZE, _ITEMSIZE)
    arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
        "barrier": lambda: (),
        "bcast": lambda: (nbytes, 0),
        "reduce": lambda: (*elements, 0),
        "allreduce": lambda: elements,
        "gather": lambda: (*whole, 0, False),
        "scatter": lambda: (*parts, 0, False),
        "allgather": lambda: (*whole, False),
        "alltoall": lambda: (*parts, *parts, False),
        "reduce_scatter": lambda: (parts[0],),
        "scan": lambda: (*elements, False),
    }
    return function_of(row)(rank, size, *arguments[row.collective]())


_REDUCTIONS = ("reduce", "allreduce", "reduce_scatter", "scan")
