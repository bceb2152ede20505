"""The board: where the ranks of a node agree that a collective is carried out on the devices, and follow it.

::

    rank 0:  line q {proposed = q, signature}, buffer q {what its arrays are}  --.    each waits for the lines of all others,
    rank 1:  line q {proposed = q, signature}, buffer q {what its arrays are}  --+->  and copies their buffers
    rank 2:  line q {stamp = q, signature, payload}: its arrays are the host's --'

A rank whose arrays are on a device *proposes* the communicator's next collective, number q, in the second half of the line in which the
host path publishes it, so ranks on the host path neither see a proposal nor pay for one. A proposing rank waits until every other has
proposed it, or published it, or passed it by (its ``done`` is q then): once one has not proposed, all go the host's way, with the same
number, since it has not been taken yet. Kinds do not change, so all conclude the same: the first that goes the host's way does not
propose, so nobody finds proposals only.

Then (numbers are those of :func:`meet`)::

    every rank    its stream writes  ready[me] = q        behind what it holds: the arrays may be read and written
    an executor   waits for  ready[r] >= q  of all r, launches its kernels on a stream of its own, which then writes  done[me] = q
    every rank    waits for  done[e] >= q  of all executors e

Ranks may also propose without showing their arrays, to find out that all have device arrays, and agree on something else: there are no
executors then, and the number is over as soon as all have proposed.

All waits are the host's, and as bounded as any: no stream ever waits for a peer, so that none stays blocked when a peer dies, and a GPU
that processes share by time slices spends none of them waiting. An executor that cannot do its share *refuses*. Whoever refuses, or goes
the host's way, sets its ``ready`` and ``done`` by hand, so that all who wait for them go on, see the refusal, and go there too: an
executor launches only when all are ready and none has refused.

==================  =============  ==========================  =================================================================
word                written by     polled by                   order and meaning
==================  =============  ==========================  =================================================================
``LINE.proposed``   its rank       all who propose             release after signature and descriptor: q is proposed
``DEVICE.ready``    its stream     executors                   stream order, system fence; release by the host when it steps aside
``DEVICE.done``     its stream     all                         stream order, system fence; release by the host when it steps aside
``DEVICE.refused``  its rank       whoever saw ready or done   before both of them, and before its line is published
==================  =============  ==========================  =================================================================

T = alpha (one line transfer) + one stream write + one launch: some 10 us on the host, whatever the size.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_oneshot import SCRATCH, claim, end, give_up, judge, sign
from ncclx_mpi.p2p.layout import BROKEN, COMM
from ncclx_mpi.p2p.progress import trace_end
from ncclx_mpi.p2p.waiting import wait_any, wait_word
from numba_kernels.atomics import full_fence, load64, load_acquire, store64, store_release
from numba_kernels.jit import kernel
from numba_kernels.memory import copy
from transports.shm.slots import DEVICE, LINE, MID, SLOT, buffer_of, device_words, done_of, line_of

ON_HOST = -1
"""Somebody is on the host path, or refused: go there too, with the same number."""


@kernel("int64(int64, int64)")
def _is_refused(comm, number):  # type: ignore[no-untyped-def]
    """1 if any rank refused collective `number`."""
    slot = load64(comm + COMM.slot)
    for other in range(load64(comm + COMM.size)):
        if load_acquire(device_words(slot, other) + DEVICE.refused) == number:
            return 1
    return 0


@kernel("int64(int64, int64)")
def _step_aside(comm, number):  # type: ignore[no-untyped-def]
    """Leave collective `number` to the host path: nobody shall wait for this rank's part of it here. Returns ON_HOST."""
    words = device_words(load64(comm + COMM.slot), load64(comm + COMM.rank))
    store_release(words + DEVICE.ready, number)
    store_release(words + DEVICE.done, number)
    trace_end(load64(comm + SCRATCH.record))
    return ON_HOST


@kernel("int64(int64, int64, int64, int64)")
def _propose(comm, signature, descriptor, nbytes):  # type: ignore[no-untyped-def]
    """Propose the next collective. Returns its number, or minus the code of a failure."""
    number = claim(comm, signature, MID)
    if number > 0:
        slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
        line = line_of(slot, rank, number)
        store64(line + LINE.proposed_signature, signature | load64(comm + SCRATCH.next_past))
        copy(buffer_of(slot, size, rank, number), descriptor, nbytes)
        store_release(line + LINE.proposed, number)
    return number


