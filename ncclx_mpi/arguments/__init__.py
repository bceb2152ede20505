"""What a communication call is given, resolved: addresses, counts, datatypes, and how arrays on devices are staged for it."""

from ncclx_mpi.arguments.buffer import Buffer, VBuffer, WBuffer
from ncclx_mpi.arguments.spec import (
    has_counts,
    is_in_place,
    of_length,
    recv,
    recv_vector,
    recv_w,
    send,
    send_vector,
    send_w,
    target,
)

__all__ = [
    "Buffer",
    "VBuffer",
    "WBuffer",
    "has_counts",
    "is_in_place",
    "of_length",
    "recv",
    "recv_vector",
    "recv_w",
    "send",
    "send_vector",
    "send_w",
    "target",
]
