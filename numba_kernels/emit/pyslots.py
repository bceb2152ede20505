"""What a kernel gives to Python: the type :data:`numba_kernels.pyslots.object_result`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models, register_default
from numba.extending import box, intrinsic

I64 = ir.IntType(64)


class ObjectResult(types.Type):  # type: ignore[misc]
    """What a kernel returns to Python: the address of an object, with a reference to it; 0 becomes None, or raises the error that is set."""

    def __init__(self) -> None:
        super().__init__(name="ncclx_mpi_object_result")


object_result = ObjectResult()


@register_default(ObjectResult)
class _ObjectResultModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, I64)


@box(ObjectResult)
def _box_object_result(kind: Any, value: Any, c: Any) -> Any:
    out = cgutils.alloca_once_value(c.builder, c.builder.inttoptr(value, c.pyapi.pyobj))
    is_nothing = c.builder.icmp_unsigned("==", value, ir.Constant(I64, 0))
    with c.builder.if_then(is_nothing), c.builder.if_then(c.builder.not_(c.pyapi.c_api_error())):
        c.builder.store(c.pyapi.make_none(), out)
    return c.builder.load(out)


@intrinsic
def result(typingctx: Any, address: Any) -> Any:
    """An address as an :class:`ObjectResult`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0]

    return object_result(types.int64), codegen
