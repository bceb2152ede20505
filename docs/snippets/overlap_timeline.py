# ranks: none
import json
import subprocess
import sys
import time
from pathlib import Path

ncclx = [sys.executable, "-m", "ncclx_mpi"]


def spans_of(records: list[dict]) -> list[tuple[str, float, float]]:
    """What a rank was in, from when to when, in seconds before now; a wait that was looked after in between has several notes."""
    starts = [-record["ago"] - record["seconds"] for record in records]
    ends = [start if record["is_open"] else -record["ago"] for record, start in zip(records, [*starts[1:], 0.0], strict=True)]
    return list(zip([record["operation"] for record in records], starts, ends, strict=True))


job = subprocess.Popen([*ncclx, "run", "-n", "2", str(Path(__file__).with_name("overlap_steps.py"))], stderr=subprocess.DEVNULL)
ranks, until = [], time.monotonic() + 60
while time.monotonic() < until and (len(ranks) < 2 or any([name for name, *_ in spans].count("barrier") < 3 for spans in ranks)):
    time.sleep(0.2)
    asked = subprocess.run([*ncclx, "trace", str(job.pid), "--records", "31", "--json"], capture_output=True, text=True)
    noted = [report["records"] for report in json.loads(asked.stdout or "[]")]
    ranks = [spans_of(records) for records in noted if records and not records[-1]["is_open"]]
job.terminate()
job.wait(30)

lines = []
for rank, spans in enumerate(ranks):
    barriers = [k for k, (name, *_) in enumerate(spans) if name == "barrier"]
    print(f"rank {rank}: {len(barriers)} barriers, and the waits in between")
    begin = spans[barriers[0]][2]
    seen = [
        {"in": name, "from": round(1e3 * (a - begin), 3), "to": round(1e3 * (b - begin), 3)}
        for name, a, b in spans[barriers[0] + 1 :]
    ]
    lines.append(json.dumps({"rank": rank, "calls": seen}) + "\n")
if len(sys.argv) > 1:  # a file for the picture, in ms
    Path(sys.argv[1]).write_text("".join(lines))
