"""``%%ranks`` in a real kernel: cells, variables, what is shown, and what happens when something fails."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from kernels import Kernel, is_there, kernel_in, wait_until

TELL = "print('process', os.getpid())\n"


def pids(kernel: Kernel) -> list[int]:
    return [int(pid) for pid in re.findall(r"\(process (\d+)\)", kernel.run("%ranks").stdout)]


def test_a_cell_runs_on_all_ranks_and_output_says_whose_it_is(three: Kernel) -> None:
    shown = three.run("%%ranks\nprint('sum', comm.allreduce(rank))\nprint('no end', rank, end='')")
    assert shown.lines == ["[0] no end 0", "[0] sum 3", "[1] no end 1", "[1] sum 3", "[2] no end 2", "[2] sum 3"]


def test_values_come_in_the_order_of_ranks_and_once_for_those_that_are_alike(three: Kernel) -> None:
    assert three.run("%%ranks\ncomm.size").stdout == "[0-2] 3\n"
    assert three.run("%%ranks\nmin(rank, 1)").stdout == "[0] 0\n[1-2] 1\n"
    assert three.run("%%ranks\nrank;").stdout == ""


def test_variables_live_on_and_are_not_those_of_the_kernel(three: Kernel) -> None:
    three.run("only_here = 'kernel'")
    three.run("%%ranks\nkept = [rank]")
    three.run("%%ranks\nkept.append(rank * 10)")
    assert three.run("%%ranks\nkept, 'only_here' in globals()").stdout.splitlines()[2] == "[2] ([2, 20], False)"
    assert "NameError" in three.run("kept").error


def test_variables_there_and_back(three: Kernel) -> None:
    three.run("import numpy\nfield = numpy.arange(6.0); word = 'x'")
    shown = three.run("%%ranks --push field,word --pull part,total\npart = field[2 * rank :][:2]; total = word * comm.size")
    assert not shown.error
    assert (
        three.run("print([each.tolist() for each in part], total)").stdout
        == "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] ['xxx', 'xxx', 'xxx']\n"
    )


def test_what_cannot_be_sent_is_named(three: Kernel) -> None:
    assert "there is no variable 'nowhere' in the notebook" in three.run("%%ranks --push nowhere\n1").stderr
    assert (
        "ranks 0-2 raised CannotBeSent: there is no variable 'nowhere' on this rank" in three.run("%%ranks --pull nowhere\n1").error
    )
    three.run("import threading\nlock = threading.Lock()")
    assert "the variable 'lock' in the notebook cannot be sent: TypeError" in three.run("%%ranks --push lock\n1").stderr


def test_figures_and_other_rich_output(three: Kernel) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    source = "if rank == 1:\n    import matplotlib.pyplot as plt\n    print('before', end=' '); plt.plot([1, 2]); plt.show(); print('after')"
    shown = three.run(f"%%ranks\n{source}")
    assert [set(bundle) for bundle in shown.bundles] == [{"text/plain", "image/png"}]
    places = [shown.order.index(text) for text in ("[1] before ", "image/png", "[1] after")]
    assert places == sorted(places)
    shown = three.run("%%ranks\nfrom IPython.display import HTML\nHTML(f'<b>{rank}</b>')")
    assert [bundle["text/html"] for bundle in shown.bundles] == ["<b>0</b>", "<b>1</b>", "<b>2</b>"]


def test_what_other_processes_write_is_in_the_cell(three: Kernel) -> None:
    shown = three.run("%%ranks\nif rank == 2:\n    os.system('echo from a shell; echo worse >&2')\n    !echo from IPython")
    assert shown.lines == ["[2] from IPython", "[2] from a shell"]
    assert shown.stderr == "[2] worse\n"


def test_a_fork_of_a_rank_prints_to_the_cell_and_leaves_the_connection_alone(three: Kernel) -> None:
    fork = "child = os.fork()\nif not child:\n    print('child of', rank, flush=True); os._exit(0)\n"
    source = f"{fork}os.waitpid(child, 0)\nprint('parent', rank)"
    assert three.run(f"%%ranks\n{source}").lines == sorted(
        f"[{rank}] {who} {rank}" for rank in range(3) for who in ("child of", "parent")
    )


def test_an_exception_is_shown_with_rank_and_line(three: Kernel) -> None:
    shown = three.run("%%ranks\nprint('fine')\nif rank == 1:\n    [][rank]")
    assert shown.lines == ["[0] fine", "[1] fine", "[2] fine"]
    assert re.search(r"^\[1\] Cell In\[\d+\], line 4$", shown.stderr, re.MULTILINE)  # as the notebook counts: %%ranks is the first
    assert shown.error == "CellFailed: rank 1 raised IndexError: list index out of range"
    assert three.run("%%ranks\ncomm.allreduce(1)").stdout == "[0-2] 3\n"


def test_the_same_exception_is_said_once(three: Kernel) -> None:
    shown = three.run("%%ranks\n1 / 0")
    assert 1 <= shown.stderr.count("Traceback") <= 3  # those that come within half a second are one
    assert shown.error == "CellFailed: ranks 0-2 raised ZeroDivisionError: division by zero"


def test_ranks_that_wait_for_one_that_failed_are_stopped(three: Kernel) -> None:
    three.run("from ncclx_mpi.notebook import cell\npatience, cell._STUCK_SECONDS = cell._STUCK_SECONDS, 1.0")
    shown = three.run("%%ranks\nif rank == 1:\n    1 / 0\ncomm.recv(source=1)")
    three.run("cell._STUCK_SECONDS = patience")
    assert re.search(
        r"ranks 0,2 stopped: waiting since rank 1 failed; the ranks were in\n  rank 0 \(process \d+\): in ", shown.stderr
    )
    assert shown.error.startswith("CellFailed: rank 1 raised ZeroDivisionError: division by zero\nranks 0,2 stopped\n")
    assert three.run("%%ranks\ncomm.allreduce(1)").stdout == "[0-2] 3\n"  # a receive leaves nothing behind


def test_an_interrupt_stops_a_deadlock_and_says_where_all_are(three: Kernel) -> None:
    source = f"{TELL}if rank:\n    comm.barrier()"
    shown = three.run(f"%%ranks\n{source}\nelse:\n    comm.recv(source=1)", three.interrupt_when_waiting(3))
    assert re.search(r"rank 0 \(process \d+\): in (probe|recv) from rank 1", shown.stderr)
    assert len(re.findall(r"rank [12] \(process \d+\): in barrier", shown.stderr)) == 2
    assert re.search(r"^\[1-2\] Cell In\[\d+\], line 4$", shown.stderr, re.MULTILINE)
    assert "blocking.py" not in shown.stderr  # a traceback ends with the user's call
    assert shown.error.startswith("KeyboardInterrupt: ranks 0-2 stopped\nranks 0-2 stopped inside an operation")
    assert "interrupted" in three.run("%%ranks\ncomm.barrier()").error
    assert three.run("%%ranks --restart\nfrom mpi4py import MPI\nMPI.COMM_WORLD.allreduce(1)").stdout == "[0-2] 3\n"


# Done is what a rank says when its cell has ended. A rank that has not said so counts as one that does not stop.
_TELL_OF_TWO = """
from ncclx_mpi.notebook import cell
take = cell.Run._take
def take_and_tell(run, rank, message):
    take(run, rank, message)
    if len(run._done) == 2:
        print("two are done", flush=True)
