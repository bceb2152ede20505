"""The algorithms of each collective, by name: what ``NCCLX_MPI_ALGO_<COLLECTIVE>`` may be.

An algorithm is named after its file. ``shm_oneshot`` and ``shm_pipelined`` go through the collective slot in the arena, by lines and by
streams; ``cma`` has the kernel copy between private buffers; all others are plans over messages. Which one runs if none is forced,
and what runs in the place of one that cannot serve a call: :mod:`ncclx_mpi.collectives.select`.

The algorithm of an exscan is that of the scan; without one, an exscan of two ranks may go by direct copies.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

UNFORCED, ONESHOT, PIPELINED, CMA, FIRST_PLAN = range(5)
NAMES = (
    "auto", "shm_oneshot", "shm_pipelined", "cma",
    "binomial", "chain", "dissemination", "allgather_reduce", "gather_reduce", "linear", "pairwise", "ring", "reduce_scatter_gather",
    "reduce_scatter_allgather",
)  # fmt: skip
"""The number of an algorithm, in words of communicators and of the arena, is its index here; plans come last."""
SHARED_WORK = (NAMES.index("reduce_scatter_gather"), NAMES.index("reduce_scatter_allgather"))
"""Reductions in which every rank reduces a block."""

ALGORITHMS = {
    "barrier": ("shm_oneshot", "dissemination"),
    "bcast": ("shm_oneshot", "shm_pipelined", "cma", "binomial"),
    "reduce": ("shm_oneshot", "shm_pipelined", "cma", "gather_reduce", "reduce_scatter_gather"),
    "allreduce": ("shm_oneshot", "shm_pipelined", "cma", "allgather_reduce", "reduce_scatter_allgather"),
    "gather": ("shm_oneshot", "shm_pipelined", "cma", "linear"),
    "scatter": ("shm_oneshot", "shm_pipelined", "cma", "linear"),
    "allgather": ("shm_oneshot", "shm_pipelined", "cma", "ring"),
    "alltoall": ("shm_oneshot", "shm_pipelined", "cma", "pairwise"),
    "reduce_scatter": ("shm_oneshot", "shm_pipelined", "cma", "pairwise"),
    "scan": ("shm_oneshot", "shm_pipelined", "chain"),
}
_PUBLISHED = 1
_BITS = 5
assert len(NAMES) <= 1 << _BITS and len(ALGORITHMS) * _BITS < 63


def variable(collective: str) -> str:
    """The environment variable that forces the algorithm of a collective."""
    return f"NCCLX_MPI_ALGO_{collective.upper()}"


def pack(forced: Mapping[str, str]) -> int:
    """One word, not 0, that says what is forced: the name of an algorithm for each collective, ``auto`` for none.

    Raises
    ------
    ValueError
        A collective has no algorithm of that name.
    """
    word = _PUBLISHED
    for index, (collective, names) in enumerate(ALGORITHMS.items()):
        name = str(forced[collective]).strip().lower() or "auto"
        if name != "auto" and name not in names:
            close = difflib.get_close_matches(name, names, 1, 0.5)
            raise ValueError(
                f"{variable(collective)}={forced[collective]}: {collective} has no such algorithm; it has {', '.join(names)}, and auto"
                + (f"; did you mean {close[0]}?" if close else "")
            )
        word |= NAMES.index(name) << (1 + _BITS * index)
    return word


def unpack(word: int) -> dict[str, str]:
    """The opposite of :func:`pack`, without the collectives of which none is forced."""
    numbers = {collective: word >> (1 + _BITS * index) & ((1 << _BITS) - 1) for index, collective in enumerate(ALGORITHMS)}
    return {collective: NAMES[number] for collective, number in numbers.items() if number != UNFORCED}
