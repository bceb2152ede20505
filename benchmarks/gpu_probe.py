"""What a machine with a GPU can do that the device path relies on; run it first, it takes at most 4 minutes.

python benchmarks/gpu_probe.py [--only SECTION ...] [--json FILE]

Each section is a process of its own with a time limit, so that one that fails or hangs costs the others nothing. Nothing is installed, no
setting of the GPU is changed; the MPS daemon, where there is one, is started in a private folder and ended.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import mmap
import multiprocessing
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.gpu_decode import EXPERT, ROUTE
from numba_kernels.cuda import cache
from numba_kernels.cuda.driver import WAIT_AT_LEAST, WRITE, Driver, DriverError, Step
from numba_kernels.cuda.intrinsics import load_i64, store_i64
from numba_kernels.cuda.kernel import Kernel
from numba_kernels.cuda.library import Library
from numba_kernels.cuda.loaded import NAME

MIB = 1 << 20
HOPPER = 9, 0
TOTAL_SECONDS = 225
DAEMON_SECONDS = 15
"""What starting and ending the MPS daemon may take."""
LIMIT_SECONDS = 20.0
"""How long anything is waited for; a stream that is still blocked then is released by the host."""

Facts = dict[str, Any]


def nothing(thread, threads, a):
    """Return at once."""


def nothing_16(thread, threads, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q):
    """Return at once, after 16 parameters were passed."""


def stir(thread, threads, target, count, rounds):
    """Take a time in proportion to `rounds`."""
    i = thread
    while i < count:
        value, k = load_i64(target + 8 * i), 0
        while k < rounds:
            value = value * 6364136223846793005 + 1442695040888963407
            k += 1
        store_i64(target + 8 * i, value)
        i += threads


EMPTY = Kernel("probe_empty", nothing, parameters=1)
EMPTY_16 = Kernel("probe_empty_16", nothing_16, parameters=16)
STIR = Kernel("probe_stir", stir, parameters=3)
KERNELS_OF_PROGRAMS = EMPTY, EMPTY_16, STIR, ROUTE, EXPERT
"""What this program and ``gpu.py`` launch besides the kernels of the package."""


class Sizes:
    """How much is measured; the tests of this program, which have no GPU, take less."""

    rounds = 200
    block = 256 * MIB
    pinned = 64 * MIB
    stir_blocks = 128
    stir_rounds = 20_000


def main(arguments: list[str]) -> None:
    options = parser().parse_args(arguments)
    if options.compile_to:
        for kernel in KERNELS_OF_PROGRAMS:
            print(cache.write(Path(options.compile_to), kernel.name, kernel.digest, HOPPER, kernel.compile(HOPPER)))
        return
    if options.section:
        print(json.dumps(run_section(options.section)))
        return
    open_driver()
    facts = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    begun = time.monotonic()
    for name in options.only or SECTIONS:
        left = TOTAL_SECONDS - (time.monotonic() - begun)
        facts[name] = in_process(name, min(left, SECONDS.get(name, 30.0)), {})
        show(name, facts[name])
    if "two" in (options.only or SECTIONS):
        facts["two under MPS"] = with_mps(TOTAL_SECONDS - DAEMON_SECONDS - (time.monotonic() - begun))
        show("two under MPS", facts["two under MPS"])
    print(f"took {time.monotonic() - begun:.0f} s")
    if options.json:
        Path(options.json).write_text(json.dumps(facts, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="gpu_probe.py", description="What a machine with a GPU can do that the device path relies on."
    )
    made.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"some of: {', '.join(SECTIONS)}")
    made.add_argument("--json", metavar="FILE", help="write all facts there")
    made.add_argument(
        "--compile-to",
        metavar="FOLDER",
        help="compile its kernels and those of gpu.py ahead, for $NCCLX_MPI_CUBINS where there is no NVVM",
    )
    made.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    return made


def open_driver() -> Library:
    """The machine's driver; one sentence and an end without one."""
    try:
        driver = Library(ctypes.CDLL(NAME))
        if driver.device_count():
            return driver
        reason = "the driver finds no device"
    except (OSError, DriverError) as error:
        reason = str(error)
    sys.exit(f"there is no GPU here that could be measured: {reason}")


