"""``ncclx run``: the embedded launcher."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from ncclx_mpi import collector, rc
from ncclx_mpi.cli.main import program_name
from ncclx_mpi.launch.binding import KINDS, THREADS, Binding, bindings, threads
from ncclx_mpi.launch.program import SCRIPT, Program, UsageError, parse_any

if TYPE_CHECKING:
    from ncclx_mpi.launch.local import Node

TOKEN = "NCCLX_MPI_TOKEN"

_FIRST_IN_LIFE = ("PYTHON", "LD_", "MALLOC_", "GLIBC_TUNABLES", "LC_", "LANG")
"""Variables that act when a process begins: the launcher starts anew to heed them."""

_WITH_VALUE = {
    "-n", "-np", "--nranks", "--timeout", "-x", "--bind", "--output-dir",
    "--nnodes", "--node-rank", "--rendezvous", "--token-file", "--hosts", "--hostfile", "--rsh",
}  # fmt: skip
"""Options that take the word behind them."""

_COLUMNS = 80
_USAGE = "%(prog)s -n N [options] script.py | -m module | -c code | python script.py | program  [arg ...]"


def main(args: list[str]) -> int:
    """Start a program on N ranks, and return the exit status of the job."""
    options, own, words = _parse(args)
    try:
        if options.hosts or options.hostfile:
            return _run_on_hosts(options, words)
        program, flags = parse_any(words)
        node, found = _node(options), bindings(options.bind, options.nranks or 1)
    except (UsageError, ValueError) as error:
        return _complain(str(error))
    if program.kind == SCRIPT and not os.path.exists(program.target):
        return _complain(f"there is no program {program.target!r}")
    variables = dict(_split_variable(text) for text in options.x)
    if flags or any(name.startswith(_FIRST_IN_LIFE) and os.environ.get(name) != value for name, value in variables.items()):
        _start_anew(flags, variables, own, program)
    os.environ.update(variables)
    if found:
        os.environ.setdefault(THREADS, str(threads(found)))  # before anything that reads it is imported
    os.environ.pop(TOKEN, None)  # the ranks have no need of it
    if wrong := _wrong_table():
        return _complain(wrong)
    return _run(options, program, node, found)


def _parse(args: list[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
    """The options, the words that they were, and those of the program."""
    formatter = functools.partial(argparse.HelpFormatter, width=_columns() - 2)
    parser = argparse.ArgumentParser(
        prog=f"{program_name()} run", usage=_USAGE, description=__doc__, allow_abbrev=False, formatter_class=formatter
    )
    parser.add_argument("-n", "-np", "--nranks", type=_positive, metavar="N", help="number of ranks (1)")
    parser.add_argument("--tag-output", action="store_true", help="begin each line of output with [rank]")
    parser.add_argument("--timeout", type=float, default=0.0, metavar="S", help="end the job after S seconds, with all stacks")
    parser.add_argument("-x", action="append", default=[], metavar="VAR=VAL", help="set a variable before anything is imported")
    parser.add_argument(
        "--bind",
        choices=KINDS,
        default="none",
        help=f"bind each rank to a core, or to those of a cache or memory; sets {THREADS} to match",
    )
    parser.add_argument("--report-bindings", action="store_true", help="print which processors each rank may run on")
    parser.add_argument("--output-dir", default="", metavar="DIR", help="write what rank N writes into DIR/rank-N.out instead")
    several = parser.add_argument_group("on several hosts, this command on each")
    several.add_argument(
        "--nnodes", type=int, default=0, metavar="N", help="number of nodes; -n is the number of ranks of this one"
    )
    several.add_argument("--node-rank", type=int, default=-1, metavar="K", help="which node this is, from 0")
    several.add_argument("--rendezvous", default="", metavar="HOST[:PORT]", help="where the hosts meet: an address of node 0")
    several.add_argument(
        "--token-file", default="", metavar="FILE", help=f"what the hosts know each other by, instead of in {TOKEN}"
    )
    several.add_argument(
        "--end-with-stdin", action="store_true", help="end the job when standard input ends; a byte in it is a signal"
    )
    there = parser.add_argument_group("on several hosts, started from here")
    there.add_argument("--hosts", default="", metavar="A:2,B:2", help="hosts, and how many ranks each gets (1)")
    there.add_argument("--hostfile", default="", metavar="FILE", help="a file that names a host in each line, as name:2")
    there.add_argument(
        "--rsh", default="", metavar="COMMAND", help="remote shell ($NCCLX_MPI_RSH, else srun in an allocation of Slurm, else ssh)"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    own, words = _split_at_program(args)
    return parser.parse_args(own), own, words


def _columns() -> int:
    """The width of the terminal. A parser asks ``shutil`` for it, whose import loads three libraries for compression."""
    with contextlib.suppress(ValueError, OSError):
        return int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(1).columns or _COLUMNS
    return _COLUMNS


def _node(options: argparse.Namespace) -> Node | None:
    """The place of this host, if the command is one of several.

    Raises
    ------
    ValueError
        Options that belong together are not there together, or there is no token.
    """
    given = [options.nnodes != 0, options.node_rank != -1, bool(options.rendezvous)]
    if not any(given):
        return None
    if not all(given):
        raise ValueError("--nnodes, --node-rank and --rendezvous belong together: one command on each host")
    from ncclx_mpi.bootstrap.hosts import token_from
    from ncclx_mpi.launch.local import Node

    return Node(options.rendezvous, options.node_rank, options.nnodes, token_from(os.environ, options.token_file))


def _run_on_hosts(options: argparse.Namespace, words: list[str]) -> int:
    """Have the hosts started from here.

    Raises
    ------
    ValueError, UsageError
        The options do not go together, or name no hosts or no program.
    """
    from ncclx_mpi.launch.over_hosts import Command, places, places_of_file, run_on

    if options.nnodes or options.node_rank != -1 or options.token_file or options.end_with_stdin:
        raise ValueError("--hosts and --hostfile start all nodes from here; --nnodes and the like are for one command on each host")
    if options.hosts and options.hostfile:
        raise ValueError("--hosts and --hostfile both name the hosts")
    if not words or words[0] == "-":
        raise UsageError("name a program that all hosts can read; standard input is read here only")
    found = places(options.hosts, options.nranks) if options.hosts else places_of_file(options.hostfile, options.nranks)
    own = ["--timeout", str(options.timeout), "--bind", options.bind]
    own += [
        word
        for word, is_given in (("--tag-output", options.tag_output), ("--report-bindings", options.report_bindings))
        if is_given
    ]
    own += ["--output-dir", options.output_dir] if options.output_dir else []
    variables = dict(_split_variable(text) for text in options.x)
    return run_on(found, Command(own, words, variables, options.rendezvous, options.rsh))


def _split_at_program(args: list[str]) -> tuple[list[str], list[str]]:
    """Our own options end where the program begins, so that its options are not taken for ours."""
    at = 0
    while at < len(args):
        word = args[at]
        if word == "--":
            return args[:at], args[at + 1 :]
        if word in ("-m", "-c", "-") or not word.startswith("-"):
            break
        at += 2 if word in _WITH_VALUE else 1
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


def _start_anew(flags: list[str], variables: dict[str, str], own: list[str], program: Program) -> NoReturn:
    """Replace this process by one with these interpreter flags and variables."""
    words = [sys.executable, *flags, "-m", "ncclx_mpi", "run", *own]
    words += [{"module": "-m", "code": "-c", "stdin": "-"}.get(program.kind, "--")]
    words += [program.target] if program.kind != "stdin" else []
    os.execve(sys.executable, words + program.args, {**os.environ, **variables})


def _wrong_table() -> str:
    """What is wrong with the tuning table, said once instead of by each rank; empty if nothing is."""
    if not getattr(rc, "tuning_file", ""):
        return ""
    from ncclx_mpi import tuning

    try:
        tuning.find()
    except ValueError as error:
        return str(error)
    return ""


def _complain(message: str) -> int:
    print(f"{program_name()} run: {message}\ntry `{program_name()} run --help`", file=sys.stderr)
    return 2


def _run(options: argparse.Namespace, program: Program, node: Node | None, found: list[Binding]) -> int:
    with collector.at_rest():
        from ncclx_mpi.launch.local import Manners, run_programs

    manners = Manners(
        is_tagged=options.tag_output,
        timeout=options.timeout,
        ends_with_stdin=options.end_with_stdin,
        bindings=found,
        reports_bindings=options.report_bindings,
        output_dir=options.output_dir,
    )
    return run_programs([program] * (options.nranks or 1), manners, node)
