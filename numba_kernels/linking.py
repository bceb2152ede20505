"""Links compiled functions from the disk cache without starting Numba's compiler.

Numba loads a function from its cache as something to compile others with: the first one brings in all that the compiler knows, and
each has its types and its intermediate code read again. To be called, a function needs its machine code and the addresses of two
symbols. So beside Numba's file lies an *image* with just that; what cannot be linked from an image is loaded by Numba.

====================  ==============================================================================================
``wrapper``           what Python calls: takes the arguments out of their objects; absent in functions for C only
``c_wrapper``         what native code calls
``environment``       the word in which the wrapper expects an object, for constants that our functions do not have
``imports``           what the code refers to outside itself; all of it must be there, as LLVM ends the process otherwise
====================  ==============================================================================================

Images are linked into an execution engine of their own, so that their symbols never meet those of functions that this process compiles.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import marshal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from numba import _dynfunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import _nrt_python

from numba_kernels import cache_files

_NO_CONSTANTS = _dynfunc.Environment({})
"""What all wrappers find in their ``environment``; it must outlive them."""


class Image(NamedTuple):
    """Machine code of a function, an ELF object, and the symbols in it; empty names for those that it has not."""

    code: bytes
    wrapper: str
    c_wrapper: str
    environment: str
    imports: tuple[str, ...]


class Linked(NamedTuple):
    """A function in this process.

    Attributes
    ----------
    point
        What Python calls; None if it is for native code only.
    address
        The C function, 0 if it has none.
    """

    point: Callable[..., Any] | None
    address: int


def image_path(folder: str, name: str, target: tuple[str, ...]) -> Path:
    """Where the image of a function lies; `target` says for which processor it is."""
    return Path(folder) / f"{name}-{hashlib.sha256(repr(target).encode()).hexdigest()[:16]}.image"


def write_image(path: Path, compiled: Any) -> None:
    """Keep the image of a function that Numba has just compiled, unless there is more to it than machine code."""
    image = _image_of(compiled)
    if image is not None:
        cache_files.write(path, marshal.dumps(tuple(image)))


def _image_of(compiled: Any) -> Image | None:
    library, described = compiled.library, compiled.fndesc
    environments = [compiled.environment, *compiled._find_referenced_environments()]
    if compiled.reload_init or compiled.lifted or library.has_dynamic_globals or any(each.consts for each in environments):
        return None
    module = library._final_module
    symbols = [*module.functions, *module.global_variables]
    defined = {symbol.name for symbol in symbols if not symbol.is_declaration}
    imports = {symbol.name for symbol in symbols if symbol.is_declaration and not symbol.name.startswith("llvm.")}
    wrapper, c_wrapper, environment = (
        name if name in defined else ""
        for name in (described.llvm_cpython_wrapper_name, described.llvm_cfunc_wrapper_name, described.env_name)
    )
    _name, _kind, (code, _intermediate) = library.serialize_using_object_code()
    return Image(code, wrapper, c_wrapper, environment, tuple(sorted(imports)))


def link(path: Path, function: Callable[..., Any]) -> Linked | None:
    """Link `function` from its image; None if there is none, or something that it refers to is not in this process.

    Raises
    ------
    UnusableFile
        The image is damaged, or another user may have written it.
    OSError
        It cannot be read.
    """
    try:
        image = Image(*marshal.loads(cache_files.read(path)))
    except FileNotFoundError:
        return None
    except (EOFError, TypeError, ValueError) as error:
        raise cache_files.UnusableFile(f"{path} is no image") from error
    with global_compiler_lock:
        engine = _engine()
        if any(llvm.address_of_symbol(name) is None for name in image.imports):
            return None
        engine.add_object_file(llvm.ObjectFileRef.from_data(image.code))
        engine.finalize_object()
        point = _python_function(engine, image, function) if image.wrapper else None
        return Linked(point, engine.get_function_address(image.c_wrapper) if image.c_wrapper else 0)


def _python_function(engine: Any, image: Image, function: Callable[..., Any]) -> Callable[..., Any]:
    if image.environment:
        word = ctypes.c_void_p.from_address(engine.get_global_value_address(image.environment))
        word.value = id(_NO_CONSTANTS)
    point: Callable[..., Any] = _dynfunc.make_function(
        sys.modules[function.__module__],
        function.__name__,
        f"compiled wrapper for {function.__qualname__!r}",
        engine.get_function_address(image.wrapper),
        _NO_CONSTANTS,
        (engine,),
    )
    return point


@functools.cache
def _engine() -> Any:
    """The execution engine of all images. LLVM is told where Numba's runtime is, which wrappers refer to: the compiler may not be there."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, address in _nrt_python.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
