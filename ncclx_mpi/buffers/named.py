"""The predefined layouts, and which one a type code of Python or NumPy means.

Sizes are those of the 64-bit Linux ABI (LP64, long double of 16 bytes). A type that no C or Fortran compiler there
offers (LOGICAL16, INTEGER16, COMPLEX4) is null, as in other MPI libraries.
"""

from __future__ import annotations

from ncclx_mpi import constants as mpi
from ncclx_mpi.buffers import shapes
from ncclx_mpi.buffers.layout import Layout, basic, pair
from ncclx_mpi.errors import ERR_ARG, fail

# name: size, alignment, character code, type string, preferred code ("c" character or "s" string), reduction kind
_BASIC = """
PACKED 1 1 B u1 c -
BYTE 1 1 B u1 c byte
AINT 8 8 p i8 c i64
OFFSET 8 8 p i8 c i64
COUNT 8 8 p i8 c i64
CHAR 1 1 c S1 c i8
WCHAR 4 4 U U1 c -
SIGNED_CHAR 1 1 b i1 c i8
SHORT 2 2 h i2 c i16
INT 4 4 i i4 c i32
LONG 8 8 l i8 c i64
LONG_LONG 8 8 q i8 c i64
UNSIGNED_CHAR 1 1 B u1 c u8
UNSIGNED_SHORT 2 2 H u2 c u16
UNSIGNED 4 4 I u4 c u32
UNSIGNED_LONG 8 8 L u8 c u64
UNSIGNED_LONG_LONG 8 8 Q u8 c u64
FLOAT 4 4 f f4 c f32
DOUBLE 8 8 d f8 c f64
LONG_DOUBLE 16 16 g f16 c f80
C_BOOL 1 1 ? b1 s bool
INT8_T 1 1 b i1 s i8
INT16_T 2 2 h i2 s i16
INT32_T 4 4 i i4 s i32
INT64_T 8 8 l i8 s i64
UINT8_T 1 1 B u1 s u8
UINT16_T 2 2 H u2 s u16
UINT32_T 4 4 I u4 s u32
UINT64_T 8 8 L u8 s u64
FLOAT16_T 2 2 e f2 c f16
BFLOAT16_T 2 2 - - - bf16
C_FLOAT_COMPLEX 8 4 F c8 c c64
C_DOUBLE_COMPLEX 16 8 D c16 c c128
C_LONG_DOUBLE_COMPLEX 32 16 G c32 c c160
CXX_BOOL 1 1 ? b1 c bool
CXX_FLOAT_COMPLEX 8 4 F c8 c c64
CXX_DOUBLE_COMPLEX 16 8 D c16 c c128
CXX_LONG_DOUBLE_COMPLEX 32 16 G c32 c c160
CHARACTER 1 1 c S1 c -
LOGICAL 4 4 i i4 c i32
INTEGER 4 4 i i4 c i32
REAL 4 4 f f4 c f32
DOUBLE_PRECISION 8 8 d f8 c f64
COMPLEX 8 4 F c8 c c64
DOUBLE_COMPLEX 16 8 D c16 c c128
LOGICAL1 1 1 ? b1 s i8
LOGICAL2 2 2 h i2 s i16
LOGICAL4 4 4 i i4 s i32
LOGICAL8 8 8 l i8 s i64
INTEGER1 1 1 b i1 s i8
INTEGER2 2 2 h i2 s i16
INTEGER4 4 4 i i4 s i32
INTEGER8 8 8 l i8 s i64
REAL2 2 2 e f2 s f16
REAL4 4 4 f f4 s f32
REAL8 8 8 d f8 s f64
REAL16 16 16 g f16 s -
COMPLEX8 8 4 F c8 s c64
COMPLEX16 16 8 D c16 s c128
COMPLEX32 32 16 G c32 s -
"""

