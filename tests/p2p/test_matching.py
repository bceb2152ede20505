"""The matching engine against a model: sends of a world of one to itself, in any order with receives and probes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import ANY_SOURCE, ANY_TAG, EAGER_COST, ERR_TRUNCATE, SYNCHRONOUS
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory

SIZES = [0, 1, 31, 32, 33, 200, 5_000, 16_319, 16_321, 40_000, 300_000]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    arena = Arena.create(1)
    arena.join(0)
    yield Engine(arena, [SharedMemory(arena, 0)], 0, timeout=20)


@dataclass
class Sent:
    context: int
    tag: int
    data: npt.NDArray[np.uint8]
    request: int


@dataclass
class Posted:
    context: int
    tag: int
    buffer: npt.NDArray[np.uint8]
    request: int
    expected: Sent | None = None


@dataclass
class Model:
    """Messages and receives in the order they were made; meets them as MPI's rules say."""

    unexpected: list[Sent] = field(default_factory=list)
    posted: list[Posted] = field(default_factory=list)

    def send(self, message: Sent) -> None:
        for receive in self.posted:
            if receive.context == message.context and receive.tag in (ANY_TAG, message.tag):
                receive.expected = message
                self.posted.remove(receive)
                return
        self.unexpected.append(message)

    def receive(self, receive: Posted) -> None:
        for message in self.unexpected:
            if receive.context == message.context and receive.tag in (ANY_TAG, message.tag):
                receive.expected = message
                self.unexpected.remove(message)
                return
        self.posted.append(receive)


def payload(serial: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """Bytes that tell which message they belong to."""
    return ((np.arange(nbytes) * 7 + serial * 13) % 251).astype(np.uint8)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "ssend", "recv", "recv", "probe"]),
        st.integers(0, 1),
        st.sampled_from([0, 1, 2, ANY_TAG]),
        st.sampled_from(SIZES),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_any_order_meets_as_the_model(engine: Engine, steps: list[tuple[str, int, int, int, bool]]) -> None:
    comms = [engine.new_comm(8 * k, [0]) for k in range(2)]
    model, everything = Model(), []
    for serial, (what, which, tag, nbytes, wild) in enumerate(steps):
        comm = comms[which]
        if what == "probe":
            check_probe(engine, comm, model, which, tag)
        elif what == "recv":
            buffer = np.zeros(max(SIZES) + 8, np.uint8)
            source = ANY_SOURCE if wild else 0
            request = engine.start_recv(comm, buffer.ctypes.data, max(SIZES), source, tag)
            receive = Posted(which, tag, buffer, request)
            everything.append(receive)
            model.receive(receive)
        elif tag != ANY_TAG:
            data = payload(serial, nbytes)
            mode = SYNCHRONOUS if what == "ssend" else 0
            message = Sent(which, tag, data, engine.start_send(comm, data.ctypes.data, nbytes, 0, tag, mode))
            engine.progress()
            model.send(message)
            everything.append(message)
    finish(engine, comms, model, everything)


def check_probe(engine: Engine, comm: NativeComm, model: Model, which: int, tag: int) -> None:
    found = engine.probe(comm, ANY_SOURCE, tag)
    expected = next((m for m in model.unexpected if m.context == which and tag in (ANY_TAG, m.tag)), None)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.source, found.tag, found.nbytes) == (0, expected.tag, expected.data.size)


def finish(engine: Engine, comms: list[NativeComm], model: Model, everything: list[Sent | Posted]) -> None:
    """Complete what met, take the rest back, and check every byte."""
    for receive in model.posted:
        engine.cancel(receive.request, engine.serial(receive.request))
    for message in list(model.unexpected):
        buffer = np.zeros(message.data.size + 1, np.uint8)
        comm = comms[message.context]
        request = engine.start_recv(comm, buffer.ctypes.data, message.data.size, 0, message.tag)
        late = Posted(message.context, message.tag, buffer, request, expected=message)
        everything.append(late)
    for item in everything:
        engine.wait(item.request, "test")
        result = engine.result(item.request)
        if isinstance(item, Posted):
            check_received(item, result.cancelled, result.tag, result.nbytes)
        engine.free(item.request)


def check_received(receive: Posted, cancelled: bool, tag: int, nbytes: int) -> None:
    assert cancelled == (receive.expected is None)
    if receive.expected is not None:
        data = receive.expected.data
        assert (tag, nbytes) == (receive.expected.tag, data.size)
        np.testing.assert_array_equal(receive.buffer[:nbytes], data)
        assert not receive.buffer[nbytes:].any()


@pytest.mark.parametrize("nbytes", [40, 16_000, 100_000])
def test_truncation_writes_no_byte_too_many(engine: Engine, nbytes: int) -> None:
    comm = engine.new_comm(64, [0])
    data, buffer = payload(1, nbytes), np.zeros(nbytes, np.uint8)
    sent = engine.start_send(comm, data.ctypes.data, nbytes, 0, 3)
    request = engine.start_recv(comm, buffer.ctypes.data, 33, 0, 3)
    engine.wait(request)
    engine.wait(sent)
    assert engine.result(request).error == ERR_TRUNCATE
    assert engine.result(request).nbytes == nbytes
    np.testing.assert_array_equal(buffer[:33], data[:33])
    assert not buffer[33:].any()


