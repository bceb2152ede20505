"""``ncclx info --peers`` says by what each rank reaches each other one, and why."""

from __future__ import annotations

import json

from programs import command, run

from ncclx_mpi.cli.peers import Row, matrix, reasons

SELF, NEAR, FAR = ("self", "a rank itself"), ("shm", "they share memory"), ("ucx", "by tcp")


def rows(size: int, ranks_of_node: int) -> list[Row]:
    found = []
    for rank in range(size):
        ways = [SELF if peer == rank else NEAR if peer // ranks_of_node == rank // ranks_of_node else FAR for peer in range(size)]
        found.append(Row(rank, f"n{rank // ranks_of_node}", [name for name, _ in ways], [reason for _, reason in ways]))
    return found


def test_a_column_for_each_peer() -> None:
    assert matrix(rows(3, 2)) == [
        "rank  host     0     1     2",
        "   0  n0    self   shm   ucx",
        "   1  n0     shm  self   ucx",
        "   2  n1     ucx   ucx  self",
    ]


def test_ranges_where_ranks_are_many() -> None:
    lines = matrix(rows(64, 32))
    assert len(lines) == 64
    assert lines[1] == "rank    1 on n0  : shm 0; self 1; shm 2-31; ucx 32-63"


def test_each_reason_once_and_whose_it_is_where_there_are_several() -> None:
    found = rows(3, 2)
    assert reasons(found) == ["self: a rank itself", "shm: they share memory", "ucx: by tcp"]
    found[2].reasons[0] = "by rc"
    assert reasons(found)[2:] == ["ucx: by rc (2-0)", "ucx: by tcp (0-2, 1-2, 2-1)"]


def test_of_a_job() -> None:
    done = run("run", "-n", "3", *command("info", "--peers", "--json"), NCCLX_MPI_TOPOLOGY="vnode:2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["transports"] for row in found] == [
        ["self", "shm", "virtual"],
        ["shm", "self", "virtual"],
        ["virtual", "virtual", "self"],
    ]
    assert "by the kernel" in found[0]["reasons"][1] and "NCCLX_MPI_TOPOLOGY" in found[0]["reasons"][2]
    piped = json.loads(run("run", "-n", "2", *command("info", "--peers", "--json"), NCCLX_MPI_COPIES="piped").stdout)
    assert "NCCLX_MPI_COPIES" in piped[1]["reasons"][0]
