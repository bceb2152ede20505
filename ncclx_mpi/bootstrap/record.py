"""What a host says of itself to the others, and what of it must be the same on all."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ncclx_mpi import __version__, far_transport, rc
from ncclx_mpi.algorithms import ALGORITHMS, ORDER
from ncclx_mpi.bootstrap.wire import Message, ProtocolError
from transports.ucx import library as ucx

PROTOCOL = 1
"""To be raised when what hosts say to each other changes."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _agreed_settings() -> dict[str, str]:
    names = ("heartbeat", ORDER, *(f"algo_{collective}" for collective in ALGORITHMS))
    return {**{name: str(getattr(rc, name)) for name in names}, "far_transport": far_transport.chosen(), **ucx.agreed_settings()}


def machine_id() -> str:
    """The running kernel; empty if it has no name."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


@dataclass
class Record:
    """One host, or what counts as one.

    Attributes
    ----------
    node, nnodes
        Its number, and how many it believes that there are.
    nranks
        Its ranks.
    host
        Its name.
    address, port
        Where its agent listens; the address is as the store sees it.
    job
        A number that only this job has; that of node 0 counts.
    version, protocol, byteorder, settings
        Must be the same everywhere.
    machine
        Names the running kernel: nodes that have it in common share cores.
    """

    node: int
    nnodes: int
    nranks: int
    host: str = field(default_factory=socket.gethostname)
    address: str = ""
    port: int = 0
    job: int = 0
    version: str = __version__
    protocol: int = PROTOCOL
    byteorder: str = sys.byteorder
    settings: dict[str, str] = field(default_factory=_agreed_settings)
    machine: str = field(default_factory=machine_id)

    def __str__(self) -> str:
        return f"node {self.node} ({self.host})"

    def as_message(self) -> Message:
        """What travels."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Message) -> Record:
        """The record that was sent, by this version or another one.

        Raises
        ------
        ProtocolError
            It is none.
        """
        kinds = {name: type(value) for name, value in asdict(cls(0, 1, 1)).items()}
        known = {name: message.get(name) for name in kinds}
        for name, kind in kinds.items():
            if type(known[name]) is not kind:
                raise ProtocolError(f"a host says {known[name]!r} of its {name}")
        return cls(**known)  # type: ignore[arg-type]


def odd_ones(records: Sequence[Record]) -> str:
    """Say which hosts differ in what must be the same; empty if none does. What most of them have counts as right, else what node 0 has."""
    for what in ("protocol", "version", "byteorder", "nnodes"):
        if text := _differing(records, [str(getattr(record, what)) for record in records], _WORDS[what]):
            return text
    for name, setting in rc.SETTINGS.items():
        values = [record.settings.get(name, setting.default) for record in records]
        if text := _differing(records, list(map(str, values)), setting.variable):
            return text
    for name in ucx.AGREED:
        if text := _differing(records, [record.settings.get(name, "not said") for record in records], name):
            return text
    return ""


_WORDS = {
    "protocol": "the protocol of ncclx_mpi",
    "version": "the version of ncclx_mpi",
    "byteorder": "the byte order",
    "nnodes": "the number of nodes",
}


def _differing(records: Sequence[Record], values: Sequence[str], what: str) -> str:
    most = Counter(values).most_common()
    if len(most) == 1:
        return ""
    right = most[0][0] if most[0][1] > most[1][1] else values[0]
    odd = [f"{value} on {record}" for record, value in zip(records, values, strict=True) if value != right]
    return f"{what} is {right} on {records[values.index(right)]}, but {', '.join(odd)}; it must be the same on all hosts"
