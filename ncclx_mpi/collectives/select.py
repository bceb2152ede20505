"""Which algorithm carries out a collective: a function of what all ranks know, so that all choose alike.

What all ranks know: the collective, the number of ranks, the bytes that every rank gave (never one rank's counts of a v-variant),
whether the communicator has a slot in the arena, which node each rank is on, what the settings force, and the tuning table. The rows of
:mod:`ncclx_mpi.algorithms` say which algorithm is chosen for what; :func:`on_lines` and :func:`is_planned` are compiled, so that calls
which never leave compiled code choose by the very same rows. On several nodes, that plan is chosen which costs least, as the rows have it.
Where the tuning table (:mod:`ncclx_mpi.tuning`) has times, it is the plan that took least, of those that can carry the call out, unless
that plan took hardly less than the one of the model.

A forced plan runs, or the call is refused with what its row says. A forced algorithm of the slot that cannot serve a call leaves it to
another one, alike on all ranks (why: ``design/011-plans-and-rows.md``):

====================  =======================================================  ==============================================
forced                cannot serve                                             then
====================  =======================================================  ==============================================
``shm_oneshot``       more than 16 KiB                                         as if none was forced
``shm_pipelined``     elements over ``LARGEST_ITEM`` to reduce                 a plan
``cma``               buffers that the kernel does not copy                    ``shm_pipelined``
any of the three      no slot in the arena; non-blocking and persistent calls  a plan
                      with operations in Python, large scans
====================  =======================================================  ==============================================

What is empty, and a rank that is alone, passes by lines whatever is forced. Non-blocking and persistent calls go directly beyond lines,
without trials, where all ranks let the kernel copy, and else as a plan; with counts, block by block where they let it, and else as a plan.
Alltoallv, alltoallw, gatherv and scatterv have one algorithm on the slot, ``shm_vector``, whichever of its algorithms is forced. Forced
algorithms are the host's: arrays on devices are copied there.
"""

from __future__ import annotations

import functools
import importlib
from array import array
from collections.abc import Callable

from ncclx_mpi import algorithms, errors
from ncclx_mpi.algorithms import ONESHOT, ONESHOT_UPTO, UNFORCED, Algorithm, Case
from ncclx_mpi.collectives.plan import Plan
from ncclx_mpi.collectives.shm_oneshot import BARRIER, EXSCAN
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import COMM, OPERATIONS
from numba_kernels import symbols
from numba_kernels.atomics import load64
from numba_kernels.calls import make_symbol
from numba_kernels.jit import kernel

FIRST_PLAN = algorithms.PLAN
"""The number of the first plan."""
PLAN, SMALL, LARGE = "plan", "small", "large"
"""A plan over messages; lines of the slot; streams of the slot."""

COLLECTIVES = {kind: "scan" if OPERATIONS[kind] == "exscan" else OPERATIONS[kind] for kind in range(BARRIER, EXSCAN + 1)}
"""The collective of each kind, as rows name it."""

LINES_UPTO = {kind: algorithms.row_of(collective, "shm_oneshot").upto for kind, collective in COLLECTIVES.items()}
"""Bytes that one rank publishes up to which lines are used; never more than `ONESHOT_UPTO`."""
_upto = array("q", (LINES_UPTO.get(kind, 0) for kind in range(EXSCAN + 1)))
symbols.add("ncclx_mpi_lines_upto", _upto.buffer_info()[0])
_upto_table = make_symbol("ncclx_mpi_lines_upto")
"""The same for compiled code."""

LARGEST_ITEM = algorithms.LARGEST_ITEM
"""Bytes of an element up to which reductions are cut into chunks of whole elements."""


@kernel("int64(int64, int64)")
def _lines_upto(kind, forced):  # type: ignore[no-untyped-def]
    """Bytes that one rank publishes up to which lines are used; what is empty passes by them whatever is forced."""
    if forced == UNFORCED:
        return load64(_upto_table() + 8 * kind)
    return ONESHOT_UPTO if forced == ONESHOT else 0


@kernel("int64(int64, int64)")
def forced_of(comm, kind):  # type: ignore[no-untyped-def]
    """The number of the algorithm that is forced for a collective, UNFORCED for none."""
    return load64(comm + COMM.forced + 8 * kind)


@kernel("int64(int64, int64)")
def is_planned(comm, kind):  # type: ignore[no-untyped-def]
    """Whether a collective is left to plans."""
    return 1 if load64(comm + COMM.slot) == 0 or forced_of(comm, kind) >= FIRST_PLAN else 0


@kernel("int64(int64, int64, int64)")
def on_lines(comm, kind, published):  # type: ignore[no-untyped-def]
    """Whether a collective in which each rank publishes `published` bytes goes by lines; a rank that is alone passes by them."""
    return 1 if published <= _lines_upto(kind, forced_of(comm, kind)) or load64(comm + COMM.size) == 1 else 0


def algorithm(comm: NativeComm, kind: int, published: int) -> str:
    """PLAN, SMALL or LARGE for a collective in which each rank publishes up to `published` bytes."""
    forced = comm.forced[kind]
    if comm.slot < 0 or forced >= FIRST_PLAN:
        return PLAN
    upto = _upto[kind] if forced == UNFORCED else ONESHOT_UPTO if forced == ONESHOT else 0
    return SMALL if published <= upto else LARGE


def plan_for(
    comm: NativeComm, kind: int, nbytes: int, itemsize: int = 1, commutes: bool = True, has_counts: bool = False
) -> Callable[..., Plan]:
    """Return the function that makes the plan of a collective, of the algorithm that is forced or of the one that is chosen.

    Raises
    ------
    Exception
        ERR_UNSUPPORTED_OPERATION: an algorithm is forced that cannot carry the call out. All ranks raise it.
    """
    case = Case(comm.size, nbytes, itemsize, commutes, comm.reduction_order, has_counts, nodes=comm.nodes, table=comm.table)
    row = choose_plan(kind, comm.forced[kind], case)
    reason = row.why_not(case)
    if reason:
        name = algorithms.variable(row.collective)
        errors.fail(
            errors.ERR_UNSUPPORTED_OPERATION,
            f"rank {comm.rank}: {OPERATIONS[kind]} cannot go by {row.name}, which {name} asks for: {reason}; set {name} to another one, "
            "or to auto",
        )
    return function_of(row) if case.nodes is None or row.by_node is None else functools.partial(function_of(row), nodes=case.nodes)


@functools.lru_cache(maxsize=1024)
def choose_plan(kind: int, forced: int, case: Case) -> Algorithm:
    """The row of a plan: the forced one, or the first that is chosen for a case, if none is or one of the slot."""
    if forced >= FIRST_PLAN:
        return algorithms.row_of(COLLECTIVES[kind], algorithms.NAMES[forced])
    return algorithms.choose(COLLECTIVES[kind], case._replace(has_slot=False))


@functools.cache
def function_of(row: Algorithm) -> Callable[..., Plan]:
    """The function of a plan's row: that of the file whose name it has."""
    found: Callable[..., Plan] = importlib.import_module(f"ncclx_mpi.collectives.{row.collective}.{row.name}").plan
    return found
