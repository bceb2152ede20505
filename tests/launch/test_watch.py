"""Only a process that has ended is dead: who cannot look says nothing about it."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time

import pytest

from ncclx_mpi.bootstrap.watch import Watch
from transports.shm.arena import Arena, start_time
from transports.shm.layout import ALIVE, CONTROL, DEAD


@pytest.fixture
def peer():
    """A process that is rank 1 of an arena in which we are rank 0."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def arena(peer):
    with contextlib.closing(Arena.create(1)) as other:
        other.load_death_notice()  # compiled now, if it is not in the cache
    arena = Arena.create(2)
    arena.join(0)
    control = arena.plan.control(1)
    for field, value in (("pid", peer.pid), ("start_time", start_time(peer.pid)), ("state", ALIVE)):
        arena.set_word(control + getattr(CONTROL, field), value)
    yield arena
    arena.close()


@contextlib.contextmanager
def no_descriptors():
    """Nothing can be opened in this process: all descriptors below its limit are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1 + max(map(int, os.listdir("/proc/self/fd"))), hard))
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(2))
    try:
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_dead_within(arena, seconds):
    end = time.monotonic() + seconds
    while arena.state(1) != DEAD and time.monotonic() < end:
        time.sleep(0.005)
    return arena.state(1) == DEAD


@pytest.fixture
def watch(arena):
    watch = Watch(arena, 0)
    yield watch
    watch.close()


def test_who_lives_is_not_dead_where_descriptors_run_out(arena, watch, peer):
    with no_descriptors():
        watch.start()
        assert not is_dead_within(arena, 0.2)
        peer.kill()
        peer.wait()
        assert is_dead_within(arena, 3)


def test_watching_begins_when_there_are_descriptors_again(arena, watch, peer):
    with no_descriptors():
        watch.start()
        time.sleep(0.1)
    before = len(os.listdir("/proc/self/fd"))
    end = time.monotonic() + 3
    while len(os.listdir("/proc/self/fd")) == before and time.monotonic() < end:
        time.sleep(0.01)
    assert arena.state(1) == ALIVE
    peer.kill()
    assert is_dead_within(arena, 0.5)


def test_no_start_time_is_told_apart_from_no_descriptor(peer):
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        start_time(peer.pid)
    peer.kill()
    peer.wait()
    assert start_time(peer.pid) == 0
