# ranks: 2
import functools
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
try:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
    stream = xp.cuda.Stream(non_blocking=True)
except (ImportError, RuntimeError):  # no CuPy, or no GPU
    xp, stream = np, None
calls = comm  # which block
if stream is not None:
    stream.use()
    comm.prepare(heap=8 << 20, reductions=[(MPI.SUM, MPI.DOUBLE)])  # once, all ranks together
    calls = comm.in_stream(stream)  # the same calls, which do not

# Each rank has data of its own, for which the best weights are `goal`; the ranks together look for those that suit all.
goal = xp.linspace(0, 1, 100_000) + comm.rank
weights, gradient = xp.zeros_like(goal), xp.empty_like(goal)


def step() -> None:
    """Descend once. All of it is enqueued: the kernels, and the call between them."""
    xp.subtract(weights, goal, out=gradient)
    calls.Allreduce(MPI.IN_PLACE, gradient)
    xp.multiply(gradient, 0.1 / comm.size, out=gradient)
    xp.subtract(weights, gradient, out=weights)


def report(steps: int) -> None:
    """Wait for the stream, learn whether all calls in it went well, and only then look at the weights."""
    if stream is not None:
        stream.synchronize()
        comm.check()
    if comm.rank == 0:
        away = float(abs(weights - (goal + (comm.size - 1) / 2)).max())
        print(f"after {steps} steps the weights are {away:.6f} away from the best ones of all")


if comm.rank == 0:
    print(f"arrays of {xp.__name__}, calls {'that block' if stream is None else 'in a stream'}")
report(0)
begun = time.perf_counter()
for _ in range(50):
    step()
enqueued = time.perf_counter()
report(50)
if stream is not None and comm.rank == 0:
    print(f"the host needed {1e3 * (enqueued - begun):.1f} ms for that, the GPU {1e3 * (time.perf_counter() - begun):.1f} ms")

again = step
if stream is not None:
    stream.begin_capture()
    step()  # is recorded, and does nothing yet
    again = functools.partial(stream.end_capture().launch, stream)
for _ in range(100):
    again()
report(150)
