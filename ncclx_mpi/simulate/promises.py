"""What the buffers of each rank hold when a collective starts, and what they have to hold when it is complete.

Bytes that a promise does not name have to stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from ncclx_mpi.collectives.plan import INPUT, OUTPUT
from ncclx_mpi.simulate.calls import Blocks, Call
from numba_kernels.rows import NamedTuple


class Given(NamedTuple):
    """Bytes that a rank contributes: `nbytes` at `start` of `buffer`, which are those from `first` on of what it gives."""

    buffer: int
    start: int
    nbytes: int
    first: int


class Promised(NamedTuple):
    """What is to be at `start` of OUTPUT: `nbytes` from `first` on of what `ranks` give, reduced in their order if they are several."""

    start: int
    nbytes: int
    ranks: range
    first: int


class Promise(NamedTuple):
    """Of one rank.

    Attributes
    ----------
    given, promised
        Before, and after.
    lengths
        Bytes of INPUT and OUTPUT.
    is_shared
        Whether INPUT is OUTPUT.
    is_open
        Whether the rest of OUTPUT may be written over.
    """

    given: list[Given]
    promised: list[Promised]
    lengths: tuple[int, int]
    is_shared: bool = False
    is_open: bool = False


def promise_of(collective: str, call: Call, rank: int) -> Promise:
    """Return what a rank gives and is promised."""
    return _PROMISES[collective](call, rank)


def _end(blocks: Blocks) -> int:
    counts, offsets = blocks
    return counts[-1] + offsets[-1]


def _barrier(call: Call, rank: int) -> Promise:
    return Promise([], [], (0, 0))


def _bcast(call: Call, rank: int) -> Promise:
    root, nbytes = call.root, call.nbytes
    return Promise([Given(OUTPUT, 0, nbytes, 0)], [Promised(0, nbytes, range(root, root + 1), 0)], (nbytes, nbytes), is_shared=True)


def _gathered(call: Call, rank: int, in_place: bool, blocks: Blocks) -> Promise:
    counts, offsets = blocks
    given = Given(OUTPUT, offsets[rank], counts[rank], 0) if in_place else Given(INPUT, 0, counts[rank], 0)
    promised = [Promised(offsets[other], counts[other], range(other, other + 1), 0) for other in range(call.size)]
    return Promise([given], promised, (0 if in_place else counts[rank], _end(blocks)))


def _gather(call: Call, rank: int) -> Promise:
    whole = _gathered(call, rank, call.in_place and rank == call.root, call.blocks(call.nbytes))
    return whole if rank == call.root else whole._replace(promised=[], lengths=(whole.lengths[0], 0))


def _allgather(call: Call, rank: int) -> Promise:
    return _gathered(call, rank, call.in_place, call.blocks(call.nbytes))


def _scatter(call: Call, rank: int) -> Promise:
    blocks = counts, offsets = call.blocks(call.share)
    is_kept = call.in_place and rank == call.root
    promised = [] if is_kept else [Promised(0, counts[rank], range(call.root, call.root + 1), offsets[rank])]
    length = _end(blocks) if rank == call.root else 0
    return Promise([Given(INPUT, 0, length, 0)], promised, (length, 0 if is_kept else counts[rank]))


def _alltoall(call: Call, rank: int) -> Promise:
    sent, blocks = call.outgoing(rank), call.incoming(rank)
    counts, offsets = blocks
    promised = []
    for other in range(call.size):
        first = call.outgoing(other)[1][rank]
        promised.append(Promised(offsets[other], counts[other], range(other, other + 1), first))
    buffer = OUTPUT if call.in_place else INPUT
    return Promise([Given(buffer, 0, _end(sent), 0)], promised, (0 if call.in_place else _end(sent), _end(blocks)))


def _reduced(call: Call, start: int, nbytes: int, ranks: range, length: int, is_output: bool = True) -> Promise:
    """Reductions: every rank gives `length` bytes, and where there is an output, gets those from `start` on reduced."""
    is_shared = call.in_place and is_output
    promised = [Promised(0, nbytes, ranks, start)] if is_output and ranks else []
    output = length if is_shared else nbytes if is_output else 0
    return Promise([Given(INPUT, 0, length, 0)], promised, (length, output), is_shared, is_open=nbytes < length)


def _reduce(call: Call, rank: int) -> Promise:
    return _reduced(call, 0, call.nbytes, range(call.size), call.nbytes, rank == call.root)


def _allreduce(call: Call, rank: int) -> Promise:
    return _reduced(call, 0, call.nbytes, range(call.size), call.nbytes)


def _reduce_scatter(call: Call, rank: int) -> Promise:
    counts, offsets = call._replace(gap=0).blocks(call.share)
    return _reduced(call, offsets[rank], counts[rank], range(call.size), sum(counts))


def _scan(call: Call, rank: int) -> Promise:
    return _reduced(call, 0, call.nbytes, range(rank if call.is_exclusive else rank + 1), call.nbytes)


_PROMISES: dict[str, Callable[[Call, int], Promise]] = {
    "barrier": _barrier,
    "bcast": _bcast,
    "reduce": _reduce,
    "allreduce": _allreduce,
    "gather": _gather,
    "scatter": _scatter,
    "allgather": _allgather,
    "alltoall": _alltoall,
    "reduce_scatter": _reduce_scatter,
    "scan": _scan,
}
