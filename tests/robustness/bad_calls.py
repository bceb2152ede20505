"""Calls random public methods with random arguments, most of them wrong: all it may do is raise.

    ncclx run -n 2 bad_calls.py SEED COUNT EMPTY_FOLDER host
    ncclx run -n 2 bad_calls.py SEED COUNT EMPTY_FOLDER device

With ``device`` half of the arrays are a GPU's, on the driver double, which ends in an error if anything was touched that must not be.
All ranks draw the same calls, so that collectives meet; some of what calls return is among what later ones get. Left out are raw
addresses and BOTTOM, which no library can check, what ends the process on purpose, and what would make, delete or fill files.
"""

import array
import collections
import contextlib
import faulthandler
import inspect
import pathlib
import random
import sys
import time
import types

import numpy as np

import ncclx_mpi

ncclx_mpi.rc.timeout = 0.2
from ncclx_mpi import MPI, runtime  # noqa: E402
from ncclx_mpi.testing.driver_double import POOL, DeviceArray, Double, SendOnlyArray  # noqa: E402
from ncclx_mpi.testing.driver_double.arrays import using  # noqa: E402

LEFT_OUT = {
    "Abort", "Finalize", "Init", "Init_thread", "Disconnect", "Set_errhandler", "Call_errhandler",
    "fromaddress", "fromhandle", "frombuffer", "Get_address", "Aint_add", "Aint_diff", "pyobject", "fromkeyval",
    "tobytes", "release", "Open", "Delete", "Preallocate",
}  # fmt: skip
INTEGERS = [-(2**63), -(2**31), -7, -3, -2, -1, 0, 1, 2, 3, 8, 100, 2**24, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**64]
TOGETHER, KEPT = 100, 8
"""Calls that share handles, and how many of what they return are among these."""


def frozen():
    data = np.arange(6.0)
    data.flags.writeable = False
    return data


def freed():
    data = DeviceArray(1000, kind=POOL)
    data.free()
    return data


def names_of(thing):
    return [name for name in dir(thing) if name not in LEFT_OUT and not name.startswith("_")]


