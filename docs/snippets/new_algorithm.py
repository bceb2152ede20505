# ranks: 5
import functools

import numpy as np
from mpi4py import MPI

from ncclx_mpi.collectives.executor import Collective
from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan
from ncclx_mpi.collectives.shm_oneshot import BCAST

PIECE = 1 << 16


@functools.lru_cache
def plan(rank: int, size: int, nbytes: int, root: int) -> Plan:
    """Along a chain, in pieces: each rank passes one on while the next one comes."""
    steps = Builder()
    place = (rank - root) % size  # in the chain, which begins at the root
    for first in range(0, nbytes, PIECE):
        length = min(PIECE, nbytes - first)
        here = -1  # the step after which the piece is there; -1: it is from the start
        if place > 0:
            here = steps.recv((rank - 1) % size, (OUTPUT, first), length)
        if place < size - 1:
            steps.send((rank + 1) % size, (OUTPUT, first), length, [here])
    return steps.build()


comm = MPI.COMM_WORLD
news = np.arange(100_000.0) if comm.rank == 1 else np.zeros(100_000)
made = plan(comm.rank, comm.size, news.nbytes, 1)
Collective(comm._state.native, "bcast", BCAST, made, (news.ctypes.data, news.ctypes.data), root=1).start().wait()

arrived = comm.gather((len(made.steps), bool((news == np.arange(100_000)).all())))
if comm.rank == 0:
    print(arrived)
