"""An open file of several ranks: opening and closing it, its size, its views and pointers, and the choice of a way for each access.

Accesses take positions in elements of the etype, and memory as arguments are resolved to. Individual and shared pointers move on by what
an access asks for, when it begins, as MPI has it: also where it finds less.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping

from ncclx_mpi import collectives, constants, errors
from ncclx_mpi.arguments import Buffer
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.named import LAYOUTS
from ncclx_mpi.io import agreement, background, independent, memory, posix, representation, two_phase
from ncclx_mpi.io.hints import DISABLE, ENABLE, Hints
from ncclx_mpi.io.pointer import SharedPointer
from ncclx_mpi.io.posix import PosixFile
from ncclx_mpi.io.representation import INTERNAL, NATIVE, Representation
from ncclx_mpi.io.view import MOST_BYTES, View
from ncclx_mpi.operations.operation import Operation
from ncclx_mpi.p2p.engine import NativeComm

_ACCESS = constants.MODE_RDONLY | constants.MODE_WRONLY | constants.MODE_RDWR
_MODES = (
    _ACCESS
    | constants.MODE_CREATE
    | constants.MODE_EXCL
    | constants.MODE_DELETE_ON_CLOSE
    | constants.MODE_UNIQUE_OPEN
    | constants.MODE_SEQUENTIAL
    | constants.MODE_APPEND
)
_AT_ONCE = 64 << 10
"""Non-blocking accesses of up to this many bytes are done when they are begun: the thread would take longer to be woken."""


class Pointer(enum.Enum):
    """Where an access begins that is at no position: at this rank's pointer, at the shared one, there with ranks one behind the other."""

    INDIVIDUAL, SHARED, ORDERED = range(3)


Where = int | Pointer
"""A position, or a pointer."""


