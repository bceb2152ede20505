"""Blocks of this transport, and those of UCX that compiled code fills in: where their words are, in all releases that are known.

Numbers of UCX: a status is one byte, negative for an error; a pointer to a request may be such a number instead (:func:`is_error`).
"""

from __future__ import annotations

from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words
from transports.messages import PEER_WORDS, REQUEST_WORDS

STATE = words(
    "State",
    # the engine, and what it does for a transport, by C address; blocks of peers by world rank, and who this rank is
    "engine arrive clear_to_send finish peers count rank "
    # what to call, and with what, when a peer is found dead; 0: nobody
    "note_death deaths death_words "
    # the worker, and functions of UCX by C address
    "worker progress arm send receive release_data free_request create_endpoint "
    # those for memory of peers, and the context
    "map unmap pack_key release_key unpack_key destroy_key put get combine flush context "
    # callbacks by C address
    "on_sent on_piece_sent on_piece_received on_failed on_access "
    # whether messages may be handed up now; links that something is owed or kept for; messages that UCX still sends
    "is_open listed_first sending "
    # large messages: those that are sent, and those that are complete, first and last of each; how many are not; pieces that wait for room
    "active_first active_last active_count done_first waiting_first "
    # when the network was looked at, and when it last had something to do; when pieces under way were last waited for in vain
    "polled used ticks_per_us in_vain "
    # how often in a row UCX could not be armed, as something had come
    "unarmed "
    # accesses to memory of peers that are under way
    "accessing "
    # bytes of a piece, where no window asks for fewer, and the flags with which such pieces are sent
    "piece piece_flags "
    # ROUTE of each world rank; for how long there may be none, in ticks
    "routes patience",
)
LINK = words(
    "Link",
    # the address by which the peer is connected to when the first message is sent, and the endpoint then; its world rank; of a peer to which
    # there is no way, the status that says why is in the place of the address
    "state address endpoint rank "
    # messages sent, and how many of them the peer has taken; those taken of it, and how many of them it has been told
    "sent acknowledged next told "
    # eager bytes of the peer that found their receive, and what it has been told; what it says of ours, and what the engine knows of that
    "released announced heard reported "
    # messages that cannot be handed up yet (KEPT); the link behind this one in the list, itself in the last
    "kept listed "
    # how often a credit has waited for a message, or when a peer failed that was never heard; 1: the endpoint has failed, 2: that was
    # noted, 4: the peer has said goodbye, 8: no endpoint could be made, and nothing ever came
    "patience flags",
)
assert LINK.total <= PEER_WORDS * WORD
FAILED, NOTED, GONE, UNREACHED = 1, 2, 4, 8
ROUTE = words("Route", "targets count first last")
"""To a peer: its addresses (:mod:`transports.ucx.routes`), and how many; when one of them had no route, for the first time and for the last
one of a series of looks; 0: each always had one."""

WINDOW = 64
"""Messages that may be under way to a peer, or kept by it, before it has taken them."""
KEPT = words("Kept", "address is_held")
"""Of message n at ``n % WINDOW``: where it is; whether that is UCX's memory, or a copy."""

HEADER = words("Header", "kind sender sequence taken released context tag nbytes")
"""Begins every message; the payload follows, or the three words of a message without one. ``taken``, ``released``: for messages the
other way, ``LINK.next`` and ``LINK.released`` of the sender."""
FRAME = words("Frame", f"state link | message*{HEADER.total // WORD}")
"""A message as long as UCX has not sent it."""
MAX_EAGER, MAX_EAGER_BY_SOCKETS = 32 << 10, 128 << 10
"""Through sockets all is copied anyway, and each message of a handshake is some system calls: up to the second, to ask first takes longer."""

TRANSFER = words("Transfer", "link remote wanted begun flying piece early next flags")
"""Of a large message, at the beginning of its request. ``begun``: bytes that have been given to UCX; ``flying``: pieces that are under way;
``piece``: bytes of each but the last; ``early``: a bit for each piece that has passed before one in front of it;
``flags``: those with which pieces are sent. A receive has no ``remote``, and a ``piece`` only if it is a window."""
assert TRANSFER.total <= REQUEST_WORDS * WORD
PIECE = words("Piece", "state request offset length description next | receive receive_offset")
"""A part of a large message that is under way, or waits for room. Its last two words are the header of its message."""
PIECE_HEADER_BYTES = 2 * WORD
LARGEST_PIECE, PIECE_BY_SOCKETS = 1 << 20, 256 << 10
"""Bytes of a piece. Through sockets one comes whole, and unasked, in the segment into which UCX reads (:mod:`transports.ucx.library`)."""
MOST_FLYING, MOST_FLYING_BY_SOCKETS = 8, 2
"""Pieces of a message that UCX has at once; the second, of those that go unasked through sockets, which hold some megabytes themselves."""

MESSAGES, PIECES = 1, 2
"""Numbers of active messages."""
NOTE = 32
"""Kind of a message that is this transport's own: a header only, for what it says of the other way."""

# of ucp_request_param_t
PARAMS = words("Params", "mask_and_flags request call datatype user_data reply rest*6")
WITH_CALL_AND_USER_DATA = 2 | 4
WITH_CALL_USER_DATA_AND_FLAGS = WITH_CALL_AND_USER_DATA | 16
WITH_CALL_USER_DATA_TYPE_AND_REPLY = WITH_CALL_AND_USER_DATA | 8 | 32
ONE_WORD = WORD << 3
"""A datatype: so many bytes in one piece."""
EAGERLY, BY_RENDEZVOUS = 2 << 32, 4 << 32
"""Flags of ``ucp_am_send_nbx``, in the upper half of the word with the mask."""
# of ucp_ep_params_t
ENDPOINT = words("Endpoint", "mask address error_mode call argument rest*16")
WITH_ADDRESS_AND_ERRORS = 1 | 2 | 4
PEER_ERRORS = 1
# of ucp_mem_map_params_t
MEMORY = words("Memory", "mask address nbytes rest*16")
WITH_ADDRESS_AND_LENGTH = 1 | 2
# of ucp_am_recv_param_t, whose first word has the flags
DATA_MAY_BE_HELD, IS_DESCRIPTION = 1 << 16, 1 << 17
OK, IN_PROGRESS, NO_WAY, BUSY = 0, 1, -6, -15
_LAST_ERROR = -100


@kernel("int64(int64)")
def is_error(pointer):  # type: ignore[no-untyped-def]
    """Whether UCX has returned an error where a request is returned otherwise."""
    return 1 if _LAST_ERROR <= pointer < 0 else 0


@kernel("int64(int64)")
def status_of(result):  # type: ignore[no-untyped-def]
    """The status that a function of UCX has returned: of the register the lowest byte."""
    status = result & 0xFF
    return status - 256 if status > 127 else status
