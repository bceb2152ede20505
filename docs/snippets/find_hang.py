# ranks: none
import re
import subprocess
import sys
import time
from pathlib import Path

ncclx = [sys.executable, "-m", "ncclx_mpi"]
job = subprocess.Popen([*ncclx, "run", "-n", "3", str(Path(__file__).with_name("hang.py"))], stderr=subprocess.DEVNULL)
report, until = "", time.monotonic() + 60
while not (report.count("finalized") == 2 and ": in recv" in report) and time.monotonic() < until:
    time.sleep(0.2)
    report = subprocess.run([*ncclx, "trace", str(job.pid)], capture_output=True, text=True).stdout
job.terminate()
job.wait(30)
print(re.sub(r"for [\d.]+ s", "for ... s", re.sub(r"process \d+", "process ...", report)), end="")
