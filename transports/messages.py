"""Messages between the matching engine and its transports, as compiled code hands them over, and a transport's room in the engine's blocks.

Both directions have one signature, so that one call by address (:func:`numba_kernels.atomics.call_message`) serves both::

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
=========  ====================  ==========================================================================================

Messages of one peer arrive in the order in which they were sent. The engine's lock is held in both directions. Addresses of blocks
(``engine``, ``peer``) are opaque to the other side but for the words at their beginning, which are the transport's own.
"""

from __future__ import annotations

EAGER, RTS, CTS, ATS, CANCEL, CANCELLED, CREDIT = range(1, 8)

ENGINE_WORDS, PEER_WORDS = 16, 16
"""Words at the beginning of the engine's block (those of the transport that is compiled into the engine) and of each peer's."""
