"""MPI.Errhandler: what a communicator does with an error.

Whatever the handler, an error is raised as an exception in the rank that made it; ERRORS_ARE_FATAL and ERRORS_ABORT end the
job instead, and a handler made from a function is called first.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self

from ncclx_mpi import process, rc, runtime
from ncclx_mpi.api.handle import Handle, constant, instance, is_constant
from ncclx_mpi.errors import ERR_ERRHANDLER, fail
from ncclx_mpi.state import State

MAX_USER_HANDLERS = 32

Function = Callable[[Any, int], None]


class ErrhandlerState(State):
    """One way of handling errors; `function` is None for the predefined ones."""

    __slots__ = ("function", "is_fatal", "kind")
    WHAT = "error handler"
    ERROR = ERR_ERRHANDLER
    function: Function | None
    is_fatal: bool
    kind: str

    def __init__(self, kind: str = "", function: Function | None = None, *, is_fatal: bool = False) -> None:
        if kind:
            self.kind = kind
            self.function = function
            self.is_fatal = is_fatal


_NULL = ErrhandlerState()
_PREDEFINED = "predefined"
_live: dict[str, weakref.WeakSet[ErrhandlerState]] = {}
_lock = threading.Lock()


class Errhandler(Handle):
    """A way of handling errors."""

    __slots__ = ()
    _NULL = _NULL
    _STATE = (ErrhandlerState,)
    _state: ErrhandlerState

    def __new__(cls, errhandler: Errhandler | None = None) -> Self:
        """Make a null handle, or a copy of another handle."""
        return cls._copy(errhandler, "errhandler")

    def Free(self) -> None:
        """Release the handle; objects that use the handler keep it."""
        self._state.kind  # noqa: B018  (raises if it is null)
        if not is_constant(self):
            self._become_null()

    @classmethod
    def _create(cls, kind: str, function: Function) -> Self:
        """Make a handler for objects of `kind` that calls ``function(object, error code)``.

        Raises
        ------
        RuntimeError
            There are 32 such handlers in use already.
        """
        if not callable(function):
            raise TypeError(f"expected a function, got {type(function).__name__}")
        with _lock:
            live = _live.setdefault(kind, weakref.WeakSet())
            if len(live) >= MAX_USER_HANDLERS:
                raise RuntimeError(f"cannot create more than {MAX_USER_HANDLERS} error handlers for a {kind}")
            state = ErrhandlerState(kind, function)
            live.add(state)
        return cls._refer(state)

    @staticmethod
    def _usable(kind: str, errhandler: Any) -> Errhandler:
        """Return a handle of a handler that may be set on an object of `kind`."""
        instance(errhandler, Errhandler)
        if errhandler._state.kind not in (_PREDEFINED, kind):
            fail(ERR_ERRHANDLER, f"an error handler for a {errhandler._state.kind} cannot be set on a {kind}")
        return Errhandler(errhandler)

    def _call(self, handle: Any, errorcode: int) -> None:
        """Handle an error of an object: call the function, or end the job; an exception in the function ends it too."""
        state = self._state
        if state.is_fatal:
            runtime.abort(errorcode)
        if state.function is None:
            return
        own = type(handle)._refer(handle._state)
        try:
            state.function(own, errorcode)
        except BaseException:
            process.print_exception()
            print("Fatal Python error: exception in user-defined error handler function", file=sys.stderr)
            runtime.abort(1)
        finally:
            own._become_null()


ERRHANDLER_NULL = constant(Errhandler(), "ERRHANDLER_NULL")
ERRORS_RETURN = constant(Errhandler._refer(ErrhandlerState(_PREDEFINED)), "ERRORS_RETURN")
ERRORS_ARE_FATAL = constant(Errhandler._refer(ErrhandlerState(_PREDEFINED, is_fatal=True)), "ERRORS_ARE_FATAL")
ERRORS_ABORT = constant(Errhandler._refer(ErrhandlerState(_PREDEFINED, is_fatal=True)), "ERRORS_ABORT")

_HANDLERS = {
    "exception": ERRORS_RETURN,
    "default": ERRORS_ARE_FATAL,
    "abort": ERRORS_ABORT,
    "fatal": ERRORS_ARE_FATAL,
}


def default_errhandler() -> Errhandler:
    """What the first communicators, those without a parent, new windows and sessions do with errors, which ``rc.errors`` says."""
    return Errhandler(_HANDLERS[rc.options().errors])
