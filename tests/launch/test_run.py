"""``ncclx run``: what the ranks get, and what the launcher passes on."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from programs import command, copy_cache, environment, lines_of, run, run_code, start

from ncclx_mpi.launch.program import parse_any
from numba_kernels import cache_files

WORLD = "from mpi4py import MPI; comm = MPI.COMM_WORLD; "


def test_world_is_what_was_asked_for():
    result = run_code(3, WORLD + "print(comm.rank, comm.size, comm.allreduce(comm.rank))")
    assert sorted(result.stdout.splitlines()) == ["0 3 3", "1 3 3", "2 3 3"]
    assert (result.returncode, result.stderr) == (0, "")


def test_both_names_give_our_module():
    code = (
        "import ncclx_mpi.MPI, mpi4py, sys; from mpi4py import MPI; import mpi4py.MPI as third; "
        "assert MPI is ncclx_mpi.MPI is third is mpi4py.MPI is sys.modules['mpi4py.MPI']; "
        "assert MPI.__name__ == 'ncclx_mpi.MPI'; assert mpi4py.rc is ncclx_mpi.rc; print('same')"
    )
    assert run_code(1, code).stdout == "same\n"


def test_rc_of_mpi4py_counts():
    code = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Is_initialized())"
    assert run_code(1, code).stdout == "False\n"


def test_script_is_main(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, helper; print(__name__, __file__, sys.argv, helper.value, sys.modules['__main__'].__file__)")
    (tmp_path / "helper.py").write_text("value = 7")
    result = run("run", "-n", "1", str(script), "-n", "5", "--flag")
    assert result.stdout == f"__main__ {script} {[str(script), '-n', '5', '--flag']} 7 {script}\n"


def test_script_knows_where_it_is_after_it_has_gone_elsewhere(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys; os.chdir('/'); print(__file__, sys.argv[0], (lambda: 0).__code__.co_filename)")
    result = subprocess.run(command("run", "-n", "1", "script.py"), cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert result.stdout == f"{script} script.py {script}\n", result.stderr


def test_module_is_main(tmp_path):
    package = tmp_path / "package_to_run"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys; print(__name__, __package__, __spec__.name, sys.argv[1:])")
    result = run("run", "-n", "1", "-m", "package_to_run", "a", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert result.stdout == "__main__ package_to_run package_to_run.__main__ ['a']\n", result.stderr


def test_program_on_stdin():
    assert run("run", "-n", "2", "-", stdin="print(__name__)").stdout == "__main__\n" * 2


def test_interpreter_flags_are_kept():
    result = run("run", "-n", "1", sys.executable, "-O", "-X", "dev", "-c", "import sys; print(__debug__, sys.flags.dev_mode)")
    assert result.stdout == "False True\n", result.stderr


def test_word_python_means_this_interpreter(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("")
    assert parse_any([sys.executable, "-W", "error", str(script), "x"])[0].target == str(script)
    assert parse_any([sys.executable, "-W", "error", str(script), "x"])[1] == ["-W", "error"]


@pytest.mark.parametrize("line", ["#!{}", "#! {}", "#!/usr/bin/env python"])
def test_a_script_that_names_this_interpreter_is_a_program_of_ours(tmp_path, monkeypatch, line):
    """As commands that pip installs, whose ``mpi4py`` is to be ours, too."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{tmp_path}:{os.environ['PATH']}")
    script = tmp_path / "tool"
    script.write_text(f"{line.format(sys.executable)}\nfrom mpi4py import MPI; import sys\nprint(MPI.COMM_WORLD.size, sys.argv)\n")
    script.chmod(0o755)
    for name in (str(script), "tool"):
        result = run("run", "-n", "2", name, "a", PATH=os.environ["PATH"])
        assert result.stdout == f"2 ['{script}', 'a']\n" * 2, result.stderr


@pytest.mark.parametrize("content", ["#!{} -u\n", "#!/bin/sh\n", "", "#!{}\nPK\3\4", "#!\n", "\x7fELF"])
def test_other_files_run_by_themselves(tmp_path, content):
    script = tmp_path / "tool"
    script.write_text(content.format(sys.executable))
    script.chmod(0o755)
    assert parse_any([str(script)])[0].kind == "executable"


def test_variables_are_set_before_numpy_is_imported():
    code = "import numpy, os; print(os.environ['OMP_NUM_THREADS'], len(os.listdir('/proc/self/task')))"
    result = run("run", "-n", "1", "-x", "OMP_NUM_THREADS=1", "-x", "OPENBLAS_NUM_THREADS=1", "-c", code)
    assert result.stdout == "1 1\n"


