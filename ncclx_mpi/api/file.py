"""MPI.File: a file that all ranks of a communicator read and write.

What a rank sees of it is its view (:meth:`File.Set_view`). Each access is at an offset, at the rank's own pointer, or at the one
that all ranks share; by a rank alone, or by all together, whose interleaved pieces become few large ones then.
Offsets and pointers count elements of the view's etype.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from os import PathLike
from typing import AnyStr, NoReturn, Self

from ncclx_mpi import arguments, errors, rc, runtime
from ncclx_mpi.api import communicator, errhandler_dispatch
from ncclx_mpi.api.accessors import ErrorHandled, Hinted, hints
from ncclx_mpi.api.datatype import BYTE, Datatype
from ncclx_mpi.api.docstrings import begin_with_signatures
from ncclx_mpi.api.errhandler import ERRORS_RETURN, Errhandler, default_errhandler
from ncclx_mpi.api.group import Group
from ncclx_mpi.api.handle import PUBLIC, Handle, constant, instance, integer, text
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.intracomm import Intracomm
from ncclx_mpi.api.request import Request
from ncclx_mpi.api.status import Status, check_status
from ncclx_mpi.buffers.layout import committed
from ncclx_mpi.constants import MODE_RDONLY, SEEK_SET
from ncclx_mpi.io import file as machinery
from ncclx_mpi.io import posix, representation
from ncclx_mpi.io.file import Pointer, Where
from ncclx_mpi.operations.operation import EMPTY, write_status
from ncclx_mpi.state import State
from ncclx_mpi.typing import BufSpec


class FileState(State):
    """A file that is open in this process."""

    __slots__ = ("errhandler", "file")
    WHAT = "file"
    ERROR = errors.ERR_FILE
    errhandler: Errhandler
    file: machinery.File


_NULL = FileState()
_NULL.errhandler = Errhandler(ERRORS_RETURN)
_open: set[FileState] = set()
"""Files that were not closed: peers may move their shared pointers, whatever became of the handles."""


class File(Hinted, ErrorHandled, Handle):
    """File I/O context."""

    __module__ = PUBLIC
    __slots__ = ()
    _NULL = _NULL
    _KIND = "file"
    _STATE = (FileState,)
    _state: FileState

    def __new__(cls, file: File | None = None) -> Self:
        """Make a null handle, or a copy of another handle."""
        return cls._copy(file, "file")

    # Opening and closing

    @classmethod
    def Open(
        cls, comm: Intracomm, filename: PathLike[AnyStr] | str | bytes, amode: int = MODE_RDONLY, info: Info = INFO_NULL
    ) -> Self:
        """Open a file, which all ranks of the communicator do with the same flags.

        Raises
        ------
        Exception
            ERR_AMODE, ERR_NOT_SAME: the flags are wrong, or not those of other ranks. ERR_NO_SUCH_FILE, ERR_FILE_EXISTS, ERR_ACCESS,
            ERR_READ_ONLY, ERR_BAD_FILE, ERR_NO_SPACE, ERR_QUOTA, ERR_FILE_IN_USE, ERR_IO: what the system said to a rank.
        """
        instance(comm, Intracomm)
        path, flags, given = os.fsencode(filename), integer(amode, "amode"), hints(info)
        own = communicator.duplicate(comm._state.native)
        state = FileState()
        try:
            state.file = machinery.File(own, path, flags, given)
        except BaseException as error:
            communicator.return_slot(own)
            if isinstance(error, errors.Exception):
                _fail(error)
            raise
        state.errhandler = Errhandler(_NULL.errhandler) if rc.options().errors == "default" else default_errhandler()
        errhandler_dispatch.use(state.errhandler, File)
        _open.add(state)
        return cls._refer(state)

    def Close(self) -> None:
        """Close a file, when all ranks have come here."""
        state, file = self._state, self._file
        try:
            file.close()
        finally:  # it may be closed, and the file that was to be deleted be gone
            if not file.is_open:
                communicator.return_slot(file.comm)
                _open.discard(state)
                state.empty()
                self._become_null()

    def free(self) -> None:
        """Call `Close` if not null."""
        if self:
            self.Close()

    @classmethod
    def Delete(cls, filename: PathLike[AnyStr] | str | bytes, info: Info = INFO_NULL) -> None:
        """Delete a file.

        Raises
        ------
        Exception
            ERR_NO_SUCH_FILE, ERR_ACCESS, ERR_BAD_FILE, ERR_IO: what the system said.
        """
        path = os.fsencode(filename)
        hints(info)
        try:
            posix.remove(path, runtime.engine().rank)
        except errors.Exception as error:
            _fail(error)

    @property
    def _file(self) -> machinery.File:
        """The file, for a process that can communicate."""
        file = self._state.file
        runtime.engine()  # raises after Finalize, and in a fork of a rank
        return file

    # What it is

    def Set_size(self, size: int) -> None:
        """Set the file size."""
        self._file.set_size(integer(size, "size"))

    def Preallocate(self, size: int) -> None:
        """Preallocate storage space for a file, which becomes no shorter."""
        self._file.preallocate(integer(size, "size"))

    def Get_size(self) -> int:
        """Return the file size."""
        return self._file.size

    @property
    def size(self) -> int:
        """Size (in bytes)."""
        return self.Get_size()

    def Get_amode(self) -> int:
        """Return the file access mode."""
        return self._file.amode

    @property
    def amode(self) -> int:
        """Access mode."""
        return self.Get_amode()

    def Get_group(self) -> Group:
        """Access the group of processes that opened the file."""
        comm = self._file.comm
        return Group._of(comm.world_ranks, comm.engine.rank)

    @property
    def group(self) -> Group:
        """Group."""
        return self.Get_group()

    @property
    def group_size(self) -> int:
        """Group size."""
        return self._file.comm.size

    @property
    def group_rank(self) -> int:
        """Group rank."""
        return self._file.comm.rank

    def Set_info(self, info: Info) -> None:
        """Set new values for the hints associated with a file."""
        self._file.set_hints(hints(info))

    def Get_info(self) -> Info:
        """Return the current hints for a file, those in use with their values."""
        return Info.Create(self._file.hints.items)

    def Set_atomicity(self, flag: bool) -> None:
        """Set the atomicity mode: whether accesses to the same bytes come one after the other."""
        self._file.set_atomicity(bool(flag))

    def Get_atomicity(self) -> bool:
        """Return the atomicity mode."""
        return self._file.is_atomic

    @property
    def atomicity(self) -> bool:
        """Atomicity mode."""
        return self.Get_atomicity()

    @atomicity.setter
    def atomicity(self, value: bool) -> None:
        self.Set_atomicity(value)

    def Sync(self) -> None:
        """Cause all previous writes to be transferred to the storage device, and what others transferred to be seen."""
        self._file.sync()

    # Views and pointers

    def Set_view(
        self,
        disp: int = 0,
        etype: Datatype = BYTE,
        filetype: Datatype | None = None,
        datarep: str = "native",
        info: Info = INFO_NULL,
    ) -> None:
        """Set the file view: what of the file this rank sees; all pointers go to its beginning.

        Raises
        ------
        Exception
            ERR_ARG, ERR_TYPE: the displacement or the filetype cannot be one. ERR_UNSUPPORTED_DATAREP: nobody has registered this
            representation, or elements of the etype are not as long in it as in memory. ERR_NOT_SAME: ranks give etypes of different extents.
        """
        file = self._file
        unit = committed(instance(etype, Datatype)._state, "Set_view: etype")
        repeated = unit if filetype is None else committed(instance(filetype, Datatype)._state, "Set_view: filetype")
        file.set_view(integer(disp, "disp"), unit, repeated, text(datarep), hints(info))

    def Get_view(self) -> tuple[int, Datatype, Datatype, str]:
        """Return the file view: displacement, etype, filetype, and name of the data representation."""
        view = self._file.view
        return view.displacement, Datatype._refer(view.etype), Datatype._refer(view.filetype), view.datarep

    def Get_type_extent(self, datatype: Datatype) -> int:
        """Return the extent of datatype in the file."""
        layout = committed(instance(datatype, Datatype)._state, "Get_type_extent")
        return representation.extent(self._file.view.datarep, layout)

    def Seek(self, offset: int, whence: int = SEEK_SET) -> None:
        """Update the individual file pointer."""
        self._file.seek(integer(offset, "offset"), integer(whence, "whence"))

    def Get_position(self) -> int:
        """Return the current position of the individual file pointer, in elements of the etype."""
        return self._file.position

    def Get_byte_offset(self, offset: int) -> int:
        """Return the absolute byte position in the file of a view-relative offset."""
        return self._file.byte_offset(integer(offset, "offset"))

    def Seek_shared(self, offset: int, whence: int = SEEK_SET) -> None:
        """Update the shared file pointer, which all ranks do alike."""
        self._file.seek_shared(integer(offset, "offset"), integer(whence, "whence"))

    def Get_position_shared(self) -> int:
        """Return the current position of the shared file pointer, in elements of the etype."""
        return self._file.position_shared()

    # At explicit offsets

    def Read_at(self, offset: int, buf: BufSpec, status: Status | None = None) -> None:
        """Read using explicit offset."""
        self._access(self._file.read, integer(offset, "offset"), arguments.recv(buf), status)

    def Read_at_all(self, offset: int, buf: BufSpec, status: Status | None = None) -> None:
        """Collective read using explicit offset."""
        self._access(self._file.read_all, integer(offset, "offset"), arguments.recv(buf), status)

    def Write_at(self, offset: int, buf: BufSpec, status: Status | None = None) -> None:
        """Write using explicit offset."""
        self._access(self._file.write, integer(offset, "offset"), arguments.send(buf), status)

    def Write_at_all(self, offset: int, buf: BufSpec, status: Status | None = None) -> None:
        """Collective write using explicit offset."""
        self._access(self._file.write_all, integer(offset, "offset"), arguments.send(buf), status)

    def Iread_at(self, offset: int, buf: BufSpec) -> Request:
        """Non-blocking read using explicit offset."""
        return Request._refer(self._file.start_read(integer(offset, "offset"), arguments.recv(buf)))

    def Iread_at_all(self, offset: int, buf: BufSpec) -> Request:
        """Non-blocking collective read using explicit offset; each rank reads by itself."""
        return Request._refer(self._file.start_read(integer(offset, "offset"), arguments.recv(buf)))

    def Iwrite_at(self, offset: int, buf: BufSpec) -> Request:
        """Non-blocking write using explicit offset."""
        return Request._refer(self._file.start_write(integer(offset, "offset"), arguments.send(buf)))

    def Iwrite_at_all(self, offset: int, buf: BufSpec) -> Request:
        """Non-blocking collective write using explicit offset; each rank writes by itself."""
        return Request._refer(self._file.start_write(integer(offset, "offset"), arguments.send(buf)))

    # At the individual pointer

    def Read(self, buf: BufSpec, status: Status | None = None) -> None:
        """Read using individual file pointer."""
        self._access(self._file.read, Pointer.INDIVIDUAL, arguments.recv(buf), status)

    def Read_all(self, buf: BufSpec, status: Status | None = None) -> None:
        """Collective read using individual file pointer."""
        self._access(self._file.read_all, Pointer.INDIVIDUAL, arguments.recv(buf), status)

    def Write(self, buf: BufSpec, status: Status | None = None) -> None:
        """Write using individual file pointer."""
        self._access(self._file.write, Pointer.INDIVIDUAL, arguments.send(buf), status)

    def Write_all(self, buf: BufSpec, status: Status | None = None) -> None:
        """Collective write using individual file pointer."""
        self._access(self._file.write_all, Pointer.INDIVIDUAL, arguments.send(buf), status)

    def Iread(self, buf: BufSpec) -> Request:
        """Non-blocking read using individual file pointer."""
        return Request._refer(self._file.start_read(Pointer.INDIVIDUAL, arguments.recv(buf)))

    def Iread_all(self, buf: BufSpec) -> Request:
        """Non-blocking collective read using individual file pointer; each rank reads by itself."""
        return Request._refer(self._file.start_read(Pointer.INDIVIDUAL, arguments.recv(buf)))

    def Iwrite(self, buf: BufSpec) -> Request:
        """Non-blocking write using individual file pointer."""
        return Request._refer(self._file.start_write(Pointer.INDIVIDUAL, arguments.send(buf)))

    def Iwrite_all(self, buf: BufSpec) -> Request:
        """Non-blocking collective write using individual file pointer; each rank writes by itself."""
        return Request._refer(self._file.start_write(Pointer.INDIVIDUAL, arguments.send(buf)))

    # At the shared pointer

    def Read_shared(self, buf: BufSpec, status: Status | None = None) -> None:
        """Read using shared file pointer."""
        self._access(self._file.read, Pointer.SHARED, arguments.recv(buf), status)

    def Write_shared(self, buf: BufSpec, status: Status | None = None) -> None:
        """Write using shared file pointer."""
        self._access(self._file.write, Pointer.SHARED, arguments.send(buf), status)

    def Iread_shared(self, buf: BufSpec) -> Request:
        """Non-blocking read using shared file pointer."""
        return Request._refer(self._file.start_read(Pointer.SHARED, arguments.recv(buf)))

    def Iwrite_shared(self, buf: BufSpec) -> Request:
        """Non-blocking write using shared file pointer."""
        return Request._refer(self._file.start_write(Pointer.SHARED, arguments.send(buf)))

    def Read_ordered(self, buf: BufSpec, status: Status | None = None) -> None:
        """Collective read using shared file pointer, in the order of ranks."""
        self._access(self._file.read_all, Pointer.ORDERED, arguments.recv(buf), status)

    def Write_ordered(self, buf: BufSpec, status: Status | None = None) -> None:
        """Collective write using shared file pointer, in the order of ranks."""
        self._access(self._file.write_all, Pointer.ORDERED, arguments.send(buf), status)

    # Split collectives

    def Read_at_all_begin(self, offset: int, buf: BufSpec) -> None:
        """Start a split collective read using explicit offset."""
        self._begin("Read_at_all", self._file.read_all, integer(offset, "offset"), arguments.recv(buf))

    def Read_at_all_end(self, buf: BufSpec, status: Status | None = None) -> None:
        """Complete a split collective read using explicit offset."""
        self._end("Read_at_all", arguments.recv, buf, status)

    def Write_at_all_begin(self, offset: int, buf: BufSpec) -> None:
        """Start a split collective write using explicit offset."""
        self._begin("Write_at_all", self._file.write_all, integer(offset, "offset"), arguments.send(buf))

    def Write_at_all_end(self, buf: BufSpec, status: Status | None = None) -> None:
        """Complete a split collective write using explicit offset."""
        self._end("Write_at_all", arguments.send, buf, status)

    def Read_all_begin(self, buf: BufSpec) -> None:
        """Start a split collective read using individual file pointer."""
        self._begin("Read_all", self._file.read_all, Pointer.INDIVIDUAL, arguments.recv(buf))

    def Read_all_end(self, buf: BufSpec, status: Status | None = None) -> None:
        """Complete a split collective read using individual file pointer."""
        self._end("Read_all", arguments.recv, buf, status)

    def Write_all_begin(self, buf: BufSpec) -> None:
        """Start a split collective write using individual file pointer."""
        self._begin("Write_all", self._file.write_all, Pointer.INDIVIDUAL, arguments.send(buf))

    def Write_all_end(self, buf: BufSpec, status: Status | None = None) -> None:
        """Complete a split collective write using individual file pointer."""
        self._end("Write_all", arguments.send, buf, status)

    def Read_ordered_begin(self, buf: BufSpec) -> None:
        """Start a split collective read using shared file pointer."""
        self._begin("Read_ordered", self._file.read_all, Pointer.ORDERED, arguments.recv(buf))

    def Read_ordered_end(self, buf: BufSpec, status: Status | None = None) -> None:
        """Complete a split collective read using shared file pointer."""
        self._end("Read_ordered", arguments.recv, buf, status)

    def Write_ordered_begin(self, buf: BufSpec) -> None:
        """Start a split collective write using shared file pointer."""
        self._begin("Write_ordered", self._file.write_all, Pointer.ORDERED, arguments.send(buf))

    def Write_ordered_end(self, buf: BufSpec, status: Status | None = None) -> None:
        """Complete a split collective write using shared file pointer."""
        self._end("Write_ordered", arguments.send, buf, status)

    # How

    def _access(
        self, access: Callable[[Where, arguments.Buffer], int], where: Where, buffer: arguments.Buffer, status: Status | None
    ) -> None:
        check_status(status)
        _report(status, access(where, buffer))

    def _begin(self, what: str, access: Callable[[Where, arguments.Buffer], int], where: Where, buffer: arguments.Buffer) -> None:
        self._file.begin(what, lambda: access(where, buffer))

    def _end(self, what: str, resolve: Callable[[BufSpec], arguments.Buffer], buf: BufSpec, status: Status | None) -> None:
        check_status(status)
        resolve(buf)
        _report(status, self._file.end(what))


def _fail(error: errors.Exception) -> NoReturn:
    """Raise an error that belongs to no file: that of FILE_NULL handles it."""
    _NULL.errhandler._call(FILE_NULL, int(error))
    raise error


def _report(status: Status | None, nbytes: int) -> None:
    """Write how many bytes were accessed to `status`."""
    if status is not None:
        write_status(status, EMPTY._replace(nbytes=nbytes))


FILE_NULL = constant(File(), "FILE_NULL")


begin_with_signatures([File])
