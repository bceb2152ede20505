"""Messages of elements with gaps that do not block: what is packed before they start, and unpacked once they have come.

::

    request ──.gaps──▶  landing: origin, layout | bytes of the message
                                                  ▲ sent from here, or received

The landing, and what its layout and its array need, are kept alive by whoever keeps the memory of the request alive.
"""

from __future__ import annotations

from typing import Any

from ncclx_mpi.p2p.layout import RECEIVE, REQUEST
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words, zeroed
from numba_kernels.pylayouts import LAYOUT, pack_row, unpack_row

LANDING = words("Landing", f"origin layout*{LAYOUT.total // WORD}")
"""Where the first element begins, and the fields of `LAYOUT` of all; the bytes of the message follow."""
LONGEST = 1 << 18
"""Bytes beyond this are packed without the GIL, and the time of a call in Python is no part of theirs."""


def new_landing(origin: int, table: tuple[int, int] | None, size: int, extent: int, nbytes: int) -> tuple[Any, int, int] | None:
    """Make a landing for so many bytes of a layout: its memory, its address, and where the bytes go. None: there is no table, or too much."""
    if table is None or not 0 < nbytes <= LONGEST:
        return None
    memory, at = zeroed(LANDING.total + -(-nbytes // WORD) * WORD)
    fields = {LANDING.origin: origin}
    for field, value in zip((LAYOUT.blocks, LAYOUT.nblocks, LAYOUT.size, LAYOUT.extent), (*table, size, extent), strict=True):
        fields[LANDING.layout + field] = value
    for offset, value in fields.items():
        memory[offset // WORD] = value
    return memory, at, at + LANDING.total


@kernel("void(int64, int64, boolean)", is_entry=True)
def move(landing, nbytes, unpacking):  # type: ignore[no-untyped-def]
    """Pack the elements of a landing, or unpack the first bytes of what has come."""
    row, data = landing + LANDING.layout, landing + LANDING.total
    if unpacking:
        unpack_row(row, data, nbytes, load64(landing + LANDING.origin))
    else:
        pack_row(row, load64(landing + LANDING.origin), nbytes, data)


@kernel("void(int64)")
def unpack(request):  # type: ignore[no-untyped-def]
    """Unpack what a complete request has brought, if it is a receive of elements with gaps."""
    landing = load64(request + REQUEST.gaps)
    if landing != 0 and load64(request + REQUEST.kind) == RECEIVE:
        move(landing, load64(request + REQUEST.message_bytes), True)
