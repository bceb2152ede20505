"""Files that all ranks open, and random datatypes beside a plain list of the bytes that they have."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

HOLE = 0xA5


class Typemap(NamedTuple):
    """A datatype, the offsets of its bytes in the order in which they travel, and how far one element is from the next."""

    datatype: Any
    offsets: list[int]
    extent: int

    @property
    def size(self) -> int:
        return len(self.offsets)

    def places(self, count: int) -> list[int]:
        """Offsets of the bytes of `count` elements."""
        return [k * self.extent + offset for k in range(count) for offset in self.offsets]


def typemap(rng: random.Random, depth: int = 3) -> Typemap:
    """Draw a datatype of INT, of which the displacements never go back."""
    from ncclx_mpi import MPI

    found = Typemap(MPI.INT, [0, 1, 2, 3], 4)
    for _ in range(rng.randrange(depth + 1)):
        old, offsets, extent = found
        match rng.randrange(5):
            case 0:
                count = rng.randrange(1, 4)
                found = Typemap(old.Create_contiguous(count), found.places(count), count * extent)
            case 1:
                count, length = rng.randrange(1, 5), rng.randrange(1, 3)
                step = length + rng.randrange(3)
                places = [k * step * extent + place for k in range(count) for place in found.places(length)]
                found = Typemap(old.Create_vector(count, length, step), places, ((count - 1) * step + length) * extent)
            case 2:
                lengths = [rng.randrange(1, 3) for _ in range(rng.randrange(1, 4))]
                displs, at = [], rng.randrange(2)
                for length in lengths:
                    displs.append(at)
                    at += length + rng.randrange(3)
                places = [
                    displ * extent + place for displ, length in zip(displs, lengths, strict=True) for place in found.places(length)
                ]
                made = old.Create_indexed(lengths, displs).Create_resized(0, at * extent)
                found = Typemap(made, places, at * extent)
            case 3:
                wider = extent + 4 * rng.randrange(3)
                found = Typemap(old.Create_resized(0, wider), offsets, wider)
            case _:
                gap = 4 * rng.randrange(3)
                places = [*offsets, *(extent + gap + offset for offset in offsets)]
                made = MPI.Datatype.Create_struct([1, 1], [0, extent + gap], [old, old])
                found = Typemap(made.Create_resized(0, 2 * extent + gap), places, 2 * extent + gap)
    return found._replace(datatype=found.datatype.Dup().Commit())


def tiled(found: Typemap, size: int) -> Typemap:
    """The same datatype, with room behind each element for one of every other rank."""
    extent = found.extent * size
    return Typemap(found.datatype.Create_resized(0, extent).Commit(), found.offsets, extent)


@contextlib.contextmanager
def shared_path(comm: Any) -> Iterator[str]:
    """The name of a file that is not there yet, in a folder that all ranks see."""
    folder = comm.bcast(tempfile.mkdtemp(prefix="ncclx-io-") if comm.rank == 0 else None)
    path = os.path.join(folder, "file")
    try:
        yield path
        comm.Barrier()
    finally:
        if comm.rank == 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.rmdir(folder)


@contextlib.contextmanager
def opened(comm: Any, content: bytes = b"", amode: int = 0, info: Any = None) -> Iterator[tuple[Any, str]]:
    """A file with some content, open to be read and written, and its name."""
    from ncclx_mpi import MPI

    with shared_path(comm) as path:
        if comm.rank == 0:
            with open(path, "wb") as stream:
                stream.write(content)
        comm.Barrier()
        file = MPI.File.Open(comm, path, amode or MPI.MODE_RDWR, info if info is not None else MPI.INFO_NULL)
        yield file, path
        file.Close()


def content_of(path: str) -> np.ndarray[Any, Any]:
    return np.fromfile(path, np.uint8)


def data(seed: object, nbytes: int) -> np.ndarray[Any, Any]:
    """Bytes that nobody else writes."""
    return np.frombuffer(random.Random(repr(seed)).randbytes(nbytes), np.uint8).copy()
