"""Going on after the death of a rank, as ULFM has it: methods of Comm.

A communicator that has a rank that died is of no use any more but for what is here: all else raises ERR_PROC_FAILED, and ERR_REVOKED once
some rank has revoked it. :meth:`Survival.Shrink` makes one of the ranks that are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ncclx_mpi.api import bridge
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.group import Group
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.request import Request
from ncclx_mpi.collectives import Agreement
from ncclx_mpi.operations.agreed import Agreed
from ncclx_mpi.operations.operation import wait_for

if TYPE_CHECKING:
    from ncclx_mpi.api.comm import Comm
    from ncclx_mpi.api.intercomm import Intercomm
    from ncclx_mpi.typing import Buffer

_INT_BITS = 32


class Survival:
    """Methods of Comm for programs that go on when a rank has died."""

    __slots__ = ()
    _state: CommState
    _CREATED: ClassVar[type[Comm]]
    _BETWEEN: ClassVar[type[Intercomm]]

    def Revoke(self) -> None:
        """Revoke a communicator: whatever waits in it on any rank, or is called on it later, raises ERR_REVOKED, but `Shrink` and `Agree`."""
        everyone = self._state.of_all
        everyone.engine.ended.revoke(everyone)

    def Is_revoked(self) -> bool:
        """Indicate whether the communicator has been revoked, here or on another rank."""
        engine = self._state.of_all.engine
        engine.progress()
        engine.ended.heed()
        return self._state.of_all.is_revoked

    def Get_failed(self) -> Group:
        """Extract the group of failed processes: those of this communicator that this process knows to have died."""
        everyone = self._state.of_all
        dead = set(everyone.engine.dead_ranks())
        return Group._of([rank for rank in everyone.world_ranks if rank in dead], everyone.engine.rank)

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Acknowledge failures on a communicator; returns how many of its processes are known to have died, and acknowledged.

        From then on waits in communicators without those processes are not ended by their deaths. They are acknowledged all at once, if
        any is to be.
        """
        state, wanted = self._state, None if num_to_ack is None else integer(num_to_ack, "num_to_ack")
        failed = len(self.Get_failed()._state.ranks)
        if wanted is None or wanted > 0:
            state.of_all.engine.ended.acknowledge()
            state.acknowledged = failed
        return state.acknowledged

    def Agree(self, flag: int) -> int:
        """Blocking agreement: the bitwise *and* of what all living processes pass, the same on all of them, whoever dies meanwhile."""
        agreed = self._start_agreement(_checked_flag(flag))
        wait_for(agreed)
        return agreed.agreement.flag

    def Iagree(self, flag: Buffer) -> Request:
        """Nonblocking agreement: `flag` is a C int, which is replaced when the request is complete."""
        memory = _as_int(flag)
        agreed = self._start_agreement(memory[0])

        def store() -> None:
            memory[0] = agreed.agreement.flag

        agreed.after = store
        return Request._refer(agreed)

    def Shrink(self) -> Comm:
        """Shrink a communicator to the processes that live, in the same order, whoever dies meanwhile."""
        made, agreed = self._start_shrink()
        wait_for(agreed)
        agreed.finish()
        return made

    def Ishrink(self) -> tuple[Comm, Request]:
        """Nonblocking shrink a communicator."""
        made, agreed = self._start_shrink()
        return made, Request._refer(agreed)

    def _start_agreement(self, flag: int) -> Agreed:
        everyone = self._state.of_all
        return Agreed(Agreement(everyone, flag, bridge.new_contexts(everyone.engine)))

    def _start_shrink(self) -> tuple[Comm, Agreed]:
        """Start agreeing on who lives; the handle is good for something when that is done."""
        state, made = self._state, CommState()
        everyone, errhandler = state.of_all, state.errhandler
        groups, agreed = state.groups, self._start_agreement(-1)

        def fill() -> None:
            dead = {everyone.world_ranks[rank] for rank in agreed.agreement.failed}
            living = [[rank for rank in group if rank not in dead] for group in groups]
            if len(living) > 1:
                bridge.fill(made, everyone.engine, agreed.agreement.contexts, living[0], living[1], errhandler)
            else:
                made.fill(everyone.engine.new_comm(agreed.agreement.contexts[0], living[0]), errhandler)

        agreed.after = fill
        return (self._BETWEEN if len(groups) > 1 else self._CREATED)._refer(made), agreed


def _checked_flag(flag: int) -> int:
    value = integer(flag, "flag")
    if not -(1 << _INT_BITS - 1) <= value < 1 << _INT_BITS - 1:
        raise OverflowError(f"flag {value} does not fit in a C int")
    return value


def _as_int(flag: Buffer) -> memoryview:
    """The C int that a buffer is.

    Raises
    ------
    ValueError
        It has another size.
    """
    memory = memoryview(flag).cast("B")
    if memory.nbytes != _INT_BITS // 8 or memory.readonly:
        raise ValueError(f"flag: expecting a writable buffer of {_INT_BITS // 8} bytes, got {memory.nbytes}")
    return memory.cast("i")
