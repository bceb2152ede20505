"""A job below a real Slurm of two nodes, which are one machine here."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import SWITCHES, Cluster, two_nodes, why_not
from programs import HOME, all_gone, environment

from numba_kernels import cache_files

REASON = why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
EXAMPLES = Path(HOME) / "examples"
PAGES = Path(HOME) / "docs"
SNIPPETS = PAGES / "snippets"
PROGRAM = [sys.executable, "-m", "ncclx_mpi"]
SAY = (
    "from mpi4py import MPI; from ncclx_mpi import runtime; comm = MPI.COMM_WORLD\n"
    "node = comm.Split_type(MPI.COMM_TYPE_SHARED)\n"
    "print(comm.rank, comm.allreduce(1), node.size, runtime.membership().kind)"
)
DIE = """
import os, signal
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.rank == 1:  # when nobody is in a call that needs it, but the one below
    for other in {0, 2, 3}:
        comm.recv(source=other)
    os.kill(os.getpid(), signal.SIGKILL)
comm.send(None, 1)
try:
    comm.recv(source=1)
except MPI.Exception as error:
    print(comm.rank, error.Get_error_class() == MPI.ERR_PROC_FAILED, flush=True)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with two_nodes(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def slurm(cluster, tmp_path):
    """Runs a command of Slurm to its end. Hosts of a busy machine may be silent for longer than those of a real cluster."""

    def run(*words: str, cwd: Path = EXAMPLES, **variables: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        ours = {"HOME": str(tmp_path), "NCCLX_MPI_CACHE_DIR": str(cache_files.cache_root()), "NCCLX_MPI_HEARTBEAT": "0.5,60"}
        env = environment(**cluster.variables, **ours, PATH=path, **variables)
        return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)

    return run


def test_one_world_whatever_mpi_slurm_is_told(slurm):
    for kind in ("none", "pmi2"):
        done = slurm("srun", f"--mpi={kind}", "-N2", "--ntasks-per-node=2", *PROGRAM, "-c", SAY)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"{rank} 4 2 slurm" for rank in range(4)]


def test_switches_of_the_cluster(slurm, tmp_path):
    """Slurm tells each task the switches above its node; its own file about them, which we can read too, says the same."""
    (tmp_path / "topology.conf").write_text(SWITCHES)
    drawn = []
    for variables in ({}, {"NCCLX_MPI_TOPOLOGY_FILE": str(tmp_path / "topology.conf")}):
        done = slurm("srun", "-N", "2", "--ntasks-per-node=2", *PROGRAM, "info", "--topo", **variables)
        assert done.returncode == 0, done.stderr
        drawn.append([line.strip() for line in done.stdout.splitlines() if not line.startswith("network: ")])
    assert drawn[0] == drawn[1] and [line for line in drawn[0] if line.startswith(("zone", "rack "))] == [
        "zone spine",
        "rack leaf1",
        "rack leaf2",
    ]
    assert [line.split()[1:4] for line in drawn[0] if line.startswith("3 ")] == [["5", "5", "1"]]


def test_a_program_starts_processes_on_its_node(slurm):
    spawn = "from mpi4py import MPI; import sys; new = MPI.COMM_WORLD.Spawn(sys.executable, ['-c', 'from mpi4py import MPI; "
    spawn += "MPI.Comm.Get_parent().Disconnect()'], 2); print(new.remote_size); new.Disconnect()"
    done = slurm("srun", "-N1", "-n2", *PROGRAM, "-c", spawn)
    assert (done.returncode, done.stdout.split()) == (0, ["2", "2"]), done.stderr


def test_nodes_of_different_numbers_of_ranks(slurm):
    done = slurm("srun", "-N2", "-n3", *PROGRAM, "-c", SAY)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 3 2 slurm", "1 3 2 slurm", "2 3 1 slurm"]


def test_ranks_that_are_not_counted_node_by_node_are_told_how(slurm):
    done = slurm("srun", "-N2", "-n4", "--distribution=cyclic", *PROGRAM, "-c", SAY)
    assert done.returncode != 0
    assert "srun --distribution=block" in done.stderr


def test_every_example_and_the_program_of_the_readme(slurm, tmp_path, full):
    """In one step, one after the other; at full length each in its own."""
    programs = [*sorted(EXAMPLES.glob("*.py")), SNIPPETS / "first.py"]
    all_of_them = tmp_path / "all.py"
    all_of_them.write_text(
        "import runpy, sys\n"
        f"for path in {[str(path) for path in programs]}:\n"
        "    sys.argv[:] = [path]\n"
        "    runpy.run_path(path, run_name='__main__')\n"
    )
    expected = [
        *("warmest cell 79.343411", "warmest cell 84.936178", "coldest cell 1.778020", "pi is 3.1415926536", "[10. 10. 10.]"),
        *("at most 128 tokens for one expert, difference to one process 0.0e+00", "centre  -0.0072   6.0209, 5000 points"),
        *("100 steps, the same as one process computes: True", "2000 tasks, 134100 steps"),
    ]
    stdout = ""
    for program in programs if full else [all_of_them]:
        done = slurm("srun", "-N2", "-n4", *PROGRAM, str(program))
        assert done.returncode == 0, done.stderr
        stdout += done.stdout
    assert len(expected) == len(programs)
    for line in expected:
        assert line in stdout


