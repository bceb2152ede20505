"""The programs for a machine with a GPU: they say so where there is none, and their steps run on the driver double."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu, gpu_decode, gpu_probe, gpu_streams
from ncclx_mpi.compile_cache import warm
from ncclx_mpi.testing.driver_double import PINNED, DeviceArray, Double
from numba_kernels.cuda.driver import Driver, DriverError
from tests.device.doubles import ONE_NODE

ROOT = Path(__file__).parents[2]
PROGRAMS = ("gpu_probe.py", "gpu.py")


def shrink() -> None:
    """Measure little: nothing that is measured on the double means anything."""
    for name, value in {"rounds": 5, "block": 1 << 16, "pinned": 1 << 16, "stir_blocks": 1, "stir_rounds": 2}.items():
        setattr(gpu_probe.Sizes, name, value)
    gpu_probe.LIMIT_SECONDS = 100.0  # a second process imports and compiles first, perhaps on a busy machine


def open_double() -> Driver:
    shrink()
    return Double(7)


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_say_in_a_sentence_that_there_is_no_gpu(name: str) -> None:
    done = run(name)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no GPU" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_help(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0 and "--json" in done.stdout


def test_tests_for_a_gpu_can_be_collected() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "tests/gpu"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("section", gpu_probe.SECTIONS)
def test_sections_of_the_probe(section: str) -> None:
    shrink()
    with Double(3) as driver:
        driver.use(0)
        facts = gpu_probe.two(driver, open_double) if section == "two" else gpu_probe.SECTIONS[section](driver)
    assert len(facts) > 3
    assert not [key for key in facts if "failed" in key], facts


def test_what_two_processes_find_where_memory_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles are refused; words in pinned memory and the sharing of time are measured nevertheless."""

    def refuse(self: Double, address: int) -> bytes:
        raise DriverError(801, "not supported")

    shrink()
    monkeypatch.setattr(Double, "export", refuse)
    with Double(3) as driver:
        driver.use(0)
        facts = gpu_probe.two(driver, open_double)
        assert driver.calls["launch"] == 1 + 6 * gpu_probe.Sizes.rounds, "the first launch, which compiles, is not measured"
    assert facts["memory handles failed"] == "DriverError: not supported"
    assert "round trip between streams by words in pinned memory, us" in facts
    assert "a pending stream wait yields its time slices" in facts


def test_errors_of_the_second_process_are_answers() -> None:
    def fail(number: int) -> None:
        raise DriverError(number, "refused")

    assert gpu_probe.answer(abs, -1) == 1
    assert str(gpu_probe.answer(fail, 801)) == "second process: DriverError: refused"


def test_facts_of_a_process_that_hangs_at_its_end_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, stdout: Any, timeout: float, **options: Any) -> None:
        stdout.write('{"found": 1}\n')
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert gpu_probe.in_process("words", 30, {}) == {"found": 1}


def test_an_mps_daemon_that_does_not_end_costs_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "input" in options:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(gpu_probe.shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    with gpu_probe.mps_daemon() as environment:
        folder = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert folder.is_dir()
    assert not folder.exists()


def test_what_was_measured_before_something_fails_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("the machine is gone")

    measured = {"call": "Bcast", "ranks": 2, "bytes": 8, gpu.OURS: 1e-4}
    kernels = {"copy": {"failed": "DriverError: an illegal address"}}
    replaced = {"open_driver": lambda: Double(3), "machine": lambda driver: {}, "kernels": lambda driver: kernels}
    replaced |= {"calls": lambda *arguments: [measured], "streams": fail}
    for name, function in replaced.items():
        monkeypatch.setattr(gpu, name, function)
    monkeypatch.setattr(warm, "ensure", lambda everything: None)
    with pytest.raises(OSError, match="the machine is gone"):
        gpu.main(["--json", str(tmp_path / "gpu.json")])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert (found["kernels"], found["calls"], found["mode"]) == (kernels, [measured], "time-sliced")


def test_bandwidth_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.Sizes, "block", 1 << 16)
    with Double(3) as driver:
        driver.use(0)
        found = gpu.kernels(driver)
    gpu.show_kernels(found)
    assert len(found) == 7
    assert not [name for name in found if "failed" in found[name]], found