cell.Run._take = take_and_tell
"""


def test_ranks_that_do_not_heed_are_killed_with_their_stacks(three: Kernel) -> None:
    interrupts = 0

    def interrupt_twice(shown: object) -> bool:
        nonlocal interrupts
        text = f"{shown}"
        if interrupts == 0 and "ready" in text and "two are done" in text:
            interrupts = 1
            three.manager.interrupt_kernel()
        elif "interrupted; the ranks were in" in text:
            interrupts = 2
            three.manager.interrupt_kernel()
        return interrupts == 2

    three.run(_TELL_OF_TWO)
    source = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nif rank == 2:\n    print('ready')\n    while True: pass"
    shown = three.run(f"%%ranks\n{source}", interrupt_twice)
    three.run("cell.Run._take = take")
    assert re.search(r'\[2\]   File "<ipython-input-.*, line 6 in <module>', shown.stderr)
    assert shown.error.startswith("KeyboardInterrupt: rank 2 did not stop and all ranks were killed")


def test_an_interrupt_between_cells_harms_nobody(three: Kernel) -> None:
    three.run("%%ranks\nkept = rank")
    for pid in pids(three):
        os.kill(pid, signal.SIGINT)
    assert three.run("%%ranks\nkept").stdout == "[0] 0\n[1] 1\n[2] 2\n"


def test_a_rank_that_dies_in_a_cell_is_said_and_the_next_one_starts_afresh(three: Kernel) -> None:
    shown = three.run("%%ranks\nif rank == 1:\n    os.kill(os.getpid(), 9)\ncomm.barrier()")
    assert re.match(r"CellFailed: rank 1 \(process \d+\) died of SIGKILL; the next `%%ranks` starts new ones", shown.error)
    assert "because rank 1 died" in shown.stderr
    assert three.run("%%ranks\n'comm' in globals()").stdout == "[0-2] False\n"


def test_a_rank_that_dies_between_cells_is_said(three: Kernel) -> None:
    last = pids(three)[2]
    os.kill(last, signal.SIGKILL)
    wait_until(lambda: not is_there(last))
    shown = three.run("%%ranks\n'comm' in globals()")
    assert re.search(r"have ended since the last cell: rank 2 \(process \d+\) died of SIGKILL", shown.stderr)
    assert shown.stdout == "[0-2] False\n"


def test_an_abort_is_said(three: Kernel) -> None:
    assert "CellFailed: a rank has aborted all with code 7" in three.run("%%ranks\ncomm.Abort(7)").error


def test_another_number_of_ranks_is_said(three: Kernel) -> None:
    old = pids(three)
    shown = three.run("%%ranks 2\nfrom mpi4py import MPI\nMPI.COMM_WORLD.size")
    assert (shown.stderr, shown.stdout) == ("%%ranks: 3 ranks ended, with their variables; 2 ranks started\n", "[0-1] 2\n")
    assert not any(map(is_there, old))
    assert three.run("%ranks").stdout.startswith("2 ranks since ")
    assert three.run("%ranks --stop\n%ranks").stdout.startswith("no ranks; ")
    assert "say how many" in three.run("%%ranks --restart\n1").stderr


def test_an_idle_rank_still_serves_the_others(three: Kernel) -> None:
    sends = "requests = [comm.Isend(data, dest=1) for _ in range(2000)]"  # more than there is room for until they are received
    three.run(f"%%ranks\nimport numpy\ndata = numpy.full(1 << 12, rank, 'u1')\nif rank == 0:\n    {sends}")
    receives = "for _ in range(2000):\n        comm.Recv(data, source=0)"
    assert three.run(f"%%ranks\nif rank == 1:\n    {receives}\nint(data.max())").stdout == "[0-1] 0\n[2] 2\n"
    assert not three.run("%%ranks\nif rank == 0:\n    MPI.Request.Waitall(requests)").error


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--pull 1a", "'1a' is no name of a variable"),
        ("x", "'x' is no number of ranks"),
        ("0", "'0' is no number of ranks"),
        ("--stop", "stands alone"),
    ],
)
def test_a_wrong_line_is_explained(notebook: Kernel, line: str, complaint: str) -> None:
    assert complaint in notebook.run(f"%%ranks {line}\n1").stderr


def test_ranks_have_no_input_and_do_not_exit(three: Kernel) -> None:
    assert "raised EOFError: a rank has no input; " in three.run("%%ranks\ninput()").error
    assert "`%ranks --stop` ends them" in three.run("%%ranks\nexit()").error
    assert "SystemExit: 3" in three.run("%%ranks\nimport sys\nsys.exit(3)").error
    assert three.run("%%ranks\nimport asyncio\nawait asyncio.sleep(0, rank)").lines == ["[0] 0", "[1] 1", "[2] 2"]


def test_too_many_ranks_are_refused_in_one_line(notebook: Kernel) -> None:
    assert re.fullmatch(r"CellFailed: 1000000 ranks cannot be started.*", notebook.run("%%ranks 1000000\n1").error)


def test_nothing_outlives_the_kernel_and_a_new_one_starts_afresh(tmp_path: Path) -> None:
    fork = "import multiprocessing, time\nfork = multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,))\n"
    child = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nchild.pid"
    with kernel_in(tmp_path) as kernel:
        left = [int(line.split()[1]) for line in kernel.run(f"%%ranks 2\n{child}").lines] + pids(kernel)
        other = int(kernel.run(f"{fork}fork.start(); print(fork.pid)").stdout)  # it holds what the kernel had open at that time
        try:
            assert len(left) == 4 and all(map(is_there, left))
            os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
            wait_until(lambda: not any(map(is_there, left)))
        finally:
            os.kill(other, signal.SIGKILL)
        kernel.restart()
        assert kernel.run("%load_ext ncclx_mpi\n%ranks").stdout.startswith("no ranks; ")
