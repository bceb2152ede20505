"""Intercomm: the type of communicators between two groups. Nothing makes one yet; programs and mpi4py's own modules ask for the type."""

from __future__ import annotations

from typing import NoReturn, Self

from ncclx_mpi import errors
from ncclx_mpi.api.comm import Comm


class Intercomm(Comm):
    """Intercommunicator. All that exist are null handles."""

    __slots__ = ()

    def __new__(cls, comm: Comm | None = None) -> Self:
        """Create a null handle; a communicator is refused, since none is an intercommunicator."""
        if comm:
            errors.fail(errors.ERR_COMM, f"{comm.name or 'the communicator'} is an intracommunicator")
        return cls._copy(comm, "comm")


def _commctx_inter(comm: Comm) -> NoReturn:
    """Refuse: mpi4py's modules ask for the context of communicators that are intercommunicators."""
    errors.fail(errors.ERR_COMM, f"{comm.name or 'the communicator'} is not an intercommunicator")
