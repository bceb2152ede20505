"""Speed of the device path on one GPU: kernels against the copy bandwidth, calls against staging over mpi4py, streams, a decode loop.

python benchmarks/gpu.py [--json FILE] [--ranks 2 4 8] [--mps] [--mpiexec PATH]

Takes at most 8 minutes. The peer is the same call on arrays of pinned host memory, allocated before, with a copy from and to the device
around it, over the MPI of ``mpiexec``; without one the column stays empty. All times are medians over repetitions of the slowest
rank's. Calls in streams are described in ``benchmarks/gpu_streams.py``, the decode loop in ``benchmarks/gpu_decode.py``.

A peer that travels in a folder, to a machine without network, is made elsewhere with the same version of Python::

    python -m pip install --prefix peer --ignore-installed --no-deps mpich mpi4py
    LD_LIBRARY_PATH=$PWD/peer/lib PYTHONPATH=$PWD/peer/lib/python3.12/site-packages python benchmarks/gpu.py --mpiexec $PWD/peer/bin/mpiexec
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks import gpu_decode, gpu_streams
from benchmarks.gpu_probe import Facts, machine, mps_daemon, open_driver
from numba_kernels.cuda import driver as drivers
from numba_kernels.cuda.driver import Driver, DriverError
from numba_kernels.cuda.kernel import Kernel
from numba_kernels.cuda.pack import Typemap
from numba_kernels.cuda.reduce import kernel_for

ROOT = Path(__file__).parents[1]
KIB, MIB = 1 << 10, 1 << 20
TOTAL_SECONDS, JOB_SECONDS, STREAMS_SECONDS, DECODE_SECONDS = 350.0, 60.0, 45.0, 75.0
SIZES = (8, KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
"""Bytes that one rank contributes to one destination."""

STREAMED_SIZES = (8, 64 * KIB, MIB)
OURS, PEER, STREAMS, DECODE = "ours", "staged over mpi4py", "streams", "decode"
THREADS, SECTOR = 512, 32


def goal(nbytes: int) -> float:
    """What part of the peer's time a call may take."""
    if nbytes >= 16 * MIB:
        return 0.1
    return 0.5 if nbytes >= MIB else 1.0


def main(arguments: list[str]) -> None:
    options = parser().parse_args(arguments)
    if options.worker:
        side, results = options.worker
        own = {DECODE: decode_ways, STREAMS: streamed_calls}
        if side in own:
            own[side](results)
        else:
            work(side, results)
        return
    from ncclx_mpi.compile_cache import warm

    driver = open_driver()
    driver.use(0)
    begun, deadline = time.monotonic(), time.monotonic() + TOTAL_SECONDS
    mode = "MPS" if options.mps else "time-sliced"
    facts = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "mode": mode, "machine": machine(driver)}
    facts["kernels"] = kernels(driver)
    show_kernels(facts["kernels"])
    keep(options.json, facts)
    warm.ensure(everything=True)  # on a new machine it takes as long as a job of ranks may
    with mps_daemon() if options.mps else contextlib.nullcontext({}) as environment:
        everything = {**os.environ, **environment}
        facts["calls"] = calls(options, everything, deadline)
        show_calls(facts["calls"], facts["kernels"]["copy"].get("bandwidth"), mode)
        keep(options.json, facts)
        facts["streams"] = streams(options, everything, time.monotonic() + STREAMS_SECONDS)
        show_streams(facts["streams"], mode)
        keep(options.json, facts)
        facts["decode"] = decode(options, everything, time.monotonic() + DECODE_SECONDS)
        show_decode(facts["decode"], mode)
        keep(options.json, facts)
    print(f"took {time.monotonic() - begun:.0f} s")


