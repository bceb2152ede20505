"""Attributes cached on communicators and datatypes: keyvals with copy and delete callbacks.

A keyval is made for one kind of object ("communicator" or "datatype"). Each object keeps a table from keyval to value.
A table entry holds the keyval itself, so that freeing a keyval leaves the attributes that use it alive.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

from ncclx_mpi import errors, process
from ncclx_mpi.api.handle import Handle, integer
from ncclx_mpi.constants import KEYVAL_INVALID
from numba_kernels.rows import NamedTuple

Table = dict[int, "Attribute"]


class Keyval:
    """A key made by ``Create_keyval``: what happens to its values when an object is duplicated or freed."""

    def __init__(
        self, kind: str, copy_fn: Callable[..., Any] | bool | None, delete_fn: Callable[..., Any] | bool | None, raw: bool
    ) -> None:
        self.kind = kind
        self.copy_fn = None if copy_fn is False else copy_fn
        self.delete_fn = delete_fn if callable(delete_fn) else None
        self.raw = raw


class Attribute(NamedTuple):
    """A value cached under a keyval."""

    keyval: Keyval
    value: Any


_keyvals: dict[int, Keyval] = {}
_numbers = itertools.count(KEYVAL_INVALID + 1)
_lock = threading.Lock()


def create_keyval(kind: str, copy_fn: Any, delete_fn: Any, nopython: bool) -> int:
    """Return the number of a new keyval for objects of `kind`."""
    with _lock:
        number = next(_numbers)
        _keyvals[number] = Keyval(kind, copy_fn, delete_fn, bool(nopython))
    return number


def free_keyval(kind: str, number: int) -> int:
    """Forget a keyval; attributes under it stay until they are deleted."""
    _keyval(kind, number)
    with _lock:
        del _keyvals[number]
    return KEYVAL_INVALID


def get_attr(kind: str, table: Table, number: int) -> Any | None:
    """Return the value cached under a keyval, None if there is none."""
    number = integer(number, "keyval")
    if number in table:
        return table[number].value
    _keyval(kind, number)
    return None


def set_attr(kind: str, handle: Handle, table: Table, number: int, value: Any) -> None:
    """Cache a value under a keyval; an old value is deleted first."""
    keyval = _keyval(kind, number)
    if keyval.raw:
        value = integer(value, "attrval")
    if number in table:
        delete_attr(kind, handle, table, number)
    table[number] = Attribute(keyval, value)


def delete_attr(kind: str, handle: Handle, table: Table, number: int) -> None:
    """Delete the value cached under a keyval, after calling its delete function."""
    number = integer(number, "keyval")
    if number not in table:
        _keyval(kind, number)
        errors.fail(errors.ERR_OTHER, f"this {kind} has no attribute under keyval {number}")
    keyval, value = table.pop(number)
    if keyval.delete_fn is not None:
        _call(keyval.delete_fn, handle, number, value)


def copy_all(handle: Handle, table: Table) -> Table:
    """Return the attributes that a duplicate of `handle` starts with."""
    copied: Table = {}
    for number, (keyval, value) in list(table.items()):
        if keyval.copy_fn is None:
            continue
        if keyval.copy_fn is not True:
            value = _call(keyval.copy_fn, handle, number, value)
            if value is NotImplemented:
                continue
            if keyval.raw:
                value = integer(value, "attrval")
        copied[number] = Attribute(keyval, value)
    return copied


def delete_all(kind: str, handle: Handle, table: Table) -> None:
    """Delete all attributes, last set first, as freeing an object does, whatever their callbacks raise (and have printed)."""
    for number in reversed(list(table)):
        with contextlib.suppress(errors.Exception):
            delete_attr(kind, handle, table, number)


def _keyval(kind: str, number: Any) -> Keyval:
    found = _keyvals.get(integer(number, "keyval"))
    if found is None or found.kind != kind:
        errors.fail(errors.ERR_KEYVAL, f"{number} is not a keyval for a {kind}")
    return found


def _call(function: Any, handle: Handle, number: int, value: Any) -> Any:
    """Call a user's callback with a handle of its own, which is null afterwards.

    Raises
    ------
    Exception
        The callback raised: its traceback is printed, its MPI error class (ERR_OTHER for other exceptions) raised.
    """
    own = type(handle)._refer(handle._state)
    try:
        return function(own, number, value)
    except BaseException as exception:
        process.print_exception()
        if isinstance(exception, errors.Exception):
            raise errors.error(exception.Get_error_class(), str(exception)) from None
        errors.fail(errors.ERR_OTHER, f"the attribute callback of keyval {number} raised {exception!r}")
    finally:
        own._become_null()
