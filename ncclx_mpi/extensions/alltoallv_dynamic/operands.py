"""What a rank passes to an all-to-all whose counts are read when it executes, resolved to addresses and numbers."""

from __future__ import annotations

from typing import Any

from ncclx_mpi.gpu_memory.memory import DeviceMemory
from numba_kernels.layout import WORD
from numba_kernels.rows import NamedTuple


class Integers(NamedTuple):
    """An array of integers.

    Attributes
    ----------
    address, length
        Where it is, and how many integers.
    kind
        As in :func:`numba_kernels.alltoallv.plan.integer_at`.
    owner
        Keeps it alive.
    device
        The GPU's memory that it lies in, None for the host's.
    """

    address: int
    kind: int
    length: int
    owner: Any
    device: DeviceMemory | None = None

    @property
    def nbytes(self) -> int:
        return self.length * abs(self.kind)


NO_INTEGERS = Integers(0, WORD, 0, None)


class Rooms(NamedTuple):
    """Room for each peer in one buffer.

    Attributes
    ----------
    capacities, addresses
        Elements for each peer, and where they begin.
    itemsize
        Bytes of an element.
    owner, device
        As of :class:`Integers`.
    """

    capacities: list[int]
    addresses: list[int]
    itemsize: int
    owner: Any
    device: DeviceMemory | None

    @property
    def first(self) -> int:
        """The lowest address."""
        return min(self.addresses)

    @property
    def nbytes(self) -> int:
        """Bytes from the lowest address to the highest one."""
        ends = (at + most * self.itemsize for at, most in zip(self.addresses, self.capacities, strict=True))
        return max(ends) - self.first


class Choice(NamedTuple):
    """Which segments go to each peer: lists of indices, or `taken` from ``first + peer * step`` on."""

    indices: Integers
    blocklengths: Integers
    first: int = 0
    step: int = 0
    taken: int = 0


class Operands(NamedTuple):
    """All that a rank passes.

    Attributes
    ----------
    send, recv
        Room for each peer.
    splits, row_step
        Split lengths; those for peer ``p`` begin at ``p * row_step``.
    segments
        How many split lengths a peer has.
    choice
        Which segments go to each peer.
    form
        ``DENSE_SOURCE``, ``DENSE_TARGET``.
    all_splits
        Where the splits of all ranks go.
    """

    send: Rooms
    recv: Rooms
    splits: Integers
    row_step: int
    segments: int
    choice: Choice
    form: int
    all_splits: Integers = NO_INTEGERS

    @property
    def metadata(self) -> tuple[Integers, Integers, Integers]:
        """The arrays that are read to know what moves."""
        return self.splits, self.choice.indices, self.choice.blocklengths

    @property
    def everything(self) -> tuple[Rooms | Integers, ...]:
        """Send and receive rooms, the metadata, and where all splits go."""
        return self.send, self.recv, *self.metadata, self.all_splits

    @property
    def is_on_device(self) -> bool:
        """Whether some of it is in a GPU's memory."""
        return any(each.device is not None for each in self.everything)

    @property
    def is_empty(self) -> bool:
        """Whether there is no memory in it."""
        return not any(each.nbytes for each in self.everything)

    def unowned(self) -> Operands:
        """The same, which keeps nothing alive."""
        indices, blocklengths = (each._replace(owner=None) for each in self.metadata[1:])
        return self._replace(
            send=self.send._replace(owner=None),
            recv=self.recv._replace(owner=None),
            splits=self.splits._replace(owner=None),
            choice=self.choice._replace(indices=indices, blocklengths=blocklengths),
            all_splits=self.all_splits._replace(owner=None),
        )
