"""Communicators with processes that did not start together with this one: those that a program starts, and those that it meets at a port."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

from ncclx_mpi import errors, late
from ncclx_mpi.api.collective_arguments import check_root
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.info import INFO_NULL, Info

if TYPE_CHECKING:
    from ncclx_mpi.api import meeting, ports, spawning
    from ncclx_mpi.api.intercomm import Intercomm
else:
    meeting, ports, spawning = (late.module(f"ncclx_mpi.api.{name}") for name in ("meeting", "ports", "spawning"))


class Meetings:
    """What makes intercommunicators with groups of other jobs."""

    __slots__ = ()
    _state: CommState
    _BETWEEN: ClassVar[type[Intercomm]]

    def Spawn(
        self,
        command: PathLike[Any] | str | bytes,
        args: Sequence[str] | None = None,
        maxprocs: int = 1,
        info: Info = INFO_NULL,
        root: int = 0,
        errcodes: list[int] | None = None,
    ) -> Intercomm:
        """Spawn instances of a single MPI application, on the host of the root.

        Raises
        ------
        Exception
            ERR_SPAWN: the program is not there, or ends before it calls MPI; info has a key ``host``.
        """
        state = self._state
        rank = check_root(state, root)
        made = spawning.spawn(
            state.native, rank, lambda: [spawning.command(command, args, maxprocs, info)], "Spawn", state.errhandler
        )
        if errcodes is not None:
            errcodes[:] = [errors.SUCCESS] * len(made.groups[1])
        return self._BETWEEN._refer(made)

    def Spawn_multiple(
        self,
        command: Sequence[PathLike[Any] | str | bytes],
        args: Sequence[Sequence[str]] | None = None,
        maxprocs: Sequence[int] | None = None,
        info: Sequence[Info] | Info = INFO_NULL,
        root: int = 0,
        errcodes: list[list[int]] | None = None,
    ) -> Intercomm:
        """Spawn instances of multiple MPI applications, on the host of the root, as one job.

        Raises
        ------
        Exception
            As `Spawn`.
        """
        state = self._state
        rank = check_root(state, root)
        made = spawning.spawn(
            state.native, rank, lambda: spawning.commands(command, args, maxprocs, info), "Spawn_multiple", state.errhandler
        )
        if errcodes is not None:
            counts = spawning.counts(command, maxprocs, len(made.groups[1]))
            errcodes[:] = [[errors.SUCCESS] * count for count in counts]
        return self._BETWEEN._refer(made)

    def Accept(self, port_name: str, info: Info = INFO_NULL, root: int = 0) -> Intercomm:
        """Accept a request to form a new intercommunicator, from a group of this user whose root is on this host, or of this job.

        Raises
        ------
        Exception
            ERR_PORT: the root has not opened this port.
        """
        engine = self._state.native.engine

        def accept(side: meeting.Side) -> tuple[meeting.Talk, dict[str, Any]]:
            opened = ports.opened(port_name)
            return meeting.at(opened, engine, "Accept", errors.ERR_PORT, lambda: "the port was closed" if opened.is_closed else "")(
                side
            )

        return self._meet(accept, root, "Accept")

    def Connect(self, port_name: str, info: Info = INFO_NULL, root: int = 0) -> Intercomm:
        """Make a request to form a new intercommunicator, with a group of this user whose root is on this host, or of this job.

        Raises
        ------
        Exception
            ERR_PORT: there is no such port, or nobody accepts there in time.
        """
        engine = self._state.native.engine
        return self._meet(
            lambda side: meeting.towards(ports.checked(port_name), engine, "Connect", errors.ERR_PORT)(side), root, "Connect"
        )

    def _meet(self, connect: meeting.Connect, root: int, what: str) -> Intercomm:
        state = self._state
        made = meeting.meet(state.native, check_root(state, root), connect, what, errors.ERR_PORT, state.errhandler)
        return self._BETWEEN._refer(made)
