"""What a transport is: how bytes get from this rank to a peer, and what it can do.

A transport is one package. It says what it can do as data (:class:`Capabilities`, proved by
``ncclx_mpi.testing.TransportTests``), which peers it reaches and why not the others, and hands out a :class:`Lane` for each. The matching
engine writes messages into lanes from compiled code; nothing here is called for a message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Capabilities:
    """What a transport can do.

    Attributes
    ----------
    max_eager
        Largest payload in bytes that travels with its header, without a grant.
    rma
        ``put`` and ``get`` reach registered memory of a peer.
    atomics
        ``fetch_add`` works on registered memory of a peer, atomically with the peer's own.
    direct
        Registered memory can be read by the receiver without a copy through a pipe.
    device_memory
        Addresses may be device pointers.
    """

    max_eager: int
    rma: bool
    atomics: bool
    direct: bool
    device_memory: bool


@dataclass(frozen=True)
class Lane:
    """The two directions between this rank and a peer, as addresses that compiled code writes and polls."""

    outbox: int
    inbox: int


class Transport(ABC):
    """Moves bytes between this rank and those of its peers that it reaches."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def caps(self) -> Capabilities:
        """What it can do."""

    @abstractmethod
    def why_not(self, peer: int) -> str:
        """Why `peer` (world rank) cannot be reached, an empty string if it can."""

    @abstractmethod
    def connect(self, peer: int) -> Lane:
        """The lane to `peer`; cheap, and made once.

        Raises
        ------
        ConnectionError
            The peer is not one that this transport reaches; says why.
        """

    @abstractmethod
    def register(self, address: int, nbytes: int) -> int | None:
        """The key under which peers reach this memory; None if it cannot be shared as it is.

        The memory stays the caller's and must stay mapped as long as a peer may use the key.
        """

    @abstractmethod
    def put(self, peer: int, key: int, offset: int, source: int, nbytes: int) -> None:
        """Copy `nbytes` bytes from `source` into registered memory of `peer`; complete, and visible to it, on return.

        Raises
        ------
        ValueError
            The range lies outside of what `peer` can register.
        """

    @abstractmethod
    def get(self, peer: int, key: int, offset: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` bytes out of registered memory of `peer` to `target`; complete on return."""

    @abstractmethod
    def fetch_add(self, peer: int, key: int, offset: int, value: int) -> int:
        """Add to a 64-bit word in registered memory of `peer`, atomically; returns what it was."""

    @abstractmethod
    def close(self) -> None:
        """Give up all lanes; nothing is in flight any more."""
