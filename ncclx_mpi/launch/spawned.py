"""The launcher of processes that a running program starts: ``python -m ncclx_mpi.launch.spawned``, told on standard input what to run.

It is told, as JSON, the process that wants them, whose end ends them, and the programs: words, how many ranks run it, and in which folder.
Where the guard of a job can be asked (:mod:`ncclx_mpi.bootstrap.nursery`) it is forked instead, and told the same.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from typing import Any

from ncclx_mpi import process
from ncclx_mpi.bootstrap import launcher, nursery
from ncclx_mpi.launch.local import Manners, run_programs
from ncclx_mpi.launch.program import CODE, EXECUTABLE, MODULE, STDIN, Program, parse_any
from ncclx_mpi.launch.rank import take_streams
from transports.virtual import transport  # noqa: F401  (all ranks reach their parents by it: it is compiled and loaded before they are forked)

_USED_BY_ALL = ("ncclx_mpi.api.spawning", "ncclx_mpi.collectives.executor")
"""What ranks import to meet their parents: once for all of them."""
_FORMS = {MODULE: ["-m"], CODE: ["-c"], STDIN: ["-"]}


def main() -> int:
    """Start the ranks, and return the exit status of the job."""
    told: dict[str, Any] = json.load(sys.stdin.buffer)
    try:
        lifeline = os.pidfd_open(told["parent"])
    except ProcessLookupError:
        return 1
    if os.getppid() != told["parent"]:
        return 1
    return _run(told, lifeline)


def run_forked(message: bytes, fds: list[int]) -> int:
    """The same in a process that the guard of another job has forked: `fds` are the streams of who wants it, and where it is answered."""
    stdout, stderr, reply = fds
    told: dict[str, Any] = json.loads(message)
    with socket.socket(fileno=reply) as connection:
        try:
            lifeline = os.pidfd_open(told["parent"])
        except ProcessLookupError:
            return 1
        if not nursery.answer(connection):
            return 1
        os.register_at_fork(after_in_child=connection.close)  # it is this process's alone
        take_streams(0, stdout, stderr)  # the guard has no input
        os.close(stdout)
        os.close(stderr)
        os.environ[launcher.PARENT] = told["port"]
        os.umask(told["mask"])
        os.sched_setaffinity(0, told["processors"])
        status = _run(told, lifeline, told["folder"])
        nursery.report(connection, status)
        return status


def _run(told: dict[str, Any], lifeline: int, folder: str = os.curdir) -> int:
    if sys.path and sys.path[0] in (os.getcwd(), os.path.dirname(os.path.realpath(sys.argv[0]))):
        del sys.path[0]  # of `-m`, or of a script: the programs have folders of their own there
    os.chdir(folder)
    programs = []
    for number, part in enumerate(told["programs"]):
        programs += [_program(part["words"], part["folder"], number)] * part["count"]
    if any(program.is_python for program in programs):
        for name in (*_USED_BY_ALL, *told["also"]):
            importlib.import_module(name)
    return run_programs(programs, Manners(), lifeline=lifeline)


def _program(words: list[str], folder: str, number: int) -> Program:
    """What words mean to run; flags of the interpreter act when one begins, so it is started anew with those that it does not have."""
    program, flags = parse_any(words)
    if not all(map(_is_in_effect, flags)):
        target = [program.target] if program.kind != STDIN else []
        words = [*flags, "-m", "ncclx_mpi", *_FORMS.get(program.kind, []), *target, *program.args]
        program = Program(EXECUTABLE, sys.executable, words)
    return program._replace(folder=folder, number=number)


def _is_in_effect(flag: str) -> bool:
    """Whether this interpreter has a flag: pools of mpi4py pass on those of their owner, of which ``-R`` is the default."""
    if flag == "-R":
        return bool(sys.flags.hash_randomization)
    return flag in process.interpreter_flags()


if __name__ == "__main__":
    sys.exit(main())
