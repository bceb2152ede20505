# ranks: none
import json
import subprocess
import sys
import time
from pathlib import Path

ncclx = [sys.executable, "-m", "ncclx_mpi"]
job = subprocess.Popen([*ncclx, "run", "-n", "2", str(Path(__file__).with_name("overlap_steps.py"))], stderr=subprocess.DEVNULL)
calls, until = [], time.monotonic() + 60
while time.monotonic() < until and (len(calls) < 2 or any(names.count("barrier") < 3 for names in calls)):
    time.sleep(0.2)
    asked = subprocess.run([*ncclx, "trace", str(job.pid), "--records", "16", "--json"], capture_output=True, text=True)
    ranks = json.loads(asked.stdout or "[]")
    ended = [[record for record in rank["records"] if not record["is_open"]] for rank in ranks]
    calls = [[record["operation"] for record in records] for records in ended]
job.terminate()
job.wait(30)

for rank, records in enumerate(ended):
    spans = [(-record["ago"] - record["seconds"], -record["ago"], record["operation"]) for record in records]
    first = next(k for k, span in enumerate(spans) if span[2] == "barrier")
    print(f"rank {rank}: {calls[rank].count('barrier')} barriers, and the waits in between")
    if len(sys.argv) > 1:  # a file for the picture: what each rank was in, and since when, in ms
        begin = spans[first][1]
        seen = [
            {"in": name, "from": round(1e3 * (a - begin), 3), "to": round(1e3 * (b - begin), 3)}
            for a, b, name in spans[first + 1 :]
        ]
        with open(sys.argv[1], "w" if rank == 0 else "a") as file:
            file.write(json.dumps({"rank": rank, "calls": seen}) + "\n")
