"""A newcomer's path: the README's first command, then four tutorials, with the programs and the commands of the pages, word for word.

python -m tests.docs.newcomer FOLDER_OF_PROGRAMS [CHECKOUT]

In an empty folder, with the programs of an environment and those of the system; the README's command in the checkout, if one is given.
A program of a page is written to the file that the next command names. Prints what a terminal would show, and ends where a command does
not do what its page says. Ranks on two nodes need a Slurm, which is found by the variable SLURM_CONF.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.docs.blocks import ROOT, blocks_of

TUTORIALS = tuple(
    ROOT / "docs" / "tutorials" / f"{n}.md" for n in ("first_program", "halo_exchange", "debugging_a_hang", "to_a_cluster")
)
NOT_HERE = {
    "pip install .": "the README's first command is this one",
    "bash two_hosts.sh who_is_near.py": "needs root and UCX",
    "bash two_hosts.sh ncclx info --peers": "needs root and UCX",
    "ncclx run --hosts node1:2,node2:2 who_is_near.py": "needs two hosts and ssh between them",
}
KEPT = ("HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "NCCLX_MPI_CACHE_DIR", "SLURM_CONF")
"""What a newcomer's environment has; nothing of the tests may help."""
SECONDS = 300.0


class Astray(Exception):
    """A command did not do what its page says."""


class Walk:
    """One newcomer.

    Attributes
    ----------
    transcript
        What the terminal shows.
    has_slurm
        Whether this newcomer has a Slurm.
    """

    def __init__(self, programs: Path, folder: Path, **variables: str) -> None:
        self._folder = folder
        path = os.pathsep.join([str(programs), "/usr/local/bin", "/usr/bin", "/bin"])
        self._env = {name: os.environ[name] for name in KEPT if name in os.environ} | variables | {"PATH": path}
        self.has_slurm = "SLURM_CONF" in self._env
        self._hanging: subprocess.Popen[str] | None = None
        self.transcript: list[str] = []

    def install(self, readme: Path, checkout: Path) -> None:
        """Do what the README says first, in the folder where it says so."""
        (block,) = (block for block in blocks_of(readme) if block.mark == "ci: install")
        for line in block.lines:
            self._run(line, checkout)

    def follow(self, page: Path) -> None:
        """Do what a page says, and see what it shows."""
        blocks = blocks_of(page)
        program = ""
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if block.language == "python":
                program = block.text
            lines = [line for line in block.commands if self._is_for_here(line)]
            if program and lines:
                self._write(program, lines[0])
                program = ""
            shown = after.text if after is not None and after.mark.startswith("output: ") else ""
            if any("PID" in line for line in lines):
                self._look_at_what_hangs(lines, shown)
            elif after is not None and any("PID" in line for line in after.commands):
                self._let_it_hang(lines)
            else:
                compare("".join(self._run(line, self._folder) for line in lines), shown, lines)

    def _is_for_here(self, line: str) -> bool:
        reason = NOT_HERE.get(line, "there is no Slurm" if line.startswith("srun ") and not self.has_slurm else "")
        if reason:
            self.transcript.append(f"# not here, {reason}: {line}")
        return not reason

    def _write(self, program: str, command: str) -> None:
        found = re.findall(r"\b\w+\.py\b", command)
        if not found:
            raise Astray(f"after a program comes a command that names no file: {command}")
        (self._folder / found[-1]).write_text(program)
        self.transcript.append(f"# wrote {found[-1]}")

    def _run(self, line: str, folder: Path) -> str:
        """Return what a command printed, which ends in order, or by an exception that its page shows."""
        self.transcript.append(f"$ {line}")
        bash = ["bash", "-c", line]
        done = subprocess.run(bash, cwd=folder, env=self._env, capture_output=True, text=True, timeout=SECONDS, check=False)
        printed = done.stdout + done.stderr
        self.transcript += printed.splitlines()
        if done.returncode != 0 and "MPI.Exception" not in printed:
            raise Astray(f"ended with {done.returncode}: {line}\n{printed}")
        return printed

    def _let_it_hang(self, lines: list[str]) -> None:
        (line,) = lines
        self.transcript.append(f"$ {line}")
        bash = ["bash", "-c", line]
        self._hanging = subprocess.Popen(
            bash, cwd=self._folder, env=self._env, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def _look_at_what_hangs(self, lines: list[str], shown: str) -> None:
        """From another terminal, until there is to be seen what the page shows; then press Ctrl-C in the first."""
        job = self._hanging
        if job is None:
            raise Astray(f"nothing hangs: {lines}")
        end = time.monotonic() + SECONDS
        try:
            while True:
                before = len(self.transcript)
                try:
                    printed = "".join(self._run(line.replace("PID", str(job.pid)), self._folder) for line in lines)
                    compare(printed, shown, lines)
                    break
                except Astray:
                    if time.monotonic() > end or job.poll() is not None:
                        raise
                    del self.transcript[before:]
                    time.sleep(0.2)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(job.pid, signal.SIGINT)
            said = job.communicate(timeout=60)[1]
        self.transcript += ["^C", *said.splitlines()]
        if "KeyboardInterrupt" not in said:
            raise Astray(f"Ctrl-C does not end it with KeyboardInterrupt: {said}")


def compare(printed: str, shown: str, lines: list[str]) -> None:
    """See whether the lines that a page shows were printed, in this order; three dots stand for anything, and columns may be wider."""
    rest = iter(printed.splitlines())
    for line in filter(None, shown.splitlines()):
        pattern = re.sub(r"(\\ )+", r"\\s+", re.escape(line).replace(re.escape("..."), ".+"))
        if not any(re.fullmatch(pattern, one) for one in rest):
            raise Astray(f"not printed, or not in this order, by {lines}: {line}\n{printed}")
    if lines and not shown and not printed.strip():
        raise Astray(f"printed nothing: {lines}")


def main() -> None:
    programs = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(programs, Path(folder))
        try:
            if len(sys.argv) > 2:
                walk.install(ROOT / "README.md", Path(sys.argv[2]))
            for page in TUTORIALS:
                walk.follow(page)
        finally:
            print("\n".join(walk.transcript))


if __name__ == "__main__":
    main()
