"""Links compiled functions from the disk cache, without Numba and without LLVM.

Numba loads a function from its cache as something to compile others with: its import takes 0.2 s, the compiler's start as long again. To be
called, a function needs its machine code and the addresses that this refers to. So beside Numba's file lies an *image* with just that, laid
out by :mod:`numba_kernels.elf` when it was compiled; what cannot be linked from an image is loaded by Numba.

In memory it is in two places::

    | code, constants ...    whole pages: written, then read and executed
    | variables ...          read and written

Pages are never written and executed at once, and stay until the process ends. Functions lie one behind another, so that those of a
program are a few mappings, not two each: the kernel copies every mapping in a fork, and takes it apart at the end (design/051). Frames
have no unwinding tables here: a thread that the interpreter ends inside a function, when it exits itself, ends there (glibc takes a frame
without a table for the last one).
"""

from __future__ import annotations

import ctypes
import marshal
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

from numba_kernels import cache_files, symbols
from numba_kernels.rows import NamedTuple
from numba_kernels.sha256 import sha256

_ADDRESS = struct.Struct("<Q")
CAN_LINK = os.uname().machine in ("x86_64", "AMD64")
_TAKES_A_ROW = 0x80
"""METH_FASTCALL: arguments come one behind the other in memory, and how many they are."""

symbols.add("ncclx_mpi_type_error", id(TypeError))
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Image(NamedTuple):
    """A function as it is kept. All places are counted from the first byte of the code; -1 is none.

    Attributes
    ----------
    content
        Code and constants.
    code_bytes, variable_bytes
        Whole pages for them, and for variables, whose places are counted as if they came behind.
    wrapper
        What Python calls, with a row of arguments (:mod:`numba_kernels.emit.entry_points`): takes them out of their objects; absent in
        functions for C only.
    c_wrapper
        What native code calls.
    environment
        The word in which the wrapper expects an object, for constants that our functions do not have.
    own
        Where to fill in an address of the function itself, and which place it is, one after the other.
    foreign
        The same by name of what is elsewhere; there it is how many bytes behind that.
    """

    content: bytes
    code_bytes: int
    variable_bytes: int
    wrapper: int
    c_wrapper: int
    environment: int
    own: tuple[int, ...]
    foreign: Mapping[str, list[int]]


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


def image_path(folder: str, name: str, target: str) -> str:
    """Where the image of a function lies; `target` says for which processor it is."""
    return os.path.join(folder, f"{name}-{sha256(target.encode()).hexdigest()[:16]}.image")


def write_image(path: str, image: Image | None) -> None:
    """Keep the image of a function; None is kept, too: it says that Numba has to load it."""
    found: Any = None if image is None else tuple(image)
    cache_files.write(path, marshal.dumps(found))


def link(path: str, name: str, read: Callable[[str], memoryview] = cache_files.read) -> Linked | None:
    """Link the function `name` from its image; None if there is none that can be linked here, and Numba has to load it.

    `read` reads the file: an installation's is trusted as its modules are.

    Raises
    ------
    UnusableFile
        The image is damaged, or another user may have written it.
    OSError
        It cannot be read, or there is no memory for it.
    """
    if not CAN_LINK:
        return None
    try:
        found = marshal.loads(read(path))
        if found is None:
            return None
        image = Image(*found)
    except FileNotFoundError:
        return None
    except (EOFError, TypeError, ValueError) as error:
        raise cache_files.UnusableFile(f"{path} is no image") from error
    addresses = {symbol: symbols.find(symbol) for symbol in image.foreign}
    if not all(addresses.values()):
        return None
    base, variables = _load(image, addresses)
    if image.environment >= 0:
        ctypes.c_void_p.from_address(variables + image.environment).value = id(None)
    point = _python_function(name, base + image.wrapper) if image.wrapper >= 0 else None
    return Linked(point, base + image.c_wrapper if image.c_wrapper >= 0 else 0)


def _load(image: Image, addresses: Mapping[str, int]) -> tuple[int, int]:
    """Put code into memory of this process; returns from where its places, and those of its variables, are counted."""
    base, variables = _code.take(image.code_bytes), _variables.take(image.variable_bytes) - image.code_bytes
    content = bytearray(image.content)
    for at, place in zip(image.own[::2], image.own[1::2], strict=True):
        _ADDRESS.pack_into(content, at, (base if place <= image.code_bytes else variables) + place)
    for symbol, places in image.foreign.items():
        for at, behind in zip(places[::2], places[1::2], strict=True):
            _ADDRESS.pack_into(content, at, addresses[symbol] + behind)
    ctypes.memmove(base, bytes(content), len(content))
    if _libc.mprotect(base, image.code_bytes, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "code cannot be made executable here")
    return base, variables


class _Space:
    """Zeroed memory that is given away piece by piece, and never comes back.

    Whoever takes a piece has what is left in hand meanwhile; another thread, or a finalizer that comes in between, begins anew.
    """

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._left: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> int:
        """The address of so many bytes."""
        try:
            at, end = self._left.pop()
        except IndexError:
            at = end = 0
        if end - at < nbytes:
            at = _pages(max(self._chunk, nbytes))
            end = at + max(self._chunk, nbytes)
        self._left.append((at + nbytes, end))
        return at


_code, _variables, _methods = _Space(1 << 20), _Space(1 << 14), _Space(1 << 14)
_METHOD = struct.Struct("<QQqQ")
"""PyMethodDef, a structure of the interpreter: its name, what is called, flags, and a text that no function of ours has."""
_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype = ctypes.py_object
_new_function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def _python_function(name: str, wrapper: int) -> Callable[..., Any]:
    """What Python calls. The interpreter reads its PyMethodDef until the last garbage is collected, when no module is left: it stays."""
    text = name.encode() + b"\0"
    method = _methods.take(_METHOD.size + (len(text) + 7 & ~7))
    content = _METHOD.pack(method + _METHOD.size, wrapper, _TAKES_A_ROW, 0) + text
    ctypes.memmove(method, content, len(content))
    function: Callable[..., Any] = _new_function(method, None, None)
    return function


def _pages(nbytes: int) -> int:
    """New memory, zeroed."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "there is no memory for a function")
    return int(base)
