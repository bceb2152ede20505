"""Two hosts on one machine: network namespaces that a pair of virtual interfaces joins, and jobs on both."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from programs import command, environment

_numbers = itertools.count()
_LINK_SECONDS = 20.0


class Space:
    """One of them.

    Attributes
    ----------
    name
        Of the namespace.
    link
        Of its interface.
    address
        By which the other reaches it.
    """

    def __init__(self, name: str, link: str, address: str) -> None:
        self.name = name
        self.link = link
        self.address = address

    @property
    def prefix(self) -> list[str]:
        """Words that run a command there."""
        return ["ip", "netns", "exec", self.name]

    def set_link(self, state: str) -> None:
        """Pull the plug with ``down``."""
        _ip("-n", self.name, "link", "set", self.link, state)

    def come_back(self) -> None:
        """Plug it in again, and wait until it can be used."""
        self.set_link("up")
        _wait_until_up(self)


class OnHosts:
    """A job of which each host runs its own command."""

    def __init__(self, spaces: tuple[Space, ...], words: list[str], nranks: int = 2, **variables: str) -> None:
        env = environment(NCCLX_MPI_TOKEN=secrets.token_hex(16), **variables)
        pipe = subprocess.PIPE
        self.nodes = []
        for node, space in enumerate(spaces):
            own = ["--nnodes", str(len(spaces)), "--node-rank", str(node), "--rendezvous", f"{spaces[0].address}:29500"]
            line = [*space.prefix, *command("run", "-n", str(nranks), *own, *words)]
            self.nodes.append(subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True))

    def read(self, count: int) -> list[list[str]]:
        """So many lines of each host."""
        return [[node.stdout.readline().rstrip("\n") for _ in range(count)] for node in self.nodes]

    def end(self, timeout: float = 120) -> list[tuple[int, str, str]]:
        """Status, output and errors of each host."""
        found = []
        for node in self.nodes:
            stdout, stderr = node.communicate(timeout=timeout)
            found.append((node.returncode, stdout, stderr))
        return found

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
            node.communicate()


def why_no_ucx() -> str:
    """Asked in a process of its own, which has UCX loaded afterwards."""
    asked = subprocess.run(
        [sys.executable, "-c", "from transports.ucx import library; library.find()"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stderr.strip().splitlines()[-1] if asked.returncode else ""


def why_not() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    name = f"ncclxprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return f"network namespaces cannot be made: {made.stderr.strip()}" if made.returncode else ""


@contextmanager
def two_spaces() -> Iterator[tuple[Space, Space]]:
    """Make two hosts, and remove them."""
    tag = f"{os.getpid()}x{next(_numbers)}"
    first, second = Space(f"ncclx{tag}a", f"v{tag}a", "10.93.0.1"), Space(f"ncclx{tag}b", f"v{tag}b", "10.93.0.2")
    both = (first, second)
    try:
        for space in both:
            _ip("netns", "add", space.name)
        for space in both:
            _ip("-n", space.name, "link", "set", "lo", "up")
        _join(first, second)
        yield both
    finally:
        for space in both:
            subprocess.run(["ip", "netns", "del", space.name], capture_output=True, check=False)


def add_link(spaces: tuple[Space, Space], name: str, number: int) -> tuple[Space, Space]:
    """Join two hosts by one more link, which has the same name on both: each of them by that one."""
    first, second = (Space(space.name, name, f"10.93.{number}.{host}") for host, space in enumerate(spaces, 1))
    _join(first, second)
    return first, second


def _join(first: Space, second: Space) -> None:
    _ip("link", "add", first.link, "netns", first.name, "type", "veth", "peer", "name", second.link, "netns", second.name)
    for space in (first, second):
        _ip("-n", space.name, "addr", "add", f"{space.address}/24", "dev", space.link)
        space.set_link("up")
    for space in (first, second):
        _wait_until_up(space)


def _wait_until_up(space: Space) -> None:
    """The system takes up to a second to call a link running, and UCX opens those only that are."""
    end = time.monotonic() + _LINK_SECONDS
    while "state UP" not in _ip("-n", space.name, "link", "show", space.link):
        assert time.monotonic() < end, f"{space.link} does not come up"
        time.sleep(0.02)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


REASON = why_not()
WHY_NO_UCX = REASON or why_no_ucx()
needs_spaces = pytest.mark.skipif(bool(REASON), reason=REASON)
needs_ucx = pytest.mark.skipif(bool(WHY_NO_UCX), reason=WHY_NO_UCX)
