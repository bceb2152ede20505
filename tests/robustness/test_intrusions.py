"""Calls in the middle of calls: a signal handler, or a finalizer, may communicate between any two instructions of one that it interrupts.

The trace function of Python is the intruder.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from tests.robustness.instructions import before_each

OWN, ITS = 7, 50
"""Tags of a call, and of what intrudes into it."""


class Intruder:
    """Receives of all kinds, on a communicator of its own, before each instruction of the packages that something else executes."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.count = 0

    def __enter__(self) -> None:
        sys.settrace(before_each(self.intrude))

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def intrude(self) -> None:
        comm, status, found = self.comm, MPI.Status(), np.zeros(5)
        self.count += 1
        comm.Sendrecv(np.full(5, 3.0), 0, ITS, found, 0, ITS, status)
        assert (found == 3).all() and (status.tag, status.count) == (ITS, 40)
        pending = [comm.Irecv(found, 0, ITS + 1), comm.isend("intruder", 0, ITS)]
        assert comm.recv(source=0, tag=ITS, status=status) == "intruder" and status.tag == ITS
        comm.Send(found, 0, ITS + 1)
        assert sorted((MPI.Request.Waitany(pending), MPI.Request.Waitany(pending))) == [0, 1]
        comm.isend({1}, 0, ITS).Free()  # goes the general way
        comm.Probe(0, ITS, status)
        assert comm.Mprobe(0, ITS).recv(status) == {1}


def array(comm: Any, status: MPI.Status) -> None:
    comm.Isend(np.arange(4.0), 0, OWN).Free()
    comm.Recv(np.zeros(9), 0, MPI.ANY_TAG, status)


def exchange(comm: Any, status: MPI.Status) -> None:
    comm.Sendrecv(np.arange(4.0), 0, OWN, np.zeros(9), 0, MPI.ANY_TAG, status)


def truncated(comm: Any, status: MPI.Status) -> None:
    with pytest.raises(MPI.Exception) as raised:
        comm.Sendrecv(np.arange(4.0), 0, OWN, np.zeros(3), 0, OWN)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    exchange(comm, status)


def plain_object(comm: Any, status: MPI.Status) -> None:
    comm.isend(b"x" * 20, 0, OWN).Free()
    assert comm.recv(source=0, tag=MPI.ANY_TAG, status=status) == b"x" * 20


def other_object(comm: Any, status: MPI.Status) -> None:
    comm.isend(range(3), 0, OWN).Free()
    assert comm.recv(None, 0, MPI.ANY_TAG, status) == range(3)


def exchanged_object(comm: Any, status: MPI.Status) -> None:
    assert comm.sendrecv(b"x" * 20, 0, OWN, source=0, status=status) == b"x" * 20


def probe(comm: Any, status: MPI.Status) -> None:
    request = comm.Isend(np.arange(4.0), 0, OWN)
    comm.Probe(0, MPI.ANY_TAG, status)
    assert comm.Iprobe(0, MPI.ANY_TAG) and comm.Iprobe(0, MPI.ANY_TAG, status)
    comm.Mprobe(0, MPI.ANY_TAG, status).Recv(np.zeros(4))
    request.Wait()


def matched_object(comm: Any, status: MPI.Status) -> None:
    comm.isend(b"x" * 20, 0, OWN).Free()
    assert comm.improbe(0, MPI.ANY_TAG).recv(status) == b"x" * 20


def waited_object(comm: Any, status: MPI.Status) -> None:
    request = comm.irecv(source=0, tag=OWN)
    comm.isend(b"x" * 20, 0, OWN).Free()
    assert request.wait(status) == b"x" * 20


def some(comm: Any, status: MPI.Status) -> None:
    boxes = [np.zeros(4) for _ in range(70)]
    pending = [comm.Irecv(box, 0, tag) for tag, box in enumerate(boxes)]
    for tag in (65, 66, OWN):
        comm.Send(np.full(4, float(tag)), 0, tag)
    assert MPI.Request.Waitsome(pending[:60], [status]) == [OWN]
    assert MPI.Request.Waitany(pending) == 65 and MPI.Request.Testany(pending) == (66, True)
    assert [boxes[tag][0] for tag in (OWN, 65, 66)] == [OWN, 65, 66]
    for request in pending:
        if request:
            request.Cancel()
    MPI.Request.Waitall(pending)


def lists(comm: Any, status: MPI.Status) -> None:
    statuses = [MPI.Status(), status]
    requests = [comm.Irecv(np.zeros(4), 0, OWN), comm.Irecv(np.zeros(9), 0, OWN)]
    requests += [comm.Isend(np.arange(4.0), 0, OWN), comm.Isend(np.arange(4.0), 0, OWN)]
    MPI.Request.Waitall(requests, statuses)
    assert statuses[0] == status


def collective_objects(comm: Any, status: MPI.Status) -> None:
    assert comm.allgather("a") == ["a"] and comm.bcast({2}) == {2} and comm.alltoall([b"b"]) == [b"b"] and comm.allreduce(3) == 3
    exchange(comm, status)


OF_ARRAYS = [array, exchange, truncated, probe, some, lists, collective_objects]
OF_OBJECTS = [plain_object, exchanged_object, matched_object, waited_object]
ARRAY, PLAIN, OTHER = (32,), (25, len(pickle.dumps(b"x" * 20, 5))), (len(pickle.dumps(range(3), 5)),)
"""Bytes of the messages; of a plain value, without and with a frame around its pickle."""


@pytest.mark.ranks(1, timeout=60)
@pytest.mark.parametrize(
    ("call", "nbytes"), [*((call, ARRAY) for call in OF_ARRAYS), *((call, PLAIN) for call in OF_OBJECTS), (other_object, OTHER)]
)
def test_what_intrudes_changes_nothing(comm: Any, call: Callable[[Any, MPI.Status], None], nbytes: tuple[int, ...]) -> None:
    status, intruder = MPI.Status(), Intruder(comm.Dup())
    for _ in range(3):  # the first one makes what the others find
        with intruder:
            call(comm, status)
        assert (status.source, status.tag) == (0, OWN) and status.count in nbytes
    assert intruder.count > 20


@pytest.mark.ranks(1)
def test_a_list_that_grows_in_front_of_its_call(comm: Any) -> None:
    """As many requests are completed as there is room to say so, however long the list has become since that was made."""
    pending, more = ([comm.Isend(np.zeros(1), 0, 1) for _ in range(count)] for count in (60, 300))

    def grow() -> None:
        pending.extend([more.pop() for _ in range(min(len(more), 20))])

    sys.settrace(before_each(grow))
    try:
        found = MPI.Request.Waitsome(pending)
    finally:
        sys.settrace(None)
    assert found and len(found) == sum(not request for request in pending)
    for _ in range(360):
        comm.Recv(np.zeros(1), 0, 1)
    MPI.Request.Waitall(pending + more)
