"""Numba, when something has to be compiled: the only module that makes its dispatchers, and what they keep on the disk.

Numba's configuration is pinned while our functions are decorated and compiled: a user's ``NUMBA_DISABLE_JIT=1`` is for the
user's functions and would leave the engine without atomics.

Numba tells functions of one name apart, such as the bodies that a factory makes, by a number that every process counts from 1.
Loaded from caches that different processes wrote, two of them would be one symbol to LLVM, and the second would run the
code of the first. So each process counts from a number of its own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import secrets
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import Any, ClassVar

import llvmlite.binding as llvm
import numba
from numba.core import caching, config, sigutils
from numba.core.bytecode import FunctionIdentity
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target

from numba_kernels import cache_files, digests, elf, jit, linking, symbols
from numba_kernels.deferred import real
from numba_kernels.emit.entry_points import SUFFIX, called_with_a_row
from numba_kernels.emit.inlined import inlined

_DIGEST = "numba_kernels_digest"
_EXCEPTION = ".const.picklebuf"
"""How names of constants that hold an exception begin."""
_PINNED = {"DISABLE_JIT": 0, "BOUNDSCHECK": 0, "OPT": numba.core.config._OptLevel(3), "DEBUGINFO_DEFAULT": 0}


def _number_functions() -> None:
    """Let this process number the functions that it compiles as no other one does."""
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(48) << 12)


_number_functions()
os.register_at_fork(after_in_child=_number_functions)
symbols.tell(llvm.add_symbol)


def dispatcher(kernel: jit.Kernel) -> Any:
    """Return what a kernel is to Numba, which compiles it for its declared signature, whatever a caller asks for.

    Callers with literal arguments would each get a compiled variant of their own; Numba converts at the call.
    """
    return _dispatcher(kernel, kernel.py_func, is_inlined=not kernel.is_entry)


def called_from_python(kernel: jit.Kernel) -> Any:
    """Return the dispatcher of a kernel that only other kernels call, with what Python needs to call it, too."""
    function = FunctionType(kernel.py_func.__code__, kernel.py_func.__globals__, kernel.__name__, None, kernel.py_func.__closure__)
    function.__dict__.update(kernel.py_func.__dict__)
    function.__module__ = kernel.__module__
    function.__qualname__ = f"{kernel.py_func.__qualname__}.called"  # beside the other in the cache
    return _dispatcher(kernel, function, is_inlined=False)


def _dispatcher(kernel: jit.Kernel, function: Any, *, is_inlined: bool) -> Any:
    with pinned_configuration():
        made = numba.njit(
            nogil=kernel.nogil,
            error_model="numpy",
            boundscheck=False,
            no_cfunc_wrapper=not kernel.is_entry,
            no_cpython_wrapper=is_inlined,
        )(function)
        made._cache = _Cache(function, kernel.image if kernel.is_entry else None)
    made.compile = functools.partial(_compile_declared, made, made.compile, real(kernel.signature), kernel.is_entry, is_inlined)
    return made


def _compile_declared(
    made: Any, compiler: Callable[[Any], Any], signature: Any, is_entry: bool, is_inlined: bool, _arguments: Any
) -> Any:
    with pinned_configuration(), called_with_a_row(is_entry), inlined(is_inlined):
        point = compiler(signature)
    if not is_inlined:
        for result in made.overloads.values():
            _set_environments(result.library)
    return point


def _set_environments(library: Any) -> None:
    """Have machine code find the environments of the kernels that it took in, which have none of their own that looks for them."""
    for variable in library._final_module.global_variables:
        environment = lookup_environment(variable.name)
        if environment is not None:
            library.codegen.set_env(variable.name, environment)


def compiled(kernel: jit.Kernel) -> Any:
    """Compile a kernel, or load it from the disk cache; what Numba knows of the result."""
    made = kernel.dispatcher
    arguments, _ = sigutils.normalize_signature(real(kernel.signature))
    if arguments not in made.overloads:
        made.compile(())
    return made.overloads[arguments]


def is_kept(kernel: jit.Kernel) -> bool:
    """Whether the disk cache holds a kernel as Numba keeps it."""
    return bool(kernel.dispatcher._cache.holds(real(kernel.signature), kernel.dispatcher.targetctx))


def callback(function: Callable[..., Any], signature: str, name: str, digest: str, image: str, optimized: bool) -> Any:
    """Compile a function that C calls, or load it from the disk cache, where `digest` and `name` tell it from others."""
    function.__name__ = function.__qualname__ = name
    function.__dict__[_DIGEST] = digest
    arguments: Any = sigutils.normalize_signature(signature)
    made: Any = CFunc(function, arguments, locals={}, options={"error_model": "numpy"})
    made._cache = _NamedCache(function, image)
    with pinned_configuration() if optimized else pinned_configuration(OPT=numba.core.config._OptLevel(1)):
        made.compile()
    _set_environments(made._library)
    return made


_typing: ContextVar[Any] = ContextVar("typing", default=cpu_target.typing_context)
"""What types what a function names, in this thread: another machine has another one."""


@contextmanager
def typed_by(context: Any) -> Iterator[None]:
    """Have what functions name typed by another machine's typing context meanwhile: a kernel is a function of that machine to it."""
    before = _typing.set(context)
    try:
        yield
    finally:
        _typing.reset(before)