class Draw:
    """Random values; the same on all ranks."""

    def __init__(self, driver):
        self.driver = driver
        self.random = random.Random()
        self.stream = driver.create_stream() if driver else 0
        self.pool = []
        self.in_streams = []

    def renew(self):
        """New handles, one of each kind: valid, null, and freed."""
        comm = MPI.COMM_WORLD.Dup()
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
        files = [MPI.File.Open(MPI.COMM_SELF, "/dev/null", MPI.MODE_RDWR) for _ in range(3)]
        files[2].Close()
        self.in_streams = self.prepared()
        session = MPI.Session.Init()
        grid = comm.Create_cart([comm.size], periods=[True])
        peer = [(comm.rank + 1) % comm.size]
        self.pool = [
            *self.in_streams, *windows, MPI.WIN_NULL, MPI.Win, *files, MPI.FILE_NULL, MPI.File,
            grid, grid, comm.Create_graph([0, 1], [0]), comm.Create_dist_graph_adjacent(peer, peer), MPI.Cartcomm, MPI.Graphcomm(),
            session, MPI.Session, MPI.SESSION_NULL, *self.intercommunicators(comm), MPI.Intercomm,
            *self.partitioned(comm),
            comm, comm, comm, MPI.COMM_SELF, MPI.COMM_NULL, freed_comm, comm.Split(comm.rank),
            *kinds, committed,
            MPI.SUM, MPI.MINLOC, MPI.REPLACE, MPI.OP_NULL, freed_op,
            comm.Get_group(), MPI.GROUP_EMPTY, MPI.GROUP_NULL, freed_group,
            MPI.REQUEST_NULL, MPI.MESSAGE_NULL, MPI.MESSAGE_NO_PROC, MPI.Status(), MPI.Info.Create(), MPI.INFO_NULL,
            comm.Irecv(bytearray(8), source=MPI.PROC_NULL), comm.Recv_init(bytearray(8), source=MPI.PROC_NULL),
            MPI.Grequest.Start(), self.dynamic_request(comm), MPI.ERRORS_RETURN, MPI.ERRHANDLER_NULL, MPI.memory.allocate(16),
            MPI.Request, MPI.Prequest, MPI.Grequest, MPI.Datatype, MPI.Comm, MPI.Intracomm, MPI.Group, MPI.Op, MPI.Info, MPI.Message,
            MPI.Status, MPI.Errhandler, MPI.Pickle, MPI.pickle, MPI.memory, MPI, *[MPI.REQUEST_NULL] * KEPT,
        ]  # fmt: skip

    def intercommunicators(self, comm):
        """Between the even and the odd ranks, if there are some of both."""
        if comm.size == 1:
            return []
        side = comm.rank % 2
        made = comm.Split(side).Create_intercomm(0, comm, 1 - side, 5)
        return [made, made, made]

    def partitioned(self, comm):
        requests = [comm.Psend_init(bytearray(64), 4, MPI.PROC_NULL), comm.Precv_init(bytearray(64), 4, MPI.PROC_NULL, 0)]
        requests[1].Start()
        return requests

    def dynamic_request(self, comm):
        data = np.zeros(4 * comm.size)
        return comm.Alltoallv_dynamic_init(data, data.copy(), np.ones(comm.size, int))

    def prepared(self):
        """A communicator that takes calls in streams, of this rank alone: a stream would wait for a peer whose call has failed."""
        if self.driver is None:
            return []
        comm = MPI.COMM_SELF.Dup()
        comm.prepare(1 << 12, [(MPI.SUM, MPI.DOUBLE)])
        request = comm.Alltoallv_dynamic_init(*[DeviceArray.from_host(np.ones(4, kind)) for kind in (float, float, int)])
        return [comm, comm.in_stream(self.stream), comm.in_stream(self.stream), comm.in_stream("stream"), request]

    def keep(self, thing):
        """Have what a call returned among the handles: of the same kind on all ranks, unless it failed on some."""
        if isinstance(thing, MPI.Request | MPI.Comm | MPI.Datatype | MPI.Group | MPI.Win | MPI.Message | MPI.Info | MPI.Op):
            self.pool[-1 - self.random.randrange(KEPT)] = thing

    def plain(self):
        """Something that is no MPI object."""
        data = np.arange(12.0)
        draw = self.random.choice
        kinds = [
            lambda: draw(INTEGERS),
            lambda: draw(INTEGERS),
            lambda: draw([None, True, "", "word", 1.5, float("nan"), b"bytes", object(), int, len, {}, {"a": 1}, set(), ...]),
            lambda: draw([data, data[::2], data[:0], frozen(), np.array(3.0), np.arange(4, dtype="i2"), data.reshape(3, 4).T]),
            lambda: draw([np.array(["text"]), np.array([None, 1]), np.zeros(3, dtype="M8[s]"), np.zeros(2, dtype=">f8")]),
            lambda: draw([bytearray(16), memoryview(b"read-only"), array.array("d", [1, 2, 3])]),
            lambda: [draw(INTEGERS) for _ in range(self.random.randrange(4))],
            lambda: MPI.IN_PLACE,
            lambda: draw([MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.PROC_NULL, MPI.UNDEFINED]),
            lambda: draw([types.SimpleNamespace(ptr=0), types.SimpleNamespace(__cuda_stream__=lambda: None)]),
        ]
        return draw(kinds)()

    def any(self):
        """A value, a handle, or a list made of both."""
        kind = self.random.random()
        if kind < 0.5:
            return self.plain()
        if kind < 0.75:
            return self.random.choice(self.pool)
        parts = [self.random.choice([self.plain, lambda: self.random.choice(self.pool)])() for _ in range(self.random.randrange(5))]
        return self.random.choice([list, tuple])(parts)

    def data(self):
        """An array, right or only nearly right."""
        if self.driver and self.random.random() < 0.5:
            row = DeviceArray.from_host(np.ones(4))
            integers = DeviceArray.from_host(np.ones(4, "i4"))
            return self.random.choice([row, row, integers, row[::2], row[:0], SendOnlyArray(4), DeviceArray(4, kind=POOL), freed()])
        return self.random.choice([np.ones(4), np.ones(4, dtype="i4"), bytearray(64), frozen(), np.zeros((4, 4))[:, 1], None])

    def likely(self, name):
        """A value of the kind that a parameter of this name takes; right or only nearly right. None if nothing is known."""
        size, draw = MPI.COMM_WORLD.size, self.random.choice
        if "buf" in name or name in ("origin", "result", "compare", "memory"):
            data = self.data()
            kind = draw([MPI.DOUBLE, MPI.INT, MPI.BYTE, MPI.FLOAT.Create_vector(2, 1, 3).Commit(), MPI.DATATYPE_NULL, "d"])
            counts, displs = [[self.random.randrange(-1, 5) for _ in range(size)] for _ in range(2)]
            forms = [data, [data, kind], [data, self.random.randrange(-1, 40), kind], [data, counts, kind]]
            return draw([*forms, data, [data, (counts, displs), kind], [data, counts, displs, [kind] * size], MPI.IN_PLACE])
        if any(word in name for word in ("splits", "indices", "lengths")):
            few = np.array([self.random.randrange(-1, 4) for _ in range(draw([size, size, 2 * size, size * size, 0]))])
            return draw([few, few.astype("u1"), few.tolist(), self.data(), None])
        if any(word in name for word in ("rank", "source", "dest", "root", "tag", "color", "key")):
            return draw([0, 1, size - 1, size, -1, -2, -3, 7, 2**24, 2**31])
        if any(
            word in name for word in ("count", "size", "length", "displ", "stride", "extent", "lb", "position", "order", "heap")
        ):
            few = [self.random.randrange(-1, 4) for _ in range(self.random.randrange(4))]
            return draw([*range(-1, 5), few, few, [], 2**40])
        for word, kind in {"type": MPI.Datatype, "op": MPI.Op, "comm": MPI.Comm, "group": MPI.Group, "info": MPI.Info}.items():
            if word in name:
                return draw([value for value in self.pool if isinstance(value, kind)])
        if "request" in name:
            return [value for value in self.pool if isinstance(value, MPI.Request)]
        return MPI.Status() if name == "status" else None

    def stream_value(self, thing):
        """No stream, one that is refused, or one in which `thing` may be called: an integer would be taken for a handle."""
        wrong = [
            None,
            None,
            0,
            1,
            2,
            "stream",
            1.5,
            types.SimpleNamespace(ptr=0),
            types.SimpleNamespace(__cuda_stream__=lambda: None),
        ]
        return self.random.choice([*wrong, *[self.stream] * 9] if any(thing is each for each in self.in_streams) else wrong)

    def arguments(self, thing, function):
        """As many as the function takes, or by chance one more or fewer; and some of those that have a name only."""
        names, named = [], []
        try:
            for each in inspect.signature(function).parameters.values():
                if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
                    names.append(each.name)
                elif each.kind == each.KEYWORD_ONLY:
                    named.append(each.name)
        except (TypeError, ValueError):
            names = ["unknown"] * self.random.randrange(4)
        number = max(0, len(names) + self.random.choice([0, 0, 0, 0, 0, 0, -1, -1, -2, 1]))
        likely = self.random.choice([0.3, 0.8, 0.95])

        def value(name):
            if name == "stream":
                return self.stream_value(thing)
            found = self.likely(name) if self.random.random() < likely else None
            return self.any() if found is None else found

        given = [value(name) for name in [*names, "unknown"][:number]]
        return given, {name: value(name) for name in named if self.random.random() < 0.7}


