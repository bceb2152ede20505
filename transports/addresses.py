"""The addresses of this host's interfaces."""

from __future__ import annotations

import contextlib
import fcntl
import socket
from collections.abc import Iterable

_SIOCGIFADDR = 0x8915
_ADDRESS_AT, _ADDRESS_BYTES, _NAME_BYTES = 20, 4, 16
"""In what the system says of an interface (``ifreq``)."""


def addresses_of(interfaces: Iterable[str], with_loopback: bool = False) -> list[bytes]:
    """The IPv4 addresses of interfaces, four bytes each; those of the loopback are no way to another host, and left out."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for name in interfaces:
            with contextlib.suppress(OSError):  # it has none
                said = fcntl.ioctl(asked, _SIOCGIFADDR, name.encode()[: _NAME_BYTES - 1].ljust(2 * _NAME_BYTES + 8, b"\0"))
                found.append(said[_ADDRESS_AT : _ADDRESS_AT + _ADDRESS_BYTES])
    return [address for address in found if with_loopback or not socket.inet_ntoa(address).startswith("127.")]
