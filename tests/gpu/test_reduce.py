"""Reductions over many sources: the kernels on the CPU, and on a GPU where there is one, against their NumPy twins and the engine's."""

import re
from itertools import product

import numpy as np
import pytest

from numba_kernels import reduce
from numba_kernels.cuda import ptx
from numba_kernels.cuda import reduce as cuda_reduce
from numba_kernels.reduce.elements import OPERATIONS
from numba_kernels.reduce.narrow import FORMATS, numpy_narrow, numpy_widen
from tests.gpu.machines import MACHINES
from tests.kernels.test_reduce import C_FUNCTION, assert_same, operands

KINDS = (*reduce.TYPES, *cuda_reduce.TINY_FLOATS)
SUPPORTED = [(op, kind) for kind, op in product(KINDS, OPERATIONS) if cuda_reduce.is_supported(op, kind)]


@pytest.fixture(scope="module", params=MACHINES)
def machine(request):
    return request.param()


@pytest.fixture(autouse=True)
def memory_is_given_back(request):
    yield
    if "machine" in request.fixturenames:
        request.getfixturevalue("machine").free()


def cases(kind, sources):
    """Operands for every source; the first two have all pairs of 8-bit values, all 16-bit values, or special values crossed."""
    if kind in cuda_reduce.TINY_FLOATS:
        kind = "u8"
    low, high = operands(kind, stride=11)
    return [low, high, *(np.roll(low if k % 2 else high, 7 * k + 1) for k in range(sources - 2))]


def numbers(values, kind):
    """Bits as numbers, where NumPy does not have the type."""
    return numpy_widen(values, FORMATS[kind]) if kind in ("bf16", *cuda_reduce.TINY_FLOATS) else values


def run(machine, op, kind, arrays, offsets=(0,), target=None, threads=7):
    """Reduce `arrays` placed at `offsets` off 64 bytes: the target's first, then the sources'. Source `target` is the target too."""
    kernel = cuda_reduce.kernel_for(op, kind, len(arrays))
    offsets = [offsets[k % len(offsets)] for k in range(len(arrays) + 1)]
    sources = [machine.place(array, offset) for array, offset in zip(arrays, offsets[1:], strict=True)]
    out = machine.place(np.zeros_like(arrays[0]), offsets[0]) if target is None else sources[target]
    machine.run(kernel, out.address, len(arrays[0]), *(source.address for source in sources), threads=threads)
    for source, array in zip(sources, arrays, strict=True):
        if source is not out:
            assert source.read().tobytes() == array.tobytes(), "a source was written"
    return out.read()


def expected(op, kind, arrays):
    if kind == "bool":  # any nonzero byte is true in C; NumPy looks at the bytes in its own way
        arrays, kind = [array.view(np.uint8) for array in arrays], "u8"
    result = np.zeros_like(arrays[0])
    cuda_reduce.numpy_twin(op, kind)(result, arrays)
    return result


def check(got, wanted, kind):
    assert_same(numbers(got, kind), numbers(wanted, kind))


@pytest.mark.parametrize(("op", "kind"), SUPPORTED)
def test_kernel_equals_its_numpy_twin(machine, op, kind):
    arrays = cases(kind, 3)
    wanted = expected(op, kind, arrays)
    check(run(machine, op, kind, arrays, threads=64), wanted, kind)
    size = arrays[0].itemsize
    alike, apart, ragged = (size,), (0, size, 0, 2 * size), (1, 3, 0, 7)
    for offsets, count in product((alike, apart, ragged), (0, 1, 2, 13, 70)):
        got = run(machine, op, kind, [array[:count] for array in arrays], offsets)
        check(got, wanted[:count], kind)
    for target in range(3):
        check(run(machine, op, kind, [array[:33] for array in arrays], target=target), wanted[:33], kind)


@pytest.mark.parametrize(("op", "kind"), [(op, kind) for op, kind in SUPPORTED if kind not in cuda_reduce.TINY_FLOATS])
def test_same_bits_as_the_engine(op, kind):
    """Three ranks' operands, as the host's collectives combine them: the result so far is the lower operand."""
    arrays = cases(kind, 3)
    so_far = arrays[0].copy()
    function = C_FUNCTION(reduce.address(op, kind))
    for array in arrays[1:]:
        function(so_far.ctypes.data, so_far.ctypes.data, array.ctypes.data, len(array))
    check(so_far, expected(op, kind, arrays), kind)


@pytest.mark.parametrize(
    ("op", "kind", "sources"), [("sum", "f32", n) for n in cuda_reduce.SOURCES] + [("max", "i8", n) for n in (2, 7, 16)]
)
def test_any_number_of_sources(machine, op, kind, sources):
    """Sums of numbers of unlike sizes tell a wrong order; every source matters."""
    generator = np.random.default_rng(sources)
    if kind == "f32":
        arrays = [(generator.standard_normal(70) * 10.0 ** generator.integers(-6, 7, 70)).astype("f4") for _ in range(sources)]
    else:
        arrays = [generator.integers(-128, 100, 70, "i1") for _ in range(sources)]
    for k in range(sources):
        arrays[k][k] = 101
    for offset in range(0, 17, arrays[0].itemsize):
        check(run(machine, op, kind, arrays, (offset,)), expected(op, kind, arrays), kind)


