"""Hosts of a job meet at the store: who belongs to it, what must agree, and what strangers can do (nothing)."""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ncclx_mpi.bootstrap import gate, hosts, record, store
from ncclx_mpi.bootstrap.patience import Gone, Patience
from ncclx_mpi.bootstrap.store import JobRefused
from ncclx_mpi.bootstrap.wire import MOST_BYTES, ProtocolError, Reader, pack
from ncclx_mpi.far_transport import chosen

TOKEN = secrets.token_hex(16).encode()
HERE = "127.0.0.1"


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as threads:
        yield threads


def start(pool, node, nnodes, token=TOKEN, seconds=60.0, where=HERE, nranks=2) -> Future[hosts.Hosts]:
    return pool.submit(hosts.meet, where, node, nnodes, nranks, token, Patience(seconds))


def fresh_token() -> bytes:
    return secrets.token_hex(16).encode()


def test_all_learn_the_same(pool):
    token = fresh_token()
    met = [start(pool, node, 3, token, nranks=node + 1) for node in (2, 0, 1)]
    found = [future.result() for future in met]
    assert [host.node for host in found] == [2, 0, 1]
    assert {host.size for host in found} == {6}
    assert {host.job for host in found} == {found[1].job} - {0}
    assert [list(found[0].ranks_of(node)) for node in range(3)] == [[0], [1, 2], [3, 4, 5]]
    assert [host.mesh.nodes for host in found] == [[0, 1], [1, 2], [0, 2]]
    assert found[0].machine_size == 6  # they share a kernel
    for host in found:
        host.mesh.close_here()


def test_missing_nodes_are_named(pool):
    token = fresh_token()
    came = start(pool, 3, 5, token)
    waited = start(pool, 0, 5, token, seconds=5.0)  # which is plenty for node 3 to come, on a busy machine too
    with pytest.raises(TimeoutError, match="node 0 waited 5 s, but nodes 1, 2, 4 of 5 did not come"):
        waited.result()
    with pytest.raises(JobRefused, match="nodes 1, 2, 4 of 5 did not come"):
        came.result()


def test_node_0_is_missing(pool):
    with pytest.raises(TimeoutError, match=r"node 1 of 2 waited 0.3 s for node 0 at 127.0.0.1, port one of \d+"):
        start(pool, 1, 2, fresh_token(), seconds=0.3).result()


@pytest.mark.parametrize(
    ("what", "value", "says"),
    [
        ("version", "0.0.1", "the version of ncclx_mpi is .* but 0.0.1 on node 1"),
        ("protocol", 99, "the protocol of ncclx_mpi is 1 .* but 99 on node 1"),
        ("byteorder", "middle", "the byte order is little .* but middle on node 1"),
        (
            "settings",
            {"far_transport": chosen(), "algo_bcast": "binomial"},
            "NCCLX_MPI_ALGO_BCAST is auto .* but binomial on node 1",
        ),
        (
            "settings",
            {"far_transport": chosen(), "UCX_TCP_RX_SEG_SIZE": "65536"},
            "UCX_TCP_RX_SEG_SIZE is 270336 .* but 65536 on node 1",
        ),
    ],
)
def test_the_odd_host_is_named_to_all(pool, monkeypatch, what, value, says):
    """Two of three agree: the third is the odd one, wherever it is counted."""
    token = fresh_token()
    real = record.Record.as_message
    monkeypatch.setattr(
        record.Record, "as_message", lambda self: {**real(self), **({what: value} if self.node == 1 else {})}, raising=True
    )
    for future in [start(pool, node, 3, token) for node in range(3)]:
        with pytest.raises(JobRefused, match=says):
            future.result()


def test_two_hosts_with_one_number(pool):
    token = fresh_token()
    futures = [start(pool, node, 3, token, seconds=20.0) for node in (0, 1, 1)]
    for future in futures:
        with pytest.raises(JobRefused, match="two hosts came as node 1"):
            future.result()