class Library:
    """The array library of the double, for the ranks of the benchmark."""

    def __init__(self, driver: Double) -> None:
        self.driver = driver

    def array(self, count: int, value: float) -> DeviceArray:
        return DeviceArray.from_host(np.full(count, value, np.float32))

    def pinned(self, count: int) -> np.ndarray:
        space = np.ctypeslib.as_array((ctypes.c_float * count).from_address(self.driver.allocate_as(PINNED, 4 * max(count, 1))))
        space[:] = 0
        return space

    def to_host(self, target: np.ndarray, source: DeviceArray) -> None:
        self.driver.copy(target.ctypes.data, source.address, target.nbytes, 0)
        self.driver.synchronize(0)

    def to_device(self, target: DeviceArray, source: np.ndarray) -> None:
        self.driver.copy(target.address, source.ctypes.data, source.nbytes, 0)
        self.driver.synchronize(0)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("is_staged", [False, True])
def test_calls_of_the_benchmark(comm: Any, is_staged: bool) -> None:
    with Double(comm.rank) as driver:
        for name in gpu.CALLS:
            assert gpu.measure_call(comm, Library(driver), name, 4096, is_staged=is_staged, seconds=0.0) > 0 or comm.rank


def test_rows_stand_together_by_call_whatever_was_measured_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a row that one side did not come to has the other's time alone."""

    def job(command: list[str], side: str, *rest: Any) -> list[tuple[str, int, float]]:
        found = [(name, nbytes, 1e-4) for nbytes in (8, 1024) for name in ("Allreduce", "Bcast")]
        return found if side == gpu.OURS else found[:-1]

    monkeypatch.setattr(gpu, "job", job)
    options = gpu.parser().parse_args(["--ranks", "2", "--mpiexec", "mpiexec"])
    rows = gpu.calls(options, {}, time.monotonic() + 1000)
    assert [(row["call"], row["bytes"]) for row in rows] == [("Allreduce", 8), ("Allreduce", 1024), ("Bcast", 8), ("Bcast", 1024)]
    assert [gpu.PEER in row for row in rows] == [True, True, True, False]


def test_tables_of_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"call": "Alltoall", "ranks": 2, "bytes": 1 << 20, gpu.OURS: 1e-4, gpu.PEER: 4e-4}
    gpu.show_calls([row, {"call": "Bcast", "ranks": 2, "bytes": 8, gpu.OURS: 1e-4}], 1e12, "time-sliced")
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.split() == ["Alltoall", "2", "1048576", "100.0", "400.0", "0.25", "0.5", "8%"]
    assert second.split()[4:6] == ["-", "-"]


@pytest.mark.ranks(1, 3, timeout=120, topology=ONE_NODE)
def test_calls_in_streams(comm: Any) -> None:
    own = comm.Dup()
    with Double(comm.rank) as driver:
        driver.use(0)
        own.prepare(1 << 16)
        stream = driver.create_stream()
        for name in gpu_streams.CALLS:
            found = gpu_streams.measure(own, driver, stream, name, 4096, calls=3)
            assert 0 < found.enqueue_seconds <= found.seconds
        own.Free()


def test_table_of_calls_in_streams(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"call": "Bcast", "ranks": ranks, "bytes": 8, "enqueue_seconds": 4e-6, "seconds": 2e-5} for ranks in (2, 8)]
    gpu.show_streams(rows, "time-sliced")
    assert [line.split()[1:] for line in capsys.readouterr().out.splitlines()[-2:]] == [
        ["2", "8", "4.0", "-", "20.0"],
        ["8", "8", "4.0", "10", "20.0"],
    ]


@pytest.mark.ranks(1, 2, 3, timeout=120, topology=ONE_NODE)
@pytest.mark.parametrize("way", gpu_decode.WAYS)
def test_decoding(comm: Any, way: str) -> None:
    """Each way brings back what it should; in ours nobody waits, and what is sent goes by the counts."""
    own, shape = comm.Dup(), gpu_decode.Shape(tokens=6, state_bytes=64, top=2, steps=5)
    with Double(comm.rank) as driver:
        driver.use(0)
        own.prepare(1 << 12)
        found = gpu_decode.measure(own, driver, driver.create_stream(), way, shape)
        own.Free()
    assert found.waits == (shape.steps if way == "by host" else 0)
    assert found.bytes == 2 * 64 * 6 * 2 * comm.size * (comm.size if way == "padded" else 1)
    assert found.seconds > 0 and found.enqueue_seconds > 0


def test_table_of_decoding(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"way": way, "top": 4, "ranks": 8, "seconds": seconds, "enqueue_seconds": 8e-6, "waits": 0, "bytes": 2e6}
        for way, seconds in zip(gpu_decode.WAYS, (1e-4, 3e-4, 2e-4), strict=True)
    ]
    gpu.show_decode(rows, "time-sliced")
    lines = capsys.readouterr().out.splitlines()[-3:]
    times = [("100.0", "1.00"), ("300.0", "3.00"), ("200.0", "2.00")]
    assert [line.split()[-5:] for line in lines] == [[*each, "2.0", "0", "8.0"] for each in times]
