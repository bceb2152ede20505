"""From anything a program passes as a buffer to an address, a count and a layout."""

from ncclx_mpi.buffers.buffer import Buffer, VBuffer, WBuffer
from ncclx_mpi.buffers.source import Source, open_source
from ncclx_mpi.buffers.spec import (
    has_counts,
    is_in_place,
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
    "Source",
    "VBuffer",
    "WBuffer",
    "has_counts",
    "is_in_place",
    "open_source",
    "recv",
    "recv_vector",
    "recv_w",
    "send",
    "send_vector",
    "send_w",
    "target",
]
