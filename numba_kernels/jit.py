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
import fcntl
import functools
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from numba_kernels import cache_files, digests, linking, processor, shipped
from numba_kernels.cache_files import cache_root
from numba_kernels.sha256 import sha256

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

_FLOCK = "hhqqi"
"""``struct flock`` of C: what is locked from where, and how much."""
_entries: dict[str, Kernel] = {}
"""What is called from outside, by name."""
_elsewhere: list[Callable[[Kernel], None]] = []
"""What has a function compiled by another process, if there is anything that does."""


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
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self.py_func = function
        self.signature = signature
        self.nogil = nogil
        self.is_entry = is_entry
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._point: Callable[..., Any] | None = None
        self._address = 0

    def __repr__(self) -> str:
        return f"<Kernel {self.name}>"

    def __call__(self, *arguments: Any) -> Any:
        """Call it as Numba does, compiled if need be; what is called often is called by its :func:`entry`."""
        return self._called(*arguments)

    @functools.cached_property
    def _called(self) -> Any:
        """What Numba calls; a kernel that only other kernels call has nothing that Python could."""
        from numba_kernels import compiling

        return self.dispatcher if self.is_entry else compiling.called_from_python(self)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """What it is to Numba."""
        from numba_kernels import compiling

        return compiling.dispatcher(self)

    @property
    def _numba_type_(self) -> Any:
        """Its type to Numba, which looks for it by this name."""
        from numba_kernels import compiling

        return compiling.type_of(self.dispatcher)

    def compile(self) -> Callable[..., Any]:
        """Return the compiled C entry point: exact argument types, no dispatch (72-128 ns a call)."""
        if self._point is None:
            self._point = self._linked() or self._made_elsewhere()
        if self._point is None:
            # Ranks that call it for the first time at once would all compile it: one does, and the others link it then.
            with contextlib.nullcontext() if self.is_cached() else one_at_a_time():
                self._point = self._linked() or self._made()
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
        return self.is_entry and (os.path.exists(self.image) or self.is_shipped())

    def is_shipped(self) -> bool:
        """Whether the installation has an image of it for this processor."""
        return shipped.find(self.sources, self.image_name) is not None

    @property
    def sources(self) -> str:
        """The digest of what it is made from."""
        return digests.sources_digest(self.py_func.__code__.co_filename)

    @property
    def image(self) -> str:
        """Where its machine code is kept; the line tells functions of one name apart, such as those of a factory."""
        return _image(digests.folder_name(self.py_func.__code__.co_filename), self.image_name)

    @property
    def image_name(self) -> str:
        """What tells its image from others made from the same sources."""
        module = self.py_func.__module__.rpartition(".")[2]
        return f"{module}.{self.py_func.__qualname__}-{self.py_func.__code__.co_firstlineno}"

    def link(self) -> linking.Linked | None:
        """Link it from its image, if it has one that can be."""
        return _link(self.image, self.py_func.__name__) or _link_shipped(self.sources, self.image_name, self.py_func.__name__)

    def _linked(self) -> Callable[..., Any] | None:
        linked = self.link()
        if linked is None:
            return None
        self._address = linked.address
        return linked.point

    def _made_elsewhere(self) -> Callable[..., Any] | None:
        """Link it after another process has compiled it; None if none does or could, or Numba has to load what there is."""
        if not (_elsewhere and self.is_entry and linking.CAN_LINK) or self.has_image():
            return None
        with _one_at_a_time_of(self.image):
            if not self.has_image():
                _elsewhere[0](self)
        return self._linked()

    def _made(self) -> Callable[..., Any]:
        """Compile it; the entry point is Numba's own, which is slower, where no image of it could be kept."""
        compiled = self._compiled()
        point: Callable[..., Any] = self._linked() or compiled.entry_point
        return point

    def _compiled(self) -> Any:
        from numba_kernels import compiling

        return compiling.compiled(self)


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
        Numba signature, such as ``"int64(int64, int64)"``, or one of :mod:`numba_kernels.types`. Addresses are int64.
    nogil
        Release the GIL while it runs (only when entered from Python).
    is_entry
        Python calls it, or native code by its :func:`c_address`: :func:`entry` finds it.
    """

    def decorate(function: Callable[P, R]) -> CompiledFunction[P, R]:
        declared = Kernel(function, signature, nogil=nogil, is_entry=is_entry)
        if is_entry:
            _entries[declared.name] = declared
        return cast(CompiledFunction[P, R], declared)

    return decorate


class Native:
    """A function that native code calls by its address (:attr:`address`): plain C, no GIL, no Python."""

    def __init__(
        self, make: Callable[[], Callable[..., Any]], signature: str, name: str, digest: str, sources: str, optimized: bool
    ) -> None:
        self._make = make
        self._optimized = optimized
        self._signature = signature
        self._digest = digest
        self.image_name = name
        self.sources = sources
        self.callback: Any = None

    @property
    def image(self) -> str:
        """Where its machine code is kept."""
        return _image(digests.folder_of(self._digest), self.image_name)

    @functools.cached_property
    def address(self) -> int:
        """Where the function is. The first look compiles it, or loads it from the disk cache."""
        linked = self._linked()
        if linked is None:
            # As with kernels: one of those that call it for the first time at once compiles it.
            with _one_at_a_time_of(self.image):
                linked = self._linked()
                if linked is None:
                    return self._compiled()
        return linked.address

    def _linked(self) -> linking.Linked | None:
        name = self.image_name
        return _link(self.image, name) or _link_shipped(self.sources, name, name)

    def _compiled(self) -> int:
        from numba_kernels import compiling

        self.callback = compiling.callback(
            self._make(), self._signature, self.image_name, self._digest, self.image, self._optimized
        )
        return int(self.callback.address)


def native(
    make: Callable[[], Callable[..., Any]],
    signature: str,
    name: str,
    digest: str,
    sources: str = "",
    *,
    optimized: bool = True,
) -> Native:
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
        Names what it is made from: see :func:`numba_kernels.digests.module_digest`.
    sources
        The same, but for the versions that compile; empty if no installation comes with it.
    optimized
        What is run a few times takes longer to compile well than it saves.
    """
    return Native(make, signature, name, digest, sources, optimized)


