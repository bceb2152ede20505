"""Tests with ``@pytest.mark.ranks(...)`` run on several ranks: see :mod:`ncclx_mpi.testing.plugin`.

Those with ``gpu`` run where there is a GPU, those with ``compiler`` where numba-cuda is installed, which needs no GPU.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import gc
import importlib.util
import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from ncclx_mpi.compile_cache import warm

pytest_plugins = ["ncclx_mpi.testing.plugin"]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell; ranks and launchers would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Containers like to set it; each rank of each test would compile and rewrite its test module again, which doubles the time of all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# NumPy's BLAS starts a thread for each other core in each program that imports it, which polls for 27 ms; no test computes with it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

os.environ.pop("PYTHONUNBUFFERED", None)  # a line of a rank would be two writes, and another rank's could come between them


_LONGEST = (
    "test_soak.py", "test_adversarial.py", "test_hosts.py", "test_slurm.py", "test_intercomm.py",
    "test_enqueued.py", "test_passage.py", "test_nodes.py",
)  # fmt: skip
"""Files that take longest: a minute or two each, in one process."""


_GUARDED_TOO = (
    "tests/api/",
    "tests/collectives/test_derived.py",
    "tests/collectives/test_direct.py",
    "tests/collectives/test_vectors.py",
)
"""Tests that are called a second time, every array beside an unreadable page; those with ``once`` run again by ``--guard-arrays``."""
_WITHOUT_ARRAYS = (
    "test_environment.py",
    "test_errors.py",
    "test_group.py",
    "test_handles.py",
    "test_hot_path.py",
    "test_slow_route.py",
)
"""Tests of ``tests/api`` that make no array."""

_FULL_LENGTH_SECONDS = 7200
"""After this a test at full length hangs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="robustness tests at full length: 200 kills, 10,000 bad calls ...; --guard-arrays"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.option.guard_arrays |= config.getoption("--full")
    config.addinivalue_line("markers", "gpu: needs a GPU; skipped without")
    config.addinivalue_line("markers", "once: cannot be called twice in one process, as tests beside it are: guarded_too")
    config.addinivalue_line("markers", "compiler: compiles GPU kernels; skipped without numba-cuda")
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")  # a busy machine is no fault of a test


def pytest_sessionstart() -> None:
    """Compile everything first: what is compiled in the middle of a test would look like a rank that hangs."""
    warm.ensure(everything=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: of several processes, none is to be left with one of them when the others are done."""
    for item in items:
        is_guarded = item.nodeid.startswith(_GUARDED_TOO) and item.path.name not in _WITHOUT_ARRAYS
        if is_guarded and item.get_closest_marker("once") is None:
            item.add_marker("guarded_too")
    place = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_collection_finish() -> None:
    """Ten thousand tests stay; the collector of cycles need not go over them again and again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("there is no GPU")
    if item.get_closest_marker("compiler") and not importlib.util.find_spec("numba_cuda"):
        pytest.skip("numba-cuda is not installed")


@functools.cache
def has_gpu() -> bool:
    """Whether the CUDA driver is there and finds a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether tests run at full length, which may take longer than any other test is given: each bounds its ranks itself."""
    at_full_length = bool(request.config.getoption("--full"))
    if at_full_length:
        faulthandler.dump_traceback_later(_FULL_LENGTH_SECONDS, exit=True)  # instead of setup.cfg's; pytest cancels either
    return at_full_length