class File:
    """One rank's side of an open file. Making one is collective over `comm`, which is the file's alone.

    Parameters
    ----------
    path
        Its name, as the system takes it.
    amode
        Flags of MPI.
    given
        Hints.
    """

    def __init__(self, comm: NativeComm, path: bytes, amode: int, given: Mapping[str, str]) -> None:
        self.comm = comm
        self.path = path
        self.amode = amode
        self.is_atomic = False
        self.is_open = True
        self.hints = Hints(given, comm.size)
        self.view = View(0, LAYOUTS["BYTE"], LAYOUTS["BYTE"], NATIVE)
        self.position = 0
        self._split: tuple[str, int] | None = None
        self._is_changed = False
        self._is_near = all(map(comm.engine.is_near, comm.world_ranks))
        self._is_scattered, self._is_plain = False, True
        self._posix = self._open()
        try:
            self._pointer = SharedPointer(comm)
        except BaseException:
            self._posix.close()
            raise
        if amode & constants.MODE_APPEND:
            self.position = self._size_in_elements()
            if comm.rank == 0:
                self._pointer.set(self.position)
            collectives.barrier(comm)

    def _open(self) -> PosixFile:
        """Open the file: rank 0 first, which makes it where it is to be made."""
        comm, what = self.comm, f"File.Open of {self._name}"
        wrong = _wrong_amode(self.amode)
        failure = errors.error(errors.ERR_AMODE, f"rank {comm.rank}: {what}: {wrong}") if wrong else None
        agreement.alike(comm, what, [self.amode if not wrong else 0, *self.hints.words], failure)
        found: list[PosixFile] = []
        try:
            for is_turn in (comm.rank == 0, comm.rank != 0):
                self._if_turn(is_turn, what, lambda: found.append(self._opened()))
        except BaseException:
            for file in found:
                file.close()
            raise
        return found[0]

    def _opened(self) -> PosixFile:
        making = constants.MODE_CREATE | constants.MODE_EXCL
        amode = self.amode if self.comm.rank == 0 else self.amode & ~making
        try:
            return PosixFile(self.path, amode, self.comm.engine, self.comm.rank)
        except ValueError as error:
            errors.fail(errors.ERR_BAD_FILE, f"rank {self.comm.rank}: no file has the name {self.path!r}: {error}")

    def close(self) -> None:
        """Close the file, when all ranks have come here."""
        self._need_no_split("Close")
        background.settle()
        self._pointer.close()
        self.is_open = False
        self._if_turn(True, "File.Close", self._closed)

    def _closed(self) -> None:
        self._posix.close()
        if self.amode & constants.MODE_DELETE_ON_CLOSE and self.comm.rank == 0:
            posix.remove(self.path, 0)

    # What it is

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._posix.size

    def set_size(self, size: int) -> None:
        """Cut or lengthen the file. Collective."""
        self._resize("File.Set_size", size, lambda: self._posix.truncate(size))

    def preallocate(self, size: int) -> None:
        """See to it that there is room for the first `size` bytes. Collective."""
        self._resize("File.Preallocate", size, lambda: self._posix.allocate(size))

    def _resize(self, what: str, size: int, change: Callable[[], None]) -> None:
        wrong: Exception | None = None
        if not 0 <= size < MOST_BYTES:
            wrong = errors.error(errors.ERR_ARG, f"rank {self.comm.rank}: {what}: no file has {size} bytes")
        elif self.amode & constants.MODE_RDONLY:
            wrong = errors.error(errors.ERR_READ_ONLY, f"rank {self.comm.rank}: {what}: the file was opened to be read only")
        background.settle()
        agreement.alike(self.comm, what, [size if wrong is None else 0], wrong)
        self._is_changed = True
        self._if_turn(self.comm.rank == 0, what, change)

    def _if_turn(self, is_turn: bool, what: str, do: Callable[[], None]) -> None:
        """Do something if it is this rank's turn; all go on when it is done."""
        failure: Exception | None = None
        if is_turn:
            try:
                do()
            except errors.Exception as error:
                failure = error
        agreement.succeed(self.comm, failure, what)

    def sync(self) -> None:
        """Bring to the device what the ranks wrote, and see what others have brought there. Collective.

        One rank of each node does that for all of it: the system keeps one copy of what is not on the device yet.
        """
        background.settle()
        engine, world_ranks = self.comm.engine, self.comm.world_ranks
        changed = [bool(given) for (given,) in agreement.succeed(self.comm, None, "File.Sync", [int(self._is_changed)])]
        near = [rank for rank, world in enumerate(world_ranks) if engine.is_near(world)]
        if any(changed):
            self._is_changed = False
            self._if_turn(any(changed[rank] for rank in near) and near[0] == self.comm.rank, "File.Sync", self._posix.sync)
        self._posix.look_again()

    def set_atomicity(self, flag: bool) -> None:
        """Say whether accesses of several ranks to the same bytes come one after the other. Collective."""
        background.settle()
        agreement.alike(self.comm, "File.Set_atomicity", [int(flag)])
        self.is_atomic = flag

    def set_hints(self, given: Mapping[str, str]) -> None:
        """Take more hints. Collective."""
        hints = Hints({**self.hints.given, **given}, self.comm.size)
        agreement.alike(self.comm, "File.Set_info", hints.words)
        self.hints = hints

    # Views and pointers

    def set_view(
        self,
        displacement: int,
        etype: Layout,
        filetype: Layout,
        datarep: str,
        given: Mapping[str, str],
    ) -> None:
        """Say what of the file this rank sees; all pointers go to its beginning. Collective."""
        failure: Exception | None = None
        hints = Hints({**self.hints.given, **given}, self.comm.size)
        view = self.view
        try:
            representation.check(datarep, etype)
            view = View(self._displacement(displacement), etype, filetype, datarep)
            view.check(not self.amode & constants.MODE_RDONLY)
        except errors.Exception as error:
            failure = error
        background.settle()
        words = [etype.extent, *datarep.encode()[:8].ljust(8, b"\0"), *hints.words]
        pieces = [piece for (piece,) in agreement.alike(self.comm, "File.Set_view", words, failure, [view.piece])]
        self._is_plain = all(pieces)
        self._is_scattered = min(pieces) < (two_phase.SMALL if self._is_near else two_phase.ANY)
        self.view, self.hints, self.position = view, hints, 0
        if self.comm.rank == 0:
            self._pointer.set(0)
        collectives.barrier(self.comm)

    def _displacement(self, displacement: int) -> int:
        is_sequential = bool(self.amode & constants.MODE_SEQUENTIAL)
        if displacement == constants.DISPLACEMENT_CURRENT:
            if not is_sequential:
                errors.fail(
                    errors.ERR_ARG, "File.Set_view: MPI.DISPLACEMENT_CURRENT is for files that are opened with MODE_SEQUENTIAL"
                )
            return self.byte_offset(self._pointer.get())
        if is_sequential:
            errors.fail(
                errors.ERR_ARG, "File.Set_view: a file that is opened with MODE_SEQUENTIAL has MPI.DISPLACEMENT_CURRENT only"
            )
        if not 0 <= displacement < MOST_BYTES:
            errors.fail(errors.ERR_ARG, f"File.Set_view: no file has a byte {displacement}, where the view should begin")
        return displacement

    def byte_offset(self, position: int) -> int:
        """Where in the file the element at a position is."""
        if position < 0:
            errors.fail(errors.ERR_ARG, f"the offset is negative: {position}")
        return self.view.offset(position * self.view.etype.size) if self.view.filetype.size else self.view.displacement

    def seek(self, offset: int, whence: int) -> None:
        """Move this rank's pointer."""
        self._need_random("Seek")
        self.position = self._sought(offset, whence, self.position)

    def seek_shared(self, offset: int, whence: int) -> None:
        """Move the shared pointer. Collective."""
        self._need_random("Seek_shared")
        wrong: Exception | None = None
        if abs(offset) >= MOST_BYTES or abs(whence) >= MOST_BYTES:
            wrong = errors.error(
                errors.ERR_ARG, f"rank {self.comm.rank}: File.Seek_shared: there is no offset {offset} (from {whence})"
            )
        agreement.alike(self.comm, "File.Seek_shared", [0, 0] if wrong else [offset, whence], wrong)
        self._if_turn(
            self.comm.rank == 0, "File.Seek_shared", lambda: self._pointer.set(self._sought(offset, whence, self._pointer.get()))
        )

    def position_shared(self) -> int:
        """Where the shared pointer is."""
        return self._pointer.get()

    def _sought(self, offset: int, whence: int, current: int) -> int:
        if whence == constants.SEEK_SET:
            found = offset
        elif whence == constants.SEEK_CUR:
            found = current + offset
        elif whence == constants.SEEK_END:
            found = self._size_in_elements() + offset
        else:
            errors.fail(errors.ERR_ARG, f"{whence} is none of MPI.SEEK_SET, SEEK_CUR and SEEK_END")
        if not 0 <= found * self.view.etype.size < MOST_BYTES:
            errors.fail(errors.ERR_ARG, f"rank {self.comm.rank}: the pointer would be at element {found} of the view")
        return found

    def _size_in_elements(self) -> int:
        """Position of the first element that begins at the end of the file, or after it."""
        return -(-self.view.below(self.size) // self.view.etype.size)

    # Accesses: at a position, or where a pointer is

    def write(self, where: Where, buffer: Buffer) -> int:
        """Write; returns bytes."""
        return self._write(self._place(where, buffer, is_write=True), buffer)

    def read(self, where: Where, buffer: Buffer) -> int:
        """Read; returns bytes."""
        return self._read(self._place(where, buffer, is_write=False), buffer)

    def write_all(self, where: Where, buffer: Buffer) -> int:
        """Write together with all ranks; returns bytes."""
        position = self._place(where, buffer, is_write=True)
        if not self._is_together(self.hints.cb_write):
            return self._write(position, buffer)
        source = memory.outgoing(buffer, self._representation)
        return two_phase.write(self.comm, self._posix, self.view, position, source, self.hints)

    def read_all(self, where: Where, buffer: Buffer) -> int:
        """Read together with all ranks; returns bytes."""
        position = self._place(where, buffer, is_write=False)
        if not self._is_together(self.hints.cb_read):
            return self._read(position, buffer)
        target = memory.incoming(buffer, self._representation)
        return two_phase.read(self.comm, self._posix, self.view, position, target, self.hints)

    def start_write(self, where: Where, buffer: Buffer) -> Operation:
        """Begin to write."""
        position = self._place(where, buffer, is_write=True)
        if self._is_done_at_once(buffer):
            return background.done(lambda: self._write(position, buffer))
        file, view, source = self._posix, self.view, memory.outgoing(buffer, self._representation)
        return background.start(lambda: independent.write(file, view, position, source), buffer)

    def start_read(self, where: Where, buffer: Buffer) -> Operation:
        """Begin to read."""
        position = self._place(where, buffer, is_write=False)
        if self._is_done_at_once(buffer):
            return background.done(lambda: self._read(position, buffer))
        file, view, target, hints = self._posix, self.view, memory.incoming(buffer, self._representation), self.hints
        return background.start(lambda: independent.read(file, view, position, target, hints), buffer)

    # Split collectives: done when they begin

    def begin(self, what: str, access: Callable[[], int]) -> None:
        """Begin a split collective, of which a file has one at a time."""
        self._need_no_split(what)
        self._split = what, access()

    def end(self, what: str) -> int:
        """End the split collective that was begun; returns its bytes."""
        if self._split is None or self._split[0] != what:
            active = "none is active" if self._split is None else f"{self._split[0]} is active"
            errors.fail(errors.ERR_IO, f"rank {self.comm.rank}: {what}_end without {what}_begin: {active}")
        (_, nbytes), self._split = self._split, None
        return nbytes

    def _need_no_split(self, what: str) -> None:
        if self._split is not None:
            errors.fail(errors.ERR_IO, f"rank {self.comm.rank}: {what} while {self._split[0]} is active: end that first")

    # Positions, in bytes of data

    def _place(self, where: Where, buffer: Buffer, *, is_write: bool) -> int:
        """Where an access begins; pointers move on."""
        if isinstance(where, int):
            self._need_random("an access at an offset")
            if where < 0:
                errors.fail(errors.ERR_ARG, f"rank {self.comm.rank}: the offset is negative: {where}")
            self.view.whole(buffer.nbytes)
        elif where is Pointer.INDIVIDUAL:
            self._need_random("an access at the individual pointer")
        self._need_mode(is_write)
        if where is Pointer.ORDERED:
            return self._ordered(buffer)
        if where is Pointer.SHARED:
            where = self._pointer.add(self.view.whole(buffer.nbytes))
        elif where is Pointer.INDIVIDUAL:
            where, count = self.position, self.view.whole(buffer.nbytes)
            self.position = where + count
        return where * self.view.etype.size

    def _ordered(self, buffer: Buffer) -> int:
        comm, failure, count = self.comm, None, 0
        try:
            count = self.view.whole(buffer.nbytes)
        except errors.Exception as error:
            failure = error
        counts = [given for (given,) in agreement.succeed(comm, failure, "an ordered access", [count])]
        base = agreement.told(comm, self._pointer.add(sum(counts)) if comm.rank == 0 else 0)
        return (base + sum(counts[: comm.rank])) * self.view.etype.size

    def _need_random(self, what: str) -> None:
        if self.amode & constants.MODE_SEQUENTIAL:
            errors.fail(
                errors.ERR_UNSUPPORTED_OPERATION,
                f"rank {self.comm.rank}: {what}: the file was opened with MODE_SEQUENTIAL, for accesses at the shared pointer only",
            )

    def _need_mode(self, is_write: bool) -> None:
        self._is_changed = self._is_changed or is_write
        if is_write and self.amode & constants.MODE_RDONLY:
            errors.fail(errors.ERR_READ_ONLY, f"rank {self.comm.rank}: {self._name} was opened to be read only")
        if not is_write and self.amode & constants.MODE_WRONLY:
            errors.fail(errors.ERR_ACCESS, f"rank {self.comm.rank}: {self._name} was opened to be written only")

    @property
    def _name(self) -> str:
        return self.path.decode(errors="surrogateescape")

    # Ways

    @property
    def _representation(self) -> Representation:
        return representation.find(self.view.datarep)

    def _write(self, position: int, buffer: Buffer) -> int:
        offset = self._straight(position, buffer)
        if offset is not None:
            self._posix.write(buffer.address, buffer.nbytes, offset)
            return buffer.nbytes
        source = memory.outgoing(buffer, self._representation)
        with self._alone(position, source.nbytes, is_write=True):
            return independent.write(self._posix, self.view, position, source)

    def _read(self, position: int, buffer: Buffer) -> int:
        offset = self._straight(position, buffer)
        if offset is not None:
            return self._posix.read(buffer.address, buffer.nbytes, offset)
        target = memory.incoming(buffer, self._representation)
        with self._alone(position, target.nbytes, is_write=False):
            return independent.read(self._posix, self.view, position, target, self.hints)

    def _straight(self, position: int, buffer: Buffer) -> int | None:
        """The offset from which memory and file are one run of the same bytes; None if they are not, or a lock is needed."""
        view = self.view
        if not (buffer.is_direct and view.is_dense) or self.is_atomic or view.datarep not in (NATIVE, INTERNAL):
            return None
        offset = view.start + position
        return offset if offset + buffer.nbytes < MOST_BYTES else None

    def _is_together(self, choice: str) -> bool:
        """Whether ranks look at what all of them access before they do: some views are of small pieces, and none overlaps."""
        is_possible = self._is_plain and not self.is_atomic and self.comm.size > 1
        return is_possible and choice != DISABLE and (self._is_scattered or choice == ENABLE)

    def _is_done_at_once(self, buffer: Buffer) -> bool:
        """Whether a non-blocking access is done when it begins: a small one, one under a lock, one of a GPU's memory."""
        return self.is_atomic or buffer.nbytes <= _AT_ONCE or buffer.device is not None

    @contextlib.contextmanager
    def _alone(self, position: int, nbytes: int, *, is_write: bool) -> Iterator[None]:
        """Keep other ranks away from what is accessed, in atomic mode."""
        if not self.is_atomic or not nbytes:
            yield
            return
        with self._posix.locked(*self.view.span(position, nbytes), exclusive=is_write):
            yield


def _wrong_amode(amode: int) -> str:
    """What is wrong with flags; nothing if nothing is."""
    if amode & ~_MODES:
        return f"{amode & ~_MODES} is no flag of a file"
    access = amode & _ACCESS
    if access not in (constants.MODE_RDONLY, constants.MODE_WRONLY, constants.MODE_RDWR):
        return "exactly one of MODE_RDONLY, MODE_WRONLY and MODE_RDWR says what the file is for"
    if access == constants.MODE_RDONLY and amode & (constants.MODE_CREATE | constants.MODE_EXCL):
        return "a file that is to be read only, MODE_RDONLY, is not made: leave MODE_CREATE and MODE_EXCL out"
    if access == constants.MODE_RDWR and amode & constants.MODE_SEQUENTIAL:
        return "MODE_SEQUENTIAL goes with MODE_RDONLY or MODE_WRONLY, not with MODE_RDWR"
    return ""
