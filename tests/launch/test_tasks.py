"""Tasks with an order on several processes, and the order in which the engine is compiled."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from programs import copy_cache

from ncclx_mpi.compile_cache import warm
from ncclx_mpi.compile_cache.bar import Bar
from ncclx_mpi.compile_cache.tasks import Task, run_all
from numba_kernels import cache_files, jit


def note(folder: Path, number: int, needs: frozenset[int] = frozenset()) -> bool:
    """Leave a file; False if one that comes first is missing, or if this has been done."""
    is_right = all((folder / str(needed)).exists() for needed in needs) and not (folder / str(number)).exists()
    time.sleep(0.001 * (number % 3))
    (folder / str(number)).write_text(str(os.getpid()))
    return is_right


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_each_once_after_what_it_needs(tmp_path: Path, processes: int) -> None:
    needs = [frozenset(range(max(0, number - 4), number, 2)) for number in range(40)]
    assert run_all([Task(partial(note, tmp_path, number, needed), needed) for number, needed in enumerate(needs)], processes)
    done_by = {(tmp_path / str(number)).read_text() for number in range(40)}
    assert 1 <= len(done_by) <= processes
    assert str(os.getpid()) not in done_by


def test_who_asks_is_told_of_each(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    tasks = [Task(_die), *(Task(partial(note, tmp_path, number)) for number in range(1, 4))]
    run_all(tasks, 2, lambda done, total: told.append((done, total)))
    assert told == [(done, 4) for done in range(1, 5)]


class Screen(io.StringIO):
    """A stream that is a terminal, or is none."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def test_a_bar_on_a_terminal_is_written_over_and_gone_in_the_end() -> None:
    screen, seconds = Screen(True), iter([0.0, 3.0, 9.0])
    bar = Bar(screen, lambda: next(seconds))
    bar.show(1, 2)
    assert screen.getvalue() == f"\r\033[Kncclx_mpi: [{'#' * 15}{'.' * 15}] 1 of 2, 3 s"
    bar.show(2, 2)
    assert screen.getvalue().endswith("3 s\r\033[K")


def test_no_bar_in_a_file() -> None:
    file = Screen(False)
    Bar(file).show(1, 2)
    assert not file.getvalue()


def test_nothing_to_do() -> None:
    assert run_all([], 3)


def test_more_processes_than_tasks(tmp_path: Path) -> None:
    assert run_all([Task(partial(note, tmp_path, number)) for number in range(2)], 8)


def test_what_needs_a_failed_one_is_tried(tmp_path: Path) -> None:
    tasks = [Task(lambda: False), Task(partial(note, tmp_path, 1), frozenset({0}))]
    assert not run_all(tasks, 2)
    assert (tmp_path / "1").exists()


def _die() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def test_a_worker_that_dies_leaves_its_work_to_the_others(tmp_path: Path) -> None:
    tasks = [Task(_die), *(Task(partial(note, tmp_path, number)) for number in range(1, 9))]
    assert not run_all(tasks, 2)
    assert len(list(tmp_path.iterdir())) == 8


def test_all_workers_die() -> None:
    assert not run_all([Task(_die), Task(_die), Task(_die)], 2)


def test_the_engine_is_compiled_from_its_foundations_on() -> None:
    warm.import_engine()
    entries = [declared.dispatcher for declared in jit.entries()]
    functions = jit.callees_first(entries)
    assert set(entries) < set(functions)
    assert len(functions) == len(set(functions))
    place = {function: number for number, function in enumerate(functions)}
    for function in functions:
        late = [callee.__name__ for callee in jit.callees(function) if place[callee] > place[function]]
        assert not late, f"{function.__name__} comes before {late}"


def test_a_full_disk_is_told_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(mark: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(warm.verdict, "is_warm", lambda: False)
    monkeypatch.setattr(warm, "_find_mark", lambda everything: None)
    monkeypatch.setattr(warm, "compile_all", lambda chosen, bar=None, with_reductions=False: True)
    monkeypatch.setattr(warm.prune, "write_mark", refuse)
    warm.warm_up()
    assert "cannot be kept in" in (told := capsys.readouterr().err) and "No space left" in told and "NCCLX_MPI_CACHE_DIR" in told
    warm.warm_up(announce=False)
    assert not capsys.readouterr().err


def test_what_is_not_compiled_ahead_is_compiled_when_it_is_called(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    copy_cache(cache)
    for file in cache.rglob("fast_vector.scan_arrays-*"):
        file.unlink()
    environ = {**os.environ, cache_files.CACHE_VARIABLE: str(cache)}
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-c", FIRST_CALL]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.split()) == ["0:1", "1:1"] and not done.stderr
    assert list(cache.rglob("fast_vector.scan_arrays-*.nbc"))


FIRST_CALL = """
import numpy as np
from mpi4py import MPI
comm, total = MPI.COMM_WORLD, np.zeros(1, dtype=int)
comm.Exscan(np.ones(1, dtype=int), total)
comm.Bcast(total, root=1)
print(f"{comm.rank}:{total[0]}")
"""


def test_compiling_is_for_one_at_a_time(tmp_path: Path) -> None:
    """Each of two holders leaves a word on entry and on exit; they never mix."""
    log = tmp_path / "log"

    def hold(name: str) -> bool:
        with jit.one_at_a_time(), log.open("a") as file:
            for word in ("in", "out"):
                file.write(f"{name} {word}\n")
                file.flush()
                time.sleep(0.1)
        return True

    assert run_all([Task(partial(hold, "first")), Task(partial(hold, "second"))], 2)
    words = [line.split()[0] for line in log.read_text().splitlines()]
    assert words in (["first"] * 2 + ["second"] * 2, ["second"] * 2 + ["first"] * 2)
