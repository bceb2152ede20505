"""The first steps of a forked rank."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import sys
from typing import Any

from ncclx_mpi.process import STACKS_SIGNAL

_replaced: list[Any] = []
"""Stream objects of the launcher: dropping them could close descriptors that now are ours."""


def take_streams(stdin: int, stdout: int, stderr: int) -> None:
    """Make the descriptors the standard ones, and give Python fresh, line-buffered objects on them."""
    for fd, standard in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, standard)
    _replaced.extend([sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__])
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    errors = getattr(sys.__stdout__, "errors", None) or "strict"
    is_unbuffered = bool(getattr(sys.__stdout__, "write_through", False))
    streams = {
        "stdin": _text(0, "r", encoding, errors, False),
        "stdout": _text(1, "w", encoding, errors, is_unbuffered),
        "stderr": _text(2, "w", encoding, "backslashreplace", is_unbuffered),
    }
    for name, stream in streams.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _text(fd: int, mode: str, encoding: str, errors: str, is_unbuffered: bool) -> Any:
    """A text stream on a descriptor; with ``python -u`` nothing is held back."""
    raw = open(fd, f"{mode}b", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115 - for the whole life
    return io.TextIOWrapper(raw, encoding=encoding, errors=errors, line_buffering=mode == "w", write_through=is_unbuffered)


def forget_the_fork() -> None:
    """Undo what forked siblings share and started processes would not: the state of random generators."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    if "random" in sys.modules:
        sys.modules["random"].seed()


def print_stacks_on_signal() -> None:
    """Have all Python stacks printed to stderr on :data:`STACKS_SIGNAL`."""
    with contextlib.suppress(RuntimeError, ValueError, OSError):
        faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True, chain=False)
