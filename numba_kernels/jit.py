"""How every compiled function of the project is compiled, cached and called.

``@kernel("int64(int64, int64)")`` declares a nopython function with one explicit signature. Nothing is compiled
at import: a kernel is compiled, or loaded from the disk cache, when another kernel or :func:`entry` first asks for it.

What Python or native code calls also has an image in the cache (:mod:`numba_kernels.linking`), from which it is linked without
Numba's compiler: a process that finds all it calls there never starts that.

The cache folder of a kernel is named by a digest of the sources of its module and of all modules of ours
that it imports, so a changed callee in another file never leaves stale machine code (Numba's own stamp covers
only the defining file). The folder is private to the user (0700); Numba itself adds the CPU and its version.

Numba's configuration is pinned while our functions are decorated: a user's ``NUMBA_DISABLE_JIT=1`` is for the
user's functions and would leave the engine without atomics.

Numba tells functions of one name apart, such as the bodies that a factory makes, by a number that every process counts from 1.
Loaded from caches that different processes wrote, two of them would be one symbol to LLVM, and the second would run the
code of the first. So each process counts from a number of its own.
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
import pickle
import re
import secrets
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar

import numba
from numba.core import caching, config, registry, sigutils
from numba.core.bytecode import FunctionIdentity
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher

from numba_kernels import cache_files, linking

PACKAGES = ("numba_kernels", "transports", "ncclx_mpi")
CACHE_VARIABLE = "NCCLX_MPI_CACHE_DIR"
_XDG_VARIABLE = "XDG_CACHE_HOME"
_DIGEST = "numba_kernels_digest"
_PINNED = {"DISABLE_JIT": 0, "BOUNDSCHECK": 0, "OPT": numba.core.config._OptLevel(3), "DEBUGINFO_DEFAULT": 0}

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

_entries: dict[Any, Kernel] = {}
"""What is called from outside, by the function that was declared."""


def _number_functions() -> None:
    """Let this process number the functions that it compiles as no other one does."""
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(48) << 12)


_number_functions()
os.register_at_fork(after_in_child=_number_functions)


class Kernel:
    """A nopython function with one signature: callable from other kernels, and from Python through :func:`entry`."""

    def __init__(self, dispatcher: Any, signature: Any) -> None:
        self.dispatcher = dispatcher
        self.signature = signature
        self._cache: _Cache = dispatcher._cache
        self.name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"
        self._point: Callable[..., Any] | None = None
        self._address = 0

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
        return self._cache.has_image() or self._cache.holds(self.signature, self.dispatcher.targetctx)

    def _linked(self) -> Callable[..., Any] | None:
        linked = self._cache.link()
        if linked is None:
            return None
        self._address = linked.address
        return linked.point

    def _compiled(self) -> Any:
        args, _ = sigutils.normalize_signature(self.signature)
        if args not in self.dispatcher.overloads:
            with pinned_configuration():
                self.dispatcher.compile(self.signature)
        return self.dispatcher.overloads[args]


class CompiledFunction(Protocol[P, R]):
    """What :func:`kernel` makes of a function, as type checkers see it: kernels call it, Python calls its :func:`entry`."""

    @property
    def py_func(self) -> Callable[P, R]:
        """The function itself, for Python to compute the same."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def __hash__(self) -> int: ...


def kernel(signature: Any, *, nogil: bool = True, is_entry: bool = False) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]:
    """Declare a compiled function with one explicit `signature`, cached on disk.

    Parameters
    ----------
    signature
        Numba signature, such as ``"int64(int64, int64)"``. Addresses are int64.
    nogil
        Release the GIL while it runs (only when entered from Python).
    is_entry
        Python calls it, or native code by its :func:`c_address`: :func:`entry` finds it.
    """

    def decorate(function: Callable[P, R]) -> CompiledFunction[P, R]:
        with pinned_configuration():
            dispatcher = numba.njit(nogil=nogil, error_model="numpy", boundscheck=False, no_cfunc_wrapper=not is_entry)(function)
            dispatcher._cache = _Cache(function, is_linked=is_entry)
        # Callers with literal arguments would each get a compiled variant of their own.
        dispatcher.compile = functools.partial(_compile_declared, dispatcher.compile, signature)
        if is_entry:
            _entries[dispatcher] = Kernel(dispatcher, signature)
        declared: CompiledFunction[P, R] = dispatcher
        return declared

    return decorate


class Native:
    """A function that native code calls by its address (:attr:`address`): plain C, no GIL, no Python."""

    def __init__(self, callback: Any) -> None:
        self._callback = callback

    @functools.cached_property
    def address(self) -> int:
        """Where the function is. The first look compiles it, or loads it from the disk cache."""
        linked = self._callback._cache.link()
        if linked is not None:
            return int(linked.address)
        with pinned_configuration():
            self._callback.compile()
        return int(self._callback.address)


def native(function: Callable[..., Any], signature: str, name: str, digest: str = "") -> Native:
    """Declare a C-callable function, cached on disk under `name`; nothing is compiled before its address is needed.

    Generated functions of one factory share their place in the source, so `name` must tell them apart in their module.
    `digest` names what it is made from where that is not the module of `function`.
    """
    function.__name__ = function.__qualname__ = name
    function.__dict__[_DIGEST] = digest
    arguments: Any = sigutils.normalize_signature(signature)
    callback: Any = CFunc(function, arguments, locals={}, options={"error_model": "numpy"})
    callback._cache = _NamedCache(function, is_linked=True)
    return Native(callback)


