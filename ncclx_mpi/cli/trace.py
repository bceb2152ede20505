"""``ncclx trace``: what each rank of a running job is in, seen from outside."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from ncclx_mpi.bootstrap import lookout
from ncclx_mpi.cli.main import program_name
from ncclx_mpi.observe.describe import RankReport, ask_for_stacks, from_message, reports
from ncclx_mpi.observe.view import ArenaView, arenas_of, command_of, family, jobs


def main(args: list[str]) -> int:
    """Print the state of one job, or the list of jobs."""
    parser = argparse.ArgumentParser(prog=f"{program_name()} trace", description=__doc__)
    parser.add_argument("job", nargs="?", help="process id of a rank or of its launcher, or the job's number; none: list the jobs")
    parser.add_argument("-r", "--records", type=int, default=1, metavar="N", help="show the last N operations of each rank (1)")
    parser.add_argument("--stacks", action="store_true", help="have the ranks print their Python stacks to the job's stderr")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(args)
    if options.job is None:
        return _list_jobs(options.json)
    try:
        views = _open(options.job)
    except (LookupError, ValueError, PermissionError) as error:
        print(f"{program_name()} trace: {error}", file=sys.stderr)
        return 1
    found = reports(views, max(1, options.records))
    others = _of_other_hosts(views, found, options)
    if options.stacks:
        _ask_for_stacks(found)
    _print(sorted(found + others, key=lambda report: report.rank), options)
    return 0


def _open(job: str) -> list[ArenaView]:
    """The arenas of the job of a process, of what it started, or of the job with that number."""
    key = _job_of(int(job)) if job.isdigit() else 0
    for found in jobs():
        if f"{found.key:x}".startswith(f"{key:x}" if key else job.lower()) and (views := found.open()):
            return views
    if job.isdigit() and os.path.exists(f"/proc/{job}") and not os.access(f"/proc/{job}/fd", os.R_OK):
        raise PermissionError(f"process {job} belongs to another user; trace it as that user or as root")
    raise LookupError(
        f"{job} is neither a process with ranks below it nor the number of a job; `{program_name()} trace` lists the jobs"
    )


def _job_of(pid: int) -> int:
    """The number of the job of a process, or of what it started; 0 for none."""
    for number in family(pid):
        for path in arenas_of(number):
            with contextlib.suppress(OSError), contextlib.closing(ArenaView(path)) as view:
                return view.job
    return 0


def _list_jobs(is_json: bool) -> int:
    found = jobs()
    if is_json:
        print(json.dumps([{"job": f"{job.key:x}", "started_by": job.holder, "command": command_of(job.holder)} for job in found]))
        return 0
    if not found:
        print("no job of ncclx_mpi runs on this machine, or none that you may look at")
    for job in found:
        command, size = command_of(job.holder), job.world_size
        print(f"job {job.key:x}: {size} rank{'s' * (size > 1)}, process {job.holder}: {command[:100]}")
    return 0


def _print(found: list[RankReport], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps([asdict(report) for report in found], indent=1))
        return
    for report in found:
        print(report)
        for record in report.records if options.records > 1 else ():
            when = "running" if record.is_open else f"ended {record.ago:.3f} s ago"
            print(f"    #{record.sequence} {record}: {record.seconds * 1e6:.1f} us, {when}")


def _ask_for_stacks(found: list[RankReport]) -> None:
    for rank in ask_for_stacks(found):
        print(f"rank {rank} prints no stacks: it is not running, or `ncclx run` did not fork it", file=sys.stderr)
    time.sleep(0.2)


def _of_other_hosts(views: Sequence[ArenaView], here: Sequence[RankReport], options: argparse.Namespace) -> list[RankReport]:
    """What ranks of other hosts are in, as their agents say."""
    if len(here) == views[0].plan.world_size:
        return []
    try:
        ranks, missing = lookout.ask(views[0].job, max(1, options.records), options.stacks)
    except LookupError as error:
        print(f"{program_name()} trace: of {views[0].plan.world_size} ranks, {len(here)} are here; {error}", file=sys.stderr)
        return []
    if missing:
        print(f"{program_name()} trace: no answer from node {', '.join(map(str, missing))}", file=sys.stderr)
    known = {report.rank for report in here}  # hosts that are one machine show theirs, too
    return [report for report in map(from_message, ranks) if report.rank not in known]
