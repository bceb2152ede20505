"""``ncclx trace``, ``info`` and ``doctor``."""

from __future__ import annotations

import json

import pytest
from programs import lines_of, run, start

BLOCKED = (
    "from mpi4py import MPI; comm = MPI.COMM_WORLD; comm.Barrier(); print('ready', flush=True)\n"
    "import numpy, time\n"
    "if comm.rank == 2: time.sleep(600)\n"
    "comm.Recv(numpy.zeros(4), source=2, tag=9) if comm.rank else comm.Barrier()"
)


@pytest.fixture(scope="module")
def blocked():
    process = start("run", "-n", "3", "-c", BLOCKED)
    lines_of(process, 3)
    yield process.pid
    process.kill()
    process.communicate()


def _trace(job, *words):
    for _ in range(50):
        result = run("trace", str(job), *words)
        if "in recv" in result.stdout and "in barrier" in result.stdout:
            break
    return result.stdout


def test_each_rank_is_seen(blocked):
    zero, one, two = _trace(blocked).splitlines()
    assert zero.startswith("rank 0 (process ") and "in barrier, for " in zero
    assert "in recv from rank 2, tag 9, 32 bytes, for " in one
    assert "in no communication for " in two and "the last was barrier" in two


def test_any_rank_and_the_number_of_the_job_will_do(blocked):
    reports = json.loads(run("trace", str(blocked), "--json").stdout)
    assert [report["rank"] for report in reports] == [0, 1, 2]
    assert "in recv" in _trace(reports[2]["pid"])
    mine = next(job for job in json.loads(run("trace", "--json").stdout) if job["started_by"] == blocked)
    assert "in recv" in _trace(mine["job"][:12])
    assert f"process {blocked}:" in run("trace").stdout


def test_earlier_operations(blocked):
    assert "#0 barrier" in run("trace", str(blocked), "--records", "5").stdout


def test_unknown_job():
    result = run("trace", "nothing")
    assert result.returncode == 1 and "neither" in result.stderr


def test_info():
    facts = json.loads(run("run", "-n", "2", "-m", "ncclx_mpi", "info", "--json").stdout)
    assert facts["bootstrap"]["kind"] == "launcher" and facts["bootstrap"]["size"] == 2
    assert facts["transports"]["0"] == "self" and facts["transports"]["1"].startswith("shm")
    assert any("llvmlite" in path for path in facts["libraries"])
    assert all(line.startswith(("none: ", "0: sm_", "1: sm_")) for line in facts["gpus"])
    assert "bootstrap:\n  kind: singleton" in run("info").stdout


def test_doctor():
    result = run("doctor", timeout=180)
    assert result.returncode == 0, result.stdout
    assert "two ranks: two ranks met and ended" in result.stdout


def test_doctor_sees_a_shell_inside_slurm():
    result = run("doctor", SLURM_NTASKS="4", timeout=180)
    assert "srun python -m ncclx_mpi" in result.stdout


def test_help():
    assert "options:" in run("--help").stdout
    assert "--tag-output" in run("run", "--help").stdout
    assert run("--version").stdout.startswith("ncclx_mpi ")
    assert "Unknown option" in run("--nonsense").stderr