def _compile_declared(compiler: Callable[[str], Any], signature: str, _arguments: Any) -> Any:
    """Compile a kernel for its declared `signature`, whatever a caller asks for; Numba converts at the call."""
    with pinned_configuration():
        return compiler(signature)


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """Return the entry point of a kernel declared with ``is_entry=True``, compiling or loading it if needed."""
    point: Callable[P, R] = _entries[function].compile()
    return point


def c_address(function: Any) -> int:
    """Address of a kernel declared with ``is_entry=True`` as a C function, for calls through a pointer or a symbol."""
    return _entries[function].address()


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
    return isinstance(value, Dispatcher) and isinstance(getattr(value, "_cache", None), _Cache)


def compile_declared(function: Any) -> None:
    """Compile a kernel, entry or not, for its declared signature, or load it from the cache."""
    function.compile(())


def entries() -> list[Kernel]:
    """All kernels that Python calls, of the modules imported so far."""
    return list(_entries.values())


def forget_finalizers() -> None:
    """Take the finalizers of our kernels away, which would do nothing at exit but cost each forked process a thousand pages to copy."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        if isinstance(finalizer.peek()[0], Dispatcher):
            finalizer.detach()


@contextmanager
def pinned_configuration() -> Iterator[None]:
    """Numba's settings as our code needs them, whatever the user's environment says."""
    names = [name for name in _PINNED if hasattr(config, name)]
    saved = {name: getattr(config, name) for name in names}
    for name in names:
        setattr(config, name, _PINNED[name])
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(config, name, value)


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
    return _folder_of(module_digest(path))


def _folder_of(digest: str) -> str:
    return f"{sys.implementation.cache_tag}-{digest}"


@functools.cache
def _versions() -> bytes:
    return version("llvmlite").encode() + version("numba").encode()


_IMPORT = re.compile(
    r"^\s*(?:from\s+((?:" + "|".join(PACKAGES) + r")[\w.]*)\s+import\s+(\([^)]*\)|[^\n]*)"
    r"|import\s+((?:" + "|".join(PACKAGES) + r")[\w.]*))",
    re.MULTILINE,
)


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


class _Locator(caching._CacheLocator):  # type: ignore[misc]
    """Puts a function's cache under a folder named by its module's digest; the digest is the stamp."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._digest = py_func.__dict__.get(_DIGEST) or module_digest(py_file)
        self._lineno = py_func.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        return str(cache_root() / _folder_of(self._digest))

    def ensure_cache_path(self) -> None:
        cache_files.make_folder(Path(self.get_cache_path()))

    def get_source_stamp(self) -> tuple[str]:
        return (self._digest,)

    def get_disambiguator(self) -> str:
        return str(self._lineno)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func, py_file)  # its folder is made when something is kept there


class _CacheFile(caching.IndexDataCacheFile):  # type: ignore[misc]
    """Numba's index of a function, and what it lists, in files that are checked when they are read."""

    def _load_index(self) -> dict[Any, str]:
        try:
            version, stamp, overloads = pickle.loads(cache_files.read(Path(self._index_path)))
        except OSError:
            return {}
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        cache_files.write(Path(self._index_path), self._dump((self._version, self._source_stamp, overloads)))

    def _load_data(self, name: str) -> Any:
        return pickle.loads(cache_files.read(Path(self._data_path(name))))

    def _save_data(self, name: str, data: Any) -> None:
        cache_files.write(Path(self._data_path(name)), self._dump(data))


class _CacheImpl(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar = [_Locator]


@functools.cache
def _target() -> tuple[str, ...]:
    """The processor that we compile for."""
    return tuple(map(str, registry.cpu_target.target_context.codegen().magic_tuple()))


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _CacheImpl

    def __init__(self, function: Callable[..., Any], *, is_linked: bool) -> None:
        super().__init__(function)
        self._is_linked = is_linked
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def link(self) -> linking.Linked | None:
        """Link the function from its image, if it has one that can be."""
        try:
            return linking.link(self._image(), self._py_func)
        except cache_files.UnusableFile:
            self._discard()
        except OSError:
            pass
        return None

    def _discard(self) -> None:
        """Let the function be compiled again, which makes a new image."""
        with contextlib.suppress(OSError):
            self._image().unlink(missing_ok=True)
            self.flush()

    def has_image(self) -> bool:
        """Whether there is an image."""
        return self._image().exists()

    def _image(self) -> Path:
        return linking.image_path(self._cache_path, self._impl.filename_base, _target())

    def holds(self, sig: Any, target_context: Any) -> bool:
        """Whether a compiled function is there for a signature, as it was declared."""
        return self._index_key(sig, target_context.codegen()) in self._cache_file._load_index()

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function for later; a folder that was removed meanwhile, or a full disk, costs only the next start."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)
            if self._is_linked:
                linking.write_image(self._image(), data)


class _NamedCache(_Cache):
    """For generated functions: the folder's digest and the name tell everything, whatever their closures hold."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (sig, codegen.magic_tuple())
