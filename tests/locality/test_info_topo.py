"""``ncclx info --topo``: machines and the network drawn, of made-up jobs and of one that runs."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from machines import TWO_PACKAGES, write

from ncclx_mpi.cli import topo
from ncclx_mpi.cli.topo import Standing, as_data, distances, drawing, neighbours
from ncclx_mpi.locality import machine, own

NOBODY = "nobody"


def standing(rank: int, node: int, cpus: set[int], system: Path, monkeypatch: pytest.MonkeyPatch, **names: str) -> Standing:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cpus)
    row = own.find(1, node, system).row
    parts = machine.tree(machine.all_cpus(system), system) if rank == node else ()
    return Standing(rank, f"n{node}", node, names, NOBODY, frozenset(cpus), row, parts, {0: "32 MiB"})


def test_a_machine_and_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = write(tmp_path, TWO_PACKAGES)
    bound = [set(range(32)), {0, 16}, {1}, {4, 5}, {4, 20, 5, 21, 0}, {9}, set(range(4, 8)) | set(range(20, 24))]
    ranks = [standing(rank, 0, cpus, system, monkeypatch) for rank, cpus in enumerate(bound)]
    assert drawing(ranks) == [
        "node n0: rank 0",
        "  package 0",
        "    NUMA node 0: rank 4",
        "      L3 cache 0, 32 MiB",
        "        core 0, processors 0,16: rank 1",
        "        core 1, processors 1,17: rank 2",
        "        cores 2-3, processors 2-3,18-19",
        "      L3 cache 1: ranks 3,6",
        "        cores 4-7, processors 4-7,20-23",
        "  package 1",
        "    NUMA node 1",
        "      L3 cache 2",
        "        core 8, processors 8,24",
        "        core 9, processors 9,25: rank 5",
        "        cores 10-11, processors 10-11,26-27",
        "      L3 cache 3",
        "        cores 12-15, processors 12-15,28-31",
        "",
        "network: nobody",
    ]
    assert distances(ranks)[1:5] == [
        "distances: 0 same rank, 1 same cache, 2 same NUMA node, 3 same node",
        "rank   0   1   2   3   4   5   6",
        "   0   0   3   3   3   3   3   3",
        "   1   3   0   1   2   2   3   2",
    ]
    assert distances(ranks[:1]) == distances(ranks * 5) == []


def test_the_drawing_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(cpu, cpu + 8) for cpu in range(8)]
    every = [tuple(range(16))]
    system = write(tmp_path, {"core": pairs, "l3": every, "numa": every, "package": every})
    ranks = [standing(rank, 0, {rank, rank + 8}, system, monkeypatch) for rank in range(2)]
    drawn = "\n".join(drawing(ranks)[:-2]).replace("n0", "n1")
    assert f"```text\n{drawn}\n```" in (Path(__file__).parents[2] / "docs" / "how_to" / "topology.md").read_text()


def test_hosts_in_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rack and zone once, with what is in it, whatever the order of the hosts."""
    places = [("r2", "z1", "d"), ("r1", "z1", "d"), ("r2", "z1", "d"), ("r2", "z2", "d"), ("r2", "z2", "e")]
    hosts = [
        standing(rank, rank, {0}, tmp_path, monkeypatch, rack=rack, zone=zone, dc=dc)
        for rank, (rack, zone, dc) in enumerate(places)
    ]
    unknown = standing(5, 5, {0}, tmp_path, monkeypatch)
    assert drawing([*hosts, unknown]) == [
        "node n5: rank 5",
        "data centre d",
        "  zone z1",
        "    rack r1",
        "      node n1: rank 1",
        "    rack r2",
        "      node n0: rank 0",
        "      node n2: rank 2",
        "  zone z2",
        "    rack r2",
        "      node n3: rank 3",
        "data centre e",
        "  zone z2",
        "    rack r2",
        "      node n4: rank 4",
        "",
        "network: nobody",
    ]


def test_as_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = write(tmp_path, TWO_PACKAGES)
    ranks = [standing(0, 0, {0}, system, monkeypatch, rack="r1"), standing(1, 0, {8, 9}, system, monkeypatch)]
    found = json.loads(json.dumps(as_data(ranks)))
    (node,) = found["nodes"]
    assert (node["host"], node["rack"], node["source"], node["ranks"]) == ("n0", "r1", NOBODY, {"0": "0", "1": "8-9"})
    assert [part["kind"] for part in node["machine"]] == ["package", "package"]
    core = node["machine"][1]["inside"][0]["inside"][0]["inside"][0]
    assert core == {"kind": "core", "number": 8, "processors": "8,24", "inside": []}
    assert found["distances"] == [[0, 3], [3, 0]] and found["classes"][3] == "same node"
    monkeypatch.setattr(topo, "_MOST_IN_DATA", 1)
    assert as_data(ranks)["distances"] is None


def test_neighbours_in_grids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight ranks on two nodes; nothing is said of one node, of a prime number of ranks, and of very many."""
    ranks = [standing(rank, rank % 2, {0}, tmp_path, monkeypatch) for rank in range(8)]
    rows = [(*each.row[:3], each.node, *each.row[4:]) for each in ranks]
    ranks = [dataclasses.replace(each, row=row) for each, row in zip(ranks, rows, strict=True)]
    assert neighbours(ranks) == [
        "",
        "neighbours on two nodes:",
        "  grid of 4 x 2: 4, reordered 2",
        "  grid of 2 x 2 x 2: 4, reordered 4",
    ]
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "topology.md").read_text()
    assert "\n".join(["```text", *neighbours(ranks)[1:], "```"]) in page
    assert as_data(ranks)["grids"][0] == {"dims": [4, 2], "as_ranks_come": 4, "reordered": 2}
    assert neighbours(ranks[:7]) == neighbours([dataclasses.replace(each, node=0) for each in ranks]) == []
    monkeypatch.setattr(topo, "_MOST_IN_DATA", 7)
    assert neighbours(ranks) == []


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ncclx_mpi", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **variables}, check=False)


def test_of_a_job(tmp_path: Path) -> None:
    file = tmp_path / "network"
    file.write_text("node.ranks = 2\nrack.nodes = 1\nzone.racks = 4\n")
    of_ranks = ("run", "-n", "3", sys.executable, "-m", "ncclx_mpi", "info", "--topo")
    done = run(*of_ranks, NCCLX_MPI_TOPOLOGY="vnode:2", NCCLX_MPI_TOPOLOGY_FILE=str(file))
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[:2] == ["zone 0", "  rack 0"], done.stderr
    assert "  rack 1" in lines and f"network: NCCLX_MPI_TOPOLOGY_FILE={file}" in lines
    assert lines[-1].split() == ["2", "5", "5", "0"] and lines[-4].split() == ["rank", "0", "1", "2"]
    data = json.loads(run(*of_ranks, "--json", NCCLX_MPI_TOPOLOGY="vnode:2").stdout)
    assert [list(node["ranks"]) for node in data["nodes"]] == [["0", "1"], ["2"]] and data["distances"][2][0] == 7


def test_what_is_wrong_is_said_by_the_rank_that_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "network"
    file.write_text("# nothing\nrock = r1\n")
    done = run("info", "--topo", NCCLX_MPI_TOPOLOGY_FILE=str(file))
    assert done.returncode == 1 and done.stdout == ""
    assert "rank 0 on " in done.stderr and f"NCCLX_MPI_TOPOLOGY_FILE={file}: line 2: 'rock = r1' says nothing" in done.stderr
