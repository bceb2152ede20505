"""``ncclx info --tuning`` and ``report_tuning`` say what was decided on bulk data, since when, and from which times."""

from __future__ import annotations

import json
import os
import re

import pytest
from programs import command, run, run_code

from ncclx_mpi.collectives.shm_decisions import decision, in_words
from transports.shm.trial import PERIOD, TRIALS

LARGE = """
import numpy as np
from mpi4py import MPI
comm, mine, all_of_them = MPI.COMM_WORLD, np.ones(1 << 17), np.ones(1 << 18)
for _ in range(12):
    comm.Allgather(mine, all_of_them)
"""

SMALL = """
import numpy as np
from mpi4py import MPI
comm, data = MPI.COMM_WORLD, np.ones(1 << 13, np.uint8)
for _ in range(18_000):
    comm.Send(data, 1) if comm.rank == 0 else comm.Recv(data, 0)
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([9, 3000, 1000, 4000, 1], "direct copies: direct 1.0 us, plain 3.0 us, streamed 4.0 us; tried from transfer 1 on, of 9"),
        ([20, 1000, 3000, 0, 0], "through shared memory, plain stores: direct 3.0 us, plain 1.0 us; tried from transfer 17 on, of 20"),
        ([26, 1000, 0, 500, 2], "through shared memory, streamed stores: plain 1.0 us, streamed 0.5 us; tried from transfer 17 on, of 26"),
        ([PERIOD + 70, 0, 0, 0, 1], f"direct copies: as rank 0 found; tried from transfer {PERIOD + 65} on, of {PERIOD + 70}"),
    ],
)  # fmt: skip
def test_recorded_trials_in_words(words: list[int], told: str) -> None:
    assert in_words(decision("bcast", 2, words, 1000.0)) == f"bcast 64 KiB to 128 KiB: {told}"


@pytest.mark.parametrize(
    ("index", "size"), [(0, "to 32 KiB"), (1, "32 KiB to 64 KiB"), (6, "1 MiB to 2 MiB"), (15, "from 512 MiB")]
)
def test_size_classes_in_words(index: int, size: str) -> None:
    assert decision("message", index, [1, 0, 0, 0, 0], 1.0).size == size


def test_of_a_job() -> None:
    done = run("run", "-n", "2", *command("info", "--tuning", "--json"))
    assert done.returncode == 0, done.stderr
    found = {(each["what"], each["size"]): each for each in json.loads(done.stdout)}
    each = found["allreduce", "2 MiB to 4 MiB"]
    assert each["transfers"] == TRIALS + 1 and each["since"] == 1
    assert min(each["plain_us"], each["streamed_us"], each["direct_us"]) > 0
    assert found["message", "1 MiB to 2 MiB"]["direct_us"] > 0


def test_of_small_messages() -> None:
    """Ranks that share a core keep to the small rings, where nothing is judged."""
    told = run_code(2, SMALL, NCCLX_MPI_REPORT_TUNING="1").stderr
    line = r"^rank 0: stores of messages of 1 to 16 KiB to rank 1: [a-z ]+: plain \d+ ns a KiB, streamed \d+ ns$"
    assert bool(re.search(line, told, re.M)) == (len(os.sched_getaffinity(0)) > 1)
    assert "to rank 0:" not in told
    assert "to rank 1:" not in run_code(2, SMALL, NCCLX_MPI_REPORT_TUNING="1", NCCLX_MPI_STORES="plain").stderr


def test_each_rank_reports_in_the_end_if_asked() -> None:
    assert not run_code(2, LARGE).stderr
    told = run_code(2, LARGE, NCCLX_MPI_REPORT_TUNING="1").stderr.splitlines()
    for rank in range(2):
        assert any(line.startswith(f"rank {rank}: stores ") for line in told)
        assert any(line.startswith(f"rank {rank}: allgather 2 MiB to 4 MiB: ") for line in told)
    piped = run_code(2, LARGE, NCCLX_MPI_REPORT_TUNING="1", NCCLX_MPI_STORES="plain", NCCLX_MPI_COPIES="piped").stderr.splitlines()
    assert sorted(piped) == ["rank 0: stores plain, as set", "rank 1: stores plain, as set"]
