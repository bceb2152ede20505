"""``ncclx info --ucx`` says which UCX there is, or what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclx_mpi.cli import ucx
from transports.ucx.library import LibraryError, find


def info(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "ncclx_mpi", "info", "--ucx", *arguments]
    return subprocess.run(program, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_it_says_which_one_why_and_what_it_offers() -> None:
    try:
        library = find()
    except LibraryError as error:
        pytest.skip(str(error))
    named = info("--json", NCCLX_MPI_UCX_LIBRARY=library.path, UCX_NET_DEVICES="lo")
    facts = json.loads(named.stdout)
    assert (facts["ucx"], facts["why this one"]) == (library.name, "NCCLX_MPI_UCX_LIBRARY names it")
    assert "tcp" in facts["devices"]["lo"]
    assert (facts["settings"]["UCX_RC_TIMEOUT"], facts["settings"]["UCX_NET_DEVICES"]) == ("250ms", "lo")
    text = info(NCCLX_MPI_UCX_LIBRARY=library.path, UCX_NET_DEVICES="lo").stdout
    assert f"ucx: {library.name}\n" in text and "  lo: tcp" in text


def test_it_warns_of_bbr_where_ranks_are_reached_by_tcp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = {}
    for control in ("cubic", "bbr"):
        (tmp_path / control).write_text(control + "\n")
        monkeypatch.setattr(ucx, "_CONGESTION", tmp_path / control)
        said[control] = ucx.congestion_of_tcp(["tcp", "self"])["congestion control of TCP"]
    assert said["cubic"] == "cubic" and said["bbr"].startswith("bbr (slow where packets overtake each other")
    assert ucx.congestion_of_tcp(["rc_verbs"]) == {}
    monkeypatch.setattr(ucx, "_CONGESTION", tmp_path / "none")
    assert ucx.congestion_of_tcp(["tcp"]) == {}


def test_it_fails_with_one_line_that_says_what_is_wrong() -> None:
    done = info(NCCLX_MPI_UCX_LIBRARY="/nowhere/libucp.so.0")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert done.stderr.startswith("NCCLX_MPI_UCX_LIBRARY names /nowhere/libucp.so.0, which cannot be loaded")
