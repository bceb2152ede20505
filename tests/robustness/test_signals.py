"""Ctrl-C, forks, and what the launching environment may hold."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import ncclx_mpi
from ncclx_mpi.operations import background_progress
from ncclx_mpi.operations.transfer import Transfer
from ncclx_mpi.p2p.engine import Engine

PACKAGE = os.path.dirname(ncclx_mpi.__file__)


def interrupt_after(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("nbytes", [8, 1_000_000])
def test_interrupted_receive_gives_the_buffer_back(comm, nbytes):
    """After Ctrl-C in Recv a late message leaves the buffer alone, and is there for the next receive."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if comm.rank == 0:
        buffer = np.full(nbytes, 7, dtype="u1")
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            interrupt_after(0.3)
            comm.Recv(buffer, source=1, tag=5)
        assert time.monotonic() - begun < 2
        comm.send("interrupted", dest=1, tag=6)
        comm.recv(source=1, tag=8)
        assert (buffer == 7).all()
        again = np.zeros(nbytes, dtype="u1")
        comm.Recv(again, source=1, tag=5)
        assert (again == 9).all()
        assert (buffer == 7).all()
    else:
        comm.recv(source=0, tag=6)
        request = comm.Isend(np.full(nbytes, 9, dtype="u1"), dest=0, tag=5)
        comm.send("sent", dest=0, tag=8)
        request.Wait()


@pytest.mark.ranks(2, timeout=60)
def test_interrupted_collective_raises_at_once(comm):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    duplicate = comm.Dup()
    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            interrupt_after(0.3)
            duplicate.Barrier()
    comm.Barrier()


@pytest.mark.ranks(2, timeout=60)
def test_fork_and_subprocess_inside_a_rank(comm):
    from ncclx_mpi import MPI

    done = subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, text=True)
    assert done.stdout == "child\n"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            comm.Barrier()
        except MPI.Exception:
            status = 0  # a fork of a rank is told that it is none
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert comm.allreduce(1) == 2


@pytest.mark.ranks(4, timeout=60)
def test_random_numbers_differ_by_rank(comm):
    import random

    drawn = comm.allgather((np.random.random(), random.random()))
    assert len({pair[0] for pair in drawn}) == comm.size
    assert len({pair[1] for pair in drawn}) == comm.size


@pytest.mark.ranks(2, timeout=60)
def test_nothing_is_in_dev_shm(comm):
    """So a container's 64 MB of it do not matter."""
    everyone = np.empty((2, 3_000_000))
    comm.Allgather(np.full(3_000_000, comm.rank + 1.0), everyone)
    assert everyone[1, -1] == 2
    with open("/proc/self/maps") as maps:
        assert not [line for line in maps if "/dev/shm" in line]


@pytest.mark.parametrize("variables", [{"NUMBA_DISABLE_JIT": "1"}, {"NUMBA_BOUNDSCHECK": "1"}, {"NUMBA_OPT": "0"}], ids=str)
def test_numba_settings_of_the_user_are_the_users(variables):
    code = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(2) == 4"
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "--timeout", "100", "-c", code]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


class Alarm(Exception):
    pass


def alarm_in_a_wait(thread):
    """Ring once that thread waits for a request: after a time, it might not have come so far on a busy machine."""
    end = time.monotonic() + 60
    while sys._current_frames()[thread].f_code is not Engine.await_request.__code__ and time.monotonic() < end:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGALRM)


def ring(number, frame):
    raise Alarm


