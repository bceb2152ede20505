"""How an operation of a rank is put into words, in errors and in reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclx_mpi.p2p.layout import OPERATIONS, TRACE, TRACE_RECORDS
from numba_kernels.clock import now
from numba_kernels.jit import entry
from numba_kernels.layout import WORD

if TYPE_CHECKING:
    from transports.shm.arena import Arena

_ONE_SIDED = {"send": "to", "isend": "to", "recv": "from", "irecv": "from", "probe": "from", "mrecv": "from", "sendrecv": "with"}
_ROOTED = {"bcast", "reduce", "gather", "scatter"}


def in_words(operation: str, peer: int, tag: int, nbytes: int) -> str:
    """What a trace record says, as ``recv from rank 2, any tag, 32 bytes``; `peer` and `tag` are negative where any will do."""
    words = [operation]
    if operation in _ONE_SIDED:
        words.append(f"{_ONE_SIDED[operation]} {'any rank' if peer < 0 else f'rank {peer}'},")
        words.append(f"{'any tag' if tag < 0 else f'tag {tag}'},")
    elif operation in _ROOTED and peer >= 0:
        words.append(f"with root {peer},")
    if nbytes or len(words) > 1:
        words.append(f"{nbytes} bytes")
    return " ".join(words).rstrip(",")


def state_in_words(arena: Arena, local_rank: int, rank: int, ticks_per_us: int) -> str:
    """What a rank of this node is in, with whom, since when."""
    records = arena.control_word(local_rank, "records")
    if not records:
        return f"  rank {rank}: has not communicated"
    at = arena.plan.trace(local_rank) + (records - 1) % TRACE_RECORDS * TRACE.total
    row = arena.words(at, TRACE.total // WORD)
    kind = OPERATIONS[int(row[TRACE.kind // WORD])]
    if row[TRACE.end // WORD]:
        return f"  rank {rank}: in no communication, the last was {kind}"
    seconds = (entry(now)() - int(row[TRACE.start // WORD])) / ticks_per_us / 1e6
    peer, tag, nbytes = (int(row[getattr(TRACE, name) // WORD]) for name in ("peer", "tag", "nbytes"))
    return f"  rank {rank}: in {in_words(kind, peer, tag, nbytes)}, for {seconds:.1f} s"
