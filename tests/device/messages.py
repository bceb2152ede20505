"""Messages around a ring, on arrays of any kind, as :mod:`tests.device.cases` has collectives: (comm, make, length) -> arrays received.

Each receives from its left neighbour what that sends to its right one. What was sent is overwritten as soon as the call allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclx_mpi import MPI
from ncclx_mpi.testing.driver_double import DeviceArray
from tests.device.cases import Make, empty, own
from tests.device.doubles import values_of

Message = Callable[[Any, Make, int], list[Any]]


def spoil(array: Any) -> None:
    """Overwrite an array: on a device, when its stream comes to it."""
    getattr(array, "fill_later", getattr(array, "fill", None))(-1)


def ring(comm: Any) -> tuple[int, int]:
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def sendrecv(comm: Any, make: Make, length: int) -> list[Any]:
    left, right = ring(comm)
    sent, received, both = make(own(comm, length)), make(empty(length)), make(own(comm, length, 1))
    comm.Sendrecv(sent, right, 3, received, left, 3)
    spoil(sent)
    comm.Sendrecv_replace(both, right, 4, left, 4)
    return [received, both]


def send_to_posted(comm: Any, make: Make, length: int) -> list[Any]:
    left, right = ring(comm)
    arrays = []
    for name in ("Send", "Ssend", "Rsend"):
        sent, received = make(own(comm, length)), make(empty(length))
        request = comm.Irecv(received, left)
        comm.Barrier()
        getattr(comm, name)(sent, right)
        spoil(sent)
        request.Wait()
        arrays.append(received)
    return arrays


def out_of_order(comm: Any, make: Make, length: int) -> list[Any]:
    left, right = ring(comm)
    sent = [make(own(comm, length + tag, tag)) for tag in range(3)]
    received = [make(empty(length + tag)) for tag in range(3)]
    requests = [comm.Irecv(received[tag], left, tag) for tag in (2, 0, 1)]
    requests += [comm.Isend(sent[tag], right, tag) for tag in (0, 1, 2)]
    MPI.Request.Waitall(requests)
    for array in sent:
        spoil(array)
    return received


def unexpected(comm: Any, make: Make, length: int) -> list[Any]:
    left, right = ring(comm)
    sent, received, roomy = make(own(comm, length)), make(empty(length)), make(empty(length + 5))
    requests = [comm.Isend(sent, right, tag) for tag in (8, 9)]
    comm.Barrier()
    status = MPI.Status()
    message = comm.Mprobe(left, 9, status)
    assert status.Get_count(MPI.INT64_T) == length
    message.Recv(received)
    comm.Recv(roomy, MPI.ANY_SOURCE, 8, status)
    assert (status.Get_source(), status.Get_count(MPI.INT64_T)) == (left, length)
    MPI.Request.Waitall(requests)
    spoil(sent)
    return [received, roomy]


def persistent(comm: Any, make: Make, length: int) -> list[Any]:
    left, right = ring(comm)
    sent, received = make(own(comm, length)), make(empty(length))
    requests = [comm.Send_init(sent, right), comm.Recv_init(received, left)]
    for _ in range(3):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    spoil(sent)
    for request in requests:
        request.Free()
    return [received]


def strided(comm: Any, make: Make, length: int) -> list[Any]:
    """Pairs with gaps on one side, a plain block or other gaps on the other."""
    left, right = ring(comm)
    sent, gaps, plain = make(own(comm, 5 * length)), make(empty(3 * length)), make(empty(2 * length))
    pairs, closer = (MPI.INT64_T.Create_vector(length, 2, stride).Commit() for stride in (5, 3))
    for received in ([gaps, 1, closer], plain):
        comm.Sendrecv([sent, 1, pairs], right, 0, received, left, 0)
    spoil(sent)
    for kind in (pairs, closer):
        kind.Free()
    return [gaps, plain]


MESSAGES: dict[str, Message] = {
    message.__name__: message for message in (sendrecv, send_to_posted, out_of_order, unexpected, persistent, strided)
}


def datatypes() -> dict[str, MPI.Datatype]:
    """One for each way that elements are moved: name, datatype of at most 3,000 bytes extent."""
    rows = MPI.DOUBLE.Create_vector(3, 2, 4)
    return {
        "few blocks": rows,
        "lattice": MPI.DOUBLE.Create_vector(40, 1, 3).Create_resized(0, 1000),
        "table": MPI.DOUBLE.Create_indexed([1, 3, 2, 7] * 5, [2 * k * k for k in range(1, 11)] + [240 + 11 * k for k in range(10)]),
        "backwards": MPI.INT.Create_hindexed([5] * 12, [4 * (200 - 10 * k) for k in range(12)]),
        "bytes": MPI.BYTE.Create_vector(50, 3, 7),
        "sparse": MPI.DOUBLE.Create_vector(12, 1, 30),
    }


def check_derived_datatypes(comm: Any, counts: Sequence[int]) -> None:
    """Two ranks exchange so many elements of each datatype: where they are on a device, as where they are not."""
    size, other = 4000 * max(counts), 1 - comm.rank
    for name, datatype in datatypes().items():
        datatype.Commit()
        for count in counts:
            values = np.random.default_rng(count).integers(0, 255, size, np.uint8)
            wanted = np.full(size, 0xEE, np.uint8)
            comm.Sendrecv([values, count, datatype], other, 0, [wanted, count, datatype], other, 0)
            for device_sends, device_receives in ((True, True), (True, False), (False, True)):
                outgoing = DeviceArray.from_host(values) if device_sends else values
                blank = np.full(size, 0xEE, np.uint8)
                incoming = DeviceArray.from_host(blank) if device_receives else blank
                comm.Sendrecv([outgoing, count, datatype], other, 0, [incoming, count, datatype], other, 0)
                np.testing.assert_equal(values_of(incoming), wanted, err_msg=f"{count} of {name}")
        datatype.Free()
