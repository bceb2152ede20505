"""Calls random public methods with random arguments, most of them wrong: all it may do is raise.

    ncclx run -n 2 bad_calls.py SEED COUNT EMPTY_FOLDER

All ranks draw the same calls, so that collectives meet. Left out are raw addresses and BOTTOM, which no library can
check, and what ends the process on purpose.
"""

import array
import collections
import faulthandler
import inspect
import pathlib
import random
import sys
import time

import numpy as np

import ncclx_mpi

ncclx_mpi.rc.timeout = 0.2
from ncclx_mpi import MPI  # noqa: E402

LEFT_OUT = {
    "Abort", "Finalize", "Init", "Init_thread", "Disconnect", "Set_errhandler", "Call_errhandler",
    "fromaddress", "fromhandle", "frombuffer", "Get_address", "Aint_add", "Aint_diff", "pyobject", "fromkeyval",
    "tobytes", "release",
}  # fmt: skip
INTEGERS = [-(2**63), -(2**31), -7, -3, -2, -1, 0, 1, 2, 3, 8, 100, 2**24, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**64]


def frozen():
    data = np.arange(6.0)
    data.flags.writeable = False
    return data


def plain_values(choice):
    """Things that are no MPI objects."""
    data = np.arange(12.0)
    return [
        lambda: choice.choice(INTEGERS),
        lambda: choice.choice(INTEGERS),
        lambda: choice.choice([None, True, "", "word", 1.5, float("nan"), b"bytes", object(), int, len, {}, {"a": 1}, set(), ...]),
        lambda: choice.choice([data, data[::2], data[:0], frozen(), np.array(3.0), np.arange(4, dtype="i2"), data.reshape(3, 4).T]),
        lambda: choice.choice([np.array(["text"]), np.array([None, 1]), np.zeros(3, dtype="M8[s]"), np.zeros(2, dtype=">f8")]),
        lambda: choice.choice([bytearray(16), memoryview(b"read-only"), array.array("d", [1, 2, 3])]),
        lambda: [choice.choice(INTEGERS) for _ in range(choice.randrange(4))],
        lambda: MPI.IN_PLACE,
        lambda: choice.choice([MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.PROC_NULL, MPI.UNDEFINED]),
    ]


def handles(comm):
    """One of each kind, valid, null, and freed."""
    freed_comm, freed_type = comm.Dup(), MPI.INT.Dup()
    freed_comm.Free()
    freed_type.Free()
    freed_group, freed_op = comm.Get_group(), MPI.Op.Create(lambda a, b, t: None)
    freed_group.Free()
    freed_op.Free()
    kinds = [MPI.DOUBLE, MPI.INT, MPI.BYTE, MPI.DOUBLE_INT, MPI.DATATYPE_NULL, freed_type, MPI.FLOAT.Create_vector(2, 1, 3)]
    committed = MPI.INT.Create_vector(2, 1, 3).Commit()
    windows = [
        MPI.Win.Allocate(64, 8, comm=comm),
        MPI.Win.Create(bytearray(64), comm=comm),
        MPI.Win.Allocate(8),
        MPI.Win.Allocate(8),
    ]
    windows[1].Fence()
    windows[3].Free()
    return [
        *windows, MPI.WIN_NULL, MPI.Win,
        comm, comm, comm, MPI.COMM_SELF, MPI.COMM_NULL, freed_comm, comm.Split(comm.rank),
        *kinds, committed,
        MPI.SUM, MPI.MINLOC, MPI.REPLACE, MPI.OP_NULL, freed_op,
        comm.Get_group(), MPI.GROUP_EMPTY, MPI.GROUP_NULL, freed_group,
        MPI.REQUEST_NULL, MPI.MESSAGE_NULL, MPI.MESSAGE_NO_PROC, MPI.Status(), MPI.Info.Create(), MPI.INFO_NULL,
        comm.Irecv(bytearray(8), source=MPI.PROC_NULL), comm.Recv_init(bytearray(8), source=MPI.PROC_NULL),
        MPI.Request, MPI.Prequest, MPI.Datatype, MPI.Comm, MPI.Intracomm, MPI.Group, MPI.Op, MPI.Info, MPI.Message,
    ]  # fmt: skip


