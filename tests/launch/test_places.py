"""What is said of the hosts of a job, by options and by Slurm."""

from __future__ import annotations

import subprocess

import pytest
from programs import command, environment

from ncclx_mpi.bootstrap.slurm import first_host, tasks_per_node
from ncclx_mpi.launch.over_hosts import RSH_DEFAULT, RSH_OF_SLURM, Place, places, places_of_file, remote_shell


@pytest.mark.parametrize(
    ("text", "nranks", "found"),
    [
        ("a:2,b:2", None, [("a", 2), ("b", 2)]),
        ("a, b", None, [("a", 1), ("b", 1)]),
        ("me@a:2,b:4", 5, [("me@a", 2), ("b", 3)]),
        ("a:2,b:2", 2, [("a", 2)]),
        ("[::1]:2", None, [("[::1]", 2)]),
    ],
)
def test_places(text, nranks, found):
    assert places(text, nranks) == [Place(*pair) for pair in found]


@pytest.mark.parametrize(
    ("text", "nranks"), [("", None), ("a:0", None), ("a:x", None), ("a,a", None), ("a:2", 3), ("-oProxyCommand=x", None)]
)
def test_what_are_no_places(text, nranks):
    with pytest.raises(ValueError, match="host"):
        places(text, nranks)


def test_places_of_a_file(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=2\n\nb:3 # fast\nc\n")
    assert places_of_file(str(file)) == [Place("a", 2), Place("b", 3), Place("c", 1)]
    with pytest.raises(ValueError, match="cannot be read"):
        places_of_file(str(tmp_path / "none"))


def test_the_remote_shell(monkeypatch, tmp_path):
    """Slurm's is taken inside an allocation where there is one, unless the user says otherwise."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert remote_shell({}) == RSH_DEFAULT
    assert remote_shell({"SLURM_JOB_ID": "1"}) == RSH_OF_SLURM
    assert remote_shell({"SLURM_JOB_ID": "1", "NCCLX_MPI_RSH": "rsh -q"}) == "rsh -q"
    srun.unlink()
    assert remote_shell({"SLURM_JOB_ID": "1"}) == RSH_DEFAULT


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nnodes", "2", "-n", "2", "x.py"], "belong together"),
        (["--nnodes", "2", "--node-rank", "0", "--rendezvous", "a:1", "-c", "pass"], "by a token"),
        (["--hosts", "a", "--nnodes", "2", "-c", "pass"], "start all nodes from here"),
        (["--hosts", "a", "--hostfile", "b", "-c", "pass"], "both name the hosts"),
        (["--hosts", "a:2", "-"], "standard input is read here only"),
        (["--hosts", "a:2", "-n", "3", "-c", "pass"], "3 ranks do not fit"),
    ],
)
def test_options_that_do_not_go_together(words, says):
    done = subprocess.run(command("run", *words), env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2(x2)", [1, 2, 2]), ("", []), ("x", []), ("2(x3", []), ("1(x9999999)", [])],
)
def test_tasks_per_node(text, tasks):
    assert tasks_per_node(text) == tasks


@pytest.mark.parametrize(
    ("text", "host"),
    [("n[1-2]", "n1"), ("rack[07-12,15]n[1-2],login", "rack07n1"), ("a,b", "a"), ("a", "a"), ("n[3,5]x", "n3x"), ("", "")],
)
def test_first_host(text, host):
    assert first_host(text) == host
