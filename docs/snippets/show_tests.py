# run by: run_tests.py
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def show(file: str) -> None:
    """What `pytest -v` says of a file of this folder, without what differs from run to run."""
    options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(FOLDER), "-v"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, file], cwd=FOLDER, capture_output=True, text=True, timeout=80)
    lines = [line for line in done.stdout.splitlines() if "::" in line or " passed in " in line]
    print(re.sub(r" +\[ *\d+%\]| in [\d.]+s|=+ ?", "", "\n".join(lines)).strip())
