# ranks: 5
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
is_ocean = world.rank < 2  # two ranks for the ocean, three for the air
model = world.Split(int(is_ocean))
coupled = model.Create_intercomm(0, world, 2 if is_ocean else 0)  # the leader of the other group, as a rank of the world

warmth = np.array([20.0 if is_ocean else 10.0])
theirs = np.empty(1)
coupled.Allreduce(warmth, theirs)  # the sum of the other group

names = coupled.allgather(f"{'ocean' if is_ocean else 'air'} {model.rank}")
if is_ocean:
    coupled.send("waves", dest=2)  # a rank of the other group
    coupled.bcast("storm", MPI.ROOT if model.rank == 0 else MPI.PROC_NULL)
else:
    waves = [coupled.recv(source=rank) for rank in range(2)] if model.rank == 2 else None
    news = coupled.bcast(None, 0)
    if model.rank == 2:
        print(theirs, names, waves, news)
