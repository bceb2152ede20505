# ranks: 2
import contextlib
import json
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def beyond_the_buffer() -> str:
    four = MPI.DOUBLE.Create_contiguous(4).Commit()
    MPI.COMM_SELF.Sendrecv([np.ones(2), 1, four], 0, recvbuf=np.zeros(4), source=0)
    return "sends what lies behind the array"


def after_a_failed_collective() -> str:
    mine = comm.Dup()
    with contextlib.suppress(BufferError):  # of rank 1, whose memory cannot be written
        mine.Bcast(np.zeros(1) if mine.rank == 0 else np.frombuffer(b"8 bytes!"))
    mine.allreduce(1)
    return "the next one runs"


def call(function: Callable[[], object]) -> str:
    """What it returns, or what class of exception it raises."""
    try:
        return str(function())
    except Exception as error:
        return f"raises {type(error).__name__}"


happens = {
    "`MPI.get_vendor()[0]`": call(lambda: MPI.get_vendor()[0]),
    "address of a handle for C, `MPI._addressof(comm)`": call(lambda: type(MPI._addressof(comm)).__name__),
    "a derived datatype that reaches beyond its array": call(beyond_the_buffer),
    "a collective after one that failed on a rank": call(after_a_failed_collective),
    "`comm.Alltoallv_dynamic`": call(lambda: comm.Alltoallv_dynamic and "a method"),
    "`MPI.INFO_ENV.Get('command')`": call(lambda: type(MPI.INFO_ENV.Get("command")).__name__),
}
if comm.rank == 0:
    print(json.dumps(happens, indent=1))
