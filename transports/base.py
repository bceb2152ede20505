"""What a transport is: how messages get from this rank to a peer, and what it can do.

A transport is one package. At start-up, in Python, it says what it can do as data (:class:`Capabilities`), which peers it reaches and
why not the others, and it is connected with them (:class:`Transport`). From then on compiled code calls it by address
(:class:`Functions`), and it calls the matching engine (:class:`Calls`); :mod:`transports.messages` says what goes through these
calls. ``ncclx_mpi.testing.transport.TransportTests`` proves all of that for a transport, without an engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from numba_kernels.jit import c_address
from numba_kernels.rows import NamedTuple


class Capabilities(NamedTuple):
    """What a transport can do.

    Attributes
    ----------
    max_eager
        Largest payload in bytes that travels with its header, unasked.
    """

    max_eager: int


COME, UNARMED, ARMED = range(3)
"""What ``Functions.arm`` returns; of several transports the least counts."""


class Functions(NamedTuple):
    """What compiled code calls of a transport, by C address; the engine's lock is held.

    Attributes
    ----------
    send
        Send a message (:mod:`transports.messages`).
    credit
        ``int64(engine, peer, released)``: let a peer know how many eager bytes of its have found their receive.
    offer
        ``int64(engine, peer, request)``: an RTS of a send is about to go out: write its two words.
    fetch
        ``int64(engine, peer, request)``: a receive has met an RTS with its two words. 1: all bytes are in its buffer now; 0: that is under
        way, and the transport asks for a CTS if it needs one, and says when it is finished.
    serve
        ``int64(engine, peer, request)``: a send has its CTS with its two words. 1: it is done; 0: under way, as above.
    revoke
        ``int64(engine, peer, request)``: take the buffer of a receive back whose ``nbytes`` have become 0. 1: nobody writes there any
        more; 0: a peer may.
    poll
        ``void(state)``: hand up what has come; one that is not compiled in also moves its transfers on.
    step
        ``void(state)``: move transfers on; called of the one that is compiled in. `state` is what ``attach`` returned.
    arm
        ``int64(state)``, of a transport that has a :attr:`Transport.event`, else 0: a thread is about to sleep on it. ARMED: it wakes with
        what comes next, and does not sleep if something has come that was not polled for. COME: something has, for certain. UNARMED:
        there is that to do which no event tells of, so it has to look again soon.
    """

    send: int
    credit: int
    offer: int
    fetch: int
    serve: int
    revoke: int
    poll: int
    step: int
    arm: int = 0

    @classmethod
    def of(cls, messages: MessageKernels, transfers: TransferKernels, poll: Any, arm: Any = None) -> Functions:
        """The functions of a transport: the module for its messages, that for its transfers, what hands up what has come, and what arms."""
        return cls(
            send=c_address(messages.send),
            credit=c_address(messages.credit),
            offer=c_address(transfers.offer),
            fetch=c_address(transfers.fetch),
            serve=c_address(transfers.serve),
            revoke=c_address(transfers.revoke),
            poll=c_address(poll),
            step=c_address(transfers.step),
            arm=c_address(arm) if arm is not None else 0,
        )


class MessageKernels(Protocol):
    """A module with what compiled code calls of a transport for messages: kernels with ``is_entry=True``."""

    send: Any
    credit: Any


class TransferKernels(Protocol):
    """A module with what compiled code calls of a transport for large messages, and to move all on: such kernels, too."""

    offer: Any
    fetch: Any
    serve: Any
    revoke: Any
    step: Any


class RemoteMemory(NamedTuple):
    """What compiled code calls of a transport whose network reaches the memory of peers without their processors, by C address.

    The engine's lock is held. ``remote``: words that describe memory (:data:`transports.messages.REMOTE`).

    Attributes
    ----------
    expose
        ``int64(state, remote)``: let peers access ``address`` and ``nbytes`` from now on: writes ``handle``, ``key`` and ``key_bytes``, whose
        bytes are valid until it is concealed. 1, or 0 if that memory cannot be reached so.
    conceal
        ``int64(state, remote)``: end that.
    open
        ``int64(state, remote)``: get ready for memory of ``peer``, by its key, which may go afterwards: writes ``handle``. 1, or 0 if there
        is no way to it.
    shut
        ``int64(state, remote)``: no access to it comes any more. 1, or 0 as long as accesses are under way.
    put
        ``int64(engine, peer, request)``: copy the buffer of a request to the address ``second`` of a peer, with the handle ``third`` of its
        memory. 1: it is there; 0: under way, and the transport says when it is finished: with an error if it never will be.
    get
        ``int64(engine, peer, request)``: the other way, as above.
    combine
        ``int64(engine, peer, request)``: do an atomic operation (:data:`transports.messages.ADD` and so on) on a word of a peer, at an
        address and by a handle as above. What others have the network do to that word comes before or after; what a processor does need not.
        0: there are none.
    own
        The block by which this rank's own memory is reached through the network, in the place of that of a peer.
    """

    expose: int
    conceal: int
    open: int
    shut: int
    put: int
    get: int
    combine: int
    own: int


class Calls(NamedTuple):
    """What a transport calls of the matching engine, by C address; the engine's lock is held.

    Attributes
    ----------
    arrive
        Hand a message up (:mod:`transports.messages`).
    clear_to_send
        ``int64(engine, peer, request)``: send the CTS of a receive, with its two words.
    finish
        ``int64(engine, request, error)``: the transfer of a request has ended, which is complete now, and perhaps gone. The sender of a
        receive that was fetched without a CTS gets an ATS.
    """

    arrive: int
    clear_to_send: int
    finish: int


class DeathNotice(NamedTuple):
    """What a transport calls that finds a peer dead: ``int64(deaths, words + 8 * peer, peer)``; -1 if that one has left the job in order.

    Attributes
    ----------
    function
        By C address.
    deaths
        Its first argument.
    words
        Address of a word for each world rank, 0 until its end is known.
    """

    function: int
    deaths: int
    words: int


class Transport(ABC):
    """Moves messages between this rank and those of its peers that it reaches."""

    name: ClassVar[str]
    is_inlined: ClassVar[bool] = False
    """Whether the engine has ``send``, ``credit`` and ``poll`` of this transport compiled in; of one transport it has."""

    @property
    @abstractmethod
    def caps(self) -> Capabilities:
        """What it can do."""

    @property
    @abstractmethod
    def functions(self) -> Functions:
        """What compiled code calls."""

    @property
    def event(self) -> int:
        """A file descriptor that is readable when something has come since the transport was armed; -1: it has none."""
        return -1

    @property
    def remote_memory(self) -> RemoteMemory | None:
        """What reaches the memory of peers by the network itself; None: nothing does."""
        return None

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether transfers are under way that peers still need this rank for."""

    @abstractmethod
    def why_not(self, peer: int) -> str:
        """Why `peer` (world rank) cannot be reached, an empty string if it can."""

    def why(self, peer: int) -> str:
        """Why `peer` is reached by this transport, and how, in one line for ``ncclx info --peers``; asked of those that it reaches."""
        return "it is the first transport that reaches it"

    def why_lost(self, peer: int) -> str:
        """Why `peer` cannot be reached after all, which was found out when it was sent to; an empty string if nothing is known of that."""
        return ""

    @abstractmethod
    def endpoint(self) -> bytes:
        """What a peer must know to connect with this rank."""

    @abstractmethod
    def attach(self, engine: int, peers: Sequence[int], calls: Calls) -> int:
        """Learn where the blocks of the engine and of its peers, by world rank, are, and what to call there. Returns what to poll with.

        The first words of these blocks are the transport's: of the engine's if it is compiled in, of a peer's if it is connected with it.
        """

    @abstractmethod
    def connect(self, peer: int, endpoint: bytes) -> None:
        """Make the way to `peer`, whose endpoint is given; cheap, and made once.

        Raises
        ------
        ConnectionError
            The peer is not one that this transport reaches; says why.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up all connections; nothing is in flight any more."""
