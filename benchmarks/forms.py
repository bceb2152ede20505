"""The forms in which a program may name a buffer, ours beside mpi4py over other MPIs, in turns.

python benchmarks/forms.py [--peer NAME=PYTHON]... [--before PYTHON] [-n 2] [--rounds 5] [--json FILE]

Each call moves 16 doubles, or 2 for each rank: what counts is the way from the arguments to addresses. Times are microseconds of a call, the
least of some blocks of calls, then medians of rounds.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

BLOCKS, LOOPS = 7, 200


def main() -> None:
    from benchmarks import in_turn

    options = in_turn.parser(__doc__, ranks=2).parse_args()
    times = in_turn.measure(__file__, options)
    in_turn.report(times, options, "forms of buffers, 16 doubles", "us")


def messages(comm: Any, mpi: Any) -> dict[str, Callable[[], None]]:
    """One message there and one back, named in several ways."""
    import numpy as np

    kind, other = mpi.DOUBLE, comm.size - 1 - comm.rank
    a, b, grid, edge = np.arange(16.0), np.zeros(16), np.zeros((16, 16)), np.zeros((16, 16))
    words, back, raw, into = array("d", a), array("d", b), bytearray(128), bytearray(128)
    column = kind.Create_vector(16, 1, 16).Commit()

    def both(sent: Any, received: Any) -> Callable[[], None]:
        return lambda: comm.Sendrecv(sent, other, 1, received, other, 1)

    def started(sent: Any, received: Any) -> Callable[[], None]:
        return lambda: mpi.Request.Waitall([comm.Irecv(received, other, 2), comm.Isend(sent, other, 2)])

    return {
        "Sendrecv: a": both(a, b),
        "Sendrecv: [a, type]": both([a, kind], [b, kind]),
        "Sendrecv: [a, code]": both([a, "d"], [b, "d"]),
        "Sendrecv: [a, n]": both([a, 16], [b, 16]),
        "Sendrecv: [a, n, type]": both([a, 16, kind], [b, 16, kind]),
        "Sendrecv: [a, (n, first), type]": both([a, (8, 4), kind], [b, (8, 4), kind]),
        "Sendrecv: array.array": both(words, back),
        "Sendrecv: bytearray": both(raw, into),
        "Sendrecv: [bytearray, BYTE]": both([raw, mpi.BYTE], [into, mpi.BYTE]),
        "Sendrecv: memoryview": both(memoryview(raw), memoryview(into)),
        "Sendrecv: a column": both([grid, 1, column], [edge, 1, column]),
        "Sendrecv: PROC_NULL": lambda: comm.Sendrecv(a, mpi.PROC_NULL, 0, b, mpi.PROC_NULL, 0),
        "Sendrecv_replace": lambda: comm.Sendrecv_replace(a, other, 0, other, 0),
        "Isend, Irecv: [a, n, type]": started([a, 16, kind], [b, 16, kind]),
        "Isend, Irecv: a column": started([grid, 1, column], [edge, 1, column]),
    }


def collectives(comm: Any, mpi: Any) -> dict[str, Callable[[], None]]:
    """Collectives with counts."""
    import numpy as np

    kind, size, is_root = mpi.DOUBLE, comm.size, comm.rank == 0
    a, b, sent, received = np.arange(16.0), np.zeros(16), np.zeros(2 * size), np.zeros(2 * size)
    counts, firsts = [2] * size, list(range(0, 2 * size, 2))
    whole, back, block, blocks = [a, 16, kind], [b, 16, kind], [a, 2, kind], [received, 2, kind]
    vector = [received, (counts, firsts), kind]
    return {
        "Bcast": lambda: comm.Bcast(whole, 0),
        "Allreduce": lambda: comm.Allreduce(whole, back),
        "Reduce": lambda: comm.Reduce(whole, back if is_root else None),
        "Scan": lambda: comm.Scan(whole, back),
        "Gather": lambda: comm.Gather(block, blocks if is_root else None),
        "Scatter": lambda: comm.Scatter([sent, 2, kind] if is_root else None, [b, 2, kind]),
        "Allgather": lambda: comm.Allgather(block, blocks),
        "Allgather in place": lambda: comm.Allgather(mpi.IN_PLACE, blocks),
        "Alltoall": lambda: comm.Alltoall([sent, 2, kind], blocks),
        "Gatherv": lambda: comm.Gatherv(block, vector if is_root else None),
        "Scatterv": lambda: comm.Scatterv([sent, (counts, firsts), kind] if is_root else None, [b, 2, kind]),
        "Allgatherv": lambda: comm.Allgatherv(block, vector),
        "Allgatherv in place": lambda: comm.Allgatherv(mpi.IN_PLACE, vector),
        "Ibcast": lambda: comm.Ibcast(whole, 0).Wait(),
        "Iallreduce": lambda: comm.Iallreduce(whole, back).Wait(),
        "Iallgather": lambda: comm.Iallgather(block, blocks).Wait(),
        "Igatherv": lambda: comm.Igatherv(block, vector if is_root else None).Wait(),
        "Iscatterv": lambda: comm.Iscatterv([sent, (counts, firsts), kind] if is_root else None, [b, 2, kind]).Wait(),
        "Iallgatherv": lambda: comm.Iallgatherv(block, vector).Wait(),
        "Ialltoallv": lambda: comm.Ialltoallv([sent, (counts, firsts), kind], vector).Wait(),
    }


def columns(comm: Any, mpi: Any) -> dict[str, Callable[[], None]]:
    """Collectives of columns, as derived datatypes: one of 16 doubles, or one of two for each rank."""
    import numpy as np

    size, is_root = comm.size, comm.rank == 0
    whole = mpi.DOUBLE.Create_vector(16, 1, 16).Commit()
    column = mpi.DOUBLE.Create_vector(2, 1, 2 * size).Create_resized(0, 8).Commit()
    grid, sent, received, own = np.arange(256.0), np.arange(4.0 * size), np.zeros(4 * size), np.zeros(4 * size)
    counts, firsts, bytes_at, kinds = [1] * size, list(range(size)), [8 * at for at in range(size)], [column] * size
    block, blocks, vector = [own, 1, column], [received, 1, column], [received, (counts, firsts), column]
    return {
        "Bcast: a column": lambda: comm.Bcast([grid, 1, whole], 0),
        "Gather: columns": lambda: comm.Gather(block, blocks if is_root else None),
        "Scatter: columns": lambda: comm.Scatter([sent, 1, column] if is_root else None, block),
        "Allgather: columns": lambda: comm.Allgather(block, blocks),
        "Alltoall: columns": lambda: comm.Alltoall([sent, 1, column], blocks),
        "Gatherv: columns": lambda: comm.Gatherv(block, vector if is_root else None),
        "Scatterv: columns": lambda: comm.Scatterv([sent, (counts, firsts), column] if is_root else None, block),
        "Allgatherv: columns": lambda: comm.Allgatherv(block, vector),
        "Alltoallv: columns": lambda: comm.Alltoallv([sent, (counts, firsts), column], vector),
        "Alltoallw: columns": lambda: comm.Alltoallw([sent, (counts, bytes_at), kinds], [received, (counts, bytes_at), kinds]),
    }


def made_for_one(comm: Any, mpi: Any) -> dict[str, Callable[[], None]]:
    """Messages, and a collective, of a derived datatype that is made for them, and freed."""
    import numpy as np

    other, grid, edge = comm.size - 1 - comm.rank, np.arange(256.0), np.zeros(256)
    sizes, places = [2, 1], [0, 32]

    def freed(kind: Any, use: Callable[[Any], None]) -> None:
        use(kind.Commit())
        kind.Free()

    def column() -> Any:
        return mpi.DOUBLE.Create_vector(16, 1, 16)

    def struct() -> Any:
        return mpi.Datatype.Create_struct(sizes, places, [mpi.DOUBLE, mpi.INT])

    def swap(kind: Any) -> None:
        comm.Sendrecv([grid, 1, kind], other, 1, [edge, 1, kind], other, 1)

    def start(kind: Any) -> None:
        mpi.Request.Waitall([comm.Irecv([edge, 1, kind], other, 2), comm.Isend([grid, 1, kind], other, 2)])

    return {
        "made, freed: a column": lambda: freed(column(), lambda kind: None),
        "made, Sendrecv, freed: a column": lambda: freed(column(), swap),
        "made, Sendrecv, freed: a struct": lambda: freed(struct(), swap),
        "made, Isend, Irecv, freed: a column": lambda: freed(column(), start),
        "made, Bcast, freed: a column": lambda: freed(column(), lambda kind: comm.Bcast([grid, 1, kind], 0)),
    }


class Tensor:
    """An array of a library that speaks DLPack."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __dlpack__(self, **asked: Any) -> Any:
        return self._values.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def of_others(comm: Any, mpi: Any) -> dict[str, Callable[[], None]]:
    """Arrays that are not of NumPy's own class, and None in a specification."""
    import ctypes
    import tempfile

    import numpy as np

    def mapped() -> Any:
        with tempfile.TemporaryFile() as file:
            return np.memmap(file, "d", "w+", shape=(16,))

    def tensor() -> Tensor:
        return Tensor(np.zeros(16))

    other, kinds = comm.size - 1 - comm.rank, {"a mapped array": mapped, "ctypes": ctypes.c_double * 16, "a tensor": tensor}
    cases: dict[str, Callable[[], None]] = {}
    for name, make in kinds.items():
        a, b = make(), make()
        cases[f"Sendrecv: {name}"] = lambda a=a, b=b: comm.Sendrecv(a, other, 1, b, other, 1)
        cases[f"Allreduce: {name}"] = lambda a=a, b=b: comm.Allreduce(a, b)
    a, b = [np.zeros(16), (16, None)], [np.zeros(16), None, None, mpi.DOUBLE]
    return cases | {"Sendrecv: [a, (n, None)]": lambda: comm.Sendrecv(a, other, 1, b, other, 1)}


def worker() -> None:
    """Measure all cases on this rank, and print them on the first."""
    from mpi4py import MPI

    comm, found = MPI.COMM_WORLD, {}
    groups = messages, collectives, columns, made_for_one, of_others
    cases = {name: call for group in groups for name, call in group(comm, MPI).items()}
    for case, call in cases.items():
        least = float("inf")
        for _ in range(BLOCKS):
            comm.Barrier()
            begun = time.perf_counter()
            for _ in range(LOOPS):
                call()
            least = min(least, (time.perf_counter() - begun) / LOOPS)
        found[case] = least * 1e6
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["--worker"] else main()
