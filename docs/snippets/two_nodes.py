# ranks: none
import os
import subprocess
import sys
from pathlib import Path

ncclx = [sys.executable, "-m", "ncclx_mpi"]
simulated = {**os.environ, "NCCLX_MPI_TOPOLOGY": "vnode:2"}  # each two ranks are a node, a network is between the nodes


def run(*words: str) -> str:
    """What four ranks print."""
    done = subprocess.run([*ncclx, "run", "-n", "4", *words], env=simulated, capture_output=True, text=True, timeout=80, check=True)
    return done.stdout


print(run(str(Path(__file__).with_name("who_is_near.py"))))
table = run("-m", "ncclx_mpi", "info", "--peers").split("\n\n")[0]
for rank, host, *reached_by in map(str.split, table.splitlines()):  # as it is, but for the name of the host
    print(f"{rank:>4}  {host if host == 'host' else '...':4}", *(f"{way:>8}" for way in reached_by))
