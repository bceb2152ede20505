"""``ncclx run --hosts``: starts the command of each host by a remote shell, and passes on what all of them write."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from ncclx_mpi.launch.failure import signal_name
from ncclx_mpi.launch.relay import STDERR, STDOUT, LineRelay
from ncclx_mpi.launch.remote import Order
from ncclx_mpi.launch.wakeup import signals_as_bytes

RSH, RSH_DEFAULT = "NCCLX_MPI_RSH", "ssh -o BatchMode=yes"
RSH_OF_SLURM = "srun --overlap --nodes=1 --ntasks=1 --mpi=none --cpu-bind=none --nodelist"
"""Inside an allocation: needs no keys, and what is started belongs to the job."""
_FORWARDED = ("NCCLX_MPI_", "MPI4PY_", "UCX_", "OMP_", "PYTHON")
_KEPT_BACK = ("NCCLX_MPI_RSH", "NCCLX_MPI_TOKEN", "NCCLX_MPI_JOB", "NCCLX_MPI_RANK", "NCCLX_MPI_SIZE", "NCCLX_MPI_LOCAL_RANK")
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_SHELL = (126, 127, 255)
_READ_BYTES = 1 << 16
_FULL_SECONDS, _READER_SECONDS = 0.02, 4.0
_AFTER_FAILURE_SECONDS, _AFTER_SIGNAL_SECONDS, _LAST_SECONDS = 12.0, 5.0, 5.0
"""Hosts end each other's ranks, within 7 s; what has not even met by these times is ended from here."""


@dataclass
class Place:
    """A host, and how many ranks it gets."""

    host: str
    nranks: int


def places(hosts: str, nranks: int | None = None) -> list[Place]:
    """What ``a:2,b:2`` means; with `nranks`, as many of these places are filled, host by host.

    Raises
    ------
    ValueError
        It is no list of hosts, or has too few places.
    """
    found = [_place(word) for word in filter(None, (word.strip() for word in hosts.split(",")))]
    names = [place.host for place in found]
    if not found:
        raise ValueError("--hosts names no host")
    if len(set(names)) < len(names):
        raise ValueError(f"--hosts {hosts}: a host is named twice; give it all its ranks at once, as in {names[0]}:2")
    return found if nranks is None else _filled(found, nranks)


def _filled(found: list[Place], nranks: int) -> list[Place]:
    room = sum(place.nranks for place in found)
    if nranks > room:
        raise ValueError(f"{nranks} ranks do not fit: the hosts take {room} (host:N takes N)")
    filled = []
    for place in found:
        filled.append(Place(place.host, min(place.nranks, nranks)))
        nranks -= filled[-1].nranks
    return [place for place in filled if place.nranks]


def _place(word: str) -> Place:
    host, colon, count = word.rpartition(":")
    if not colon or word.endswith("]"):
        host, count = word, "1"
    if not host or host.startswith("-") or not count.isdigit() or not int(count):
        raise ValueError(f"{word!r} is no host; a host is name, or name:N for N ranks")
    return Place(host, int(count))


def places_of_file(path: str, nranks: int | None = None) -> list[Place]:
    """What a file says that has a host in each line: ``name``, ``name:2`` or ``name slots=2``.

    Raises
    ------
    ValueError
        It cannot be read, or a line names no host.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError as error:
        raise ValueError(f"the hosts cannot be read from {path}: {error.strerror}") from None
    words = []
    for line in filter(None, lines):
        slots = [word.removeprefix("slots=") for word in line[1:] if word.startswith("slots=")]
        words.append(f"{line[0]}:{slots[0]}" if slots else line[0])
    return places(",".join(words), nranks)


@dataclass
class Command:
    """What all hosts run.

    Attributes
    ----------
    options
        Of ``ncclx run``, the same on all.
    words
        The program and its arguments.
    environ
        Variables to set besides those that are always passed on.
    rendezvous
        Where the hosts meet; empty: at the first one.
    rsh
        The remote shell: words that are followed by the name of a host and a command.
    """

    options: list[str]
    words: list[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    rendezvous: str = ""
    rsh: str = ""


def run_on(hosts: Sequence[Place], command: Command) -> int:
    """Run the command on all hosts. Returns the exit status of the job."""
    return _Job(hosts, command).run()


def remote_shell(environ: Mapping[str, str]) -> str:
    """The words before the name of a host that run a command there: as the user says, or Slurm's inside an allocation of it, or ssh."""
    is_in_allocation = "SLURM_JOB_ID" in environ and shutil.which("srun") is not None
    return environ.get(RSH, "") or (RSH_OF_SLURM if is_in_allocation else RSH_DEFAULT)


