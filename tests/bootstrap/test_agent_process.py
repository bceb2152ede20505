"""The agent of a host whose ranks something else has started: whom it lets in, and whose end it notices."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from ncclx_mpi.bootstrap.agent_process import AgentProcess, Order

RANK = """
import sys
from ncclx_mpi.bootstrap.handover import fetch
try:
    print(len(fetch(chr(0) + sys.argv[1], sys.argv[2], 0, 1, 60.0)), flush=True)
except RuntimeError as error:
    print(error, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def agent():
    """The agent of one host with one rank, not yet in its loop, and what the rank is told."""
    name, token, lifeline = f"\0ncclx_mpi-test-{secrets.token_hex(8)}", secrets.token_hex(16), os.pipe()
    found = AgentProcess(Order("127.0.0.1", 0, 1, 1, secrets.token_hex(16), 1, 0, name, token), lifeline[0])
    yield found, (name[1:], token)
    found._server.close()
    for fd in lifeline:
        os.close(fd)


def run(agent, told, monkeypatch, errors):
    """What a rank heard that came while descriptors of processes were refused so, and whether the agent went on while it lived."""
    refusals = list(errors)
    open_really = os.pidfd_open

    def refused_first(pid):
        if refusals:
            raise OSError(refusals[0], os.strerror(refusals.pop(0)))
        return open_really(pid)

    monkeypatch.setattr(os, "pidfd_open", refused_first)
    command = [sys.executable, "-c", RANK, *told]
    with ThreadPoolExecutor(1) as threads:
        loop = threads.submit(agent.run)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:
            assert rank.stdout is not None
            heard = rank.stdout.readline().strip()
            goes_on = not wait([loop], 0.3).done
        loop.result(60)
    assert not refusals
    return heard, goes_on


@pytest.mark.parametrize("errors", [(), (errno.EMFILE, errno.ENFILE, errno.EMFILE)], ids=["enough", "none left at first"])
def test_a_rank_is_let_in_when_its_end_can_be_noticed(agent, monkeypatch, errors):
    heard, goes_on = run(*agent, monkeypatch, errors)
    assert int(heard) > 0 and goes_on


def test_a_rank_that_cannot_be_watched_hears_why(agent, monkeypatch):
    heard, goes_on = run(*agent, monkeypatch, [errno.EPERM])
    assert "cannot watch over its ranks" in heard and "Operation not permitted" in heard
    assert not goes_on
