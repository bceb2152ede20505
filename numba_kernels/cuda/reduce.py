"""Reductions on the GPU: ``target[i] = source_0[i] OP source_1[i] OP ... source_n-1[i]``, from 2 to 16 sources in one pass.

::

      source_0  |..[ 16 ][ 16 ][ 16 ] .. [ 16 ]..|     thread t combines vector t, t + threads, ...: one 16-byte load a source,
      source_1  |..[ 16 ][ 16 ][ 16 ] .. [ 16 ]..|     one 16-byte store; 8 sources are loaded before the first operation
         :       ^^                             ^^
      target    |..[ 16 ][ 16 ][ 16 ] .. [ 16 ]..|     head and tail (up to 15 bytes each): one element a thread

The operations are those of :mod:`numba_kernels.reduce.elements`, in rank order, with the rounding of the CPU: the result has the
bits that :mod:`numba_kernels.reduce` gives, NaN's payload aside. What the CPU does not have, floats of 8 bits, is accumulated in float32 and
rounded once; results too large for them become the largest finite number.

Any address will do. Where target and sources do not lie alike with respect to 16 bytes, all is done element by element; elements that
are not aligned to their own size are put together from two aligned words, of which no more is used than theirs.

Bytes moved: (n + 1) times those of the target, each once. No flags: streams order what comes before and after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from numba_kernels import reduce
from numba_kernels.cuda.intrinsics import VECTOR, load_i64
from numba_kernels.cuda.kernel import Kernel, helper
from numba_kernels.cuda.limits import TINY_FLOATS, is_supported
from numba_kernels.emit.cells import Field, field, narrow_field
from numba_kernels.emit.cuda import I64, SCALARS, assembly, emit_load, emit_load_vector, emit_store, emit_store_vector, is_gpu
from numba_kernels.emit.loop import apply
from numba_kernels.layout import WORD
from numba_kernels.reduce.elements import OPERATIONS
from numba_kernels.reduce.narrow import FORMATS, numpy_narrow, numpy_widen
from numba_kernels.reduce.native import same_machine_code

Array = NDArray[Any]

SOURCES = range(2, 17)
IN_FLIGHT = 8
"""Sources that are loaded before the first of them is combined; more would not fit the registers."""
_ROUNDED_AT_EACH_STEP = ("f16", "bf16")


def kernel_for(op: str, typecode: str, sources: int) -> Kernel | None:
    """The kernel for `op` over `sources` operands; its arguments are target, count, source_0, ..., source_n-1.

    The target may be one of the sources, but may not overlap them in another way. `count` is in elements.

    Parameters
    ----------
    op
        Operation name, a key of :data:`~numba_kernels.reduce.elements.OPERATIONS`.
    typecode
        Element type name, one of :data:`~numba_kernels.reduce.TYPES` or :data:`TINY_FLOATS`.
    sources
        From 2 to 16.

    Returns
    -------
    Kernel or None
        None where there is none: long double, pairs, copies, undefined combinations.
    """
    if sources not in SOURCES or not is_supported(op, typecode):
        return None
    return _kernel(op, machine_kind(op, typecode), sources)


def machine_kind(op: str, typecode: str) -> str:
    """The type that stands for all whose machine code for `op` is the same."""
    return typecode if typecode in TINY_FLOATS else same_machine_code(op, typecode)


@functools.cache
def _kernel(op: str, kind: str, sources: int) -> Kernel:
    """Every number of sources has code of its own: no dead loads, and no loop over addresses that lie in registers."""
    return Kernel(f"reduce_{op}_{kind}_{sources}", _body(op, kind), parameters=2 + sources)


@functools.cache
def _body(op: str, kind: str) -> Callable[..., None]:
    reduce_span = span(op, kind, 0)

    def body(thread, threads, target, count, *sources):  # type: ignore[no-untyped-def]
        reduce_span(thread, threads, count, target, sources, 0, 0)

    return body


@functools.cache
def span(op: str, kind: str, more: int) -> Any:
    """Return the function ``(thread, threads, count, target, sources, rest, shift)`` that reduces elements of machine type `kind`.

    `sources` is a tuple of addresses. Results go to `target`, and to `more` other places: `shift` behind the addresses that are the
    words at `rest`.
    """
    layout = _gpu_field(kind)
    nbytes = layout.parts * layout.part.width // 8
    lanes = VECTOR // nbytes
    fold = _fold(OPERATIONS[op], layout, kind in _ROUNDED_AT_EACH_STEP)
    combine_vector, combine_element = (
        _combine(fold, _load_vector, _store_vector, layout, more),
        _combine(fold, _load_any, _store_any, layout, more),
    )

    @helper
    def reduce_span(thread, threads, count, target, sources, rest, shift):  # type: ignore[no-untyped-def]
        differ = unlike(target, sources)
        for k in range(more):
            differ |= target ^ (load_i64(rest + WORD * k) + shift)
        head = min(count, (-target & (VECTOR - 1)) // nbytes)
        vectors = (count - head) // lanes
        if target & (nbytes - 1) or differ & (VECTOR - 1):
            head, vectors = count, 0
        i = thread
        while i < vectors:
            combine_vector(head * nbytes + VECTOR * i, target, sources, rest, shift)
            i += threads
        i = thread
        while i < count - vectors * lanes:
            element = i if i < head else i + vectors * lanes
            combine_element(element * nbytes, target, sources, rest, shift)
            i += threads

    return reduce_span


@intrinsic
def unlike(typingctx: Any, target: Any, sources: Any) -> Any:
    """The bits in which any source's address differs from the target's."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, sources = args
        addresses = [builder.extract_value(sources, i) for i in range(sig.args[1].count)]
        return functools.reduce(builder.or_, [builder.xor(address, target) for address in addresses])

    return types.int64(types.int64, sources), codegen


