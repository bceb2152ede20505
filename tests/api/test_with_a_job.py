"""What of datatypes, buffers and errors needs a running job: pickling by name, shared allocation, messages."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest


@pytest.mark.ranks(1)
def test_predefined_objects_are_pickled_by_name(comm: Any) -> None:
    from ncclx_mpi import MPI

    for name in ("INT", "DATATYPE_NULL", "FLOAT_INT", "BOTTOM", "IN_PLACE", "INFO_NULL", "INFO_ENV", "ERRORS_RETURN"):
        constant = getattr(MPI, name)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(constant, protocol)) is constant
    copy = MPI.Datatype(MPI.INT)
    again = pickle.loads(pickle.dumps(copy))
    assert again == copy and again is not copy
    null = pickle.loads(pickle.dumps(MPI.Datatype()))
    assert null == MPI.DATATYPE_NULL and null is not MPI.DATATYPE_NULL


@pytest.mark.ranks(1)
def test_derived_types_info_status_and_errors_are_pickled_by_value(comm: Any) -> None:
    from ncclx_mpi import MPI

    inner = MPI.INT.Create_vector(2, 3, 4).Create_resized(0, 100)
    made = MPI.Datatype.Create_struct([1, 2], [0, 200], [inner, MPI.DOUBLE])
    again = pickle.loads(pickle.dumps(made))
    assert again != made and again._state.blocks.tolist() == made._state.blocks.tolist()
    assert again.Get_extent() == made.Get_extent()
    info = MPI.Info.Create({"key": "value"})
    assert pickle.loads(pickle.dumps(info)).items() == info.items()
    status = MPI.Status()
    status.source, status.tag, status.count, status.cancelled = 3, 4, 1 << 35, True
    assert pickle.loads(pickle.dumps(status)) == status
    with pytest.raises(MPI.Exception) as caught:
        comm.Send(b"", 7)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (int(error), str(error)) == (int(caught.value), str(caught.value))
    with pytest.raises(TypeError):
        pickle.dumps(MPI.buffer(b"abc"))


@pytest.mark.ranks(1)
def test_subclasses_keep_their_type(comm: Any) -> None:
    from ncclx_mpi import MPI

    class Type(MPI.Datatype):
        pass

    class Hints(MPI.Info):
        pass

    made = Type(MPI.INT)
    assert type(made.Dup()) is type(made.Create_vector(1, 2, 3)) is type(Type.Create_struct([1], [0], [MPI.INT])) is Type
    assert type(Hints.Create({"a": "b"}).Dup()) is Hints


@pytest.mark.ranks(2)
def test_allocated_memory_carries_messages(comm: Any) -> None:
    from ncclx_mpi import MPI

    memory = MPI.Alloc_mem(1 << 20)
    array = np.frombuffer(memory, np.float64)
    peer = 1 - comm.rank
    if comm.rank == 0:
        array[:] = np.arange(array.size)
        comm.Send(array, peer)
    else:
        comm.Recv(memory, peer)
        assert array.tolist() == list(range(array.size))
    del array
    for _ in range(200):
        MPI.Free_mem(MPI.Alloc_mem(100_000))
    MPI.Free_mem(memory)
    with pytest.raises(MPI.Exception):
        MPI.Free_mem(MPI.buffer(bytearray(8)))


@pytest.mark.ranks(2)
def test_status_counts_elements_of_any_type(comm: Any) -> None:
    from ncclx_mpi import MPI

    status = MPI.Status()
    if comm.rank == 0:
        comm.Send(np.arange(7, dtype=np.int32), 1, tag=5)
        comm.Send([np.zeros(3, np.dtype("f8,i4", align=True)), 3, MPI.DOUBLE_INT], 1)
        return
    target = np.zeros(10, np.int32)
    comm.Recv(target, 0, status=status)
    assert (status.source, status.tag, status.count, status.Get_count(MPI.INT)) == (0, 5, 28, 7)
    pairs = MPI.INT.Create_contiguous(2)
    assert (status.Get_count(pairs), status.Get_elements(pairs)) == (MPI.UNDEFINED, 7)
    assert status.Get_count(MPI.DOUBLE) == MPI.UNDEFINED
    comm.Recv([np.zeros(4, np.dtype("f8,i4", align=True)), 4, MPI.DOUBLE_INT], 0, status=status)
    assert (status.Get_count(MPI.DOUBLE_INT), status.Get_elements(MPI.DOUBLE_INT)) == (3, 6)


@pytest.mark.ranks(2)
def test_columns_become_rows(comm: Any) -> None:
    from ncclx_mpi import MPI

    matrix = np.arange(12, dtype=np.int32).reshape(3, 4)
    column = MPI.INT.Create_vector(3, 1, 4).Create_resized(0, 4).Commit()
    if comm.rank == 0:
        comm.Send([matrix, 4, column], 1)
        return
    turned, back = np.zeros((4, 3), np.int32), np.zeros((3, 4), np.int32)
    comm.Recv(turned, 0)
    assert turned.tolist() == matrix.T.tolist()
    comm.Sendrecv(turned, 1, recvbuf=[back, 4, column], source=1)
    assert back.tolist() == matrix.tolist()


@pytest.mark.ranks(2)
def test_freed_type_of_a_pending_message(comm: Any) -> None:
    from ncclx_mpi import MPI

    column = MPI.INT.Create_vector(3, 1, 4).Commit()
    data = np.arange(12, dtype=np.int32) * (comm.rank == 0)
    request = comm.Irecv([data, 1, column], 0) if comm.rank else comm.Isend([data, 1, column], 1)
    column.Free()
    request.Wait()
    assert data[::4].tolist() == [0, 4, 8]


@pytest.mark.ranks(1)
def test_info_of_the_environment(comm: Any) -> None:
    from ncclx_mpi import MPI

    assert MPI.INFO_ENV.Get("wdir") == os.getcwd()
    with pytest.raises(MPI.Exception):
        MPI.INFO_ENV.Set("wdir", "/")
    assert MPI.Info.Create_env(["program", "a", "b"]).Get("argv") == "a b"
