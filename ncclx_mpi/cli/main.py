"""Which command is meant, and how to start it."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from ncclx_mpi import collector

COMMANDS = {
    "run": ("ncclx_mpi.cli.run", "start a program on N ranks of this machine"),
    "info": ("ncclx_mpi.cli.info", "versions, libraries, bootstrap and transports, to paste into an issue"),
    "doctor": ("ncclx_mpi.cli.doctor", "check this machine, with a fix for each finding"),
    "trace": ("ncclx_mpi.cli.trace", "what each rank of a running job is in"),
    "bench": ("ncclx_mpi.cli.bench", "measure, alone or against other MPIs"),
    "simulate": ("ncclx_mpi.cli.simulate", "price and prove the plans of a collective on a modelled network"),
    "warm": ("ncclx_mpi.cli.warm", "compile the engine into the cache"),
}
"""Name: (module with ``main(args) -> int``, one line of help)."""

_LAUNCHER = "run"
"""Who waits for a job waits for its end, too."""


def main(args: list[str] | None = None) -> int:
    """Entry point of ``ncclx`` and of ``python -m ncclx_mpi``."""
    words = sys.argv[1:] if args is None else list(args)
    open_standard_streams()
    if words and is_command(words[0]):
        status = _command(words[0], words[1:])
        if args is None and words[0] == _LAUNCHER and sys.getprofile() is None:
            from ncclx_mpi import process

            process.end(status)
        return status
    from ncclx_mpi.cli import script

    return script.main(words)


def _command(name: str, args: list[str]) -> int:
    with collector.at_rest():
        module = importlib.import_module(COMMANDS[name][0])
    try:
        status: int = module.main(args)
        sys.stdout.flush()
    except BrokenPipeError:  # `ncclx info | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    finally:
        _let_go_of_errors()
    return status


def _let_go_of_errors() -> None:
    """Drop messages that cannot be written: Python would try again at exit, fail again, and replace the status."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def open_standard_streams() -> None:
    """Closed ones (``>&-``) become the null device: else the next file that is opened takes their number, and what ranks write."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - for the whole life


def is_command(word: str) -> bool:
    """Is `word` one of our commands? A script of that name is meant with a slash or ``.py`` only."""
    return word in COMMANDS


def program_name() -> str:
    """How the user called us."""
    name = os.path.basename(sys.argv[0])
    return f"{os.path.basename(sys.executable)} -m ncclx_mpi" if name == "__main__.py" else name


def overview() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  {name.ljust(width)}  {text}" for name, (_, text) in COMMANDS.items())
