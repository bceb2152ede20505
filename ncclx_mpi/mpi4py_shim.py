"""Puts our module in the place of ``mpi4py.MPI``, and finds the real one when the bootstrap needs it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # all that they are to the interpreter: their module takes 3 ms

_NAME = "mpi4py.MPI"
_POOLS = "mpi4py.futures._core"
_RUNNER = "mpi4py.run"
_QUIET = {
    "initialize": False,
    "threads": False,
    "thread_level": "single",
    "finalize": False,
    "fast_reduce": True,
    "recv_mprobe": True,
    "irecv_bufsz": 32768,
    "errors": "exception",
}
"""Settings under which the real extension neither starts nor ends MPI by itself."""

_loaded: list[ModuleType] = []
"""The real module, kept: an MPI library does not survive being unloaded."""


class _Loader(Loader):
    """Loads our MPI under mpi4py's name: the very same module object, which keeps its own ``__spec__``."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[_NAME] = importlib.import_module("ncclx_mpi.MPI")


class _PoolsLoader(importlib.machinery.SourceFileLoader):
    """Loads the pools of ``mpi4py.futures``, whose owner would wait for ever for what a worker of its own was doing when it died."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        pools: Any = module
        for name in ("_manager_spawn", "_manager_service"):
            setattr(pools, name, _failing_futures(getattr(pools, name), pools.BrokenExecutor))


def _failing_futures(manager: Callable[..., None], broken: type[Exception]) -> Callable[..., None]:
    """The thread of a pool, which lets futures fail whose workers have died, or were not started."""
    from concurrent.futures import InvalidStateError

    def manage(pool: Any, *args: Any) -> None:
        running: set[Any] = set()
        pop = pool.queue.pop

        def take() -> Any:
            item = pop()
            if item is not None:
                running.add(item[0])
                item[0].add_done_callback(running.discard)
            return item

        pool.queue.pop = take
        try:
            manager(pool, *args)
        except Exception as error:
            pool.broken(str(error))
            for future in list(running):
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(broken(str(error)))

    return manage


class _RunnerLoader(importlib.machinery.SourceFileLoader):
    """Loads ``mpi4py.run``, which looks for the C library behind the module when it is asked for that."""

    def get_code(self, fullname: str) -> CodeType:
        """What ``python -m mpi4py.run`` executes: the module itself is loaded below."""
        return compile(f"from {_RUNNER} import main\nmain()", self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        code = super().get_code(module.__name__)
        assert code is not None
        exec(code, module.__dict__)
        runner: Any = module
        runner.main = _naming_us(runner.main)


def _naming_us(main: Callable[[], None]) -> Callable[[], None]:
    """``main`` of the runner, which says where our package is where it would say where the library is."""

    def run() -> None:
        if not _is_asked_for_library(sys.argv[1:]):
            return main()
        print(os.path.dirname(os.path.abspath(__file__)))
        sys.exit(0)

    return run


def _is_asked_for_library(words: list[str]) -> bool:
    """Whether the first option of the runner, settings left out, asks for the path of the library."""
    while words and words[0].startswith(("-rc", "--rc")):
        words = words[1 if "=" in words[0] else 2 :]
    return bool(words) and words[0] in ("-mpi-library", "--mpi-library")


class _Finder(MetaPathFinder):
    """Answers for ``mpi4py.MPI``, and for what works on it in part."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in _LOADERS:
            found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            if found is not None and found.origin is not None:
                found.loader = _LOADERS[fullname](fullname, found.origin)
            return found
        if fullname != _NAME:
            return None
        return importlib.machinery.ModuleSpec(_NAME, _Loader(), origin="ncclx_mpi.MPI")


_LOADERS = {_POOLS: _PoolsLoader, _RUNNER: _RunnerLoader}
"""Of modules of mpi4py that are its own, but for what these change."""
_finder = _Finder()


def install() -> None:
    """From now on ``from mpi4py import MPI`` gives ``ncclx_mpi.MPI``, and ``mpi4py.rc`` is ``ncclx_mpi.rc``.

    The communication still starts when the module is first imported, not here.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _set_rc(importlib.import_module("ncclx_mpi.rc"))


def real_mpi() -> ModuleType:
    """The extension module of mpi4py, not initialised, whoever stands in its place.

    Raises
    ------
    ImportError, RuntimeError
        mpi4py has no extension for this Python, or finds no MPI library.
    """
    import mpi4py

    ours = sys.modules.pop(_NAME, None)
    had_finder = _finder in sys.meta_path
    had_rc, had_attribute = mpi4py.rc, mpi4py.__dict__.get("MPI")
    if had_finder:
        sys.meta_path.remove(_finder)
    _set_rc(SimpleNamespace(**_QUIET))
    try:
        _loaded.append(importlib.import_module(_NAME))
        return _loaded[-1]
    finally:
        _set_rc(had_rc)
        _restore(mpi4py, ours, had_attribute, had_finder)


def _set_rc(settings: Any) -> None:
    """Make `settings` what ``mpi4py.rc`` is, as attribute and as module."""
    package: Any = importlib.import_module("mpi4py")
    package.rc = sys.modules["mpi4py.rc"] = settings


def _restore(package: ModuleType, ours: ModuleType | None, attribute: object, had_finder: bool) -> None:
    sys.modules.pop(_NAME, None)
    if ours is not None:
        sys.modules[_NAME] = ours
    if attribute is not None:
        package.__dict__["MPI"] = attribute
    else:
        package.__dict__.pop("MPI", None)
    if had_finder:
        sys.meta_path.insert(0, _finder)
