"""``mpi4py.futures``: pools whose workers are ranks of the job."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.launch.programs import run

POOL = """
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor, as_completed

def square(x):
    return x * x, MPI.COMM_WORLD.rank

def fail(x):
    raise KeyError(x)

if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        found = list(pool.map(square, range(40), chunksize=3))
        assert [value for value, _ in found] == [x * x for x in range(40)]
        print("ranks", sorted({rank for _, rank in found}))
        print("failed", repr(pool.submit(fail, "key").exception()))
        print("large", len(pool.submit(bytes, 3_000_000).result()))
        print("done", sorted(each.result() for each in as_completed([pool.submit(abs, -k) for k in range(5)])))
        print("workers", pool.num_workers)
"""


def run_pool(tmp_path: Path, nranks: int, text: str) -> tuple[int, str, str]:
    script = tmp_path / "pool.py"
    script.write_text(text)
    done = run("run", "-n", str(nranks), "-m", "mpi4py.futures", str(script), timeout=100)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("nranks", [2, 3, 5])
def test_a_pool_of_the_other_ranks(tmp_path: Path, nranks: int) -> None:
    status, out, err = run_pool(tmp_path, nranks, POOL)
    assert status == 0, err
    ranks = [line for line in out.splitlines() if line.startswith("ranks")]
    assert set(ast.literal_eval(ranks[0].removeprefix("ranks "))) <= set(range(1, nranks))
    rest = [line for line in out.splitlines() if not line.startswith("ranks")]
    assert rest == ["failed KeyError('key')", "large 3000000", "done [0, 1, 2, 3, 4]", f"workers {nranks - 1}"]


def test_a_pool_of_one_rank_works_in_its_own_threads(tmp_path: Path) -> None:
    status, out, err = run_pool(tmp_path, 1, POOL)
    assert status == 0, err
    assert "ranks [0]" in out


def test_a_worker_that_dies_ends_the_job(tmp_path: Path) -> None:
    text = "import os\nfrom mpi4py.futures import MPIPoolExecutor\nif __name__ == '__main__':\n"
    text += (
        "    with MPIPoolExecutor() as pool:\n        pool.submit(abs, -1).result()\n        pool.submit(os._exit, 7).result()\n"
    )
    status, _, err = run_pool(tmp_path, 3, text)
    assert status == 7
    assert "ended with status 7" in err


def test_a_pool_over_a_communicator(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from mpi4py import MPI\nfrom mpi4py.futures import MPICommExecutor\n"
        "with MPICommExecutor(MPI.COMM_WORLD, root=1) as pool:\n"
        "    if pool is not None:\n        print(MPI.COMM_WORLD.rank, list(pool.map(abs, range(-3, 3))))\n"
    )
    done = run("run", "-n", "3", str(script), timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 [3, 2, 1, 0, 1, 2]\n"


STARTED = """
import os
from mpi4py.futures import MPIPoolExecutor
from mpi4py import MPI

def square(x):
    return x * x, MPI.COMM_WORLD.size

def say(what):
    print(what, flush=True)

if __name__ == "__main__":
    with MPIPoolExecutor(2) as pool:
        print(set(pool.map(square, [3] * 20)))
        pool.submit(say, "from a worker").result()
    for what in (os._exit, 7), (abs, -1):
        if what[0] is os._exit:
            broken = MPIPoolExecutor(2)
            broken.submit(abs, -1).result()
        else:
            broken = MPIPoolExecutor(1, python_exe="/not/a/program")
        print(type(broken.submit(*what).exception()).__name__, broken.bootup() is broken)
        broken.shutdown()
    print("and goes on")
"""


def test_a_pool_that_starts_its_workers_fails_what_these_cannot_do_any_more(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STARTED)
    done = run(str(script), timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("from a worker") == 1, done.stderr  # when it comes is the worker's own affair
    lines.remove("from a worker")
    assert lines == ["{(9, 2)}", "BrokenExecutor True", "BrokenExecutor True", "and goes on"], done.stderr
