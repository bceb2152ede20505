"""``NCCLX_MPI_TUNING_FILE``: ranks of a job choose by one table, or are told that they do not have the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import command, environment, run, run_code

from ncclx_mpi import tuning
from ncclx_mpi.algorithms import PLAN, Case, choose, rows_of
from ncclx_mpi.nodes import nodes_of

ROWS = """
import numpy as np
from ncclx_mpi.collectives import select
from mpi4py import MPI
made, function_of = [], select.function_of
select.function_of = lambda row: made.append((row.collective, row.name)) or function_of(row)
comm = MPI.COMM_WORLD
comm.Allreduce(np.ones(2), np.ones(2))
comm.Split(comm.rank // 3).Allreduce(np.ones(2), np.ones(2))
if comm.rank == 0:
    print(*(name for collective, name in made if collective == "allreduce"))
"""
DIFFERENT = """
import os
os.environ[{name!r}] = {values}[int(os.environ["NCCLX_MPI_RANK"]) // 2]
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
"""


def table(path: Path, name: str, nodes: tuple[int, ...] = (0, 0, 1, 1)) -> str:
    path.write_text(tuning.text({nodes: {"allreduce": [(8, {name: 1.5, "recursive_doubling": 9.0})]}}, {}))
    return str(path)


def test_a_program_runs_by_the_table(tmp_path: Path) -> None:
    """Communicators of its layout do, and others by the model."""
    named = table(tmp_path / "table.json", "ring")
    done = run_code(4, ROWS, NCCLX_MPI_TOPOLOGY="vnode:2", NCCLX_MPI_TUNING_FILE=named)
    assert (done.stdout.split(), done.returncode) == (["ring", "leaders"], 0), done.stderr


def test_a_table_is_made_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    words = ("allreduce", "-b", "8", "--rounds", "2", "--seconds", "0.001", "--blocks", "1")
    done = run("run", "-n", "4", *command("bench", "--tune", str(path), *words), NCCLX_MPI_TOPOLOGY="vnode:2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("4 ranks on 2 nodes") and lines[2].startswith("allreduce 8 B") and "regret of the table" in lines[-2]
    ((size, times),) = tuning.read(path).layouts[0, 0, 1, 1]["allreduce"]
    assert size == 8 and times.keys() == {row.name for row in rows_of("allreduce") if row.kind == PLAN}
    best = choose("allreduce", Case(4, 8, 4, nodes=nodes_of((0, 0, 1, 1)), table=tuning.read(path))).name
    variables = {"NCCLX_MPI_TUNING_FILE": str(path)}
    shown = run("info", "--plans", "allreduce", "--ranks", "4", "--nodes", "2", "--bytes", "8", **variables).stdout.splitlines()
    assert next(line.split()[1] for line in shown if line.startswith("* ")) == best and "measured, us" in shown[2]
    assert shown[-1] == f"* is the choice of the tuning table {path}"
    shown = run("info", "--plans", "allreduce", "--ranks", "6", "--nodes", "2", **variables).stdout.splitlines()
    assert shown[-1] == f"the model chooses: nothing of these ranks is in the tuning table {path}" and "measured" not in shown[2]


def test_info_says_what_the_plans_of_a_job_come_from(tmp_path: Path) -> None:
    named = table(tmp_path / "table.json", "ring", (0, 1))
    done = run("run", "-n", "2", *command("info", "--tuning"), NCCLX_MPI_TOPOLOGY="nolocal", NCCLX_MPI_TUNING_FILE=named)
    assert f"allreduce 8 B: ring, 1.5 us in the tuning table {named}" in done.stdout.splitlines(), done.stderr
    assert "bcast 64 KiB: " in done.stdout and "as the model has it" in done.stdout


def test_a_table_is_made_by_the_ranks_of_a_job(tmp_path: Path) -> None:
    done = run("bench", "--tune", str(tmp_path / "table.json"))
    assert done.returncode == 2 and "`ncclx run -n 4 ncclx bench --tune FILE`" in done.stderr
    other = tmp_path / "results.json"
    other.write_text('{"runs": []}')
    done = run("run", "-n", "2", *command("bench", "--tune", str(other)))
    assert done.returncode == 2 and done.stderr.count("it is no tuning table") == 1 and other.read_text() == '{"runs": []}'
    done = run("bench", "--tune", "table.json", "--regret")
    assert done.returncode == 2 and "--tune measures the job in which it runs" in done.stderr


@pytest.mark.parametrize("topology", ["machine", "vnode:2"])
def test_ranks_of_different_tables_are_told(tmp_path: Path, topology: str) -> None:
    names = [table(tmp_path / f"{name}.json", name) for name in ("ring", "leaders")]
    code = DIFFERENT.format(name="NCCLX_MPI_TUNING_FILE", values=names)
    done = run_code(4, code, NCCLX_MPI_TOPOLOGY=topology)
    assert done.returncode != 0 and "NCCLX_MPI_TUNING_FILE must name a file of the same text on all ranks, or none" in done.stderr


def test_nodes_that_force_different_algorithms_are_told() -> None:
    code = DIFFERENT.format(name="NCCLX_MPI_ALGO_SCAN", values=["auto", "chain"])
    done = run_code(4, code, NCCLX_MPI_TOPOLOGY="vnode:2")
    assert done.returncode != 0 and "NCCLX_MPI_ALGO_SCAN is " in done.stderr and "all ranks must be given the same" in done.stderr


def test_a_broken_table_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("{}")
    said = f"NCCLX_MPI_TUNING_FILE={path}: it is no tuning table"
    done = run_code(2, "from mpi4py import MPI", NCCLX_MPI_TUNING_FILE=str(path))
    assert done.returncode == 2 and done.stderr.count(said) == 1 and "Traceback" not in done.stderr
    code = "from ncclx_mpi import MPI"
    alone = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment(NCCLX_MPI_TUNING_FILE=str(path))
    )
    assert alone.returncode == 1 and alone.stderr.count(said) == 1 and f"Exception: rank 0: {said}" in alone.stderr


def test_a_pipe_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    done = run_code(1, "from mpi4py import MPI", NCCLX_MPI_TUNING_FILE=str(path))
    assert done.returncode == 2 and f"NCCLX_MPI_TUNING_FILE={path}: it is no file" in done.stderr