def test_another_number_of_nodes(pool):
    token = fresh_token()
    futures = [start(pool, 0, 3, token), start(pool, 1, 2, token)]
    for future in futures:
        with pytest.raises(JobRefused, match="the number of nodes is 3 on node 0 .* but 2 on node 1"):
            future.result()


def test_another_token_is_refused_and_harms_nobody(pool):
    port = free_port()
    where, token = f"{HERE}:{port}", fresh_token()
    first = start(pool, 0, 2, token, where=where)
    with pytest.raises(JobRefused, match="another token"):
        start(pool, 1, 2, fresh_token(), where=where).result()
    assert not first.done()
    second = start(pool, 1, 2, token, where=where)
    for future in (first, second):
        future.result().mesh.close_here()


def free_port() -> int:
    with socket.create_server((HERE, 0)) as server:
        return int(server.getsockname()[1])


GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\0" * 64,
    b"\xff" * 10_000,
    b"x",
    pack({"node": 1, "nnodes": 2, "nranks": 1}),
    gate.MAGIC + bytes(55),
]


def test_thousands_of_strangers_while_a_job_starts(pool, full):
    """A thousand, ten at full length. Some close at once, some say nothing or nonsense: the hosts meet all the same, and keep few of them."""
    port = free_port()
    where, token = f"{HERE}:{port}", fresh_token()
    first = start(pool, 0, 3, token, where=where)
    kept, most = [], []

    def bother(k):
        try:
            stranger = socket.create_connection((HERE, port), 10)
            stranger.sendall(GARBAGE[k % len(GARBAGE)])
        except OSError:  # it has been dropped already, or the hosts have met
            return
        kept.append(stranger) if k % 2 else stranger.close()

    wait_until_listening(port)
    bothering = [pool.submit(bother, k) for k in range(10_000 if full else 1000)]
    others = [start(pool, node, 3, token, where=where) for node in (1, 2)]
    for future in (first, *others):
        found = future.result()
        most.append(found.size)
        found.mesh.close_here()
    for future in bothering:
        future.result()
    for stranger in kept:
        stranger.close()
    assert most == [6, 6, 6]


def wait_until_listening(port):
    patience = Patience(60)
    while not patience.is_over:
        try:
            socket.create_connection((HERE, port), 1).close()
            return
        except ConnectionRefusedError:
            patience.check(0.005)
    raise AssertionError("node 0 never listened")


def test_strangers_are_bounded():
    selector = selectors.DefaultSelector()
    listener = gate.listen(HERE, 0)
    port = listener.getsockname()[1]
    gatekeeper = gate.Gate(listener, TOKEN, lambda _: pytest.fail("a stranger came in"))
    gatekeeper.register(selector)
    strangers = []
    for _ in range(200):
        strangers.append(socket.create_connection((HERE, port), 5))
        while ready := selector.select(0):
            for key, _ in ready:
                key.data(selector, key.fd)
        assert len(selector.get_map()) <= 65
    gatekeeper.close(selector)
    for stranger in strangers:
        stranger.close()


def test_a_proof_is_good_for_one_connection():
    """What a listener on the wire has seen of one host lets nobody in."""
    selector = selectors.DefaultSelector()
    welcomed = []
    listener = gate.listen(HERE, 0)
    address = listener.getsockname()[:2]
    gatekeeper = gate.Gate(listener, TOKEN, welcomed.append)
    gatekeeper.register(selector)
    is_over = threading.Event()

    def serve():
        while not is_over.is_set():
            for key, _ in selector.select(0.02):
                key.data(selector, key.fd)

    server = threading.Thread(target=serve)
    server.start()
    seen = []
    real = gate._proof
    gate._proof = lambda *words: seen.append(words) or real(*words)  # type: ignore[assignment]
    try:
        gate.connect(*address, TOKEN, Patience(30)).close()
    finally:
        gate._proof = real
    ours = next(words for words in seen if words[1] == b"client")
    with socket.create_connection(address, 30) as thief:
        thief.recv(100)
        thief.sendall(ours[3] + real(*ours))
        assert thief.recv(100) == b"-" + bytes(32)
    is_over.set()
    server.join()
    assert len(welcomed) == 1
    welcomed[0].close()
    gatekeeper.close(selector)