def test_variables_of_the_interpreter_work_too(tmp_path):
    (tmp_path / "found_by_path.py").write_text("print('found')")
    result = run("run", "-n", "1", "-x", f"PYTHONPATH={tmp_path}:{os.environ.get('PYTHONPATH', '')}", "-m", "found_by_path")
    assert result.stdout == "found\n", result.stderr


def test_standard_input_goes_to_rank_0():
    code = WORLD + "import sys; print(comm.rank, repr(sys.stdin.read()))"
    result = run_code(2, code, stdin="one\ntwo\n")
    assert sorted(result.stdout.splitlines()) == ["0 'one\\ntwo\\n'", "1 ''"]


def test_tagged_output():
    code = WORLD + "import sys; print('a\\nb'); print('e', file=sys.stderr); print('no newline', end='')"
    result = run("run", "-n", "2", "--tag-output", "-c", code)
    for rank in (0, 1):
        mine = [line for line in result.stdout.replace("newline[", "newline\n[").splitlines() if line.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}] a", f"[{rank}] b", f"[{rank}] no newline"]
        assert f"[{rank}] e" in result.stderr.splitlines()


def test_lines_are_not_torn():
    code = WORLD + "[print(str(comm.rank) * 2000) for _ in range(200)]"
    lines = run_code(4, code).stdout.splitlines()
    assert len(lines) == 800 and all(len(set(line)) == 1 and len(line) == 2000 for line in lines)


def test_bytes_pass_unchanged():
    result = run_code(1, "import sys; sys.stdout.buffer.write(bytes(range(1, 128)) * 1000)")
    assert len(result.stdout) == 127_000


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(0)", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('gone')", 1),
        ("1 / 0", 1),
        ("import os; os._exit(9)", 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import ctypes; ctypes.string_at(0)", 139),
        (WORLD + "comm.Abort(42)", 42),
    ],
)
def test_exit_status_is_that_of_the_failing_rank(code, status):
    assert run_code(1, code).returncode == status


def test_first_failure_counts_and_is_named():
    code = (
        "import os, sys, time; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"
        "first = comm.bcast(os.getpid(), root=1); comm.Barrier()\n"
        "while comm.rank != 1 and os.path.exists(f'/proc/{first}'): time.sleep(0.01)\n"
        "sys.exit(10 + comm.rank)"
    )
    result = run_code(3, code)
    assert result.returncode == 11
    assert "rank 1" in result.stderr and "status 11" in result.stderr


def test_traceback_has_the_users_frames_only():
    result = run_code(1, "def f():\n    1 / 0\nf()")
    assert "ZeroDivisionError" in result.stderr
    assert "ncclx_mpi" not in result.stderr.replace("ncclx run", "")


