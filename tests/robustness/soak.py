"""Four threads a rank exchange all kinds of messages until a time is over, while everything in Python that can come between does.

Run by test_soak.py on two ranks and more; its arguments are the seconds, a seed, and the switch interval of threads. Beside
the four threads (the first is the main one, in which signal handlers run) a profiler walks over all objects, finalizers send
messages of their own, unfinished requests are lost in reference cycles, and a timer's signal interrupts. Every payload names
its sender, its thread and its turn.
"""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

THREADS = 4
LENGTHS = [0, 1, 3, 100, 1_000, 9_000, 40_000, 200_000]
"""Float64: within a cell, a slot and a segment, and by rendezvous."""
NEVER_SENT = 99

column = MPI.DOUBLE.Create_vector(5, 2, 3).Commit()
last_first = MPI.DOUBLE.Create_indexed([2, 1], [4, 0]).Commit()


class Exchange:
    """What one thread of a rank exchanges, on a communicator of its own, in a turn that all ranks know."""

    def __init__(self, comm: Any, index: int, seed: int) -> None:
        self.comm, self.index, self.turn = comm, index, 0
        self.choice = random.Random(f"{seed} {index}")  # all ranks draw the same
        self.above, self.below = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self.sum = MPI.Op.Create(lambda a, b, kind: np.add(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b)), commute=True)

    def mark(self, rank: int, tag: int = 0) -> float:
        """A number that only this message of `rank` holds."""
        return float(((self.turn * 100 + tag) * 10 + self.index) * 100 + rank)

    def array(self, rank: int, length: int, tag: int = 0) -> Any:
        return np.arange(length, dtype="f8") + self.mark(rank, tag)

    def value(self, rank: int, length: int, tag: int = 0) -> Any:
        """An object of several parts, one of them in itself."""
        part = [rank, "ü" * (length % 50), b"b" * length]
        return {"mark": self.mark(rank, tag), "array": self.array(rank, length, tag), "parts": (part, part), "none": None}

    def check(self, found: Any, rank: int, length: int, tag: int = 0) -> None:
        assert np.array_equal(found, self.array(rank, length, tag)), (self.index, self.turn, rank, length, tag, found)

    def check_value(self, found: Any, rank: int, length: int, tag: int = 0) -> None:
        assert found["mark"] == self.mark(rank, tag), (self.index, self.turn, rank, length, tag, found)
        self.check(found["array"], rank, length, tag)
        first, second = found["parts"]
        assert first is second and first == [rank, "ü" * (length % 50), b"b" * length]

    def length(self) -> int:
        return self.choice.choice(LENGTHS)

    def go(self) -> None:
        """One turn."""
        self.choice.choice(KINDS)(self)
        self.turn += 1


def arrays(own: Exchange) -> None:
    length = own.length()
    found = np.zeros(length)
    own.comm.Sendrecv(own.array(own.comm.rank, length), own.above, 1, found, own.below, 1)
    own.check(found, own.below, length)


def requests(own: Exchange) -> None:
    count, length = 40, own.choice.choice(LENGTHS[:4])
    found = [np.zeros(length) for _ in range(count)]
    pending = [own.comm.Irecv(box, own.below, tag) for tag, box in enumerate(found)]
    sent = [own.array(own.comm.rank, length, tag) for tag in range(count)]
    if own.turn % 2:
        for tag, data in enumerate(sent):
            own.comm.Send(data, own.above, tag)
    else:
        pending += [own.comm.Isend(data, own.above, tag) for tag, data in enumerate(sent)]
    finish = own.choice.choice(["all", "any", "some", "test"])
    if finish == "all":
        MPI.Request.Waitall(pending)
    elif finish == "any":
        while MPI.Request.Waitany(pending) != MPI.UNDEFINED:
            pass
    elif finish == "some":
        while MPI.Request.Waitsome(pending) is not None:
            pass
    else:
        while not MPI.Request.Testall(pending):
            pass
    for tag, box in enumerate(found):
        own.check(box, own.below, length, tag)


def scattered(own: Exchange) -> None:
    found, sent = np.full(20, -1.0), own.array(own.comm.rank, 20)
    request = own.comm.Irecv([found, 1, column], own.below, 2)
    own.comm.Ssend([sent, 1, column], own.above, 2)
    request.Wait()
    taken = [index for index in range(14) if index % 3 < 2]
    assert (
        np.array_equal(found[taken], own.array(own.below, 20)[taken]) and (found[14:] == -1).all() and (found[2:12:3] == -1).all()
    )
    own.comm.Sendrecv([sent, 1, last_first], own.above, 3, found, own.below, 3)
    assert np.array_equal(found[:3], own.array(own.below, 20)[[4, 5, 0]])