_PAIRS = {
    "SHORT_INT": ("SHORT", "i16,i32"),
    "INT_INT": ("INT", "i32,i32"),
    "LONG_INT": ("LONG", "i64,i32"),
    "FLOAT_INT": ("FLOAT", "f32,i32"),
    "DOUBLE_INT": ("DOUBLE", "f64,i32"),
    "LONG_DOUBLE_INT": ("LONG_DOUBLE", "f80,i32"),
}

NULL_NAMES = ("INTEGER16", "LOGICAL16", "COMPLEX4")

ALIASES = {
    "FLOAT32_T": "FLOAT",
    "FLOAT64_T": "DOUBLE",
    "C_COMPLEX": "C_FLOAT_COMPLEX",
    "TWOINT": "INT_INT",
    "UNSIGNED_INT": "UNSIGNED",
    "SIGNED_SHORT": "SHORT",
    "SIGNED_INT": "INT",
    "SIGNED_LONG": "LONG",
    "SIGNED_LONG_LONG": "LONG_LONG",
    "BOOL": "C_BOOL",
    "SINT8_T": "INT8_T",
    "SINT16_T": "INT16_T",
    "SINT32_T": "INT32_T",
    "SINT64_T": "INT64_T",
    "F_BOOL": "LOGICAL",
    "F_INT": "INTEGER",
    "F_FLOAT": "REAL",
    "F_DOUBLE": "DOUBLE_PRECISION",
    "F_COMPLEX": "COMPLEX",
    "F_FLOAT_COMPLEX": "COMPLEX",
    "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
}

_C_CODES = """
? C_BOOL b SIGNED_CHAR h SHORT i INT l LONG q LONG_LONG
B UNSIGNED_CHAR H UNSIGNED_SHORT I UNSIGNED L UNSIGNED_LONG Q UNSIGNED_LONG_LONG
f FLOAT d DOUBLE g LONG_DOUBLE F C_FLOAT_COMPLEX D C_DOUBLE_COMPLEX G C_LONG_DOUBLE_COMPLEX
b1 C_BOOL i1 INT8_T i2 INT16_T i4 INT32_T i8 INT64_T u1 UINT8_T u2 UINT16_T u4 UINT32_T u8 UINT64_T
f2 FLOAT16_T f4 FLOAT f8 DOUBLE f16 LONG_DOUBLE
c8 C_FLOAT_COMPLEX c16 C_DOUBLE_COMPLEX c32 C_LONG_DOUBLE_COMPLEX
"""

_MORE_CODES = """
e FLOAT16_T Zf C_FLOAT_COMPLEX Zd C_DOUBLE_COMPLEX Zg C_LONG_DOUBLE_COMPLEX
n COUNT N UNSIGNED_LONG p AINT P UNSIGNED_LONG
c CHAR a CHAR S CHAR S1 CHAR s CHAR 1s CHAR U WCHAR U1 WCHAR u UINT16_T 1u UINT16_T w WCHAR 1w WCHAR
M INT64_T M8 INT64_T m INT64_T m8 INT64_T
"""

_F_CODES = """
l LOGICAL i INTEGER r REAL s REAL d DOUBLE_PRECISION c COMPLEX z DOUBLE_COMPLEX
l1 LOGICAL1 l2 LOGICAL2 l4 LOGICAL4 l8 LOGICAL8 i1 INTEGER1 i2 INTEGER2 i4 INTEGER4 i8 INTEGER8
r2 REAL2 r4 REAL4 r8 REAL8 r16 REAL16 c8 COMPLEX8 c16 COMPLEX16 c32 COMPLEX32
"""

_MPI_NAMES = {"LONG_LONG": "LONG_LONG_INT", "INT_INT": "2INT"}

