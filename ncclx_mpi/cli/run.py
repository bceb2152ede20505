"""``ncclx run``: the embedded launcher."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from ncclx_mpi.cli.main import program_name
from ncclx_mpi.launch.program import SCRIPT, Program, UsageError, parse_any

_FIRST_IN_LIFE = ("PYTHON", "LD_", "MALLOC_", "GLIBC_TUNABLES", "LC_", "LANG")
"""Variables that act when a process begins: the launcher starts anew to heed them."""

_USAGE = "%(prog)s -n N [options] script.py | -m module | -c code | python script.py | program  [arg ...]"


def main(args: list[str]) -> int:
    """Start a program on N ranks, and return the exit status of the job."""
    options, words = _parse(args)
    try:
        program, flags = parse_any(words)
    except UsageError as error:
        return _complain(str(error))
    if program.kind == SCRIPT and not os.path.exists(program.target):
        return _complain(f"there is no program {program.target!r}")
    variables = dict(_split_variable(text) for text in options.x)
    if flags or any(name.startswith(_FIRST_IN_LIFE) and os.environ.get(name) != value for name, value in variables.items()):
        _start_anew(flags, variables, options, program)
    os.environ.update(variables)
    return _run(options, program)


def _parse(args: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog=f"{program_name()} run", usage=_USAGE, description=__doc__, allow_abbrev=False)
    parser.add_argument("-n", "-np", "--nranks", type=_positive, default=1, metavar="N", help="number of ranks (1)")
    parser.add_argument("--tag-output", action="store_true", help="begin each line of output with [rank]")
    parser.add_argument("--timeout", type=float, default=0.0, metavar="S", help="end the job after S seconds, with all stacks")
    parser.add_argument("-x", action="append", default=[], metavar="VAR=VAL", help="set a variable before anything is imported")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    own, words = _split_at_program(args)
    return parser.parse_args(own), words


def _split_at_program(args: list[str]) -> tuple[list[str], list[str]]:
    """Our own options end where the program begins, so that its options are not taken for ours."""
    at = 0
    while at < len(args):
        word = args[at]
        if word == "--":
            return args[:at], args[at + 1 :]
        if word in ("-m", "-c", "-") or not word.startswith("-"):
            break
        at += 2 if word in ("-n", "-np", "--nranks", "--timeout", "-x") else 1
    return args[:at], args[at:]


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} ranks cannot be started")
    return value


def _split_variable(text: str) -> tuple[str, str]:
    """``VAR=VAL``, or ``VAR`` for the value it has here."""
    name, has_value, value = text.partition("=")
    return name, value if has_value else os.environ.get(name, "")


def _start_anew(flags: list[str], variables: dict[str, str], options: argparse.Namespace, program: Program) -> NoReturn:
    """Replace this process by one with these interpreter flags and variables."""
    words = [sys.executable, *flags, "-m", "ncclx_mpi", "run", "-n", str(options.nranks)]
    words += ["--timeout", str(options.timeout), *(["--tag-output"] if options.tag_output else [])]
    for name in variables:
        words += ["-x", name]
    words += [{"module": "-m", "code": "-c", "stdin": "-"}.get(program.kind, "--")]
    words += [program.target] if program.kind != "stdin" else []
    os.execve(sys.executable, words + program.args, {**os.environ, **variables})


def _complain(message: str) -> int:
    print(f"{program_name()} run: {message}\ntry `{program_name()} run --help`", file=sys.stderr)
    return 2


def _run(options: argparse.Namespace, program: Program) -> int:
    from ncclx_mpi.launch.local import run_program

    return run_program(program, options.nranks, is_tagged=options.tag_output, timeout=options.timeout)
