"""What this rank has found about the ways of bulk data, in words: ``ncclx info --tuning``, and the setting ``report_tuning``.

Read from the tables of the trials themselves (:mod:`transports.shm.trial`), so nothing is noted for it while messages move.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from ncclx_mpi.collectives.cma_tuning import ALLTOALLV, WAYS
from ncclx_mpi.collectives.shm_oneshot import BARRIER
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels.clock import ticks_per_us
from numba_kernels.rows import NamedTuple
from transports.shm.lane import LANE, SHM
from transports.shm.shared import DIRECT, PIPED, STREAMED
from transports.shm.trial import _SMALLEST_BITS, CLASSES, PERIOD, STARTS, TRIAL

_UNITS = ("B", "KiB", "MiB", "GiB")
_WORDS = TRIAL.total // 8
_BY_RANK_0 = "as rank 0 found"


class Decision(NamedTuple):
    """A way for one size class of one operation.

    Attributes
    ----------
    what
        The operation.
    size
        The size class, in words.
    is_direct
        Whether bulk data goes by the kernel's copies, else through shared memory.
    transfers
        How many there were, trials included.
    since
        The transfer from which the trials began that decided.
    is_streamed
        Whether what goes through shared memory is written past the caches, unless stores are set.
    plain_us, streamed_us, direct_us
        The least time of each way in them; 0 where this rank has not measured it.
    """

    what: str
    size: str
    is_direct: bool
    transfers: int
    since: int
    is_streamed: bool
    plain_us: float
    streamed_us: float
    direct_us: float


def decisions(engine: Engine, comm: NativeComm) -> Iterator[Decision]:
    """Yield what has been tried: for messages of this rank, then for the collectives of a communicator."""
    yield from _of_table("message", engine.address + SHM.trials)
    for kind in range(BARRIER, ALLTOALLV + 1):
        name = "alltoallv" if kind == ALLTOALLV else OPERATIONS[kind]
        yield from _of_table(name, comm.address + WAYS.trials + (kind - BARRIER) * CLASSES * TRIAL.total)


def _of_table(what: str, table: int) -> Iterator[Decision]:
    for index in range(CLASSES):
        words = (ctypes.c_int64 * _WORDS).from_address(table + index * TRIAL.total)
        if words[0]:
            yield decision(what, index, list(words), ticks_per_us())


def decision(what: str, index: int, words: list[int], ticks_a_us: float) -> Decision:
    """Return what the words of a trial say."""
    transfers, *least, chosen = words
    turn = (transfers - 1) % PERIOD
    since = transfers - turn + max(start for start in STARTS if start <= turn)
    plain, streamed, direct = (least[way] / ticks_a_us for way in (PIPED, STREAMED, DIRECT))
    return Decision(what, _size(index), chosen == DIRECT, transfers, since, chosen == STREAMED, plain, streamed, direct)


def _size(index: int) -> str:
    """The size class, in words: up to 32 KiB, then powers of two; the last one is all above."""
    low, high = (_bytes(1 << (_SMALLEST_BITS + place)) for place in (index - 1, index))
    return f"to {high}" if index == 0 else f"from {low}" if index == CLASSES - 1 else f"{low} to {high}"


def _bytes(count: int) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count >> 10, unit + 1
    return f"{count} {_UNITS[unit]}"


def lines(engine: Engine, comm: NativeComm) -> list[str]:
    """What this rank has decided, one decision a line, under a line on its stores."""
    found = [f"stores {_stores(engine)}", *_stores_to_peers(engine), *(in_words(each) for each in decisions(engine, comm))]
    return [f"rank {engine.rank}: {each}" for each in found]


def in_words(each: Decision) -> str:
    """A decision as a line of text."""
    way = "direct copies" if each.is_direct else f"through shared memory, {'streamed' if each.is_streamed else 'plain'} stores"
    times = {"direct": each.direct_us, "plain": each.plain_us, "streamed": each.streamed_us}
    measured = ", ".join(f"{name} {us:.1f} us" for name, us in times.items() if us) or _BY_RANK_0
    return f"{each.what} {each.size}: {way}: {measured}; tried from transfer {each.since} on, of {each.transfers}"


def _stores_to_peers(engine: Engine) -> Iterator[str]:
    """Say with which stores frequent messages of 1 to 16 KiB are written, for each peer for which that was judged."""
    for peer in engine.near:
        fields = (LANE.stores, LANE.plain_ticks, LANE.streamed_ticks)
        stores, *ticks = (ctypes.c_int64.from_address(engine.peer_address(peer) + field).value for field in fields)
        if all(ticks):
            plain, streamed = (count * 1000 / ticks_per_us() for count in ticks)
            kind = ("those of all else", "plain", "streamed")[stores]
            yield f"stores of messages of 1 to 16 KiB to rank {peer}: {kind}: plain {plain:.0f} ns a KiB, streamed {streamed:.0f} ns"


def _stores(engine: Engine) -> str:
    words = (ctypes.c_int64.from_address(engine.address + offset).value for offset in (SHM.streamed, SHM.stores_fixed))
    streamed, fixed = words
    return (
        f"{'streamed' if streamed else 'plain'}, {'as set' if fixed else 'as blocks were swapped faster, or nobody to swap with'}"
    )
