"""``python -m ncclx_mpi script.py``: the twin of ``python -m mpi4py``, one rank under any launcher."""

from __future__ import annotations

import sys

from ncclx_mpi.cli.main import overview, program_name
from ncclx_mpi.launch import program as programs
from ncclx_mpi.launch import shim


def main(words: list[str]) -> int:
    """Run a Python program with our MPI in the place of mpi4py's."""
    try:
        settings, rest = _parse(words)
        program = programs.parse(rest)
    except programs.UsageError as error:
        print(f"{error}\n{_usage()}\nTry `{program_name()} -h` for more information.", file=sys.stderr)
        return 1
    shim.install()
    if settings:
        import ncclx_mpi

        ncclx_mpi.rc(**settings)
    status = programs.run(program)
    return status


def _parse(words: list[str]) -> tuple[dict[str, object], list[str]]:
    return {}, words


def _usage() -> str:
    return overview()
