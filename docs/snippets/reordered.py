# ranks: none
import os
import subprocess
import sys
from pathlib import Path

here = Path(__file__).parent


def run(name: str, **variables: str) -> str:
    """What eight ranks print."""
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "8", str(here / name)]
    env = {**os.environ, **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=80, check=True).stdout


print(run("near_neighbours.py", NCCLX_MPI_TOPOLOGY="vnode:4"))
print(run("by_resource.py", NCCLX_MPI_TOPOLOGY="vnode:2", NCCLX_MPI_TOPOLOGY_FILE=str(here / "hosts_by_number.txt")), end="")
