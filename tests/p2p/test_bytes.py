"""Small objects: one compiled call from the bytes of the pickle into the ring, one from there into new bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

SIZES = (0, 1, 31, 32, 33, 511, 8000, 16_000, 32_700, 32_768, 33_000, 300_000)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("nbytes", SIZES)
def test_every_way_to_send_one(comm: Any, nbytes: int) -> None:
    above, below, status = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, MPI.Status()
    mine, expected = (comm.rank, b"x" * nbytes), (below, b"x" * nbytes)
    ways: list[Callable[[], Any]] = [
        lambda: comm.isend(mine, above, 5),
        lambda: comm.issend(mine, above, 5),
        lambda: comm.irecv(source=below, tag=6),
    ]
    for start in ways[:2]:
        request = start()
        assert comm.recv(None, below, 5, status) == expected and (status.source, status.tag) == (below, 5)
        assert request.wait() is None and not request
    receiving = ways[2]()
    sending = comm.isend(mine, above, 6)
    assert MPI.Request.waitall([receiving, sending]) == [expected, None]
    assert comm.sendrecv(mine, above, 7, None, MPI.ANY_SOURCE, MPI.ANY_TAG, status) == expected
    assert (status.source, status.tag) == (below, 7) and (status.count >= nbytes)
    root = comm.size - 1
    assert comm.bcast(mine, root) == (root, b"x" * nbytes)


@pytest.mark.ranks(1)
def test_messages_that_are_no_pickles(comm: Any) -> None:
    """An empty one is None; one that begins like a lead, and is none, is passed to the unpickler."""
    comm.Send(b"", 0)
    assert comm.recv() is None
    for wrong in (b"\0", b"\0ncclx_mpi frame", b"no pickle"):
        comm.Send(wrong, 0)
        with pytest.raises(pickle.UnpicklingError):
            comm.recv(source=0)
    comm.Send(pickle.dumps("plain"), 0)
    assert comm.recv(source=0) == "plain"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_pickle_of_the_program(comm: Any, kind: Callable[[bytes], Any]) -> None:
    """Its bytes may be of any kind that memory can be read from."""
    MPI.pickle.__init__(lambda obj: kind(repr(obj).encode()), lambda data: eval(bytes(data).decode()))
    try:
        other = 1 - comm.rank
        request = comm.isend([comm.rank, "text"], other)
        assert comm.recv(source=other) == [other, "text"] and request.wait() is None
        assert comm.sendrecv(comm.rank, other, 0, None, other) == other
        assert comm.bcast({"root": 1} if comm.rank else None, 1) == {"root": 1}
        assert comm.allgather(comm.rank) == [0, 1]
    finally:
        MPI.pickle.__init__()


@pytest.mark.ranks(1)
def test_what_cannot_be_sent(comm: Any) -> None:
    for wrong in ({"dest": 3}, {"dest": 0, "tag": -7}, {"dest": 0, "tag": 1 << 40}):
        for method in (comm.send, comm.ssend, comm.isend):
            with pytest.raises(MPI.Exception):
                method("text", **wrong)
    with pytest.raises(TypeError):
        comm.send("text", "0")
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        comm.send(lambda: None, 0)
    comm.send(lambda: None, MPI.PROC_NULL)  # never looked at
    assert comm.sendrecv(lambda: None, MPI.PROC_NULL, 0, None, MPI.PROC_NULL) is None
    comm.send("text", np.int64(0), True)
    assert comm.recv(source=np.int32(0), tag=1) == "text"