def changed_list(own: Exchange) -> None:
    """The list that names a buffer changes while its call waits."""
    length = own.choice.choice(LENGTHS[1:])
    found = np.full(length, -1.0)
    spec: list[Any] = [found, MPI.DOUBLE]
    thief = threading.Thread(target=spec.clear)
    sending = own.comm.Isend(own.array(own.comm.rank, length), own.above, 4)
    thief.start()
    try:
        own.comm.Recv(spec, own.below, 4)
        own.check(found, own.below, length)
    except (TypeError, ValueError, MPI.Exception):  # cleared before the call read it
        own.comm.Recv(found, own.below, 4)
        own.check(found, own.below, length)
    thief.join()
    sending.Wait()


def persistent(own: Exchange) -> None:
    length = own.choice.choice(LENGTHS[:6])
    found, sent = np.zeros(length), np.zeros(length)
    pair = [own.comm.Recv_init(found, own.below, 5), own.comm.Send_init(sent, own.above, 5)]
    for tag in range(3):
        sent[:] = own.array(own.comm.rank, length, tag)
        MPI.Prequest.Startall(pair)
        MPI.Request.Waitall(pair)
        own.check(found, own.below, length, tag)
    for request in pair:
        request.Free()


def objects(own: Exchange) -> None:
    length = own.length()
    own.check_value(
        own.comm.sendrecv(own.value(own.comm.rank, length), own.above, 6, source=own.below, recvtag=6), own.below, length
    )


def pending_objects(own: Exchange) -> None:
    lengths = [own.length() for _ in range(6)]
    pending = [own.comm.irecv(source=own.below, tag=tag) for tag in range(6)]
    start = [own.comm.isend, own.comm.issend]
    sending = [start[tag % 2](own.value(own.comm.rank, length, tag), own.above, tag) for tag, length in enumerate(lengths)]
    found = [pending[tag].wait() for tag in reversed(range(6))][::-1] if own.turn % 2 else MPI.Request.waitall(pending)
    for tag, length in enumerate(lengths):
        own.check_value(found[tag], own.below, length, tag)
    MPI.Request.waitall(sending)


def probed(own: Exchange) -> None:
    length = own.length()
    sending = [
        own.comm.isend(own.value(own.comm.rank, length), own.above, 7),
        own.comm.Isend(own.array(own.comm.rank, length), own.above, 8),
    ]
    message, status = None, MPI.Status()
    while message is None:
        message = own.comm.improbe(MPI.ANY_SOURCE, 7)
    own.check_value(message.recv(), own.below, length)
    own.comm.Probe(MPI.ANY_SOURCE, 8, status)
    found = np.zeros(status.Get_count(MPI.DOUBLE))
    own.comm.Mprobe(status.source, 8).Recv(found)
    own.check(found, own.below, length)
    MPI.Request.Waitall(sending)


def cancelled(own: Exchange) -> None:
    status = MPI.Status()
    for request in (own.comm.Irecv(np.zeros(5), own.below, NEVER_SENT), own.comm.irecv(source=own.below, tag=NEVER_SENT)):
        request.Cancel()
        request.Wait(status)
        assert status.Is_cancelled()


def lost_in_cycles(own: Exchange) -> None:
    """Requests that nobody waits for, in a cycle that the collector frees in the middle of something else."""
    sent = own.array(own.comm.rank, 50)
    cycle: list[Any] = [own.comm.Isend(sent, own.above, 10), own.comm.isend(own.value(own.comm.rank, 50), own.above, 11)]
    cycle += [
        own.comm.Irecv(np.zeros(50), own.below, NEVER_SENT),
        own.comm.irecv(source=own.below, tag=NEVER_SENT),
        Finalized(),
        cycle,
    ]
    cycle += [MPI.DOUBLE.Create_vector(2, 1, 3).Commit(), own.comm.Ibarrier()]
    del cycle
    found = np.zeros(50)
    own.comm.Recv(found, own.below, 10)
    own.check(found, own.below, 50)
    own.check_value(own.comm.recv(source=own.below, tag=11), own.below, 50)
    if own.turn % 3 == own.index % 3:
        gc.collect()


def reductions(own: Exchange) -> None:
    length, size = own.length(), own.comm.size
    expected = sum(own.array(rank, length) for rank in range(size))
    sent, found = own.array(own.comm.rank, length), np.zeros(length)
    own.comm.Allreduce(sent, found)
    assert np.array_equal(found, expected)
    pending = [own.comm.Iallreduce(sent, box := np.zeros(length), own.sum), own.comm.Ireduce(sent, found, root=0)]
    MPI.Request.Waitall(pending)
    assert np.array_equal(box, expected)
    own.comm.Scan(sent, found)
    assert np.array_equal(found, sum(own.array(rank, length) for rank in range(own.comm.rank + 1)))


