"""What a rank brings to a collective that goes by way of the host, as blocks that can be cut.

::

    block of rank 0    block of rank 1    block of rank 2
    |....|....|...     |....|....|...     |....|....|...       columns of `step` bytes: piece k is a collective of its own
      0    1    2        0    1    2        0    1    2         on the k-th column of every block

A call is cut like that only if all ranks know it: when all of their arrays are on devices, since then they have met on the board. Each
shows the bytes of its largest block there, and the largest of all decides. Elements of a reduction are in one piece, so each is
reduced as ever, in the order of the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncclx_mpi.arguments import Buffer, VBuffer, WBuffer
from ncclx_mpi.device.offers import Operand, is_reduction, kind_of
from numba_kernels.rows import NamedTuple

PIECE = 4 << 20
"""Bytes of a rank's larger array in one piece of a call, about."""

_UNIT = 64
_IN_BLOCKS = {
    "gather": (False, True),
    "scatter": (True, False),
    "allgather": (False, True),
    "alltoall": (True, True),
    "reduce_scatter": (True, False),
    "reduce_scatter_block": (True, False),
}
"""Whether what is given, and what is got, are blocks of all ranks, if it is one buffer."""
_OWN_BLOCK = ("gather", "gatherv", "allgather", "allgatherv")
"""Where a rank that works in place has its contribution among the blocks that it gets."""
_SCATTERED = ("reduce_scatter", "reduce_scatter_block")
_UNEVEN = ("gatherv", "scatterv", "alltoallv")
"""Calls of which no rank knows the largest block of all."""

Blocks = list[Buffer]


class Cut(NamedTuple):
    """How a call is carried out on the host.

    Attributes
    ----------
    pieces
        In how many pieces: 1 as a whole, 0 not at all, since it has been carried out.
    step
        Bytes of a block in each piece.
    """

    pieces: int
    step: int = 0


DONE, WHOLE = Cut(0), Cut(1)


class Parts(NamedTuple):
    """One rank's blocks.

    Attributes
    ----------
    sent, received
        What it gives and gets, None where nothing; what it gives in place is among what it gets, except for ``is_parted``.
    is_parted
        It works in place, and what it gives was set apart.
    kind, root, nbytes
        What the call is signed with: see :class:`~ncclx_mpi.device.offers.Task`.
    itemsize
        Bytes that are not to be cut.
    largest
        Bytes of its largest block.
    is_uneven
        Whether that of another rank may be larger, for all it knows.
    """

    sent: Blocks | None
    received: Blocks | None
    is_parted: bool
    kind: int
    root: int
    nbytes: int
    itemsize: int
    largest: int
    is_uneven: bool


def bring(rank: int, size: int, name: str, sent: Operand, received: Operand, root: int, counts: Sequence[int]) -> Parts | None:
    """The parts of `rank` in collective `name` of :mod:`ncclx_mpi.collectives`; None if it has arrays on the host.

    `counts`, of a reduce_scatter or reduce_scatter_block, are the elements of each rank's block.
    """
    in_blocks = _IN_BLOCKS.get(name, (False, False))
    given, got = (_blocks(operand, size, is_many, counts) for operand, is_many in zip((sent, received), in_blocks, strict=True))
    is_parted = given is None and got is not None and name in _OWN_BLOCK + _SCATTERED
    if is_parted and got is not None:
        given, got = ([got[rank]], got) if name in _OWN_BLOCK else (got[0].split(counts), got[0].split([counts[rank]]))
    blocks = (given or []) + (got or [])
    if any(block.nbytes and block.device is None for block in blocks):
        return None
    largest, kind = max(block.nbytes for block in blocks), kind_of(name)
    if is_reduction(name):
        nbytes = sum(block.nbytes for block in given or got or [])
        return Parts(given, got, is_parted, kind, root, nbytes, max(blocks[0].itemsize, 1), largest, False)
    nbytes = 0 if name.endswith("v") else largest
    return Parts(given, got, is_parted, kind, root, nbytes, 1, largest, name in _UNEVEN)


def cut(name: str, size: int, largest: int, itemsize: int) -> Cut:
    """How a call is cut whose largest block has `largest` bytes."""
    blocks = size if name in _IN_BLOCKS or name.endswith("v") else 1
    unit = math.lcm(itemsize, _UNIT)
    step = PIECE // blocks // unit * unit or max(PIECE // blocks // itemsize, 1) * itemsize
    return Cut(max(-(-largest // step), 1), step)


def _blocks(operand: Operand, size: int, is_many: bool, counts: Sequence[int]) -> Blocks | None:
    if operand is None:
        return None
    if isinstance(operand, VBuffer | WBuffer):
        return [operand.block(rank) for rank in range(size)]
    if not is_many:
        return [operand]
    return operand.split(counts or [operand.count // size] * size)
