"""``NCCLX_MPI_ALGO_<COLLECTIVE>``: what a program gets that runs with an algorithm forced."""

from __future__ import annotations

import pytest
from programs import run, run_code

from ncclx_mpi.algorithms import ALGORITHMS, rows_of

PROGRAM = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
native = comm._state.native
for count in (0, 1, 7, 500, 20_000):
    mine, block, row = np.full(count, rank + 1.0), np.full(count, -1.0), np.full(count * size, -1.0)
    ranks = np.repeat(np.arange(1.0, size + 1), count)
    before, meetings = native.word("plans"), native.word("sequence")
    comm.Barrier()
    comm.Bcast(data := mine.copy(), root=size - 1)
    assert (data == size).all()
    comm.Allreduce(mine, block)
    assert (block == ranks.sum() / max(count, 1)).all()
    comm.Reduce(mine, block, root=0)
    comm.Gather(mine, row if rank == 0 else None)
    assert rank or (row == ranks).all()
    comm.Allgather(mine, row)
    assert (row == ranks).all()
    comm.Allgatherv(mine, [row, [count] * size])
    comm.Scatter(ranks if rank == 0 else None, block)
    assert (block == mine).all()
    comm.Alltoall(np.repeat(mine, size), row)
    assert (row == ranks).all()
    comm.Alltoallv([row, [count] * size], [row.copy(), [count] * size])
    comm.Reduce_scatter_block(np.repeat(mine, size), block)
    assert (block == ranks.sum() / max(count, 1)).all()
    comm.Reduce_scatter(np.repeat(mine, size), block, [count] * size)
    comm.Scan(mine, block)
    assert (block == (rank + 1) * (rank + 2) / 2).all()
    comm.Exscan(mine, block)
if rank == 0:
    print("plans" if native.word("sequence") == 0 else "slot" if native.word("plans") == 0 else "both")
