"""Alltoallv whose counts are read when it executes: ranks tell each other what they have and what they take, then move it.

::

    offers     alltoall of fixed size (numba_kernels.alltoallv.plan)
    lay out    both ends of each pair find the same runs; several runs travel packed, one run from where it is
    data       alltoallv of what is there, and nothing more
    land       packed runs go to their places

On the communicator's slot all of it is one compiled call (:func:`exchange`); else it is one plan (:func:`prepare`), in which the
two middle steps are a function that fills in the sizes of the messages after it. So it goes on by itself in whatever the rank
waits for.

T = T_alltoall(offer) + T_alltoallv(data), with an offer of 56 bytes and 8 for each segment, and one more copy of what is packed, at
either end. A pair with a fault moves nothing, and both of its ends know it.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.alltoall import shm_oneshot, shm_pipelined, shm_vector
from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW
from ncclx_mpi.collectives.executor import Collective
from ncclx_mpi.collectives.plan import INPUT, JOIN, RECV, SEND, STEP, Builder, Plan
from ncclx_mpi.collectives.select import on_lines
from ncclx_mpi.collectives.shm_oneshot import ALLTOALL
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.alltoallv import plan as planning
from numba_kernels.alltoallv.layout import CALL, FINE, PAIR, RUN
from numba_kernels.alltoallv.plan import offer_size
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import c_address, kernel
from numba_kernels.memory import allocate_or_end, copy, move, release

_LAY_OUT, _LAND = 1, 2
"""What the function of a plan is called for."""


@kernel("void(int64)", is_entry=True)
def offer(call):  # type: ignore[no-untyped-def]
    """Read the metadata of the caller."""
    planning.offer(0, 1, call)


@kernel("void(int64, int64)")
def _make_room(call, nbytes):  # type: ignore[no-untyped-def]
    """Have at least `nbytes` of packed memory; it is kept for the next time."""
    if nbytes > load64(call + CALL.packed_bytes):
        if load64(call + CALL.packed) != 0:
            release(load64(call + CALL.packed))
        store64(call + CALL.packed, allocate_or_end(nbytes))
        store64(call + CALL.packed_bytes, nbytes)


@kernel("void(int64)", is_entry=True)
def give_room_back(call):  # type: ignore[no-untyped-def]
    """Free the packed memory."""
    if load64(call + CALL.packed) != 0:
        release(load64(call + CALL.packed))
    store64(call + CALL.packed, 0)
    store64(call + CALL.packed_bytes, 0)


@kernel("int64(int64)")
def _packed_bytes(pair):  # type: ignore[no-untyped-def]
    return load64(pair + PAIR.nbytes) if load64(pair + PAIR.runs) > 1 else 0


@kernel("void(int64, int64, int64, int64, int64)")
def _gather_runs(call, peer, target, base, field):  # type: ignore[no-untyped-def]
    """Copy the runs for `peer` to where `field` of each says, from `base` on."""
    pair = load64(call + CALL.outgoing) + peer * PAIR.total
    runs = load64(call + CALL.outgoing_runs) + peer * load64(call + CALL.most_runs) * RUN.total
    for index in range(load64(pair + PAIR.runs)):
        run = runs + index * RUN.total
        move(target + load64(run + field), base + load64(run + RUN.source), load64(run + RUN.nbytes))


@kernel("void(int64, int64, int64)")
def _scatter_runs(call, peer, packed):  # type: ignore[no-untyped-def]
    """Copy the packed runs from `peer` to their places."""
    pair = load64(call + CALL.incoming) + peer * PAIR.total
    runs = load64(call + CALL.incoming_runs) + peer * load64(call + CALL.most_runs) * RUN.total
    for index in range(load64(pair + PAIR.runs)):
        run = runs + index * RUN.total
        copy(load64(pair + PAIR.target) + load64(run + RUN.target), packed + load64(run + RUN.packed), load64(run + RUN.nbytes))


@kernel("void(int64)")
def _lay_out(call):  # type: ignore[no-untyped-def]
    """Plan, pack what has several runs, write the rows of the exchange, and copy what stays on this rank."""
    planning.plan(0, 1, call)
    size, rank = load64(call + CALL.size), load64(call + CALL.rank)
    outgoing, incoming = load64(call + CALL.outgoing), load64(call + CALL.incoming)
    room = faults = 0
    for peer in range(size):
        out, into = outgoing + peer * PAIR.total, incoming + peer * PAIR.total
        if load64(out + PAIR.fault) != FINE:
            faults += 1
        if peer != rank:
            room += _packed_bytes(out) + _packed_bytes(into)
            if load64(into + PAIR.fault) != FINE:
                faults += 1
    store64(call + CALL.faults, faults)
    _make_room(call, room)
    room = load64(call + CALL.packed)
    for peer in range(size):
        out, into, row = outgoing + peer * PAIR.total, incoming + peer * PAIR.total, load64(call + CALL.rows) + peer * ROW.total
        store64(row + ROW.send_bytes, load64(out + PAIR.nbytes) if peer != rank else 0)
        store64(row + ROW.recv_bytes, load64(into + PAIR.nbytes) if peer != rank else 0)
        if peer == rank:
            _gather_runs(call, rank, load64(into + PAIR.target), load64(out + PAIR.source), RUN.target)
            continue
        if load64(out + PAIR.runs) > 1:
            _gather_runs(call, peer, room, load64(out + PAIR.source), RUN.packed)
            store64(row + ROW.send, room)
            room += load64(out + PAIR.nbytes)
        elif load64(out + PAIR.runs) == 1:
            run = load64(call + CALL.outgoing_runs) + peer * load64(call + CALL.most_runs) * RUN.total
            store64(row + ROW.send, load64(out + PAIR.source) + load64(run + RUN.source))
        if load64(into + PAIR.runs) > 1:
            store64(row + ROW.recv, room)
            room += load64(into + PAIR.nbytes)
        elif load64(into + PAIR.runs) == 1:
            run = load64(call + CALL.incoming_runs) + peer * load64(call + CALL.most_runs) * RUN.total
            store64(row + ROW.recv, load64(into + PAIR.target) + load64(run + RUN.target))


@kernel("void(int64)")
def _land(call):  # type: ignore[no-untyped-def]
    for peer in range(load64(call + CALL.size)):
        if peer != load64(call + CALL.rank) and load64(load64(call + CALL.incoming) + peer * PAIR.total + PAIR.runs) > 1:
            _scatter_runs(call, peer, load64(load64(call + CALL.rows) + peer * ROW.total + ROW.recv))


@kernel("int64(int64, int64)", is_entry=True)
def exchange(comm, call):  # type: ignore[no-untyped-def]
    """All of it, on the slot of the communicator: 0 or the code of a failure."""
    planning.offer(0, 1, call)
    size, nbytes = load64(call + CALL.size), offer_size(load64(call + CALL.segments))
    offers, answers = load64(call + CALL.offers), load64(call + CALL.answers)
    if on_lines(comm, ALLTOALL, size * nbytes) != 0:
        code = shm_oneshot.alltoall(comm, offers, answers, nbytes)
    else:
        code = shm_pipelined.alltoall(comm, offers, answers, nbytes)
    if code != 0:
        return code
    _lay_out(call)
    code = shm_vector.exchange(comm, ALLTOALL, 0, load64(call + CALL.rows))
    if code == 0:
        _land(call)
    return code


# As a plan --------------------------------------------------------------------------------------------------------


@kernel("void(int64, int64, int64, int64)")
def _fill_step(step, kind, address, nbytes):  # type: ignore[no-untyped-def]
    """Make a step of the plan a message, or nothing where both ends know that it would be empty."""
    store64(step + STEP.kind, kind if nbytes > 0 else JOIN)
    store64(step + STEP.offset, address)
    store64(step + STEP.nbytes, nbytes)


@kernel("void(int64, int64, int64, int64)", is_entry=True)
def work(call, low, high, what):  # type: ignore[no-untyped-def]
    """What the steps of the plan do that are not messages, in the shape of a reduction."""
    if what == _LAND:
        _land(call)
        return
    _lay_out(call)
    size, rank, step = load64(call + CALL.size), load64(call + CALL.rank), load64(call + CALL.steps)
    for turn in range(1, size):
        origin = load64(call + CALL.rows) + (rank + size - turn) % size * ROW.total
        target = load64(call + CALL.rows) + (rank + turn) % size * ROW.total
        _fill_step(step, RECV, load64(origin + ROW.recv), load64(origin + ROW.recv_bytes))
        _fill_step(step + STEP.total, SEND, load64(target + ROW.send), load64(target + ROW.send_bytes))
        step += 2 * STEP.total


def prepare(comm: NativeComm, call: int, offers: int, answers: int, nbytes: int) -> tuple[Collective, int]:
    """Return the collective for the words of ``CALL`` at `call`, and the address of the first step that moves data.

    Parameters
    ----------
    comm
        The communicator.
    call
        Borrowed, with all that it refers to, until the collective is complete. The caller stores the second result in its
        ``steps``, and calls :func:`offer` each time before the collective starts.
    offers, answers, nbytes
        Where the offers are, and bytes of one.
    """
    steps, first = plan(comm.rank, comm.size, call, offers, answers, nbytes)
    collective = Collective(comm, "alltoallv_dynamic", ALLTOALL, steps, (0, 0), c_address(work))
    return collective, collective.step_address(first)


def plan(rank: int, size: int, call: int, offers: int, answers: int, nbytes: int) -> tuple[Plan, int]:
    """Steps of `rank`, all at absolute addresses, and the index of the first that moves data; their sizes are filled in later."""
    steps = Builder()
    peers = [((rank - turn) % size, (rank + turn) % size) for turn in range(1, size)]
    own = steps.copy((INPUT, answers + rank * nbytes), (INPUT, offers + rank * nbytes), nbytes)
    told = [own]
    for origin, target in peers:
        told.append(steps.recv(origin, (INPUT, answers + origin * nbytes), nbytes))
        told.append(steps.send(target, (INPUT, offers + target * nbytes), nbytes))
    run = functools.partial(steps.reduce, (INPUT, call), (INPUT, call), (INPUT, call))
    laid_out = run(_LAY_OUT, told)
    moved = []
    for origin, target in peers:
        moved.append(steps.recv(origin, (INPUT, 0), 1, [laid_out]))
        moved.append(steps.send(target, (INPUT, 0), 1, [laid_out]))
    run(_LAND, moved or [laid_out])
    return steps.build(), moved[0] if moved else 0
