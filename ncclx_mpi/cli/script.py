"""``python -m ncclx_mpi script.py``: one rank under any launcher, the twin of ``python -m mpi4py``."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from typing import Any

from ncclx_mpi import (
    mpi4py_shim,
    runtime,  # noqa: F401  (its exit handler has to be there before those of the program)
)
from ncclx_mpi.cli.main import overview
from ncclx_mpi.launch import program as programs

_OPTIONS = """options:
  --version            show version number and exit
  --prefix             show install path and exit
  -h|--help            show this help message and exit
  -rc <key=value,...>  set 'ncclx_mpi.rc.key=value'"""


class _Shown(Exception):
    """An option has printed what was asked for; there is nothing to run."""


def main(words: list[str]) -> int:
    """Run a Python program with our MPI in the place of mpi4py's; an unhandled exception ends the whole job."""
    try:
        settings, rest = _parse(list(words))
        program = programs.parse(rest)
    except _Shown as shown:
        print(shown)
        return 0
    except programs.UsageError as error:
        print(f"{error}\n{_usage()}\nTry `{_python()} -m ncclx_mpi -h` for more information.", file=sys.stderr)
        return 1
    mpi4py_shim.install()
    if settings:
        _configure(settings)
    status = programs.run(program)
    if status:
        abort_at_exit(status)
    return status


def abort_at_exit(status: int) -> None:
    """A rank that fails ends the job when the interpreter exits, if it ever took part in one."""
    mpi = sys.modules.get("ncclx_mpi.MPI")
    if mpi is not None:
        mpi._set_abort_status(status)


def _parse(words: list[str]) -> tuple[dict[str, object], list[str]]:
    """Settings for ``rc``, and the words from the program on."""
    settings: dict[str, object] = {}
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        option, has_value, value = words.pop(0).partition("=")
        name = option if not option.startswith("--") else option[1:]
        if name in ("-h", "-help"):
            raise _Shown(f"{_usage()}\n{_OPTIONS}\ncommands (`{_python()} -m ncclx_mpi COMMAND -h`):\n{overview()}")
        if name == "-version":
            from ncclx_mpi import __version__

            raise _Shown(f"ncclx_mpi {__version__}")
        if name == "-prefix":
            raise _Shown(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        if name != "-rc":
            raise programs.UsageError(f"Unknown option: {option}")
        if not has_value:
            if not words or words[0].startswith("-"):
                raise programs.UsageError(f"Argument expected for option: {option}")
            value = words.pop(0)
        settings.update(_settings(value))
    return settings, words


def _settings(text: str) -> dict[str, object]:
    """``key=value,key2=value2``, values being Python literals or plain words."""
    found: dict[str, object] = {}
    for entry in text.split(","):
        key, _, value = entry.partition("=")
        if not key or not value:
            raise programs.UsageError(f"Cannot parse rc option: {entry}")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = value
    return found


def _configure(settings: dict[str, object]) -> None:
    rc: Any = importlib.import_module("ncclx_mpi.rc")
    rc(**settings)


def _python() -> str:
    return os.path.basename(sys.executable)


def _usage() -> str:
    forms = ("<pyfile>", "-m <mod>", "-c <cmd>", "-")
    lines = [f"{_python()} -m ncclx_mpi [options] {form} [arg] ..." for form in forms]
    return "usage: " + "\n   or: ".join(lines)