def run_section(name: str) -> Facts:
    """The facts of one section, in this process."""
    driver = open_driver()
    driver.use(0)
    return SECTIONS[name](driver)


def in_process(name: str, seconds: float, environment: dict[str, str]) -> Facts:
    """The facts of one section, or what went wrong."""
    if seconds < 5:
        return {"skipped": "no time left"}
    command = [sys.executable, str(Path(__file__).resolve()), "--section", name]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        try:
            done = subprocess.run(command, stdout=output, stderr=complaints, timeout=seconds, env={**os.environ, **environment})
            end = f"status {done.returncode}"
        except subprocess.TimeoutExpired:  # what it had found it may have printed: a driver can also hang at the end
            end = f"not over after {seconds:.0f} s"
        output.seek(0)
        complaints.seek(0)
        text, said = output.read(), complaints.read()
    try:
        return json.loads(text.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"failed": end, "output": (text + said)[-600:]}


def show(name: str, facts: Facts) -> None:
    print(f"\n{name}")
    for key, value in facts.items():
        print(f"  {key:<58} {value if not isinstance(value, float) else f'{value:,.2f}'}", flush=True)


@contextlib.contextmanager
def mps_daemon() -> Iterator[dict[str, str]]:
    """A daemon of one's own: the environment in which processes are its clients. The compute mode is left alone."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise OSError("there is no nvidia-cuda-mps-control on this machine")
    # The daemon may still be emptying the folder when it is removed.
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        everything = {**os.environ, **environment}
        started = subprocess.run([control, "-d"], env=everything, capture_output=True, text=True, timeout=DAEMON_SECONDS)
        if started.returncode:
            raise OSError(f"the daemon does not start: {(started.stdout + started.stderr).strip()[-300:]}")
        try:
            yield environment
        finally:
            with contextlib.suppress(subprocess.SubprocessError):  # what was measured is worth more
                subprocess.run(
                    [control], input="quit -t 5\n", env=everything, text=True, capture_output=True, timeout=DAEMON_SECONDS
                )


def with_mps(seconds: float) -> Facts:
    """The section of two processes under a daemon of its own."""
    if seconds < 2 * DAEMON_SECONDS:
        return {"skipped": "no time left"}
    try:
        with mps_daemon() as environment:
            return in_process("two", min(seconds - DAEMON_SECONDS, SECONDS["two"]), environment)
    except (OSError, subprocess.SubprocessError) as reason:
        return {"skipped": str(reason)}


class Shared:
    """An anonymous memory file as the arena is one, pinned; `words` are its 64-bit words, `base` is its address.

    `fd` is another process's file to map instead of a new one.
    """

    def __init__(self, driver: Driver, nbytes: int = 4096, fd: int = -1, *, is_pinned: bool = True) -> None:
        self.driver = driver
        self.fd = fd if fd >= 0 else os.memfd_create("gpu_probe")
        os.ftruncate(self.fd, nbytes)
        self.words = np.frombuffer(mmap.mmap(self.fd, nbytes), np.int64)
        self.base = int(self.words.ctypes.data)
        self.is_pinned = False
        if is_pinned:
            self.pin()

    def pin(self) -> None:
        """Register it with the driver."""
        self.driver.register_host(self.base, self.words.nbytes)
        self.is_pinned = True

    def close(self) -> None:
        """Undo everything."""
        if self.is_pinned:
            self.driver.unregister_host(self.base)
        os.close(self.fd)


def until(is_true: Callable[[], bool]) -> None:
    """Wait, not for ever."""
    end = time.monotonic() + LIMIT_SECONDS
    while not is_true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {LIMIT_SECONDS:.0f} s")


def per_round(step: Callable[[int], None]) -> float:
    """Median time of ``step(1)``, ``step(2)``, ..., in microseconds."""
    times = []
    for k in range(1, Sizes.rounds + 1):
        begun = time.perf_counter()
        step(k)
        times.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times)


def attempt(call: Callable[[], Any]) -> str:
    """What a call returns or raises."""
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def explaining(facts: Facts, what: str) -> Iterator[None]:
    """Turn an error of the body into a fact."""
    try:
        yield
    except Exception as error:
        facts[f"{what} failed"] = f"{type(error).__name__}: {error}"


# Sections


def machine(driver: Driver) -> Facts:
    """Versions, libraries, tools."""
    facts: Facts = {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count()}
    for name in ("numba", "numba-cuda", "llvmlite", "numpy", "cupy-cuda13x", "cuda-bindings", "nvidia-nvvm", "mpi4py"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts[name] = importlib.metadata.version(name)
    for tool in ("ptxas", "nvcc", "nvidia-cuda-mps-control"):
        facts[tool] = shutil.which(tool) or "not there"
    if shutil.which("nvidia-smi"):
        asked = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,compute_mode,memory.total,mig.mode.current",
            "--format=csv,noheader",
        ]
        with explaining(facts, "nvidia-smi"):
            facts["nvidia-smi"] = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.strip()
    facts["devices"] = [f"{driver.uuid(k).hex()} sm_{''.join(map(str, driver.arch(k)))}" for k in range(driver.device_count())]
    facts["multiprocessors"] = driver.multiprocessors(0)
    begun = time.perf_counter()
    try:
        facts["compiled kernel, bytes"] = len(STIR.compile(driver.arch(0)))
        facts["compile time, s"] = time.perf_counter() - begun
    except Exception as error:
        facts["compile (NVVM, linker)"] = f"{type(error).__name__}: {error}"
    return facts


def calls(driver: Driver) -> Facts:
    """Host cost of driver functions, in microseconds."""
    stream, other = driver.create_stream(), driver.create_stream()
    address = driver.allocate(MIB)
    shared = Shared(driver)
    steps = [Step(WRITE, shared.base + 8 * k, 1) for k in range(4)]
    facts: Facts = {}

    def cost(what: str, call: Callable[[], Any]) -> None:
        times = []
        for k in range(Sizes.rounds):
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
            if k % 50 == 49:
                driver.synchronize(stream)
        facts[f"{what}, us"] = 1e6 * statistics.median(times)

    cost("memory (pointer attributes)", lambda: driver.memory(address))
    cost("memory of a host pointer", lambda: driver.memory(id(facts)))
    cost("current_device", driver.current_device)
    cost("use", lambda: driver.use(0))
    cost("is_idle", lambda: driver.is_idle(stream))
    cost("is_capturing", lambda: driver.is_capturing(stream))
    cost("batch of 1 write", lambda: driver.batch(stream, steps[:1]))
    cost("batch of 4 writes", lambda: driver.batch(stream, steps))
    cost("copy of 8 bytes on the device", lambda: driver.copy(address, address + 4096, 8, stream))
    cost("fill of 8 bytes", lambda: driver.fill(address, 0, 8, stream))
    cost("record and wait", lambda: driver.wait(other, driver.record(stream)))
    cost("synchronize, idle", lambda: driver.synchronize(stream))
    with explaining(facts, "launch"):
        cost("launch of 1 parameter", lambda: driver.launch(EMPTY, stream, 1, 32, [0]))
        cost("launch of 16 parameters", lambda: driver.launch(EMPTY_16, stream, 1, 32, [0] * 16))
        cost("launch and synchronize", lambda: (driver.launch(EMPTY, stream, 1, 32, [0]), driver.synchronize(stream)))
    driver.synchronize(stream)
    shared.close()
    return facts


def words(driver: Driver) -> Facts:
    """Stream memory operations on words of pinned shared memory and of device memory."""
    facts: Facts = {}
    stream = driver.create_stream()
    shared = Shared(driver)
    base, table = shared.base, shared.words

    def write_seen(k: int) -> None:
        driver.batch(stream, [Step(WRITE, base, k)])
        until(lambda: table[0] == k)

    def round_trip(k: int) -> None:
        driver.batch(stream, [Step(WAIT_AT_LEAST, base + 64, k), Step(WRITE, base + 128, k)])
        table[8] = k
        until(lambda: table[16] == k)

    facts["stream writes a word, host sees it, us"] = per_round(write_seen)
    facts["host writes, stream waits and writes, host sees it, us"] = per_round(round_trip)
    device_word = driver.allocate(64)
    driver.fill(device_word, 0, 64, stream)
    waiting, writing = driver.create_stream(), driver.create_stream()
    driver.synchronize(stream)

    def between_streams(k: int) -> None:
        driver.batch(waiting, [Step(WAIT_AT_LEAST, device_word, k)])
        driver.batch(writing, [Step(WRITE, device_word, k)])
        driver.synchronize(waiting)

    facts["one stream waits for another's write on the device, us"] = per_round(between_streams)
    last = (1 << 64) - 2
    driver.batch(waiting, [Step(WRITE, device_word, last), Step(WAIT_AT_LEAST, device_word, last - 3)])
    driver.batch(waiting, [Step(WRITE, device_word, 3), Step(WAIT_AT_LEAST, device_word, last)])
    until(lambda: driver.is_idle(waiting))
    facts["compares cyclically"] = True
    shared.close()
    return facts


def memory(driver: Driver) -> Facts:
    """What the driver says of addresses, and what handles do."""
    facts: Facts = {}
    address = driver.allocate(1000)
    facts["allocate(1000)"] = str(driver.memory(address))
    facts["interior address has the same base"] = driver.memory(address + 999) == driver.memory(address)
    other = driver.allocate(1000)
    facts["second allocation, distance"] = other - address
    handle = driver.export(address)
    facts["handle of an interior address equals the base's"] = attempt(lambda: driver.export(address + 512) == handle)
    facts["opening the own handle"] = attempt(lambda: driver.open(handle))
    driver.free(other)
    again = driver.allocate(1000)
    facts["address used again after free"] = again == other
    for megabytes in (1, 16, 64):
        shared = Shared(driver, megabytes * MIB, is_pinned=False)
        shared.words[:] = 1
        begun = time.perf_counter()
        shared.pin()
        facts[f"register {megabytes} MiB of a memory file, us"] = 1e6 * (time.perf_counter() - begun)
        facts["registered memory"] = str(driver.memory(shared.base))
        shared.close()
    with explaining(facts, "CuPy"):
        facts.update(cupy_memory(driver))
    return facts


def cupy_memory(driver: Driver) -> Facts:
    """Where CuPy's arrays are."""
    try:
        import cupy
    except ImportError:
        return {"CuPy": "not installed"}
    one, two = cupy.zeros(100, "f4"), cupy.zeros(100, "f4")
    found = driver.memory(one.data.ptr)
    facts = {"pooled CuPy array": str(found), "two small ones share a base": found == driver.memory(two.data.ptr)}
    runtime = cupy.cuda.runtime
    facts["cudaMallocAsync"] = str(driver.memory(runtime.mallocAsync(1 << 20, 0)))
    facts["managed"] = str(driver.memory(runtime.mallocManaged(1 << 20)))
    facts["its current stream"] = cupy.cuda.get_current_stream().ptr
    facts["stream of its interface"] = one.__cuda_array_interface__.get("stream")
    return facts


