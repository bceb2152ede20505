"""What a file is and can be told: size, hints, atomicity, view, representation; and that nothing of it is left."""

from __future__ import annotations

import os
import pathlib
import pickle
import struct
from typing import Any

import numpy as np
import pytest

from tests.io.model import content_of, opened, shared_path


@pytest.mark.ranks(1, 2, 3)
def test_size(comm: Any) -> None:
    with opened(comm, b"abcdef") as (file, path):
        assert file.size == file.Get_size() == 6
        comm.Barrier()
        file.Set_size(3)
        assert (file.size, os.path.getsize(path)) == (3, 3)
        comm.Barrier()
        file.Preallocate(2)
        assert file.size == 3
        comm.Barrier()
        file.Preallocate(10)
        assert file.size == 10
        assert content_of(path).tobytes() == b"abc" + bytes(7)
        comm.Barrier()
        file.Set_size(0)
        assert file.size == 0
        comm.Barrier()


@pytest.mark.ranks(1, 2)
def test_names_of_every_kind(comm: Any) -> None:
    from ncclx_mpi import MPI

    with shared_path(comm) as path:
        for name in (path, os.fsencode(path), pathlib.Path(path), path + "-é"):
            file = MPI.File.Open(comm, name, MPI.MODE_WRONLY | MPI.MODE_CREATE)
            file.Close()
            comm.Barrier()
            if comm.rank == 0:
                MPI.File.Delete(name)
            comm.Barrier()


@pytest.mark.ranks(2, 3)
def test_hints_are_kept_and_those_in_use_reported(comm: Any) -> None:
    from ncclx_mpi import MPI

    info = MPI.Info.Create({"cb_nodes": "99", "cb_buffer_size": "65536", "striping_unit": "junk", "access_style": "write_once"})
    with opened(comm, info=info) as (file, _):
        found = dict(file.info.items())
        assert found["cb_nodes"] == str(comm.size)
        assert found["cb_buffer_size"] == "65536"
        assert found["striping_unit"] == "4096"
        assert found["access_style"] == "write_once"
        file.info = MPI.Info.Create({"cb_nodes": "1"})
        file.Set_view(0, MPI.BYTE, info=MPI.Info.Create({"romio_cb_write": "Enable"}))
        found = dict(file.Get_info().items())
        assert (found["cb_nodes"], found["cb_buffer_size"], found["romio_cb_write"]) == ("1", "65536", "enable")
        with pytest.raises(MPI.Exception) as raised:
            file.Set_info(MPI.Info.Create({"cb_nodes": str(1 + comm.rank)}))
        assert raised.value.Get_error_class() == MPI.ERR_NOT_SAME


@pytest.mark.ranks(1, 3)
def test_group_modes_and_handles(comm: Any) -> None:
    from ncclx_mpi import MPI

    amode = MPI.MODE_RDWR | MPI.MODE_CREATE
    with opened(comm, amode=amode) as (file, _):
        assert MPI.Group.Compare(file.group, comm.group) == MPI.IDENT
        assert (file.group_size, file.group_rank) == (comm.size, comm.rank)
        assert file.Get_amode() == file.amode == amode
        assert file and file != MPI.FILE_NULL and MPI.File.fromint(file.toint()) == file
        with pytest.raises(ValueError, match="cannot serialize"):
            pickle.dumps(file)
        assert pickle.loads(pickle.dumps(MPI.FILE_NULL)) is MPI.FILE_NULL
        assert MPI.FILE_NULL.handle == 0


@pytest.mark.ranks(2, 3)
def test_atomicity(comm: Any) -> None:
    """Whole records only are seen where all ranks write the same place."""
    from ncclx_mpi import MPI

    strided = MPI.INT.Create_vector(200, 1, 2).Commit()
    with opened(comm, bytes(1600)) as (file, _):
        assert not file.atomicity
        file.atomicity = True
        assert file.Get_atomicity() is True
        file.Set_view(0, MPI.INT, strided)
        for turn in range(30):
            file.Write_at(0, np.full(200, 100 * turn + comm.rank, np.int32))
            found = np.zeros(200, np.int32)
            file.Read_at(0, found)
            assert len(set(found.tolist())) == 1
        comm.Barrier()
        with pytest.raises(MPI.Exception) as raised:
            file.Set_atomicity(comm.rank == 0)
        assert raised.value.Get_error_class() == MPI.ERR_NOT_SAME
        assert file.atomicity


@pytest.mark.ranks(1, 2)
def test_views_are_told_again(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm) as (file, _):
        assert file.Get_view() == (0, MPI.BYTE, MPI.BYTE, "native")
        pair = MPI.DOUBLE.Create_vector(2, 1, 3).Commit()
        file.Set_view(7, MPI.DOUBLE, pair, "internal")
        displacement, etype, filetype, datarep = file.Get_view()
        assert (displacement, etype, datarep) == (7, MPI.DOUBLE, "internal")
        assert filetype.Get_extent() == pair.Get_extent()
        filetype.Free()
        pair.Free()
        file.Write_at_all(0, np.ones(2))
        assert file.Get_size() == 7 + 32
        assert file.Get_type_extent(MPI.DOUBLE) == 8
        comm.Barrier()


