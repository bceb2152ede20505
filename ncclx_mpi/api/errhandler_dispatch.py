"""Error handlers other than ERRORS_RETURN.

Errors are exceptions; that is all ERRORS_RETURN means, and the only handler that most programs ever have. So methods pay nothing
for handlers until another one is set: then the public methods of the classes are wrapped, once, to call it before the
exception goes on.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from ncclx_mpi import errors
from ncclx_mpi.api.errhandler import ERRORS_RETURN, Errhandler

_UNGUARDED = ("Call_errhandler", "Abort")
_guarded: set[type] = set()
_handled: deque[int] = deque(maxlen=8)
"""Codes of the last errors, each of which is its own: one that passes through two methods is handled once."""


def use(errhandler: Errhandler, *classes: type) -> None:
    """See to it that methods of `classes` call error handlers, if this one is a reason to."""
    if errhandler == ERRORS_RETURN:
        return
    for cls in classes:
        if cls not in _guarded:
            _guarded.add(cls)
            for name in _public_methods(cls):
                setattr(cls, name, _guard(getattr(cls, name)))


def _public_methods(cls: type) -> list[str]:
    """Names of plain methods of a class and of the mixins that only it is made of."""
    names = []
    for name in dir(cls):
        found = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
        is_inherited = any(name in dir(guarded) for guarded in _guarded - {cls} if issubclass(cls, guarded))
        is_method = callable(found) and not isinstance(found, classmethod | type) and not name.startswith("_")
        if is_method and not is_inherited and name not in _UNGUARDED:
            names.append(name)
    return names


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except errors.Exception as exception:
            if self:
                _handle(exception, self)
            raise

    return guarded


def _handle(exception: errors.Exception, handle: Any) -> None:
    """Call the error handler of what `handle` refers to, unless this error was handled."""
    code = int(exception)
    if code not in _handled:
        _handled.append(code)
        handle._state.errhandler._call(handle, code)


def use_in_waits(errhandler: Errhandler, requests: type, handle_of: Callable[[Any], Any]) -> None:
    """See to it that waiting for and testing `requests` calls the error handler of the communicator that one belongs to.

    `handle_of` makes a handle of what such a communicator is.
    """
    if errhandler == ERRORS_RETURN or requests in _guarded:
        return
    _guarded.add(requests)
    for name, found in list(vars(requests).items()):
        if name.lower().startswith(("wait", "test")):
            is_bound = isinstance(found, classmethod)
            guarded = _guard_wait(found.__func__ if is_bound else found, handle_of)
            setattr(requests, name, classmethod(guarded) if is_bound else guarded)


def _guard_wait(method: Callable[..., Any], handle_of: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except errors.Exception as exception:
            origin = exception._origin or getattr(exception.__cause__, "_origin", None)
            state = origin and origin.owner()
            if state is not None and state.is_valid:
                _handle(exception, handle_of(state))
            raise

    return guarded
