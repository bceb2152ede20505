"""Network namespaces that a benchmark makes, which go with it, however it ends."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator

_REMOVE = 'cat; for name do ip netns pids "$name" | xargs -r kill -9; ip netns del "$name"; done'
"""Waits until nobody holds the other end of its input, which is when this process has ended, if not before."""


@contextlib.contextmanager
def namespaces(*names: str) -> Iterator[None]:
    """Make them; at the end they are removed with all that runs in them, also if this process is killed."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    guard = ["sh", "-c", _REMOVE, "remove", *names]
    with subprocess.Popen(guard, stdin=pipe, stdout=nothing, stderr=nothing, start_new_session=True):
        for name in names:
            ip("netns", "add", name)
        yield


def ip(*words: str) -> str:
    """Run ``ip``; what it prints."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def await_links(links: Iterable[tuple[str, str]]) -> None:
    """Wait until links of namespaces are up: the system says so a moment after they were set up, and UCX opens none before."""
    waiting, end = list(links), time.monotonic() + 5
    while waiting := [(name, link) for name, link in waiting if "state UP" not in ip("-n", name, "link", "show", link)]:
        if time.monotonic() > end:
            raise SystemExit(f"links that do not come up within 5 s: {waiting}")
        time.sleep(0.05)
