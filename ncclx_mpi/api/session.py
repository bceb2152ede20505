"""MPI.Session: a part of a program that uses MPI by itself, from its own beginning to its own end, whatever the rest does.

All sessions, and MPI itself (`Init` to `Finalize`), share one engine. It starts with the first of them, and goes on when the last is
over, for those to come: the end of the program leaves the job. But after `Finalize` the last session that ends leaves it, and none can begin
any more.
"""

from __future__ import annotations

from typing import Self

from ncclx_mpi import errors
from ncclx_mpi.api import buffering, environment
from ncclx_mpi.api.accessors import ErrorHandled, hints
from ncclx_mpi.api.attached_buffer import AttachedBuffer
from ncclx_mpi.api.buffering import SendBuffer
from ncclx_mpi.api.errhandler import Errhandler, default_errhandler
from ncclx_mpi.api.group import Group
from ncclx_mpi.api.handle import constant, integer
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.p2p.engine import Engine
from ncclx_mpi.state import State
from ncclx_mpi.typing import Buffer

_SELF, _WORLD = "mpi://SELF", "mpi://WORLD"
_PROCESS_SETS = _WORLD, _SELF


class SessionState(State):
    """A session that is open."""

    __slots__ = ("engine", "errhandler", "info", "send_buffer")
    WHAT = "session"
    ERROR = errors.ERR_SESSION
    engine: Engine
    errhandler: Errhandler
    info: dict[str, str]
    send_buffer: SendBuffer | None

    def fill(self, engine: Engine, info: dict[str, str], errhandler: Errhandler) -> None:
        """Make this the state of a session."""
        self.engine = engine
        self.info = info
        self.errhandler = errhandler
        self.send_buffer = None


class Session(AttachedBuffer, ErrorHandled):
    """Session context."""

    __slots__ = ()
    _NULL = SessionState()
    _STATE = (SessionState,)
    _KIND = "session"
    _state: SessionState

    def __new__(cls, session: Session | None = None) -> Self:
        """Create a handle of the same session, or a null one."""
        return cls._copy(session, "session")

    @classmethod
    def Init(cls, info: Info = INFO_NULL, errhandler: Errhandler | None = None) -> Self:
        """Create a new session.

        Raises
        ------
        Exception
            ERR_OTHER: MPI was finalized and no other session is open.
        """
        handler = default_errhandler() if errhandler is None else Errhandler._usable(cls._KIND, errhandler)
        items, state = hints(info), SessionState()
        state.fill(environment.open_session(state), items, handler)
        cls._heed(handler)
        return cls._refer(state)

    def Finalize(self) -> None:
        """Finalize a session; its communicators are to be freed before."""
        state = self._state
        state.engine  # noqa: B018  (raises if it is null or was finalized)
        if state.send_buffer is not None:
            self.Detach_buffer()
        state.empty()
        self._become_null()
        environment.close_session(state)

    def free(self) -> None:
        """Call `Finalize` if not null."""
        if self:
            self.Finalize()

    # Process sets

    def Get_num_psets(self, info: Info = INFO_NULL) -> int:
        """Number of available process sets."""
        self._state.engine  # noqa: B018  (raises if it is null or was finalized)
        return len(_PROCESS_SETS)

    def Get_nth_pset(self, n: int, info: Info = INFO_NULL) -> str:
        """Name of the *n*-th process set."""
        self._state.engine  # noqa: B018
        number = integer(n, "n")
        if not 0 <= number < len(_PROCESS_SETS):
            errors.fail(errors.ERR_ARG, f"there is no process set {number}: there are {len(_PROCESS_SETS)}, from 0")
        return _PROCESS_SETS[number]

    def Get_info(self) -> Info:
        """Return the current hints for a session."""
        return Info.Create(self._state.info)

    def Get_pset_info(self, pset_name: str) -> Info:
        """Return the current hints for a session and process set: ``mpi_size``, its number of processes."""
        return Info.Create({"mpi_size": str(len(self._members(pset_name)))})

    def Create_group(self, pset_name: str) -> Group:
        """Create a new group from session and process set: ``mpi://WORLD``, all ranks of the job, or ``mpi://SELF``.

        Raises
        ------
        Exception
            ERR_ARG: there is no such set.
        """
        return Group._of(self._members(pset_name), self._state.engine.rank)

    def _members(self, pset_name: str) -> range:
        engine = self._state.engine
        known = {name.lower(): name for name in _PROCESS_SETS}
        name = known.get(str(pset_name).lower())
        if name is None:
            errors.fail(errors.ERR_ARG, f"there is no process set {pset_name!r}; there are {', '.join(_PROCESS_SETS)}")
        return range(engine.size) if name == _WORLD else range(engine.rank, engine.rank + 1)

    # Buffered sends, of communicators that have no buffer of their own

    def Attach_buffer(self, buf: Buffer | None) -> None:
        """Attach a user-provided buffer for sending in buffered mode."""
        super().Attach_buffer(buf)
        buffering.process.of_sessions[self._state.number] = self._state.send_buffer

    def Detach_buffer(self) -> Buffer | None:
        """Remove an existing attached buffer."""
        attached = super().Detach_buffer()
        del buffering.process.of_sessions[self._state.number]
        return attached


SESSION_NULL = constant(Session(), "SESSION_NULL")
