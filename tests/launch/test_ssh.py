"""``ncclx run --hosts`` by a real ssh, between hosts that are network namespaces."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
import shells
import spaces
from programs import HOME, all_gone, command, environment

from numba_kernels import cache_files

REASON = spaces.why_not() or shells.why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
SAY = (
    "import os, sys; rank = os.environ['NCCLX_MPI_RANK']; print(rank, os.environ['GIVEN'], *sys.argv[1:])\n"
    "sys.exit(9 if rank == '3' else 0)"
)
SHOW_AND_SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Starts a job on both hosts from the first one; what still runs at the end is killed."""
    jobs: list[subprocess.Popen[str]] = []
    folder = tmp_path_factory.mktemp("ssh")

    with spaces.two_spaces() as both, shells.servers(both, folder, f"PYTHONPATH={HOME}") as rsh:

        def start_job(*words: str, **variables: str) -> subprocess.Popen[str]:
            env = environment(NCCLX_MPI_RSH=rsh, NCCLX_MPI_CACHE_DIR=str(cache_files.cache_root()), **variables)
            line = [*both[0].prefix, *command("run", "--hosts", ",".join(f"{space.address}:2" for space in both), *words)]
            pipe = subprocess.PIPE
            jobs.append(subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True))
            return jobs[-1]

        yield start_job
        for job in jobs:
            job.kill()
            job.communicate()


def test_output_and_status(start):
    """No quoting: words reach the program as they are, whatever shell there is."""
    job = start("-x", "GIVEN=a $HOME", "-c", SAY, "two words", "'\"$(id)")
    stdout, stderr = job.communicate(timeout=120)
    assert job.returncode == 9, stderr
    assert sorted(stdout.splitlines()) == [f"{rank} a $HOME two words '\"$(id)" for rank in range(4)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_caller_ends(start, number):
    job = start("-c", SHOW_AND_SLEEP)
    pids = [int(job.stdout.readline()) for _ in range(4)]
    job.send_signal(number)
    job.communicate(timeout=120)
    assert job.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert all_gone(pids, 30)


def test_a_key_that_is_not_let_in(start, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    options = f"-o BatchMode=yes -o UserKnownHostsFile={tmp_path}/known -o StrictHostKeyChecking=accept-new"
    job = start("--rsh", f"ssh -F none -o IdentitiesOnly=yes -i {tmp_path}/other {options}", "-c", "pass")
    _, stderr = job.communicate(timeout=120)
    assert job.returncode == 255
    assert "Permission denied" in stderr and "ended with status 255; the others are ended" in stderr
