"""Which UCX a process takes, and which it refuses. Each case is a process of its own, as a library once loaded stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transports.ucx import library
from transports.ucx.library import LibraryError, find

ROOT = Path(__file__).parents[2]
REFUSED = """
import ctypes
from transports.ucx import library
class Other:
    def __getattr__(self, name):
        if name.startswith("_") or name == {missing!r}:
            raise AttributeError(name)
        return self.say_version
    def say_version(self, major, minor, release):
        for number, value in zip((major, minor, release), {version}):
            number._obj.value = value
try:
    library._checked(Other(), "/there/libucp.so.0", "a test says so")
except library.LibraryError as error:
    print(error)
else:
    print("taken")
"""


def run(code: str, **environment: str) -> str:
    """What a program prints that runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def path() -> str:
    """That of the UCX of this machine."""
    try:
        return find().path
    except LibraryError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("version", "says"), [((1, 13, 0), "taken"), ((1, 22, 5), "taken"), ((1, 12, 9), ""), ((1, 23, 0), ""), ((2, 0, 0), "")]
)
def test_releases_that_are_not_known_are_refused(version: tuple[int, int, int], says: str) -> None:
    name = ".".join(map(str, version))
    expected = f"/there/libucp.so.0 is UCX {name} (a test says so), and releases 1.13 to 1.22 are known here; {library.ADVICE}"
    assert run(REFUSED.format(missing="", version=version)) == (says or expected)


def test_a_library_that_lacks_a_function_is_refused() -> None:
    said = run(REFUSED.format(missing="ucp_am_send_nbx", version=(1, 20, 0)))
    assert said == f"/there/libucp.so.0 is no UCX that can be used (a test says so): it has no ucp_am_send_nbx; {library.ADVICE}"


def test_one_that_is_loaded_is_taken_whatever_is_named(path: str) -> None:
    code = f"import ctypes; ctypes.CDLL({path!r}); from transports.ucx.library import find; print(*find()[:2], sep='; ')"
    taken, reason = run(code, NCCLX_MPI_UCX_LIBRARY="/nowhere/libucp.so.0").split("; ")
    assert reason == "it was loaded in this process already" and os.path.samefile(taken, path)


def test_one_that_is_named_is_taken_before_others(path: str) -> None:
    code = "from transports.ucx.library import find, loaded; print(find().reason, len(loaded()))"
    assert run(code, NCCLX_MPI_UCX_LIBRARY=path) == "NCCLX_MPI_UCX_LIBRARY names it 1"


def test_one_that_is_named_and_is_not_there_is_an_error_and_no_other_is_taken() -> None:
    code = """
from transports.ucx import library
try:
    library.find()
except library.LibraryError as error:
    print(error, library.loaded())
"""
    said = run(code, NCCLX_MPI_UCX_LIBRARY="/nowhere/libucp.so.0")
    assert said.startswith("NCCLX_MPI_UCX_LIBRARY names /nowhere/libucp.so.0, which cannot be loaded: ") and said.endswith(" []")


def test_where_there_is_none_the_error_names_the_extra() -> None:
    code = """
from transports.ucx import library
library._candidates = lambda named: iter([("libnothing-of-this-name.so.0", "it is the system's")])
try:
    library.find()
except library.LibraryError as error:
    print(error)
"""
    assert "pip install 'ncclx-mpi[ucx]'" in run(code)


def test_nothing_is_loaded_or_left_in_the_environment_by_importing_or_finding_it(path: str) -> None:
    code = """
import os
before = dict(os.environ)
from transports.ucx import library
from transports.ucx import transport
assert library.loaded() == []
library.find()
assert dict(os.environ) == before
print(len(library.loaded()))
"""
    assert run(code) == "1"


def test_signals_of_the_program_stay_as_they_are(path: str) -> None:
    code = """
from pathlib import Path
def caught():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigCgt"))
    return hex(int(line.split()[1], 16) & ~(3 << 31))  # without those of the threads of glibc
before = caught()
from transports.ucx.library import Worker, find
worker = Worker(find())
assert caught() == before, (before, caught())
assert worker.describe()
worker.close()
print("same")
"""
    assert run(code, UCX_NET_DEVICES="lo") == "same"


@pytest.mark.parametrize(
    ("text", "nbytes"), [("264K", "270336"), (" 264kb", "270336"), ("270336", "270336"), ("1M", "1048576"), ("inf", "inf")]
)
def test_what_hosts_agree_on_is_a_number_of_bytes(monkeypatch, text, nbytes):
    monkeypatch.setenv("UCX_TCP_RX_SEG_SIZE", text)
    assert library.agreed_settings() == {"UCX_TCP_RX_SEG_SIZE": nbytes}
