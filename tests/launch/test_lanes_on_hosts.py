"""Large messages of ranks on two hosts, which are network namespaces here, by two links that join them."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import HOME
from spaces import add_link, needs_ucx

SHARED = """
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
half = size // 2
other = (rank + half) % size
data, room = np.arange(6_000_000) * (rank + 1), np.zeros(6_000_000, np.int64)


def exchange(count):
    room[:] = -1
    comm.Sendrecv(data[:count], other, recvbuf=room[:count], source=other)
    assert (room[:count] == np.arange(count) * (other + 1)).all() and (room[count:] == -1).all()


for count in (1, 30_000, 40_000, 1_000_000):
    exchange(count)
print("begun", flush=True)
for number in range(30):
    exchange(6_000_000 if number % 3 == 0 else number)
    total = comm.allreduce(number)
    assert total == number * size
print("ok", flush=True)
"""
PEERS = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"


@pytest.fixture
def lanes(spaces):
    """Two more links, each by its end on either host."""
    return [add_link(spaces, f"lane{number}", number) for number in (1, 2)]


@needs_ucx
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_link_that_goes_down_takes_nothing_along(on_hosts, lanes, cut):
    """Also that of small messages, the first; and none (0)."""
    job = on_hosts("-c", SHARED, NCCLX_MPI_LANES="lane1,lane2", NCCLX_MPI_LANE_LIMITS="rack=4x64K")
    assert job.read(2) == [["begun"] * 2] * 2
    if cut:
        lanes[cut - 1][1].set_link("down")
    ended = job.end()
    assert [(status, sorted(output.split())) for status, output, _ in ended] == [(0, ["ok", "ok"])] * 2, ended


@needs_ucx
def test_commands_of_the_page(on_hosts, lanes):
    """As they are printed, but for the names of the hosts, and the port."""
    docs = Path(HOME) / "docs"
    lines = [line.partition("#")[0].split() for line in (docs / "how_to" / "hosts.md").read_text().splitlines()]
    own = ["NCCLX_MPI_LANES=lane1,lane2", "ncclx", "run", "--nnodes", "2", "--node-rank"]
    printed = [line[len(own) :] for line in lines if line[: len(own)] == own]
    assert printed == [[str(node), "--rendezvous", "node1", "-n", "2", "hosts.py"] for node in range(2)]
    found = on_hosts(str(docs / "snippets" / "hosts.py"), NCCLX_MPI_LANES="lane1,lane2").end()
    assert [status for status, _, _ in found] == [0, 0], found
    assert found[0][1] == (docs / "snippets" / "hosts.out").read_text()


@needs_ucx
def test_the_matrix_of_transports_names_them(on_hosts, lanes):
    ended = on_hosts("-m", "ncclx_mpi", "info", "--peers", NCCLX_MPI_LANES="lane2,lane1").end()
    assert "lane 0: tcp/lane2; lane 1: lane1, not used yet" in "".join(output for _, output, _ in ended), ended


@needs_ucx
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NCCLX_MPI_LANES", "lane1,none9", "cannot start with the device none9 (`ncclx info --ucx` names those that there are)"),
        ("NCCLX_MPI_LANES", "lane1,,lane2", "NCCLX_MPI_LANES='lane1,,lane2' is no list of 1 to 16 devices"),
        ("NCCLX_MPI_LANE_LIMITS", "rack=4x100K", "'rack=4x100K' is not one of rack, zone, dc, world"),
        ("NCCLX_MPI_LANE_LIMITS", "rack=0", "'rack=0' is not one of rack, zone, dc, world with the segments of a lane, 1 to 63"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(on_hosts, lanes, name, value, said):
    ended = on_hosts("-c", PEERS, **{"NCCLX_MPI_LANES": "lane1,lane2", name: value}).end()
    assert all(status for status, _, _ in ended) and any(said in errors for _, _, errors in ended), ended
