"""How every compiled function of the project is declared, cached and called.

``@kernel("int64(int64, int64)")`` declares a nopython function with one explicit signature. Nothing is compiled
at import, and Numba is not imported: a kernel is compiled (:mod:`numba_kernels.compiling`), or loaded from the disk cache, when another
kernel or :func:`entry` first asks for it.

What Python or native code calls also has an image in the cache (:mod:`numba_kernels.linking`), from which it is linked without
Numba: a process that finds all it calls there never imports that.

The cache folder of a kernel is named by a digest of the sources of its module and of all modules of ours
that it imports, or names as :func:`numba_kernels.deferred.emitted`, so a changed callee in another file never leaves stale machine
code. The folder is private to the user (0700).
"""

from __future__ import annotations

import contextlib
import dis
import fcntl
import functools
import hashlib
import inspect
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from numba_kernels import cache_files, linking, processor

PACKAGES = ("numba_kernels", "transports", "ncclx_mpi")
CACHE_VARIABLE = "NCCLX_MPI_CACHE_DIR"
_XDG_VARIABLE = "XDG_CACHE_HOME"

_entries: dict[str, Kernel] = {}


class Kernel:
    """A nopython function with one signature: callable from other kernels, and from Python through :func:`entry`.

    Parameters
    ----------
    function
        What is compiled.
    signature
        In Numba's words, or a signature of :mod:`numba_kernels.types`.
    nogil
        Release the GIL while it runs (only when entered from Python).
    is_entry
        Python calls it, or native code by its :func:`c_address`.
    """

    def __init__(self, function: Callable[..., Any], signature: Any, *, nogil: bool, is_entry: bool) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.signature = signature
        self.nogil = nogil
        self.is_entry = is_entry
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._point: Callable[..., Any] | None = None
        self._address = 0

    def __repr__(self) -> str:
        return f"<Kernel {self.name}>"

    @functools.cached_property
    def dispatcher(self) -> Any:
        """What it is to Numba."""
        from numba_kernels import compiling

        return compiling.dispatcher(self)

    @property
    def _numba_type_(self) -> Any:
        """Its type to Numba, which looks for it by this name."""
        return self.dispatcher._numba_type_

    def compile(self) -> Callable[..., Any]:
        """Return the compiled C entry point: exact argument types, no dispatch (72-128 ns a call)."""
        if self._point is None:
            self._point = self._linked()
        if self._point is None:
            # Ranks that call it for the first time at once would all compile it: one does, and the others link it then.
            with contextlib.nullcontext() if self.is_cached() else one_at_a_time():
                self._point = self._linked() or self._compiled().entry_point
        return self._point

    def address(self) -> int:
        """Address of the function in C, compiled or loaded if needed."""
        self.compile()
        if not self._address:
            compiled = self._compiled()
            self._address = int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name))
        return self._address

    def is_cached(self) -> bool:
        """Whether the disk cache holds it, so that it need not be compiled."""
        if self.has_image():
            return True
        from numba_kernels import compiling

        return compiling.is_kept(self)

    def has_image(self) -> bool:
        """Whether it can be linked without Numba."""
        return self.is_entry and self.image.exists()

    @property
    def image(self) -> Path:
        """Where its machine code is kept; the line tells functions of one name apart, such as those of a factory."""
        code = self.py_func.__code__
        return _image(folder_name(code.co_filename), f"{self.py_func.__qualname__}-{code.co_firstlineno}")

    def link(self) -> linking.Linked | None:
        """Link it from its image, if it has one that can be."""
        return _link(self.image, self.py_func.__name__)

    def _linked(self) -> Callable[..., Any] | None:
        linked = self.link()
        if linked is None:
            return None
        self._address = linked.address
        return linked.point

    def _compiled(self) -> Any:
        from numba_kernels import compiling

        return compiling.compiled(self)


