"""What windows are given, found to be valid: memory, sizes, assertions, elements of accumulations."""

from __future__ import annotations

from ncclx_mpi import arguments, buffers, errors
from ncclx_mpi.api.datatype import Datatype
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.op import Op, native, number_of
from ncclx_mpi.buffers.layout import committed
from ncclx_mpi.buffers.source import Source
from ncclx_mpi.rma import accumulate
from ncclx_mpi.rma.accumulate import Reduction
from ncclx_mpi.rma.fast import ASSERTIONS
from ncclx_mpi.typing import Buffer


def host_memory(memory: Buffer, what: str) -> Source:
    """Return memory of the host that ranks may write to."""
    found = buffers.open_source(memory, writable=True, with_format=False)
    if found.lent is not None:
        errors.fail(
            errors.ERR_ARG,
            f"{what}: the memory is GPU {found.lent.device}'s, and windows are of host memory; take a host array for "
            "the window (device arrays can be put from and got into)",
        )
    return found


def checked_size(size: int, what: str) -> int:
    """Return bytes of a window, once they are found to be so many."""
    nbytes = integer(size, "size")
    if nbytes < 0:
        errors.fail(errors.ERR_SIZE, f"{what}: the size is negative: {nbytes}")
    return nbytes


def checked_unit(disp_unit: int) -> int:
    """Return a unit of displacements, once it is found to be one."""
    unit = integer(disp_unit, "disp_unit")
    if unit <= 0:
        errors.fail(errors.ERR_DISP, f"the unit of displacements in a window must be positive, not {unit}")
    return unit


def checked_assertion(assertion: int) -> int:
    """Return what a program asserts, once it is found to be a sum of constants."""
    asserted = integer(assertion, "assertion")
    if asserted & ~ASSERTIONS:
        errors.fail(errors.ERR_ASSERT, f"{asserted} asserts nothing about a window; MPI.MODE_NOCHECK ... MODE_NOSUCCEED do")
    return asserted


def check_single(**given: arguments.Buffer) -> None:
    """Raise unless each buffer has one element, all of one type."""
    origin = given["origin"]
    for name, each in given.items():
        if each.count != 1:
            raise ValueError(f"{name}: expecting a single element, got {each.count}")
        if each.datatype != origin.datatype:
            raise ValueError(f"mismatch in origin and {name} MPI datatypes")


def reduction_of(op: Op, target: Datatype, origin: Datatype, nbytes: int) -> Reduction | None:
    """What combines elements of two datatypes, `nbytes` of them; None if there are none, of no type.

    Raises
    ------
    Exception
        ERR_OP: the operation is user-defined, or not defined for these elements. ERR_TYPE: the elements differ.
    """
    if not isinstance(op, Op):
        raise TypeError(f"op must be an MPI.Op, not {type(op).__name__}")
    if op._state.user:
        errors.fail(errors.ERR_OP, "windows accumulate with predefined operations only, not with one made by Op.Create")
    there = accumulate.element_of(committed(target._state, "target"))
    here = accumulate.element_of(committed(origin._state, "origin"))
    if not nbytes and there is None:  # a type of no elements, as a program that computes its indices may make one
        return None
    if there is None or here is None or there.kind != here.kind:
        errors.fail(errors.ERR_TYPE, "an accumulation needs elements of one predefined type, the same at origin and target")
    if not nbytes:  # then it need not be one for these elements: programs give none of MPI.BYTE, and leave the operation at SUM
        return None
    datatype = Datatype._refer(there)
    return Reduction(native(op, datatype), there.size, number_of(op, datatype))
