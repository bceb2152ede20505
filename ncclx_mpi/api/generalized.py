"""Generalized requests: operations of the program itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclx_mpi import errors, process, runtime
from ncclx_mpi.api.request import Request
from ncclx_mpi.api.status import Status
from ncclx_mpi.operations.operation import EMPTY, Operation, write_status
from ncclx_mpi.p2p.engine import Engine


class Grequest(Request):
    """Generalized request handler."""

    __slots__ = ()

    @classmethod
    def Start(
        cls,
        query_fn: Callable[..., None] | None = None,
        free_fn: Callable[..., None] | None = None,
        cancel_fn: Callable[..., None] | None = None,
        args: tuple[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Grequest:
        """Create and return a user-defined request."""
        return Grequest._refer(Generalized(runtime.engine(), query_fn, free_fn, cancel_fn, args, kwargs))

    def Complete(self) -> None:
        """Notify that a user-defined request is complete."""
        self.complete(None)

    def complete(self, obj: Any = None) -> None:
        """Notify that a user-defined request is complete; `obj` is what `wait` returns."""
        operation = self._state
        if not isinstance(operation, Generalized):
            errors.fail(errors.ERR_REQUEST, "this request is null or not generalized: it cannot be completed")
        operation.value = obj
        operation.is_complete = True


Grequest._SORT = (Grequest,)


class Generalized(Operation):
    """An operation of the program itself: complete when the program says so."""

    __slots__ = ("args", "cancel_fn", "engine", "free_fn", "is_complete", "is_queried", "kwargs", "query_fn", "value")
    value: Any

    def __init__(self, engine: Engine, query_fn: Any, free_fn: Any, cancel_fn: Any, args: Any, kwargs: Any) -> None:
        self.engine = engine
        self.query_fn = query_fn
        self.free_fn = free_fn
        self.cancel_fn = cancel_fn
        self.args = tuple(args or ())
        self.kwargs = dict(kwargs or {})
        self.is_complete = False
        self.is_queried = False
        self.value = None

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        self.engine.progress()
        return self.is_complete

    def wait(self) -> None:
        """Return when it is done."""
        self.engine.idle_wait(lambda: self.is_complete, "wait for a generalized request")

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        write_status(status, EMPTY)
        self.is_queried = True
        if self.query_fn is None:
            return
        self._call(self.query_fn, status)
        if self.cancel_fn is None:
            status.Set_cancelled(False)

    def finish(self) -> Any:
        """Deliver what it brought, and empty it."""
        value = self.value
        try:
            if not self.is_queried:
                self.fill(Status())
        finally:
            try:
                if self.free_fn is not None:
                    self._call(self.free_fn)
            finally:
                self.empty()
        return value

    def cancel(self) -> None:
        """Ask for its cancellation."""
        if self.cancel_fn is not None:
            self._call(self.cancel_fn, self.is_complete)

    def release(self) -> None:
        """Forget it once it is complete; until then it stays, as MPI has it."""
        if self.is_complete:
            self.finish()
        else:
            self.is_complete = True
            self.empty()

    def _call(self, function: Callable[..., Any], *first: Any) -> None:
        """Call a function of the user; its exception is printed and becomes an MPI error."""
        try:
            function(*first, *self.args, **self.kwargs)
        except BaseException as exception:
            process.print_exception()
            if isinstance(exception, errors.Exception):
                raise
            errors.fail(errors.ERR_OTHER, f"a function of a generalized request raised {exception!r}")
