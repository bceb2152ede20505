# run by: run_datagram_tests.py
"""A transport between processes of one machine, over datagrams of Unix sockets."""

import ctypes
import functools
import os
import socket
import tempfile
from collections.abc import Sequence

import datagram_messages
import datagram_transfers
import numpy as np
from datagram_messages import LINK, PACKET_BYTES, PAYLOAD_BYTES, STATE

from numba_kernels.layout import WORD
from transports.base import Calls, Capabilities, Functions, Transport


class Datagrams(Transport):
    """Reaches `size` ranks, of which this process is number `rank`."""

    name = "datagrams"

    def __init__(self, rank: int, size: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="datagrams-")  # nobody else may look into it
        self.inbox = new_socket()
        self.inbox.bind(os.path.join(self.folder.name, "inbox"))
        self.outboxes: list[socket.socket] = []
        self.links = np.zeros(size, np.int64)
        self.packets = np.zeros((2, PACKET_BYTES), np.uint8)
        self.state = np.zeros(STATE.total // WORD, np.int64)
        inbox, outbox = (packet.ctypes.data for packet in self.packets)
        self.note(rank=rank, socket=self.inbox.fileno(), inbox=inbox, outbox=outbox, links=self.links.ctypes.data, count=size)

    def note(self, **fields: int) -> None:
        for field, value in fields.items():
            self.state[getattr(STATE, field) // WORD] = value

    @property
    def caps(self) -> Capabilities:
        return Capabilities(max_eager=PAYLOAD_BYTES)

    @functools.cached_property
    def functions(self) -> Functions:
        return Functions.of(datagram_messages, datagram_transfers, datagram_transfers.poll)

    @property
    def is_busy(self) -> bool:
        return any(word_at(link + LINK.first_send).value for link in self.links.tolist() if link)

    def why_not(self, peer: int) -> str:
        return "" if peer < self.links.size else f"rank {peer} is not one of {self.links.size}"

    def endpoint(self) -> bytes:
        return os.fsencode(self.inbox.getsockname())

    def attach(self, engine: int, peers: Sequence[int], calls: Calls) -> int:
        self.peers = peers
        self.note(engine=engine, **calls._asdict())
        return self.state.ctypes.data

    def connect(self, peer: int, endpoint: bytes) -> None:
        if self.why_not(peer):
            raise ConnectionError(self.why_not(peer))
        outbox = new_socket()
        outbox.connect(endpoint)
        self.outboxes.append(outbox)
        word_at(self.peers[peer] + LINK.state).value = self.state.ctypes.data
        word_at(self.peers[peer] + LINK.socket).value = outbox.fileno()
        self.links[peer] = self.peers[peer]

    def close(self) -> None:
        for each in (self.inbox, *self.outboxes):
            each.close()
        self.folder.cleanup()


def new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def word_at(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address)
