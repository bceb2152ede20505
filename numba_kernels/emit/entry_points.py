"""How Python calls a kernel: with its arguments in a row, as the interpreter has them on its stack.

Numba's own wrapper takes a tuple, which the interpreter makes for each call, and has a function of variable arguments take it apart: a third
of the time of a call in which little happens. This one stands beside it in the same module; what unboxes and boxes is Numba's in both.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from llvmlite import ir
from numba.core import cpu, types
from numba.core.callwrapper import PyCallWrapper

from numba_kernels.emit.calls import address_of_symbol
from numba_kernels.emit.replaced import replaced

SUFFIX = ".row"
"""What the name of this wrapper has behind that of Numba's."""
_I32, _I64 = ir.IntType(32), ir.IntType(64)


class _Wrapper(PyCallWrapper):  # type: ignore[misc]
    """Builds both."""

    def build(self) -> Any:
        made = super().build()
        obj = self.context.get_argument_type(types.pyobject)
        kind = ir.FunctionType(obj, [obj, obj.as_pointer(), _I64])  # _PyCFunctionFast
        function = ir.Function(self.module, kind, name=self.fndesc.llvm_cpython_wrapper_name + SUFFIX)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        api = self.context.get_python_api(builder)
        closure, row, given = function.args

        def take_apart(_args: Any, name: str, least: int, _most: int, *places: Any) -> Any:
            """Store the arguments where the tuple's would be stored; 0, and an exception, unless there are so many."""
            fits = builder.icmp_signed("==", given, ir.Constant(_I64, least))
            with builder.if_else(fits, likely=True) as (right, wrong):
                with right:
                    for position, place in enumerate(places):
                        builder.store(builder.load(builder.gep(row, [ir.Constant(_I32, position)])), place)
                with wrong:
                    type_error = builder.inttoptr(address_of_symbol(builder, "ncclx_mpi_type_error"), obj)
                    api.err_set_string(type_error, f"{name} takes {least} arguments")
            return builder.zext(fits, _I32)

        api.unpack_tuple = take_apart
        self.build_wrapper(api, builder, closure, row, None)
        return made


def called_with_a_row(is_entry: bool) -> AbstractContextManager[None]:
    """Have Numba make this wrapper, too, of what is compiled meanwhile, or not."""
    return replaced(cpu, "PyCallWrapper", _Wrapper if is_entry else PyCallWrapper)
