"""What ranks show each other on the board: where their arrays are, and which parts of them the collective reads and writes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ncclx_mpi.device.offers import ROW, Row, Task
from ncclx_mpi.gpu_memory.peers import PLACE, Place
from numba_kernels.cuda.driver import HANDLE_BYTES
from numba_kernels.layout import WORD, words
from numba_kernels.rows import NamedTuple

PLACE_WORDS, _ROW_WORDS = PLACE.total // WORD, ROW.total // WORD
DESCRIPTOR = words("Descriptor", f"pid uuid*2 operation itemsize largest send*{PLACE_WORDS} recv*{PLACE_WORDS}")
"""What precedes the rows, one for each rank. ``operation``: a digest of the names of operation and element type, 0 without one. ``pid`` is
0 where a rank does not show its arrays, and all but ``itemsize`` and ``largest`` with it: see :class:`~ncclx_mpi.device.parts.Parts`."""

Words = npt.NDArray[np.int64]


class Member(NamedTuple):
    """One rank's part in a collective, as the others know it.

    Attributes
    ----------
    pid, uuid
        Its process, and the GPU that its arrays are on.
    operation
        Digest of what it reduces by.
    itemsize, largest
        Bytes of an element that is reduced, and of its largest block.
    send, recv
        Its arrays, None for one that is not there.
    rows
        See :class:`~ncclx_mpi.device.offers.Task`.
    """

    pid: int
    uuid: bytes
    operation: int
    itemsize: int
    largest: int
    send: Place | None
    recv: Place | None
    rows: tuple[Row, ...]

    @property
    def source(self) -> Place | None:
        """The array that is read."""
        return self.send or self.recv


def nbytes_of(size: int) -> int:
    """Bytes of a descriptor among `size` ranks."""
    return int(DESCRIPTOR.total + size * ROW.total)


def describe_hidden(size: int, itemsize: int, largest: int) -> Words:
    """The descriptor of a rank that does not show its arrays."""
    found = np.zeros(nbytes_of(size) // WORD, dtype=np.int64)
    found[DESCRIPTOR.itemsize // WORD] = itemsize
    found[DESCRIPTOR.largest // WORD] = largest
    return found


def describe(task: Task, largest: int, pid: int, uuid: bytes, send: Place | None, recv: Place | None) -> Words:
    """The descriptor of this rank."""
    found = describe_hidden(len(task.rows), task.itemsize, largest)
    found[DESCRIPTOR.pid // WORD] = pid
    if task.operation:
        found[DESCRIPTOR.operation // WORD] = zlib.crc32(" ".join(task.operation).encode())
    put(found, DESCRIPTOR.uuid, np.frombuffer(uuid, dtype=np.int64))
    for at, place in ((DESCRIPTOR.send, send), (DESCRIPTOR.recv, recv)):
        if place is not None:
            put_place(found, at, place)
    put(found, DESCRIPTOR.total, np.array(task.rows, dtype=np.int64).reshape(-1))
    return found


def read(descriptor: Words) -> Member:
    """What a descriptor says."""
    first = DESCRIPTOR.uuid // WORD
    rows = descriptor[DESCRIPTOR.total // WORD :].reshape(-1, _ROW_WORDS).tolist()
    return Member(
        pid=int(descriptor[DESCRIPTOR.pid // WORD]),
        uuid=descriptor[first : first + 2].tobytes(),
        operation=int(descriptor[DESCRIPTOR.operation // WORD]),
        itemsize=int(descriptor[DESCRIPTOR.itemsize // WORD]),
        largest=int(descriptor[DESCRIPTOR.largest // WORD]),
        send=read_place(descriptor, DESCRIPTOR.send),
        recv=read_place(descriptor, DESCRIPTOR.recv),
        rows=tuple(Row(*row) for row in rows),
    )


def executors_of(uuids: Sequence[bytes]) -> list[int]:
    """For each rank, the executor of its GPU: the lowest rank with arrays on it."""
    first: dict[bytes, int] = {}
    return [first.setdefault(uuid, rank) for rank, uuid in enumerate(uuids)]


def put(words: Words, at: int, values: Words) -> None:
    """Write words at byte `at`."""
    words[at // WORD : at // WORD + len(values)] = values


def put_place(words: Words, at: int, place: Place) -> None:
    """Write a place at byte `at`."""
    put(words, at, np.array(place[:4], dtype=np.uint64).view(np.int64))
    put(words, at + PLACE.handle, np.frombuffer(place.handle, dtype=np.int64))


def read_place(words: Words, at: int) -> Place | None:
    """The place at byte `at`, None if there is none."""
    base, offset, nbytes, buffer_id = words[at // WORD : at // WORD + 4].view(np.uint64).tolist()
    first = (at + PLACE.handle) // WORD
    handle = words[first : first + HANDLE_BYTES // WORD].tobytes()
    return Place(base, offset, nbytes, buffer_id, handle) if base else None