def lines_of_pages() -> list[str]:
    """Command lines of the documentation that are for srun and a program of ours, or of Python's."""
    found = {line for page in PAGES.rglob("*.md") for line in re.findall(r"^srun -N 2 .*$", page.read_text(), re.MULTILINE)}
    return sorted(line for line in found if "apptainer" not in line)


@pytest.mark.parametrize("line", lines_of_pages())
def test_lines_of_the_pages(slurm, line):
    """Word for word, in the folder with the programs of the pages."""
    done = slurm(*shlex.split(line), cwd=SNIPPETS)
    assert done.returncode == 0, done.stderr
    expected = {
        "hosts.py": (SNIPPETS / "hosts.out").read_text(),
        "who_is_near.py": (SNIPPETS / "two_nodes.out").read_text().split("\n\n")[0],
        "--peers": "on different hosts: TCP",
        "sched_getaffinity": "",
    }
    (text,) = [text for word, text in expected.items() if word in line]
    assert text in done.stdout, done.stdout
    assert len(done.stdout.splitlines()) >= (1 if "hosts.py" in line else 4)


def test_a_rank_that_is_killed_is_dead_for_the_others(slurm):
    done = slurm("srun", "-N2", "--ntasks-per-node=2", *PROGRAM, "-c", DIE)
    assert sorted(done.stdout.splitlines()) == ["0 True", "2 True", "3 True"], done.stderr
    assert done.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("script", sorted(path.name for path in (EXAMPLES / "slurm").glob("*.sbatch")))
def test_batch_scripts(slurm, tmp_path, script):
    """As they are, but that the nodes' names mean nothing here, and that an array has its second element only: that of 200 steps."""
    output = tmp_path / "output"
    arguments = ["127.0.0.1"] if script == "hosts.sbatch" else []
    options = ["--array=2"] if script == "array.sbatch" else []
    done = slurm("sbatch", "--wait", f"--output={output}", *options, str(EXAMPLES / "slurm" / script), *arguments)
    text = output.read_text()
    assert done.returncode == 0, text
    result = "warmest cell 84.936178" if script == "gpu.sbatch" else "warmest cell 79.343411, mean 10.170955"
    assert re.search(rf"^{result}.*, difference to one process 0.0e\+00$", text, re.MULTILINE), text
    on_two_nodes = "self +shm +tcp +tcp"
    reached = {"heat2d.sbatch": on_two_nodes, "gpu.sbatch": on_two_nodes, "heterogeneous.sbatch": "self +tcp +tcp +tcp"}
    assert re.search(rf"^ +0 .* {reached.get(script, '')}$" if script in reached else "", text, re.MULTILINE), text


def test_from_one_place_inside_an_allocation(slurm):
    """`ncclx run --hosts` starts the others by srun, and their status, and output are those of here."""
    code = "import os, sys; rank = os.environ['NCCLX_MPI_RANK']; print(rank); sys.exit(7 if rank == '3' else 0)"
    words = [*PROGRAM, "run", "--hosts", "n1:2,n2:2", "--rendezvous", "127.0.0.1", "-c", code]
    done = slurm("salloc", "--quiet", "-N2", "--ntasks-per-node=2", *words)
    assert sorted(done.stdout.splitlines()) == ["0", "1", "2", "3"], done.stderr
    assert done.returncode == 7
    assert "rank 3" in done.stderr


def test_a_shell_of_an_allocation_is_a_world_of_one(slurm, tmp_path):
    """It is no step: what is imported there finds no ranks, and does not wait for any."""
    program = [sys.executable, "-c", "from ncclx_mpi import MPI, runtime; print(MPI.COMM_WORLD.size, runtime.membership().kind)"]
    done = slurm("salloc", "--quiet", "-N2", "-n4", *program)
    assert (done.returncode, done.stdout) == (0, "1 singleton\n"), done.stderr
    output = tmp_path / "output"
    script = tmp_path / "batch"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{program[2]}'\n")
    done = slurm("sbatch", "--wait", "-N2", "-n4", f"--output={output}", str(script))
    assert (done.returncode, output.read_text()) == (0, "1 singleton\n"), done.stderr


def test_nothing_is_left_when_srun_is_killed(cluster, slurm, tmp_path):
    code = "import os, time; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print(os.getpid(), os.getppid(), flush=True); time.sleep(600)"
    ours = {"HOME": str(tmp_path), "NCCLX_MPI_CACHE_DIR": str(cache_files.cache_root())}
    line = ["srun", "--time=2", "-N2", "--ntasks-per-node=2", *PROGRAM, "-c", code]  # minutes: if ranks do not come, it ends
    job = subprocess.Popen(line, env=environment(**cluster.variables, **ours), stdout=subprocess.PIPE, text=True)
    pids = [int(job.stdout.readline().split()[0]) for _ in range(4)]
    agents = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_agent_below(pid, pids)]
    assert len(agents) == 2
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert all_gone(pids + agents, 30)


def _is_agent_below(pid: int, parents: list[int]) -> bool:
    """Whether a process is the agent of a host, which one of these ranks has started."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return False
    return b"agent_process" in words and parent in parents