Parts = list[Any]
"""Integers (LLVM values) of elements that lie side by side."""


def _combine(
    fold: Callable[[Any, Any, list[Any], list[Parts]], list[Any]],
    load: Callable[[Any, Any, Field], Parts],
    store: Callable[[Any, Any, Parts, Field], None],
    layout: Field,
    more: int,
) -> Any:
    """Return an intrinsic ``(offset, target, sources, rest, shift)`` that loads from all sources, folds, and stores; see :func:`span`."""

    @intrinsic
    def combine(typingctx: Any, offset: Any, target: Any, sources: Any, rest: Any, shift: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            offset, target, sources, rest, shift = args
            addresses = [builder.add(offset, builder.extract_value(sources, i)) for i in range(sig.args[2].count)]
            values: list[Any] = []
            for first in range(0, len(addresses), IN_FLIGHT):
                operands = [load(builder, address, layout) for address in addresses[first : first + IN_FLIGHT]]
                values = fold(context, builder, values, operands)
            result = [part for value in values for part in layout.encode(builder, value)]
            store(builder, builder.add(offset, target), result, layout)
            if more:
                with cgutils.for_range(builder, I64(more)) as loop:  # so many addresses would not fit into registers
                    other = emit_load(builder, builder.add(rest, builder.mul(loop.index, I64(WORD))), SCALARS["i64"])
                    store(builder, builder.add(builder.add(offset, shift), other), result, layout)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, sources, types.int64, types.int64), codegen

    return combine


