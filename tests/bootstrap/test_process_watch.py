"""The end of processes is noticed, also of those that could not be watched at first."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time

import pytest

from ncclx_mpi.bootstrap import process_watch
from ncclx_mpi.bootstrap.process_watch import ProcessWatch, open_pidfd
from transports.shm.arena import start_time

WAITS = [sys.executable, "-c", "input()"]


@pytest.mark.parametrize("refusals", [0, 2])
def test_an_end_is_noticed(refusals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left, ended = [OSError(errno.EMFILE, "none left")] * refusals, threading.Event()

    def refused_first(pid: int, started: int) -> int | None:
        if left:
            raise left.pop()
        return open_pidfd(pid, started)

    monkeypatch.setattr(process_watch, "open_pidfd", refused_first)
    watch = ProcessWatch()
    try:
        with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as process:
            watch.add(process.pid, start_time(process.pid), ended.set)
            assert not ended.is_set()
        assert ended.wait(60)
    finally:
        watch.close()


def test_a_number_that_is_another_process_s_has_ended() -> None:
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as process:
        assert open_pidfd(process.pid, start_time(process.pid) - 1) is None
    assert open_pidfd(process.pid, 0) is None


def test_one_that_is_added_while_the_thread_sleeps() -> None:
    watch, ended = ProcessWatch(), threading.Event()
    try:
        with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as first, subprocess.Popen(WAITS, stdin=subprocess.PIPE) as second:
            watch.add(first.pid, None, lambda: None)
            while watch._unwatched:
                time.sleep(0.001)
            watch.add(second.pid, None, ended.set)
            second.communicate(b"\n")
            assert ended.wait(60)
            assert first.poll() is None
    finally:
        watch.close()
    assert not watch._thread.is_alive()