def alarm_after(seconds):
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.12])
@pytest.mark.parametrize(
    "call", ["Recv", "Sendrecv", "Recv of a list", "Recv of a column", "Recv of a known column", "Sendrecv of known columns"]
)
def test_whenever_a_receive_is_interrupted_its_buffer_is_the_callers_again(comm, call, seconds):
    """Also in the first moments of the wait, when the call has not left compiled code yet."""
    from ncclx_mpi import MPI
    from ncclx_mpi.api import fast

    if comm.rank == 0:
        column = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()
        buffer, again = np.zeros(8), np.zeros(4)
        calls = {
            "Recv": lambda: comm.Recv(buffer, 1, 5),
            "Sendrecv": lambda: comm.Sendrecv(np.ones(1), 1, 3, buffer, 1, 5),
            "Recv of a list": lambda: comm.Recv([buffer, MPI.DOUBLE], 1, 5),
            "Recv of a column": lambda: comm.Recv([buffer, 1, column], 1, 5),
            "Recv of a known column": lambda: comm.Recv([buffer, 1, column], 1, 5),
            "Sendrecv of known columns": lambda: comm.Sendrecv([buffer, 1, column], 1, 3, [buffer, 1, column], 1, 5),
        }
        if "known" in call:
            fast.meet(column._state)
            fast.meet(column._state)
        calls[call]()  # what is done at a first call takes longer than a millisecond
        assert buffer.sum() == 36
        buffer[:] = 0
        with pytest.raises(Alarm):
            alarm_after(seconds)
            calls[call]()
        comm.send("interrupted", dest=1, tag=6)
        comm.recv(source=1, tag=8)
        assert comm.Iprobe(1, 5) and not buffer.any(), "the receive was still posted"
        comm.Recv(again, source=1, tag=5)
        assert (again == 9).all() and not buffer.any()
    else:
        comm.Send(np.full(4, 9.0), dest=0, tag=5)
        comm.recv(source=0, tag=6)
        comm.Send(np.full(4, 9.0), dest=0, tag=5)
        comm.send("sent", dest=0, tag=8)


@pytest.mark.ranks(1, timeout=60)
@pytest.mark.parametrize("call", ["Recv", "Sendrecv", "Sendrecv_replace", "Message.Recv"])
def test_wherever_a_receive_is_interrupted_nothing_is_received_any_more(comm, call):
    """The exception comes once before each instruction of the call, from the start of the receive to its wait."""
    from ncclx_mpi import MPI

    column = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()
    buffer, sent = np.zeros(8), np.full(4, 9.0)
    into = [buffer, 1, 0, column]  # a form that goes through Python
    calls = {
        "Recv": lambda: comm.Recv(into, 0, 5),
        "Sendrecv": lambda: comm.Sendrecv(np.ones(1), 0, 3, into, 0, 5),
        "Sendrecv_replace": lambda: comm.Sendrecv_replace(into, 0, 3, 0, 5),
        "Message.Recv": lambda: message.Recv(into),
    }

    def interrupt(step):
        nonlocal message
        if call == "Message.Recv":
            comm.Send(sent, 0, 5)
            message = comm.Mprobe(0, 5)
        waits = []
        with pytest.raises(Alarm), alarm_behind_the_start(step, waits):
            calls[call]()
        background_progress.step()
        comm.Send(sent, 0, 5)
        assert comm.Iprobe(0, 5) and not buffer.any(), f"the receive was still posted after instruction {step}"
        comm.Recv(np.zeros(4), 0, 5)
        while comm.Iprobe(0, 3):
            comm.Recv(np.zeros(4), 0, 3)
        return bool(waits)

    message, step = None, 0
    assert interrupt(1 << 30)  # Python 3.12 tells of the instructions of a function from its second call on
    while not interrupt(step):
        step += 1
    assert step > 20


@contextlib.contextmanager
def alarm_behind_the_start(nth, waits):
    """Raise :class:`Alarm` before the `nth` instruction of the package from the start of a receive on, or where its wait begins: noted."""
    left, starts = nth, [Transfer.receive.__code__, Transfer.receive_matched.__code__]
    is_started = False

    def trace(frame, event, argument):
        nonlocal left, is_started
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        is_started = is_started or frame.f_code in starts
        if event == "call" and frame.f_code is Engine.await_request.__code__:
            waits.append(nth)
            raise Alarm
        if event == "opcode" and is_started:
            left -= 1
            if left < 0:
                raise Alarm
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("call", ["Sendrecv", "Isendrecv", "Waitall"])
def test_an_exchange_interrupted_in_its_send_receives_nothing_any_more(comm, call):
    """All halves of what was waited for are withdrawn, not only the one that the wait was in."""
    from ncclx_mpi import MPI

    if comm.rank == 0:
        column = MPI.DOUBLE.Create_vector(300_000, 1, 2).Commit()
        buffer, again, sent = np.zeros(4), np.zeros(4), [np.ones(600_000), 1, column]
        calls = {
            "Sendrecv": lambda: comm.Sendrecv(sent, 1, 3, buffer, 1, 5),
            "Isendrecv": lambda: comm.Isendrecv(sent, 1, 3, buffer, 1, 5).Wait(),
            "Waitall": lambda: MPI.Request.Waitall([comm.Isendrecv(sent, 1, 3, buffer, 1, 5)]),
        }
        signal.signal(signal.SIGALRM, ring)
        ringing = threading.Thread(target=alarm_in_a_wait, args=(threading.get_ident(),))
        ringing.start()
        with pytest.raises(Alarm):
            calls[call]()
        ringing.join()
        comm.send("interrupted", dest=1, tag=6)
        comm.recv(source=1, tag=8)
        assert comm.Iprobe(1, 5) and not buffer.any(), "the receive was still posted"
        comm.Recv(again, source=1, tag=5)
        assert (again == 9).all() and not buffer.any()
    else:
        comm.recv(source=0, tag=6)
        comm.Send(np.full(4, 9.0), dest=0, tag=5)
        comm.send("sent", dest=0, tag=8)
        comm.Recv(np.zeros(300_000), source=0, tag=3)


