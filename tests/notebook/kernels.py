"""A Jupyter kernel as a front end has it, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ncclx_mpi.observe.describe import reports
from ncclx_mpi.observe.view import ArenaView, arenas_of

_SECONDS = 90
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Shown:
    """What a cell showed: text by stream, bundles by MIME type, what happened in order, and the error that it ended with."""

    stdout: str = ""
    stderr: str = ""
    bundles: list[dict[str, Any]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    error: str = ""

    def take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            setattr(self, content["name"], getattr(self, content["name"]) + _COLOURS.sub("", content["text"]))
            self.order += content["text"].splitlines()
        elif kind in ("display_data", "execute_result"):
            self.bundles.append(content["data"])
            self.order += content["data"]
        elif kind == "error":
            self.error = "\n".join(_COLOURS.sub("", line) for line in content["traceback"])

    @property
    def lines(self) -> list[str]:
        return sorted(self.stdout.splitlines())


class Kernel:
    """A kernel that runs."""

    def __init__(self, folder: Path) -> None:
        manager = pytest.importorskip("jupyter_client.manager", reason="jupyter_client is not installed")
        pytest.importorskip("ipykernel", reason="ipykernel is not installed")
        environ = {**os.environ, "IPYTHONDIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder)}
        self.manager, self._client = manager.start_new_kernel(kernel_name="python3", env=environ, startup_timeout=_SECONDS)

    def run(self, source: str, meanwhile: Callable[[Shown], bool] = lambda _: True) -> Shown:
        """Run a cell. After each message `meanwhile` is called with what was shown, until it returns True."""
        shown = Shown()
        is_done = False

        def take(message: dict[str, Any]) -> None:
            nonlocal is_done
            shown.take(message)
            is_done = is_done or meanwhile(shown)

        self._client.execute_interactive(source, output_hook=take, timeout=_SECONDS)
        return shown

    def interrupt_when_waiting(self, count: int) -> Callable[[Shown], bool]:
        """A `meanwhile`: when so many ranks have printed ``process PID`` and are in an operation, interrupt the kernel."""

        def look(shown: Shown) -> bool:
            pids = [int(pid) for pid in re.findall(r"process (\d+)", shown.stdout)]
            if len(pids) < count:
                return False
            wait_until(lambda: all(is_waiting(pid) for pid in pids))
            self.manager.interrupt_kernel()
            return True

        return look

    def restart(self) -> None:
        """What a front end does for a kernel that has died, or that the user wants to be another."""
        self.manager.restart_kernel(now=True)
        self._client.wait_for_ready(timeout=_SECONDS)

    def close(self) -> None:
        self._client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@contextlib.contextmanager
def kernel_in(folder: Path) -> Iterator[Kernel]:
    """A kernel with the extension loaded."""
    kernel = Kernel(folder)
    try:
        loaded = kernel.run("%load_ext ncclx_mpi")
        assert not loaded.error
        yield kernel
    finally:
        kernel.close()


def is_waiting(pid: int) -> bool:
    """Whether a rank is in an operation, as seen from outside."""
    with contextlib.closing(ArenaView(arenas_of(pid)[0])) as view:
        found = next(report for report in reports([view], 1) if report.pid == pid)
    return bool(found.records) and found.records[-1].is_open


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
