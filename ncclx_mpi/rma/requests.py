"""What ranks that share no memory ask of each other's windows: the words of a request, and how an access is cut into them.

::

    REQUEST | blocks: offset, bytes | ... | payload

A request is one message to the target, in a message space of the window's communicator that holds nothing else. Its answer, if
`reply` is not 0, is a message with that tag in another one: what the target held, or one word. The elements of a request are
described as they lie at the target, as far as possible once for all elements of a layout; an access of many blocks or bytes is
several requests, so that both ends need little memory for it. A cut never goes through an element of a predefined type, which
accumulations have to see whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from ncclx_mpi.buffers.layout import Layout, Listed
from ncclx_mpi.buffers.memory import Bytes, Words, array_words
from ncclx_mpi.buffers.named import LAYOUTS
from ncclx_mpi.p2p.alarm import SERVED
from ncclx_mpi.rma.accumulate import element_of
from ncclx_mpi.rma.reach import Place
from numba_kernels.late_numpy import np
from numba_kernels.layout import WORD, words
from numba_kernels.rows import NamedTuple

REQUEST = words("WindowRequest", "action reply nblocks start extent number value element")

PUT, GET, COMBINE, REPLACE, SWAP, LOCK, UNLOCK, FORGET, FLUSH, EXPOSE = range(1, 11)
"""`value`: of COMBINE the number of the reduction, NO_REDUCTION for none, of elements of `element` bytes; of LOCK whether it is exclusive,
and `element` whether it is waited for. FORGET takes back a LOCK whose answer nobody waits for any more, granted or not.
The answer to EXPOSE, of :data:`KEY_ROOM` bytes, is a :data:`KEY` with the key by which the network reaches the memory behind it."""
KEY = words("WindowKey", "address nbytes")
"""Where the memory is in its process, and bytes of its key; none if the network does not reach it."""
KEY_ROOM = 1024
NO_REDUCTION = -1

REQUESTS, REPLIES = SERVED, 3
"""The message spaces of the window's communicator."""

MOST_BYTES, MOST_BLOCKS = 1 << 20, 4096
"""Of one request: what it moves, and how many blocks describe where."""

_ROW = 2 * WORD


class Part(NamedTuple):
    """Elements in a window that one request is for: `number` of them, `extent` bytes apart, of the same blocks, from byte `start` on."""

    start: int
    extent: int
    number: int
    blocks: Words

    @property
    def nbytes(self) -> int:
        """Bytes of all elements when packed."""
        return self.number * int(self.blocks[:, 1].sum())

    @property
    def place(self) -> Place:
        """The elements, as accesses take them."""
        offsets, lengths = (array("q", column.tobytes()) for column in self.blocks.T)
        layout = Layout([Listed(_BYTE, lengths, offsets)], None)
        layout.resize(0, self.extent)
        return Place(layout, self.number, self.start)


class Request(NamedTuple):
    """A request as its target reads it; the addresses are valid as long as the message is."""

    action: int
    reply: int
    value: int
    element: int
    part: Part
    payload: int


_BYTE = LAYOUTS["BYTE"]


def message(
    action: int, reply: int = 0, part: Part | None = None, value: int = 0, element: int = 0, room: int = 0
) -> tuple[Bytes, int]:
    """Return a request with `room` bytes for its payload, and the address of that; no part, if it concerns no elements."""
    start, extent, number, blocks = part or (0, 0, 0, np.empty((0, 2), np.int64))
    nblocks = len(blocks)
    begin = REQUEST.total + nblocks * _ROW
    made = np.empty(begin + room, np.uint8)
    header = made[:begin].view(np.int64)
    header[: REQUEST.total // WORD] = action, reply, nblocks, start, extent, number, value, element
    header[REQUEST.total // WORD :] = blocks.reshape(-1)
    return made, array_words(made)[0] + begin


def read(found: Bytes) -> Request:
    """Return what a message asks for."""
    header = found[: REQUEST.total].view(np.int64).tolist()
    action, reply, nblocks, start, extent, number, value, element = header
    begin = REQUEST.total + nblocks * _ROW
    blocks = found[REQUEST.total : begin].view(np.int64).reshape(-1, 2)
    return Request(action, reply, value, element, Part(start, extent, number, blocks), array_words(found)[0] + begin)


def parts(place: Place) -> Iterator[Part]:
    """Cut elements, of which there are some, into those of single requests, in packing order."""
    element = element_of(place.layout)
    unit = element.size if element is not None and element.size else 1
    for layout, start, number in place.layout.runs(place.start, place.number):
        if layout.contiguous:
            yield from _cut(start, np.array([[layout.true_lb, number * layout.size]], np.int64), unit)
        elif layout.size <= MOST_BYTES and len(layout.blocks) <= MOST_BLOCKS:
            step = MOST_BYTES // layout.size
            for first in range(0, number, step):
                yield Part(start + first * layout.extent, layout.extent, min(step, number - first), layout.blocks)
        else:
            for k in range(number):
                yield from _cut(start + k * layout.extent, layout.blocks, unit)


def _cut(start: int, blocks: Words, unit: int) -> Iterator[Part]:
    """Cut one element of many blocks, or large ones, at multiples of `unit` packed bytes."""
    ends, position = np.cumsum(blocks[:, 1]), 0
    while position < ends[-1]:
        first = int(np.searchsorted(ends, position, "right"))
        end = min(position + MOST_BYTES, int(ends[min(first + MOST_BLOCKS, len(ends)) - 1]))
        if end < ends[-1]:
            end -= (end - position) % unit
        last = int(np.searchsorted(ends, end))
        some = blocks[first : last + 1].copy()
        skipped = position - int(ends[first] - blocks[first, 1])
        some[0] += (skipped, -skipped)
        some[-1, 1] -= ends[last] - end
        yield Part(start, 0, 1, some)
        position = end