@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "u64", "c64", "c128"])
def test_every_length_at_every_alignment(machine, kind):
    """Head, vectors and tail, and elements that are not aligned at all: nothing is left out, done twice, or written beside."""
    dtype = reduce.dtype(kind)
    whole = np.frombuffer(np.random.default_rng(3).bytes(2 * 70 * dtype.itemsize), np.uint8).copy()
    if dtype.kind == "c":
        whole &= 0x3F  # neither NaN nor infinity
    low, high = whole.view(dtype).reshape(2, 70)
    wanted = low + high
    for count, offset in product(range(70), range(17)):
        step = 5 if count < 40 else 11
        if (count + offset) % step == 0 or offset in (0, dtype.itemsize):
            check(run(machine, "sum", kind, [low[:count], high[:count]], (offset,)), wanted[:count], kind)


def test_threads_share_the_work(machine):
    arrays = [np.arange(1000, dtype=np.int32) * k for k in (1, 10)]
    for threads in (1, 2, 31, 256):
        check(run(machine, "sum", "i32", arrays, (4,), threads=threads), arrays[0] * 11, "i32")


@pytest.mark.parametrize("name", FORMATS)
def test_narrow_floats_there_and_back(name):
    """Every value widens to what its definition says, and narrows back to itself; between two neighbours the even one is taken."""
    form = FORMATS[name]
    bits = np.arange(1 << form.bits).astype(f"u{form.bits // 8}")
    values = numpy_widen(bits, form)
    if name == "f16":
        np.testing.assert_array_equal(values, bits.view(np.float16).astype(np.float32))
    if name == "bf16":
        np.testing.assert_array_equal(values, (bits.astype(np.uint32) << 16).view(np.float32))
    known = {"e4m3": {0x7E: 448, 0x01: 2**-9, 0x38: 1}, "e5m2": {0x7B: 57344, 0x01: 2**-16, 0x7C: np.inf}}.get(name, {})
    assert {code: values[code] for code in known} == known
    finite = np.isfinite(values)
    assert (numpy_narrow(values[finite], form) == bits[finite]).all()
    assert np.isnan(numpy_widen(numpy_narrow(np.full(1, np.nan, "f4"), form), form))
    ordered = np.flatnonzero(finite & (bits < 1 << (form.bits - 1)))
    between = (values[ordered[:-1]].astype(np.float64) + values[ordered[1:]]) / 2
    exact = between.astype(np.float32) == between
    assert (numpy_narrow(between[exact], form) == (ordered[:-1] + ordered[:-1] % 2)[exact]).all()


@pytest.mark.parametrize("name", ["bf16", "e4m3", "e5m2"])
def test_narrow_floats_are_rounded_by_the_kernels_as_by_the_twin(machine, name):
    """Sums of 16 of them meet ties, overflow, subnormals and the largest finite number."""
    generator = np.random.default_rng(11)
    width = 1 << FORMATS[name].bits
    arrays = [generator.integers(0, width, 4000).astype(reduce.dtype(name)) for _ in range(16)]
    check(run(machine, "sum", name, arrays), expected("sum", name, arrays), name)


def test_no_kernel():
    for op, kind, sources in (
        ("sum", "f80", 2), ("sum", "c160", 2), ("minloc", "f32,i32", 2), ("band", "f32", 2),
        ("prod", "e4m3", 2), ("sum", "f32", 1), ("sum", "f32", 17),
    ):  # fmt: skip
        assert cuda_reduce.kernel_for(op, kind, sources) is None
    with pytest.raises(ValueError, match="no kernel for operation 'sum' on elements of type 'f80'"):
        cuda_reduce.numpy_twin("sum", "f80")


def test_types_with_the_same_code_share_a_kernel():
    assert cuda_reduce.kernel_for("sum", "i32", 4) is cuda_reduce.kernel_for("sum", "u32", 4)
    assert cuda_reduce.kernel_for("max", "i32", 4) is not cuda_reduce.kernel_for("max", "u32", 4)
    names = [kernel.name for kernel in cuda_reduce.KERNELS]
    assert len(names) == len(set(names))


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("op", "kind", "wanted", "unwanted"),
    [
        ("sum", "f32", ["add.rn.f32"], [r"\bfma"]),
        ("prod", "f64", ["mul.rn.f64"], [r"\bfma"]),
        ("prod", "c64", ["mul.rn.f32", "add.rn.f32|sub.rn.f32"], [r"\bfma"]),
        ("max", "f32", ["setp.*f32"], [r"\bmax\.", r"\bfma"]),
        ("sum", "f16", ["cvt.f32.f16", "cvt.rn.f16.f32"], [r"\.ftz", r"\bfma"]),
        ("sum", "bf16", ["cvt.rn.bf16.f32"], [r"\.ftz", r"\bfma"]),
        ("sum", "u64", ["ld.global.v2.u64", "add.s64"], []),
    ],
)
def test_instructions(op, kind, wanted, unwanted):
    arches = [(8, 0), (9, 0), (10, 0)]
    for arch, text in zip(arches, cuda_reduce.kernel_for(op, kind, 3).ptx_for_each(arches), strict=True):
        vector = "v2.u64" if kind in ("f64", "u64") else "v4.u32"
        assert text.count(f"ld.global.{vector}") == 3 and text.count(f"st.global.{vector}") == 1
        loads, store = text.rindex(f"ld.global.{vector}"), text.index(f"st.global.{vector}")
        assert loads < store, "all loads come before the store"
        for pattern in wanted:
            assert re.search(pattern, text), f"{pattern} is not in the PTX for {arch}"
        for pattern in [*unwanted, r"\.extern", r"\bcall\b", r"\.local"]:
            assert not re.search(pattern, text), f"{pattern} is in the PTX for {arch}"
        _, usage = ptx.run_ptxas(text, arch)
        assert usage.spills == usage.stack == 0