def type_of(value: Any) -> Any:
    """Return the type of a value that a function names: an intrinsic, a type to convert to, or a function of C."""
    context = _typing.get()
    try:
        return context.resolve_value_type(value)
    except ValueError:
        context.refresh()  # it was made just now
        return context.resolve_value_type(value)


def forget_finalizers() -> None:
    """Take the finalizers of our kernels away, which would do nothing at exit but cost each forked process a thousand pages to copy."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        if isinstance(finalizer.peek()[0], Dispatcher):
            finalizer.detach()


@contextmanager
def pinned_configuration(**others: Any) -> Iterator[None]:
    """Numba's settings as our code needs them, whatever the user's environment says; `others` come before them."""
    pinned = _PINNED | others
    names = [name for name in pinned if hasattr(config, name)]
    saved = {name: getattr(config, name) for name in names}
    for name in names:
        setattr(config, name, pinned[name])
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(config, name, value)


class _Locator(caching._CacheLocator):  # type: ignore[misc]
    """Puts a function's cache under a folder named by its module's digest; the digest is the stamp."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._digest = py_func.__dict__.get(_DIGEST) or digests.module_digest(py_file)
        self._lineno = py_func.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        return os.path.join(cache_files.cache_root(), digests.folder_of(self._digest))

    def ensure_cache_path(self) -> None:
        cache_files.make_folder(self.get_cache_path())

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
            version, stamp, overloads = pickle.loads(cache_files.read(self._index_path))
        except OSError:
            return {}
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        cache_files.write(self._index_path, self._dump((self._version, self._source_stamp, overloads)))

    def _load_data(self, name: str) -> Any:
        return pickle.loads(cache_files.read(self._data_path(name)))

    def _save_data(self, name: str, data: Any) -> None:
        cache_files.write(self._data_path(name), self._dump(data))


class _CacheImpl(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar = [_Locator]


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """Numba's cache of a function, and beside it the image of what is called from outside."""

    _impl_class = _CacheImpl

    def __init__(self, function: Callable[..., Any], image: str | None) -> None:
        super().__init__(function)
        self._image = image
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def holds(self, sig: Any, target_context: Any) -> bool:
        """Whether a compiled function is there for a signature, as it was declared."""
        return self._index_key(sig, target_context.codegen()) in self._cache_file._load_index()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load it; one whose image is gone, or was damaged, is compiled again, which makes another one."""
        if self._image is not None and not os.path.exists(self._image):
            return None
        return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function for later; a folder that was removed meanwhile, or a full disk, costs only the next start."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)
            if self._image is not None and (found := code_of(data)) is not None:
                linking.write_image(self._image, elf.laid_out(*found))


class _NamedCache(_Cache):
    """For generated functions: the folder's digest and the name tell everything, whatever their closures hold."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (sig, codegen.magic_tuple())


def code_of(result: Any) -> tuple[bytes, str, str, str] | None:
    """Return what an image is made of: code of a function, and names in it; None if there is more to it than that, or if it can raise.

    Images have no way to raise (:mod:`numba_kernels.symbols`).
    """
    library, described = result.library, result.fndesc
    environments = [result.environment, *result._find_referenced_environments()]
    if result.reload_init or result.lifted or library.has_dynamic_globals or any(each.consts for each in environments):
        return None
    module = library._final_module
    found = [*module.functions, *module.global_variables]
    if any(symbol.name.startswith(_EXCEPTION) for symbol in found):
        return None
    defined = {symbol.name for symbol in found if not symbol.is_declaration}
    wrapper, c_wrapper, environment = (
        name if name in defined else ""
        for name in (described.llvm_cpython_wrapper_name + SUFFIX, described.llvm_cfunc_wrapper_name, described.env_name)
    )
    _name, _kind, (code, _intermediate) = library.serialize_using_object_code()
    return code, wrapper, c_wrapper, environment
