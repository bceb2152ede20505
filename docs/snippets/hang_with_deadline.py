# ranks: none
import re
import subprocess
import sys
from pathlib import Path

command = [
    sys.executable,
    "-m",
    "ncclx_mpi",
    "run",
    "-n",
    "3",
    "-x",
    "NCCLX_MPI_TIMEOUT=1",
    str(Path(__file__).with_name("hang.py")),
]
said = subprocess.run(command, capture_output=True, text=True, timeout=80).stderr
reason = said[said.index("ncclx_mpi.MPI.Exception") :].splitlines()[:2]
print(re.sub(r"for [\d.]+ s", "for ... s", "\n".join(reason)))
