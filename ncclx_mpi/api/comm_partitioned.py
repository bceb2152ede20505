"""Partitioned point to point: methods of Comm."""

from __future__ import annotations

from ncclx_mpi import arguments, errors
from ncclx_mpi.api.comm_p2p import checked_dest, checked_source, checked_tag
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.request import Prequest
from ncclx_mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from ncclx_mpi.operations.partitioned import MOST_PARTS, NoPartner, PartitionedReceive, PartitionedSend
from ncclx_mpi.typing import BufSpec


class Partitioned:
    """Methods of Comm that make messages of several parts."""

    __slots__ = ()
    _state: CommState

    def Psend_init(self, buf: BufSpec, partitions: int, dest: int, tag: int = 0, info: Info = INFO_NULL) -> Prequest:
        """Create request for a partitioned send operation.

        Parameters
        ----------
        buf
            All partitions, one behind the other, of equal length; a count that is given is that of one. A partition is read from when it
            is ready to the end of the wait, each time that the request is started.
        partitions
            How many there are; the receiver may cut the message into another number.
        dest, tag
            The rank that receives it, and what it is known by: the first `Psend_init` with them meets the first `Precv_init` there ...

        Raises
        ------
        Exception
            ERR_ARG, ERR_RANK, ERR_TAG: an argument is out of range.
        """
        state, count = self._state, _count(partitions)
        dest, tag = checked_dest(state, dest), checked_tag(tag)
        first = arguments.send(buf, count)
        return Prequest._refer(NoPartner(count) if dest == PROC_NULL else PartitionedSend(state.native, first, count, dest, tag))

    def Precv_init(
        self, buf: BufSpec, partitions: int, source: int = ANY_SOURCE, tag: int = ANY_TAG, info: Info = INFO_NULL
    ) -> Prequest:
        """Create request for a partitioned recv operation.

        Parameters
        ----------
        buf
            Room for all partitions, one behind the other, of equal length; a count that is given is that of one. It is written to from
            each start of the request to the end of the wait.
        partitions
            How many there are; the sender may cut the message into another number.
        source, tag
            As for `Psend_init`; MPI has no wildcards here.

        Raises
        ------
        Exception
            ERR_ARG, ERR_RANK, ERR_TAG: an argument is out of range, or a wildcard.
        """
        state, count = self._state, _count(partitions)
        source = checked_source(state, source)
        if source == ANY_SOURCE or tag == ANY_TAG:
            which = errors.ERR_RANK if source == ANY_SOURCE else errors.ERR_TAG
            errors.fail(which, "a partitioned receive has no wildcards: say its source and its tag")
        tag, first = checked_tag(tag), arguments.recv(buf, count)
        return Prequest._refer(
            NoPartner(count) if source == PROC_NULL else PartitionedReceive(state.native, first, count, source, tag)
        )


def _count(partitions: int) -> int:
    count = integer(partitions, "partitions")
    if not 0 < count <= MOST_PARTS:
        errors.fail(errors.ERR_ARG, f"{count} partitions; there can be 1 to {MOST_PARTS}")
    return count
