"""Device arrays to ranks of another host, through pinned host memory and UCX: on the driver double, whose memory the CPU cannot touch."""

from __future__ import annotations

import subprocess
from pathlib import Path

from programs import HOME, command, environment
from spaces import needs_spaces, two_spaces

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from mpi4py import MPI
from ncclx_mpi.testing.driver_double import Double
from tests.device.cases import doing
from tests.device.doubles import check_collectives, maker, values_of
from tests.device.messages import MESSAGES

comm = MPI.COMM_WORLD
with Double(1 + comm.rank) as double:
    for length, kind in ((1, "device"), (20_000, "device"), (20_000, "mixed")):
        for name, message in MESSAGES.items():
            wanted = values_of(message(comm, np.array, length))
            found = values_of(message(comm, maker(kind, comm.rank), length))
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_equal(one, other, err_msg=f"{name} of {length}")
    check_collectives(comm, doing(comm, "blocking"), maker("device", comm.rank), (1001,))
print("right", comm.rank)
"""


@needs_spaces
def test_messages_and_collectives(tmp_path: Path) -> None:
    """One rank of each host has a neighbour on the other one."""
    script = tmp_path / "device_arrays.py"
    script.write_text(PROGRAM)
    with two_spaces() as spaces:
        hosts = ",".join(f"{space.name}:2" for space in spaces)
        own = ["--hosts", hosts, "--rsh", "ip netns exec", "--rendezvous", spaces[0].address]
        line = command("run", *own, str(script), HOME)
        env = environment(NCCLX_MPI_HEARTBEAT="0.5,60")
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"right {rank}" for rank in range(4)]
