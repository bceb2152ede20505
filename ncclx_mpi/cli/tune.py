"""``ncclx bench --tune FILE``, under a launcher: measures the plans of this job, and writes them as a tuning table."""

from __future__ import annotations

import datetime
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclx_mpi import __version__, mpi4py_shim, tuning
from ncclx_mpi.bench import tune
from ncclx_mpi.bench.points import Point
from ncclx_mpi.bench.rounds import Effort
from ncclx_mpi.cli.main import program_name


def measure(path: Path, cases: Sequence[str], nbytes: Sequence[int], effort: Effort, machine: str) -> int:
    """Measure on all ranks; rank 0 prints the choices and their regret, and adds what was measured to the file."""
    mpi4py_shim.install()
    comm: Any = importlib.import_module("ncclx_mpi.MPI").COMM_WORLD
    wanted, earlier, wrong = comm.bcast(_prepared(path, comm.size, cases, nbytes) if comm.rank == 0 else None)
    if wrong:
        if comm.rank == 0:
            print(f"{program_name()} bench: {wrong}", file=sys.stderr)
        return 2
    measured = []
    for each in tune.measure(comm, wanted, effort):
        measured.append(each)
        if comm.rank == 0:
            print(f"# {len(measured)}/{len(wanted)} {each.point}", file=sys.stderr, flush=True)
    status: int = comm.bcast(_finish(path, measured, earlier, machine) if comm.rank == 0 else 0)
    return status


def _prepared(path: Path, size: int, cases: Sequence[str], nbytes: Sequence[int]) -> tuple[list[Point], tuning.Layouts, str]:
    """What is measured, what the file has already, and what is wrong."""
    if size == 1:
        return (
            [],
            {},
            "--tune measures between the ranks of a job: start it with a launcher, as in `ncclx run -n 4 ncclx bench --tune FILE`",
        )
    try:
        wanted = tune.points(size, cases or tune.CASES, nbytes)
        earlier = tuning.read(path).layouts if path.exists() else {}
        with path.open("a"):  # what cannot be written is known before it is measured
            pass
    except (OSError, ValueError) as error:
        return [], {}, f"--tune {path}: {error}"
    if not earlier and not path.stat().st_size:
        path.unlink()
    return wanted, earlier, "" if wanted else "--tune: no such point fits into memory; give other sizes with -b"


def _finish(path: Path, measured: Sequence[tune.Measured], earlier: tuning.Layouts, machine: str) -> int:
    nodes = measured[0].case.nodes
    where = f"{nodes.size} ranks on {nodes.number} nodes" if nodes else f"{measured[0].case.size} ranks on one node"
    print(f"# ncclx_mpi {__version__}, {machine}, {where}")
    print("\n".join(tune.report(measured)))
    for each in measured:
        if each.wrong:
            print(f"# {each.point}: {each.wrong} elements are wrong; {path} is not written")
            return 1
    _write(path, tune.layouts(measured, earlier), machine)
    print(f"# {path} is written: NCCLX_MPI_TUNING_FILE={path.resolve()} on all ranks chooses by it")
    if nodes is None:
        print("# on one node it chooses plans only, which run where a communicator has no slot in shared memory")
    return 0


def _write(path: Path, layouts: tuning.Layouts, machine: str) -> None:
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    partial = path.with_name(path.name + ".part")
    partial.write_text(tuning.text(layouts, {"date": date, "ncclx_mpi": __version__, "machine": machine}))
    partial.replace(path)
