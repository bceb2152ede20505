"""A clean process that forks ranks for programs that cannot: they have threads, a CUDA context, a notebook.

``python -m ncclx_mpi.launch.server FD`` serves one client over the Unix socket `FD` until the client ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import runpy
import socket
import sys
import traceback
from types import ModuleType
from typing import Any, NoReturn

from ncclx_mpi import process
from ncclx_mpi.launch import protocol
from ncclx_mpi.launch.job import Job, Settings
from ncclx_mpi.launch.outlet import Outlet
from ncclx_mpi.launch.ready import make_ready
from ncclx_mpi.launch.relay import CHANNEL, STDERR, STDOUT, LineRelay
from ncclx_mpi.observe.describe import describe

_MANY = 1 << 20
"""Ranks to make everything ready for: the server forks one job after another."""


def serve(connection: socket.socket) -> None:
    """Run one job after another, until the client closes the connection."""
    is_loaded = False
    while True:
        try:
            request: protocol.Request = protocol.receive(connection)
        except (EOFError, OSError):
            return
        if not is_loaded:
            make_ready(_MANY)
            is_loaded = True
        _preload(request.preload)
        try:
            protocol.send(connection, _Run(connection, request).reply())
        except OSError:
            return


def _preload(names: list[str]) -> None:
    """Import what the ranks use, and set it aside from garbage collection: each object that a rank looks at is a page copied."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if missing:
        gc.freeze()


class _Run:
    """One request."""

    def __init__(self, connection: socket.socket, request: protocol.Request) -> None:
        self._connection = connection
        self._request = request
        self._values = [bytearray() for _ in range(request.nranks)]
        outlet = Outlet(connection.sendall)
        self._relay = LineRelay(
            False, {STDOUT: outlet, STDERR: outlet}, lambda stream, data: protocol.pack(protocol.Output(stream, data))
        )
        self._report = ""

    def reply(self) -> protocol.Reply:
        """Fork the ranks and see them to their end; never returns in a rank."""
        request = self._request
        settings = Settings(
            request.nranks,
            timeout=request.timeout,
            grace=request.grace,
            has_channels=True,
            lifeline=self._connection.fileno(),
            on_timeout=self._describe,
            topology=request.topology,
        )
        try:
            job = Job(settings, self._relay, self._take)
            rank = job.fork_ranks()
        except (ValueError, OSError) as error:
            return protocol.Reply([], -1, "", False, None, refused=f"{request.nranks} ranks cannot be started: {error}")
        if rank is not None:
            _be_rank(request, job.channel)
        outcome = job.supervise()
        self._relay.flush(everything=True)
        self._relay.finish(None)  # the client has gone otherwise, or it is slow: then it waits for the reply, too
        first = outcome.failures[0] if outcome.failures else None
        return protocol.Reply(
            [bytes(value) for value in self._values],
            failed_rank=-1 if first is None else first.rank,
            story=str(first or ""),
            is_timed_out=outcome.is_timed_out,
            abort_code=outcome.abort_code,
            report=self._report,
        )

    def _take(self, rank: int, stream: int, data: bytes) -> None:
        if stream == CHANNEL:
            self._values[rank] += data
        else:
            self._relay(rank, stream, data)

    def _describe(self, job: Job) -> None:
        self._report = describe(job.nodes.arenas)
        self._relay.is_tagged = True  # the stacks that follow should say whose they are


def _be_rank(request: protocol.Request, channel: int) -> NoReturn:
    status = 1
    try:
        data, status = _pack(_call(request))
        with open(channel, "wb") as file:
            file.write(data)
        process.end_communication(status)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        process.flush_streams()
        os._exit(status)


def _call(request: protocol.Request) -> tuple[Any, ...]:
    """Make the call; what it returns or raises, ready to be sent."""
    try:
        _become_caller(request)
        function, args = pickle.loads(request.call)
        return "value", function(*args)
    except BaseException as error:
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace is not None else None
        return "error", error, "".join(traceback.format_exception(error))


def _pack(reply: tuple[Any, ...]) -> tuple[bytes, int]:
    """Pickle a reply, and say how the rank is to exit; what cannot be pickled becomes an error that says so."""
    is_value = reply[0] == "value"
    try:
        data = pickle.dumps(reply, protocol=pickle.HIGHEST_PROTOCOL)
        if not is_value:
            pickle.loads(data)
        return data, 0 if is_value else 1
    except Exception as error:
        if not is_value:
            return pickle.dumps(("error", None, reply[2])), 1
        text = f"the result of type {type(reply[1]).__name__} cannot be sent back: {error}\n"
        return pickle.dumps(("error", TypeError(text), text)), 1


def _become_caller(request: protocol.Request) -> None:
    """Working directory, environment, import path and ``__main__`` as the caller has them."""
    ours = {name: os.environ[name] for name in os.environ if name.startswith("NCCLX_MPI_")}
    os.environ.clear()
    os.environ.update({**request.environ, **ours})
    os.chdir(request.cwd)
    sys.path[:] = request.path
    if request.main:
        _make_main(request.main)


def _make_main(main: list[str]) -> None:
    if main[0] == "-m":
        content = runpy.run_module(main[1], run_name=protocol.MAIN_ALIAS, alter_sys=True)
    else:
        content = runpy.run_path(main[0], run_name=protocol.MAIN_ALIAS)
    module = ModuleType(protocol.MAIN_ALIAS)
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[protocol.MAIN_ALIAS] = module


def main() -> None:
    """Entry point of ``python -m ncclx_mpi.launch.server FD``."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        connection.set_inheritable(False)
        serve(connection)


if __name__ == "__main__":
    main()
