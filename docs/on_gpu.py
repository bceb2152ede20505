"""Run the programs of the tutorial on CuPy on a machine with a GPU, and write down what they print, with the GPU, the date and versions.

python docs/on_gpu.py [FILE]

CI has no GPU. The page shows what it prints there on NumPy arrays, and this file, which says by a digest which programs it is of.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import subprocess
import sys
from pathlib import Path

from ncclx_mpi import __version__

DOCS = Path(__file__).parent
RECORD = DOCS / "tutorials" / "cupy.gpu.txt"
PROGRAMS = [DOCS / "snippets" / f"cupy_{name}.py" for name in ("calls", "heat", "streams")]
NOT_YET = "These programs have not run on a GPU yet.\n"


def digest() -> str:
    """Return what tells these programs from others of the same names."""
    return hashlib.sha256(b"".join(program.read_bytes() for program in PROGRAMS)).hexdigest()[:12]


def shown(record: Path) -> str:
    """Return what the page shows of a record, which may not be there, or be of older programs."""
    if not record.exists():
        return NOT_YET
    head, _, printed = record.read_text().partition("\n")
    said, _, of = head.rpartition(", programs ")
    return f"{said}{'' if of == digest() else ', of older programs than these'}\n{printed}"


def machine() -> str:
    """Return the GPU, the day, and versions."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    count = cupy.cuda.runtime.getDeviceCount()
    cuda = cupy.cuda.runtime.runtimeGetVersion()
    versions = f"CuPy {cupy.__version__}, CUDA {cuda // 1000}.{cuda % 1000 // 10}, Python {sys.version.split()[0]}"
    return f"{count} x {name}, {datetime.date.today()}, ncclx_mpi {__version__}, {versions}"


def main() -> int:
    """Run the programs and write the record, which is kept only if all of them ran on a GPU."""
    lines, failed = [f"{machine()}, programs {digest()}\n"], False
    for program in PROGRAMS:
        match = re.match(r"# ranks: (\d+)\n", program.read_text())
        assert match
        command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", match[1], "--timeout", "150", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or "arrays of cupy" not in done.stdout:
            print(f"{program.name} ended with {done.returncode}\n{done.stdout}{done.stderr}", file=sys.stderr)
            failed = True
        lines.append(f"\n$ ncclx run -n {match[1]} {program.name}\n{done.stdout}")
    if not failed:
        Path(sys.argv[1] if len(sys.argv) > 1 else RECORD).write_text("".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
