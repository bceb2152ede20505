"""Puts our module in the place of ``mpi4py.MPI``, and finds the real one when the bootstrap needs it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

_NAME = "mpi4py.MPI"
_POOLS = "mpi4py.futures._core"
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


class _Loader(importlib.abc.Loader):
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
                with contextlib.suppress(concurrent.futures.InvalidStateError):
                    future.set_exception(broken(str(error)))

    return manage


class _Finder(importlib.abc.MetaPathFinder):
    """Answers for ``mpi4py.MPI``, and for what works on it in part."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == _POOLS:
            found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            if found is not None and found.origin is not None:
                found.loader = _PoolsLoader(fullname, found.origin)
            return found
        if fullname != _NAME:
            return None
        return importlib.machinery.ModuleSpec(_NAME, _Loader(), origin="ncclx_mpi.MPI")


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