def kernel(signature: Any, *, nogil: bool = True, is_entry: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Declare a compiled function with one explicit `signature`, cached on disk.

    Parameters
    ----------
    signature
        Numba signature, such as ``"int64(int64, int64)"``, or one of :mod:`numba_kernels.types`. Addresses are int64.
    nogil
        Release the GIL while it runs (only when entered from Python).
    is_entry
        Python calls it, or native code by its :func:`c_address`: :func:`entry` finds it.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        declared = Kernel(function, signature, nogil=nogil, is_entry=is_entry)
        if is_entry:
            _entries[declared.name] = declared
        return declared

    return decorate


class Native:
    """A function that native code calls by its address (:attr:`address`): plain C, no GIL, no Python."""

    def __init__(self, make: Callable[[], Callable[..., Any]], signature: str, name: str, digest: str) -> None:
        self._make = make
        self._signature = signature
        self._name = name
        self._digest = digest
        self.callback: Any = None

    @functools.cached_property
    def address(self) -> int:
        """Where the function is. The first look compiles it, or loads it from the disk cache."""
        image = _image(folder_of(self._digest), self._name)
        linked = _link(image, self._name)
        if linked is not None:
            return linked.address
        from numba_kernels import compiling

        self.callback = compiling.callback(self._make(), self._signature, self._name, self._digest, image)
        return int(self.callback.address)


def native(make: Callable[[], Callable[..., Any]], signature: str, name: str, digest: str) -> Native:
    """Declare a C-callable function, cached on disk under `name`; nothing is made or compiled before its address is needed.

    Parameters
    ----------
    make
        Returns the function to compile.
    signature
        Numba signature.
    name
        Functions of one factory share their place in the source: it must tell them apart among those of one `digest`.
    digest
        Names what it is made from: see :func:`module_digest`.
    """
    return Native(make, signature, name, digest)


def _image(folder: str, name: str) -> Path:
    return linking.image_path(cache_root() / folder, name, processor.name())


def _link(image: Path, name: str) -> linking.Linked | None:
    """Link a function from its image; one that is damaged is removed, so that another one is made."""
    try:
        return linking.link(image, name)
    except cache_files.UnusableFile:
        with contextlib.suppress(OSError):
            image.unlink(missing_ok=True)
    except OSError:
        pass
    return None


def entry(function: Any) -> Callable[..., Any]:
    """Return the entry point of a kernel declared with ``is_entry=True``, compiling or loading it if needed."""
    point: Callable[..., Any] = function.compile()
    return point


def c_address(function: Any) -> int:
    """Address of a kernel declared with ``is_entry=True`` as a C function, for calls through a pointer or a symbol."""
    return int(function.address())


def callees(function: Any) -> list[Any]:
    """Kernels that a kernel names in its source, itself excluded: they become a part of its machine code.

    Those that it meets otherwise, in an overload or a table, are compiled along with it.
    """
    scope = inspect.getclosurevars(function.py_func)
    known = {**scope.globals, **scope.nonlocals}
    named = []
    for load, after in itertools.pairwise(dis.get_instructions(function.py_func)):
        value = known.get(load.argval) if load.opname in ("LOAD_GLOBAL", "LOAD_DEREF") else None
        named.append(vars(value).get(after.argval) if isinstance(value, ModuleType) else value)
    return [value for value in dict.fromkeys(filter(_is_kernel, named)) if value is not function]


def callees_first(functions: Iterable[Any]) -> list[Any]:
    """These kernels and all that they call, directly or not; each comes after those that it calls, unless they call each other."""
    order: dict[Any, None] = {}
    seen: set[Any] = set()

    def visit(function: Any) -> None:
        if function not in seen:
            seen.add(function)
            for callee in callees(function):
                visit(callee)
            order[function] = None

    for function in functions:
        visit(function)
    return list(order)


def _is_kernel(value: Any) -> bool:
    return isinstance(value, Kernel)


def compile_declared(function: Any) -> None:
    """Compile a kernel, entry or not, for its declared signature, or load it from the cache."""
    function.dispatcher.compile(())


def entries() -> list[Kernel]:
    """All kernels that Python calls, of the modules imported so far."""
    return list(_entries.values())


def cache_candidates() -> Iterator[tuple[str, Path]]:
    """Folders for the cache, the preferred one first, each with the name of what it follows from."""
    if os.environ.get(CACHE_VARIABLE):
        yield CACHE_VARIABLE, Path(os.environ[CACHE_VARIABLE])
    if os.environ.get(_XDG_VARIABLE):
        yield _XDG_VARIABLE, Path(os.environ[_XDG_VARIABLE]) / "ncclx_mpi"
    else:
        yield "the home", Path(os.path.expanduser("~")) / ".cache" / "ncclx_mpi"
    yield "the temporary directory", Path(tempfile.gettempdir()) / f"ncclx_mpi-{os.getuid()}"


@functools.cache
def cache_root() -> Path:
    """Return the first folder that can be written, and by nobody else, so that a read-only home still starts.

    ``$NCCLX_MPI_CACHE_DIR``, ``$XDG_CACHE_HOME/ncclx_mpi``, ``~/.cache/ncclx_mpi``, a private one in the temporary directory.
    """
    usable = (folder for _, folder in cache_candidates() if not cache_files.why_not(folder))
    return next(usable, None) or Path(tempfile.mkdtemp(prefix="ncclx_mpi-"))


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Compile as the only process of this user on the node; others that want to wait. Where files cannot be locked all do."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock = os.open(cache_root() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def module_digest(path: str) -> str:
    """Digest of :func:`sources_digest` and the versions that compile."""
    return hashlib.sha256(_versions() + sources_digest(path).encode()).hexdigest()[:20]


@functools.cache
def sources_digest(path: str) -> str:
    """Digest of a module's source and of all sources of ours that it imports, directly or not."""
    seen: dict[str, bytes] = {}
    _collect_sources(path, seen)
    total = hashlib.sha256()
    for name in sorted(seen):
        total.update(name.encode() + b"\0" + seen[name])
    return total.hexdigest()[:20]


def folder_name(path: str) -> str:
    """Name of the folder in the cache that holds the compiled functions of a module."""
    return folder_of(module_digest(path))


def folder_of(digest: str) -> str:
    """Name of the folder in the cache for a digest."""
    return f"{sys.implementation.cache_tag}-{digest}"


@functools.cache
def _versions() -> bytes:
    return version("llvmlite").encode() + version("numba").encode()


_IMPORT = re.compile(
    r"^\s*(?:from\s+((?:" + "|".join(PACKAGES) + r")[\w.]*)\s+import\s+(\([^)]*\)|[^\n]*)"
    r"|import\s+((?:" + "|".join(PACKAGES) + r")[\w.]*))",
    re.MULTILINE,
)


_EMITTED = re.compile(r'\bemitted(?:_type)?\(\s*"(\w+)"')
"""What :mod:`numba_kernels.emit` makes for a module."""


def _collect_sources(path: str, seen: dict[str, bytes]) -> None:
    key, digest, imported = _scan(path)
    if digest is None or key in seen:
        return
    seen[key] = digest
    for found in imported:
        _collect_sources(found, seen)


@functools.cache
def _scan(path: str) -> tuple[str, bytes | None, tuple[str, ...]]:
    """Name and digest of a module, and the files of ours that it imports; read once, since many modules share them."""
    root = _package_root(path)
    try:
        source = Path(path).read_bytes()
    except OSError:
        return path, None, ()
    files: list[str] = []
    for match in _IMPORT.finditer(source.decode()):
        module = match.group(1) or match.group(3)
        names = [name.split(" as ")[0].strip(" ()\n") for name in (match.group(2) or "").split(",")]
        files.extend(_module_files(root, module, names))
    for name in sorted(set(_EMITTED.findall(source.decode()))):
        files.extend(_module_files(root, f"numba_kernels.emit.{name}", []))
    return os.path.relpath(path, root), hashlib.sha256(source).digest(), tuple(files)


def _module_files(root: str, module: str, names: list[str]) -> Iterator[str]:
    stem = os.path.join(root, *module.split("."))
    for candidate in [f"{stem}.py", os.path.join(stem, "__init__.py")]:
        if os.path.exists(candidate):
            yield candidate
    for name in names:
        for candidate in [os.path.join(stem, f"{name}.py"), os.path.join(stem, name, "__init__.py")]:
            if os.path.exists(candidate):
                yield candidate


def _package_root(path: str) -> str:
    parts = path.split(os.sep)
    for package in PACKAGES:
        if package in parts:
            return os.sep.join(parts[: len(parts) - 1 - parts[::-1].index(package)])
    return os.path.dirname(path)
