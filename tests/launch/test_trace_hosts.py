"""``ncclx trace`` of a job on several hosts: the agents ask each other."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from programs import command, environment
from spaces import needs_spaces, two_spaces

from ncclx_mpi.bootstrap import lookout
from ncclx_mpi.bootstrap.lookout import Lookout


class TestLookout:
    """An agent's side in the loop of a thread, the other hosts by hand."""

    @pytest.fixture
    def serve(self, monkeypatch):
        monkeypatch.setattr(lookout, "_HOST_SECONDS", 0.5)
        ends = []

        def serve_one(job, start):
            found = Lookout(job, 0, lambda question: start(found, question))
            selector = selectors.DefaultSelector()
            found.register(selector)
            stop = threading.Event()

            def run():
                while not stop.is_set():
                    for key, _ in selector.select(0.05):
                        key.data(selector, key.fd)
                    if time.monotonic() >= found.due:
                        found.beat()

            thread = threading.Thread(target=run)
            thread.start()
            ends.append((stop, thread, found, selector))
            return found

        yield serve_one
        for stop, thread, found, selector in ends:
            stop.set()
            thread.join()
            found.close()
            selector.close()

    def test_answers_of_all_hosts_come_together(self, serve):
        def start(found, question):
            question.waiting.update({1, 2})
            assert (question.records, question.stacks) == (3, True)
            found.seen(2, question.number, {"rank": 5})
            found.seen(1, question.number, {"rank": 4})
            found.seen(1, question.number, None)
            found.seen(2, question.number + 1, {"rank": 9})  # of another question
            found.seen(7, question.number, {"rank": 8})  # nobody asked it
            found.seen(2, question.number, None)

        job = secrets.randbits(62)
        serve(job, start)
        assert lookout.ask(job, 3, True) == ([{"rank": 5}, {"rank": 4}], [])

    def test_a_host_that_says_nothing_is_missing(self, serve):
        def start(found, question):
            question.waiting.update({1, 2})
            found.seen(1, question.number, {"rank": 4})
            found.seen(1, question.number, None)

        job = secrets.randbits(62)
        serve(job, start)
        assert lookout.ask(job, 1, False) == ([{"rank": 4}], [2])

    def test_a_host_that_is_lost_is_not_waited_for(self, serve):
        def start(found, question):
            question.waiting.update({1})
            found.lost(1)

        job = secrets.randbits(62)
        serve(job, start)
        assert lookout.ask(job, 1, False) == ([], [])

    def test_an_agent_that_hangs_up(self):
        job = secrets.randbits(62)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            agent.bind(f"\0{lookout._name(job)}0")
            agent.listen()
            thread = threading.Thread(target=lambda: agent.accept()[0].close())
            thread.start()
            with pytest.raises(LookupError, match="does not answer"):
                lookout.ask(job, 1 << 40, False)
            thread.join()

    def test_there_is_no_agent(self):
        with pytest.raises(LookupError, match="another network namespace"):
            lookout.ask(secrets.randbits(62), 1, False)

    def test_no_more_records_than_a_message_holds(self, serve):
        job, seen = secrets.randbits(62), []
        serve(job, lambda _, question: seen.append(question.records))
        lookout.ask(job, 1 << 20, False)
        assert seen == [lookout.MOST_RECORDS]

    def test_nobody_who_says_something_else_is_answered(self, serve):
        job = secrets.randbits(62)
        serve(job, lambda *_: pytest.fail("that was no question"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.settimeout(10)
            other.connect(f"\0{lookout._name(job)}0")
            other.send(b"what is going on?")
            assert other.recv(1) == b""


HANG = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
print("met", flush=True)
comm.recv(source=(comm.rank + 1) % comm.size, tag=comm.rank)
"""


@pytest.fixture
def hung():
    """Two hosts that do not even see each other's processes, with two ranks each, of which every one waits; a process of the first one."""
    started = []
    with two_spaces() as spaces:
        env = environment(NCCLX_MPI_TOKEN=secrets.token_hex(16))
        for node, space in enumerate(spaces):
            own = ["--nnodes", "2", "--node-rank", str(node), "--rendezvous", f"{spaces[0].address}:29500"]
            alone = [*space.prefix, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
            line = [*alone, *command("run", "-n", "2", *own, "-c", HANG)]
            pipe = subprocess.PIPE
            started.append(subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True))
        try:
            for host in started:
                assert [host.stdout.readline() for _ in range(2)] == ["met\n"] * 2, host.stderr.read()
            yield started
        finally:
            for host in started:
                host.kill()
                host.communicate()


@needs_spaces
def test_ranks_of_all_hosts_are_shown(hung):
    (launcher,) = Path(f"/proc/{hung[0].pid}/task/{hung[0].pid}/children").read_text().split()
    inside = ["nsenter", "-t", launcher, "-p", "-m", "-n"]

    def trace(*words):
        done = subprocess.run(
            [*inside, *command("trace", "1", *words)], env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    lines = trace().splitlines()
    assert len(lines) == 4
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank} (process ")
        assert f"from rank {(rank + 1) % 4}, tag {rank}," in line
        assert (f" on {os.uname().nodename})" in line) == (rank >= 2)
    found = json.loads(trace("--json", "--records", "2"))
    assert [(rank["rank"], len(rank["records"]), bool(rank["host"])) for rank in found] == [
        (0, 2, False), (1, 2, False), (2, 2, True), (3, 2, True)
    ]  # fmt: skip
    trace("--stacks")
    for host in hung:
        text = ""
        while text.count("<string>") < 2:
            line = host.stderr.readline()
            assert line, text
            text += line