# precision in decimal digits, largest decimal exponent, real type, complex type
_REALS = ((6, 37, "REAL4", "COMPLEX8"), (15, 307, "REAL8", "COMPLEX16"), (33, 4931, "REAL16", "COMPLEX32"))
_INTEGERS = ((2, "INTEGER1"), (4, "INTEGER2"), (9, "INTEGER4"), (18, "INTEGER8"))
_MATCHES = {
    mpi.TYPECLASS_REAL: ("real", {2: "REAL2", 4: "REAL4", 8: "REAL8", 16: "REAL16"}),
    mpi.TYPECLASS_INTEGER: ("integer", {1: "INTEGER1", 2: "INTEGER2", 4: "INTEGER4", 8: "INTEGER8"}),
    mpi.TYPECLASS_COMPLEX: ("complex", {8: "COMPLEX8", 16: "COMPLEX16", 32: "COMPLEX32"}),
    mpi.TYPECLASS_LOGICAL: ("logical", {1: "LOGICAL1", 2: "LOGICAL2", 4: "LOGICAL4", 8: "LOGICAL8"}),
}


def _make_basic(row: str) -> tuple[str, Layout]:
    name, size, align, char, string, preferred, kind = row.split()
    layout = basic(f"MPI_{_MPI_NAMES.get(name, name)}", int(size), int(align))
    if char != "-":
        layout.typechar, layout.typestr = char, string
        layout.code = char if preferred == "c" else string
    layout.kind = None if kind == "-" else kind
    return name, layout


def _make_pair(name: str) -> Layout:
    value, kind = _PAIRS[name]
    layout = pair(f"MPI_{_MPI_NAMES.get(name, name)}", LAYOUTS[value], LAYOUTS["INT"])
    layout.kind = kind
    return layout


def _codes(*tables: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for table in tables:
        items = table.split()
        found.update(zip(items[::2], items[1::2], strict=True))
    return found


LAYOUTS: dict[str, Layout] = dict(_make_basic(row) for row in _BASIC.strip().splitlines())
LAYOUTS.update({name: _make_pair(name) for name in _PAIRS})

CODES = _codes(_C_CODES, _MORE_CODES)
CODES_C = _codes(_C_CODES)
CODES_F = _codes(_F_CODES)

_fortran_types: dict[tuple[int, ...], Layout] = {}


def match_size(typeclass: int, size: int) -> str:
    """Name of the Fortran type of this class and size."""
    if typeclass not in _MATCHES:
        fail(ERR_ARG, f"{typeclass} is not one of the TYPECLASS_ constants")
    word, sizes = _MATCHES[typeclass]
    if size not in sizes:
        fail(ERR_ARG, f"there is no {word} type of {size} bytes; sizes are {', '.join(map(str, sizes))}")
    return sizes[size]


def value_index(value: Layout, index: Layout) -> Layout | None:
    """The predefined pair of a value and its location, or None where MPI has none."""
    if index is not LAYOUTS["INT"]:
        return None
    return next((LAYOUTS[name] for name, (of, _) in _PAIRS.items() if LAYOUTS[of] is value), None)


def f90_integer(digits: int) -> Layout:
    """Smallest Fortran integer type with this many decimal digits."""
    name = next((name for most, name in _INTEGERS if digits <= most), None)
    if name is None:
        fail(ERR_ARG, f"no Fortran integer has {digits} decimal digits; at most 18")
    return _fortran(name, mpi.COMBINER_F90_INTEGER, {"r": digits})


def f90_float(digits: int, exponent: int, *, is_complex: bool) -> Layout:
    """Smallest Fortran real or complex type with this precision and decimal exponent range."""
    row = next((row for row in _REALS if digits <= row[0] and exponent <= row[1]), None)
    if row is None:
        fail(ERR_ARG, f"no Fortran real has {digits} decimal digits and an exponent of {exponent}; at most 33 and 4931")
    combiner = mpi.COMBINER_F90_COMPLEX if is_complex else mpi.COMBINER_F90_REAL
    return _fortran(row[3] if is_complex else row[2], combiner, {"p": digits, "r": exponent})


def _fortran(name: str, combiner: int, params: dict[str, int]) -> Layout:
    """One layout for equal arguments, as MPI demands."""
    key = (combiner, *params.values())
    if key not in _fortran_types:
        _fortran_types[key] = shapes.fortran(LAYOUTS[name], combiner, params)
    return _fortran_types[key]