def test_a_server_without_the_token_is_not_believed():
    with socket.create_server((HERE, 0)) as impostor:
        answers = threading.Thread(target=_answer_as_an_impostor, args=(impostor,))
        answers.start()
        with pytest.raises(gate.Refused):
            gate.connect(*impostor.getsockname()[:2], TOKEN, Patience(30))
        answers.join()


def _answer_as_an_impostor(listener):
    connection, _ = listener.accept()
    with connection:
        connection.sendall(gate.MAGIC + bytes(32))
        proof = connection.recv(64)
        connection.sendall(b"+" + proof[32:])  # our own proof, sent back


def test_the_next_port_is_tried(pool):
    token = fresh_token()
    first = store.ports_of(token)[0]
    with socket.create_server((HERE, first)):
        futures = [start(pool, node, 2, token) for node in (0, 1)]
        for future in futures:
            future.result().mesh.close_here()


def test_a_port_that_is_taken_is_named(pool):
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"cannot listen at {HERE}, port {port}: Address already in use"):
            start(pool, 0, 2, where=f"{HERE}:{port}").result()


def test_a_caller_who_goes_ends_the_wait(pool):
    reader, writer = os.pipe()
    waiting = [pool.submit(hosts.meet, f"{HERE}:{free_port()}", node, 2, 1, TOKEN, Patience(60, reader)) for node in (0, 1)]
    os.close(writer)
    for future in waiting:
        with pytest.raises(Gone):
            future.result()
    os.close(reader)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\3{{{", b"\0\0\0\1\xff"])
def test_what_is_no_message(data):
    with pytest.raises(ProtocolError):
        Reader().feed(data)


def test_messages_in_pieces():
    data = pack({"a": 1}) + pack({"b": "x" * 1000})
    reader = Reader()
    assert [message for byte in data for message in reader.feed(bytes([byte]))] == [{"a": 1}, {"b": "x" * 1000}]
    with pytest.raises(ProtocolError, match="longer than"):
        pack({"a": "x" * MOST_BYTES})


def test_tokens(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN.decode()}\n")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="others may read"):
        hosts.token_from({}, str(path))
    path.chmod(0o600)
    assert hosts.token_from({}, str(path)) == TOKEN
    assert hosts.token_from({"NCCLX_MPI_TOKEN": TOKEN.decode()}) == TOKEN
    with pytest.raises(ValueError, match="by a token"):
        hosts.token_from({})
    with pytest.raises(ValueError, match="has 5 bytes"):
        hosts.token_from({"NCCLX_MPI_TOKEN": "guess"})
    with pytest.raises(ValueError, match="cannot be read"):
        hosts.token_from({}, str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("a", "a", 0), ("a:1", "a", 1), ("[::1]:5", "::1", 5), ("[::1]", "::1", 0), ("10.0.0.1:80", "10.0.0.1", 80)],
)
def test_addresses(text, host, port):
    found, ports = hosts.address(text, TOKEN)
    assert found == host
    assert list(ports) == ([port] if port else store.ports_of(TOKEN))


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:b", "a:0", "a:70000"])
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="is no address"):
        hosts.address(text, TOKEN)


@pytest.mark.parametrize(("node", "nnodes", "nranks"), [(2, 2, 1), (-1, 2, 1), (0, 0, 1), (0, 2, 0), (0, 100_000, 1)])
def test_numbers_that_cannot_be(node, nnodes, nranks):
    with pytest.raises(ValueError, match="node"):
        hosts.meet(HERE, node, nnodes, nranks, TOKEN, Patience(1))


def test_simulated_nodes_are_for_one_host(monkeypatch):
    monkeypatch.setenv("NCCLX_MPI_TOPOLOGY", "nolocal")
    with pytest.raises(ValueError, match="simulated nodes on one host"):
        hosts.meet(HERE, 0, 2, 2, TOKEN, Patience(1))
