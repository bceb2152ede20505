"""Starting and ending, versions, timers and other questions about the environment."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, ClassVar

from ncclx_mpi import __version__, collectives, errors, late, rc, runtime
from ncclx_mpi import constants as mpi
from ncclx_mpi.api import buffering, communicator, errhandler_dispatch
from ncclx_mpi.api.attached_buffer import AttachedBuffer
from ncclx_mpi.api.comm import Comm
from ncclx_mpi.api.datatype import PREDEFINED
from ncclx_mpi.api.errhandler import default_errhandler
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.info import Info
from ncclx_mpi.api.intracomm import COMM_SELF, COMM_WORLD, Intracomm
from ncclx_mpi.api.pickle import heed_environment
from ncclx_mpi.bootstrap import launcher
from ncclx_mpi.operations import background_progress
from ncclx_mpi.p2p.engine import Engine

if TYPE_CHECKING:
    from ncclx_mpi.api import localities, spawning
else:
    localities, spawning = late.module("ncclx_mpi.api.localities"), late.module("ncclx_mpi.api.spawning")

_FORTRAN_TYPES = ("LOGICAL", "INTEGER", "REAL", "DOUBLE_PRECISION")
_OPTIONAL_FORTRAN_TYPES = (
    *(f"{kind}{nbytes}" for kind in ("LOGICAL", "INTEGER") for nbytes in (1, 2, 4, 8, 16)),
    *(f"REAL{nbytes}" for nbytes in (2, 4, 8, 16)),
    *(f"COMPLEX{nbytes}" for nbytes in (4, 8, 16, 32)),
    "DOUBLE_COMPLEX",
)
_LEVELS = {
    "single": mpi.THREAD_SINGLE,
    "funneled": mpi.THREAD_FUNNELED,
    "serialized": mpi.THREAD_SERIALIZED,
    "multiple": mpi.THREAD_MULTIPLE,
}


class _Environment:
    """What the import of MPI, Init and the end of the program need to know."""

    provided = mpi.THREAD_SINGLE
    main_thread = 0
    finalizes = False
    is_initialized = False
    is_finalized = False
    lock = threading.RLock()
    """Of beginning and ending: sessions belong to threads that know nothing of each other."""
    sessions: ClassVar[set[object]] = set()
    """Those that are open."""


_environment = _Environment()


def bootstrap() -> None:
    """Initialize at import, unless ``rc.initialize`` says not to, and arrange for finalization at exit."""
    options = rc.resolve()
    heed_environment()
    rc.warn_unknown()
    runtime.at_exit(_at_exit)
    if options.initialize and not _environment.is_initialized and not runtime.is_finalized():
        _start(_LEVELS[options.thread_level] if options.threads else mpi.THREAD_SINGLE)
        _environment.finalizes = options.finalize
    elif not options.initialize:
        _environment.finalizes = options.finalize


def _start(level: int) -> None:
    engine = runtime.start()
    _environment.provided = level
    _environment.main_thread = threading.get_ident()
    handler = default_errhandler()
    _environment.is_initialized = True
    COMM_WORLD._state.fill(communicator.world(engine), handler, "MPI_COMM_WORLD")
    COMM_SELF._state.fill(communicator.own(engine), handler, "MPI_COMM_SELF")
    errhandler_dispatch.use(handler, Comm, Intracomm, *Comm._WITH_TOPOLOGY.values())
    parents = os.environ.pop(launcher.PARENT, "")
    if parents and runtime.membership().kind == "launcher":
        Comm._PARENT = spawning.meet_parent(parents, COMM_WORLD._state.native, handler)


def _at_exit() -> None:
    if runtime.abort_status():
        runtime.abort(runtime.abort_status())
    if _environment.is_initialized and not _environment.is_finalized:
        if _environment.finalizes:
            Finalize()
    else:
        _leave()


def _set_abort_status(status: int) -> None:
    """Make the end of this program abort the job with this status."""
    runtime.set_abort_status(integer(status, "status"))


def Init() -> None:
    """Initialize the MPI execution environment."""
    Init_thread(mpi.THREAD_SINGLE)


def Init_thread(required: int = mpi.THREAD_MULTIPLE) -> int:
    """Initialize the MPI execution environment; return the level of thread support."""
    level = max(mpi.THREAD_SINGLE, min(integer(required, "required"), mpi.THREAD_MULTIPLE))
    with _environment.lock:
        if _environment.is_finalized:
            errors.fail(errors.ERR_OTHER, "MPI was finalized in this process and cannot be initialized again")
        if _environment.is_initialized:
            errors.fail(errors.ERR_OTHER, "MPI is initialized already")
        _start(level)
    return _environment.provided


def Finalize() -> None:
    """Terminate the MPI execution environment."""
    runtime.engine()
    COMM_WORLD._state.native  # noqa: B018  (raises unless MPI is initialized, and not finalized)
    if buffering.process.send_buffer is not None:
        buffering.process.send_buffer.flush()
    background_progress.settle()
    if getattr(rc, "report_tuning", False):
        _report_tuning()
    for comm in (COMM_SELF, COMM_WORLD):
        comm._free_attributes()
        wrong = collectives.disagreement(comm._state.native)
        if wrong is not None:
            print(f"ncclx_mpi: {wrong}", file=sys.stderr, flush=True)
        comm._state.empty()
    with _environment.lock:
        _environment.is_finalized = True
        if not _environment.sessions:
            _leave()


def _report_tuning() -> None:
    """Write what this rank has decided on bulk data."""
    from ncclx_mpi.collectives import shm_decisions

    text = "\n".join(shm_decisions.lines(runtime.engine(), COMM_WORLD._state.native))
    print(text, file=sys.stderr, flush=True)


def _leave() -> None:
    """Leave the job."""
    background_progress.settle()
    background_progress.stop()
    communicator.retire_all()
    runtime.finish()


def open_session(session: object) -> Engine:
    """Begin a session: the engine, started if this is the first use of it.

    Raises
    ------
    Exception
        ERR_OTHER: MPI was finalized, and no session is open.
    """
    with _environment.lock:
        engine = runtime.start()
        communicator.world(engine)  # now: later, threads may ask for it at the same time
        _environment.sessions.add(session)
    return engine


def close_session(session: object) -> None:
    """End a session; the last one after Finalize leaves the job."""
    with _environment.lock:
        _environment.sessions.discard(session)
        if _environment.is_finalized and not _environment.sessions:
            _leave()


def Query_thread() -> int:
    """Return the level of thread support provided by the MPI library."""
    return _environment.provided


def Is_thread_main() -> bool:
    """Indicate whether this thread called `Init` or `Init_thread`."""
    return threading.get_ident() == _environment.main_thread


def Is_initialized() -> bool:
    """Indicate whether `Init` has been called."""
    return _environment.is_initialized


def Is_finalized() -> bool:
    """Indicate whether `Finalize` has completed."""
    return _environment.is_finalized


def Get_version() -> tuple[int, int]:
    """Obtain the version number of the MPI standard."""
    return mpi.VERSION, mpi.SUBVERSION


def Get_library_version() -> str:
    """Obtain the version string of the MPI library."""
    return f"ncclx_mpi {__version__}"


def Get_abi_version() -> tuple[int, int]:
    """Obtain the MPI ABI version number: (-1, -1), as there is no binary interface that C programs could be linked with."""
    return -1, -1


def Get_abi_info() -> Info:
    """Obtain information about the MPI ABI: bytes of its integer types."""
    return Info.Create({f"mpi_{name}_size": str(PREDEFINED[name.upper()].size) for name in ("aint", "count", "offset")})


def Get_abi_fortran_info() -> Info:
    """Obtain information about the Fortran MPI ABI: bytes of types, and which of those with a length there are."""
    sizes = {f"mpi_{name.lower()}_size": str(PREDEFINED[name].size) for name in _FORTRAN_TYPES}
    there = {f"mpi_{name.lower()}_supported": str(bool(PREDEFINED[name])).lower() for name in _OPTIONAL_FORTRAN_TYPES}
    return Info.Create(sizes | there)


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    """Information about the underlying MPI implementation: its name and version."""
    major, minor, micro = (int(part) for part in __version__.split(".")[:3])
    return "ncclx_mpi", (major, minor, micro)


def Get_processor_name() -> str:
    """Obtain the name of the calling processor."""
    return os.uname().nodename[: mpi.MAX_PROCESSOR_NAME - 1]


def Get_hw_resource_info() -> Info:
    """Obtain information about the hardware platform of the calling processor: to one of which resources it is restricted."""
    return Info.Create(localities.resource_info())


def Wtime() -> float:
    """Return an elapsed time on the calling processor, in seconds."""
    return time.perf_counter()


def Wtick() -> float:
    """Return the resolution of `Wtime`, in seconds."""
    return time.get_clock_info("perf_counter").resolution


def Pcontrol(level: int) -> None:
    """Control profiling; there is no profiler that would listen."""
    if not 0 <= integer(level, "level") <= 2:
        errors.fail(errors.ERR_ARG, f"profiling level {level} is not 0, 1 or 2")


class _Process(AttachedBuffer):
    """The process as what has a buffer for buffered sends."""

    __slots__ = ()
    _state = buffering.process


_process = _Process()
Attach_buffer, Detach_buffer = _process.Attach_buffer, _process.Detach_buffer
Flush_buffer, Iflush_buffer = _process.Flush_buffer, _process.Iflush_buffer
