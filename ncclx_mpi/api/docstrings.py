"""Docstrings as those of mpi4py are: the first line is the signature.

Tools that show a docstring and know nothing of the function, and programs that read it, find there what they find in mpi4py.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

_VARARGS, _VARKEYWORDS = 0x4, 0x8
"""Flags of code objects (``inspect.CO_VARARGS`` and the next one): a module whose import takes 5 ms for two numbers."""

_done: set[int] = set()
"""Which have theirs: classes that are imported later share methods with those that were imported at the start."""


def begin_with_signatures(public: Iterable[Any]) -> None:
    """Put its signature before the docstring of each of these functions, and of all methods of these classes."""
    kinds: dict[type, None] = {}
    members = []
    for each in public:
        if isinstance(each, type):
            kinds.update(dict.fromkeys(each.__mro__))
        else:
            members.append(each)
    for kind in kinds:
        if kind.__module__.startswith("ncclx_mpi"):
            members += vars(kind).values()
    found: dict[int, Any] = {}
    for member in members:
        documented = getattr(member, "__func__", member)  # of a class method, or a static one
        if isinstance(documented, FunctionType | property):
            found[id(documented)] = documented  # once, where classes share one
    for documented in found.values():
        if documented.__doc__ and id(documented) not in _done:
            _done.add(id(documented))
            documented.__doc__ = f"{_signature(documented)}\n{_without_margin(documented.__doc__)}"


def _without_margin(docstring: str) -> str:
    """The text, its lines as far to the left as the quotes that end it."""
    text = docstring.rstrip()
    margin = docstring[len(text) :].rpartition("\n")[2]
    return text.replace(f"\n{margin}", "\n") if margin else text


def _signature(documented: FunctionType | property) -> str:
    if isinstance(documented, property):
        return documented.fget.__name__ if documented.fget is not None else ""
    return f"{documented.__name__}({_parameters(documented)})"


def _parameters(function: FunctionType) -> str:
    """The names, as `inspect.signature` would show them without values: that one takes longer than all of the import."""
    code = function.__code__
    names = code.co_varnames
    positional, keyword = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    words = list(names[:positional])
    end = keyword
    if code.co_flags & _VARARGS:
        words.append(f"*{names[end]}")
        end += 1
    elif keyword > positional:
        words.append("*")
    words += names[positional:keyword]
    if code.co_flags & _VARKEYWORDS:
        words.append(f"**{names[end]}")
    return ", ".join(words)
