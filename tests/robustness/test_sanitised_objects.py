"""Random objects through every call that takes objects, and damaged pickles through the compiled reader at the edge of an unreadable page.

What has come is compared with what pickle makes of the same object. ``--full``: 50,000 objects a call, 1,000,000 damaged pickles.
"""

from __future__ import annotations

import ctypes
import pickle
import random
from typing import Any

import pytest

from ncclx_mpi import MPI
from ncclx_mpi.testing.guarded import guarded
from numba_kernels import pickling, unpickling
from numba_kernels.jit import entry
from numba_kernels.pickling import LARGEST, ROOM
from tests.robustness.random_objects import Maker, alike

Exchanged = list[tuple[Any, int]]
"""What has come, and the rank whose object it should be."""
_SEED = 20_000


def objects_of(turn: int, size: int) -> list[Any]:
    """The objects of all ranks in a turn; rank 0 and every second one give plain values in every second turn."""
    makers = [Maker(_SEED + turn * size + rank) for rank in range(size)]
    return [maker.anything() if (turn + rank) % 2 else maker.plain() for rank, maker in enumerate(makers)]


def by_messages(comm: Any, obj: Any, turn: int) -> Exchanged:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank % 2:
        found = comm.recv(source=left)
        comm.send(obj, right)
    else:
        comm.send(obj, right)
        found = comm.recv(source=left)
    return [(found, left)]


def by_requests(comm: Any, obj: Any, turn: int) -> Exchanged:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    receives = [comm.irecv(source=left, tag=tag) for tag in range(3)]
    sends = [comm.isend(obj, right, tag) for tag in range(3)]
    found = [receives[0].wait(), *MPI.Request.waitall(receives[1:])]
    MPI.Request.waitall(sends)
    return [(each, left) for each in found]


def by_sendrecv(comm: Any, obj: Any, turn: int) -> Exchanged:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return [(comm.sendrecv(obj, right, source=left), left)]


def by_bcast(comm: Any, obj: Any, turn: int) -> Exchanged:
    root = turn % comm.size
    return [(comm.bcast(obj if comm.rank == root else None, root), root)]


def by_scatter(comm: Any, obj: Any, turn: int) -> Exchanged:
    root = turn % comm.size
    return [(comm.scatter([obj] * comm.size if comm.rank == root else None, root), root)]


def by_gather(comm: Any, obj: Any, turn: int) -> Exchanged:
    found = comm.gather(obj, turn % comm.size)
    return list(zip(found, range(comm.size), strict=True)) if comm.rank == turn % comm.size else []


def by_allgather(comm: Any, obj: Any, turn: int) -> Exchanged:
    return list(zip(comm.allgather(obj), range(comm.size), strict=True))


def by_alltoall(comm: Any, obj: Any, turn: int) -> Exchanged:
    return list(zip(comm.alltoall([obj] * comm.size), range(comm.size), strict=True))


WAYS = {
    way.__name__[3:]: way
    for way in (by_messages, by_requests, by_sendrecv, by_bcast, by_scatter, by_gather, by_allgather, by_alltoall)
}


@pytest.mark.ranks(2, 3, timeout=7000)
@pytest.mark.parametrize("name", WAYS)
def test_what_comes_is_what_pickle_makes(comm: Any, name: str, full: bool) -> None:
    """Value, type, and which parts are one object."""
    for turn in range(50_000 // comm.size if full else 100):
        objects = objects_of(turn, comm.size)
        expected = [pickle.loads(pickle.dumps(obj, 5)) for obj in objects]
        for found, source in WAYS[name](comm, objects[comm.rank], turn):
            assert alike(found, expected[source]), f"turn {turn}, rank {source}: {found!r} instead of {expected[source]!r}"
        assert alike(objects[comm.rank], objects_of(turn, comm.size)[comm.rank]), f"turn {turn}: what was given has changed"


class Codec:
    """The compiled writer and reader, with a room and pickles that end at unreadable pages."""

    def __init__(self) -> None:
        pickling.introduce(unpickling.read)
        self._room, self._pickle = guarded(ROOM.total), guarded(LARGEST)
        self._end = self._pickle.ctypes.data + LARGEST
        self._found = ctypes.c_int64()

    def write(self, value: Any, limit: int = LARGEST) -> bytes:
        """The pickle of a plain value, nothing of any other, or if it needs more than `limit` bytes."""
        nbytes = entry(pickling.write)(id(value), self._room.ctypes.data, self._end - limit, limit)
        return ctypes.string_at(self._end - limit, nbytes)

    def read(self, data: bytes) -> list[Any]:
        """The value of a pickle in a list, which is empty if it is none of ours."""
        address = self._end - len(data)
        ctypes.memmove(address, data, len(data))
        if not entry(unpickling.read)(self._room.ctypes.data, address, len(data), ctypes.addressof(self._found)):
            assert not ctypes.pythonapi.PyErr_Occurred()
            return []
        value = ctypes.cast(self._found.value, ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))
        return [value]


LENGTHS = (
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\1\0\0\0",
    b"\xff" * 8,
    b"\0" * 8,
    b"\x08" + b"\0" * 7,
)


def damaged(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """A pickle with one to three things wrong with it, or put together with another one."""
    for _ in range(draw.randrange(1, 4)):
        place, kind = draw.randrange(len(data) + 1), draw.randrange(7)
        if kind == 0:
            data = data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]
        elif kind == 1:
            data = data[:place] + data[place + draw.randrange(9) :]
        elif kind == 2:
            data = data[:place] + b"."
        elif kind == 3:
            data = data[:place] + other[draw.randrange(len(other)) :]
        elif kind == 4:
            length = draw.choice(LENGTHS)
            data = data[:place] + length + data[place + len(length) :]
        elif kind == 5:
            data = (
                data[:place]
                + draw.choice((b"(", b"]", b"]((", b"}(", b")", b"t", b"e", b"u", b"cnumpy\nndarray\n(("))
                + data[place:]
            )
        else:
            data = data[:place] + data[max(0, place - draw.randrange(40)) :]
    return data[:LARGEST]


@pytest.mark.ranks(1, timeout=7000)
def test_damaged_pickles_before_an_unreadable_page(comm: Any, full: bool) -> None:
    """The reader touches no byte behind them, and takes only what pickle reads as the same value."""
    codec, draw, taken = Codec(), random.Random(7), 0
    sources = [pickle.dumps(value, 5) for value in (None, [1, "x"], {"a": (1.5, b"y")})]
    for seed in range(400):
        value = Maker(seed).plain()
        data = codec.write(value)
        if data:
            assert alike(codec.read(data)[0], pickle.loads(data)) and alike(value, pickle.loads(data))
            sources.append(data)
    assert len(sources) > 300
    for turn in range(1_000_000 if full else 5_000):
        data = damaged(draw.choice(sources), draw.choice(sources), draw)
        for found in codec.read(data):
            taken += 1
            assert alike(found, pickle.loads(data)), f"turn {turn}: {data!r} was read as {found!r}"
    assert taken > 100


@pytest.mark.ranks(1)
def test_the_writer_stays_within_its_limit(comm: Any, full: bool) -> None:
    """Whatever the limit is, not one byte behind it is written, and what is written is whole."""
    codec, draw = Codec(), random.Random(3)
    for seed in range(20_000 if full else 1_000):
        value = Maker(seed).plain()
        whole = codec.write(value)
        limit = draw.randrange(len(whole) + 200)
        assert codec.write(value, limit) in (b"", whole)