@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.12])
@pytest.mark.parametrize("call", ["Send", "Ssend", "Sendrecv", "ssend", "send"])
def test_whenever_a_send_is_interrupted_its_buffer_lives_until_it_is_read(comm, call, seconds):
    """A send that was interrupted goes on: its memory is kept, whoever lets go of it, and arrives as it was."""
    import gc

    if comm.rank == 0:

        def run():
            data = np.arange(600_000.0)
            calls = {
                "Send": lambda: comm.Send(data, 1, 5),
                "Ssend": lambda: comm.Ssend(data, 1, 5),
                "Sendrecv": lambda: comm.Sendrecv(data, 1, 5, np.zeros(1), 1, 4),
                "ssend": lambda: comm.ssend(frozenset(range(100)), 1, 5),
                "send": lambda: comm.send([data, "x"], 1, 5),
            }
            with pytest.raises(Alarm):
                alarm_after(seconds)
                calls[call]()

        run()
        gc.collect()
        rubbish = [np.full(600_000, -1.0) for _ in range(3)]
        comm.send("interrupted", dest=1, tag=6)
        comm.recv(source=1, tag=8)
        del rubbish
    else:
        comm.recv(source=0, tag=6)
        was_sent = comm.Iprobe(0, 5)  # messages arrive in order: what is not there now never left
        assert was_sent or seconds < 0.1
        if not was_sent:
            pass  # the alarm rang before the call had begun, as it may on a busy machine
        elif call == "ssend":
            assert comm.recv(source=0, tag=5) == frozenset(range(100))
        elif call == "send":
            assert (comm.recv(source=0, tag=5)[0] == np.arange(600_000.0)).all()
        else:
            data = np.zeros(600_000)
            comm.Recv(data, source=0, tag=5)
            assert (data == np.arange(600_000.0)).all()
        comm.send("received", dest=0, tag=8)


@pytest.mark.ranks(2, timeout=60)
@pytest.mark.parametrize("nth", range(1, 4))
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_object_interrupted_between_its_parts_is_sent_whole_or_not_at_all(comm, nth, when, monkeypatch):
    """Two arrays and what says where they belong: three messages, and an exception before or after each."""
    from ncclx_mpi.operations import transfer

    begin, calls = transfer.Transfer.send, []

    def interrupted(self, *arguments):
        calls.append(arguments)
        if len(calls) == nth and when == "before":
            raise Alarm
        begin(self, *arguments)
        if len(calls) == nth:
            raise Alarm
        return self

    arrays = [np.arange(600_000.0), np.arange(30_000)]
    if comm.rank == 0:
        with monkeypatch.context() as patched, pytest.raises(Alarm):
            patched.setattr(transfer.Transfer, "send", interrupted)
            comm.send(arrays, 1, 5)
        comm.send("interrupted", 1, 6)
    else:
        comm.recv(source=0, tag=6)
        assert comm.Iprobe(0, 5) == (nth == 3 and when == "after")
        if nth == 3 and when == "after":
            assert all(map(np.array_equal, comm.recv(source=0, tag=5), arrays))
    assert comm.sendrecv(arrays, 1 - comm.rank, source=1 - comm.rank)[0][-1] == 599_999
