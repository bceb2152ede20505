"""Runs a program on the ranks of this host for the command line: those of the whole job, or of one of its nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncclx_mpi import late, process
from ncclx_mpi.bootstrap import launcher
from ncclx_mpi.bootstrap.handover import join_timeout
from ncclx_mpi.bootstrap.patience import Gone, Patience
from ncclx_mpi.launch import program as programs
from ncclx_mpi.launch.binding import THREADS, Binding
from ncclx_mpi.launch.failure import Failure, signal_name
from ncclx_mpi.launch.job import Job, Outcome, Settings
from ncclx_mpi.launch.ready import make_ready
from ncclx_mpi.launch.relay import LineRelay
from ncclx_mpi.locality.cpu_lists import ranges
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.bootstrap.hosts import Hosts
    from ncclx_mpi.launch import files as outputs
    from ncclx_mpi.launch.files import RankFiles
    from ncclx_mpi.observe import describe
else:
    describe, outputs = late.module("ncclx_mpi.observe.describe"), late.module("ncclx_mpi.launch.files")

_READER_SECONDS = 4.0
"""What nobody has taken so long after a job that did not go well is dropped."""


class Node(NamedTuple):
    """The place of this host in a job on several.

    Attributes
    ----------
    rendezvous
        Where the hosts meet: ``host`` or ``host:port`` of node 0.
    number, nnodes
        Which node this is, of how many.
    token
        What the hosts know each other by.
    """

    rendezvous: str
    number: int
    nnodes: int
    token: bytes


class Manners(NamedTuple):
    """How a program is run.

    Attributes
    ----------
    is_tagged
        Begin each line of output with the rank.
    timeout
        Seconds after which the job is ended, 0 for no limit.
    ends_with_stdin
        Standard input is no input of the program: its end ends the job, and a byte in it is a signal.
    bindings
        Of each rank of this host; none: as this process is bound.
    reports_bindings
        Print them.
    output_dir
        Folder for a file of each rank's output, which is not printed then; empty: none.
    """

    is_tagged: bool = False
    timeout: float = 0.0
    ends_with_stdin: bool = False
    bindings: Sequence[Binding] = ()
    reports_bindings: bool = False
    output_dir: str = ""


def run_programs(
    programs_of_ranks: Sequence[programs.Program], manners: Manners, node: Node | None = None, lifeline: int = -1
) -> int:
    """Fork the ranks and see them to their end. Returns the exit status of the job; never returns in a rank.

    Parameters
    ----------
    programs_of_ranks
        What each rank here runs.
    manners
        How.
    node
        Where the job is on several hosts: which of them this is.
    lifeline
        Descriptor whose end ends the job, as standard input does where `manners` say so; the program has no input then. -1 for none.
    """
    nranks = len(programs_of_ranks)
    if any(program.is_python for program in programs_of_ranks):
        programs_of_ranks = _prepare(programs_of_ranks, spans_hosts=node is not None)
    if manners.ends_with_stdin:
        lifeline = 0
    try:
        hosts = _meet(node, nranks, lifeline)
    except Gone:
        return 128 + signal.SIGHUP
    except (ValueError, RuntimeError, OSError) as error:
        print(f"ncclx run: {error}", file=sys.stderr)
        return 2
    relay = LineRelay(manners.is_tagged)
    stdin, feed = (-1, -1) if lifeline >= 0 else _stdin_for_rank_0()
    last_module = next(reversed(sys.modules))
    try:
        files = _files(manners.output_dir, nranks, hosts)
        job = Job(_settings(nranks, manners, relay, stdin, hosts, lifeline), relay, files)
        rank = job.fork_ranks()
    except (ValueError, OSError) as error:
        print(f"ncclx run: {nranks} ranks cannot be started: {error}", file=sys.stderr)
        return 2
    if rank is not None:
        if feed >= 0:
            os.close(feed)
        _be_rank(programs_of_ranks[rank - job.nodes.ranks[0]], last_module)
    if feed >= 0:
        os.close(stdin)
        _start_feeding(feed)
    if manners.reports_bindings:
        _report(job.nodes.ranks, manners.bindings, relay)
    outcome = job.supervise()
    try:
        return _take_leave(job, relay, files, outcome)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _meet(node: Node | None, nranks: int, lifeline: int) -> Hosts | None:
    """Meet the other hosts, if there are any."""
    if node is None:
        return None
    from ncclx_mpi.bootstrap import hosts

    patience = Patience(join_timeout(), lifeline)
    return hosts.meet(node.rendezvous, node.number, node.nnodes, nranks, node.token, patience)


def _files(folder: str, nranks: int, hosts: Hosts | None) -> RankFiles | None:
    """Where ranks write, if not here."""
    if not folder:
        return None
    ranks, size = (range(nranks), nranks) if hosts is None else (hosts.ranks_of(hosts.node), hosts.size)
    return outputs.RankFiles(folder, ranks, size)


def _report(ranks: Sequence[int], found: Sequence[Binding], relay: LineRelay) -> None:
    """Say where each rank may run."""
    own = f"may run on processors {ranges(frozenset(os.sched_getaffinity(0)))}"
    for local_rank, rank in enumerate(ranks):
        where = f"is bound to {found[local_rank]}" if found else own
        with contextlib.suppress(OSError):  # nobody reads it: that is noticed when a rank writes
            relay.say(f"ncclx run: rank {rank} on {socket.gethostname()} {where}, {THREADS}={os.environ.get(THREADS, '')}")


def _take_leave(job: Job, relay: LineRelay, files: RankFiles | None, outcome: Outcome) -> int:
    """Pass on what is left, and say how the job ended. Returns its exit status.

    Who reads the output of a job that went well may take his time, up to --timeout. One that did not is not kept by a reader that has gone.
    """
    try:
        if files is not None:
            files.close()
        relay.flush(everything=True)
        if not relay.finish(_READER_SECONDS if outcome.status else None, job.deadline) and not outcome.status:
            outcome.is_timed_out = True
        relay.check()
    except OSError as error:
        outcome.output_error = outcome.output_error or error
    with contextlib.suppress(OSError):
        _explain(outcome, relay)
        relay.finish(_READER_SECONDS)
    return outcome.status


def _prepare(programs_of_ranks: Sequence[programs.Program], spans_hosts: bool) -> Sequence[programs.Program]:
    """Do once what all ranks would do, and read the program from standard input if it is there."""
    first = programs_of_ranks[0]
    if first.kind == programs.STDIN:
        programs_of_ranks = [programs.Program(programs.STDIN, sys.stdin.read(), first.args)] * len(programs_of_ranks)
    distinct = {id(program): program for program in programs_of_ranks}.values()
    also = frozenset[str]().union(*(program.may_import for program in distinct))
    make_ready(len(programs_of_ranks), spans_hosts, also)
    return programs_of_ranks


def _settings(nranks: int, manners: Manners, relay: LineRelay, stdin: int, hosts: Hosts | None, lifeline: int) -> Settings:
    timeout, cpus = manners.timeout, [binding.cpus for binding in manners.bindings]

    def on_timeout(job: Job) -> None:
        relay.flush(everything=True)
        relay.is_tagged = True
        relay.say(f"ncclx run: still running after {timeout:g} s (--timeout); the ranks are in")
        relay.say(f"{describe.describe(job.nodes.arenas)}\nand their Python stacks are")

    return Settings(
        nranks,
        timeout=timeout,
        stdin=stdin,
        lifeline=lifeline,
        on_timeout=on_timeout,
        hosts=hosts,
        cpus=cpus,
        nursery=_run_for_rank,
    )


def _run_for_rank(message: bytes, fds: list[int]) -> int:
    """Be the launcher of processes that a rank starts, in a process that was forked for that."""
    from ncclx_mpi.launch import spawned

    return spawned.run_forked(message, fds)


def _be_rank(program: programs.Program, last_module: str) -> None:
    if program.folder:
        os.chdir(program.folder)
    if program.number:
        os.environ[launcher.NUMBER] = str(program.number)
    if not program.is_python:
        _execute(program)
    status = programs.run(program)
    process.leave(status, last_module)


def _execute(program: programs.Program) -> None:
    """Become another program, with the signals that Python ignores for itself as the system has them."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program.target, [program.target, *program.args])
    except OSError as error:
        print(f"ncclx run: cannot start {program.target!r}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def _stdin_for_rank_0() -> tuple[int, int]:
    """Descriptor for rank 0: our own, or a pipe, whose other end is fed from the terminal (-1 if there is none to feed).

    The ranks are not in the terminal's foreground group, so they could not read from it themselves.
    """
    try:
        is_terminal = os.isatty(0)
        os.fstat(0)
    except OSError:
        return -1, -1
    return os.pipe2(os.O_CLOEXEC) if is_terminal else (0, -1)


def _start_feeding(writer: int) -> None:
    try:
        threading.Thread(target=_feed, args=(writer,), daemon=True).start()
    except RuntimeError:  # no more threads are allowed: rank 0 finds the end of its input
        os.close(writer)


def _feed(writer: int) -> None:
    with contextlib.suppress(OSError):
        while os.tcgetpgrp(0) == os.getpgrp() and (data := os.read(0, 4096)):
            os.write(writer, data)
    os.close(writer)


def _explain(outcome: Outcome, relay: LineRelay) -> None:
    """One line on stderr that says whose end it was, unless the user's own doing is plain to see."""
    if outcome.abort_code is not None:
        relay.say(f"ncclx run: {f'{outcome.cause}; then ' if outcome.cause else ''}aborted with code {outcome.abort_code}")
    elif outcome.interrupted_by:
        relay.say(f"ncclx run: ended by {signal_name(outcome.interrupted_by)}")
    elif outcome.output_error is not None:
        if not isinstance(outcome.output_error, BrokenPipeError):
            relay.say(f"ncclx run: what the ranks write cannot be passed on: {outcome.output_error.strerror}")
    elif outcome.failures and not outcome.is_timed_out:
        relay.say(f"ncclx run: {_story(outcome.failures)}")


def _story(failures: list[Failure]) -> str:
    others = len(failures) - 1
    return f"{failures[0]}" + (f"; {others} other rank{'s' if others > 1 else ''} failed after it" if others else "")
