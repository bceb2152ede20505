"""What is refused, and with which error class; the path is in the text."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.io.model import content_of, opened, shared_path


def class_of(call: Callable[[], Any], named: str = "") -> int:
    """The class of the error that a call raises, whose text has a name in it."""
    from ncclx_mpi import MPI

    with pytest.raises(MPI.Exception) as raised:
        call()
    assert named in str(raised.value)
    return raised.value.Get_error_class()


def name_of(code: int) -> str:
    from ncclx_mpi import MPI

    return next(name for name, value in vars(MPI).items() if name.startswith("ERR_") and value == code)


@pytest.mark.ranks(1, 2, 3)
def test_opening(comm: Any) -> None:
    from ncclx_mpi import MPI

    def refused(path: Any, amode: int) -> str:
        return name_of(class_of(lambda: MPI.File.Open(comm, path, amode), os.fsdecode(path).split("\0")[0]))

    with shared_path(comm) as path:
        assert refused(path, MPI.MODE_RDONLY) == "ERR_NO_SUCH_FILE"
        assert refused(os.path.dirname(path), MPI.MODE_RDONLY) == "ERR_BAD_FILE"
        assert refused(os.path.dirname(path), MPI.MODE_RDWR) == "ERR_BAD_FILE"
        assert refused(path + "/below", MPI.MODE_RDWR | MPI.MODE_CREATE) == "ERR_NO_SUCH_FILE"
        assert refused(path + 300 * "x", MPI.MODE_RDWR | MPI.MODE_CREATE) == "ERR_BAD_FILE"
        assert refused(path + "\0x", MPI.MODE_RDWR | MPI.MODE_CREATE) == "ERR_BAD_FILE"
        for amode in (
            0,
            MPI.MODE_CREATE,
            MPI.MODE_RDONLY | MPI.MODE_RDWR,
            MPI.MODE_RDONLY | MPI.MODE_CREATE,
            MPI.MODE_RDONLY | MPI.MODE_EXCL,
            MPI.MODE_RDWR | MPI.MODE_SEQUENTIAL,
            MPI.MODE_RDWR | 1 << 20,
            MPI.MODE_RDWR | 1 << 70,
        ):
            assert refused(path, amode) == "ERR_AMODE"
        assert not os.path.exists(path)
        comm.Barrier()
        MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE | MPI.MODE_EXCL).Close()
        assert os.path.exists(path)
        assert refused(path, MPI.MODE_RDWR | MPI.MODE_CREATE | MPI.MODE_EXCL) == "ERR_FILE_EXISTS"
        assert refused(path + "/below", MPI.MODE_RDONLY) == "ERR_BAD_FILE"
        for wrong in (None, 5):
            with pytest.raises(TypeError):
                MPI.File.Open(comm, wrong)
        with pytest.raises(TypeError):
            MPI.File.Open(None, path)
        assert name_of(class_of(lambda: MPI.File.Open(MPI.Intracomm(), path))) == "ERR_COMM"


@pytest.mark.ranks(2, 3)
def test_ranks_that_open_differently_are_told(comm: Any) -> None:
    from ncclx_mpi import MPI

    amode = MPI.MODE_RDWR | MPI.MODE_CREATE
    with shared_path(comm) as path:
        other = MPI.MODE_DELETE_ON_CLOSE if comm.rank == 1 else 0
        assert name_of(class_of(lambda: MPI.File.Open(comm, path, amode | other))) == "ERR_NOT_SAME"
        info = MPI.Info.Create({"cb_buffer_size": str(8192 + 4096 * comm.rank)})
        assert name_of(class_of(lambda: MPI.File.Open(comm, path, amode, info))) == "ERR_NOT_SAME"
        assert not os.path.exists(path)
        comm.Barrier()
        mine = path if comm.rank == 0 else path + "-of-nobody"
        assert name_of(class_of(lambda: MPI.File.Open(comm, mine, amode))) == "ERR_NO_SUCH_FILE"


@pytest.mark.ranks(1, 2)
def test_a_file_that_may_not_be_opened(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm) as (_, path):
        if comm.rank == 0:
            os.chmod(path, 0)
        comm.Barrier()
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            assert (
                name_of(class_of(lambda: MPI.File.Open(comm, path, MPI.MODE_RDWR), path if comm.rank == 0 else "")) == "ERR_ACCESS"
            )
        finally:
            os.seteuid(user)
        comm.Barrier()


@pytest.mark.ranks(1, 2)
def test_modes_say_what_may_be_done(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm, b"abc", MPI.MODE_RDONLY) as (file, path):
        for call in (file.Write, file.Write_all, file.Write_shared, file.Write_ordered, file.Iwrite, file.Iwrite_shared):
            assert name_of(class_of(lambda call=call: call(b"x"), path)) == "ERR_READ_ONLY"
        assert name_of(class_of(lambda: file.Write_at(0, b"x"), path)) == "ERR_READ_ONLY"
        assert name_of(class_of(lambda: file.Write_at_all_begin(0, b"x"), path)) == "ERR_READ_ONLY"
        assert name_of(class_of(lambda: file.Set_size(1))) == "ERR_READ_ONLY"
        assert name_of(class_of(lambda: file.Preallocate(1))) == "ERR_READ_ONLY"
        assert (file.Get_position(), file.Get_position_shared()) == (0, 0)
    with opened(comm, b"abc", MPI.MODE_WRONLY) as (file, path):
        for call in (file.Read, file.Read_all, file.Read_shared, file.Read_ordered, file.Iread, file.Iread_shared):
            assert name_of(class_of(lambda call=call: call(bytearray(1)), path)) == "ERR_ACCESS"
        file.Set_atomicity(True)
        file.Write_at(comm.rank, b"x")
        file.Sync()
        comm.Barrier()
        assert content_of(path).tobytes() == b"xxc"[: comm.size] + b"abc"[comm.size :]


@pytest.mark.ranks(1)
def test_arguments(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm, bytes(64)) as (file, _):
        assert name_of(class_of(lambda: file.Read_at(-1, bytearray(1)))) == "ERR_ARG"
        assert name_of(class_of(lambda: file.Iwrite_at(-1, b"x"))) == "ERR_ARG"
        assert name_of(class_of(lambda: file.Get_byte_offset(-1))) == "ERR_ARG"
        for far in (2**63 - 1, 2**63, 2**64):
            assert name_of(class_of(lambda far=far: file.Read_at(far, bytearray(2**10)))) == "ERR_ARG"
        for far in (2**63 - 1, 2**63, 2**64):
            for call in (file.Get_byte_offset, file.Seek, file.Seek_shared, file.Set_size, file.Preallocate, file.Set_view):
                assert name_of(class_of(lambda far=far, call=call: call(far))) == "ERR_ARG"
        assert name_of(class_of(lambda: file.Set_size(-1))) == "ERR_ARG"
        assert name_of(class_of(lambda: file.Preallocate(-1))) == "ERR_ARG"
        assert name_of(class_of(lambda: file.Set_view(-1))) == "ERR_ARG"
        assert name_of(class_of(lambda: file.Set_view(MPI.DISPLACEMENT_CURRENT))) == "ERR_ARG"
        assert name_of(class_of(lambda: file.Set_view(0, MPI.DATATYPE_NULL))) == "ERR_TYPE"
        assert name_of(class_of(lambda: file.Set_view(0, MPI.INT, MPI.INT.Create_vector(2, 1, 2)))) == "ERR_TYPE"
        assert name_of(class_of(lambda: file.Set_view(0, MPI.INT, MPI.SHORT))) == "ERR_ARG"
        assert name_of(class_of(lambda: file.Set_view(0, MPI.INT, MPI.INT, "of nobody"))) == "ERR_UNSUPPORTED_DATAREP"
        backwards = MPI.INT.Create_indexed([1, 1], [4, 0]).Commit()
        assert name_of(class_of(lambda: file.Set_view(0, MPI.INT, backwards))) == "ERR_TYPE"
        before = MPI.INT.Create_indexed([1, 1], [-1, 4]).Commit()
        assert name_of(class_of(lambda: file.Set_view(0, MPI.INT, before))) == "ERR_TYPE"
        overlapping = MPI.INT.Create_indexed([2, 2], [0, 1]).Commit()
        assert name_of(class_of(lambda: file.Set_view(0, MPI.INT, overlapping))) == "ERR_TYPE"
        short = MPI.INT.Create_contiguous(4).Create_resized(0, 8).Commit()
        assert name_of(class_of(lambda: file.Set_view(0, MPI.INT, short))) == "ERR_TYPE"
        assert file.Get_view()[0] == 0
        file.Set_view(0, MPI.INT)
        assert name_of(class_of(lambda: file.Read(bytearray(7)))) == "ERR_IO"
        file.Set_view(0, MPI.INT, MPI.INT.Create_contiguous(0).Commit())
        file.Read(bytearray(0))
        assert name_of(class_of(lambda: file.Read(bytearray(4)))) == "ERR_IO"
        with pytest.raises(TypeError):
            file.Set_view(0, int)
        with pytest.raises(TypeError):
            file.Read(bytearray(1), status=3)
        with pytest.raises(BufferError):
            file.Read(b"readonly")


@pytest.mark.ranks(1, 2)
def test_split_collectives_have_a_beginning_and_an_end(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm, bytes(8)) as (file, _):
        room = bytearray(4)
        assert name_of(class_of(lambda: file.Read_all_end(room))) == "ERR_IO"
        file.Read_all_begin(room)
        assert name_of(class_of(lambda: file.Read_all_begin(room))) == "ERR_IO"
        assert name_of(class_of(lambda: file.Write_at_all_begin(0, room))) == "ERR_IO"
        assert name_of(class_of(lambda: file.Read_ordered_end(room))) == "ERR_IO"
        assert name_of(class_of(file.Close)) == "ERR_IO"
        file.Read_all_end(room)
        assert name_of(class_of(lambda: file.Read_all_end(room))) == "ERR_IO"
        assert file.Get_position() == 4
        MPI.COMM_SELF.Barrier()


@pytest.mark.ranks(1, 2)
def test_closed_and_null_files(comm: Any) -> None:
    from ncclx_mpi import MPI

    with shared_path(comm) as path:
        file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE | MPI.MODE_DELETE_ON_CLOSE)
        other = MPI.File(file)
        assert file == other and MPI.File.fromhandle(file.handle) == file
        file.Close()
        assert not os.path.exists(path)
        assert file == MPI.FILE_NULL and not file
        for call in (file.Close, other.Close, other.Get_size, lambda: other.Write(b"x"), lambda: other.amode, MPI.FILE_NULL.Sync):
            assert name_of(class_of(call)) == "ERR_FILE"
        assert name_of(class_of(lambda: MPI.File.Delete(path), path)) == "ERR_NO_SUCH_FILE"
        file.free()
        comm.Barrier()


@pytest.mark.ranks(1, 2)
def test_a_file_that_is_gone_when_it_is_to_be_deleted(comm: Any) -> None:
    from ncclx_mpi import MPI

    with shared_path(comm) as path:
        file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE | MPI.MODE_DELETE_ON_CLOSE)
        if comm.rank == 0:
            os.unlink(path)
        assert name_of(class_of(file.Close, path if comm.rank == 0 else "")) == "ERR_NO_SUCH_FILE"
        assert file == MPI.FILE_NULL


@pytest.mark.ranks(1)
def test_a_full_device(comm: Any) -> None:
    from ncclx_mpi import MPI

    file = MPI.File.Open(comm, "/dev/full", MPI.MODE_RDWR)
    assert name_of(class_of(lambda: file.Write_at(0, b"x"), "/dev/full")) == "ERR_NO_SPACE"
    request = file.Iwrite_at(0, bytes(1 << 20))
    assert name_of(class_of(request.Wait, "/dev/full")) == "ERR_NO_SPACE"
    file.Set_view(0, MPI.BYTE, MPI.BYTE.Create_vector(2, 1, 2).Commit())
    assert name_of(class_of(lambda: file.Write_at(0, b"xyz"), "/dev/full")) == "ERR_NO_SPACE"
    file.Close()


@pytest.mark.ranks(2, 3)
def test_a_limit_on_one_rank_fails_a_collective_on_all(comm: Any) -> None:
    """What could be written is there, and the ranks go on together."""
    from ncclx_mpi import MPI

    block, count = 512, 32
    info = MPI.Info.Create({"cb_nodes": "1", "cb_buffer_size": "4096", "romio_cb_write": "enable"})
    with opened(comm, info=info) as (file, path):
        if comm.rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        tile = MPI.BYTE.Create_contiguous(block).Create_resized(0, comm.size * block).Commit()
        file.Set_view(comm.rank * block, MPI.BYTE, tile)
        given = np.full(block * count, 1 + comm.rank, np.uint8)
        assert name_of(class_of(lambda: file.Write_all(given), path if comm.rank == 0 else "")) == "ERR_QUOTA"
        comm.Barrier()
        found = content_of(path)
        assert len(found) == 8192
        expected = np.tile(np.repeat(np.arange(comm.size) + 1, block), count)[:8192]
        assert (found == expected).all()
        again = np.zeros(8192 // comm.size, np.uint8)
        file.Read_at_all(0, again)
        comm.Barrier()


@pytest.mark.ranks(1, 2)
def test_error_handlers(comm: Any) -> None:
    from ncclx_mpi import MPI

    seen: list[tuple[str, int]] = []
    with opened(comm) as (file, path):
        assert file.Get_errhandler() == MPI.ERRORS_RETURN
        handler = MPI.File.Create_errhandler(lambda handle, code: seen.append((type(handle).__name__, MPI.Get_error_class(code))))
        file.Set_errhandler(handler)
        class_of(lambda: file.Seek(-1))
        assert seen == [("File", MPI.ERR_ARG)]
        file.Call_errhandler(MPI.ERR_IO)
        assert seen[1:] == [("File", MPI.ERR_IO)]
        file.Set_errhandler(MPI.ERRORS_RETURN)
        MPI.FILE_NULL.Set_errhandler(handler)
        class_of(lambda: MPI.File.Open(comm, path + "-of-nobody"))
        assert seen[2:] == [("File", MPI.ERR_NO_SUCH_FILE)]
        MPI.FILE_NULL.Set_errhandler(MPI.ERRORS_RETURN)
        comm.Barrier()
