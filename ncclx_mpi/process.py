"""What the kernel is asked for: end with the parent, and leave without tearing the interpreter down."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import itertools
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
STACKS_SIGNAL = signal.SIGRTMIN + 9
"""Python ranks print the stacks of all their threads on it; far from the signals that programs use."""

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def end_with_parent(parent: int) -> None:
    """Have this process killed when `parent`, which forked it, ends; leave at once if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def fork() -> int:
    """Fork without Python's warning about threads: ours are those of a numerical library, which knows about forks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def interpreter_flags() -> list[str]:
    """Return the flags with which another interpreter is as this one: those that multiprocessing passes on; no public name says them."""
    import subprocess  # few programs come here

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def environment_of_helpers(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, with a path by which a new interpreter finds this package where it runs from a source tree."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.basename(home) in ("site-packages", "dist-packages"):
        return dict(environ)
    path = os.pathsep.join([home, *filter(None, [environ.get("PYTHONPATH")])])
    return {**environ, "PYTHONPATH": path}


def reset_signals(handled: Iterable[int]) -> None:
    """Undo what the launcher did to its own signals, in a child."""
    signal.set_wakeup_fd(-1)
    for number in handled:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def leave(status: int, last_inherited: str) -> None:
    """End a forked rank as the interpreter would, but without taking apart what it shares with the launcher.

    Threads are joined, exit handlers run, the program's own modules are emptied (an open file flushes when it goes),
    communication ends: in order, or not if the rank failed. What the launcher had imported, up to the module `last_inherited`, is
    left to the kernel (Numba: 60 ms of destructors) and not even looked at: each object looked at is a page copied.
    """
    if status:
        end_communication(status)
    _run_exit_handlers()
    _drop_modules(_modules_after(last_inherited))
    end_communication(status)
    flush_streams()
    os._exit(status & 0xFF)


def end(status: int) -> NoReturn:
    """End a process that has nothing to lose but its exit handlers, in order; to take apart all that it has imported takes 10 ms."""
    _run_exit_handlers()
    flush_streams()
    os._exit(status & 0xFF)


def _run_exit_handlers() -> None:
    """Join the threads, and call the handlers."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def end_communication(status: int) -> None:
    """Finalize, if communication ever began; a rank that failed abandons the job instead, and counts as dead."""
    runtime = sys.modules.get("ncclx_mpi.runtime")
    if runtime is not None:
        (runtime.abandon if status else runtime.finish)()


def _modules_after(last_inherited: str) -> list[str]:
    """Modules that were imported after this one; none if the program has removed it."""
    if last_inherited not in sys.modules:
        return []
    return list(itertools.takewhile(lambda name: name != last_inherited, reversed(sys.modules)))


def _drop_modules(imported: Iterable[str]) -> None:
    """Let go of the program's objects, ``__main__`` last, so that their destructors run."""
    names = [name for name in imported if _is_users_own(name)]
    main = sys.modules["__main__"].__dict__
    for name in [key for key in main if not key.startswith("__")]:
        with contextlib.suppress(KeyError):
            del main[name]
    for name in names:
        sys.modules.pop(name, None)
    gc.collect()


def _is_users_own(name: str) -> bool:
    """Is it a module of the program itself? Libraries are left alone: not all survive being taken apart in this order."""
    path = getattr(sys.modules[name], "__file__", None)
    if not path or name == "__main__":
        return False
    installed = ("site-packages", "dist-packages")
    return not path.startswith((sys.prefix, sys.base_prefix)) and not any(part in path for part in installed)


def report_exception(what: str) -> None:
    """Tell the user of the exception that is being handled, and that nobody will see otherwise."""
    with contextlib.suppress(Exception):  # there may be no stderr
        print(f"ncclx_mpi: {what}:", file=sys.stderr)
        print_exception()


def flush_streams() -> None:
    """Write out what Python buffered for the standard streams; a closed reader is no error here."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def print_exception() -> None:
    """Print the exception that is being handled, and where it comes from."""
    import traceback

    traceback.print_exc()
