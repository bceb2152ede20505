"""MPI.Errhandler: what a communicator does with an error.

Whatever the handler, an error is raised as an exception in the rank that made it; ERRORS_ARE_FATAL and ERRORS_ABORT end the
job instead, and a handler made from a function is called first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar, Self

from ncclx_mpi.api.handle import Handle, State, constant, is_constant
from ncclx_mpi.errors import ERR_ERRHANDLER, fail

MAX_USER_HANDLERS = 32

Function = Callable[[Any, int], None]


class ErrhandlerState(State):
    """One way of handling errors; `function` is None for the predefined ones."""

    __slots__ = ("function", "is_fatal", "kind", "uses")
    WHAT = "error handler"
    ERROR = ERR_ERRHANDLER
    function: Function | None
    is_fatal: bool
    kind: str
    uses: int

    def __init__(self, kind: str = "", function: Function | None = None, *, is_fatal: bool = False) -> None:
        if kind:
            self.kind = kind
            self.function = function
            self.is_fatal = is_fatal
            self.uses = 1


_NULL = ErrhandlerState()
_PREDEFINED = "predefined"
_live: dict[str, int] = {}
_lock = threading.Lock()


class Errhandler(Handle):
    """A way of handling errors."""

    __slots__ = ()
    _NULL = _NULL
    _STATE = ErrhandlerState
    _ROOT: ClassVar[type[Handle]]
    _state: ErrhandlerState

    def __new__(cls, errhandler: Errhandler | None = None) -> Self:
        """Make a null handle, or a copy of another handle."""
        return cls._copy(errhandler, "errhandler")

    @classmethod
    def fromhandle(cls, handle: int) -> Errhandler:
        """Make the handle that :attr:`handle` gave."""
        return cls._refer(cls._find(handle))

    def Free(self) -> None:
        """Release the handle; objects that use the handler keep it."""
        if self._state.kind != _PREDEFINED:
            drop(self._state)
        elif is_constant(self):
            return
        self._state = _NULL

    def free(self) -> None:
        """Release the handle unless it is null or a constant."""
        if self and not is_constant(self):
            self.Free()


def create(kind: str, function: Function) -> Errhandler:
    """Make a handler for objects of `kind` that calls ``function(object, error code)``.

    Raises
    ------
    RuntimeError
        There are 32 such handlers already.
    """
    if not callable(function):
        raise TypeError(f"expected a function, got {type(function).__name__}")
    with _lock:
        if _live.get(kind, 0) >= MAX_USER_HANDLERS:
            raise RuntimeError(f"cannot create more than {MAX_USER_HANDLERS} error handlers for a {kind}")
        _live[kind] = _live.get(kind, 0) + 1
    return Errhandler._refer(ErrhandlerState(kind, function))


def keep(state: ErrhandlerState) -> ErrhandlerState:
    """Note that one more handle or object uses a handler."""
    with _lock:
        state.uses += 1
    return state


def drop(state: ErrhandlerState) -> None:
    """Note that a handle or object uses a handler no more; the last user frees its place."""
    with _lock:
        state.uses -= 1
        if state.uses == 0 and state.kind != _PREDEFINED:
            _live[state.kind] -= 1


def checked(errhandler: Any, kind: str) -> ErrhandlerState:
    """The state of a handler that may be set on an object of `kind`."""
    if not isinstance(errhandler, Errhandler):
        raise TypeError(f"expected an Errhandler, got {type(errhandler).__name__}")
    state = errhandler._state
    if state.kind not in (_PREDEFINED, kind):
        fail(ERR_ERRHANDLER, f"an error handler for a {state.kind} cannot be set on a {kind}")
    return state


Errhandler._ROOT = Errhandler
ERRHANDLER_NULL = constant(Errhandler(), "ERRHANDLER_NULL")
ERRORS_RETURN = constant(Errhandler._refer(ErrhandlerState(_PREDEFINED)), "ERRORS_RETURN")
ERRORS_ARE_FATAL = constant(Errhandler._refer(ErrhandlerState(_PREDEFINED, is_fatal=True)), "ERRORS_ARE_FATAL")
ERRORS_ABORT = constant(Errhandler._refer(ErrhandlerState(_PREDEFINED, is_fatal=True)), "ERRORS_ABORT")
