"""Elements in GPU memory to and from packed bytes in host memory, however many, with a bounded amount of it pinned.

What a lease has pinned memory for is copied at once. Longer ones are ordinary memory (:data:`ncclx_mpi.gpu_memory.staging.PINNED_MAX`), to
which a GPU has no fast way: their bytes pass through two pieces of pinned memory in turn, so that the copies by the GPU and those by
the CPU run beside each other::

    GPU to the host    copies by the GPU   | piece 0 | piece 1 | piece 0 | piece 1 |
                       copies by the CPU             | piece 0 | piece 1 | piece 0 | piece 1 |

T = pieces * alpha + the larger of T(copies by the GPU), T(copies by the CPU); 2 * :data:`PIECE` bytes are pinned meanwhile.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence

from ncclx_mpi.arguments import gpu_packing
from ncclx_mpi.arguments.gpu_packing import Piece
from ncclx_mpi.buffers.layout import basic
from ncclx_mpi.gpu_memory.copying import Copies
from ncclx_mpi.gpu_memory.memory import DeviceMemory, keep_for_good
from ncclx_mpi.gpu_memory.staging import Lease

PIECE = 4 << 20
"""Bytes that pass at a time."""

_ROOMS = 2
_BYTE = basic("BYTE", 1, 1)


def read(memory: DeviceMemory, pieces: Sequence[Piece], room: Lease) -> None:
    """Copy elements to packed bytes in `room`, after what the array's stream holds; complete on return.

    Raises
    ------
    Exception
        ERR_BUFFER: the array was freed. ERR_NO_MEM: there is no memory left. ERR_OTHER: its stream is being captured, or the
        driver failed. ERR_PROC_FAILED: a rank died.
    """
    rooms = _rooms(memory, pieces, room)
    if rooms:
        _Passage(memory, rooms).read(pieces)
    else:
        gpu_packing.read(memory, pieces, room)


def write(memory: DeviceMemory, pieces: Sequence[Piece], room: Lease) -> None:
    """Copy packed bytes in `room` to elements, after what the array's stream holds; complete on return. Raises as :func:`read`."""
    rooms = _rooms(memory, pieces, room)
    if rooms:
        _Passage(memory, rooms).write(pieces)
    else:
        gpu_packing.write(memory, pieces, room)


def run(address: int, packed: int, nbytes: int) -> Piece:
    """A run of bytes, and where they are in a lease."""
    return Piece(_BYTE, address, nbytes, packed)


def begin(copies: Copies, pieces: Sequence[Piece], room: Lease, *, is_load: bool) -> None:
    """Begin to copy elements to or from packed bytes in pinned memory; what is scattered is copied on return.

    Raises as :func:`read`; `copies` knows what is under way then.
    """
    moves, scattered = [], []
    for piece in pieces:
        if not piece.layout.contiguous:
            scattered.append(piece)
        elif piece.nbytes:
            at = piece.origin + piece.layout.true_lb + piece.first
            moves.append((piece.packed, at, piece.nbytes) if is_load else (at, piece.packed, piece.nbytes))
    if moves:
        copies.begin_all(moves)
    if scattered:
        (gpu_packing.read if is_load else gpu_packing.write)(copies.memory, scattered, room)


def _rooms(memory: DeviceMemory, pieces: Sequence[Piece], room: Lease) -> list[Lease]:
    """Pinned memory to pass through; none where there is no need of it, or none to be had."""
    if room.is_pinned:
        return []
    most = min(PIECE, sum(piece.nbytes for piece in pieces))
    rooms = [gpu_packing.lease(memory, most) for _ in range(_ROOMS)]
    return rooms if all(each.is_pinned for each in rooms) else []


class _Passage:
    """Bytes on their way through pinned memory."""

    def __init__(self, memory: DeviceMemory, rooms: list[Lease]) -> None:
        self._memory = memory
        self._rooms = rooms
        self._under_way: deque[tuple[Copies, list[Piece], Lease]] = deque()
        with memory.current() as driver:
            memory.check_usable()
            self._after = driver.record(memory.stream.handle)

    def read(self, pieces: Sequence[Piece]) -> None:
        self._pass(pieces, is_load=True)

    def write(self, pieces: Sequence[Piece]) -> None:
        self._pass(pieces, is_load=False)

    def _pass(self, pieces: Sequence[Piece], *, is_load: bool) -> None:
        try:
            for number, batch in enumerate(_batches(pieces)):
                if number >= _ROOMS:
                    self._end(is_load)
                self._begin(batch, self._rooms[number % _ROOMS], is_load)
            while self._under_way:
                self._end(is_load)
        except BaseException:
            keep_for_good(self)
            for copies, _, _ in self._under_way:
                copies.join()
            raise

    def _begin(self, batch: list[Piece], room: Lease, is_load: bool) -> None:
        at, moved = room.address, []
        for piece in batch:
            if not is_load:
                ctypes.memmove(at, piece.packed, piece.nbytes)
            moved.append(piece._replace(packed=at))
            at += piece.nbytes
        copies = Copies(self._memory, self._after)
        self._under_way.append((copies, batch, room))
        begin(copies, moved, room, is_load=is_load)

    def _end(self, is_load: bool) -> None:
        """Wait for what was begun first; what was loaded goes to its place."""
        copies, batch, room = self._under_way[0]
        copies.wait()
        self._under_way.popleft()
        at = room.address
        for piece in batch if is_load else ():
            ctypes.memmove(piece.packed, at, piece.nbytes)
            at += piece.nbytes


def _batches(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Cut pieces such that as many as come one after the other have `PIECE` bytes together."""
    batch: list[Piece] = []
    left = PIECE
    for piece in pieces:
        done = 0
        while done < piece.nbytes:
            taken = min(piece.nbytes - done, left)
            batch.append(piece._replace(nbytes=taken, packed=piece.packed + done, first=piece.first + done))
            done += taken
            left -= taken
            if not left:
                yield batch
                batch, left = [], PIECE
    if batch:
        yield batch
