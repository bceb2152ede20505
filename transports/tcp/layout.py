"""Blocks of this transport: where their words are."""

from __future__ import annotations

from numba_kernels.layout import LINE, WORD, words
from transports.granted import GRANTING
from transports.messages import PEER_WORDS

STATE = words(
    "State",
    # and the blocks of peers by their place, how many, and which is this rank's
    f"{GRANTING} peers count rank "
    # what to call, and with what, when a peer is found dead; 0: nobody
    "note_death deaths death_words "
    # descriptors: of the set of all sockets, and of the one that others connect with; what they have to know for that
    "events listener token*4 "
    # BUFFER bytes for what has come; GUESTS blocks of connections whose ends have not said who they are
    "buffer guests "
    # the link that something came by last, and whether it is looked at alone in the next turn; links that there is something to do for
    "hot is_alone listed_first "
    # when the network was looked at, and when it last had something to do
    "polled used ticks_per_us "
    # for how long there may be no way to a peer, in ticks; and for how many seconds a host may be silent to which nothing is under way
    "patience silence",
)
LINK = words(
    "Link",
    # the transport's state, the peer's place; descriptors, 1 more than the number, by which is sent and by which comes what comes (one, but
    # to this rank itself); the flags below; the link behind this one in the list, itself in the last
    "state rank out into flags listed "
    # the WAYS to the peer
    "ways "
    # the beginning of a message of which the rest has not come: memory and bytes
    "rest rest_bytes "
    # the end of a message that the socket did not take: memory, first byte and end
    "unsent unsent_first unsent_end "
    # of a frame that is only partly through: the request and the bytes that are missing, of one that goes out and of one that comes
    "frame frame_left landing landing_left "
    # eager bytes of the peer that found their receive, what it has been told, and how often that has waited for a message; what it says of
    # ours
    "released announced waited heard",
)
assert LINK.total <= PEER_WORDS * WORD
WAYS = words("Ways", "count tried failures since last token*4")
"""How a peer is connected with: how many addresses it has, which follow, and which one is tried; how many could not be connected with since
one last could, and since when that is (0: nothing was tried; of an UNREACHED peer why, an ``errno``); when one was tried last; its token."""
CONNECTING, GREETED, WELCOMED, UP, CUT, FAILED, NOTED, GONE, HEARD, WATCHED, UNREACHED, STALLED, OWES_WORD = (
    1 << bit for bit in range(13)
)
"""Of a link: it is being connected; this rank has said HELLO, or WELCOME; it is there; nothing can be sent by it any more; nor does anything
come; that was noted; the peer has said goodbye; something has come; it is told when there is room to send; no address of the peer answers;
what has come has no room; the peer is to hear at once that the link is there."""

HEADER = words("Header", "kind context tag nbytes first second third released")
"""Before each message, and each frame of a large one; ``released``: eager bytes of the peer that found their receive so far."""
DATA, NOTE = 32, 33
"""Kinds: a frame of a large message (``first``: the receive, ``nbytes`` of it follow); what says nothing but how many bytes were released."""
MAX_EAGER = 64 << 10
BUFFER = 512 << 10
"""Bytes that are taken from a socket at once."""
FRAME = 256 << 10
"""Bytes of a large message with one header: what else there is to say to the peer goes between two."""

GUESTS = 64
GUEST = words("Guest", "fd since have said*8")
"""A connection of which it is not known whose it is: descriptor (1 more than the number; 0: none), since when, bytes of its HELLO so far."""
HELLO = words("Hello", "magic token*4 sender receiver")
"""What the rank that connects says first: the token of the one it connects with, and who both are."""
MAGIC = 0x31_4950_4D58_434C
WELCOME = 0x32_4950_4D58_434C
"""The answer, a word: the connection is one."""
TARGET_BYTES = 16
"""``sockaddr_in``."""
assert HELLO.total <= 8 * WORD
assert LINE % WORD == 0