def bandwidth(driver: Driver) -> Facts:
    """Copies, in GB/s of the bytes of one side; on the device of those read plus those written."""
    facts: Facts = {}
    stream, nbytes = driver.create_stream(), Sizes.block
    blocks = [driver.allocate(nbytes) for _ in range(4)]
    for block in blocks:
        driver.fill(block, 1, nbytes, stream)
    pairs = [(blocks[k], blocks[(k + 1) % 4]) for k in range(4)]

    def rate(what: str, nbytes: int, enqueue: Callable[[int], None], factor: int = 1, times: int = 20) -> None:
        enqueue(0)
        driver.synchronize(stream)
        begun = time.perf_counter()
        for k in range(times):
            enqueue(k)
        driver.synchronize(stream)
        facts[f"{what}, GB/s"] = factor * times * nbytes / (time.perf_counter() - begun) / 1e9

    rate("device to device, read plus written", nbytes, lambda k: driver.copy(*pairs[k % 4], nbytes, stream), factor=2)
    few = min(Sizes.pinned, nbytes)
    shared = Shared(driver, few)
    rate("pinned memory file to device", few, lambda k: driver.copy(blocks[0], shared.base, few, stream))
    rate("device to pinned memory file", few, lambda k: driver.copy(shared.base, blocks[0], few, stream))
    shared.close()
    plain = np.ones(few, np.uint8)
    rate("pageable to device", few, lambda k: driver.copy(blocks[0], plain.ctypes.data, few, stream), times=4)
    with explaining(facts, "reduction kernel"):
        from numba_kernels.cuda.reduce import kernel_for

        kernel = kernel_for("sum", "f32", 2)
        assert kernel is not None
        grid = 4 * driver.multiprocessors(0), 512

        def add(k: int) -> None:
            driver.launch(kernel, stream, *grid, [blocks[k % 4], nbytes // 4, blocks[(k + 1) % 4], blocks[(k + 2) % 4]])

        rate("sum of 2 x float32, read plus written", nbytes, add, factor=3)
    for block in blocks:
        driver.free(block)
    return facts


def two(driver: Driver, open_second: Callable[[], Driver] = open_driver) -> Facts:
    """Two processes on one GPU: handles, words, and how their work shares it."""
    context = multiprocessing.get_context("spawn")
    shared = Shared(driver)
    ours, theirs = context.Pipe()
    child = context.Process(target=serve, args=(theirs, DupFd(shared.fd), open_second), daemon=True)
    child.start()
    facts: Facts = {}
    try:
        with explaining(facts, "two processes"):
            Pair(driver, ours, shared, facts).run()
    finally:
        shared.words[:] = 1 << 62  # whoever still waits is released
        with contextlib.suppress(OSError):
            ours.send(None)
        child.join(10)
        child.kill()
    shared.close()
    return facts


SECTIONS: dict[str, Callable[[Driver], Facts]] = {
    function.__name__: function for function in (machine, calls, words, memory, bandwidth, two)
}
SECONDS = {"machine": 45.0, "two": 60.0}
"""Limits of sections that take longer than the others."""


# Two processes

PING, PONG, PENDING = 0, 64, 128
"""Offsets of words in the shared memory."""


class Pair:
    """The first process: tells the second what to do, and measures."""

    def __init__(self, driver: Driver, connection: Connection, shared: Shared, facts: Facts) -> None:
        self.driver = driver
        self.connection = connection
        self.shared = shared
        self.facts = facts
        self.stream = driver.create_stream()
        self.block = driver.allocate(Sizes.pinned)

    def run(self) -> None:
        """Everything, one after the other."""
        self.facts["second process is ready after, s"] = self.receive()
        with explaining(self.facts, "memory handles"):  # all else but words in device memory goes without
            self.handles()
        self.ping_pong("words in pinned memory", self.shared.base, self.call("base"))
        if opened := self.call("opened"):
            self.ping_pong("words in device memory", self.block, opened)
        self.sharing()

    def call(self, *request: Any) -> Any:
        """Let the second process do something, and return what it answers."""
        self.connection.send(request)
        return self.receive()

    def receive(self) -> Any:
        """An answer of the second process."""
        if not self.connection.poll(LIMIT_SECONDS):
            raise TimeoutError("the second process does not answer")
        answer = self.connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def handles(self) -> None:
        """Open memory of this process in the other one."""
        self.driver.fill(self.block, 7, Sizes.pinned, self.stream)
        self.driver.synchronize(self.stream)
        handle = self.driver.export(self.block)
        self.facts["open a handle, us"] = self.call("open", handle)
        self.facts["opening it again gives the same address"] = self.call("open again", handle)
        self.facts["the other process reads what is there"] = self.call("first byte") == 7
        self.facts["copy on the device out of opened memory, GB/s"] = self.call("copy", Sizes.pinned)
        self.driver.fill(self.block, 0, 4096, self.stream)
        self.driver.synchronize(self.stream)

    def ping_pong(self, where: str, mine: int, theirs: int) -> None:
        """Round trips between two streams, all of them enqueued at once."""
        rounds = Sizes.rounds
        steps = [step for k in range(1, rounds + 1) for step in (Step(WRITE, mine + PING, k), Step(WAIT_AT_LEAST, mine + PONG, k))]
        self.connection.send(("echo", theirs, rounds))
        begun = time.perf_counter()
        for k in range(0, len(steps), 2):
            self.driver.batch(self.stream, steps[k : k + 2])
        until(lambda: self.driver.is_idle(self.stream))
        self.facts[f"round trip between streams by {where}, us"] = 1e6 * (time.perf_counter() - begun) / rounds
        self.receive()

    def sharing(self) -> None:
        """What work of this process costs while the other one has nothing, has a pending wait, or works too."""
        stir_for(self.driver, self.stream, self.block, 1, is_single=True)  # compiled and loaded, here and there
        self.call("work", 1)
        before = self.work("alone")
        self.call("pend", self.shared.words[PENDING // 8] + 1)
        with_wait = self.work("while the other process has a pending stream wait")
        self.shared.words[PENDING // 8] += 1
        self.call("drain")
        self.connection.send(("work", 3 * Sizes.rounds))
        self.work("while the other process works too")
        self.receive()
        self.facts["a pending stream wait yields its time slices"] = with_wait < 1.5 * before

    def work(self, when: str) -> float:
        """Time of a kernel, enqueued many times and one by one."""
        for how, is_single in (("enqueued together", False), ("waited for one by one", True)):
            seconds = stir_for(self.driver, self.stream, self.block, Sizes.rounds, is_single=is_single)
            self.facts[f"a kernel {how}, {when}, us"] = 1e6 * seconds / Sizes.rounds
        return seconds


def stir_for(driver: Driver, stream: int, block: int, times: int, *, is_single: bool) -> float:
    """Seconds for so many kernels."""
    begun = time.perf_counter()
    for _ in range(times):
        driver.launch(STIR, stream, Sizes.stir_blocks, 256, [block, Sizes.stir_blocks * 256, Sizes.stir_rounds])
        if is_single:
            driver.synchronize(stream)
    driver.synchronize(stream)
    return time.perf_counter() - begun


class Second:
    """The other process: does what it is told; a method for each request."""

    def __init__(self, driver: Driver, fd: int) -> None:
        self.driver = driver
        self.shared = Shared(driver, fd=fd)
        self.stream = driver.create_stream()
        self.block = driver.allocate(Sizes.pinned)
        self.theirs = 0

    def base(self) -> int:
        return self.shared.base

    def opened(self) -> int:
        return self.theirs

    def open(self, handle: bytes) -> float:
        begun = time.perf_counter()
        self.theirs = self.driver.open(handle)
        return 1e6 * (time.perf_counter() - begun)

    def open_again(self, handle: bytes) -> bool:
        is_same = self.driver.open(handle) == self.theirs
        self.driver.close(self.theirs)
        return is_same

    def first_byte(self) -> int:
        self.driver.copy(self.shared.base + 1024, self.theirs, 8, self.stream)
        self.driver.synchronize(self.stream)
        return int(self.shared.words[128] & 255)

    def copy(self, nbytes: int) -> float:
        self.driver.copy(self.block, self.theirs, nbytes, self.stream)
        self.driver.synchronize(self.stream)
        begun = time.perf_counter()
        for _ in range(10):
            self.driver.copy(self.block, self.theirs, nbytes, self.stream)
        self.driver.synchronize(self.stream)
        return 2 * 10 * nbytes / (time.perf_counter() - begun) / 1e9

    def echo(self, base: int, rounds: int) -> None:
        for k in range(1, rounds + 1):
            self.driver.batch(self.stream, [Step(WAIT_AT_LEAST, base + PING, k), Step(WRITE, base + PONG, k)])
        until(lambda: self.driver.is_idle(self.stream))

    def pend(self, value: int) -> None:
        self.driver.batch(self.stream, [Step(WAIT_AT_LEAST, self.shared.base + PENDING, int(value))])
        time.sleep(0.01)  # the GPU shall have taken it up before the peer is timed; nothing of the host says when it has

    def drain(self) -> None:
        until(lambda: self.driver.is_idle(self.stream))

    def work(self, times: int) -> None:
        stir_for(self.driver, self.stream, self.block, times, is_single=False)


def serve(connection: Connection, fd: Any, open_second: Callable[[], Driver]) -> None:
    """The second process."""
    begun = time.monotonic()
    try:
        driver = open_second()
        driver.use(0)
        second = Second(driver, fd.detach())
        connection.send(time.monotonic() - begun)
        while (request := connection.recv()) is not None:
            name, *arguments = request
            connection.send(answer(getattr(second, name.replace(" ", "_")), *arguments))
    except (EOFError, OSError):
        return
    except Exception as error:
        connection.send(as_answer(error))


def answer(method: Callable[..., Any], *arguments: Any) -> Any:
    """What a request brings, or the error that it ends in: the next one may go well."""
    try:
        return method(*arguments)
    except Exception as error:
        return as_answer(error)


def as_answer(error: Exception) -> RuntimeError:
    """An error of this process as the other one raises it."""
    return RuntimeError(f"second process: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
