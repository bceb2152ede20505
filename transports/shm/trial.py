"""Choosing between three ways to move bytes by trying them, size by size: pipes with plain or with streamed stores, or the kernel's copies.

How fast a way is depends on the machine, on where its cores are this minute and on what the caches hold; nothing that could be
looked up. So of every `PERIOD` transfers of a size class the first few go all ways, and the rest the way that was
the fastest once. The least time counts: whatever disturbs a transfer makes it slower. The way that was chosen before goes first, as it
has been going. Then each way has its trials in a row: a pipe is faster when its lines are where the last transfer of its kind left them.
Direct copies go once more at the end: they are the faster way as a rule, and the first transfer pays for pages that nobody has
touched yet.
The first trials of all meet cold caches, from which direct copies gain more as they get warm: so pipes have to be faster by a
good part then, and trials are repeated soon, and then ever more rarely. Later trials meet what later transfers meet: there pipes
only have to be faster by more than what two least times of the same way differ by. But a pipe that has not been in use meets lines that
are in no cache any more, and some trials do not fill it: it takes a third to two thirds less once it has gone around. So after the second
trials a pipe with plain stores is used if it did not take over twice as long; at the beginning of the third ones it shows what it takes. Of
long transfers one fills what they use of a pipe, and a program may make but a few dozen: there all trials are like later ones.

A trial belongs to one rank. It may decide for that rank alone where the other side need not know; what ranks must decide
alike is decided by one of them and published. Only that one notes times, which change what it has chosen: so nothing may follow from
them before the verdict, and the trials that go as before come first, when there are no times of other ways.
"""

from __future__ import annotations

from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from transports.shm.shared import DIRECT, PIPED, STREAMED

TRIAL = words("Trial", "count least*3 chosen")
"""Transfers so far, the least ticks of each way since the trials last began (0: none yet), the way that was chosen."""
CLASSES = 16
WORDS = CLASSES * TRIAL.total // 8
"""Words of a table of trials, one for each size class."""
TRIALS, FEW_TRIALS, FEW_FROM = 11, 7, 4 << 20
"""Transfers that are trials, one after the other; few from some bytes on, as a transfer that takes long is disturbed by less in
proportion, and programs make few of them."""
_AS_BEFORE = 2
"""The first of them, which go as the transfers before."""
PERIOD, STARTS = 8192, (0, 16, 64, *range(1024, 8192, 1024))
"""Transfers of a period, and after how many of them the trials begin anew."""
_EARLY, _EARLY_MARGIN, _MARGIN = 16, 25, 10
"""Transfers of a size class up to which its trials are the first ones; by how many hundredths direct copies may take longer, and are
chosen all the same, after those trials and after later ones."""
_COLD = 2
"""Times the fastest way that a pipe with plain stores may take in second trials, and is used until the third ones."""
LONG = 4 << 20
"""Bytes that a rank gives from which its stream keeps to a part of its pipe, or of its ring, and fills that at once."""
_SMALLEST_BITS = 15
_NWAYS = 3


@kernel("int64(int64, int64)")
def trial_of(table, nbytes):  # type: ignore[no-untyped-def]
    """The trial of the size class of `nbytes`: powers of two, from 32 KiB."""
    index = 0
    while index < CLASSES - 1 and nbytes >> (_SMALLEST_BITS + index) != 0:
        index += 1
    return table + index * TRIAL.total


@kernel("int64(int64)")
def _trials(nbytes):  # type: ignore[no-untyped-def]
    """Trials in a row."""
    return FEW_TRIALS if nbytes >= FEW_FROM else TRIALS


@kernel("int64(int64)")
def _step(count):  # type: ignore[no-untyped-def]
    """Transfers since trials last began, when there were `count` before."""
    turn, last = count % PERIOD, 0
    for start in STARTS:
        last = start if start <= turn else last
    return turn - last


