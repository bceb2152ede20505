"""``launch.run``: a function on several ranks, from any process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from programs import all_gone, environment

from ncclx_mpi import launch
from ncclx_mpi.launch import RankFailed


def rank_and_sum(factor):
    from ncclx_mpi import MPI

    comm = MPI.COMM_WORLD
    return comm.rank * factor, comm.allreduce(1)


def fail_on_rank_1(error):
    from ncclx_mpi import MPI

    if MPI.COMM_WORLD.rank == 1:
        raise error
    MPI.COMM_WORLD.Barrier()


def die_on_rank_1():
    from ncclx_mpi import MPI

    if MPI.COMM_WORLD.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    MPI.COMM_WORLD.Barrier()


def abort_with(code):
    from ncclx_mpi import MPI

    MPI.COMM_WORLD.Abort(code)


def block():
    from ncclx_mpi import MPI

    MPI.COMM_WORLD.recv(source=0, tag=12)


def my_pid():
    return os.getpid()


def big(count):
    return bytes(count)


def unpicklable():
    return threading.Lock()


def test_results_in_rank_order():
    assert launch.run(rank_and_sum, 3, 10, timeout=60) == [(0, 3), (10, 3), (20, 3)]


def test_later_calls_are_quick():
    launch.run(my_pid, 2)
    began = time.monotonic()
    assert len(set(launch.run(my_pid, 2))) == 2
    assert time.monotonic() - began < 3


def test_first_failure_is_raised_with_its_cause():
    with pytest.raises(RankFailed, match="rank 1 of 3 raised KeyError") as caught:
        launch.run(fail_on_rank_1, 3, KeyError("missing"), timeout=60)
    assert caught.value.rank == 1
    assert "fail_on_rank_1" in caught.value.remote_traceback
    assert isinstance(caught.value.__cause__, KeyError)


def test_dead_rank():
    with pytest.raises(RankFailed, match="rank 1 .* died of SIGKILL"):
        launch.run(die_on_rank_1, 3, timeout=60)


def test_abort():
    with pytest.raises(RankFailed, match="aborted with code 5"):
        launch.run(abort_with, 2, 5, timeout=60)


def test_timeout_says_where_the_ranks_are():
    for seconds in (1, 4, 16):
        with pytest.raises(TimeoutError) as late:
            launch.run(block, 2, timeout=seconds)
        if "tag 12" in str(late.value):  # on a busy machine the ranks may not have come so far
            break
    assert re.search(r"in (recv|probe) from rank 0, tag 12", str(late.value))


def test_large_results():
    assert [len(data) for data in launch.run(big, 2, 5_000_000)] == [5_000_000] * 2


def test_results_that_cannot_be_sent():
    with pytest.raises(RankFailed, match="cannot be sent back"):
        launch.run(unpicklable, 1)


def test_local_functions_are_explained():
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        with pytest.raises(TypeError, match="cloudpickle"):
            launch.run(lambda: 1, 2)
    else:
        assert launch.run(lambda: 1, 2) == [1, 1]


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least 1"):
        launch.run(my_pid, 0)
    with pytest.raises(ValueError, match="positive"):
        launch.run(my_pid, 1, timeout=-1)


def test_several_threads_may_call():
    results = []
    threads = [threading.Thread(target=lambda: results.append(launch.run(rank_and_sum, 2, 1))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[(0, 2), (1, 2)]] * 3


def test_environment_and_folder_are_the_callers(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_SETTING", "value")
    assert launch.run(os.getcwd, 1) == [str(tmp_path)]
    assert launch.run(os.getenv, 1, "SOME_SETTING") == ["value"]


def test_function_of_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""\
        from ncclx_mpi import launch
        print("imported as", __name__)
        def square(x): return x * x
        if __name__ == "__main__":
            print(launch.run(square, 2, 7))
        """)
    )
    result = subprocess.run(
        [sys.executable, str(script)], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "imported as __main__" and lines[-1] == "[49, 49]", result.stderr


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from ncclx_mpi import launch\ndef one(): return 1\nprint(launch.run(one, 2))\n")
    result = subprocess.run(
        [sys.executable, str(script)], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "RankFailed: rank 0 of 2 raised RuntimeError" in result.stderr or "rank 1 of 2 raised RuntimeError" in result.stderr
    assert 'under `if __name__ == "__main__":`' in result.stderr
    assert "__ranks_main__" not in result.stderr


def test_nothing_survives_the_caller(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""\
        import os, time
        from ncclx_mpi import launch
        def show():
            print(os.getpid(), flush=True)
            time.sleep(600)
        if __name__ == "__main__":
            launch.run(show, 2)
        """)
    )
    caller = subprocess.Popen([sys.executable, str(script)], env=environment(), stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    ranks = [int(caller.stdout.readline()) for _ in range(2)]
    caller.kill()
    caller.communicate()
    assert all_gone(ranks, 20)
