"""Native reductions against their NumPy twins: every operation on every type, bit for bit."""

import ctypes
import re
from itertools import product

import numba
import numpy as np
import pytest

from numba_kernels import reduce
from numba_kernels.emit import cells, loop
from numba_kernels.reduce import native
from numba_kernels.reduce.elements import OPERATIONS
from numba_kernels.reduce.narrow import FORMATS
from numba_kernels.reduce.table import COMPLEX, FLOATS, PAIRS

C_FUNCTION = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
GUARD = 64
DEFINED = [(op, kind) for kind, op in product(reduce.TYPES, OPERATIONS) if reduce.defined(op, kind)]
NATIVE = [(op, kind) for op, kind in DEFINED if kind not in ("f80", "c160", "f80,i32")]
PLACEMENTS = ("apart", "out is low", "out is high")


def special_values(dtype):
    """Values at which arithmetic of this type is decided, and some ordinary ones."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        edges = [info.min, info.min + 1, info.max - 1, info.max, info.max // 2 + 1]
        ordinary = np.random.default_rng(7).integers(info.min, info.max, 40, dtype, endpoint=True)
        return np.concatenate([np.array([*edges, 0, 1, 2, 3], dtype), ordinary])
    info = np.finfo(dtype)
    edges = [0.0, 1.0, 1.5, np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal, info.eps]
    ordinary = np.random.default_rng(7).standard_normal(25) * 10.0 ** np.arange(-2, 3).repeat(5)
    values = np.concatenate([np.array(edges, dtype), ordinary.astype(dtype)])
    return np.concatenate([values, -values])


def crossed(left, right):
    """Every element of `left` with every one of `right`."""
    return np.repeat(left, len(right)), np.tile(right, len(left))


def upper_halves(values):
    """bfloat16 of float32, rounded towards zero."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def operands(kind, stride=4):
    """Low and high operands: all pairs for 8 bits, all values with every `stride`-th partner for 16, special values beyond."""
    dtype = reduce.dtype(kind)
    if kind in PAIRS:
        values = special_values(dtype["value"])
        indices = np.array([5, -1, 5], np.intc)
        cases = np.zeros(len(values) * len(indices), dtype)
        cases["value"], cases["index"] = crossed(values, indices)
        return crossed(cases, cases)
    if dtype.itemsize == 1:
        every = np.arange(256, dtype=np.uint8).view(dtype)
        return crossed(every, every)
    if dtype.itemsize == 2:
        every = np.arange(65536, dtype=np.uint16).view(dtype)
        partners = upper_halves(special_values(np.dtype(np.float32))) if kind == "bf16" else special_values(dtype)
        low, high = crossed(every, partners[::stride])
        return np.concatenate([low, high]), np.concatenate([high, low])
    if dtype.kind == "c":
        parts = special_values(np.dtype(f"f{dtype.itemsize // 2}"))[::3]
        real, imaginary = crossed(parts, parts)
        values = np.empty(len(real), dtype)
        values.real, values.imag = real, imaginary
        return crossed(values, values)
    return crossed(special_values(dtype), special_values(dtype))


def placed(array, offset):
    """Return a copy of `array`, `offset` bytes off any alignment, between guard bytes."""
    memory = np.full(array.nbytes + 2 * GUARD, 0xA5, np.uint8)
    start = GUARD + offset - memory.ctypes.data % 64 % GUARD
    memory[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return memory, np.frombuffer(memory, array.dtype, len(array), start)


def run(function, low, high, placement, offset):
    """Call the C function on misaligned copies; returns what is in `out`, having checked what is around it."""
    (_, low), (memory, high) = placed(low, offset), placed(high, offset)
    out = {"apart": None, "out is low": low, "out is high": high}[placement]
    if out is None:
        memory, out = placed(np.zeros(len(low), low.dtype), offset)
    guards = memory.copy()
    function(out.ctypes.data, low.ctypes.data, high.ctypes.data, len(out))
    start = out.ctypes.data - memory.ctypes.data
    guards[start : start + out.nbytes] = memory[start : start + out.nbytes]
    assert (guards == memory).all(), "bytes around the result were written"
    return out.copy()


def twin_of(op, kind, low, high):
    if kind == "bool":  # any nonzero byte is true in C; NumPy looks at the bytes in its own way
        low, high, kind = low.view(np.uint8), high.view(np.uint8), "u8"
    expected = np.zeros_like(low)
    reduce.numpy_twin(op, kind)(expected, low, high)
    return expected


def assert_same(got, expected, kind=""):
    """Equal bits; any NaN equals any NaN."""
    if kind == "bf16":
        got, expected = ((bits.astype(np.uint32) << 16).view(np.float32) for bits in (got, expected))
    if got.dtype.fields:
        for name in got.dtype.names:
            assert_same(got[name], expected[name])
        return
    if got.dtype.kind == "c":
        assert_same(got.real.copy(), expected.real.copy())
        assert_same(got.imag.copy(), expected.imag.copy())
        return
    if got.dtype == np.bool_:
        got = got.view(np.uint8)
    np.testing.assert_array_equal(got, expected)
    if got.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize(("op", "kind"), NATIVE)
def test_native_kernel_equals_its_numpy_twin(op, kind):
    function = C_FUNCTION(reduce.address(op, kind))
    low, high = operands(kind)
    expected = twin_of(op, kind, low, high)
    for placement in PLACEMENTS:
        assert_same(run(function, low, high, placement, 0), expected, kind)
    for placement, count, offset in product(PLACEMENTS, (0, 1, 2, 13, 257), (0, 1, 4)):
        got = run(function, low[-count:][:count], high[-count:][:count], placement, offset)
        assert_same(got, expected[-count:][:count], kind)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "land"])
