"""What ``%%ranks`` is made of, part by part, in this process."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kernels import wait_until

from ncclx_mpi.launch import protocol
from ncclx_mpi.notebook import values
from ncclx_mpi.notebook.cell import CellFailed, CellInterrupted, Run
from ncclx_mpi.notebook.messages import Cell, Cleared, Raised, Result, Shown, Text, Written
from ncclx_mpi.notebook.post import Interrupts, Post, Stream
from ncclx_mpi.notebook.screen import Screen
from ncclx_mpi.notebook.session import NoRanks, Session


class Front:
    """Notes what is shown."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def publish(self, data: dict[str, Any], metadata: Any = None, *, transient: Any = None, update: bool = False) -> None:
        self.calls.append((data, transient, update))

    def clear_output(self, wait: bool = False) -> None:
        self.calls.append(wait)


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def screen(front: Front) -> Screen:
    return Screen(front)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    old = signal.getsignal(signal.SIGINT)
    yield Interrupts()
    signal.signal(signal.SIGINT, old)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_objects_arrive_whole_however_they_are_cut(ends: tuple[socket.socket, socket.socket]) -> None:
    inbox, sent = protocol.Inbox(ends[0]), [{"a": 1}, "x" * 1000, [None]]
    found = []
    for byte in b"".join(map(protocol.pack, sent)):
        ends[1].send(bytes([byte]))
        found += inbox.receive()
    assert found == sent
    assert inbox.receive() == [] and not inbox.is_ended
    ends[1].sendall(protocol.pack(1) + protocol.pack(2) + b"half")
    ends[1].close()
    assert inbox.receive() == [1, 2]
    assert inbox.receive() == [] and inbox.is_ended


