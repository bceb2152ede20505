"""Intrinsics of :mod:`numba_kernels.cuda.intrinsics`, for the CPU and for the GPU."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numba_kernels.cuda.intrinsics import VECTOR
from numba_kernels.rows import NamedTuple

I64 = ir.IntType(64)


class Scalar(NamedTuple):
    """An element type: to Numba, to LLVM, and in PTX (register constraint, suffix)."""

    kind: Any
    storage: Any
    constraint: str
    suffix: str

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return int(self.suffix[1:]) // 8


def _integer(bits: int, signed: bool) -> Scalar:
    kind = types.Integer.from_bitwidth(bits, signed)
    # PTX has no 8-bit registers: bytes are accessed through 16-bit ones.
    return Scalar(kind, ir.IntType(bits), {8: "h", 16: "h", 32: "r", 64: "l"}[bits], f"{'s' if signed else 'u'}{bits}")


SCALARS = {f"{'i' if signed else 'u'}{bits}": _integer(bits, signed) for signed in (True, False) for bits in (8, 16, 32, 64)} | {
    "f32": Scalar(types.float32, ir.FloatType(), "f", "f32"),
    "f64": Scalar(types.float64, ir.DoubleType(), "d", "f64"),
}


def is_gpu(builder: Any) -> bool:
    """Whether code is being generated for a GPU."""
    return str(builder.module.triple).startswith("nvptx")


def assembly(builder: Any, text: str, result: Any, constraints: str, operands: list[Any], *, accesses_memory: bool = False) -> Any:
    """Emit one PTX statement. One that accesses memory stays where it is among those that do."""
    if accesses_memory:
        constraints = ",".join(filter(None, (constraints, "~{memory}")))
    function = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(function, text, constraints, side_effect=accesses_memory), operands)


def emit_load(builder: Any, address: Any, scalar: Scalar) -> Any:
    """Emit the load of a scalar."""
    if not is_gpu(builder):
        return builder.load(builder.inttoptr(address, scalar.storage.as_pointer()))
    register = _register(scalar)
    text = f"ld.global.{scalar.suffix} $0, [$1];"
    value = assembly(builder, text, register, f"={scalar.constraint},l", [address], accesses_memory=True)
    return builder.trunc(value, scalar.storage) if scalar.nbytes == 1 else value


def emit_store(builder: Any, address: Any, value: Any, scalar: Scalar) -> None:
    """Emit the store of a scalar."""
    if not is_gpu(builder):
        builder.store(value, builder.inttoptr(address, scalar.storage.as_pointer()))
        return
    if scalar.nbytes == 1:
        value = builder.zext(value, _register(scalar))
    text = f"st.global.{scalar.suffix} [$0], $1;"
    assembly(builder, text, ir.VoidType(), f"l,{scalar.constraint}", [address, value], accesses_memory=True)


def _register(scalar: Scalar) -> Any:
    return ir.IntType(16) if scalar.nbytes == 1 else scalar.storage


def emit_load_vector(builder: Any, address: Any, word: Scalar) -> list[Any]:
    """Emit the load of 16 bytes as words, from an address that is a multiple of 16."""
    count = VECTOR // word.nbytes
    if is_gpu(builder):
        registers = ", ".join(f"${i}" for i in range(count))
        text = f"ld.global.v{count}.{word.suffix} {{{registers}}}, [${count}];"
        constraints = ",".join([f"={word.constraint}"] * count + ["l"])
        result = ir.LiteralStructType([word.storage] * count)
        words = assembly(builder, text, result, constraints, [address], accesses_memory=True)
        return [builder.extract_value(words, i) for i in range(count)]
    first = builder.inttoptr(address, word.storage.as_pointer())
    return [builder.load(builder.gep(first, [I64(i)])) for i in range(count)]


def emit_store_vector(builder: Any, address: Any, words: list[Any], word: Scalar) -> None:
    """Emit the store of 16 bytes as words, to an address that is a multiple of 16."""
    if is_gpu(builder):
        registers = ", ".join(f"${i + 1}" for i in range(len(words)))
        text = f"st.global.v{len(words)}.{word.suffix} [$0], {{{registers}}};"
        constraints = ",".join(["l"] + [word.constraint] * len(words))
        assembly(builder, text, ir.VoidType(), constraints, [address, *words], accesses_memory=True)
        return
    first = builder.inttoptr(address, word.storage.as_pointer())
    for i, value in enumerate(words):
        builder.store(value, builder.gep(first, [I64(i)]))


def _make_load(scalar: Scalar) -> Any:
    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return emit_load(builder, args[0], scalar)

        return scalar.kind(types.int64), codegen

    return load


def _make_store(scalar: Scalar) -> Any:
    @intrinsic
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            emit_store(builder, args[0], args[1], scalar)
            return context.get_dummy_value()

        return types.void(types.int64, scalar.kind), codegen

    return store


load_i8, load_u8 = _make_load(SCALARS["i8"]), _make_load(SCALARS["u8"])
load_i16, load_u16 = _make_load(SCALARS["i16"]), _make_load(SCALARS["u16"])
load_i32, load_u32 = _make_load(SCALARS["i32"]), _make_load(SCALARS["u32"])
load_i64, load_u64 = _make_load(SCALARS["i64"]), _make_load(SCALARS["u64"])
load_f32, load_f64 = _make_load(SCALARS["f32"]), _make_load(SCALARS["f64"])
store_i8, store_u8 = _make_store(SCALARS["i8"]), _make_store(SCALARS["u8"])
store_i16, store_u16 = _make_store(SCALARS["i16"]), _make_store(SCALARS["u16"])
store_i32, store_u32 = _make_store(SCALARS["i32"]), _make_store(SCALARS["u32"])
store_i64, store_u64 = _make_store(SCALARS["i64"]), _make_store(SCALARS["u64"])
store_f32, store_f64 = _make_store(SCALARS["f32"]), _make_store(SCALARS["f64"])


@intrinsic
def or_i64(typingctx: Any, address: Any, bits: Any) -> Any:
    """Set bits of an int64 of which other threads of the launch set bits meanwhile."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, bits = args
        if is_gpu(builder):
            assembly(builder, "red.global.or.b64 [$0], $1;", ir.VoidType(), "l,l", [address, bits], accesses_memory=True)
        else:  # one thread after another
            emit_store(builder, address, builder.or_(emit_load(builder, address, SCALARS["i64"]), bits), SCALARS["i64"])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def load_vector(typingctx: Any, address: Any) -> Any:
    """Four uint32 from an address that is a multiple of 16."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.make_tuple(builder, sig.return_type, emit_load_vector(builder, args[0], SCALARS["u32"]))

    return types.UniTuple(types.uint32, 4)(types.int64), codegen


@intrinsic
def store_vector(typingctx: Any, address: Any, words: Any) -> Any:
    """Four uint32 to an address that is a multiple of 16."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        words = [builder.extract_value(args[1], i) for i in range(4)]
        emit_store_vector(builder, args[0], words, SCALARS["u32"])
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.uint32, 4)), codegen


def _make_place(text: str) -> Any:
    @intrinsic
    def place(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return assembly(builder, text, I64, "=l", [])

        return types.int64(), codegen

    return place


thread_index = _make_place(
    "{ .reg .u32 a, b; .reg .u64 t; mov.u32 a, %ctaid.x; mov.u32 b, %ntid.x; mul.wide.u32 $0, a, b; "
    "mov.u32 a, %tid.x; cvt.u64.u32 t, a; add.u64 $0, $0, t; }"
)
"""Number of this thread among all of the launch; on the GPU only."""
thread_count = _make_place("{ .reg .u32 a, b; mov.u32 a, %nctaid.x; mov.u32 b, %ntid.x; mul.wide.u32 $0, a, b; }")
"""Threads of the launch; on the GPU only."""


@intrinsic
def block_barrier(typingctx: Any) -> Any:
    """Wait for all threads of the block, and see what they stored; on the GPU only."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        assembly(builder, "bar.sync 0;", ir.VoidType(), "", [], accesses_memory=True)
        return context.get_dummy_value()

    return types.void(), codegen
