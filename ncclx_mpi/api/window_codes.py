"""What the compiled calls of a window return other than 0: whether the caller goes the general way, or what is raised."""

from __future__ import annotations

from ncclx_mpi import collectives, errors
from ncclx_mpi.collectives.ready import UNFINISHED
from ncclx_mpi.p2p.fast import GIVEN_UP
from ncclx_mpi.rma.asking import FAILED_AT, SLOW
from ncclx_mpi.rma.epochs import raise_given_up
from ncclx_mpi.rma.fast import TAKEN_TWICE
from ncclx_mpi.rma.window import Window


def settle(window: Window, code: int, rank: int, what: str = "") -> bool:
    """Whether a call goes the general way; raises what an access to a far rank has failed with. `what` it was: for errors.

    Raises
    ------
    Exception
        ERR_PROC_FAILED, ERR_PENDING, ERR_REVOKED: the wait for the target was given up. Another class: the target failed.
    """
    if code == SLOW:
        return True
    what = what or f"an access to the window of rank {rank}"
    comm = window.comm
    if code <= GIVEN_UP:
        comm.engine.ended.check(comm, what)
        comm.engine.fail(GIVEN_UP - code, what)
    errors.fail(code, f"rank {comm.rank}: {what} failed there; the stderr of rank {rank} says why")


def settle_lock(window: Window, code: int, rank: int) -> bool:
    """As :func:`settle`, for a lock: it is taken back, granted or not, if the wait for it was given up."""
    if code == TAKEN_TWICE:
        window.give_back_second_lock(rank)
    if code != SLOW:
        window.forget_lock(rank)
    return settle(window, code, rank, f"Win.Lock of rank {rank}")


def settle_unlock(window: Window, code: int, rank: int) -> bool:
    """As :func:`settle`, when a lock is given back: also if the wait for that was given up."""
    if code != SLOW:
        window.forget_lock(rank)
    return settle(window, code, rank)


def settle_all(window: Window, code: int, what: str) -> bool:
    """As :func:`settle`, for what asks all targets."""
    rank, code = divmod(code, FAILED_AT) if code > 0 else (window.comm.rank, code)
    return settle(window, code, rank, what)


def settle_fence(window: Window, code: int) -> bool:
    """As :func:`settle_all`, or what the barrier has failed with."""
    if code == UNFINISHED or (code > 0 and not window.words.get("far")):
        collectives.check(window.comm, code, "barrier")
    return settle_all(window, code, "Win.Fence")


def settle_epoch(window: Window, code: int, what: str) -> bool:
    """Whether a call of an epoch among some ranks goes the general way; raises why its wait was given up."""
    if code != SLOW:
        raise_given_up(window.comm, code, what)
    return True
