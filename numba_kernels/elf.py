"""What the compiler writes, an ELF object, laid out as :mod:`numba_kernels.linking` puts it into memory.

The code is in the large code model: it refers to everything, itself included, by addresses of 64 bits, and these are all that has to be
filled in. Objects for processors other than x86-64, and what else is not known here, are left to Numba.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

from numba_kernels.linking import Image
from numba_kernels.rows import NamedTuple

_HEADER, _SECTION, _SYMBOL, _RELOCATION = (
    struct.Struct("<4s36xQ12xHH"),
    struct.Struct("<IIQQQQIIQQ"),
    struct.Struct("<IBBHQQ"),
    struct.Struct("<QQq"),
)
_ADDRESS = struct.Struct("<Q")
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_WRITE, _ALLOCATED = 1, 2
_UNWINDING = 0x70000001
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_ADDRESS_OF_64_BITS = 1
_LINE = 64
"""Bytes of a cache line: no variable of a function shares one with those of another."""


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


def laid_out(code: bytes, wrapper: str, c_wrapper: str, environment: str) -> Image | None:
    """Lay out the code of a function. Names that it has not are empty; None if there is something in it that is not known here."""
    try:
        return _Object(code).image((wrapper, c_wrapper, environment))
    except (LookupError, ValueError, StopIteration, struct.error):
        return None


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
        self._fixed, end = self._lay_out_sections()
        self._code_bytes = _round_up(end, mmap.PAGESIZE)
        self._variable, behind = self._lay_out_variables()
        self._variable_bytes = _round_up(behind, _LINE)
        self._memory = bytearray(end)

    def image(self, names: tuple[str, str, str]) -> Image:
        """What is linked, with the places of these names."""
        for number, at in self._fixed.items():
            section = self._sections[number]
            if section.kind != _NO_BITS:
                self._memory[at : at + section.size] = self._bytes_of(section)
        own: list[int] = []
        foreign: dict[str, list[int]] = {}
        for at, symbol, addend in self._references():
            place = self._place(symbol)
            if place is not None:
                own += [at, place + addend]
            elif self._symbols[symbol].section == _UNDEFINED and self._symbols[symbol].name:
                foreign.setdefault(self._symbols[symbol].name, []).extend((at, addend))
            else:
                _ADDRESS.pack_into(self._memory, at, (self._symbols[symbol].value + addend) % (1 << 64))
        wrapper, c_wrapper, environment = map(self._point, names)
        return Image(
            bytes(self._memory), self._code_bytes, self._variable_bytes, wrapper, c_wrapper, environment, tuple(own), foreign
        )

    def _point(self, name: str) -> int:
        """Where a name is, -1 for an empty one."""
        if not name:
            return -1
        found = (self._place(number) for number, symbol in enumerate(self._symbols) if symbol.name == name)
        return next(place for place in found if place is not None)

    def _bytes_of(self, section: _Section) -> bytes:
        return self._content[section.offset : section.offset + section.size]

    def _read_symbols(self, table: _Section) -> Iterator[_Symbol]:
        names = self._sections[table.link].offset
        for name, _info, _other, section, value, size in _SYMBOL.iter_unpack(self._bytes_of(table)):
            at = names + name
            yield _Symbol(self._content[at : self._content.index(b"\0", at)].decode(), section, value, size)

    def _lay_out_sections(self) -> tuple[dict[int, int], int]:
        """Where code and constants are by section, and where they end."""
        fixed, end = {}, 0
        for number, section in enumerate(self._sections):
            if section.flags & _ALLOCATED and section.kind != _UNWINDING and section.size:
                if section.flags & _WRITE:
                    raise ValueError("a section of variables")
                fixed[number] = _round_up(end, max(section.alignment, 1))
                end = fixed[number] + section.size
        return fixed, end

    def _lay_out_variables(self) -> tuple[dict[int, int], int]:
        """Where variables are by symbol, and where they end; none is at 0, which counts as the end of the code."""
        variable, behind = {}, 1
        for number, symbol in enumerate(self._symbols):
            if symbol.section == _COMMON:  # its value is the alignment
                variable[number] = _round_up(behind, max(symbol.value, 1))
                behind = variable[number] + symbol.size
        return variable, behind

    def _place(self, number: int) -> int | None:
        """Where a symbol is, counted from the first byte of the code; None for what is not in the object."""
        symbol = self._symbols[number]
        if symbol.section == _COMMON:
            return self._code_bytes + self._variable[number]
        if symbol.section in (_UNDEFINED, _ABSOLUTE):
            return None
        return self._fixed[symbol.section] + symbol.value

    def _references(self) -> Iterator[tuple[int, int, int]]:
        """Where an address has to be filled in, of which symbol, and how many bytes behind it."""
        for section in self._sections:
            if section.kind == _RELOCATIONS and section.info in self._fixed:
                for at, info, addend in _RELOCATION.iter_unpack(self._bytes_of(section)):
                    if info & 0xFFFFFFFF != _ADDRESS_OF_64_BITS:
                        raise ValueError("not in the large code model")
                    yield self._fixed[section.info] + at, info >> 32, addend


def _round_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
