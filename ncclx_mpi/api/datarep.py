"""Representations of data in files that a program defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclx_mpi import errors, late, process
from ncclx_mpi.api.datatype import Datatype
from ncclx_mpi.api.docstrings import begin_with_signatures
from ncclx_mpi.api.handle import integer, text
from ncclx_mpi.arguments import Buffer
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.memory import array_words, view
from ncclx_mpi.io import representation
from ncclx_mpi.io.representation import Representation
from ncclx_mpi.rma.accumulate import element_of
from numba_kernels.late_numpy import np

if TYPE_CHECKING:
    from ncclx_mpi.api import memory
else:
    memory = late.module("ncclx_mpi.api.memory")

Conversion = Callable[[Any, Datatype, int, Any, int], None]


def Register_datarep(
    datarep: str,
    read_fn: Conversion | None,
    write_fn: Conversion | None,
    extent_fn: Callable[[Datatype], int],
) -> None:
    """Register user-defined data representations.

    ``write_fn(userbuf, datatype, count, filebuf, position)`` converts `count` elements, those of `userbuf` from element `position` on, to
    `filebuf`, and ``read_fn`` does the reverse; the elements lie one after the other in both. ``extent_fn(datatype)`` says how long an
    element is in the file; only such types can be used as are as long there as in memory. None stands for functions that change nothing.

    Raises
    ------
    Exception
        ERR_DUP_DATAREP: there is one of that name. ERR_ARG: the name is empty, or too long.
    """
    name = text(datarep)
    for function in (read_fn, write_fn, extent_fn):
        if not callable(function) and (function is not None or function is extent_fn):
            raise TypeError(f"expected a function, got {type(function).__name__}")

    def extent(layout: Layout) -> int:
        return integer(_called(name, extent_fn, Datatype._refer(layout)), "the extent in a file")

    representation.register(name, Representation(_converter(name, write_fn, True), _converter(name, read_fn, False), extent))


def _converter(name: str, function: Conversion | None, is_write: bool) -> representation.Convert | None:
    if function is None:
        return None
    return lambda address, given: _convert(name, function, address, given, is_write=is_write)


def _convert(name: str, function: Conversion, address: int, given: Buffer, *, is_write: bool) -> None:
    """Convert packed elements at an address in place, by way of a copy."""
    layout = given.layout if given.contiguous else element_of(given.layout)
    if layout is None:
        errors.fail(errors.ERR_CONVERSION, f"data representation {name!r} takes elements of one predefined type, not of several")
    elsewhere = np.empty(given.nbytes, np.uint8)
    here = memory.buffer._over(address, given.nbytes, False, None, given.owner)
    there = memory.buffer._over(array_words(elsewhere)[0], given.nbytes, False, None, elsewhere)
    user, file = (here, there) if is_write else (there, here)
    count = given.nbytes // layout.size if layout.size else 0
    _called(name, function, user, Datatype._refer(layout), count, file, 0)
    view(address, given.nbytes)[:] = elsewhere


def _called(name: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except errors.Exception:
        raise
    except Exception as error:
        process.print_exception()
        raise errors.error(errors.ERR_CONVERSION, f"a function of data representation {name!r} raised {error!r}") from error


begin_with_signatures([Register_datarep])
