"""One job on this node: forks the ranks, passes on their output and signals, and sees them all to their end."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ncclx_mpi.bootstrap import launcher, store
from ncclx_mpi.launch import process
from ncclx_mpi.launch import rank as child
from ncclx_mpi.launch.failure import Failure
from ncclx_mpi.launch.guard import Guard
from ncclx_mpi.launch.relay import CHANNEL, STDERR, STDOUT
from transports.shm.arena import Arena
from transports.shm.layout import FINALIZED, HEADER

Sink = Callable[[int, int, bytes], None]
GRACE_SECONDS = 5.0
_TERM_SECONDS = 2.0
_STACKS_SECONDS = 2.0
_READ_BYTES = 1 << 16
_FILES_OF_RANK, _FILES_OF_LAUNCHER = 3, 64
_TO_GROUP = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCONT}


@dataclass
class Settings:
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
        Descriptor whose end of file ends the job: the client of a server has gone. -1 for none.
    on_timeout
        Called with the job when the time is up, before it is ended.
    """

    nranks: int
    timeout: float = 0.0
    grace: float = GRACE_SECONDS
    has_channels: bool = False
    stdin: int = -1
    lifeline: int = -1
    on_timeout: Callable[[Job], None] | None = None


@dataclass
class Outcome:
    """How a job ended.

    Attributes
    ----------
    failures
        In the order in which they were noticed, but the cause of the others first.
    output_error
        Why what the ranks write cannot be passed on any more: nobody reads it, or the disk is full. It ends the job.
    """

    failures: list[Failure] = field(default_factory=list)
    is_timed_out: bool = False
    output_error: OSError | None = None
    abort_code: int | None = None
    interrupted_by: int = 0

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
    sink
        Gets ``(rank, stream, data)`` for all that ranks write; empty data at the end of a stream.
    flush
        Called every 0.1 s while the sink holds unfinished lines back; returns whether it still does.
    """

    def __init__(self, settings: Settings, sink: Sink, flush: Callable[[], bool] = lambda: False) -> None:
        self.settings = settings
        self.outcome = Outcome()
        self.arena = Arena.create(settings.nranks)
        self.channel = -1
        self.pids: dict[int, int] = {}
        self._living: dict[int, int] = {}
        self._sink, self._flush = sink, flush
        self._token = secrets.token_hex(16)
        self._name = f"ncclx_mpi-job-{os.getpid()}-{secrets.token_hex(6)}"
        self._server = store.listen("\0" + self._name, settings.nranks)
        self._pipes: dict[int, tuple[int, int]] = {}
        self._wake_read, self._wake_write = socket.socketpair()
        self._deadline = time.monotonic() + settings.timeout if settings.timeout > 0 else float("inf")
        self._ladder: list[tuple[float, int]] = []
        self._is_ending = False
        self._guests: dict[int, tuple[int, int]] = {}
        self._guard: Guard
        self._file_limit = _raise_file_limit(settings.nranks)

    # -- start ---------------------------------------------------------------------------------------------------

    def fork_ranks(self) -> int | None:
        """Fork all ranks. Returns twice, like fork: the rank in each child, None in the launcher."""
        self._guard = Guard()
        for rank in range(self.settings.nranks):
            if self._fork_rank(rank):
                return rank
        return None

    def _fork_rank(self, rank: int) -> bool:
        """Fork one rank; True in the child."""
        streams = [STDOUT, STDERR, CHANNEL] if self.settings.has_channels else [STDOUT, STDERR]
        pipes = {stream: os.pipe2(os.O_CLOEXEC) for stream in streams}
        parent = os.getpid()
        pid = process.fork()
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
        stdin = self.settings.stdin if rank == 0 and self.settings.stdin >= 0 else os.open(os.devnull, os.O_RDONLY)
        child.take_streams(stdin, ends[STDOUT], ends[STDERR])
        self.channel = ends.get(CHANNEL, -1)
        os.environ.update(launcher.variables(rank, self.settings.nranks, f"{self._name}:{self._token}"))
        launcher.inherit(rank, self.arena)
        child.forget_the_fork()
        child.print_stacks_on_signal()

    def _close_launcher_side(self) -> None:
        self._guard.close_in_child()
        self._server.close()
        self._wake_read.close()
        self._wake_write.close()
        for reader in self._pipes:
            os.close(reader)
        if self.settings.lifeline >= 0:
            os.close(self.settings.lifeline)

    # -- supervision ---------------------------------------------------------------------------------------------

    def supervise(self) -> Outcome:
        """Serve the ranks until all have ended."""
        with selectors.DefaultSelector() as selector, self._signals():
            self._register(selector)
            self._reap()
            while self._living:
                self._serve(selector, self._pause())
                self._climb()
            self._guard.end()
            self._drain(selector)
        self._put_cause_first()
        self._close()
        return self.outcome

    def _register(self, selector: selectors.BaseSelector) -> None:
        for reader in self._pipes:
            os.set_blocking(reader, False)
            selector.register(reader, selectors.EVENT_READ, self._read)
        self._server.setblocking(False)
        selector.register(self._server, selectors.EVENT_READ, self._welcome)
        selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        if self.settings.lifeline >= 0:
            selector.register(self.settings.lifeline, selectors.EVENT_READ, self._client_gone)

    def _serve(self, selector: selectors.BaseSelector, seconds: float | None) -> None:
        for key, _ in selector.select(seconds):
            key.data(selector, key.fd)

    def _pause(self) -> float | None:
        """How long nothing is due."""
        due = min([self._deadline, *(when for when, _ in self._ladder)])
        try:
            if self._flush():
                due = min(due, time.monotonic() + 0.1)
        except OSError as error:
            self._output_failed(error)
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

    def _output_failed(self, error: OSError) -> None:
        self._sink, self._flush = lambda *_: None, lambda: False
        self.outcome.output_error = error
        self._end(grace=0.0)

    def _woken(self, selector: selectors.BaseSelector, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            numbers = self._wake_read.recv(4096)
            for number in numbers:
                if number != signal.SIGCHLD:
                    self._forward(number)
        self._reap()

    def _forward(self, number: int) -> None:
        if number == signal.SIGTSTP:
            return self._stop()
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if self.outcome.interrupted_by == number == signal.SIGINT:
                self._guard.signal(signal.SIGKILL)
            self.outcome.interrupted_by = number
        if number in _TO_GROUP:
            self._guard.signal(number)
            return None
        for pid in self._living:
            os.kill(pid, number)
        return None

    def _stop(self) -> None:
        """Ctrl-Z: stop the ranks, then ourselves; continue together."""
        for pid in self._living:
            os.kill(pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._guard.signal(signal.SIGCONT)

    def _client_gone(self, selector: selectors.BaseSelector, fd: int) -> None:
        selector.unregister(fd)
        self.outcome.interrupted_by = signal.SIGHUP
        self._guard.signal(signal.SIGKILL)

    def _welcome(self, selector: selectors.BaseSelector, fd: int) -> None:
        """A process behind a started program asks for the arena: it is watched from now on."""
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._server.accept()
            pid = store.peer_of(connection)[0]
            rank = store.answer(connection, self._token, self.settings.nranks, self.arena.fd)
            if rank is not None and pid != self.pids[rank]:
                self._watch_guest(selector, pid, rank)

    def _watch_guest(self, selector: selectors.BaseSelector, pid: int, rank: int) -> None:
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            self._guests[fd] = (pid, rank)
            selector.register(fd, selectors.EVENT_READ, self._guest_ended)

    def _guest_ended(self, selector: selectors.BaseSelector, fd: int) -> None:
        selector.unregister(fd)
        os.close(fd)
        pid, rank = self._guests.pop(fd)
        if self.arena.control_word(rank, "pid") == pid and self.arena.state(rank) != FINALIZED:
            self.arena.declare_dead(rank, "its process ended")

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
        if code or self.arena.control_word(rank, "pid"):
            self.arena.declare_dead(rank, "its process ended")
        if self.arena.abort_code is not None and self.outcome.abort_code is None:
            self.outcome.abort_code = self.arena.abort_code
            self._guard.signal(signal.SIGKILL)
        if code:
            self.outcome.failures.append(Failure(rank, pid, code))
            self._end(self.settings.grace)

    def _end(self, grace: float) -> None:
        """From now on the ranks have `grace` seconds to end by themselves; the first call counts."""
        if not self._is_ending:
            self._is_ending = True
            now = time.monotonic()
            self._ladder = [(now + grace, signal.SIGTERM), (now + grace + _TERM_SECONDS, signal.SIGKILL)]

    def _climb(self) -> None:
        """Do what is due: end a job whose time is up, or that does not end by itself after a failure."""
        now = time.monotonic()
        if now >= self._deadline and self._living:
            self._deadline = float("inf")
            self._time_is_up(now)
        while self._ladder and self._ladder[0][0] <= now:
            self._guard.signal(self._ladder.pop(0)[1])

    def _time_is_up(self, now: float) -> None:
        self.outcome.is_timed_out = True
        if self.settings.on_timeout is not None:
            self.settings.on_timeout(self)
        for pid in self._living:
            os.kill(pid, process.STACKS_SIGNAL)
        self._is_ending = True
        self._ladder = [(now + _STACKS_SECONDS, signal.SIGKILL)]

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """Pass on what is left in the pipes; what another session holds open is not waited for."""
        while True:
            ready = [key for key, _ in selector.select(0) if key.fd in self._pipes]
            if not ready:
                return
            for key in ready:
                key.data(selector, key.fd)

    def _put_cause_first(self) -> None:
        """A failing rank says so before it exits, and others may fail of it and exit earlier: the arena knows who was first."""
        first = self.arena.word(HEADER.death) - 1
        self.outcome.failures.sort(key=lambda failure: failure.rank != first)

    def _close(self) -> None:
        for fd in [*self._pipes, *self._guests]:
            os.close(fd)
        self._pipes.clear()
        self._server.close()
        self._wake_read.close()
        self._wake_write.close()
        self.arena.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals become bytes in a socket, so that the loop sees them in order with everything else."""
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        old_fd = signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        old: dict[int, Any] = {}
        numbers: tuple[int, ...] = (*process.FORWARDED, signal.SIGTSTP, signal.SIGCHLD)
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                old[number] = signal.signal(number, lambda *_: None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)


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