def names_of(thing):
    return [name for name in dir(thing) if name not in LEFT_OUT and not name.startswith("_")]


def any_value(choice, simple, pool):
    """A value, a handle, or a list made of both."""
    kind = choice.random()
    if kind < 0.5:
        return choice.choice(simple)()
    if kind < 0.75:
        return choice.choice(pool)
    parts = [choice.choice([*simple, lambda: choice.choice(pool)])() for _ in range(choice.randrange(5))]
    return choice.choice([list, tuple])(parts)


def likely_value(choice, name, pool):
    """A value of the kind that a parameter of this name takes; right or only nearly right. None if nothing is known."""
    size = MPI.COMM_WORLD.size
    if "buf" in name or name in ("origin", "result", "compare", "memory"):
        data = choice.choice([np.zeros(4), np.zeros(4, dtype="i4"), bytearray(64), frozen(), np.zeros((4, 4))[:, 1], None])
        kind = choice.choice([MPI.DOUBLE, MPI.INT, MPI.BYTE, MPI.FLOAT.Create_vector(2, 1, 3).Commit(), MPI.DATATYPE_NULL, "d"])
        counts, displs = [[choice.randrange(-1, 5) for _ in range(size)] for _ in range(2)]
        forms = [data, [data, kind], [data, choice.randrange(-1, 40), kind], [data, counts, kind], [data, (counts, displs), kind]]
        return choice.choice([*forms, [data, counts, displs, [kind] * size], MPI.IN_PLACE])
    if any(word in name for word in ("rank", "source", "dest", "root", "tag", "color", "key")):
        return choice.choice([0, 1, size - 1, size, -1, -2, -3, 7, 2**24, 2**31])
    if any(word in name for word in ("count", "size", "length", "displ", "stride", "extent", "lb", "position", "order")):
        few = [choice.randrange(-1, 4) for _ in range(choice.randrange(4))]
        return choice.choice([*range(-1, 5), few, few, [], 2**40])
    for word, kind in {"type": MPI.Datatype, "op": MPI.Op, "comm": MPI.Comm, "group": MPI.Group, "info": MPI.Info}.items():
        if word in name:
            return choice.choice([value for value in pool if isinstance(value, kind)])
    if "request" in name:
        return [value for value in pool if isinstance(value, MPI.Request)]
    return MPI.Status() if name == "status" else None


def draw_arguments(choice, function, simple, pool):
    """As many as the function takes, or by chance one more or fewer."""
    try:
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        names = ["unknown"] * choice.randrange(4)
    number = max(0, len(names) + choice.choice([0, 0, 0, 0, 0, 0, -1, -1, -2, 1]))
    likely = choice.choice([0.3, 0.8, 0.95])
    arguments = []
    for name in [*names, "unknown"][:number]:
        value = likely_value(choice, name, pool) if choice.random() < likely else None
        arguments.append(any_value(choice, simple, pool) if value is None else value)
    return arguments


def meet(folder, number):
    """Wait for the other ranks without communication: failed calls have left the ranks at different places."""
    (folder / f"{MPI.COMM_WORLD.rank}-{number}").touch()
    while any(not (folder / f"{rank}-{number}").exists() for rank in range(MPI.COMM_WORLD.size)):
        time.sleep(0.002)


def main(seed, count, folder):
    faulthandler.enable()
    choice, simple, outcomes = random.Random(seed), [], collections.Counter()
    for number in range(count):
        if number % 100 == 0:
            meet(folder, number)
            comm = MPI.COMM_WORLD.Dup()
            simple, pool = plain_values(choice), handles(comm)
        thing = choice.choice(pool)
        name = choice.choice(names_of(thing))
        faulthandler.dump_traceback_later(20, exit=True)
        try:
            found = getattr(thing, name)
            arguments = draw_arguments(choice, found, simple, pool) if callable(found) else []
            print(f"{number}: {type(thing).__name__}.{name}{tuple(arguments)!r:.300}", file=sys.stderr)
            if callable(found):
                found(*arguments)
            outcomes["returned"] += 1
        except Exception as error:
            outcomes[type(error).__name__] += 1
        faulthandler.cancel_dump_traceback_later()
    meet(folder, "end")
    if MPI.COMM_WORLD.rank == 0:
        print(f"done {count}", dict(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]))
