"""``ncclx trace``, ``info`` and ``doctor``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from programs import environment, lines_of, run, start

from ncclx_mpi.cli import doctor, trace
from ncclx_mpi.observe import view

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
    assert facts["transports"]["0"].startswith("self") and facts["transports"]["1"].startswith("shm")
    assert any("multiarray_umath" in path for path in facts["libraries"])
    assert all(line.startswith(("none: ", "0: sm_", "1: sm_")) for line in facts["gpus"])
    assert "bootstrap:\n  kind: singleton" in run("info").stdout


def test_doctor():
    result = run("doctor", timeout=180)
    assert result.returncode == 0, result.stdout
    assert "two ranks: two ranks met and ended" in result.stdout


def test_a_job_that_ends_while_it_is_looked_at_is_none(monkeypatch, capsys):
    gone = view.Found(["/proc/0/fd/4"], os.getpid(), 0xFEED, 2)
    monkeypatch.setattr(view, "jobs", lambda: [gone])
    monkeypatch.setattr(trace, "jobs", lambda: [gone])
    assert doctor.check_leftovers().is_good
    with pytest.raises(LookupError, match="neither a process"):
        trace._open("feed")


def test_doctor_sees_a_shell_inside_slurm():
    result = run("doctor", SLURM_NTASKS="4", timeout=180)
    assert "srun python -m ncclx_mpi" in result.stdout


def test_help():
    assert "options:" in run("--help").stdout
    assert "--tag-output" in run("run", "--help").stdout
    assert run("--version").stdout.startswith("ncclx_mpi ")
    assert "Unknown option" in run("--nonsense").stderr


WHERE = "from ncclx_mpi.cli.doctor import check_cache; found = check_cache(); print(found.is_good, found.text, '|', found.fix)"


@pytest.mark.parametrize("trouble", ["NCCLX_MPI_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
def test_doctor_names_what_keeps_the_cache_from_its_folder(tmp_path, trouble):
    (tmp_path / "file").write_text("")
    places = {
        "NCCLX_MPI_CACHE_DIR": "",
        "XDG_CACHE_HOME": "",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        trouble: str(tmp_path / "file"),
    }
    done = subprocess.run([sys.executable, "-c", WHERE], env=environment(**places), capture_output=True, text=True, check=True)
    named = "the home" if trouble == "HOME" else f"{trouble}={tmp_path}/file"
    inner = {"NCCLX_MPI_CACHE_DIR": "", "XDG_CACHE_HOME": "/ncclx_mpi", "HOME": "/.cache/ncclx_mpi"}[trouble]
    used = f"{tmp_path}/.cache/ncclx_mpi" if trouble == "NCCLX_MPI_CACHE_DIR" else f"{tmp_path}/ncclx_mpi-{os.getuid()}"
    why = "cannot be made: Not a directory" if inner else "is no folder"
    assert done.stdout.startswith(f"None {named}: {tmp_path}/file{inner} {why}; ")
    assert done.stdout.endswith(
        f"compiled code goes to {used} | set NCCLX_MPI_CACHE_DIR to a folder that lasts and that you can write\n"
    )


def test_doctor_says_how_to_close_the_cache_to_others(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o770)
    env = environment(NCCLX_MPI_CACHE_DIR=str(folder), XDG_CACHE_HOME=str(tmp_path / "xdg"))
    done = subprocess.run([sys.executable, "-c", WHERE], env=env, capture_output=True, text=True, check=True)
    assert f"{folder} can be written by others (mode 0770); compiled code goes to {tmp_path}/xdg/ncclx_mpi" in done.stdout
    assert done.stdout.endswith(f"| chmod go-w {folder}\n")