"""


@pytest.mark.parametrize(("index", "ran"), [(0, "slot"), (1, "both"), (3, "plans"), (9, "plans")])
def test_a_program_with_all_algorithms_forced(index, ran):
    """The first of each collective is on lines, the last ones are plans; the second of a barrier is one."""
    names = {name: [row.name for row in rows_of(name) if not row.equal_blocks] for name in ALGORITHMS}
    forced = {f"NCCLX_MPI_ALGO_{name.upper()}": found[min(index, len(found) - 1)] for name, found in names.items()}
    result = run_code(3, PROGRAM, **forced)
    assert (result.stdout, result.returncode) == (f"{ran}\n", 0), result.stderr


def test_an_unknown_name():
    result = run_code(2, "from mpi4py import MPI", NCCLX_MPI_ALGO_BCAST="tree")
    assert result.returncode != 0 and result.stdout == ""
    assert (
        "NCCLX_MPI_ALGO_BCAST=tree: bcast has no such algorithm; it has shm_oneshot, shm_pipelined, cma, binomial" in result.stderr
    )


def test_what_a_forced_algorithm_cannot_do():
    code = (
        "import numpy as np; from mpi4py import MPI; comm = MPI.COMM_WORLD; a = np.arange(4.0)\n"
        "op = MPI.Op.Create(lambda a, b, t: None, commute=False)\n"
        "try: comm.Allreduce(MPI.IN_PLACE, a, op)\n"
        "except MPI.Exception as error: print(error.Get_error_class() == MPI.ERR_UNSUPPORTED_OPERATION, error)\n"
        "comm.Allreduce(MPI.IN_PLACE, a); assert (a == comm.size * np.arange(4)).all()"
    )
    result = run_code(3, code, NCCLX_MPI_ALGO_ALLREDUCE="ring")
    lines = sorted(result.stdout.splitlines())
    assert [line[:12] for line in lines] == [f"True rank {rank}:" for rank in range(3)], result.stderr
    assert all(
        "allreduce cannot go by ring, which NCCLX_MPI_ALGO_ALLREDUCE asks for: the operation does not commute" in line
        for line in lines
    )


def test_the_order_of_reductions():
    code = (
        "import numpy as np; from mpi4py import MPI; comm = MPI.COMM_WORLD; a = np.float32([1e8, -1e8, 1, 1][comm.rank:comm.rank + 1])\n"
        "comm.Allreduce(MPI.IN_PLACE, a); assert a[0] == 2 or comm.size < 4, a"
    )
    assert run_code(4, code, NCCLX_MPI_REDUCTION_ORDER="rank").returncode == 0
    refused = run_code(4, code, NCCLX_MPI_REDUCTION_ORDER="rank", NCCLX_MPI_ALGO_ALLREDUCE="recursive_doubling")
    assert refused.returncode != 0 and "reduction_order=rank asks for ((0 op 1) op 2) ..." in refused.stderr
    assert "reduction_order: rank" in run("info", NCCLX_MPI_REDUCTION_ORDER="rank").stdout


def test_what_a_program_sets():
    code = "from ncclx_mpi import rc; rc.algo_bcast = 'binomial'; " + PROGRAM
    assert run_code(2, code).stdout == "both\n"


def test_ranks_that_differ():
    code = (
        "import os; os.environ['NCCLX_MPI_ALGO_SCAN'] = 'chain' if os.environ['NCCLX_MPI_RANK'] == '1' else 'auto'; "
        "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
    )
    result = run_code(2, code)
    assert result.returncode != 0
    assert "NCCLX_MPI_ALGO_SCAN is chain here and auto on rank 0" in result.stderr or (
        "NCCLX_MPI_ALGO_SCAN is auto here and chain on rank 1" in result.stderr
    )


def test_info_shows_what_is_forced():
    assert (
        "algorithms:\n  allreduce: reduce_scatter_allgather\n"
        in run("info", NCCLX_MPI_ALGO_ALLREDUCE="reduce_scatter_allgather").stdout
    )
    assert "algorithms:\n  none is forced\n" in run("info").stdout


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_info_lists_the_candidates(collective):
    """Every row, with one that is chosen on a slot and one that is without."""
    lines = run("info", "--plans", collective, "--ranks", "5", "--bytes", "64K").stdout.splitlines()
    rows = [line for line in lines[3:] if line[2:3].strip() and line[:1] in "*+ "]
    found = {line[2:].split()[0]: line for line in rows}
    assert [name for name in found if name in ALGORITHMS[collective]] == list(ALGORITHMS[collective])
    chosen = {name for name, line in found.items() if line[0] == "*"} & set(ALGORITHMS[collective])
    assert chosen == {"shm_oneshot" if collective == "barrier" else "shm_pipelined"}
    for row in rows_of(collective):
        assert ("a rank gives more than 16 KiB" in found[row.name]) == (row.name == "shm_oneshot" and collective != "barrier")


def test_info_says_which_one_is_forced():
    text = run("info", "--plans", "allgather", NCCLX_MPI_ALGO_ALLGATHER="ring").stdout
    assert "NCCLX_MPI_ALGO_ALLGATHER=ring is set" in text
    assert "is set" not in run("info", "--plans", "allgather").stdout


@pytest.mark.parametrize(
    ("option", "value", "said"), [("--bytes", "many", "'many' is no size"), ("--ranks", "0", "at least one rank")]
)
def test_info_refuses_what_is_no_call(option, value, said):
    result = run("info", "--plans", "bcast", option, value)
    assert result.returncode == 2 and said in result.stderr


def test_the_end_of_a_program_names_roots_that_differed():
    code = (
        "import numpy, os, time; from mpi4py import MPI; comm = MPI.COMM_WORLD; zero = comm.bcast(os.getpid()); comm.Barrier()\n"
        "comm.Bcast(numpy.zeros(1), root=comm.rank)\n"
        "while comm.rank and os.path.exists(f'/proc/{zero}'): time.sleep(0.01)"
    )
    result = run_code(2, code)
    assert result.returncode == 0
    assert (
        "ncclx_mpi: rank 1: called 3 collectives, bcast with root 1 the last, on the communicator that it frees, but rank 0 "
        in (result.stderr)
    )
