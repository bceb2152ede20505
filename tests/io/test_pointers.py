"""Individual and shared file pointers, ordered accesses, and what moves pointers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.io.model import content_of, opened

SHARED = [("Write_shared", "Read_shared"), ("Iwrite_shared", "Iread_shared")]


@pytest.mark.parametrize("names", SHARED)
@pytest.mark.ranks(1, 2, 3, 5)
def test_shared_accesses_share_the_file_out(comm: Any, names: tuple[str, str]) -> None:
    share_out(comm, names)


@pytest.mark.parametrize("names", SHARED)
@pytest.mark.ranks(4, topology="vnode:2")
def test_shared_accesses_on_several_nodes(comm: Any, names: tuple[str, str]) -> None:
    share_out(comm, names)


def share_out(comm: Any, names: tuple[str, str]) -> None:
    """Each record is written to one place, and read by one rank."""
    from ncclx_mpi import MPI

    write, read = names
    rounds = 20
    with opened(comm) as (file, path):
        file.Set_view(8, MPI.INT)
        for turn in range(rounds):
            done = getattr(file, write)(np.array([comm.rank, turn], np.int32))
            if done is not None:
                done.Wait()
        comm.Barrier()
        assert file.Get_position_shared() == 2 * rounds * comm.size
        file.Sync()
        comm.Barrier()
        table = content_of(path)[8:].view(np.int32).reshape(-1, 2)
        assert sorted(map(tuple, table.tolist())) == [(rank, turn) for rank in range(comm.size) for turn in range(rounds)]
        for rank in range(comm.size):
            assert table[table[:, 0] == rank, 1].tolist() == list(range(rounds))
        file.Seek_shared(0)
        mine = []
        for _ in range(rounds):
            found = np.zeros(2, np.int32)
            done = getattr(file, read)(found)
            if done is not None:
                done.Wait()
            mine.append(tuple(found.tolist()))
        everything = [record for part in comm.allgather(mine) for record in part]
        assert sorted(everything) == sorted(map(tuple, table.tolist()))
        assert file.Get_position() == 0


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.ranks(1, 2, 3, 5)
def test_ordered_accesses_are_in_the_order_of_ranks(comm: Any, is_split: bool) -> None:
    in_order(comm, is_split)


@pytest.mark.ranks(4, topology="vnode:2")
def test_ordered_accesses_on_several_nodes(comm: Any) -> None:
    in_order(comm, False)


def in_order(comm: Any, is_split: bool) -> None:
    from ncclx_mpi import MPI

    with opened(comm) as (file, path):
        file.Set_view(0, MPI.INT)
        for turn in range(4):
            given = np.full((comm.rank + turn) % 3, 100 * turn + comm.rank, np.int32)
            if is_split:
                file.Write_ordered_begin(given)
                file.Write_ordered_end(given)
            else:
                file.Write_ordered(given)
        expected = [100 * turn + rank for turn in range(4) for rank in range(comm.size) for _ in range((rank + turn) % 3)]
        assert file.Get_position_shared() == len(expected)
        file.Sync()
        comm.Barrier()
        assert content_of(path).view(np.int32).tolist() == expected
        file.Seek_shared(0)
        for turn in range(4):
            found, status = np.full((comm.rank + turn) % 3, -1, np.int32), MPI.Status()
            if is_split:
                file.Read_ordered_begin(found)
                file.Read_ordered_end(found, status)
            else:
                file.Read_ordered(found, status)
            assert found.tolist() == [100 * turn + comm.rank] * len(found)
            assert status.Get_count(MPI.INT) == len(found)


@pytest.mark.ranks(1, 3)
def test_seeking(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm, bytes(45)) as (file, _):
        file.Set_view(5, MPI.INT, MPI.INT.Create_vector(1, 1, 1).Create_resized(0, 8).Commit())
        file.Seek(0, MPI.SEEK_END)  # elements begin at 5, 13, 21, 29, 37: the next one would at 45, the end
        assert file.Get_position() == 5
        file.Seek(-2, MPI.SEEK_CUR)
        assert file.Get_position() == 3
        assert file.Get_byte_offset(3) == 29
        file.Read(np.zeros(4, np.int32))
        assert file.Get_position() == 7
        file.Seek(2)
        assert file.Get_position() == 2
        file.Seek_shared(1, MPI.SEEK_END)
        assert file.Get_position_shared() == 6
        comm.Barrier()
        file.Seek_shared(-4, MPI.SEEK_CUR)
        assert file.Get_position_shared() == 2
        comm.Barrier()
        file.Set_view(0, MPI.BYTE)
        assert (file.Get_position(), file.Get_position_shared()) == (0, 0)
        with pytest.raises(MPI.Exception) as raised:
            file.Seek(-1)
        assert raised.value.Get_error_class() == MPI.ERR_ARG
        with pytest.raises(MPI.Exception) as raised:
            file.Seek(0, 5)
        assert raised.value.Get_error_class() == MPI.ERR_ARG
        with pytest.raises(MPI.Exception):
            file.Seek_shared(-1)
        file.Seek_shared(3)
        assert file.Get_position_shared() == 3


@pytest.mark.ranks(2)
def test_ranks_that_seek_differently_are_told(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm) as (file, _):
        with pytest.raises(MPI.Exception) as raised:
            file.Seek_shared(comm.rank)
        assert raised.value.Get_error_class() == MPI.ERR_NOT_SAME


@pytest.mark.ranks(1, 2)
def test_pointers_begin_at_the_end_of_a_file_that_is_appended_to(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm, b"12345", MPI.MODE_RDWR | MPI.MODE_APPEND) as (file, path):
        assert (file.Get_position(), file.Get_position_shared()) == (5, 5)
        file.Write_ordered(bytes([65 + comm.rank]))
        file.Sync()
        comm.Barrier()
        assert content_of(path).tobytes() == b"12345" + bytes(range(65, 65 + comm.size))


@pytest.mark.ranks(1, 2)
def test_sequential_files_go_forward(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm, b"", MPI.MODE_WRONLY | MPI.MODE_SEQUENTIAL) as (file, path):
        file.Write_shared(b"ab")
        comm.Barrier()
        file.Set_view(MPI.DISPLACEMENT_CURRENT, MPI.BYTE)
        assert file.Get_view()[0] == 2 * comm.size
        file.Write_ordered(b"c")
        for refused in (
            lambda: file.Write(b"x"),
            lambda: file.Write_at(0, b"x"),
            lambda: file.Seek(0),
            lambda: file.Seek_shared(0),
        ):
            with pytest.raises(MPI.Exception) as raised:
                refused()
            assert raised.value.Get_error_class() == MPI.ERR_UNSUPPORTED_OPERATION
        with pytest.raises(MPI.Exception) as raised:
            file.Set_view(0, MPI.BYTE)
        assert raised.value.Get_error_class() == MPI.ERR_ARG
        comm.Barrier()
        assert content_of(path).tobytes() == b"ab" * comm.size + b"c" * comm.size