def _fold(element: Callable[..., Any], layout: Field, rounds: bool) -> Callable[[Any, Any, list[Any], list[Parts]], list[Any]]:
    """Apply `element` to the values so far, none at first, and the sources' operands in order, lane by lane."""

    def step(context: Any, builder: Any, low: Any, parts: Parts) -> Any:
        (low,) = apply(context, builder, element, (layout.kind,), [low, layout.decode(builder, parts)])
        return layout.decode(builder, layout.encode(builder, low)) if rounds else low

    def fold(context: Any, builder: Any, values: list[Any], operands: list[Parts]) -> list[Any]:
        result = []
        for lane in range(len(operands[0]) // layout.parts):
            of_sources = [parts[lane * layout.parts : (lane + 1) * layout.parts] for parts in operands]
            low = values[lane] if values else layout.decode(builder, of_sources.pop(0))
            for parts in of_sources:
                low = step(context, builder, low, parts)
            result.append(low)
        return result

    return fold


def _word(layout: Field) -> Any:
    """Vectors are accessed as words of 64 bits for parts of 64, else of 32."""
    return SCALARS["u64" if layout.part.width == 64 else "u32"]


def _load_vector(builder: Any, address: Any, layout: Field) -> Parts:
    word = _word(layout)
    width = layout.part.width
    words = emit_load_vector(builder, address, word)
    if width == word.storage.width:
        return words
    return [
        builder.trunc(builder.lshr(whole, word.storage(bit)), layout.part)
        for whole in words
        for bit in range(0, word.storage.width, width)
    ]


def _store_vector(builder: Any, address: Any, parts: Parts, layout: Field) -> None:
    word = _word(layout)
    width = layout.part.width
    each = word.storage.width // width
    words = []
    for first in range(0, len(parts), each):
        shifted = [
            builder.shl(builder.zext(part, word.storage), word.storage(k * width)) if each > 1 else part
            for k, part in enumerate(parts[first : first + each])
        ]
        words.append(functools.reduce(builder.or_, shifted))
    emit_store_vector(builder, address, words, word)


def _load_any(builder: Any, address: Any, layout: Field) -> Parts:
    """One element from any address."""
    nbytes = layout.part.width // 8
    return [_load_part(builder, builder.add(address, I64(k * nbytes)), layout.part) for k in range(layout.parts)]


def _load_part(builder: Any, address: Any, part: Any) -> Any:
    """An integer from any address: two aligned words, the same one twice if it is aligned."""
    scalar, nbytes = SCALARS[f"u{part.width}"], part.width // 8
    if nbytes == 1:
        return emit_load(builder, address, scalar)
    aligned = I64(-nbytes)
    low = emit_load(builder, builder.and_(address, aligned), scalar)
    high = emit_load(builder, builder.and_(builder.add(address, I64(nbytes - 1)), aligned), scalar)
    bit = builder.mul(builder.and_(address, I64(nbytes - 1)), I64(8))
    bit = builder.trunc(bit, part) if part.width < 64 else bit
    # `high` moves by its width less `bit`; in two steps, since a shift by the whole width is undefined.
    rest = builder.shl(builder.shl(high, part(1)), builder.sub(part(part.width - 1), bit))
    return builder.or_(builder.lshr(low, bit), rest)


def _store_any(builder: Any, address: Any, parts: Parts, layout: Field) -> None:
    """One element to any address: at once, or byte by byte if it is not aligned."""
    scalar, nbytes = SCALARS[f"u{layout.part.width}"], layout.part.width // 8
    addresses = [builder.add(address, I64(k * nbytes)) for k in range(layout.parts)]
    if nbytes == 1:
        emit_store(builder, address, parts[0], scalar)
        return
    is_aligned = builder.icmp_unsigned("==", builder.and_(address, I64(nbytes - 1)), I64(0))
    with builder.if_else(is_aligned) as (at_once, by_byte):
        with at_once:
            for at, part in zip(addresses, parts, strict=True):
                emit_store(builder, at, part, scalar)
        with by_byte:
            for (at, part), k in product(zip(addresses, parts, strict=True), range(nbytes)):
                byte = builder.trunc(builder.lshr(part, layout.part(8 * k)), ir.IntType(8))
                emit_store(builder, builder.add(at, I64(k)), byte, SCALARS["u8"])


def _gpu_field(kind: str) -> Field:
    """An element type with the GPU's conversions of 16-bit floats (those of 8 bits need sm_89), elsewhere with integer code."""
    if kind not in FORMATS:
        return field(np.dtype(np.uint8) if kind == "bool" else reduce.dtype(kind), 0)
    portable = narrow_field(FORMATS[kind], in_hardware=False)
    if kind in TINY_FLOATS:
        return portable

    def decode(builder: Any, integers: Parts) -> Any:
        if is_gpu(builder) and kind == "f16":
            return assembly(builder, "cvt.f32.f16 $0, $1;", ir.FloatType(), "=f,h", integers)
        return portable.decode(builder, integers)

    def encode(builder: Any, value: Any) -> Parts:
        if is_gpu(builder):
            return [assembly(builder, f"cvt.rn.{kind}.f32 $0, $1;", ir.IntType(16), "=h,f", [value])]
        return portable.encode(builder, value)

    return portable._replace(decode=decode, encode=encode)


def numpy_twin(op: str, typecode: str) -> Callable[[Array, Sequence[Array]], None]:
    """Return ``twin(target, sources)``: the same in NumPy, on arrays of :func:`numba_kernels.reduce.dtype`.

    Raises
    ------
    ValueError
        There is no kernel for this.
    """
    if not is_supported(op, typecode):
        raise ValueError(f"there is no kernel for operation {op!r} on elements of type {typecode!r}")
    step = reduce.numpy_twin(op, "f32" if typecode in TINY_FLOATS else typecode)

    def twin(target: Array, sources: Sequence[Array]) -> None:
        operands = [numpy_widen(source, FORMATS[typecode]) for source in sources] if typecode in TINY_FLOATS else sources
        result = operands[0].copy()
        for operand in operands[1:]:
            step(result, result, operand)
        target[...] = numpy_narrow(result, FORMATS[typecode]) if typecode in TINY_FLOATS else result

    return twin


def _kernels() -> Iterator[Kernel]:
    for sources, kind, op in product(SOURCES, (*reduce.TYPES, *TINY_FLOATS), OPERATIONS):
        found = kernel_for(op, kind, sources)
        if found is not None:
            yield found


KERNELS = tuple(dict.fromkeys(_kernels()))
REPORTED = tuple(kernel for kernel in KERNELS if kernel.parameters - 2 in (min(SOURCES), max(SOURCES)))
"""The fewest and the most sources, for every operation and type."""
