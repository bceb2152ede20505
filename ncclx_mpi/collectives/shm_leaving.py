"""Ranks that leave a communicator: each says what it has called, so that nobody waits for good for what it never will.

A rank leaves when it frees the communicator, or finalizes. Who has waited for a slice looks whether a rank has left before it called what is
waited for (:mod:`ncclx_mpi.p2p.waiting` calls :func:`peer_left`). Plans of messages, which have no word that all ranks see, ask the rank that
they wait for (:mod:`ncclx_mpi.p2p.leaving`).
"""

from __future__ import annotations

import ctypes

from ncclx_mpi import errors
from ncclx_mpi.collectives import shm_oneshot
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import COMM, PEER_LEFT
from numba_kernels.atomics import load64, load_acquire, load_relaxed, store_release
from numba_kernels.jit import c_address, entry, kernel
from transports.shm.slots import PARTED, PARTED_COUNT_SHIFT, PARTED_OFFSET, SLOT, SUSPECTED, done_of, parted_of

_PAST_SHIFT = 56


@kernel("int64(int64, int64, int64)", is_entry=True)
def peer_left(comm, slot, sequence):  # type: ignore[no-untyped-def]
    """PEER_LEFT if a rank has left a communicator with a slot before it called collective `sequence`, else 0."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for other in range(size):
        parted = load_relaxed(parted_of(slot, size, other))
        if other != rank and parted != 0 and (parted & ~PARTED) >> PARTED_COUNT_SHIFT < sequence:
            return PEER_LEFT
    return 0


def watch(engine: Engine) -> None:
    """Let waits of collectives ask whether a rank has left."""
    engine.set_word("peer_left", c_address(peer_left))


@kernel("int64(int64)", is_entry=True, nogil=False)
def part_with_slot(comm):  # type: ignore[no-untyped-def]
    """Publish what this rank has called on a communicator with a slot. Returns 1 + the first rank that said other things before, or 0."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    past = load64(comm + shm_oneshot.SCRATCH.next_past) >> _PAST_SHIFT
    own = PARTED | (load64(comm + COMM.sequence) << PARTED_COUNT_SHIFT) | past
    store_release(parted_of(slot, size, rank), own)
    for other in range(size):
        its = load_acquire(parted_of(slot, size, other))
        if its != 0 and its != own:
            return 1 + other
    return 0


def part(comm: NativeComm) -> int:
    """Publish what this rank has called on a communicator, which calls no more on it: those who wait for more give up.

    Returns
    -------
    int
        A rank that has called other things on it, and said so before; -1 if there is none.
    """
    other = entry(part_with_slot)(comm.address) - 1 if comm.slot >= 0 else -1
    if comm.size > 1:
        comm.engine.note_left(comm, comm.word("plans"), is_given_up=False)
    return other


def parted(comm: NativeComm, name: str) -> errors.Exception:
    """What a collective raises on a communicator that a rank has left before it called that."""
    left = next((rank for rank in range(comm.size) if rank != comm.rank and _has_left(comm, rank)), -1)
    return errors.error(
        errors.ERR_PROC_FAILED,
        f"rank {comm.rank}: {name} is collective {comm.word('sequence')} of the communicator, but rank {left} has finalized, or "
        f"freed it, after {count_of(word_of(comm, left).value)}; all ranks must call the same collectives before they leave",
    )


def _has_left(comm: NativeComm, rank: int) -> bool:
    its = word_of(comm, rank).value
    return its != 0 and count_of(its) < comm.word("sequence")


def count_of(parted: int) -> int:
    """How many collectives such a word says."""
    return (parted & ~PARTED) >> PARTED_COUNT_SHIFT


def word_of(comm: NativeComm, rank: int) -> ctypes.c_int64:
    """The word in which a rank says what it has called: 0 as long as it may call more."""
    return ctypes.c_int64.from_address(done_of.py_func(comm.word("slot"), comm.size, rank) + PARTED_OFFSET)


def is_death_suspected(comm: NativeComm) -> bool:
    """Whether a collective was given up because the system refused a copy, which it does from a death on, before that is noticed."""
    arena = comm.engine.arena
    return comm.slot >= 0 and arena.word(arena.plan.slot(comm.slot) + SLOT.broken) == SUSPECTED
