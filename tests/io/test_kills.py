"""A rank that dies in the middle of accesses: the others learn of it, each byte is an old one or a new one, locks are free again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = """
import json, os, signal, sys
import numpy as np
from mpi4py import MPI

path, kind, blocks = sys.argv[1], sys.argv[2], 600
comm = MPI.COMM_WORLD
info = MPI.Info.Create({"romio_cb_write": "enable", "cb_buffer_size": "65536"})
file = MPI.File.Open(comm, path, MPI.MODE_RDWR, info)
tile = MPI.BYTE.Create_contiguous(512).Create_resized(0, 1024 * comm.size).Commit()
file.Set_view(1024 * comm.rank, MPI.BYTE, tile)
file.Set_atomicity(kind == "atomic")
given = np.full(512 * blocks, 1 + comm.rank, np.uint8)
try:
    for turn in range(10**6):
        if comm.rank == 1 and turn == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "shared":
            file.Write_shared(given[:512])
        elif kind == "ordered":
            file.Write_ordered(given[:512])
        else:
            file.Write_at_all(0, given)
        if kind in ("shared", "atomic"):
            comm.Barrier()
except MPI.Exception as error:
    print(json.dumps([comm.rank, error.Get_error_class() == MPI.ERR_PROC_FAILED]), flush=True)
"""


@pytest.mark.parametrize("topology", ["machine", "vnode:2"])
@pytest.mark.parametrize("kind", ["together", "atomic", "shared", "ordered"])
def test_survivors_learn_of_it(tmp_path: Path, kind: str, topology: str) -> None:
    path, before = tmp_path / "file", 255
    path.write_bytes(bytes([before]) * (1024 * 4 * 600))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "4", "--timeout", "60", str(program), str(path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "NCCLX_MPI_TOPOLOGY": topology})
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert sorted(map(json.loads, done.stdout.splitlines())) == [[0, True], [2, True], [3, True]], done.stdout + done.stderr
    table = np.fromfile(path, np.uint8).reshape(-1, 4, 2, 512)
    assert (table[:, :, 1] == before).all()
    if kind in ("together", "atomic"):
        new = np.arange(4).reshape(1, 4, 1) + 1
        assert np.isin(table[:, :, 0], [before, 1, 2, 3, 4]).all()
        assert ((table[:, :, 0] == new) | (table[:, :, 0] == before)).all()
