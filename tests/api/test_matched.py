"""Arrays out of matched messages: in compiled code where they are plain, and whatever else may be a buffer."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

SIZES = (0, 1, 100, 5_000, 300_000)
"""Doubles: eager messages, and those that are fetched."""


def sent(rank: int, size: int) -> Any:
    """What a rank sends."""
    return np.arange(size, dtype="d") + 1000 * rank


FORMS = {
    "array": lambda size: (buffer := np.full(size, -1.0), buffer),
    "array and type": lambda size: ([buffer := np.full(size, -1.0), MPI.DOUBLE], buffer),
    "bytes": lambda size: (room := bytearray(8 * size), np.frombuffer(room)),
    "array of Python's": lambda size: (room := array.array("d", bytes(8 * size)), np.frombuffer(room)),
    "column": lambda size: ([buffer := np.full(2 * size, -1.0), size, MPI.DOUBLE.Create_resized(0, 16).Commit()], buffer[::2]),
}
"""A buffer of so many doubles, and where they lie in it."""


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["Mprobe", "Improbe"])
def test_what_was_sent_is_received(comm: Any, way: str, form: str) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in SIZES:
        status, received = MPI.Status(), MPI.Status()
        sending = comm.Isend(sent(comm.rank, size), right, 4)
        message = None
        while message is None:
            message = getattr(comm, way)(left, MPI.ANY_TAG, status)
        assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (left, 4, size)
        buffer, found = FORMS[form](size)
        message.Recv(buffer, received)
        assert (received.source, received.tag, received.Get_count(MPI.DOUBLE)) == (left, 4, size)
        assert message == MPI.MESSAGE_NULL
        assert np.array_equal(found, sent(left, size))
        sending.Wait()


@pytest.mark.ranks(2)
def test_the_oldest_message_is_taken_first(comm: Any) -> None:
    """Whether or not a status is wanted, by each of the calls that look at messages."""
    other, status, box = 1 - comm.rank, MPI.Status(), np.zeros(1)
    for number in range(6):
        comm.Send(np.full(1, 10.0 * comm.rank + number), other, number)
    assert comm.Probe(other, 5)  # all have come
    assert comm.Probe(other, MPI.ANY_TAG) and comm.Probe(other, MPI.ANY_TAG, status) and status.tag == 0
    for number in (0, 1):
        comm.Mprobe(status=status).Recv(box)
        assert (status.tag, box[0]) == (number, 10 * other + number)
    first, second = comm.Mprobe(), comm.Mprobe()
    assert comm.Iprobe(other, 4) and not comm.Iprobe(other, 3)
    assert comm.Improbe(other, 3) is None
    second.Recv(box)
    assert box[0] == 10 * other + 3
    first.Recv(box)
    assert box[0] == 10 * other + 2
    for number in (4, 5):
        comm.Recv(box, other, number)
        assert box[0] == 10 * other + number


@pytest.mark.ranks(1)
def test_a_buffer_that_cannot_be_leaves_the_message_to_others(comm: Any) -> None:
    sending = comm.Isend(sent(3, 100_000), 0, 1)
    message = comm.Mprobe(0, 1)
    copy, read_only = MPI.Message(message), np.zeros(100_000)
    read_only.flags.writeable = False
    for wrong in (read_only, b"x" * 800_000, object(), [np.zeros(100_000), 1, "no type"]):
        with pytest.raises((TypeError, ValueError, BufferError, KeyError, MPI.Exception)):
            message.Recv(wrong)
        assert message != MPI.MESSAGE_NULL
    box = np.zeros(100_000)
    copy.Recv(box)
    assert np.array_equal(box, sent(3, 100_000))
    for taken in (message, copy, MPI.MESSAGE_NULL):
        with pytest.raises(MPI.Exception, match="message"):
            taken.Recv(box)
    sending.Wait()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("size", [3, 100_000])
def test_one_that_is_too_long_is_an_error_and_gone(comm: Any, size: int) -> None:
    """The words name both sizes; the elements behind the buffer are not touched, and the next message is the next one's."""
    comm.Isend(sent(0, size), 0, 1)
    comm.Isend(np.full(1, 5.0), 0, 1)
    memory, status = np.full(size, -1.0), MPI.Status()
    message = comm.Mprobe(0, 1)
    with pytest.raises(MPI.Exception, match=f"{8 * size}.*8|8.*{8 * size}") as failed:
        message.Recv(memory[:1], status)
    assert failed.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert (memory[1:] == -1).all()
    comm.Mprobe(0, 1).Recv(memory[:1])
    assert memory[0] == 5


@pytest.mark.ranks(1, 2)
def test_nobodys_message_holds_nothing(comm: Any) -> None:
    status, box = MPI.Status(), np.full(2, 7.0)
    for look in (comm.Mprobe, comm.Improbe):
        message = look(MPI.PROC_NULL, 3, status)
        assert message == MPI.MESSAGE_NO_PROC
        assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
        message.Recv(box, status)
        assert (status.source, box.tolist()) == (MPI.PROC_NULL, [7, 7])
    assert comm.Probe(MPI.PROC_NULL, 3, status) and status.source == MPI.PROC_NULL


@pytest.mark.ranks(1)
@pytest.mark.parametrize("look", ["Probe", "Iprobe", "Mprobe", "Improbe"])
@pytest.mark.parametrize(
    "source, tag, error", [(1, 0, MPI.ERR_RANK), (-7, 0, MPI.ERR_RANK), (0, -7, MPI.ERR_TAG), (0, 1 << 40, MPI.ERR_TAG)]
)
def test_peers_and_tags_that_are_none(comm: Any, look: str, source: int, tag: int, error: int) -> None:
    with pytest.raises(MPI.Exception) as failed:
        getattr(comm, look)(source, tag)
    assert failed.value.Get_error_class() == error