def test_lines_are_tagged_and_begun_ones_are_not_continued_by_others(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    screen.take(1, Text(1, "half"))
    screen.take(0, Text(1, "whole\n"))
    screen.take(1, Text(1, " and half\n"))
    screen.take(2, Written(2, 1, b"begun"))
    screen.take(0, Shown({"text/plain": "<Figure>", "image/png": b""}, {}, {}, False))
    screen.finish()
    assert capsys.readouterr().out == "[0] whole\n[1] half and half\n[2] begun\n[0] <Figure>\n"


def test_tracebacks_wait_for_their_like_and_results_for_the_end(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (3, 1, 0):
        screen.take(rank, Result({"text/plain": "7\n8" if rank else "9"}, {}))
        screen.take(rank, Raised("Error\nhere"))
    screen.step()
    assert capsys.readouterr() == ("", "")
    screen.finish()
    assert capsys.readouterr() == ("[0] 9\n[1,3] 7\n[1,3] 8\n", "[0-1,3] Error\n[0-1,3] here\n")


def test_an_object_shown_again_is_changed_where_it_is(screen: Screen, front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    screen.take(0, Shown({"text/plain": "1"}, {}, {"display_id": "x"}, False))
    screen.take(0, Shown({"text/plain": "2"}, {}, {"display_id": "x"}, True))
    screen.take(0, Cleared(True))
    assert front.calls == [
        ({"text/plain": "1"}, {"display_id": "x"}, False),
        ({"text/plain": "2"}, {"display_id": "x"}, True),
        True,
    ]
    assert capsys.readouterr().out == "[0] 1\n"


def test_an_interrupt_waits_for_the_end_of_a_message(interrupts: Interrupts) -> None:
    reached = []
    interrupts.is_in_cell = True
    with pytest.raises(KeyboardInterrupt), interrupts.held():
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("inner")
        reached.append("outer")
    assert reached == ["inner", "outer"]
    interrupts.is_in_cell = False
    os.kill(os.getpid(), signal.SIGINT)  # nothing to interrupt


def test_an_interrupted_message_is_whole(interrupts: Interrupts, ends: tuple[socket.socket, socket.socket]) -> None:
    post, inbox, found = Post(ends[1], interrupts), protocol.Inbox(ends[0]), []
    interrupts.is_in_cell = True
    sender = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    reader = threading.Timer(0.3, lambda: wait_until(lambda: bool(found) or bool(found.extend(inbox.receive()))))
    sender.start()
    reader.start()
    with pytest.raises(KeyboardInterrupt):
        post.send(Text(1, "x" * 5_000_000))  # longer than what the connection holds: it waits for its reader
    reader.join()
    assert len(found[0].text) == 5_000_000


def test_streams_send_whole_lines_and_the_rest_at_the_end(
    interrupts: Interrupts, ends: tuple[socket.socket, socket.socket]
) -> None:
    stream, inbox = Stream(Post(ends[1], interrupts), 2), protocol.Inbox(ends[0])
    print("a", "b", sep="\n", end="", file=stream)
    assert inbox.receive() == [Text(2, "a\n")]
    stream.end_line()
    stream.end_line()
    assert inbox.receive() == [Text(2, "b"), Text(2, "\n")]
    assert stream.fileno() == 2 and stream.encoding == "utf-8"
    with pytest.raises(TypeError, match="must be str, not bytes"):
        stream.write(b"bytes")  # type: ignore[arg-type]


def test_variables_that_only_the_sender_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # no cloudpickle
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "Local", type("Local", (), {"__module__": "__main__"}), raising=False)
    data = values.pack({"a": main.Local(), "b": 1}, ["b", "a"], "here")  # type: ignore[attr-defined]
    monkeypatch.delattr(main, "Local")
    with pytest.raises(
        values.CannotBeSent, match="the variable 'a' there cannot be made here: .*; what a notebook defines itself is sent whole"
    ):
        values.unpack(data, "there")
    assert values.unpack(values.pack({"b": 1}, ["b"], ""), "") == {"b": 1}
    assert values.pack({}, [], "") == b"" and values.unpack(b"", "") == {}


def test_a_rank_waits_until_what_it_wrote_is_read() -> None:
    pytest.importorskip("IPython", reason="IPython is not installed")
    from ncclx_mpi.notebook.rank import _unread, _wait_until_taken

    reader, writer = os.pipe()
    os.write(writer, b"last words")
    slow = threading.Timer(0.2, os.read, (reader, 100))
    slow.start()
    _wait_until_taken([writer])
    assert _unread(writer) == 0
    slow.join()
    os.close(reader)
    _wait_until_taken([writer])  # nobody will: nothing to wait for
    os.close(writer)


@pytest.fixture
def session(tmp_path: Any) -> Iterator[Session]:
    pytest.importorskip("IPython", reason="IPython is not installed")
    found = Session(2, {"ipython_dir": str(tmp_path), "profile": str(tmp_path)})
    yield found
    found.kill()


def test_a_cell_without_a_notebook(session: Session, screen: Screen) -> None:
    pulled = Run(session, screen).run(Cell("import os\npid = os.getpid()", "", 1, pulled=("pid",)))
    found = [values.unpack(data, "")["pid"] for data in pulled]
    assert len(set(found)) == 2
    session.stop(lambda *_: None)
    assert session.ended is not None and session.ended.failures == []
    assert not session.is_alive


def test_the_end_of_the_process_that_forks_is_said(session: Session, screen: Screen) -> None:
    cell = Cell("import os, signal, time\nif os.getppid():\n    os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)", "", 1)
    with pytest.raises(CellFailed, match="the process that forks the ranks died|SIGKILL"):
        Run(session, screen).run(cell)


def test_ranks_that_do_not_start_are_said(session: Session, screen: Screen) -> None:
    os.kill(session._process.pid, signal.SIGKILL)
    with pytest.raises(NoRanks, match="the process that forks the ranks died"):
        Run(session, screen).run(Cell("1", "", 1))


def test_a_fork_of_the_kernel_lets_go_of_the_ranks_and_leaves_them_alone(session: Session, screen: Screen) -> None:
    Run(session, screen).run(Cell("kept = 1", "", 1))
    child = os.fork()
    if not child:
        session.stop(lambda *_: None)
        session.kill()
        os._exit(int(session.is_alive))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Run(session, screen).run(Cell("kept", "", 2)) == [b"", b""]


def test_a_start_that_takes_long_can_be_interrupted_and_leaves_nothing(session: Session, screen: Screen) -> None:
    os.kill(session._process.pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(CellInterrupted, match="the start of the ranks was stopped"):
        Run(session, screen).run(Cell("1", "", 1))
    assert session._process.poll() is not None and session.ended is not None