@kernel("int64(int64, int64, int64, int64)")
def _hear(comm, other, number, signature):  # type: ignore[no-untyped-def]
    """Wait for rank `other`: 0 if it proposes the same, ON_HOST, or the code of a failure."""
    slot = load64(comm + COMM.slot)
    line, done = line_of(slot, other, number), done_of(slot, load64(comm + COMM.size), other)
    code = wait_any(load64(comm + COMM.engine), comm, line + LINE.proposed, line + LINE.stamp, done, number, slot + SLOT.broken)
    if code != 0:
        return code
    if load_acquire(line + LINE.proposed) != number or load_acquire(line + LINE.stamp) == number:
        return ON_HOST
    return judge(comm, other, signature | load64(comm + SCRATCH.next_past), load64(line + LINE.proposed_signature))


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def meet(comm, kind, root, given, descriptor, nbytes, table):  # type: ignore[no-untyped-def]
    """Propose a collective, and collect what all ranks propose.

    Parameters
    ----------
    comm
        Address of the communicator, which has a slot and at most ``DEVICE_RANKS`` ranks.
    kind, root, given
        The collective, its root, and the bytes that all ranks give alike, as the host path signs them.
    descriptor, nbytes
        What the others need to know of this rank's arrays; at most ``MID`` bytes, as many on every rank.
    table
        Room for the descriptors of all ranks, one after the other.

    Returns
    -------
    int
        The number of the collective: all have proposed it. 0: go the host's way. Else minus the code of a failure.
    """
    signature = sign(kind, root, given)
    number = _propose(comm, signature, descriptor, nbytes)
    if number < 0:
        return number
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    for other in range(size):
        code = _hear(comm, other, number, signature) if other != rank else 0
        if code == ON_HOST:
            _step_aside(comm, number)
            return 0
        if code != 0:
            return -end(comm, number, code)
        copy(table + other * nbytes, buffer_of(slot, size, other, number), nbytes)
    full_fence()  # who refused may have used its buffer again: a descriptor counts if there was no refusal after it was read
    if _is_refused(comm, number) != 0:
        _step_aside(comm, number)
        return 0
    store64(comm + SCRATCH.known, number - 1)
    return number


@kernel("int64(int64, int64)", is_entry=True, nogil=False)
def await_ready(comm, number):  # type: ignore[no-untyped-def]
    """Wait until the arrays of all ranks may be used: 0, ON_HOST, or the code of a failure. An executor calls it."""
    slot = load64(comm + COMM.slot)
    for other in range(load64(comm + COMM.size)):
        code = wait_word(comm, device_words(slot, other) + DEVICE.ready, number, slot + SLOT.broken)
        if code != 0:
            return end(comm, number, code)
    return _step_aside(comm, number) if _is_refused(comm, number) != 0 else 0


@kernel("int64(int64, int64, int64)", is_entry=True, nogil=False)
def await_done(comm, number, executors):  # type: ignore[no-untyped-def]
    """Wait until all executors (bit e: rank e) are done, and end the collective: 0, ON_HOST, or the code of a failure."""
    slot = load64(comm + COMM.slot)
    for other in range(load64(comm + COMM.size)):
        if (executors >> other) & 1 != 0:
            code = wait_word(comm, device_words(slot, other) + DEVICE.done, number, slot + SLOT.broken)
            if code != 0:
                return end(comm, number, code)
    if _is_refused(comm, number) != 0:
        return _step_aside(comm, number)
    store64(comm + COMM.sequence, number)
    store64(comm + SCRATCH.published, number)
    return end(comm, number, 0)


@kernel("void(int64, int64)", is_entry=True)
def refuse(comm, number):  # type: ignore[no-untyped-def]
    """Send all ranks the host's way, before this rank's stream has been told to write ``ready``."""
    slot, rank = load64(comm + COMM.slot), load64(comm + COMM.rank)
    store_release(device_words(slot, rank) + DEVICE.refused, number)
    _step_aside(comm, number)


@kernel("void(int64)", is_entry=True)
def abandon(comm):  # type: ignore[no-untyped-def]
    """Give the collective that is under way up, and with it the communicator, here and for those who wait in it."""
    give_up(comm, BROKEN)
    trace_end(load64(comm + SCRATCH.record))
