"""What a rank that is asked whether it has left a communicator answers."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ncclx_mpi.p2p.arrivals import arrive
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import PEER
from ncclx_mpi.p2p.leaving import GONE, MOST_LEFT, ask
from numba_kernels.jit import entry
from transports.messages import ASK, GOODBYE
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory

_TAKES_ANSWER = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)


class Asked:
    """A rank that asks itself."""

    def __init__(self) -> None:
        arena = Arena.create(1)
        arena.join(0)
        self.engine = Engine(arena, [SharedMemory(arena, 0)], 0, timeout=20)
        self._answers: list[tuple[int, ...]] = []
        self._function = _TAKES_ANSWER(self._take)
        self.engine.set_word("take_answer", ctypes.cast(self._function, ctypes.c_void_p).value or 0)

    def _take(self, engine: int, *answer: int) -> int:
        self._answers.append(answer)
        return 0

    def comm(self, context: int) -> NativeComm:
        return self.engine.new_comm(context, [0])

    def answer(self, context: int, number: int) -> int:
        peer = self.engine.word("peers")
        assert entry(arrive)(self.engine.address, peer, ASK, 0, 0, 0, context, number, 0) == 1
        self.engine.progress()
        source, its_context, its_number, word = self._answers.pop()
        assert (source, its_context, its_number, self._answers) == (0, context, number, [])
        return word


@pytest.fixture
def asked() -> Iterator[Asked]:
    yield Asked()


def test_who_has_not_left_says_so(asked: Asked) -> None:
    asked.engine.note_left(asked.comm(8), 3, is_given_up=False)
    assert asked.answer(4, 1) == 0
    assert asked.answer(8, 3) == 0, "the third collective was called before it left"


@pytest.mark.parametrize(("calls", "is_given_up", "word"), [(0, False, 1), (3, False, 4), (0, True, -1), (3, True, -4)])
def test_who_has_left_says_after_how_many_collectives(asked: Asked, calls: int, is_given_up: bool, word: int) -> None:
    asked.engine.note_left(asked.comm(4), calls, is_given_up)
    assert asked.answer(4, calls + 1) == word


def test_what_was_given_up_later_is_freed(asked: Asked) -> None:
    """Who gave the fifth up, and then freed it after seven calls, takes part in none of the three."""
    asked.engine.note_left(asked.comm(4), 4, is_given_up=True)
    asked.engine.note_left(asked.comm(4), 7, is_given_up=False)
    assert [asked.answer(4, number) for number in (4, 5, 8)] == [0, -5, -5]


def test_the_oldest_are_forgotten(asked: Asked) -> None:
    for turn in range(MOST_LEFT + 2):
        asked.engine.note_left(asked.comm(4 * turn), 0, is_given_up=False)
    assert [asked.answer(4 * turn, 1) for turn in (0, 1, 2, MOST_LEFT + 1)] == [0, 0, 1, 1]


def test_who_said_goodbye_is_not_asked(asked: Asked) -> None:
    engine, peer = asked.engine, asked.engine.word("peers")
    assert entry(ask)(engine.address, 0, 4, 1) == 0
    assert entry(arrive)(engine.address, peer, GOODBYE, 0, 0, 0, 0, 0, 0) == 1
    assert ctypes.c_int64.from_address(peer + PEER.gone).value == 1
    assert entry(ask)(engine.address, 0, 4, 1) == GONE


def test_forgotten_send_arrives_although_its_rank_has_ended() -> None:
    """A rank must not leave while a peer still needs what it announced."""
    program = (
        "import time; import numpy as np; from mpi4py import MPI; c = MPI.COMM_WORLD\n"
        "if c.rank == 0: c.Isend(np.full(3_000_000, 7.0), 1)\n"
        "else: time.sleep(0.5); x = np.zeros(3_000_000); c.Recv(x, 0); assert (x == 7).all(); print('all of it')\n"
    )
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "--timeout", "60", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr
