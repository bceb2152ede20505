"""The name service of a user on this machine: abstract Unix sockets, whose names say all that there is to know.

::

    @ncclx_mpi-name-UID-DIGEST           held by who has published a service, so that nobody else does
    @ncclx_mpi-name-UID-DIGEST=PORT      says the port, but for its prefix; the system knows its owner, so that no other user can say one

Nobody serves anything, nothing lives in a file system, and a name vanishes with the process that has published it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import threading
from pathlib import Path

from ncclx_mpi.bootstrap import handover
from ncclx_mpi.bootstrap.port import PREFIX

_held: dict[str, tuple[str, *tuple[socket.socket, ...]]] = {}
_lock = threading.Lock()


def publish(service: str, port: str) -> bool:
    """Say that a service is at a port, until this process ends; False: somebody says so of the service already.

    Raises
    ------
    OSError
        There is no socket to be had.
    """
    name = _name(service)
    with _lock, contextlib.ExitStack() as given_back:
        held = []
        for each in (name, f"{name}={port.removeprefix(PREFIX)}"):
            found = _hold(each)
            if found is None:
                return False
            held.append(given_back.enter_context(found))
        given_back.pop_all()
        _held[service] = port, *held
    return True


def unpublish(service: str, port: str) -> bool:
    """Take back what :func:`publish` said; False: this process has not said so."""
    with _lock:
        if _held.get(service, ("",))[0] != port:
            return False
        _, *sockets = _held.pop(service)
        for held in sockets:
            held.close()
    return True


def look_up(service: str) -> str | None:
    """The port of a service, None if nobody of this user has published it."""
    prefix = f"@{_name(service)}="
    for line in Path("/proc/net/unix").read_text().splitlines():
        address = line.rpartition(" ")[2]
        if address.startswith(prefix) and _is_ours(address[1:]):
            return PREFIX + address.removeprefix(prefix)
    return None


def _name(service: str) -> str:
    digest = hashlib.sha256(service.encode()).hexdigest()
    return f"ncclx_mpi-name-{os.getuid()}-{digest[:20]}"


def _hold(name: str) -> socket.socket | None:
    """A socket with this name, None if somebody has it."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        held.bind(f"\0{name}")
        held.listen(1)
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return held


def _is_ours(name: str) -> bool:
    """Whether a process of this user holds a name; that its queue is full says that somebody listens, but not who."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
        client.setblocking(False)
        try:
            client.connect(f"\0{name}")
        except OSError:
            return False
        return handover.peer_of(client)[1] == os.getuid()