def test_syntax_error_has_no_frames_of_ours(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def f(:\n")
    result = run("run", "-n", "1", str(script))
    assert result.returncode == 1
    assert result.stderr.startswith(f'  File "{script}", line 1\n    def f(:\n')


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(closed, tmp_path):
    """They are as if they were empty and nobody read them, and no file that the launcher opens takes their places."""
    code = f"{WORLD}import sys; print('x' * 70_000); print('e', file=sys.stderr); open({str(tmp_path)!r} + '/' + str(comm.allreduce(1)), 'w')"
    line = f"{shlex.join(command('run', '-n', '2', '-c', code))} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, os.listdir(tmp_path)) == (0, ["2"])
    assert sorted(done.stdout) == ([] if " >&-" in f" {closed}" else ["\n"] * 2 + ["x"] * 140_000)  # long lines may be torn
    assert done.stderr == ("" if "2>&-" in closed else "e\ne\n")


def test_random_numbers_differ_by_rank():
    code = "import numpy, random; print(numpy.random.randint(1 << 31), random.random(), numpy.random.default_rng().random())"
    columns = zip(*(line.split() for line in run_code(4, code).stdout.splitlines()), strict=True)
    assert [len(set(column)) for column in columns] == [4, 4, 4]


def test_forgotten_files_are_flushed_and_exit_handlers_run(tmp_path):
    path = tmp_path / "out"
    code = (
        f"import atexit; file = open({str(path)!r}, 'w'); file.write('data'); atexit.register(print, 'exit handler')\n"
        "class Last:\n    def __del__(self): print('destructor')\nlast = Last()"
    )
    assert run_code(1, code).stdout == "exit handler\ndestructor\n"
    assert path.read_text() == "data"


def test_threads_are_joined_at_exit():
    code = "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('done'))).start()"
    assert run_code(1, code).stdout == "done\n"


def test_program_of_another_kind(tmp_path):
    script = tmp_path / "wrapper.sh"
    script.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        echo shell $NCCLX_MPI_RANK of $NCCLX_MPI_SIZE
        {sys.executable} -c 'from ncclx_mpi import MPI; print("sum", MPI.COMM_WORLD.allreduce(1))'
        """)
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    result = run("run", "-n", "2", str(script))
    assert sorted(result.stdout.splitlines()) == ["shell 0 of 2", "shell 1 of 2", "sum 2", "sum 2"], result.stderr


def test_unknown_program():
    result = run("run", "-n", "2", "no-such-program")
    assert result.returncode == 127 and "no-such-program" in result.stderr


def test_bad_command_lines():
    assert run("run", "-n", "0", "x.py").returncode == 2
    assert "5000 ranks cannot be started" in run("run", "-n", "5000", "-c", "").stderr
    assert "No path specified" in run("run", "-n", "2").stderr
    assert "'two' is no number of ranks" in run("run", "-n", "two", "-c", "").stderr
    missing = run("run", "-n", "2", "nowhere.py")
    assert missing.returncode == 2 and " -m ncclx_mpi run: there is no program 'nowhere.py'\n" in missing.stderr
    assert run("run", "-n", "2", "no_such_file.py").returncode != 0


def test_timeout_shows_where_everybody_is():
    for seconds in ("1.5", "6", "24"):
        result = run("run", "-n", "2", "--timeout", seconds, "-c", WORLD + "comm.recv(source=1 - comm.rank, tag=11)")
        if result.stderr.count(", tag 11") >= 2:  # on a busy machine the ranks may not have come so far
            break
    assert result.returncode == 124
    assert "from rank 1, tag 11" in result.stderr
    assert "from rank 0, tag 11" in result.stderr
    assert 'File "<string>", line 1' in result.stderr


def test_64_ranks():
    result = run_code(64, WORLD + "print(comm.allreduce(1))")
    assert result.stdout == "64\n" * 64, result.stderr


def test_children_of_a_rank_are_no_ranks():
    code = (
        "import os, subprocess, sys; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"
        "inner = 'from ncclx_mpi import MPI; print(MPI.COMM_WORLD.size)'\n"
        "assert subprocess.run([sys.executable, '-c', inner], capture_output=True, text=True).stdout == '1\\n'\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert subprocess.run(['true']).returncode == 0\n"
        "print(comm.allreduce(1))"
    )
    assert run_code(2, code).stdout == "2\n2\n"


def test_read_only_home(tmp_path):
    home, fallback = tmp_path / "home", tmp_path / f"ncclx_mpi-{os.getuid()}"
    home.mkdir(mode=0o500)
    copy_cache(fallback)  # compiling it all takes as long as the machine is busy
    places = {"HOME": str(home), "XDG_CACHE_HOME": "/proc/nowhere", "TMPDIR": str(tmp_path), cache_files.CACHE_VARIABLE: ""}
    result = run_code(2, WORLD + "from numba_kernels import cache_files; print(cache_files.cache_root())", **places)
    assert (result.stdout, result.stderr) == (f"{fallback}\n" * 2, "")


def test_users_numba_settings_do_not_matter():
    result = run_code(2, WORLD + "print(comm.allreduce(1))", NUMBA_DISABLE_JIT="1")
    assert result.stdout == "2\n2\n", result.stderr


def test_terminal_reaches_rank_0():
    words = command("run", "-n", "2", "-c", WORLD + "print('got', input('prompt> ')) if comm.rank == 0 else None")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(words[0], words, environment())
    seen = b""
    while b"prompt> " not in seen:
        seen += os.read(terminal, 4096)
    os.write(terminal, b"a line\n")
    while b"got a line" not in seen:
        seen += os.read(terminal, 4096)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_stop_and_continue(tmp_path):
    go = tmp_path / "go"
    code = f"import os, time; print(os.getpid())\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('done')"
    process = start("run", "-n", "2", "-c", WORLD + code)
    everybody = [process.pid, *map(int, lines_of(process, 2))]
    process.send_signal(signal.SIGTSTP)
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T" for pid in everybody):
        assert time.monotonic() < end
        time.sleep(0.01)
    go.touch()
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=20)[0] == "done\n" * 2