@kernel("int64(int64, int64, int64)")
def _tried(step, trials, chosen):  # type: ignore[no-untyped-def]
    """The way of one of so many trials: as before, direct copies, a third with each kind of stores, direct copies again.

    Of few, too, a pipe with plain stores gets two: its first use may be that in which its pages are made.
    """
    left, step = trials - _AS_BEFORE, step - _AS_BEFORE
    plain, streamed = (left + 2) // 3, left // 3
    if step < 0:
        return chosen
    if step == 0 or step > plain + streamed:
        return DIRECT
    return PIPED if step <= plain else STREAMED


@kernel("int64(int64, int64)")
def next_way(trial, nbytes):  # type: ignore[no-untyped-def]
    """The way that the next transfer, of `nbytes`, goes: DIRECT, PIPED with plain stores, or STREAMED."""
    count, trials = load64(trial + TRIAL.count), _trials(nbytes)
    step = _step(count)
    store64(trial + TRIAL.count, count + 1)
    if count == 0:
        store64(trial + TRIAL.chosen, DIRECT)
    if step == 0:
        for way in range(_NWAYS):
            store64(trial + TRIAL.least + 8 * way, 0)
    return _tried(step, trials, load64(trial + TRIAL.chosen)) if step < trials else load64(trial + TRIAL.chosen)


@kernel("int64(int64)")
def _better_pipe(trial):  # type: ignore[no-untyped-def]
    """The stores with which a pipe took less time, of those that were tried."""
    plain, streamed = load64(trial + TRIAL.least + 8 * PIPED), load64(trial + TRIAL.least + 8 * STREAMED)
    return PIPED if streamed == 0 or 0 < plain <= streamed else STREAMED


@kernel("int64(int64, int64)")
def _may_warm_up(trial, nbytes):  # type: ignore[no-untyped-def]
    """Whether transfers, to which a rank gives `nbytes`, may go through a pipe with plain stores now though other ways were faster."""
    turn = (load64(trial + TRIAL.count) - 1) % PERIOD
    return 1 if nbytes < LONG and STARTS[1] <= turn < STARTS[2] else 0


@kernel("int64(int64, int64, int64, int64)")
def _chosen(trial, nbytes, direct, piped):  # type: ignore[no-untyped-def]
    """The way to go after trials in which direct copies and the faster kind of pipe took so many ticks."""
    plain = load64(trial + TRIAL.least + 8 * PIPED)
    if _may_warm_up(trial, nbytes) != 0 and 0 < plain <= _COLD * min(direct, piped):
        return PIPED
    margin = _EARLY_MARGIN if load64(trial + TRIAL.count) <= _EARLY and nbytes < LONG else _MARGIN
    return DIRECT if 100 * direct < (100 + margin) * piped else _better_pipe(trial)


@kernel("void(int64, int64, int64, int64)")
def note_time(trial, nbytes, way, taken):  # type: ignore[no-untyped-def]
    """A transfer by `way`, to which a rank gives `nbytes`, has taken so many ticks."""
    least = trial + TRIAL.least + 8 * way
    if load64(least) == 0 or taken < load64(least):
        store64(least, taken)
    direct, piped = load64(trial + TRIAL.least + 8 * DIRECT), load64(trial + TRIAL.least + 8 * _better_pipe(trial))
    if piped > 0 and direct > 0:
        store64(trial + TRIAL.chosen, _chosen(trial, nbytes, direct, piped))


@kernel("int64(int64, int64)")
def is_trial(trial, nbytes):  # type: ignore[no-untyped-def]
    """Whether the transfer, of `nbytes`, that last asked for its way went it as a trial."""
    return 1 if _step(load64(trial + TRIAL.count) - 1) < _trials(nbytes) else 0


@kernel("int64(int64, int64)")
def has_verdict(trial, nbytes):  # type: ignore[no-untyped-def]
    """Whether the next transfer, of `nbytes`, is the first one after trials."""
    return 1 if _step(load64(trial + TRIAL.count)) == _trials(nbytes) else 0


@kernel("void(int64, int64)")
def settle(trial, way):  # type: ignore[no-untyped-def]
    """All transfers until the next trials go by `way`, which another rank found the faster."""
    store64(trial + TRIAL.chosen, way)
