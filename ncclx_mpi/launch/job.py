"""A job on this host, or what of it is here: forks the ranks, passes on their output and signals, and sees them all to their end."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

from ncclx_mpi import process
from ncclx_mpi.bootstrap import handover, launcher, nursery
from ncclx_mpi.bootstrap.nodes import Nodes, Share
from ncclx_mpi.launch import rank as child
from ncclx_mpi.launch.failure import Failure
from ncclx_mpi.launch.guard import Guard, Nursery
from ncclx_mpi.launch.relay import CHANNEL, STDERR, STDOUT, LineRelay
from ncclx_mpi.launch.wakeup import QUESTION, signals_as_bytes
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.bootstrap.agent import Agent
    from ncclx_mpi.bootstrap.hosts import Hosts

Sink = Callable[[int, int, bytes], None]
GRACE_SECONDS = 5.0
_TERM_SECONDS = 2.0
_STACKS_SECONDS = 2.0
_HEED_SECONDS = 10.0
"""Time for ranks to end by themselves after the launcher got SIGTERM or SIGHUP, as long as `docker stop` grants."""
_RETRY_SECONDS = 0.5
_FULL_SECONDS = 0.02
_READ_BYTES = 1 << 16
_FILES_OF_RANK, _FILES_OF_LAUNCHER = 4, 64
_CALLER_BYTES = 64
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_TO_GROUP = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCONT}


class Settings(NamedTuple):
    """How a job is run.

    Attributes
    ----------
    nranks
        Number of ranks.
    timeout
        Seconds after which the job is ended, 0 for no limit.
    grace
        Seconds that the others get to raise and end by themselves, once a rank has failed.
    has_channels
        Give each rank a pipe for its result (:attr:`Job.channel` in the rank).
    stdin
        Descriptor that rank 0 reads, -1 for an empty one.
    lifeline
        Descriptor whose end of file ends the job: who wanted it has gone. A byte there is the number of a signal to the job, or
        :data:`ncclx_mpi.launch.wakeup.QUESTION`. -1 for none.
    on_timeout
        Called with the job when the time is up, before it is ended.
    on_question
        Called with the job when the question comes, after what the ranks wrote before it was passed on.
    topology
        The nodes that the ranks are on (:mod:`ncclx_mpi.bootstrap.topology`); empty: as this process's settings have it.
    hosts
        The hosts of the job, if there are several: then `nranks` are those of this one. The job closes their connections.
    cpus
        Processors that each rank of this host may run on; none: those of this process.
    nursery
        What a launcher does that a rank wants for processes that it starts; None: ranks start launchers themselves.
    """

    nranks: int
    timeout: float = 0.0
    grace: float = GRACE_SECONDS
    has_channels: bool = False
    stdin: int = -1
    lifeline: int = -1
    on_timeout: Callable[[Job], None] | None = None
    on_question: Callable[[Job], None] | None = None
    topology: str = ""
    hosts: Hosts | None = None
    cpus: Sequence[Set[int]] = ()
    nursery: Nursery | None = None


class Outcome:
    """How a job ended.

    Attributes
    ----------
    failures
        In the order in which they were noticed, but the cause of the others first.
    output_error
        Why what the ranks write cannot be passed on any more: nobody reads it, or the disk is full. It ends the job.
    cause
        Whose failure came before the job was aborted: most often why it was.
    """

    is_timed_out = False
    output_error: OSError | None = None
    abort_code: int | None = None
    cause: Failure | None = None
    interrupted_by = 0

    def __init__(self) -> None:
        self.failures: list[Failure] = []

    @property
    def status(self) -> int:
        """Exit status for the whole job."""
        if self.abort_code is not None:
            return self.abort_code
        if self.is_timed_out:
            return 124
        if self.output_error is not None:
            return 128 + signal.SIGPIPE if isinstance(self.output_error, BrokenPipeError) else 1
        if self.interrupted_by and self.failures:
            return 128 + self.interrupted_by
        return self.failures[0].status if self.failures else 0


class Job:
    """The ranks of one run.

    Parameters
    ----------
    settings
        How to run it.
    relay
        Passes on what the ranks write. While its readers lag behind, the ranks are not read.
    sink
        Gets ``(rank, stream, data)`` for all that ranks write, empty data at the end of a stream; by default `relay` does.
    """

    def __init__(self, settings: Settings, relay: LineRelay, sink: Sink | None = None) -> None:
        self.settings = settings
        self.outcome = Outcome()
        self.nodes = _nodes(settings)
        self.channel = -1
        self.pids: dict[int, int] = {}
        self._living: dict[int, int] = {}
        self._relay = relay
        self._sink: Sink = sink or relay
        self._flush: Callable[[], bool] = relay.flush
        self._token = os.urandom(16).hex()
        self._name = f"ncclx_mpi-job-{os.getpid()}-{os.urandom(6).hex()}"
        self._server = handover.listen("\0" + self._name, settings.nranks)
        self._pipes: dict[int, tuple[int, int]] = {}
        self._wake_read, self._wake_write = socket.socketpair()
        self.deadline = time.monotonic() + settings.timeout if settings.timeout > 0 else float("inf")
        self._ladder: list[tuple[float, int]] = []
        self._is_ending = False
        self._is_given_up = False
        self._guests: dict[int, tuple[int, int]] = {}
        self._unwatched: list[tuple[int, int]] = []
        self._held_back: set[int] = set()
        self._paused: set[int] = set()
        self._guard: Guard
        self._file_limit = _raise_file_limit(settings.nranks)
        self._agent = self._new_agent()

    def _new_agent(self) -> Agent | None:
        """What speaks with other hosts, if there are any."""
        hosts = self.settings.hosts
        if hosts is None:
            return None
        from ncclx_mpi.bootstrap.agent import Agent

        return Agent(hosts, self.nodes.arenas[0], self._name, self._token, self)

    # -- start ---------------------------------------------------------------------------------------------------

    def fork_ranks(self) -> int | None:
        """Fork all ranks. Returns twice, like fork: the rank in each child, None in the launcher.

        Raises
        ------
        OSError
            The system does not allow that many processes; those that were forked have ended.
        """
        try:
            self._guard = Guard(self.settings.nursery, self._file_limit)
        except OSError as error:
            self._close()
            raise _too_many(error, "the process that watches over them") from error
        for rank in self.nodes.ranks:
            try:
                is_child = self._fork_rank(rank)
            except OSError as error:
                self._take_back()
                raise _too_many(error, f"rank {rank}") from error
            if is_child:
                return rank
        return None

    def _take_back(self) -> None:
        """End the ranks that were forked, as not all could be."""
        for pid in self._living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._guard.end()
        self._close()

    def _fork_rank(self, rank: int) -> bool:
        """Fork one rank; True in the child."""
        streams = [STDOUT, STDERR, CHANNEL] if self.settings.has_channels else [STDOUT, STDERR]
        pipes = {stream: os.pipe2(os.O_CLOEXEC) for stream in streams}
        parent = os.getpid()
        try:
            pid = process.fork()
        except OSError:
            for fd in itertools.chain(*pipes.values()):
                os.close(fd)
            raise
        if pid == 0:
            self._enter(rank, parent, {stream: ends[1] for stream, ends in pipes.items()})
            return True
        with contextlib.suppress(OSError):
            os.setpgid(pid, self._guard.group)
        self.pids[rank] = pid
        self._living[pid] = rank
        for stream, (reader, writer) in pipes.items():
            os.close(writer)
            self._pipes[reader] = (rank, stream)
        return False

    def _enter(self, rank: int, parent: int, ends: dict[int, int]) -> None:
        """Turn the forked child into a rank."""
        process.end_with_parent(parent)
        with contextlib.suppress(OSError):
            os.setpgid(0, self._guard.group)
        process.reset_signals(())
        resource.setrlimit(resource.RLIMIT_NOFILE, self._file_limit)
        self._close_launcher_side()
        if self.settings.cpus:
            os.sched_setaffinity(0, self.settings.cpus[rank - self.nodes.ranks[0]])
        stdin = self.settings.stdin if rank == 0 and self.settings.stdin >= 0 else os.open(os.devnull, os.O_RDONLY)
        child.take_streams(stdin, ends[STDOUT], ends[STDERR])
        self.channel = ends.get(CHANNEL, -1)
        if self._guard.requests is not None:
            nursery.inherit(self._guard.requests)
        job = f"{self._name}:{self._token}"
        os.environ.update(launcher.variables(rank, self.nodes.size, rank - self.nodes.ranks[0], job))
        launcher.inherit(rank, self.nodes, launcher.directory(job) if self._agent else None)
        child.forget_the_fork()
        child.print_stacks_on_signal()

    def _close_launcher_side(self) -> None:
        self._guard.close_in_child()
        if self._agent is not None:
            self._agent.close_in_child()
        self._server.close()
        self._wake_read.close()
        self._wake_write.close()
        for reader in self._pipes:
            os.close(reader)
        if self.settings.lifeline >= 0:
            os.close(self.settings.lifeline)

    # -- supervision ---------------------------------------------------------------------------------------------

    def supervise(self) -> Outcome:
        """Serve the ranks until all have ended, on other hosts, too."""
        signals = signals_as_bytes(self._wake_read, self._wake_write, (*process.FORWARDED, signal.SIGTSTP, signal.SIGCHLD))
        with selectors.DefaultSelector() as selector, signals:
            self._register(selector)
            self._reap()
            while self._living:
                self._hold_back(selector)
                self._serve(selector, self._pause())
                self._watch_guests(selector)
                self._climb()
            self._guard.end()
            self._drain(selector)
            self._see_other_hosts_end(selector)
        self._put_cause_first()
        self._close()
        return self.outcome

    def _see_other_hosts_end(self, selector: selectors.BaseSelector) -> None:
        """How a job ended is known when all hosts are done; a second signal, or the end of the time, waits no longer."""
        if self._agent is None:
            return
        self._agent.done()
        while not self._agent.is_alone and not self._is_given_up and time.monotonic() < self.deadline:
            self._serve(selector, self._pause())
            self._agent.beat()
        self._agent.close()

    def _register(self, selector: selectors.BaseSelector) -> None:
        for reader in self._pipes:
            os.set_blocking(reader, False)
            selector.register(reader, selectors.EVENT_READ, self._read)
        self._server.setblocking(False)
        selector.register(self._server, selectors.EVENT_READ, self._welcome)
        selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        if self.settings.lifeline >= 0:
            selector.register(self.settings.lifeline, selectors.EVENT_READ, self._caller_speaks)
        if self._agent is not None:
            self._agent.register(selector)

    def _hold_back(self, selector: selectors.BaseSelector) -> None:
        """Read no more of streams whose readers lag behind, and again of those that do not: ranks wait, and not this process."""
        is_passed_on = self.outcome.output_error is None
        full = {stream for stream in (STDOUT, STDERR) if is_passed_on and self._relay.is_full(stream)}
        if full == self._held_back:
            return
        for reader, (_, stream) in self._pipes.items():
            if stream in full - self._held_back and reader in selector.get_map():
                selector.unregister(reader)
                self._paused.add(reader)
            elif stream in self._held_back - full and reader in self._paused:
                selector.register(reader, selectors.EVENT_READ, self._read)
                self._paused.discard(reader)
        self._held_back = full

    def _serve(self, selector: selectors.BaseSelector, seconds: float | None) -> None:
        for key, _ in selector.select(seconds):
            key.data(selector, key.fd)

    def _pause(self) -> float | None:
        """How long nothing is due."""
        now = time.monotonic()
        dues = [now + _RETRY_SECONDS] if self._unwatched else []
        try:
            if self._flush():
                dues.append(now + (_FULL_SECONDS if self._held_back else 0.1))
        except OSError as error:
            self._output_failed(error)
        if self._agent is not None:
            dues.append(self._agent.due)
        due = min([self.deadline, *dues, *(when for when, _ in self._ladder)])
        return None if due == float("inf") else max(0.0, due - time.monotonic())

    def _read(self, selector: selectors.BaseSelector, fd: int) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            selector.unregister(fd)
        self._pass_on(*self._pipes[fd], data)

    def _pass_on(self, rank: int, stream: int, data: bytes) -> None:
        try:
            self._sink(rank, stream, data)
        except OSError as error:
            self._output_failed(error)

    def _tell(self, what: Callable[[Job], None] | None) -> None:
        """Call what says something about the job, if there is anything."""
        if what is not None:
            try:
                what(self)
            except OSError as error:
                self._output_failed(error)

    def _output_failed(self, error: OSError) -> None:
        self._sink, self._flush = lambda *_: None, lambda: False
        self.outcome.output_error = error
        self._end(grace=0.0)

    def _woken(self, selector: selectors.BaseSelector, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            numbers = self._wake_read.recv(4096)
            for number in numbers:
                if number != signal.SIGCHLD:
                    self._signalled(number)
        self._reap()

    def _signalled(self, number: int) -> None:
        """A signal to this launcher is meant for all ranks of the job; to stop and continue is this host's matter."""
        if number == signal.SIGTSTP:
            return self._stop()
        if self._agent is not None and number != signal.SIGCONT:
            self._agent.signal(number)
        self._forward(number)
        return None

    def _forward(self, number: int) -> None:
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._interrupted(number)
        if number in _TO_GROUP:
            self._guard.signal(number)
            return
        for pid in self._living:
            os.kill(pid, number)

    def _interrupted(self, number: int) -> None:
        """Ctrl-C is the user's, who may press it again. What others send is to end the job: ranks that do not heed it are killed."""
        is_second = number == self.outcome.interrupted_by if number == signal.SIGINT else self.outcome.interrupted_by in _ENDING
        self.outcome.interrupted_by = number
        if is_second:
            self._guard.signal(signal.SIGKILL)
            self._is_given_up = not self._living
        elif number in _ENDING:
            self._ladder = sorted([*self._ladder, (time.monotonic() + _HEED_SECONDS, signal.SIGKILL)])

    def _stop(self) -> None:
        """Ctrl-Z: stop the ranks, then ourselves; continue together."""
        for pid in self._living:
            os.kill(pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._guard.signal(signal.SIGCONT)

    def _caller_speaks(self, selector: selectors.BaseSelector, fd: int) -> None:
        """Who wanted this job passes on signals, or has gone."""
        try:
            numbers = os.read(fd, _CALLER_BYTES)
        except BlockingIOError:
            return
        except OSError:
            numbers = b""
        for number in numbers:
            if number != QUESTION:
                self._signalled(number)
            else:
                self._tell(self.settings.on_question)
        if not numbers:
            selector.unregister(fd)
            self.outcome.interrupted_by = signal.SIGHUP
            self._guard.signal(signal.SIGKILL)
            self._is_given_up = True

    # -- other hosts -----------------------------------------------------------------------------------------------

    def failed_elsewhere(self, rank: int, pid: int, code: int, host: str) -> None:
        """A rank of another host did not succeed."""
        self._failed(Failure(rank, pid, code, f"on {host}"), self.outcome.abort_code is None)

    def host_lost(self, rank: int, story: str) -> None:
        """A host is lost with its ranks, of which `rank` is the first one."""
        self._failed(Failure(rank, 0, 1, story=story), self.outcome.abort_code is None)

    def aborted_elsewhere(self, code: int) -> None:
        """A rank of another host has ended the job."""
        if self.outcome.abort_code is None:
            self.outcome.abort_code = code
            self._guard.signal(signal.SIGKILL)

    def signalled_elsewhere(self, number: int) -> None:
        """The job got a signal on another host."""
        self._forward(number)

    # -- ranks -----------------------------------------------------------------------------------------------------

    def _welcome(self, selector: selectors.BaseSelector, fd: int) -> None:
        """A process behind a started program asks for the arena: it is watched from now on."""
        try:
            connection, _ = self._server.accept()
        except OSError:  # nobody, or no descriptor to serve him with: he is still there in the next round
            return
        pid = handover.peer_of(connection)[0]
        rank = handover.answer(connection, self._token, self.nodes.size, self.nodes.fds_of)
        if rank is not None and pid != self.pids[rank]:
            self._unwatched.append((pid, rank))

    def _watch_guests(self, selector: selectors.BaseSelector) -> None:
        """Watch over the guests that are not watched yet; where descriptors have run out, that is tried again."""
        for pid, rank in self._unwatched[:]:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                self._guest_died(pid, rank)
            except OSError:
                continue
            else:
                self._guests[fd] = (pid, rank)
                selector.register(fd, selectors.EVENT_READ, self._guest_ended)
            self._unwatched.remove((pid, rank))

    def _guest_ended(self, selector: selectors.BaseSelector, fd: int) -> None:
        selector.unregister(fd)
        os.close(fd)
        self._guest_died(*self._guests.pop(fd))

    def _guest_died(self, pid: int, rank: int) -> None:
        if self.nodes.control_word(rank, "pid") == pid:
            self.nodes.ended(rank)
            if self._agent is not None:
                self._agent.ended(rank, pid, 0)

    def _reap(self) -> None:
        for pid in list(self._living):
            try:
                found, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                found, status = pid, 0
            if found:
                self._ended(self._living.pop(pid), pid, os.waitstatus_to_exitcode(status))

    def _ended(self, rank: int, pid: int, code: int) -> None:
        """One rank has ended: who waits for it must learn so, and a failure ends the job."""
        if code or self.nodes.control_word(rank, "pid"):
            self.nodes.ended(rank)
        # of an abort: unless it was killed for that, or did it
        may_be_cause = self.outcome.abort_code is None and (code < 0 or self.nodes.abort_code is None)
        if self.nodes.abort_code is not None and self.outcome.abort_code is None:
            self.outcome.abort_code = self.nodes.abort_code
            self._guard.signal(signal.SIGKILL)
            if self._agent is not None:
                self._agent.abort(self.outcome.abort_code)
        if self._agent is not None:
            self._agent.ended(rank, pid, code)
        if code:
            self._failed(Failure(rank, pid, code), may_be_cause)

    def _failed(self, failure: Failure, may_be_cause: bool) -> None:
        """One that did not succeed ends the job."""
        self.outcome.failures.append(failure)
        if may_be_cause and self.outcome.cause is None:
            self.outcome.cause = failure
        self._end(self.settings.grace)

    def _end(self, grace: float) -> None:
        """From now on the ranks have `grace` seconds to end by themselves; the first call counts."""
        if not self._is_ending:
            self._is_ending = True
            now = time.monotonic()
            steps = [(now + grace, signal.SIGTERM), (now + grace + _TERM_SECONDS, signal.SIGKILL)]
            self._ladder = sorted([*self._ladder, *steps])

    def _climb(self) -> None:
        """Do what is due: end a job whose time is up, or that does not end by itself after a failure."""
        if self._agent is not None:
            self._agent.beat()
        now = time.monotonic()
        if now >= self.deadline and self._living:
            self.deadline = float("inf")
            self._time_is_up(now)
        if self._ladder and self._ladder[0][0] <= now and self._is_survived:
            self._ladder, self._is_ending = [], False
        while self._ladder and self._ladder[0][0] <= now:
            self._guard.signal(self._ladder.pop(0)[1])

    @property
    def _is_survived(self) -> bool:
        """Whether it is only failures of ranks that would end the job, and the others have said that they go on without those."""
        outcome = self.outcome
        is_for_failures = not (
            outcome.interrupted_by or outcome.is_timed_out or outcome.output_error or outcome.abort_code is not None
        )
        return is_for_failures and 0 < len(outcome.failures) <= self.nodes.acknowledged

    def _time_is_up(self, now: float) -> None:
        self.outcome.is_timed_out = True
        self._tell(self.settings.on_timeout)
        for pid in self._living:
            os.kill(pid, process.STACKS_SIGNAL)
        self._is_ending = True
        self._ladder = [(now + _STACKS_SECONDS, signal.SIGKILL)]

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """Pass on what is left in the pipes; what another session holds open is not waited for."""
        for reader in self._paused:
            selector.register(reader, selectors.EVENT_READ, self._read)
        while True:
            ready = [key for key, _ in selector.select(0) if key.fd in self._pipes]
            if not ready:
                return
            for key in ready:
                key.data(selector, key.fd)

    def _put_cause_first(self) -> None:
        """A failing rank says so before it exits, and others may fail of it and exit earlier: the arena knows who was first."""
        first = self.nodes.first_dead
        self.outcome.failures.sort(key=lambda failure: failure.rank != first)

    def _close(self) -> None:
        for fd in [*self._pipes, *self._guests]:
            os.close(fd)
        self._pipes.clear()
        self._server.close()
        self._wake_read.close()
        self._wake_write.close()
        if self._agent is not None:
            self._agent.close_in_child()
        self.nodes.close()


def _nodes(settings: Settings) -> Nodes:
    hosts = settings.hosts
    if hosts is None:
        return Nodes(settings.nranks, settings.topology)
    return Nodes(hosts.size, share=Share(hosts.ranks_of(hosts.node), hosts.job, hosts.machine_size))


def _too_many(error: OSError, what: str) -> OSError:
    """Say what could not be started, and which limit may be at fault."""
    limits = {
        errno.EAGAIN: "the limit of processes is too low (`ulimit -u`, or that of the container or batch job: pids.max)",
        errno.EMFILE: "the limit of open files is too low (`ulimit -n`)",
        errno.ENOMEM: "there is not enough memory",
    }
    return OSError(f"{what} cannot be forked ({error.strerror}); {limits.get(error.errno or 0, 'see the system log')}")


def _raise_file_limit(nranks: int) -> tuple[int, int]:
    """Allow this process the pipes of so many ranks; returns the limits that were.

    Raises
    ------
    ValueError
        The system does not allow that many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_OF_RANK * nranks + _FILES_OF_LAUNCHER
    if 0 <= hard < wanted:
        raise ValueError(f"that takes {wanted} open files, and {hard} are allowed; raise the hard limit (`ulimit -Hn`)")
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft, hard
