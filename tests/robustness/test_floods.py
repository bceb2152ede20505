"""Many messages and many communicators: order, floods, and handles that must not run out."""

import threading
import time

import numpy as np
import pytest


@pytest.mark.ranks(2, timeout=120)
def test_messages_received_in_the_opposite_order(comm, full):
    count = 10_000 if full else 2_000
    peer = 1 - comm.rank
    received = np.full(count, -1)
    requests = [comm.Isend(np.array([tag + comm.rank * count]), dest=peer, tag=tag) for tag in range(count)]
    for tag in reversed(range(count)):
        comm.Recv(received[tag : tag + 1], source=peer, tag=tag)
    for request in requests:
        request.Wait()
    assert np.array_equal(received, np.arange(count) + peer * count)


@pytest.mark.ranks(2, 4, timeout=120)
@pytest.mark.parametrize("nbytes", [0, 8, 4_000, 200_000])
def test_simultaneous_floods(comm, full, nbytes):
    """Every rank sends far more than any ring holds before it receives anything."""
    count = 2_000 if full else 300
    count = count // 10 if nbytes > 100_000 else count
    data = np.full(nbytes, comm.rank, dtype="u1")
    requests = [comm.Isend(data, dest=rank, tag=1) for _ in range(count) for rank in range(comm.size)]
    for rank in range(comm.size):
        for _ in range(count):
            arrived = np.full(nbytes, 255, dtype="u1")
            comm.Recv(arrived, source=rank, tag=1)
            assert (arrived == rank).all()
    for request in requests:
        request.Wait()


@pytest.mark.ranks(3, timeout=120)
def test_communicators_do_not_run_out(comm, full):
    for number in range(10_000 if full else 1_000):
        duplicate = comm.Dup()
        if number % 100 == 0:
            assert duplicate.allreduce(1) == comm.size
        duplicate.Free()


@pytest.mark.ranks(2, timeout=120)
def test_many_communicators_at_once(comm):
    """More than there are slots: the later ones do without."""
    many = [comm.Dup() for _ in range(300)]
    for number, duplicate in enumerate(many):
        total = np.zeros(1)
        duplicate.Allreduce(np.full(1, float(number)), total)
        assert total[0] == 2 * number
    for duplicate in many:
        duplicate.Free()


@pytest.mark.ranks(2, timeout=120)
def test_threads_in_collectives_beside_a_thread_that_computes(comm, full):
    """Two threads in collectives on two communicators, one in plain Python: each gets on."""
    steps, progress, finished = (2_000 if full else 300), {"computed": 0}, threading.Event()

    def communicate(mine):
        for step in range(steps):
            total = np.zeros(4)
            mine.Allreduce(np.full(4, float(step)), total)
            assert total[0] == 2 * step

    def compute():
        while not finished.is_set():
            progress["computed"] += sum(range(1000)) > 0

    threads = [threading.Thread(target=communicate, args=(comm.Dup(),)) for _ in range(2)]
    computing = threading.Thread(target=compute)
    begun = time.monotonic()
    for thread in [*threads, computing]:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.monotonic() - begun
    finished.set()
    computing.join()
    assert progress["computed"] > 10
    assert taken < 0.05 * steps, f"{steps} steps took {taken:.1f} s"
    comm.Barrier()
