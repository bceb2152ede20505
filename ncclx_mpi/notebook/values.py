"""Variables on their way between the kernel and the ranks."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from collections.abc import Iterable, Mapping
from typing import Any


class CannotBeSent(Exception):
    """A variable that is not there, or that another process cannot have; says which, and why."""


def pack(namespace: Mapping[str, Any], names: Iterable[str], where: str) -> bytes:
    """A pickle of variables, by name; of functions and classes of a notebook with ``cloudpickle``, if that is installed.

    Parameters
    ----------
    namespace
        Has the variables.
    names
        Which are wanted; for none, nothing is made.
    where
        Whose namespace it is, in words.

    Raises
    ------
    CannotBeSent
        One of them.
    """
    pickles = {name: _pickle(namespace, name, where) for name in names}
    return pickle.dumps(pickles, protocol=pickle.HIGHEST_PROTOCOL) if pickles else b""


def unpack(data: bytes, where: str) -> dict[str, Any]:
    """The variables that :func:`pack` was given.

    Parameters
    ----------
    data
        What that returned.
    where
        Where they come from, in words.

    Raises
    ------
    CannotBeSent
        One of them cannot be made here.
    """
    pickles = pickle.loads(data) if data else {}
    return {name: _unpickle(name, value, where) for name, value in pickles.items()}


def _pickle(namespace: Mapping[str, Any], name: str, where: str) -> bytes:
    if name not in namespace:
        raise CannotBeSent(f"there is no variable {name!r} {where}")
    pickler: Any = importlib.import_module("cloudpickle") if importlib.util.find_spec("cloudpickle") else pickle
    try:
        data: bytes = pickler.dumps(namespace[name], protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise CannotBeSent(f"the variable {name!r} {where} cannot be sent: {type(error).__name__}: {error}") from error
    return data


def _unpickle(name: str, data: bytes, where: str) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        hint = ""
        if "__main__" in str(error):
            hint = "; what a notebook defines itself is sent whole if cloudpickle is installed"
        raise CannotBeSent(f"the variable {name!r} {where} cannot be made here: {type(error).__name__}: {error}{hint}") from error
