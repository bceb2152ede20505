"""``launch.run``: a function on N ranks, from any Python program."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ncclx_mpi import process
from ncclx_mpi.launch import protocol
from ncclx_mpi.launch.failure import RankFailed

_EARLY = ("OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "NUMEXPR_", "PYTHON", "LD_", "MALLOC_", "KMP_", "NCCLX_MPI_CACHE_DIR")
"""Variables that are read when libraries are loaded: with other values, the server starts anew."""

GRACE_SECONDS = 5.0


class Client:
    """A connection to a server, which is started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._early: dict[str, str] = {}
        self._owner = 0

    def call(self, request: protocol.Request, write: Callable[[int, bytes], None]) -> protocol.Reply:
        """Run a job, passing on what it writes.

        Raises
        ------
        RuntimeError
            The server died.
        """
        with self._lock:
            connection = self._connect(request.environ)
            try:
                protocol.send(connection, request)
                while not isinstance(message := protocol.receive(connection), protocol.Reply):
                    write(message.stream, message.data)
                return message
            except (EOFError, OSError) as error:
                self._drop()
                raise RuntimeError("the process that forks the ranks died; see its messages on stderr") from error
            except BaseException:
                self._drop()
                raise

    def _connect(self, environ: dict[str, str]) -> socket.socket:
        early = {name: value for name, value in environ.items() if name.startswith(_EARLY)}
        if self._owner != os.getpid():
            self._connection = self._process = None
        if self._connection is not None and early != self._early:
            self._drop()
        if self._connection is None:
            self._start(environ)
            self._early, self._owner = early, os.getpid()
        assert self._connection is not None
        return self._connection

    def _start(self, environ: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._process = start_server("ncclx_mpi.launch.server", [theirs], environ)
        self._connection = ours

    def _drop(self) -> None:
        """Close the connection: the server kills what runs, and ends."""
        if self._owner != os.getpid():
            return
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._connection = self._process = None

    def close(self) -> None:
        """End the server."""
        with self._lock:
            self._drop()


def start_server(module: str, ends: Sequence[socket.socket], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that forks ranks, out of reach of this terminal's signals: ``python -m module FD ...``, which gets the `ends`."""
    flags = process.interpreter_flags()
    numbers = [end.fileno() for end in ends]
    try:
        return subprocess.Popen(
            [sys.executable, *flags, "-m", module, *map(str, numbers)],
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            env=process.environment_of_helpers(environ),
            start_new_session=True,
        )
    finally:
        for end in ends:
            end.close()


_client = Client()
atexit.register(_client.close)


def run(function: Callable[..., Any], nranks: int, *args: Any, timeout: float | None = None) -> list[Any]:
    """Run ``function(*args)`` on `nranks` forked ranks, and return what each returned, in rank order.

    Inside the function, ``MPI.COMM_WORLD`` is the world of these ranks. They are forked from a clean process of its own, so the
    caller may have threads or a CUDA context; it stays there for the next call, which then takes some ten milliseconds.

    Parameters
    ----------
    function
        Found by its module and name in the ranks; with `cloudpickle` installed also a lambda, a local function, or one typed
        into a notebook.
    nranks
        Number of ranks, at least 1.
    *args
        Pickled and given to each rank.
    timeout
        Seconds after which all ranks are ended and TimeoutError is raised; None for no limit.

    Raises
    ------
    RuntimeError
        It is called when a rank imports the program: outside of ``if __name__ == "__main__":``. Or so many ranks cannot be started here.
    RankFailed
        A rank raised or died: the first one that did. The cause is the exception that it raised, if it can be pickled.
    TimeoutError
        The time was up; says where each rank was.
    TypeError
        `function` or `args` cannot be sent to another process.

    Examples
    --------
    >>> from ncclx_mpi import launch
    >>> launch.run(divmod, 2, 7, 3)
    [(2, 1), (2, 1)]
    """
    if nranks < 1:
        raise ValueError(f"{nranks} ranks cannot be started; nranks must be at least 1")
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout={timeout} must be positive, or None for no limit")
    if is_main_half_imported():
        raise RuntimeError(
            "ncclx_mpi.launch.run was called while a rank imports the program that started it; "
            'put what the program does under `if __name__ == "__main__":`'
        )
    request = make_request(function, nranks, args, timeout or 0.0)
    return open_reply(_client.call(request, _write_to_python), timeout)


def make_request(
    function: Callable[..., Any], nranks: int, args: tuple[Any, ...], timeout: float, grace: float = GRACE_SECONDS
) -> protocol.Request:
    """What the server needs to know about this call and this process."""
    call = _pickle_call(function, args)
    return protocol.Request(
        call,
        nranks,
        timeout,
        grace,
        cwd=os.getcwd(),
        path=[folder or os.getcwd() for folder in sys.path],
        environ=dict(os.environ),
        main=_main_source() if b"__main__" in call else [],
    )


def is_main_half_imported() -> bool:
    """Whether this process is a rank in the middle of importing its caller's main module, which does not become ``__main__`` before."""
    imported = sys.modules.get(protocol.MAIN_ALIAS)
    return imported is not None and imported is not sys.modules["__main__"]


def _pickle_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    by_value = getattr(function, "__module__", "") == "__main__" and not _main_source()
    try:
        if not by_value:
            return pickle.dumps((function, args), protocol=pickle.HIGHEST_PROTOCOL)
        problem = "it is defined in a session without a file"
    except Exception as error:
        problem = str(error)
    try:
        import cloudpickle
    except ImportError:
        kind = "function" if isinstance(function, (FunctionType, BuiltinFunctionType)) else "callable"
        raise TypeError(
            f"the {kind} {getattr(function, '__qualname__', function)!r} and its arguments cannot be sent to the ranks: {problem}. "
            "Define the function at the top level of a module or script, or install cloudpickle"
        ) from None
    data: bytes = cloudpickle.dumps((function, args))
    return data


def _main_source() -> list[str]:
    """From what the ranks can make this program's ``__main__``; nothing for a notebook or a prompt."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name and not spec.name.startswith("__main__"):
        return ["-m", spec.name.removesuffix(".__main__")]
    path = getattr(main, "__file__", None)
    return [os.path.abspath(path)] if path and os.path.isfile(path) else []


def open_reply(reply: protocol.Reply, timeout: float | None) -> list[Any]:
    """The results of all ranks, or the exception that says why there are none."""
    if reply.refused:
        raise RuntimeError(reply.refused)
    if reply.abort_code is not None:
        raise RankFailed(f"the job was aborted with code {reply.abort_code}", max(reply.failed_rank, 0))
    if reply.is_timed_out:
        raise TimeoutError(f"{len(reply.values)} ranks still running after {timeout:g} s; they were in\n{reply.report}")
    if reply.failed_rank >= 0:
        raise _failure(reply)
    return [pickle.loads(value)[1] for value in reply.values]


def _failure(reply: protocol.Reply) -> RankFailed:
    data = reply.values[reply.failed_rank]
    if not data:
        return RankFailed(reply.story, reply.failed_rank)
    _, cause, trace = pickle.loads(data)
    last = trace.strip().splitlines()[-1] if trace.strip() else "an exception"
    failure = RankFailed(f"rank {reply.failed_rank} of {len(reply.values)} raised {last}", reply.failed_rank, trace)
    failure.__cause__ = cause
    return failure


def _write_to_python(stream: int, data: bytes) -> None:
    """Output of ranks goes where ``print`` goes here, a notebook's cell for one."""
    target = sys.stdout if stream == 1 else sys.stderr
    target.write(data.decode(errors="replace"))
    target.flush()
