"""The programs for a machine with a GPU: they say so where there is none, and their steps run on the driver double."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_probe
from ncclx_mpi.testing.driver_double import Double
from numba_kernels.cuda.driver import Driver

ROOT = Path(__file__).parents[2]
PROGRAMS = ("gpu_probe.py",)


def shrink() -> None:
    """Measure little: nothing that is measured on the double means anything."""
    for name, value in {"rounds": 5, "block": 1 << 16, "pinned": 1 << 16, "stir_blocks": 1, "stir_rounds": 2}.items():
        setattr(gpu_probe.Sizes, name, value)


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


@pytest.mark.parametrize("section", gpu_probe.SECTIONS)
def test_sections_of_the_probe(section: str) -> None:
    shrink()
    with Double(3) as driver:
        driver.use(0)
        facts = gpu_probe.two(driver, open_double) if section == "two" else gpu_probe.SECTIONS[section](driver)
    assert len(facts) > 3
    assert not [key for key in facts if "failed" in key], facts
