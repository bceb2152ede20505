"""The end of a peer to which there is no way any more: it is dead, or it has left in order, which the hosts of a job tell each other.

Where nothing was ever heard of a peer, it may have left without a word to this rank: that is believed until the hosts have had time to tell
of it. A state has three words in a row for what is called then, as :class:`transports.base.DeathNotice` has them.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.calls import call_message, call_three
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words
from transports.messages import GOODBYE

_NOTICE = words("Notice", "function deaths words")
UNHEARD_US = 1_000_000
"""For how long a peer of which nothing was heard may turn out to have left in order."""
UNKNOWN, DEAD, LEFT = range(3)


@kernel("int64(int64, int64, int64, int64)")
def is_end_known(notice, rank, since, ticks_per_us):  # type: ignore[no-untyped-def]
    """Whether a peer of which nothing was heard is to be taken for dead, unless the hosts know better; `since`: a word for when it failed."""
    ends = load64(notice + _NOTICE.words)
    if ends == 0 or load64(ends + WORD * rank) != 0:
        return 1
    if load64(since) == 0:
        store64(since, ticks())
    return 1 if ticks() - load64(since) > UNHEARD_US * ticks_per_us else 0


@kernel("int64(int64, int64, int64, int64, int64)")
def note_end(notice, rank, arrive, engine, link):  # type: ignore[no-untyped-def]
    """Note that a peer is DEAD; or, if it has LEFT in order, tell the engine what it would have said; UNKNOWN: that cannot be told now."""
    function, deaths, ends = load64(notice + _NOTICE.function), load64(notice + _NOTICE.deaths), load64(notice + _NOTICE.words)
    if call_three(function, deaths, ends + WORD * rank, rank) >= 0:
        return DEAD
    return LEFT if call_message(arrive, engine, link, GOODBYE, 0, 0, 0, 0, 0, 0) != 0 else UNKNOWN
