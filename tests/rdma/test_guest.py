"""Jobs of two nodes over real verbs: in a guest that has an RDMA device in software, whose counters prove by what way bytes went."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from numba_kernels import cache_files

HERE = Path(__file__).resolve().parent
COUNTERS = "/sys/class/infiniband/rxe0/ports/1/hw_counters"
NONE_HERE = 77
BOOT_AND_RUN_SECONDS = 280
RUN_IN_GUEST = {
    # rc_verbs, and ud_verbs to connect: neither shared memory nor TCP could carry a byte
    "UCX_TLS": "rc_v,self",
    "UCX_NET_DEVICES": "rxe0:1",
    # UCX before 1.19 drops what comes to a device that is not Mellanox's
    "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
    "UCX_UD_VERBS_TIMEOUT": "10s",
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
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What the jobs print in the guest. They run here before, by TCP: whatever they call is compiled then."""
    if not request.config.getoption("--full"):
        pytest.skip("a guest takes minutes: --full boots it")
    here = run(str(HERE / "jobs.py"), "/none", seconds=900, UCX_NET_DEVICES="lo")
    assert "a killed peer: True" in here.stdout, here.stdout + here.stderr
    cache = request.config.cache
    assert cache is not None
    out = tmp_path_factory.mktemp("out")
    variables = {**ANY_PROCESSOR, **RUN_IN_GUEST, cache_files.CACHE_VARIABLE: str(cache_files.cache_root())}
    words = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, str(HERE / "jobs.py"), COUNTERS]
    guest = [str(HERE / "guest.py"), "--folder", str(cache.mkdir("rdma-guest")), "--out", str(out)]
    done = run(*guest, "--limit", str(BOOT_AND_RUN_SECONDS), *words, seconds=1800)
    if done.returncode == NONE_HERE:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    yield done.stdout


@pytest.mark.parametrize("nranks", [2, 4])
def test_jobs_do_all_by_rdma(said: str, nranks: int) -> None:
    for rank in range(nranks):
        assert f"rank {rank} of {nranks} is done" in said
    found = re.search(rf"job {nranks} statuses \[(\d+), (\d+)\] counted sent_pkts=(\d+) rcvd_pkts=(\d+)", said)
    assert found is not None
    first, second, sent, received = map(int, found.groups())
    assert first == second == (0 if nranks == 2 else 137)
    assert min(sent, received) > MOVED[nranks] / 1024


def test_survivors_learn_of_a_killed_rank(said: str) -> None:
    assert sorted(re.findall(r"rank (\d) knows", said)) == ["0", "1", "2"]


def test_a_peer_that_is_killed_while_it_sends_is_found_dead_by_ucx_itself(said: str) -> None:
    assert "a killed peer: True" in said
