"""The CPU loop around an element operation: one LLVM loop over raw addresses, vectorised.

The loop is emitted here rather than written with arrays because raw addresses say exactly what is known: any
alignment (NumPy arrays may be unaligned, packed messages are), and that iteration `i` touches element `i` only.
The second is told to LLVM as metadata. Without it LLVM guards the vector loop by a test that ``out`` overlaps
neither input, and takes the scalar loop for ``out == low``, which is how collectives accumulate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing import signature
from numba.extending import intrinsic

from numba_kernels.emit.cells import Cell, Field

I64 = ir.IntType(64)

Access = Callable[[Any], Any]
"""Takes a load or store instruction, attaches what is known about it, gives it back."""


def over(element: Callable[..., Any], cell: Cell) -> Any:
    """Return an intrinsic ``(out, low, high, count)`` for: out[i] = element(low[i], high[i])."""

    @intrinsic
    def loop(typingctx: Any, out: Any, low: Any, high: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            out, low, high = (builder.inttoptr(address, cgutils.voidptr_t) for address in args[:3])

            def body(index: Any, access: Access) -> None:
                offset = builder.mul(index, I64(cell.nbytes), flags=("nsw",))
                operands = _load(builder, cell, builder.gep(low, [offset]), access)
                operands += _load(builder, cell, builder.gep(high, [offset]), access)
                values = apply(context, builder, element, cell.kinds, operands)
                _store(builder, cell, values, builder.gep(out, [offset]), access)

            _independent_iterations(builder, args[3], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    return loop


def reduction(element: Callable[..., Any], cell: Cell) -> Callable[..., None]:
    """Return the C function ``(out, low, high, count)`` that applies `element` to arrays of `cell`, to be compiled."""
    elements = over(element, cell)

    def reduce(out, low, high, count):  # type: ignore[no-untyped-def]
        elements(out, low, high, count)

    return reduce


def _load(builder: Any, cell: Cell, address: Any, access: Access) -> list[Any]:
    values = []
    for field in cell.fields:
        parts = [access(builder.load(part)) for part in _parts(builder, field, address)]
        values.append(field.decode(builder, parts))
    return values


def _store(builder: Any, cell: Cell, values: list[Any], address: Any, access: Access) -> None:
    for field, value in zip(cell.fields, values, strict=True):
        for part, target in zip(field.encode(builder, value), _parts(builder, field, address), strict=True):
            access(builder.store(part, target))


def _parts(builder: Any, field: Field, address: Any) -> list[Any]:
    """Pointers to the integers that a field is made of."""
    first = builder.bitcast(builder.gep(address, [I64(field.offset)]), field.part.as_pointer())
    return [builder.gep(first, [I64(k)]) for k in range(field.parts)]


def apply(context: Any, builder: Any, element: Callable[..., Any], kinds: tuple[Any, ...], operands: list[Any]) -> list[Any]:
    """Compile `element` into a loop over fields of `kinds`. Its result is cast to their types, as C assignment does."""
    result = kinds[0] if len(kinds) == 1 else types.Tuple(kinds)
    value = context.compile_internal(builder, element, signature(result, *kinds, *kinds), operands)
    return [value] if len(kinds) == 1 else list(cgutils.unpack_tuple(builder, value))


def _independent_iterations(builder: Any, count: Any, body: Callable[[Any, Access], None]) -> None:
    """Emit ``for index in range(count): body(index)``, promising that no iteration depends on another."""
    group = _Distinct(builder.module)
    entry = builder.block
    head, after = builder.append_basic_block("elements"), builder.append_basic_block("elements.end")
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), head, after)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(I64(0), entry)
    body(index, group.claim)
    following = builder.add(index, I64(1), flags=("nsw",))
    index.add_incoming(following, builder.block)
    latch = builder.cbranch(builder.icmp_signed("<", following, count), head, after)
    latch.set_metadata("llvm.loop", _parallel_loop(builder.module, group))
    builder.position_at_end(after)


class _Distinct(ir.MDValue):  # type: ignore[misc]
    """A metadata node that equals no other one, which llvmlite has for debug information only."""

    def __init__(self, module: Any) -> None:
        super().__init__(module, (), name=str(len(module.metadata)))

    def descr(self, buf: list[str]) -> None:
        buf.append("distinct ")
        super().descr(buf)

    def claim(self, instruction: Any) -> Any:
        """Mark a load or store as one of this access group; it may have any alignment."""
        instruction.align = 1
        instruction.set_metadata("llvm.access.group", self)
        return instruction


def _parallel_loop(module: Any, group: _Distinct) -> _Distinct:
    promise = module.add_metadata([ir.MetaDataString(module, "llvm.loop.parallel_accesses"), group])
    loop = _Distinct(module)
    loop.operands = (loop, promise)
    return loop
