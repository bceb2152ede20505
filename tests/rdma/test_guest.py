"""Jobs of two nodes over real verbs: in a guest that has an RDMA device in software, whose counters prove by what way bytes went.

The same jobs run on this machine before, over TCP, by the UCX of Debian that the guest has (1.13 in Debian 12).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from numba_kernels import cache_files

HERE = Path(__file__).resolve().parent
COUNTERS = "/sys/class/infiniband/rxe0/ports/1/hw_counters"
NONE_HERE = 77
GUEST_SECONDS = 600
"""On a machine that does nothing else it takes a fifth of that."""
RUN_IN_GUEST = {
    # rc_verbs, and ud_verbs to connect: neither shared memory nor TCP could carry a byte
    "UCX_TLS": "rc_v,self",
    "UCX_NET_DEVICES": "rxe0:1",
    # UCX before 1.19 drops what comes to a device that is not Mellanox's
    "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
}
ANY_PROCESSOR = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
"""What is compiled here must run on the guest's emulated processor, where compiling would take half an hour."""
MOVED = {2: 2 * 2_400_000, 4: 8 * 2_400_000}
"""Bytes of large messages alone that go between the nodes in a job of so many ranks; a packet of the device carries 1 KiB of them."""


def run(*command: str, seconds: float, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCLX_MPI_R", "NCCLX_MPI_J", "UCX_"))}
    env = {**kept, cache_files.CACHE_VARIABLE: str(cache_files.cache_root()), **ANY_PROCESSOR, **variables}
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    """What a guest consists of, which later runs find again."""
    if not request.config.getoption("--full"):
        pytest.skip("a guest takes minutes: --full boots it")
    cache = request.config.cache
    assert cache is not None
    found = cache.mkdir("rdma-guest")
    made = run(str(HERE / "guest.py"), "--folder", str(found), seconds=1800)
    if made.returncode == NONE_HERE:
        pytest.skip(made.stderr.strip().splitlines()[-1])
    assert made.returncode == 0, made.stderr
    return found


@pytest.fixture(scope="module")
def said_here(folder: Path) -> str:
    """What the jobs print on this machine, by TCP and Debian's UCX. What they call is compiled then for the guest, too."""
    libraries = folder / "extra" / "usr" / "lib" / "x86_64-linux-gnu"
    own = {
        "NCCLX_MPI_FAR_WINDOWS": "direct",
        "PYTHONPATH": str(HERE.parents[1]),
        "UCX_NET_DEVICES": "lo",
        "LD_LIBRARY_PATH": str(libraries),
        "NCCLX_MPI_UCX_LIBRARY": str(libraries / "libucp.so.0"),
    }
    done = run(str(HERE / "jobs.py"), "/none", seconds=1200, **own)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(folder: Path, said_here: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the jobs print in the guest."""
    out = tmp_path_factory.mktemp("out")
    variables = {**ANY_PROCESSOR, **RUN_IN_GUEST, cache_files.CACHE_VARIABLE: str(cache_files.cache_root())}
    variables["PYTHONPATH"] = str(HERE.parents[1])
    words = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, str(HERE / "jobs.py"), COUNTERS]
    guest = [str(HERE / "guest.py"), "--folder", str(folder), "--out", str(out)]
    done = run(*guest, "--limit", str(GUEST_SECONDS), *words, seconds=2 * GUEST_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(said: str, nranks: int) -> tuple[int, int]:
    """Whether a job has done all that it should. Returns how many packets the device has sent and received."""
    for rank in range(nranks):
        assert f"rank {rank} of {nranks} is done" in said
    found = re.search(rf"job {nranks} statuses \[(\d+), (\d+)\] counted sent_pkts=(\d+) rcvd_pkts=(\d+)", said)
    assert found is not None, said
    first, second, sent, received = map(int, found.groups())
    assert first == second == (0 if nranks == 2 else 137)
    return sent, received


def test_a_guest_can_be_made(folder: Path) -> None:
    """And most of what runs there: the other tests wait for neither, where this one ran before."""
    assert (folder / "kernel" / "image").exists()
    made = run("-m", "ncclx_mpi", "warm", "--quiet", "--first", seconds=1200)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("nranks", [2, 4])
def test_jobs_do_all_by_debians_ucx(said_here: str, nranks: int) -> None:
    check(said_here, nranks)


@pytest.mark.parametrize("nranks", [2, 4])
def test_jobs_do_all_by_rdma(said: str, nranks: int) -> None:
    assert min(check(said, nranks)) > MOVED[nranks] / 1024


@pytest.mark.parametrize("where", ["said", "said_here"])
def test_lanes_share_messages_out(request: pytest.FixtureRequest, where: str) -> None:
    """Over verbs the receiver's UCX gets each segment into the buffer."""
    found = re.findall(r"rank (\d) has talked by lanes", request.getfixturevalue(where))
    assert sorted(found) == ["0", "1"]


def test_survivors_learn_of_a_killed_rank(said: str) -> None:
    assert sorted(re.findall(r"rank (\d) knows", said)) == ["0", "1", "2"]


def test_a_peer_that_is_killed_while_it_sends_is_found_dead_by_ucx_itself(said: str) -> None:
    assert "a killed peer: True" in said


def test_a_target_that_is_killed_in_a_put_is_found_dead_by_ucx_itself(said: str) -> None:
    found = re.search(r"a killed target: True after ([0-9.]+) s", said)
    assert found is not None and float(found[1]) < 3
    assert "a put is complete before its target is killed: False" in said


def test_a_window_is_accessed_by_rdma_alone(said: str) -> None:
    """Its rank was stopped."""
    assert "a stopped rank was read and written" in said


@pytest.mark.parametrize("where", ["here", "in the guest"])
def test_words_are_combined_by_the_network_where_no_two_ranks_share_memory(said: str, said_here: str, where: str) -> None:
    found = re.findall(r"(\d) ranks combined words by (the network|requests)", said_here if where == "here" else said)
    assert sorted(found) == [("2", "the network"), ("4", "requests")]


@pytest.mark.parametrize("where", ["here", "in the guest"])
def test_memory_that_is_given_back_and_taken_anew_is_registered_anew(said: str, said_here: str, where: str) -> None:
    used = re.findall(r"has used (\d+) of 8 addresses again", said_here if where == "here" else said)
    assert len(used) == 6 and min(map(int, used)) > 0
