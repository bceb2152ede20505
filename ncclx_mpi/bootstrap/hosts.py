"""The hosts of a job: which ranks are where, and how this host comes to know."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclx_mpi.bootstrap import mesh, store, topology
from ncclx_mpi.bootstrap.heartbeat import heartbeat
from ncclx_mpi.bootstrap.mesh import Mesh
from ncclx_mpi.bootstrap.patience import Patience
from ncclx_mpi.bootstrap.record import Record
from transports.shm.arena import MAX_RANKS, new_key

TOKEN = "NCCLX_MPI_TOKEN"
_LEAST_TOKEN = 16
_MOST_TOKEN = 4096
MOST_NODES = 1024


@dataclass
class Hosts:
    """What one host knows of all.

    Attributes
    ----------
    node
        The number of this one.
    records
        What each said of itself.
    mesh
        The connections with the others.
    """

    node: int
    records: Sequence[Record]
    mesh: Mesh

    @property
    def size(self) -> int:
        """Ranks of the job."""
        return sum(record.nranks for record in self.records)

    @property
    def job(self) -> int:
        """The number of the job."""
        return self.records[0].job

    @property
    def machine_size(self) -> int:
        """Ranks that share this host's cores."""
        own = self.records[self.node].machine
        return sum(record.nranks for record in self.records if record.machine == own)

    def ranks_of(self, node: int) -> range:
        """World ranks of a node: they follow each other, node by node."""
        first = sum(record.nranks for record in self.records[:node])
        return range(first, first + self.records[node].nranks)


def meet(rendezvous: str, node: int, nnodes: int, nranks: int, token: bytes, patience: Patience) -> Hosts:
    """Meet the other hosts of the job at ``host`` or ``host:port`` of node 0.

    Raises
    ------
    ValueError
        Numbers or settings that cannot be.
    TimeoutError, store.JobRefused, RuntimeError
        They did not come, do not fit together, or the port is taken.
    """
    _check(node, nnodes, nranks)
    host, ports = address(rendezvous, token)
    beat = heartbeat()
    listener = mesh.listen(host)
    own = Record(node, nnodes, nranks, port=listener.getsockname()[1], job=new_key() if node == 0 else 0)
    try:
        if node == 0:
            records = store.Store(store.open_store(host, ports), own, token).gather(patience)
        else:
            records = store.enter(host, ports, own, token, patience)
    except BaseException:
        listener.close()
        raise
    return Hosts(node, records, Mesh(mesh.connect(records, own, listener, token, patience), beat))


def _check(node: int, nnodes: int, nranks: int) -> None:
    if not 1 <= nnodes <= MOST_NODES:
        raise ValueError(f"a job has 1 to {MOST_NODES} nodes, not {nnodes}")
    if not 0 <= node < nnodes:
        raise ValueError(f"node {node} is not one of {nnodes}: nodes are counted from 0")
    if not 1 <= nranks <= MAX_RANKS:
        raise ValueError(f"a node has 1 to {MAX_RANKS} ranks, not {nranks}")
    if len(topology.nodes(nranks)) > 1:
        raise ValueError("NCCLX_MPI_TOPOLOGY makes simulated nodes on one host; a job on several hosts has real ones")


def address(rendezvous: str, token: bytes) -> tuple[str, Sequence[int]]:
    """Host, and the ports at which the store may be: one, or those that follow from the token.

    Raises
    ------
    ValueError
        It is no address.
    """
    host, colon, port = rendezvous.rpartition(":")
    if not colon or rendezvous.endswith("]"):
        host, port = rendezvous, ""
    host = host.strip("[]")
    if not host or (colon and host != rendezvous.strip("[]") and not port.isdigit()) or (port and not 0 < int(port) < 1 << 16):
        raise ValueError(f"{rendezvous!r} is no address: it is the name of the first host, or name:port")
    return host, [int(port)] if port else store.ports_of(token)


def token_from(environ: Mapping[str, str], path: str = "") -> bytes:
    """The token of the job: what ``NCCLX_MPI_TOKEN`` holds, or the file, which nobody else may read.

    Raises
    ------
    ValueError
        There is none, others may read it, or it can be guessed.
    """
    text = _read_secret(path) if path else environ.get(TOKEN, "")
    if not text.strip():
        raise ValueError(
            f"the hosts of a job know each other by a token: put the same long random text into {TOKEN} on all, or into a file that "
            "only you can read, and name it with --token-file"
        )
    token = text.strip().encode()
    if len(token) < _LEAST_TOKEN:
        raise ValueError(f"the token of the job has {len(token)} bytes; it takes at least {_LEAST_TOKEN}, that nobody can guess")
    return token


def _read_secret(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with open(fd, encoding="utf-8", errors="replace") as file:
            status = os.fstat(fd)
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise ValueError(f"others may read {path}, which holds the token of the job: chmod 600 {path}")
            return file.read(_MOST_TOKEN)
    except OSError as error:
        raise ValueError(f"the token of the job cannot be read from {path}: {error.strerror}") from None