@pytest.mark.parametrize("nbytes", [10, 16_000, 100_000, 3_000_000])
def test_withdrawn_receive_is_never_written(engine: Engine, nbytes: int) -> None:
    comm = engine.new_comm(68, [0])
    data, buffer = payload(2, nbytes), np.zeros(nbytes, np.uint8)
    request = engine.start_recv(comm, buffer.ctypes.data, nbytes, 0, 3)
    engine.withdraw(request)
    sent = engine.start_send(comm, data.ctypes.data, nbytes, 0, 3)
    for _ in range(50):
        engine.progress()
    assert not buffer.any()
    again = engine.start_recv(comm, buffer.ctypes.data, nbytes, 0, 3)
    engine.wait(again)
    engine.wait(sent)
    np.testing.assert_array_equal(buffer, data)


def test_receive_withdrawn_in_the_middle_of_its_transfer(engine: Engine) -> None:
    comm, nbytes = engine.new_comm(72, [0]), 8 << 20
    data, buffer = payload(3, nbytes), np.zeros(nbytes, np.uint8)
    request = engine.start_recv(comm, buffer.ctypes.data, nbytes, 0, 3)
    sent = engine.start_send(comm, data.ctypes.data, nbytes, 0, 3)
    for _ in range(6):
        engine.progress()
    engine.withdraw(request)
    written = int(buffer.any()) and int(np.flatnonzero(buffer)[-1])
    assert 0 < written < nbytes - 1
    engine.wait(sent)
    assert not buffer[written + 1 :].any()


def test_cancelled_synchronous_send_is_gone(engine: Engine) -> None:
    comm, data = engine.new_comm(76, [0]), payload(4, 100)
    sent = engine.start_send(comm, data.ctypes.data, 100, 0, 3, SYNCHRONOUS)
    engine.progress()
    assert engine.probe(comm, 0, 3) is not None
    engine.cancel(sent, engine.serial(sent))
    engine.wait(sent)
    assert engine.result(sent).cancelled
    assert engine.probe(comm, 0, 3) is None


def test_flood_of_sends_without_receives(engine: Engine) -> None:
    """More than ring, credit and pipes hold: every send returns, and every byte arrives in order."""
    comm, count = engine.new_comm(80, [0]), 3_000
    data = [payload(k, 4_000) for k in range(count)]
    sent = [engine.start_send(comm, d.ctypes.data, d.size, 0, 1) for d in data]
    buffer = np.zeros(4_000, np.uint8)
    for k in range(count):
        request = engine.start_recv(comm, buffer.ctypes.data, 4_000, 0, 1)
        engine.wait(request)
        engine.free(request)
        np.testing.assert_array_equal(buffer, data[k])
    for request in sent:
        engine.wait(request)


def test_messages_count_where_they_have_no_bytes(engine: Engine) -> None:
    """What a receiver holds unasked is bounded in empty messages, too: behind the bound, one waits for its receive."""
    comm, most = engine.new_comm(88, [0]), 20
    before = engine.word("eager_credit")
    engine.set_word("eager_credit", most * EAGER_COST)
    try:
        sent = [engine.start_send(comm, 0, 0, 0, 1) for _ in range(most + 1)]
        assert [engine.done(request) for request in sent] == [True] * most + [False]
        for _ in sent:
            request = engine.start_recv(comm, 0, 0, 0, 1)
            engine.wait(request)
            engine.free(request)
        engine.wait_all(sent, "the messages")
        again = engine.start_send(comm, 0, 0, 0, 1)
        assert engine.done(again), "what has found its receive counts no more"
        engine.wait(engine.start_recv(comm, 0, 0, 0, 1))
    finally:
        engine.set_word("eager_credit", before)


def test_opposite_order_is_not_quadratic(engine: Engine) -> None:
    comm, count = engine.new_comm(84, [0]), 10_000
    values = np.arange(count, dtype=np.int64)
    for k in range(count):
        engine.free(engine.start_send(comm, values[k:].ctypes.data, 8, 0, k), values)
    out = np.zeros(1, np.int64)
    for k in reversed(range(count)):
        request = engine.start_recv(comm, out.ctypes.data, 8, 0, k)
        engine.wait(request)
        engine.free(request)
        assert out[0] == k


def test_a_wait_by_serial_ends_when_the_request_is_another_messages(engine: Engine) -> None:
    """Threads that share a request: one gives it back before the other waits, and its memory is the next message's."""
    comm, buffer = engine.new_comm(72, [0]), np.zeros(8, np.uint8)
    first = engine.start_recv(comm, buffer.ctypes.data, 8, 0, 3)
    serial = engine.serial(first)
    engine.withdraw(first)
    second = engine.start_recv(comm, buffer.ctypes.data, 8, 0, 4)
    assert second == first, "the pool gives requests in another order now: the test shows nothing"
    engine.await_request(first, "receive", serial)  # would wait for good
    engine.withdraw(second)


def test_deadline_says_who_waits(engine: Engine) -> None:
    from ncclx_mpi import errors

    comm, buffer = engine.new_comm(88, [0]), np.zeros(8, np.uint8)
    rate = engine.word("ticks_per_us")
    saved, engine.timeout = engine.timeout, 0.2
    engine.set_word("deadline_ticks", int(0.2e6 * rate))
    try:
        request = engine.start_recv(comm, buffer.ctypes.data, 8, 0, 5)
        with pytest.raises(errors.Exception) as caught:
            engine.wait(request, "Recv(source=0, tag=5)")
    finally:
        engine.timeout = saved
        engine.set_word("deadline_ticks", int((saved or 0) * 1e6 * rate))
    assert caught.value.Get_error_class() == errors.ERR_PENDING
    assert "Recv(source=0, tag=5)" in str(caught.value) and "rank 0: in recv" in str(caught.value)
