"""Representations of data in files: as it is in memory, big-endian, or as functions of the program say.

Elements keep their size: in ``external32`` too, where the standard makes a few of them shorter, and in representations of a program,
whose extent function has to say so.
"""

from __future__ import annotations

from collections.abc import Callable

from ncclx_mpi import errors
from ncclx_mpi.arguments import Buffer
from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.memory import view
from ncclx_mpi.constants import MAX_DATAREP_STRING
from numba_kernels.rows import NamedTuple

NATIVE, INTERNAL, EXTERNAL = "native", "internal", "external32"

Convert = Callable[[int, Buffer], None]
"""Converts packed elements at an address in place; the buffer says which, and how many."""


class Representation(NamedTuple):
    """What is done with elements on their way to a file and from it; None for nothing.

    `extent` says how long an element of a layout is in the file; None: as long as in memory.
    """

    encode: Convert | None = None
    decode: Convert | None = None
    extent: Callable[[Layout], int] | None = None


def _swap(address: int, buffer: Buffer) -> None:
    packing.swap(buffer.layout, view(address, buffer.nbytes))


_known: dict[str, Representation] = {
    NATIVE: Representation(),
    INTERNAL: Representation(),
    EXTERNAL: Representation(_swap, _swap),
}


def register(name: str, representation: Representation) -> None:
    """Add a representation.

    Raises
    ------
    Exception
        ERR_DUP_DATAREP: there is one of that name. ERR_ARG: the name is too long, or empty.
    """
    if name in _known:
        errors.fail(errors.ERR_DUP_DATAREP, f"there is a data representation {name!r} already")
    if not 0 < len(name) < MAX_DATAREP_STRING:
        errors.fail(
            errors.ERR_ARG, f"the name of a data representation has 1 to {MAX_DATAREP_STRING - 1} characters, not {len(name)}"
        )
    _known[name] = representation


def find(name: str) -> Representation:
    """The representation of that name.

    Raises
    ------
    Exception
        ERR_UNSUPPORTED_DATAREP: there is none.
    """
    found = _known.get(name)
    if found is None:
        errors.fail(
            errors.ERR_UNSUPPORTED_DATAREP, f"data representation {name!r} is unknown; there are {', '.join(sorted(_known))}"
        )
    return found


def extent(name: str, layout: Layout) -> int:
    """How many bytes an element is from the next one in a file of that representation."""
    measure = find(name).extent
    return layout.extent if measure is None else measure(layout)


def check(name: str, etype: Layout) -> None:
    """Raise unless elements of the etype can be in a file of that representation.

    Raises
    ------
    Exception
        ERR_UNSUPPORTED_DATAREP: there is none of that name, or they have another length there.
    """
    found = extent(name, etype)
    if found != etype.extent:
        errors.fail(
            errors.ERR_UNSUPPORTED_DATAREP,
            f"an element of the etype has {found} bytes in data representation {name!r}, and {etype.extent} in memory",
        )