class _Host:
    """The remote shell of one host."""

    def __init__(self, place: Place, rsh: str, order: Order) -> None:
        self.place = place
        self.words = [*shlex.split(rsh), place.host, sys.executable, "-m", "ncclx_mpi.launch.remote"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
        self.say(order.pack())

    def say(self, data: bytes) -> None:
        """Write to the command's standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(data)

    def hang_up(self) -> None:
        """Have the host end its ranks: its input is at its end."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()


class _Job:
    """The remote shells of one job."""

    def __init__(self, hosts: Sequence[Place], command: Command) -> None:
        self._places = hosts
        self._command = command
        self._hosts: list[_Host] = []
        self._relay = LineRelay(False)
        self._open: dict[int, tuple[int, int, IO[bytes]]] = {}
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = socket.socketpair()
        self._status = 0
        self._interrupted_by = 0
        self._hang_up_at = self._kill_at = float("inf")

    def run(self) -> int:
        """See all of them to their end."""
        with (
            self._selector,
            self._reader,
            self._writer,
            signals_as_bytes(self._reader, self._writer, (*_PASSED_ON, signal.SIGCHLD)),
        ):
            self._selector.register(self._reader, selectors.EVENT_READ)
            try:
                self._start()
                while self._open or any(host.process.returncode is None for host in self._hosts):
                    self._turn()
                self._relay.flush(everything=True)
                self._relay.finish(None if not self._status else _READER_SECONDS)
                self._relay.check()
            except OSError as error:  # nobody reads what the hosts write, or a shell cannot be started
                return self._give_up(error)
            finally:
                for host in self._hosts:
                    host.hang_up()
        return 128 + self._interrupted_by if self._interrupted_by and self._status else self._status

    def _start(self) -> None:
        token = secrets.token_hex(32)
        for node, place in enumerate(self._places):
            host = _Host(place, self._command.rsh or remote_shell(os.environ), self._order(node, place, token))
            self._hosts.append(host)
            for stream, file in ((STDOUT, host.process.stdout), (STDERR, host.process.stderr)):
                assert file is not None
                os.set_blocking(file.fileno(), False)
                self._open[file.fileno()] = (node, stream, file)
                self._selector.register(file, selectors.EVENT_READ)

    def _order(self, node: int, place: Place, token: str) -> Order:
        forwarded = {name: value for name, value in os.environ.items() if name.startswith(_FORWARDED) and name not in _KEPT_BACK}
        rendezvous = self._command.rendezvous or self._places[0].host.rpartition("@")[2]
        words = ["--nnodes", str(len(self._places)), "--node-rank", str(node), "--rendezvous", rendezvous, "-n", str(place.nranks)]
        words += ["--end-with-stdin", *self._command.options, "--", *self._command.words]
        return Order(os.getcwd(), {**forwarded, **self._command.environ}, token, words)

    def _turn(self) -> None:
        is_full = self._relay.is_full(STDOUT) or self._relay.is_full(STDERR)
        is_pending = self._relay.flush()
        now = time.monotonic()
        due = min(self._hang_up_at, self._kill_at, now + 0.1 if is_pending else float("inf"))
        ready = self._selector.select(None if due == float("inf") else max(0.0, due - now))
        for key, _ in ready:
            if key.fd in self._open and not is_full:
                self._read(key.fd)
            elif key.fd == self._reader.fileno():
                self._woken()
        if is_full:
            time.sleep(_FULL_SECONDS)
        self._reap()
        self._climb()

    def _read(self, fd: int) -> None:
        node, stream, file = self._open[fd]
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        self._relay(node, stream, data)
        if not data:
            self._selector.unregister(fd)
            del self._open[fd]
            file.close()

    def _woken(self) -> None:
        for number in self._reader.recv(4096):
            if number == signal.SIGCHLD:
                continue
            if number in _ENDING:
                is_again, self._interrupted_by = bool(self._interrupted_by), number
                self._hang_up_at = 0.0 if is_again else self._hang_up_at
            living = [host for host in self._hosts if host.process.returncode is None]
            for host in living[:1]:  # it tells the others
                host.say(bytes([number]))

    def _reap(self) -> None:
        for host in self._hosts:
            if host.process.returncode is None and (code := host.process.poll()) is not None:
                self._ended(host, code)

    def _ended(self, host: _Host, code: int) -> None:
        """The shell of a host has ended; where that is a failure, the others have some time to end, too."""
        status = code if code >= 0 else 128 - code
        if not status:
            return
        if not self._status:
            self._status = status
        seconds = _AFTER_SIGNAL_SECONDS if self._interrupted_by else _AFTER_FAILURE_SECONDS
        if status in _NO_SHELL or code < 0:
            seconds = 0.0
            how = f"ended with status {status}" if code >= 0 else f"died of {signal_name(-code)}"
            self._relay.say(f"ncclx run: host {host.place.host}: `{shlex.join(host.words[:-3])}` {how}; the others are ended")
        self._hang_up_at = min(self._hang_up_at, time.monotonic() + seconds)

    def _climb(self) -> None:
        now = time.monotonic()
        if now >= self._hang_up_at:
            self._hang_up_at, self._kill_at = float("inf"), min(self._kill_at, now + _LAST_SECONDS)
            for host in self._hosts:
                host.hang_up()
        if now >= self._kill_at:
            self._kill_at = float("inf")
            self._kill()

    def _kill(self) -> None:
        """End the shells here; what a host that does not answer has left there ends when it sees that."""
        for host in self._hosts:
            if host.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(host.process.pid, signal.SIGKILL)
        for fd, (_, _, file) in list(self._open.items()):
            self._selector.unregister(fd)
            file.close()
        self._open.clear()

    def _give_up(self, error: OSError) -> int:
        for host in self._hosts:
            host.hang_up()
        end = time.monotonic() + _LAST_SECONDS
        for host in self._hosts:
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.process.wait(max(0.0, end - time.monotonic()))
        self._kill()
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        with contextlib.suppress(OSError):
            print(f"ncclx run: {error}", file=sys.stderr)
        return 1