def _image(folder: str, name: str) -> str:
    return linking.image_path(os.path.join(cache_root(), folder), name, processor.name())


def _link(image: str, name: str) -> linking.Linked | None:
    """Link a function from its image; one that is damaged is removed, so that another one is made."""
    try:
        return linking.link(image, name)
    except cache_files.UnusableFile:
        with contextlib.suppress(OSError):
            os.unlink(image)
    except OSError:
        pass
    return None


def _link_shipped(sources: str, name: str, function: str) -> linking.Linked | None:
    """Link a function from an image of the installation."""
    image = shipped.find(sources, name) if sources else None
    if image is not None:
        with contextlib.suppress(OSError):
            return linking.link(image, function, cache_files.read_installed)
    return None


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """Return the entry point of a kernel declared with ``is_entry=True``, compiling or loading it if needed."""
    point: Callable[P, R] = cast(Kernel, function).compile()
    return point


def c_address(function: Any) -> int:
    """Address of a kernel declared with ``is_entry=True`` as a C function, for calls through a pointer or a symbol."""
    return cast(Kernel, function).address()


def callees(function: Any) -> list[Any]:
    """Kernels that a kernel names in its source, itself excluded: they become a part of its machine code.

    Those that it meets otherwise, in an overload or a table, are compiled along with it.
    """
    import dis
    import inspect

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


def compile_elsewhere(ask: Callable[[Kernel], None]) -> None:
    """Before this process compiles a function for itself, call `ask`, which has another one compile it into the cache, if it can."""
    _elsewhere[:] = [ask]


def entries() -> list[Kernel]:
    """All kernels that Python calls, of the modules imported so far."""
    return list(_entries.values())


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Compile as the only process of this user on the node; others that want to wait. Where files cannot be locked all do."""
    with _locked(lambda lock: fcntl.flock(lock, fcntl.LOCK_EX)):
        yield


def _one_at_a_time_of(image: str) -> AbstractContextManager[None]:
    """Make one image as the only process that does; others are made meanwhile, also by workers of a process that is in the one above."""
    place = int.from_bytes(sha256(image.encode()).digest()[:7], "little")
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    return _locked(lambda lock: fcntl.fcntl(lock, fcntl.F_OFD_SETLKW, wanted))


@contextmanager
def _locked(lock_it: Callable[[int], object]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock = os.open(os.path.join(cache_root(), "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            lock_it(lock)
        yield