def collectives(own: Exchange) -> None:
    length, rank, size = own.choice.choice(LENGTHS[:6]), own.comm.rank, own.comm.size
    root = own.choice.randrange(size)
    data = own.array(root, length) if rank == root else np.zeros(length)
    own.comm.Bcast([data, MPI.DOUBLE], root)
    own.check(data, root, length)
    everyone = np.zeros((size, length))
    own.comm.Allgather(own.array(rank, length), everyone)
    for peer in range(size):
        own.check(everyone[peer], peer, length)
    counts = [(rank + peer) * length // 2 for peer in range(size)]
    sent = np.concatenate([own.array(rank, count, peer) for peer, count in enumerate(counts)])
    found = np.zeros(sum(counts))
    own.comm.Alltoallv([sent, counts], [found, counts])
    for peer, part in enumerate(np.split(found, np.cumsum(counts)[:-1])):
        own.check(part, peer, counts[peer], rank)


def object_collectives(own: Exchange) -> None:
    length, rank, size = own.choice.choice(LENGTHS[:7]), own.comm.rank, own.comm.size
    root = own.choice.randrange(size)
    own.check_value(own.comm.bcast(own.value(root, length) if rank == root else None, root), root, length)
    for peer, found in enumerate(own.comm.allgather(own.value(rank, length))):
        own.check_value(found, peer, length)
    for peer, found in enumerate(own.comm.alltoall([own.value(rank, length // 2, peer) for peer in range(size)])):
        own.check_value(found, peer, length // 2, rank)
    mine = own.comm.scatter([own.value(peer, length, 1) for peer in range(size)] if rank == root else None, root)
    own.check_value(mine, rank, length, 1)
    for peer, found in enumerate(own.comm.gather(mine, root) or ()):
        own.check_value(found, peer, length, 1)
    assert own.comm.allreduce(own.mark(rank)) == sum(map(own.mark, range(size)))


def communicators(own: Exchange) -> None:
    half = own.comm.Split(own.comm.rank % 2, own.comm.rank)
    assert half.allreduce(1) == len(range(own.comm.rank % 2, own.comm.size, 2))
    twin = half.Dup()
    twin.Barrier()
    twin.Free()
    half.Free()


KINDS: list[Callable[[Exchange], None]] = [
    arrays, requests, requests, scattered, changed_list, persistent, objects, pending_objects, pending_objects, probed, cancelled,
    lost_in_cycles, lost_in_cycles, reductions, collectives, object_collectives, communicators,
]  # fmt: skip


class Finalized:
    """Sends itself a message when the collector finds it, wherever its thread is."""

    count = 0

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        Finalized.count += 1
        found = np.zeros(3)
        tag = threading.get_ident() % 10_000
        MPI.COMM_SELF.Sendrecv(np.full(3, 4.0), 0, tag, found, 0, tag)
        assert (found == 4).all()


def walk_objects(is_over: threading.Event, interval: float) -> None:
    """What memory profilers do: look at everything that the collector knows.

    The GIL is kept meanwhile: CPython's own ``tuple(iterator)`` fails in any thread that another one sees the half-made tuple of. Who waits
    for the GIL then may wait so long for one that only polls, too, so the interval is no longer than a walk on a busy machine; and who
    waited already asks for it after the short interval, so the walk begins when they have had it. What was there before the threads began
    is not walked (it is frozen): a walk takes a millisecond.
    """
    while not is_over.wait(0.3):
        sys.setswitchinterval(0.5)
        time.sleep(0.02)
        for found in gc.get_objects():
            if type(found) is list:
                found.copy()
            else:
                gc.get_referents(found)
        del found
        sys.setswitchinterval(interval)


def disturb(number: int, frame: object) -> None:
    """A signal handler that allocates, collects now and then, and leaves cycles."""
    cycle: list[Any] = [Finalized() if random.random() < 0.1 else {}]
    cycle.append(cycle)
    if random.random() < 0.02:
        gc.collect()


def soak(seconds: float, seed: int, interval: float) -> None:
    comm, end = MPI.COMM_WORLD, time.monotonic() + seconds
    exchanges = [Exchange(comm.Dup(), index, seed) for index in range(THREADS)]
    is_over, failures = threading.Event(), []

    def run(own: Exchange) -> None:
        try:
            while own.comm.allreduce(time.monotonic() < end, MPI.LAND):
                for _ in range(10):
                    own.go()
        except BaseException as error:
            failures.append(error)
            print(
                f"rank {own.comm.rank}, thread {own.index}, turn {own.turn}: {traceback.format_exc()}", file=sys.stderr, flush=True
            )
            own.comm.Abort(3)

    gc.freeze()
    sys.setswitchinterval(interval)
    signal.signal(signal.SIGALRM, disturb)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.003)
    walker = threading.Thread(target=walk_objects, args=(is_over, interval))
    threads = [threading.Thread(target=run, args=(own,)) for own in exchanges[1:]]
    for thread in (walker, *threads):
        thread.start()
    run(exchanges[0])
    for thread in threads:
        thread.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    is_over.set()
    walker.join()
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    gc.collect()
    comm.Barrier()
    if comm.rank == 0:
        print(f"soaked: {[own.turn for own in exchanges]} turns, {Finalized.count} finalizers", flush=True)


if __name__ == "__main__":
    soak(float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
