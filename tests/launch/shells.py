"""A real sshd on each of several hosts that are network namespaces, which lets one key in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spaces import Space

_PROGRAMS = ("ssh", "ssh-keygen")
_SERVER = "/usr/sbin/sshd"
_OF_PRIVILEGES = Path("/run/sshd")
_PORT = 22
_READY_SECONDS = 30.0

_CONFIGURATION = """
Port {port}
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
SetEnv {variables}
"""


def why_not() -> str:
    """Why there can be no sshd here; empty if there can."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    missing += [] if os.path.exists(_SERVER) else ["sshd"]
    return f"there is no {', '.join(missing)} (Debian: openssh-server and openssh-client)" if missing else ""


@contextmanager
def servers(spaces: Sequence[Space], folder: Path, variables: str) -> Iterator[str]:
    """Start them, with these variables (``A=b C=d``) set for what they start, and end them. Gives the words that run a command on a host."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    has_made = not _OF_PRIVILEGES.exists()
    _OF_PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
    running: list[subprocess.Popen[bytes]] = []
    try:
        for space in spaces:
            running.append(_start(space, folder, variables))
        for space, server in zip(spaces, running, strict=True):
            _wait_until_it_listens(space, server)
        yield f"ssh -i {folder}/user -o BatchMode=yes -o UserKnownHostsFile={folder}/known -o StrictHostKeyChecking=accept-new"
    finally:
        for server in running:
            server.terminate()
            server.wait()
        if has_made:
            _OF_PRIVILEGES.rmdir()


def _start(space: Space, folder: Path, variables: str) -> subprocess.Popen[bytes]:
    path = folder / f"{space.name}.conf"
    path.write_text(_CONFIGURATION.format(port=_PORT, address=space.address, folder=folder, variables=variables))
    with open(folder / f"{space.name}.log", "wb") as log:
        return subprocess.Popen(
            [*space.prefix, _SERVER, "-D", "-e", "-f", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _wait_until_it_listens(space: Space, server: subprocess.Popen[bytes]) -> None:
    code = f"import socket; socket.create_connection(({space.address!r}, {_PORT}), 1).close()"
    end = time.monotonic() + _READY_SECONDS
    while subprocess.run([*space.prefix, sys.executable, "-c", code], capture_output=True, check=False).returncode:
        assert server.poll() is None and time.monotonic() < end, f"sshd of {space.name} does not start"
        time.sleep(0.05)
