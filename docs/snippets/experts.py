# ranks: 4
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
TOKENS, WIDTH = 6, 2  # of each rank
EXPERTS = 2 * comm.size  # two on each rank
generator = np.random.default_rng(comm.rank)
tokens = generator.integers(0, 10, (TOKENS, WIDTH)).astype(float)
chosen = (generator.geometric(0.35, TOKENS) - 1) % EXPERTS  # what the router decided: the first experts are popular

# Tokens in the order of their experts, and how many each expert gets: all that a rank has to say.
order = np.argsort(chosen, kind="stable")
outbox = tokens[order]
splits = WIDTH * np.bincount(chosen, minlength=EXPERTS)

areas = np.zeros((comm.size, TOKENS * WIDTH))  # room for what each rank may send at most
every = np.empty((comm.size, EXPERTS), int)  # receives the splits of all ranks
comm.Alltoallv_dynamic(outbox, areas, splits, allsplits=every)

# The two experts of this rank: one multiplies by its number and one, as the other one does.
mine = (2 * comm.rank, 2 * comm.rank + 1)
for area, counts in zip(areas, every[:, mine[0] : mine[1] + 1], strict=True):
    first, second = counts
    area[:first] *= mine[0] + 1
    area[first : first + second] *= mine[1] + 1

inbox = np.empty_like(outbox)
comm.Alltoallv_dynamic_combine(areas, inbox, every)  # everything goes back to where it came from
results = np.empty_like(tokens)
results[order] = inbox

is_right = np.array_equal(results, tokens * (chosen[:, None] + 1))
load = (every.sum(axis=0) // WIDTH).tolist()
if comm.allreduce(is_right, op=MPI.LAND) and comm.rank == 0:
    print("tokens of each expert:", load)
    print(
        "of rank 0: experts", chosen.tolist(), "made", results[:, 0].astype(int).tolist(), "of", tokens[:, 0].astype(int).tolist()
    )