@pytest.mark.ranks(1, 2)
def test_external_representation_is_big_endian(comm: Any) -> None:
    from ncclx_mpi import MPI

    kinds = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Commit()
    with opened(comm) as (file, path):
        for write, read in (("Write_at", "Read_at"), ("Write_at_all", "Read_at_all"), ("Iwrite_at", "Iread_at")):
            given = np.arange(5, dtype=np.int32) + 100 * comm.rank
            file.Set_view(4 * comm.rank, MPI.INT, MPI.INT.Create_resized(0, 4 * comm.size).Commit(), "external32")
            for done in (getattr(file, write)(0, given),):
                if done is not None:
                    done.Wait()
            assert given.tolist() == (np.arange(5) + 100 * comm.rank).tolist()
            file.Sync()
            comm.Barrier()
            table = content_of(path).view(">i4").reshape(5, comm.size)
            assert table.tolist() == (np.arange(5)[:, None] + 100 * np.arange(comm.size)).tolist()
            found = np.zeros(5, np.int32)
            for done in (getattr(file, read)(0, found),):
                if done is not None:
                    done.Wait()
            assert found.tolist() == given.tolist()
            comm.Barrier()
        file.Set_view(0, MPI.BYTE, datarep="external32")
        record = np.zeros(2, np.dtype([("a", "i4"), ("b", "f8")], align=True))
        record["a"], record["b"] = [1, 2], [0.5, 0.25]
        if comm.rank == 0:
            file.Write_at(1000, [record, 2, kinds])
            assert content_of(path)[1000:].tobytes() == struct.pack(">idid", 1, 0.5, 2, 0.25)
            again = np.zeros_like(record)
            file.Read_at(1000, [again, 2, kinds])
            assert again.tolist() == record.tolist()


@pytest.mark.ranks(1, 2)
def test_representations_of_a_program(comm: Any) -> None:
    from ncclx_mpi import MPI

    calls = []

    def convert(target: Any, datatype: Any, count: int, source: Any, position: int) -> None:
        calls.append((datatype, count, position))
        np.frombuffer(target, np.uint8)[:] = np.frombuffer(source, np.uint8) ^ 0xFF

    def write(userbuf: Any, datatype: Any, count: int, filebuf: Any, position: int) -> None:
        convert(filebuf, datatype, count, userbuf, position)

    def wrong(*arguments: Any) -> None:
        raise KeyError("wrong")

    MPI.Register_datarep("inverted", convert, write, lambda datatype: datatype.extent)
    MPI.Register_datarep("longer", convert, write, lambda datatype: 2 * datatype.extent)
    MPI.Register_datarep("plain", None, None, lambda datatype: datatype.extent)
    MPI.Register_datarep("wrong", convert, wrong, lambda datatype: datatype.extent)
    for name in ("inverted", "native", "external32"):
        with pytest.raises(MPI.Exception) as raised:
            MPI.Register_datarep(name, convert, write, lambda datatype: 1)
        assert raised.value.Get_error_class() == MPI.ERR_DUP_DATAREP
    with pytest.raises(MPI.Exception):
        MPI.Register_datarep(200 * "x", None, None, lambda datatype: 1)
    with pytest.raises(TypeError):
        MPI.Register_datarep("x", 1, None, lambda datatype: 1)
    with opened(comm) as (file, path):
        file.Set_view(8 * comm.rank, MPI.INT, datarep="inverted")
        assert file.Get_view()[3] == "inverted"
        file.Write_at_all(0, [np.array([1, 0, 2, 0], np.int32), 1, MPI.INT.Create_vector(2, 1, 2).Commit()])
        assert calls[-1] == (MPI.INT, 2, 0)
        file.Sync()
        comm.Barrier()
        assert content_of(path).view(np.int32).tolist() == [~1, ~2] * comm.size
        found = np.zeros(2, np.int32)
        file.Read_at(0, found)
        assert found.tolist() == [1, 2]
        with pytest.raises(MPI.Exception) as raised:
            file.Set_view(0, MPI.INT, datarep="longer")
        assert raised.value.Get_error_class() == MPI.ERR_UNSUPPORTED_DATAREP
        file.Set_view(0, MPI.INT, datarep="plain")
        file.Read_at(0, found)
        assert found.tolist() == [~1, ~2]
        file.Set_view(0, MPI.INT, datarep="wrong")
        with pytest.raises(MPI.Exception) as raised:
            file.Write_at(0, found)
        assert raised.value.Get_error_class() == MPI.ERR_CONVERSION
        comm.Barrier()


@pytest.mark.ranks(2)
def test_nothing_is_left_of_a_closed_file(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm) as (file, path):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(30):
            other = MPI.File.Open(comm, path, MPI.MODE_RDWR)
            other.Iwrite_at(0, bytes(1 << 17)).Free()
            other.Close()
        with pytest.raises(MPI.Exception):
            MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE | MPI.MODE_EXCL)
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.ranks(3)
def test_files_of_some_ranks(comm: Any) -> None:
    from ncclx_mpi import MPI

    part = comm.Split(comm.rank == 1)
    with opened(part) as (file, path):
        file.Write_ordered(bytes([65 + comm.rank]))
        file.Sync()
        part.Barrier()
        assert content_of(path).tobytes() == (b"B" if comm.rank == 1 else b"AC")
    with opened(MPI.COMM_SELF) as (file, _):
        file.Write_shared(b"x")
        assert file.Get_position_shared() == 1
