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
    # ROUTE of each world rank, lane by lane; for how long there may be none, in ticks
    "routes patience "
    # where there are several lanes (0: there are not): the LANES of each world rank; how many workers, and which; LANES that something is to
    # be done for; when anything went by those workers but the first, and when they were looked at; when it was looked whether a lane stands
    # still; endpoints that are being closed
    "lanes worker_count workers lanes_first lanes_used lanes_polled watched closing close_endpoint "
    "on_segment_sent on_lane_failed on_closed",
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
"""To a peer, of each lane: its addresses (:mod:`transports.ucx.routes`), and how many; when one of them had no route, for the first time and
for the last one of a series of looks; 0: each always had one."""

WINDOW = 64
"""Messages that may be under way to a peer, or kept by it, before it has taken them."""
KEPT = words("Kept", "address is_held")
"""Of message n at ``n % WINDOW``: where it is; whether that is UCX's memory, or a copy."""

HEADER = words("Header", "kind sender sequence taken released context tag nbytes")
"""Begins every message; the payload follows, or the three words of a message without one. ``taken``, ``released``: for messages the
other way, ``LINK.next`` and ``LINK.released`` of the sender."""
FRAME = words("Frame", f"state link holds is_kept | message*{HEADER.total // WORD}")
"""A message as long as UCX has not sent it, which it may have been given more than once, or as long as it may have to be sent by another
lane."""
MAX_EAGER, MAX_EAGER_BY_SOCKETS = 32 << 10, 128 << 10
"""Through sockets all is copied anyway, and each message of a handshake is some system calls: up to the second, to ask first takes longer."""

TRANSFER = words("Transfer", "link remote wanted begun flying piece early next flags booked")
"""Of a large message, at the beginning of its request. ``begun``: bytes that have been given to UCX; ``flying``: pieces that are under way;
``piece``: bytes of each but the last; ``early``: a bit for each piece that has passed before one in front of it;
``flags``: those with which pieces are sent; ``booked``: segments that are not known to have arrived. A receive has no ``remote``, and a
``piece`` only if it is a window."""
assert TRANSFER.total <= REQUEST_WORDS * WORD
PIECE = words(
    "Piece",
    "state request offset length description next lanes lane holds is_booked is_flying is_whole | receive receive_offset sequence way",
)
"""A part of a large message that is under way, or waits for room. Its last words are the header of its message: two of a piece, four of a
segment, which goes by one of several lanes: ``way`` is the sender's rank, and the lane above :data:`WAY_SHIFT`. ``is_whole``: of a segment
that waits, the description is a copy of its bytes."""
PIECE_HEADER_BYTES, SEGMENT_HEADER_BYTES = 2 * WORD, 4 * WORD
WAY_SHIFT = 32
LARGEST_PIECE, PIECE_BY_SOCKETS = 1 << 20, 256 << 10
"""Bytes of a piece. Through sockets one comes whole, and unasked, in the segment into which UCX reads (:mod:`transports.ucx.library`)."""
MOST_FLYING, MOST_FLYING_BY_SOCKETS = 8, 2
"""Pieces of a message that UCX has at once; the second, of those that go unasked through sockets, which hold some megabytes themselves."""

LANES = words(
    "Lanes",
    # of this rank: the transport's block of the peer; how many there are, and which of them messages go by; what a segment has at most, and
    # how many of them a lane
    "link count main segment limit "
    # sent: the number of the next segment; all before `settled` have arrived; of those behind it (bits) the ones to be sent again; which
    # lane is asked first
    "next settled lost turn "
    # received: all before `expected` are here; of those behind it the ones that are, those that have come but wait, for room or to be
    # written, and of these the ones that are being written; 1: say so
    "expected early held coming is_owed "
    # what the peer has said of that, of what was sent; when messages last became known to have arrived, or there were none of them
    "heard_expected heard_early heard_held said "
    # when the peer was last asked what it has, by which lane, and when it answered; 1 + the lane by which an answer is owed; how many
    # answers in a row said what the lane of messages should have; 1: messages are to be posted again, by the new lane of messages; the LANES
    # behind these in the list, itself in the last
    "asked asked_by answered answer_by missed is_unposted following",
)
"""The ways to a peer, where there are several. Behind it a LANE each, then where segments (PIECE) are that are not known to have arrived, and
where messages (FRAME), each at its number % :data:`RING`."""
LANE = words("Lane", "lanes number address endpoint flags flying since")
"""One of them: ``flags``: :data:`BROKEN` when it is known to be, :data:`GIVEN_UP` when others have taken over; ``flying``: segments that are
not known to have come, ``since``: when that last changed for the better, or began."""
BROKEN, GIVEN_UP = 1, 2
RING, AHEAD = 64, 63
"""Places for segments, and how many may be under way to a peer, behind the first one that has not arrived: a bit each."""
MOST_LANES = 16

MESSAGES, PIECES = 1, 2
"""Numbers of active messages."""
NOTE, SAID = 32, 33
"""Kinds of messages that are this transport's own: a header only, for what it says of the other way, and the same of segments."""
SAYING = words("Saying", "expected early held rest")
"""What is behind the header of a SAID."""
IS_QUESTION, IS_ANSWER, BY_SHIFT = 1 << MOST_LANES, 2 << MOST_LANES, 32
"""In the rest, above a bit for each lane that the sender has given up: an answer is wanted, this is one; by which lane it goes."""

# of ucp_request_param_t
PARAMS = words("Params", "mask_and_flags request call datatype user_data reply rest*6")
WITH_CALL_AND_USER_DATA = 2 | 4
WITH_CALL_USER_DATA_AND_FLAGS = WITH_CALL_AND_USER_DATA | 16
WITH_CALL_USER_DATA_TYPE_AND_REPLY = WITH_CALL_AND_USER_DATA | 8 | 32
ONE_WORD = WORD << 3
"""A datatype: so many bytes in one piece."""
EAGERLY, BY_RENDEZVOUS = 2 << 32, 4 << 32
"""Flags of ``ucp_am_send_nbx``, in the upper half of the word with the mask."""
BY_FORCE = 1 << 32
"""One of ``ucp_ep_close_nbx``."""
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
