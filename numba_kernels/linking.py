"""Links compiled functions from the disk cache, without Numba and without LLVM.

Numba loads a function from its cache as something to compile others with: its import takes 0.2 s, the compiler's start as long again. To be
called, a function needs its machine code and the addresses that this refers to. So beside Numba's file lies an *image* with just that; what
cannot be linked from an image is loaded by Numba.

====================  ==============================================================================================
``wrapper``           what Python calls, with a row of arguments (:mod:`numba_kernels.emit.entry_points`): takes them out of their
                      objects; absent in functions for C only
``c_wrapper``         what native code calls
``environment``       the word in which the wrapper expects an object, for constants that our functions do not have
``imports``           what the code refers to outside itself; all of it must be there
====================  ==============================================================================================

The code is an ELF object in the large code model: it refers to everything, itself included, by addresses of 64 bits, and these are
all that has to be filled in::

    | code, constants       read and executed   |
    | variables             read and written    |

Both are pages of their own, never written and executed at once, and stay until the process ends. Frames have no unwinding tables here: a
thread that the interpreter ends inside a function, when it exits itself, ends there (glibc takes a frame without a table for the last one).
Objects for processors other than x86-64 are left to Numba.
"""

from __future__ import annotations

import ctypes
import marshal
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numba_kernels import cache_files, symbols
from numba_kernels.sha256 import sha256

_HEADER, _SECTION, _SYMBOL, _RELOCATION = (
    struct.Struct("<4s36xQ12xHH"),
    struct.Struct("<IIQQQQIIQQ"),
    struct.Struct("<IBBHQQ"),
    struct.Struct("<QQq"),
)
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_WRITE, _ALLOCATED = 1, 2
_UNWINDING = 0x70000001
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_ADDRESS_OF_64_BITS = 1
CAN_LINK = os.uname().machine in ("x86_64", "AMD64")
_TAKES_A_ROW = 0x80
"""METH_FASTCALL: arguments come one behind the other in memory, and how many they are."""

symbols.add("ncclx_mpi_type_error", id(TypeError))
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


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


def image_path(folder: Path, name: str, target: str) -> Path:
    """Where the image of a function lies; `target` says for which processor it is."""
    return folder / f"{name}-{sha256(target.encode()).hexdigest()[:16]}.image"


def write_image(path: Path, image: Image) -> None:
    """Keep the image of a function."""
    cache_files.write(path, marshal.dumps(tuple(image)))


def link(path: Path, name: str, read: Callable[[Path], memoryview] = cache_files.read) -> Linked | None:
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
        image = Image(*marshal.loads(read(path)))
    except FileNotFoundError:
        return None
    except (EOFError, TypeError, ValueError) as error:
        raise cache_files.UnusableFile(f"{path} is no image") from error
    if not all(map(symbols.find, image.imports)):
        return None
    try:
        found = _Object(image.code).load()
        wrapper, c_wrapper, environment = (found[symbol] if symbol else 0 for symbol in image[1:4])
    except (LookupError, ValueError, struct.error):
        return None  # its checksum is right: the compiler has written what is not known here
    if environment:
        ctypes.c_void_p.from_address(environment).value = id(None)
    return Linked(_python_function(name, wrapper) if wrapper else None, c_wrapper)


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


class _Object:
    """A relocatable ELF object, as LLVM writes them."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        magic, sections_at, count, _names = _HEADER.unpack_from(content, 0)
        if magic != b"\x7fELF":
            raise ValueError("no ELF object")
        self._sections = [_Section(*_SECTION.unpack_from(content, sections_at + _SECTION.size * k)) for k in range(count)]
        table = next(section for section in self._sections if section.kind == _SYMBOLS)
        self._symbols = list(self._read_symbols(table))

    def load(self) -> dict[str, int]:
        """Put it into memory of this process; returns where each name is."""
        fixed, variable, code_bytes, variable_bytes = self._lay_out()
        base = _pages(code_bytes + variable_bytes)
        places = {number: base + offset for number, offset in fixed.items()}
        for number, place in places.items():
            section = self._sections[number]
            if section.kind != _NO_BITS:
                ctypes.memmove(place, self._bytes_of(section), section.size)
        addresses = [
            self._address(symbol, places, base + code_bytes + variable.get(number, 0))
            for number, symbol in enumerate(self._symbols)
        ]
        self._relocate(places, addresses)
        if _libc.mprotect(base, code_bytes, mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "code cannot be made executable here")
        return {symbol.name: address for symbol, address in zip(self._symbols, addresses, strict=True) if symbol.section}

    def _bytes_of(self, section: _Section) -> bytes:
        return self._content[section.offset : section.offset + section.size]

    def _read_symbols(self, table: _Section) -> Iterator[_Symbol]:
        names = self._sections[table.link].offset
        for name, _info, _other, section, value, size in _SYMBOL.iter_unpack(self._bytes_of(table)):
            at = names + name
            yield _Symbol(self._content[at : self._content.index(b"\0", at)].decode(), section, value, size)

    def _lay_out(self) -> tuple[dict[int, int], dict[int, int], int, int]:
        """Offsets of sections, offsets of variables behind them by symbol, and bytes of both."""
        fixed, end = {}, 0
        for number, section in enumerate(self._sections):
            if section.flags & _ALLOCATED and section.kind != _UNWINDING and section.size:
                if section.flags & _WRITE:
                    raise ValueError("a section of variables")
                fixed[number] = _round_up(end, max(section.alignment, 1))
                end = fixed[number] + section.size
        variable, behind = {}, 0
        for number, symbol in enumerate(self._symbols):
            if symbol.section == _COMMON:  # its value is the alignment
                variable[number] = _round_up(behind, max(symbol.value, 1))
                behind = variable[number] + symbol.size
        return fixed, variable, _round_up(end, mmap.PAGESIZE), _round_up(behind, mmap.PAGESIZE)

    def _address(self, symbol: _Symbol, places: dict[int, int], variable: int) -> int:
        if symbol.section == _UNDEFINED:
            return symbols.find(symbol.name) if symbol.name else 0
        if symbol.section == _COMMON:
            return variable
        return symbol.value if symbol.section == _ABSOLUTE else places.get(symbol.section, 0) + symbol.value

    def _relocate(self, places: dict[int, int], addresses: list[int]) -> None:
        for section in self._sections:
            if section.kind != _RELOCATIONS or section.info not in places:
                continue
            base = places[section.info]
            for at, info, addend in _RELOCATION.iter_unpack(self._bytes_of(section)):
                if info & 0xFFFFFFFF != _ADDRESS_OF_64_BITS:
                    raise ValueError("not in the large code model")
                ctypes.c_uint64.from_address(base + at).value = addresses[info >> 32] + addend


class _Method(ctypes.Structure):
    """PyMethodDef, a structure of the interpreter."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_methods: list[_Method] = []
"""Functions of the interpreter point to them."""
_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype = ctypes.py_object
_new_function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def _python_function(name: str, wrapper: int) -> Callable[..., Any]:
    method = _Method(name.encode(), wrapper, _TAKES_A_ROW, f"compiled wrapper for {name!r}".encode())
    _methods.append(method)
    function: Callable[..., Any] = _new_function(ctypes.addressof(method), None, None)
    return function


def _pages(nbytes: int) -> int:
    """New memory, zeroed."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "there is no memory for a function")
    return int(base)


def _round_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
