# ranks: none
import re
import subprocess
import sys
from pathlib import Path

folder = Path(__file__).parent  # with `conftest.py` in it
options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder), "-v"]
done = subprocess.run(
    [sys.executable, "-m", "pytest", *options, "test_ring.py"], cwd=folder, capture_output=True, text=True, timeout=80
)
lines = [line for line in done.stdout.splitlines() if "::" in line or " passed in " in line]
print(re.sub(r" +\[ *\d+%\]| in [\d.]+s|=+ ?", "", "\n".join(lines)).strip())
