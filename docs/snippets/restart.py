# ranks: none
import subprocess
import sys
import tempfile
from pathlib import Path

program = str(Path(__file__).with_name("checkpoint.py"))
with tempfile.TemporaryDirectory() as folder:
    name = str(Path(folder) / "field.bin")
    for ranks, *restart in (["4"], ["3", "restart"], ["6", "restart"]):
        command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", ranks, program, name, *restart]
        print(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout, end="")
