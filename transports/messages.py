"""Messages between the matching engine and its transports, as compiled code hands them over, and a transport's room in the engine's blocks.

Both directions have one signature, so that one call by address (:func:`numba_kernels.calls.call_message`) serves both::

    send(engine, peer, kind, context, tag, nbytes, first, second, third)      1: it is on its way    0: there is no room, try again
    arrive(engine, peer, kind, context, tag, nbytes, first, second, third)    1: it is taken         0: keep it, and hand it up again

=========  ====================  ==========================================================================================
kind       bytes                 first, second, third
=========  ====================  ==========================================================================================
EAGER      of the payload        to ``send``: address of the payload, which is the caller's again on return; to ``arrive``: address of
                                 the payload's beginning, bytes there, address of its rest (the wrap of a ring; unused otherwise)
RTS        of the message        request of the sender, two words of the transport (a request to send, "ready to send")
CTS        any                   request of the sender, two words of the transport (the receiver has met it, "clear to send")
ATS        any                   request of the sender: its memory is not needed any more ("acknowledged to sender")
CANCEL     any                   request of the sender, which takes its RTS back
CANCELLED  any                   request of the sender: no receive had met it
CREDIT     any                   eager bytes that found their receive so far; of transports that have no word for it in shared memory
ASK        any                   context, number: has the peer left that communicator before its collective of that number?
ANSWER     any                   context and number as asked, and the answer, which is the engine's (:mod:`ncclx_mpi.p2p.leaving`)
GOODBYE    any                   (nothing) the peer leaves the job; no message comes after this one. A transport may keep it from a peer that
                                 neither has sent to this rank nor was sent to
REVOKE     any                   context: nobody uses that communicator any more (:mod:`ncclx_mpi.p2p.revoking`)
=========  ====================  ==========================================================================================

Messages of one peer arrive in the order in which they were sent. The engine's lock is held in both directions. Addresses of blocks
(``engine``, ``peer``) are opaque to the other side but for the words at their beginning, which are the transport's own.
"""

from __future__ import annotations

from numba_kernels.layout import words

EAGER, RTS, CTS, ATS, CANCEL, CANCELLED, CREDIT, ASK, ANSWER, GOODBYE, REVOKE = range(1, 12)

ENGINE_WORDS, PEER_WORDS, REQUEST_WORDS = 112, 24, 12
"""Words of a transport at the beginning of the block of the engine (of the one that is compiled in), of each peer, and of each request."""

REQUEST_FIELDS = f"own*{REQUEST_WORDS} second third address nbytes message_bytes window moved passed error"
REQUEST = words("Request", REQUEST_FIELDS)
"""What a transport sees of a request: two words of its RTS or CTS, the buffer with its bytes, the bytes of the message, the error at its end.

A buffer of fewer bytes than the message is a window of it if ``window`` says how many: byte b is at b % window, and ``moved`` bytes have been
filled in by the owner of a send, or taken out by that of a receive, so far; ``passed``, which the transport writes, have been sent or come.
"""
REMOTE = words("Remote", "address nbytes handle key key_bytes peer")
"""Memory that peers reach by the network itself (:class:`transports.base.RemoteMemory`): where it is and how much, what the transport knows
it by, and the key by which a peer does; the block of the peer whose memory it is, unless it is this rank's own."""
ADD, SWAP, COMPARE_AND_SWAP, AND, OR, XOR, READ = range(7)
"""Atomic operations of the network on words of peers. Of a request for one, ``window`` is its number, ``moved`` its operand, which a
COMPARE_AND_SWAP compares with; ``passed`` is what that writes, and in the end what was there."""
ON_DEVICE = -1
"""The third word of an RTS: no CPU can read the message; the second says where the arena describes it."""
ERR_OTHER = 15
"""The error of a transfer that cannot be carried on: an MPI error class."""
