"""Messages of arrays: every mode, wildcards, order, datatypes, matching probes, buffered sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

SIZES = (0, 1, 100, 5_000, 40_000, 300_000)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", ["Send", "Ssend", "Isend", "Issend", "Sendrecv", "Isendrecv"])
def test_ring(comm: Any, method: str) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in SIZES:
        out, inside = np.full(size, comm.rank, dtype="i"), np.full(size, -1, dtype="i")
        if "recv" in method:
            done = getattr(comm, method)(out, right, 3, inside, left, 3)
            if done is not None:
                done.Wait()
        else:
            receive = comm.Irecv(inside, left, 3)
            done = getattr(comm, method)(out, right, 3)
            if done is not None:
                done.Wait()
            receive.Wait()
        assert (inside == left).all()


@pytest.mark.ranks(1, 2, 3)
def test_sendrecv_replace(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in SIZES:
        data = np.full(size, comm.rank, dtype="d")
        comm.Sendrecv_replace(data, right, 0, left, 0)
        assert (data == left).all()
        comm.Isendrecv_replace(data, left, 0, right, 0).Wait()
        assert (data == comm.rank).all()


@pytest.mark.ranks(2)
def test_sendrecv_replace_at_its_edges(comm: Any) -> None:
    """Nobody at either end, a message that is longer or shorter, wrong ranks, and memory that must not be written."""
    other, status = 1 - comm.rank, MPI.Status()
    data = np.full(4, comm.rank + 1.0)
    comm.Sendrecv_replace(data, MPI.PROC_NULL, 0, MPI.PROC_NULL, 0, status)
    assert (data == comm.rank + 1).all() and status.source == MPI.PROC_NULL and status.Get_count(MPI.DOUBLE) == 0
    if comm.rank == 0:
        comm.Sendrecv_replace(data, 1, 3, MPI.PROC_NULL, 0, status)
        assert (data == 1).all() and status.source == MPI.PROC_NULL
    else:
        comm.Sendrecv_replace(data, MPI.PROC_NULL, 0, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        assert (data == 1).all() and (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (0, 3, 4)
    for count in (3, 100_000):
        data = np.full(count + comm.rank, comm.rank + 1.0)
        if comm.rank == 1:
            comm.Sendrecv_replace([data, count, MPI.DOUBLE], other, 0, other, 0, status)
            assert (data[:count] == 1).all() and data[count] == 2 and status.Get_count(MPI.DOUBLE) == count
            comm.Sendrecv_replace(data, other, 1, other, 1, status)
            assert status.Get_count(MPI.DOUBLE) == count and data[count] == 2
        else:
            comm.Sendrecv_replace(data, other, 0, other, 0)
            assert (data == 2).all()
            with pytest.raises(MPI.Exception) as caught:
                comm.Sendrecv_replace(data, other, 1, other, 1)
            assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    with pytest.raises(MPI.Exception) as caught:
        comm.Sendrecv_replace(data, 7, 0, other, 0)
    assert caught.value.Get_error_class() == MPI.ERR_RANK
    with pytest.raises((BufferError, ValueError)):
        comm.Sendrecv_replace(b"12345678", other, 0, other, 0)
    comm.Barrier()


@pytest.mark.ranks(3)
def test_wildcards_and_status(comm: Any) -> None:
    if comm.rank:
        comm.Send(np.arange(comm.rank, dtype="d"), 0, comm.rank + 10)
        return
    seen = set()
    for _ in range(2):
        status, box = MPI.Status(), np.zeros(9)
        comm.Recv(box, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        assert status.tag == status.source + 10 and status.Get_count(MPI.DOUBLE) == status.source
        seen.add(status.source)
    assert seen == {1, 2}


@pytest.mark.ranks(2)
def test_order_and_tags(comm: Any) -> None:
    count = 300
    if comm.rank == 0:
        for number in range(count):
            comm.Send(np.array([number]), 1, number % 3)
        return
    for tag in (2, 0, 1):
        for number in range(tag, count, 3):
            box = np.zeros(1, dtype=int)
            comm.Recv(box, 0, tag)
            assert box[0] == number


@pytest.mark.ranks(2)
def test_largest_tag(comm: Any) -> None:
    tag = comm.Get_attr(MPI.TAG_UB)
    request = comm.irecv(source=1 - comm.rank, tag=tag)
    comm.send("far", 1 - comm.rank, tag)
    assert request.wait() == "far"


@pytest.mark.ranks(1, 2)
def test_proc_null_looks_at_nothing(comm: Any) -> None:
    status = MPI.Status()
    comm.Send(object(), MPI.PROC_NULL)
    comm.Recv(b"read-only", MPI.PROC_NULL, 5, status)
    assert (status.source, status.tag, status.count) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    assert comm.recv(source=MPI.PROC_NULL) is None and comm.sendrecv("x", MPI.PROC_NULL, source=MPI.PROC_NULL) is None
    comm.Isend("not a buffer", MPI.PROC_NULL).Wait()
    comm.Sendrecv(None, MPI.PROC_NULL, 0, None, MPI.PROC_NULL)
    assert comm.Mprobe(MPI.PROC_NULL) == MPI.MESSAGE_NO_PROC


@pytest.mark.ranks(2)
def test_derived_datatypes(comm: Any) -> None:
    other = 1 - comm.rank
    column = MPI.DOUBLE.Create_vector(4, 1, 5).Create_resized(0, 8).Commit()
    out, inside = np.arange(20.0).reshape(4, 5) + comm.rank * 100, np.zeros((4, 5))
    comm.Sendrecv([out, 2, column], other, 0, [inside, 2, column], other, 0)
    expected = np.zeros((4, 5))
    expected[:, :2] = (np.arange(20.0).reshape(4, 5) + other * 100)[:, :2]
    assert np.array_equal(inside, expected)
    packed = np.zeros(8)
    comm.Sendrecv([out, 2, column], other, 0, packed, other, 0)
    assert np.array_equal(packed.reshape(2, 4).T, expected[:, :2])
    column.Free()


@pytest.mark.ranks(2)
def test_probes(comm: Any) -> None:
    other, status = 1 - comm.rank, MPI.Status()
    assert not comm.Iprobe(other, 99) and comm.Improbe(other, 99) is None
    comm.Send(np.arange(3, dtype="i"), other, 4)
    assert comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
    assert (status.source, status.tag, status.Get_count(MPI.INT)) == (other, 4, 3)
    message = comm.Mprobe(other, 4)
    assert message and not comm.Iprobe(other, 4)
    box = np.zeros(3, dtype="i")
    message.Recv(box, status)
    assert box.tolist() == [0, 1, 2] and message == MPI.MESSAGE_NULL
    with pytest.raises(MPI.Exception):
        message.Recv(box)


@pytest.mark.ranks(2)
def test_buffered_sends(comm: Any) -> None:
    other = 1 - comm.rank
    room = bytearray(100_000 + MPI.BSEND_OVERHEAD)
    MPI.Attach_buffer(room)
    data = np.full(12_500, comm.rank, dtype="d")
    comm.Bsend(data, other, 1)
    data[:] = -1
    with pytest.raises(MPI.Exception) as failure:
        comm.Bsend(data, other, 2)
    assert failure.value.Get_error_class() == MPI.ERR_BUFFER
    with pytest.raises(MPI.Exception):
        MPI.Attach_buffer(bytearray(10))
    comm.Barrier()  # a message that was received already would have left its room
    inside = np.zeros(12_500)
    comm.Recv(inside, other, 1)
    assert (inside == other).all()
    MPI.Flush_buffer()
    comm.bsend({"small": 1}, other, 3)
    assert comm.recv(source=other, tag=3) == {"small": 1}
    assert MPI.Detach_buffer() is room
    comm.Attach_buffer(None)
    comm.Bsend(data, other, 4)
    comm.Recv(inside, other, 4)
    assert comm.Detach_buffer() is MPI.BUFFER_AUTOMATIC


@pytest.mark.ranks(2)
def test_over_two_gibibytes_of_count(comm: Any) -> None:
    """One element more than an int can count, of a type with no bytes to move but a few."""
    other = 1 - comm.rank
    empty = MPI.BYTE.Create_contiguous(0).Commit()
    comm.Sendrecv([b"", 1 << 32, empty], other, 0, [bytearray(0), 1 << 32, empty], other, 0)
    empty.Free()
