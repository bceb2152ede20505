# run by: overlap_timeline.py
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
peer = 1 - comm.rank
mine, theirs = np.full(1 << 21, float(comm.rank)), np.zeros(1 << 21)  # 16 MiB: announced, and moved when both sides make calls
parts = np.split(np.random.default_rng(comm.rank).random(800_000), 16)


def begin() -> list[MPI.Request]:
    return [comm.Irecv(theirs, source=peer), comm.Isend(mine, dest=peer)]


MPI.Request.Waitall(begin())  # the first message of a kind costs more
comm.Barrier()
requests = begin()
MPI.Request.Waitall(requests)  # first the message
for part in parts:
    part.sort()  # then the work
comm.Barrier()
requests = begin()
for part in parts:
    part[::-1].sort()  # the work
    MPI.Request.Testall(requests)  # moves on what is under way
MPI.Request.Waitall(requests)  # what is left of the message
comm.Barrier()
time.sleep(60)  # to be looked at
