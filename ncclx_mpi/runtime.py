"""The state of this process's membership in a job: not started, active, or finalized."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

from ncclx_mpi import errors

if TYPE_CHECKING:
    from ncclx_mpi.bootstrap import Membership
    from ncclx_mpi.bootstrap.far_guests import FarMeeting
    from ncclx_mpi.bootstrap.process_watch import ProcessWatch
    from ncclx_mpi.p2p.engine import Engine
    from ncclx_mpi.p2p.guests import Member
    from ncclx_mpi.p2p.network_progress import NetworkProgress
    from ncclx_mpi.p2p.progress_thread import ProgressThread
    from ncclx_mpi.tuning import Table
    from transports.base import Transport
    from transports.ucx.transport import Lanes
    from transports.virtual.network import Network


class _Job:
    """What :func:`start` built; one a process."""

    engine: Engine | None = None
    membership: Membership | None = None
    finalized = False
    abort_status = 0
    at_exit: Callable[[], None] | None = None
    before_leaving: ClassVar[list[Callable[[], None]]] = []
    after_leaving: ClassVar[list[Callable[[], None]]] = []
    guest_watch: ProcessWatch | None = None
    progress: NetworkProgress | ProgressThread | None = None


_job = _Job()


def at_exit(function: Callable[[], None]) -> None:
    """Call `function` at the end of the program, after the exit handlers that the program registers itself."""
    _job.at_exit = function


def before_leaving(function: Callable[[], None]) -> None:
    """Call `function` when this process leaves its job in order, while the arena is still there and nothing is under way."""
    _job.before_leaving.append(function)


def set_abort_status(status: int) -> None:
    """Make the end of this program abort the job with this status, unless it is 0."""
    _job.abort_status = status


def abort_status() -> int:
    """What :func:`set_abort_status` was told last."""
    return _job.abort_status


def after_leaving(function: Callable[[], None]) -> None:
    """Call `function` when this process has left its job in order."""
    _job.after_leaving.append(function)


@atexit.register  # when this module is imported, before the program is: handlers run in the opposite order
def _exit() -> None:
    if _job.at_exit is not None and is_active():
        _job.at_exit()


def start() -> Engine:
    """Join the job that this process was started for, or a world of one; does nothing when it was done before.

    Raises
    ------
    Exception
        ERR_OTHER: it was finalized already. Whatever the bootstrap raises when the other ranks cannot be found.
    """
    if _job.engine is not None:
        return engine()
    if _job.finalized:
        errors.fail(errors.ERR_OTHER, "MPI was finalized in this process and cannot be initialized again")
    from ncclx_mpi import bootstrap, rc
    from ncclx_mpi.algorithms import ALGORITHMS, ORDER
    from ncclx_mpi.p2p import forced
    from ncclx_mpi.p2p.engine import Engine
    from numba_kernels import clock
    from numba_kernels.cuda import cache
    from transports.shm.cma import forbid_peers
    from transports.shm.transport import SharedMemory

    named = _progress_processors()
    membership = bootstrap.join()
    clock.begin()
    arena, rank = membership.arena, membership.rank
    algorithms = {collective: getattr(rc, f"algo_{collective}") for collective in ALGORITHMS}
    table = _tuning_table(rank)
    membership.say(forced.said({**algorithms, ORDER: getattr(rc, ORDER)}, table.digest if table else forced.NO_TABLE))
    membership.enter()
    _job.membership = membership
    shared_memory = SharedMemory(arena, rank)
    transports = [shared_memory, *_to_other_nodes(membership)]
    endpoints = _endpoints(membership, transports)
    agreed = forced.agreed(rank, membership.heard())
    _job.engine = Engine(arena, transports, rank, getattr(rc, "timeout", None), *agreed, endpoints, membership.nodes, table)
    os.register_at_fork(after_in_child=_job.engine.leave_to_parent)
    before_leaving(forbid_peers)
    shared_memory.choose_copies(getattr(rc, "copies", "auto"))
    shared_memory.choose_stores(getattr(rc, "stores", "auto"))
    cache.use_folder(getattr(rc, "cubins", ""))
    if named is not None:
        from ncclx_mpi.p2p.progress_thread import ProgressThread

        _job.progress = ProgressThread(_job.engine, named)
    elif membership.directory is not None:
        from ncclx_mpi.p2p.network_progress import NetworkProgress

        _job.progress = NetworkProgress(_job.engine)
    return _job.engine


def _progress_processors() -> tuple[int, ...] | None:
    """Where a setting wants a thread that makes progress while the rank computes, nothing for anywhere; None for no such thread.

    Raises
    ------
    Exception
        ERR_OTHER: the setting is none.
    """
    from ncclx_mpi import rc

    setting = str(getattr(rc, "progress_thread", "off"))
    if setting == "off":
        return None
    from ncclx_mpi.p2p import progress_thread

    return progress_thread.processors(setting)


def _tuning_table(rank: int) -> Table | None:
    """The measured times by which plans are chosen, if a setting names any.

    Raises
    ------
    Exception
        ERR_OTHER: the file is no such table.
    """
    from ncclx_mpi import rc

    if not getattr(rc, "tuning_file", ""):
        return None
    from ncclx_mpi import tuning

    try:
        return tuning.find()
    except ValueError as error:
        raise errors.error(errors.ERR_OTHER, f"rank {rank}: {error}") from None


def _to_other_nodes(membership: Membership) -> list[Transport]:
    """The transports that reach ranks of other nodes."""
    if membership.directory is not None:
        from ncclx_mpi import far_transport, rc
        from ncclx_mpi.bootstrap.heartbeat import heartbeat

        size, arena = membership.size, membership.arena
        far = [rank for rank in range(size) if rank not in arena.near]
        windows, lanes = str(getattr(rc, "far_windows", "auto")), None
        if getattr(rc, "lanes", ""):
            lanes = functools.partial(_lanes, membership)
        return [far_transport.make(membership.rank, size, far, arena.death_notice, heartbeat().limit, windows, lanes)]
    if membership.network is None:
        return []
    from transports.virtual.transport import VirtualNetwork

    return [VirtualNetwork(membership.network, membership.rank)]


def _lanes(membership: Membership) -> Lanes:
    """The lanes to ranks of other hosts that settings name.

    Raises
    ------
    Exception
        ERR_OTHER: the settings, or what is said of where hosts are, cannot be understood.
    """
    from ncclx_mpi.locality import own, shares, whereabouts

    try:
        return shares.lanes(own.in_network(whereabouts.find(membership.arena.near[0])))
    except (OSError, ValueError) as error:
        raise errors.error(errors.ERR_OTHER, f"rank {membership.rank}: {error}") from None


def _endpoints(membership: Membership, transports: Sequence[Transport]) -> dict[str, list[bytes]]:
    """What ranks of other hosts have to be known by, for the transport that reaches them."""
    if membership.directory is None:
        return {}
    return {transport.name: membership.exchange(transport.endpoint()) for transport in transports if not transport.is_inlined}


def admit(key: int, network_fd: int, place: int, members: Sequence[Member], places: Sequence[int]) -> list[int]:
    """Take in processes of another job that share the memory of `network_fd`, which is taken over. Returns their numbers here.

    Parameters
    ----------
    key
        A number that all who meet know this meeting by.
    place
        The rank of this process in the network.
    members, places
        Whom it meets, and their ranks in it.
    """
    from ncclx_mpi.bootstrap.process_watch import ProcessWatch
    from ncclx_mpi.p2p.guests import Way
    from transports.shm.arena import start_time
    from transports.virtual.network import Network
    from transports.virtual.transport import VirtualNetwork

    found = engine()
    network = Network.attach(network_fd)
    network.join(place, os.getpid(), start_time(os.getpid()))

    def reach(numbers: Sequence[int]) -> Way:
        transport = VirtualNetwork(network, place, dict(zip(numbers, places, strict=True)))
        return Way(transport, transport.is_drained, functools.partial(network.leave, place), network.close, {}, tuple)

    if _job.guest_watch is None:
        _job.guest_watch = ProcessWatch()
    numbers = found.guests.admit(key, members, reach)
    for number, member, its_place in zip(numbers, members, places, strict=True):
        _job.guest_watch.add(member.pid, member.start_time, functools.partial(_guest_ended, found, network, number, its_place))
    return numbers


def admit_far(key: int, far: FarMeeting, members: Sequence[Member], places: Sequence[int], endpoints: Sequence[bytes]) -> list[int]:
    """Take in processes of another job that are met by UCX. Returns their numbers here.

    Parameters
    ----------
    key
        A number that all who meet know this meeting by.
    far
        This process's part of it.
    members, places
        Whom it meets, and their places.
    endpoints
        Of all places.
    """
    from ncclx_mpi.p2p.network_progress import NetworkProgress

    found = engine()
    numbers = found.guests.admit(key, members, lambda numbers: far.reach(found, numbers, places, endpoints))
    if _job.progress is None:
        _job.progress = NetworkProgress(found)
    return numbers


def _guest_ended(found: Engine, network: Network, number: int, place: int) -> None:
    found.guests.ended(number, network.has_left(place))


def engine() -> Engine:
    """The engine of this process.

    Raises
    ------
    Exception
        ERR_OTHER: not initialized, finalized, or this process is a fork of a rank and no rank itself.
    """
    if _job.engine is None:
        state = "was finalized" if _job.finalized else "is not initialized"
        errors.fail(errors.ERR_OTHER, f"MPI {state} in this process")
    if not is_active():
        raise _job.engine.not_a_rank()
    return _job.engine


def membership() -> Membership:
    """How this process joined its job."""
    engine()
    assert _job.membership is not None
    return _job.membership


def is_active() -> bool:
    """Whether this process is a rank that can communicate now."""
    return _job.engine is not None and _job.engine.pid == os.getpid()


def is_finalized() -> bool:
    """Whether :func:`finish` was called in this process."""
    return _job.finalized


def finish() -> None:
    """Leave the job in order. A fork of a rank leaves nothing: it never was one."""
    if not is_active():
        return
    assert _job.engine is not None and _job.membership is not None
    _job.engine.drain()
    _job.engine.say_goodbye()
    _job.engine.drain(seconds=1.0)
    for function in _job.before_leaving:
        function()
    _job.engine.guests.leave()
    _end_progress()
    for transport in _job.engine.transports:
        transport.close()
    if _job.guest_watch is not None:
        _job.guest_watch.close()
    _job.membership.leave()
    _job.engine = None
    _job.finalized = True
    for function in _job.after_leaving:
        function()


def _end_progress() -> None:
    """End the thread that makes progress: what it works on may go afterwards."""
    thread, _job.progress = _job.progress, None
    if thread is not None:
        thread.stop()


def abandon() -> None:
    """Leave the job out of order: this rank failed, and the others, and its own threads, must learn of it as of a death.

    They learn of an abort instead where the program has asked for one (``python -m mpi4py`` does).
    """
    if is_active():
        assert _job.engine is not None
        if _job.abort_status and not _job.engine.has_dead_ranks:  # else the job ends as the rank did that died before
            _declare_abort(_job.abort_status)
        else:
            _job.engine.arena.declare_dead(_job.engine.local_rank, "it failed")
        _end_progress()
        _job.engine = None
        _job.finalized = True


def abort(code: int) -> NoReturn:
    """End the whole job with exit status `code`; peers that wait are told."""
    _declare_abort(code)
    os._exit(code & 0xFF or (1 if code else 0))


def _declare_abort(code: int) -> None:
    rank = 0
    if _job.engine is not None:
        rank = _job.engine.rank
        _job.engine.arena.declare_abort(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        print(f"rank {rank}: MPI_Abort: the job was aborted with code {code}", file=sys.stderr, flush=True)