def meet(folder, number):
    """Wait for the other ranks without communication: failed calls have left the ranks at different places."""
    (folder / f"{MPI.COMM_WORLD.rank}-{number}").touch()
    while any(not (folder / f"{rank}-{number}").exists() for rank in range(MPI.COMM_WORLD.size)):
        time.sleep(0.002)


@contextlib.contextmanager
def patience():
    """No deadline while the body runs: a busy machine may need longer than a call that hangs is given."""
    engine = runtime.engine()
    ticks = engine.word("deadline_ticks")
    engine.set_word("deadline_ticks", 0)
    yield
    engine.set_word("deadline_ticks", ticks)


def call(draw, number):
    """Make one call; returns what became of it."""
    thing = draw.random.choice(draw.pool)
    name = draw.random.choice(names_of(thing))
    if name == "Revoke" and thing is MPI.COMM_SELF:  # which the next handles are made of
        return "left out"
    try:
        found = getattr(thing, name)
        if callable(found):
            arguments, named = draw.arguments(thing, found)
            text = ", ".join([*map(repr, arguments), *[f"{key}={value!r}" for key, value in named.items()]])
            print(f"{number}: {type(thing).__name__}.{name}({text:.300})", file=sys.stderr)
            draw.keep(found(*arguments, **named))
    except Exception as error:
        return type(error).__name__
    return "returned"


def main(seed, count, folder, kind):
    faulthandler.enable()
    outcomes = collections.Counter()
    with contextlib.ExitStack() as stack:
        driver = stack.enter_context(Double(seed + MPI.COMM_WORLD.rank, patience=60)) if kind == "device" else None
        if driver:
            driver.use(0)
        draw = Draw(driver)
        if driver:
            stack.enter_context(using(draw.stream))
        for number in range(count):
            draw.random.seed(seed * 1_000_000 + number)  # a call that went another way on one rank leaves the next ones alike
            if number % TOGETHER == 0:
                meet(folder, number)
                with patience():
                    draw.renew()
            faulthandler.dump_traceback_later(20, exit=True)
            outcomes[call(draw, number)] += 1
            faulthandler.cancel_dump_traceback_later()
        meet(folder, "end")
    if MPI.COMM_WORLD.rank == 0:
        print(f"done {count}", dict(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4])
