"""A pytest plugin: tests that run on several ranks, inside plain pytest.

::

    @pytest.mark.ranks(1, 2, 3, 5)
    def test_sum(comm):
        assert comm.allreduce(1) == comm.size

The function runs on all ranks of each size, forked for it; ``comm`` is their ``MPI.COMM_WORLD``, other parameters come from
``parametrize`` and must be picklable. A test that hangs fails after ``timeout`` seconds (``@pytest.mark.ranks(2, timeout=60)``,
30 by default), with the Python stacks of all ranks; whatever happens, no process is left. With ``hypothesis``, all
ranks draw the same examples. ``@pytest.mark.ranks(4, topology="vnode:2")`` puts the ranks on simulated nodes, ``pytest --topology=vnode:2``
those of all tests that do not say it themselves. ``@pytest.mark.guarded_too`` has a test called a second time in the same ranks, with
every array beside an unreadable page: what ``pytest --guard-arrays`` does for all tests, at the price of one start of ranks, not two.

Ranks are forked from a process that itself was forked from pytest before any test was imported, so that tests may leave
the session's own process in any state, and assertions are rewritten in the ranks as usual.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import cast

import pytest

from ncclx_mpi import process
from ncclx_mpi.launch import client, protocol
from ncclx_mpi.launch.failure import RankFailed
from ncclx_mpi.testing import ranks
from ncclx_mpi.testing.guarded_arrays import guarded_arrays

_TIMEOUT_SECONDS = 30.0
_GRACE_SECONDS = 3.0
_PRELOADED = (
    "numpy", "hypothesis", "hypothesis.strategies", "hypothesis.extra.numpy",
    "numba_kernels.compiling", "numba_kernels.cuda.symmetric", "numba_kernels.cuda.copy", "numba_kernels.cuda.pack",
    "ncclx_mpi.device.collectives", "ncclx_mpi.testing.driver_double",
)  # fmt: skip
"""Imported once by the fork server if the tests use them."""

_SIZE = "nranks_of_this_run"


class ForkServer:
    """The process that forks ranks for one pytest session."""

    def __init__(self, config: pytest.Config) -> None:
        self.connection, theirs = socket.socketpair()
        self.pid = process.fork()
        if self.pid == 0:
            self._serve(config, theirs)
        theirs.close()

    def _serve(self, config: pytest.Config, connection: socket.socket) -> None:
        status = 1
        try:
            self.connection.close()
            os.setsid()
            _empty_stdin()
            ranks.config = config
            from ncclx_mpi.launch.server import serve

            serve(connection)
            status = 0
        finally:
            os._exit(status)

    def close(self) -> None:
        """End the server and everything that it runs."""
        self.connection.close()
        os.waitpid(self.pid, 0)


def _empty_stdin() -> None:
    """The server does not read what is meant for pytest."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


_server_key: pytest.StashKey[ForkServer] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Whether overruns crash."""
    parser.addoption(
        "--guard-arrays",
        action="store_true",
        help="put each array that a test makes beside an unreadable page, so that an overrun crashes",
    )
    parser.addoption(
        "--topology", default="", help="nodes that the ranks of tests are on: machine, vnode:2 (of two ranks), nolocal (of one)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Fork the server while this process has one thread and no engine."""
    config.addinivalue_line("markers", "ranks(*sizes, timeout=30, topology=): run the test on so many ranks, once for each size")
    config.addinivalue_line("markers", "guarded_too: call the test a second time, every array beside an unreadable page")
    if _server_key not in config.stash and not config.option.collectonly:
        config.stash[_server_key] = ForkServer(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server."""
    server = config.stash.get(_server_key, None)
    if server is not None:
        del config.stash[_server_key]
        server.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run of the test for each number of ranks."""
    marker = metafunc.definition.get_closest_marker("ranks")
    if marker is not None:
        metafunc.fixturenames.append(_SIZE)
        metafunc.parametrize(_SIZE, marker.args or (2,), ids=lambda size: f"{size}ranks")


@pytest.fixture(scope="session")
def comm() -> Iterator[None]:
    """``MPI.COMM_WORLD``, in the ranks; in the session's own process there is none."""
    yield None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Guard the arrays of a test that runs here, or those of a second run of it."""
    guards = (False,) if item.get_closest_marker("ranks") else _guards(item)
    with guarded_arrays() if guards[0] else contextlib.nullcontext():
        yield
    for _ in guards[1:]:
        with guarded_arrays():
            item.runtest()


def _guards(item: pytest.Item) -> tuple[bool, ...]:
    """For each time that a test is to be called, whether arrays lie beside unreadable pages."""
    if item.config.getoption("guard_arrays"):
        return (True,)
    return (False, True) if item.get_closest_marker("guarded_too") else (False,)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Send the test to the ranks instead of calling it here."""
    marker = pyfuncitem.get_closest_marker("ranks")
    if marker is None:
        return None
    __tracebackhide__ = True
    server = pyfuncitem.config.stash[_server_key]
    timeout = float(marker.kwargs.get("timeout", _TIMEOUT_SECONDS)) * len(_guards(pyfuncitem))
    request = _request(pyfuncitem, timeout)
    request.topology = marker.kwargs.get("topology", pyfuncitem.config.getoption("topology"))
    try:
        reply = _call(server, request)
    except (EOFError, OSError):
        pytest.fail("the process that forks the ranks died; its last words are on stderr", pytrace=False)
    try:
        client.open_reply(reply, timeout)
    except RankFailed as failure:
        _skip_if_skipped(failure)
        pytest.fail(_text(failure, reply), pytrace=False)
    except TimeoutError as late:
        pytest.fail(f"{late}\n(stacks of all ranks are in the captured stderr)", pytrace=False)
    return True


def _request(item: pytest.Function, timeout: float) -> protocol.Request:
    nranks = cast(int, item.callspec.params[_SIZE])
    wanted = {name: item.funcargs[name] for name in item._fixtureinfo.argnames if name != "comm"}
    wants_comm = "comm" in item._fixtureinfo.argnames
    call = ranks.Call(str(item.path), _qualified_name(item), wanted, wants_comm, item.nodeid, _guards(item))
    request = client.make_request(ranks.run_test, nranks, (call,), timeout, _GRACE_SECONDS)
    request.preload = [name for name in _PRELOADED if name in sys.modules]
    return request


def _qualified_name(item: pytest.Function) -> str:
    name = item.originalname or item.name
    return name if item.cls is None else f"{item.cls.__qualname__}.{name}"


def _call(server: ForkServer, request: protocol.Request) -> protocol.Reply:
    protocol.send(server.connection, request)
    while not isinstance(message := protocol.receive(server.connection), protocol.Reply):
        client._write_to_python(message.stream, message.data)
    return message


def _skip_if_skipped(failure: RankFailed) -> None:
    if isinstance(failure.__cause__, ranks.SkippedOnRank):
        pytest.skip(f"rank {failure.rank}: {failure.__cause__}")


def _text(failure: RankFailed, reply: protocol.Reply) -> str:
    """The first failure, and in a line each the others."""
    lines = [str(failure)]
    for rank, data in enumerate(reply.values):
        if rank != failure.rank and (line := ranks.last_line(data)):
            lines.append(f"rank {rank} then: {line}")
    return "\n".join(lines)
