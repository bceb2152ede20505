"""The transport that is compiled into the matching engine: shared memory, whose words every wait polls, inlined like its small messages.

``ncclx_mpi.p2p`` knows it by the names of this file only. Another transport in its place would offer the same: ``send_eager``, ``send``,
``credit`` and ``credited`` as :class:`transports.base.Functions` has them; what has come, line by line (``next_line``, ``consume_line``, and
what a line says); and its words at the beginning of the engine's block (``WORDS``).
"""

from transports.shm.lane import (
    MESSAGES_A_TURN,
    beginning_of,
    bytes_before_the_wrap,
    consume_line,
    credit,
    credited,
    next_line,
    payload_of,
    send,
    send_eager,
)
from transports.shm.lane import SHM as WORDS
from transports.shm.ring import MESSAGE, kind_of, tag_of

__all__ = [
    "MESSAGE",
    "MESSAGES_A_TURN",
    "WORDS",
    "beginning_of",
    "bytes_before_the_wrap",
    "consume_line",
    "credit",
    "credited",
    "kind_of",
    "next_line",
    "payload_of",
    "send",
    "send_eager",
    "tag_of",
]
