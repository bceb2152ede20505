"""A real Slurm cluster of two nodes on this machine: its daemons run as our own processes, and end with the test."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ncclx_mpi.process import end_with_parent

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "sinfo")
_READY_SECONDS = 60.0
_CPUS_OF_NODE = 4

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort={ports[0]}
MpiDefault=none
SwitchType=switch/none
TopologyPlugin=topology/tree
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes=n[1-2] Default=YES OverSubscribe=FORCE:4 State=UP
"""
_GPUS = """
NodeName=n[1-2] Name=gpu File=/dev/null
NodeName=n[1-2] Name=gpu File=/dev/zero
"""
"""Two of each node, for Slurm; they are none."""
SWITCHES = """
SwitchName=leaf1 Nodes=n1
SwitchName=leaf2 Nodes=n2
SwitchName=spine Switches=leaf[1-2]
"""


def why_not() -> str:
    """Why there can be no Slurm here; empty if there can."""
    missing = [name for name in _PROGRAMS if _find(name) is None]
    if missing:
        return f"there is no {', '.join(missing)} (Debian: slurm-wlm and munge)"
    return "" if os.geteuid() == 0 else "daemons of Slurm take root"


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


class Cluster:
    """Two nodes, n1 and n2, which are one machine.

    Attributes
    ----------
    variables
        What commands of Slurm need to find it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start the daemons, and wait until both nodes are idle."""
        (self._folder / "state").mkdir()
        key = self._folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        text = _CONFIGURATION.format(host=socket.gethostname(), folder=self._folder, ports=_free_ports(3), cpus=_CPUS_OF_NODE)
        (self._folder / "slurm.conf").write_text(text)
        (self._folder / "topology.conf").write_text(SWITCHES)
        (self._folder / "gres.conf").write_text(_GPUS)
        names = ("socket", "key", "pid", "seed", "log")
        options = [f"--{name}-file={self._folder}/munge.{name}" for name in names[1:]]
        self._daemon("munged", "--foreground", "--force", f"--socket={self._folder}/munge.socket", *options)
        self._wait(lambda: (self._folder / "munge.socket").exists())
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D", "-N", "n1")
        self._daemon("slurmd", "-D", "-N", "n2")
        self._wait(lambda: self._states() == ["idle", "idle"])

    def _daemon(self, name: str, *options: str) -> None:
        program = _find(name)
        assert program is not None
        with open(self._folder / f"{name}-{len(self._daemons)}.out", "wb") as log:
            daemon = subprocess.Popen(
                [program, *options],
                env={**os.environ, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=functools.partial(end_with_parent, os.getpid()),
            )
        self._daemons.append(daemon)

    def _states(self) -> list[str]:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%T"],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=False,
        )
        return asked.stdout.split()

    def _wait(self, is_ready: object) -> None:
        assert callable(is_ready)
        end = time.monotonic() + _READY_SECONDS
        while not is_ready():
            ended = [daemon.args[0] for daemon in self._daemons if daemon.poll() is not None]  # type: ignore[index]
            assert not ended and time.monotonic() < end, f"Slurm does not start; {ended} ended: {self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        """What the daemons wrote, at its end."""
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in self._folder.glob("*.out"))

    def stop(self) -> None:
        """End the daemons."""
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextmanager
def two_nodes(folder: Path) -> Iterator[Cluster]:
    """Start Slurm with its files in `folder`, and end it."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