def test_half_precision_without_the_instructions(op):
    layout = cells.Cell(2, (cells.narrow_field(FORMATS["f16"], in_hardware=False),))
    function = C_FUNCTION(native.declare(f"{op}_portable_half", OPERATIONS[op], lambda: layout).address)
    low, high = operands("f16")
    assert_same(run(function, low, high, "apart", 1), twin_of(op, "f16", low, high))


@pytest.mark.parametrize(("op", "kind"), DEFINED)
def test_twin_may_store_in_its_operand(op, kind):
    dtype = reduce.dtype(kind)
    low, high = np.zeros((2, 60), dtype)
    for field in dtype.names or ("",):
        for operand, factor in ((low, 7), (high, 5)):
            (operand[field] if field else operand)[:] = np.arange(60) * factor % 11 % (2 if kind == "bool" else 11)
    expected = np.zeros_like(low)
    twin = reduce.numpy_twin(op, kind)
    twin(expected, low, high)
    in_low, in_high = low.copy(), high.copy()
    twin(in_low, in_low, high)
    twin(in_high, low, in_high)
    assert_same(in_low, expected)
    assert_same(in_high, expected)


def test_long_double_has_twins_instead_of_kernels():
    for kind in ("f80", "c160", "f80,i32"):
        assert not any(reduce.address(op, kind) for op in OPERATIONS)
    low, high = np.array([1, 2], np.longdouble), np.array([np.finfo(np.longdouble).eps, 5], np.longdouble)
    out = np.empty(2, np.longdouble)
    reduce.numpy_twin("sum", "f80")(out, low, high)
    assert out[0] != 1 and out[1] == 7


def test_located_ties_take_the_lower_index():
    dtype = reduce.dtype("f64,i32")
    low, high = np.array([(1, 9), (1, 2), (0, 5)], dtype), np.array([(1, 4), (1, 7), (3, 1)], dtype)
    for op, expected in (("minloc", [(1, 4), (1, 2), (0, 5)]), ("maxloc", [(1, 4), (1, 2), (3, 1)])):
        out = np.zeros(3, dtype)
        C_FUNCTION(reduce.address(op, "f64,i32"))(out.ctypes.data, low.ctypes.data, high.ctypes.data, 3)
        assert out.tolist() == expected


def test_pairs_are_packed_as_they_travel():
    sizes = {kind: reduce.dtype(kind).itemsize for kind in PAIRS}
    assert sizes == {
        "f32,i32": 8,
        "f64,i32": 12,
        "f80,i32": 4 + np.dtype(np.longdouble).itemsize,
        "i64,i32": 12,
        "i16,i32": 6,
        "i32,i32": 8,
    }


def test_undefined_combinations():
    for kind in FLOATS + COMPLEX:
        assert not reduce.defined("band", kind)
        assert reduce.address("band", kind) == 0
    for op, kind in (("min", "c128"), ("sum", "bool"), ("sum", "f64,i32"), ("minloc", "f64"), ("sum", "u128")):
        assert reduce.address(op, kind) == 0
        with pytest.raises(ValueError, match=f"'{op}' is not defined for elements of type '{kind}'"):
            reduce.numpy_twin(op, kind)


def test_warming_the_common_ones():
    assert reduce.warm(common_only=True) == len(reduce.COMMON) == 16


@pytest.mark.parametrize(("op", "kind", "instruction"), [("sum", "f32", "fadd"), ("min", "i64", "smin")])
def test_one_vector_loop_serves_every_aliasing(op, kind, instruction):
    reduction = loop.reduction(OPERATIONS[op], cells.cell(kind))
    code = numba.cfunc(native.SIGNATURE)(reduction).inspect_llvm()
    assert re.search(rf"{instruction}\S* <\d+ x (float|i64)>|{instruction}\.v\d", code)
    assert "memcheck" not in code, "LLVM compares addresses and goes scalar in place: the loop metadata is lost"