def keep(path: str | None, facts: Facts) -> None:
    """Write what has been measured so far: whatever happens next, it is not lost."""
    sys.stdout.flush()
    if path:
        Path(path).write_text(json.dumps(facts, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="gpu.py", description="Speed of the device path on one GPU.")
    made.add_argument("--json", metavar="FILE", help="write everything there")
    made.add_argument("--ranks", nargs="+", type=int, default=[2, 4, 8], metavar="N", help="numbers of ranks (2 4 8)")
    made.add_argument("--mps", action="store_true", help="run the ranks under an MPS daemon of their own instead of time-sliced")
    made.add_argument(
        "--mpiexec", default=shutil.which("mpiexec"), metavar="PATH", help="of the MPI that mpi4py is to use for the peer"
    )
    made.add_argument("--worker", nargs=2, metavar=("SIDE", "FILE"), help=argparse.SUPPRESS)
    return made


# Kernels


class Sizes:
    """How much is moved; the tests of this program, which have no GPU, take less."""

    block = 256 * MIB
    times = 20


def kernels(driver: Driver) -> Facts:
    """Bandwidth of reductions and of packing, counting bytes read plus written, and of a copy on the device."""
    stream = driver.create_stream()
    blocks = [driver.allocate(Sizes.block) for _ in range(10)]
    for block in blocks:
        driver.fill(block, 0, Sizes.block, stream)
    grid = 4 * driver.multiprocessors(0)
    results: Facts = {}

    def measure(name: str, moved: int, enqueue: Callable[[int], None]) -> None:
        try:
            seconds = back_to_back(driver, stream, enqueue)
            results[name] = {"bytes": moved, "seconds": seconds, "bandwidth": moved / seconds}
        except Exception as error:
            results[name] = {"failed": f"{type(error).__name__}: {error}"}

    def launch(kernel: Kernel, arguments: Sequence[int]) -> None:
        driver.launch(kernel, stream, grid, THREADS, arguments)

    measure("copy", 2 * Sizes.block, lambda k: driver.copy(blocks[k % 10], blocks[(k + 5) % 10], Sizes.block, stream))
    for sources in (2, 4, 8):
        add = kernel_for("sum", "f32", sources)
        assert add is not None

        def reduce(k: int, add: Kernel = add, sources: int = sources) -> None:
            turned = [blocks[(k + j) % 10] for j in range(sources + 1)]
            launch(add, [turned[0], Sizes.block // 4, *turned[1:]])

        measure(f"sum of {sources} x float32", (sources + 1) * Sizes.block, reduce)
    for name, face in faces().items():

        def pack(k: int, face: Face = face) -> None:
            made = face.typemap.launch(blocks[k % 4], blocks[4 + k % 4], unpacking=bool(k % 2))
            launch(made.kernel, made.arguments)

        measure(f"pack and unpack of {name}", face.moved, pack)
    with contextlib.suppress(DriverError):  # a kernel that failed takes the context along, and the ranks have their own
        for block in blocks:
            driver.free(block)
    return results


def back_to_back(driver: Driver, stream: int, enqueue: Callable[[int], None]) -> float:
    """Seconds for each of many operations, enqueued one after another."""
    enqueue(0)
    enqueue(1)
    driver.synchronize(stream)
    begun = time.perf_counter()
    for k in range(Sizes.times):
        enqueue(k)
    driver.synchronize(stream)
    return (time.perf_counter() - begun) / Sizes.times


class Face(NamedTuple):
    """Part of a block, and the bytes that packing it moves: the sectors that it touches, and the packed ones."""

    typemap: Typemap
    moved: int


def faces() -> dict[str, Face]:
    """Faces of arrays as large as a block: of single elements, of a halo of eight, of rows."""
    made = {}
    for name, nbytes, stride in (("4 of 256 bytes", 4, 256), ("32 of 512 bytes", 32, 512), ("4096 of 8192 bytes", 4096, 8192)):
        count, touched = Sizes.block // stride, -(-nbytes // SECTOR) * SECTOR
        made[name] = Face(Typemap(np.array([[0, nbytes]], np.int64), stride, count), count * (touched + nbytes))
    return made


def show_kernels(results: Facts) -> None:
    copied = results["copy"].get("bandwidth", float("nan"))
    print(f"\n{'kernel':<40}{'us':>10}{'GB/s':>10}{'of a copy':>12}")
    for name, found in results.items():
        if "failed" in found:
            print(f"{name:<40}{found['failed']}")
        else:
            share = found["bandwidth"] / copied
            print(f"{name:<40}{1e6 * found['seconds']:>10.1f}{found['bandwidth'] / 1e9:>10.0f}{share:>12.0%}", flush=True)


# Calls


def calls(options: argparse.Namespace, environment: dict[str, str], deadline: float) -> list[Facts]:
    """A row for each call, number of ranks and size: seconds of both sides."""
    rows: dict[tuple[str, int, int], Facts] = {}
    for ranks in options.ranks:
        for side in (OURS, PEER):
            seconds = min(JOB_SECONDS, deadline - time.monotonic())
            command = launcher(options, side, ranks)
            for name, nbytes, found in job(command, side, environment, seconds) if command and seconds > 10 else ():
                row = rows.setdefault((name, ranks, nbytes), {"call": name, "ranks": ranks, "bytes": nbytes})
                row[side] = found
    return sorted(rows.values(), key=lambda row: (row["ranks"], row["call"], row["bytes"]))


def launcher(options: argparse.Namespace, side: str, ranks: int) -> list[str]:
    """The command that starts ranks, up to the program; empty if there is none."""
    if side != PEER:
        return [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(ranks)]
    return [options.mpiexec, "-n", str(ranks), sys.executable] if options.mpiexec else []


def job(command: list[str], side: str, environment: dict[str, str], seconds: float) -> list[tuple[str, int, float]]:
    """Run the ranks of one side; what they measured, as far as they came."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        everything = {**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])}
        arguments = [*command, str(Path(__file__).resolve()), "--worker", side, str(results)]
        try:
            done = subprocess.run(arguments, env=everything, timeout=seconds, capture_output=True, text=True)
            if done.returncode:
                print(f"{side}: status {done.returncode}: {done.stderr[-800:]}", file=sys.stderr)
        except subprocess.TimeoutExpired:
            print(f"{side}: stopped after {seconds:.0f} s: {' '.join(arguments)}", file=sys.stderr)
        lines = results.read_text().splitlines() if results.exists() else []
        return [tuple(json.loads(line)) for line in lines]


def show_calls(rows: list[Facts], copied: float | None, mode: str) -> None:
    print(
        f"\n{'call, ' + mode:<24}{'ranks':>6}{'bytes':>12}{'ours, us':>12}{'staged, us':>12}{'ratio':>8}{'goal':>6}{'of a copy':>11}"
    )
    for row in rows:
        ours, peer = row.get(OURS), row.get(PEER)
        ratio = f"{ours / peer:.2f}" if ours and peer else "-"
        share = f"{moved(row['call'], row['ranks'], row['bytes']) / ours / copied:.0%}" if ours and copied else "-"
        times = "".join(f"{1e6 * seconds:>12.1f}" if seconds else f"{'-':>12}" for seconds in (ours, peer))
        print(f"{row['call']:<24}{row['ranks']:>6}{row['bytes']:>12}{times}{ratio:>8}{goal(row['bytes']):>6.1f}{share:>11}")


# Streams


def streams(options: argparse.Namespace, environment: dict[str, str], deadline: float) -> list[Facts]:
    """A row for each call in a stream, size and number of ranks."""
    return rows_of(STREAMS, ("call", "ranks", "bytes", *gpu_streams.Measured._fields), options, environment, deadline)


def rows_of(
    part: str, fields: tuple[str, ...], options: argparse.Namespace, environment: dict[str, str], deadline: float
) -> list[Facts]:
    """What a part of this program prints with each number of ranks, as long as there is time."""
    rows: list[Facts] = []
    for ranks in options.ranks:
        seconds = deadline - time.monotonic()
        if seconds > 10:
            rows += [dict(zip(fields, row, strict=True)) for row in job(launcher(options, part, ranks), part, environment, seconds)]
    return rows


def streamed_calls(results: str) -> None:
    """What a rank does: measures all calls in a stream."""
    from mpi4py import MPI

    driver, comm = rank_driver(), MPI.COMM_WORLD
    comm.prepare(2 * comm.size * max(STREAMED_SIZES) + MIB, [(MPI.SUM, MPI.FLOAT)])
    stream = driver.create_stream()
    for name in gpu_streams.CALLS:
        for nbytes in STREAMED_SIZES if name != "Barrier" else (0,):
            found = gpu_streams.measure(comm, driver, stream, name, nbytes)
            if comm.rank == 0:
                with open(results, "a") as file:
                    file.write(json.dumps([name, comm.size, nbytes, *found]) + "\n")


def rank_driver() -> Driver:
    """The machine's driver, which from here on all in this process use; this rank's GPU is current."""
    from mpi4py import MPI

    drivers.find()
    driver = drivers.current()
    assert driver is not None
    driver.use(MPI.COMM_WORLD.rank % driver.device_count())
    return driver


def show_streams(rows: list[Facts], mode: str) -> None:
    print(f"\n{'in a stream, ' + mode:<24}{'ranks':>6}{'bytes':>12}{'us to enqueue':>15}{'goal':>6}{'us':>10}")
    for row in rows:
        goal = f"{1e6 * gpu_streams.GOAL_SECONDS:.0f}" if row["ranks"] == gpu_streams.GOAL_RANKS else "-"
        times = f"{1e6 * row['enqueue_seconds']:>15.1f}{goal:>6}{1e6 * row['seconds']:>10.1f}"
        print(f"{row['call']:<24}{row['ranks']:>6}{row['bytes']:>12}{times}")


# Decoding


def decode(options: argparse.Namespace, environment: dict[str, str], deadline: float) -> list[Facts]:
    """A row for each way, number of experts a token and number of ranks."""
    return rows_of(DECODE, ("way", "top", "ranks", *gpu_decode.Measured._fields), options, environment, deadline)


def decode_ways(results: str) -> None:
    """What a rank does: measures all ways."""
    from mpi4py import MPI

    driver, comm = rank_driver(), MPI.COMM_WORLD
    comm.prepare(1 << 20)
    stream = driver.create_stream()
    for top in (1, 4):
        for way in gpu_decode.WAYS:
            found = gpu_decode.measure(comm, driver, stream, way, gpu_decode.Shape(top=top))
            if comm.rank == 0:
                with open(results, "a") as file:
                    file.write(json.dumps([way, top, comm.size, *found]) + "\n")


def show_decode(rows: list[Facts], mode: str) -> None:
    print(
        f"\n{'decode step, ' + mode:<24}{'ranks':>6}{'top':>5}{'us':>10}{'of ours':>9}{'MB sent':>9}{'waits':>7}{'us to enqueue':>15}"
    )
    ours = {(row["ranks"], row["top"]): row["seconds"] for row in rows if row["way"] == gpu_decode.WAYS[0]}
    for row in rows:
        ratio = row["seconds"] / ours[row["ranks"], row["top"]]
        times = f"{1e6 * row['seconds']:>10.1f}{ratio:>9.2f}{row['bytes'] / 1e6:>9.1f}{row['waits']:>7}"
        print(f"{row['way']:<24}{row['ranks']:>6}{row['top']:>5}{times}{1e6 * row['enqueue_seconds']:>15.1f}")


def moved(call: str, ranks: int, nbytes: int) -> int:
    """Bytes that must be read and written on the GPU."""
    return nbytes * {"Allreduce": 2 * ranks, "Alltoall": 2 * ranks * ranks, "Bcast": ranks, "Sendrecv": 2 * ranks}[call]


# Ranks


class CuPy:
    """What a rank asks of its array library."""

    def __init__(self) -> None:
        import cupy
        import cupyx

        self.cupy, self.cupyx = cupy, cupyx

    def array(self, count: int, value: float) -> Any:
        """A device array of float32."""
        return self.cupy.full(count, value, np.float32)

    def pinned(self, count: int) -> np.ndarray:
        """A pinned host array of float32."""
        return self.cupyx.zeros_pinned(count, np.float32)

    def to_host(self, target: np.ndarray, source: Any) -> None:
        """Copy from the device; complete on return."""
        source.get(out=target)

    def to_device(self, target: Any, source: np.ndarray) -> None:
        """Copy to the device; complete on return."""
        target.set(source)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for the current stream."""
        self.cupy.cuda.get_current_stream().synchronize()


def work(side: str, results: str) -> None:
    """What a rank does: measures all calls at all sizes. The longest come last: where time runs out, it is they that are missing."""
    from mpi4py import MPI

    comm, library = MPI.COMM_WORLD, CuPy()
    for nbytes in SIZES:
        for name in CALLS:
            seconds = measure_call(comm, library, name, nbytes, is_staged=side == PEER)
            if comm.rank == 0:
                with open(results, "a") as file:
                    file.write(json.dumps([name, nbytes, seconds]) + "\n")


CALLS: dict[str, Callable[[Any, int], tuple[int, int]]] = {
    "Allreduce": lambda comm, count: (count, count),
    "Alltoall": lambda comm, count: (comm.size * count, comm.size * count),
    "Bcast": lambda comm, count: (count, 0),
    "Sendrecv": lambda comm, count: (count, count),
}
"""How many elements a rank gives and gets, of `count` from one rank to another."""


def measure_call(comm: Any, library: Any, name: str, nbytes: int, *, is_staged: bool, seconds: float = 0.25) -> float:
    """Median time of the slowest rank, checked once."""
    given, got = CALLS[name](comm, max(nbytes // 4, 1))
    sent, received = library.array(given, comm.rank + 1.0), library.array(got, 0.0)
    call = staged(comm, library, name, sent, received) if is_staged else direct(comm, library, name, sent, received)
    call()
    check(comm, library, name, sent if name == "Bcast" else received)
    times = [timed(comm, call) for _ in range(3)]
    repetitions = min(int(seconds / max(statistics.median(times), 1e-6)) + 3, 200)
    return statistics.median(timed(comm, call) for _ in range(comm.bcast(repetitions)))


def timed(comm: Any, call: Callable[[], None]) -> float:
    """Seconds from a barrier until the slowest rank is through; on rank 0."""
    from mpi4py import MPI

    comm.Barrier()
    begun = time.perf_counter()
    call()
    mine, slowest = np.array([time.perf_counter() - begun]), np.zeros(1)
    comm.Reduce(mine, slowest, MPI.MAX)
    return float(slowest[0])


def direct(comm: Any, library: Any, name: str, sent: Any, received: Any) -> Callable[[], None]:
    """The call on device arrays; a Sendrecv goes round the ring."""
    if name == "Sendrecv":
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        return lambda: comm.Sendrecv(sent, after, recvbuf=received, source=before)
    arguments = (sent,) if name == "Bcast" else (sent, received)
    return lambda: getattr(comm, name)(*arguments)


def staged(comm: Any, library: Any, name: str, sent: Any, received: Any) -> Callable[[], None]:
    """The call on pinned host arrays, with the copies that a program makes around it."""
    out, back = library.pinned(sent.size), library.pinned(received.size)
    is_bcast = name == "Bcast"
    on_host = direct(comm, library, name, out, back)

    def call() -> None:
        if not is_bcast or comm.rank == 0:
            library.to_host(out, sent)
        on_host()
        if not is_bcast or comm.rank != 0:
            library.to_device(sent if is_bcast else received, out if is_bcast else back)

    return call


def check(comm: Any, library: Any, name: str, received: Any) -> None:
    """Raise ValueError unless the right values have come."""
    found = np.zeros(received.size, np.float32)
    library.to_host(found, received)
    ranks = np.arange(1, comm.size + 1, dtype=np.float32)
    blocks = np.repeat(ranks, found.size // comm.size)
    wanted = {"Allreduce": ranks.sum(), "Bcast": 1.0, "Alltoall": blocks, "Sendrecv": ranks[comm.rank - 1]}[name]
    if not (found == wanted).all():
        raise ValueError(f"rank {comm.rank}: {name} of {found.size} elements gives wrong values")


if __name__ == "__main__":
    main(sys.argv[1:])
