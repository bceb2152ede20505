"""What tests on the driver double share: GPUs of a job, arrays of each kind, what calls must give, and what they must refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.testing.driver_double import DEVICE, POOL, DeviceArray, Double
from ncclx_mpi.testing.driver_double.arrays import Array
from tests.device.cases import CASES, Do, Make

KINDS = ("device", "mixed", "unaligned")
"""Kinds of arrays that :func:`maker` makes."""

ONE_NODE = "machine"
"""Of tests of what only ranks of one node have: mapped memory of each other's GPUs, prepared communicators, collectives in pieces.

Between nodes arrays go by way of the host, so there these tests would count calls of the driver that nobody makes."""


def driver_of(comm: Any, sharing: str, seed: int | None = None) -> Double:
    """One GPU for all ranks, one for two, or one each, which every rank sees in an order of its own; the seed is the rank by default."""
    share = {"one": comm.size, "two": 2, "each": 1}[sharing]
    devices = -(-comm.size // share)
    mine = comm.rank // share
    visible = [(mine + k) % devices for k in range(devices)]
    return Double(comm.rank if seed is None else seed, devices=devices, visible=visible)


# Arrays -----------------------------------------------------------------------------------------------------------


def maker(kind: str, rank: int) -> Any:
    """What turns values into an array of the kind that a rank has."""
    if kind == "host" or (kind == "mixed" and rank % 2 == 0):
        return np.array
    return unaligned if kind == "unaligned" else unshared


def unshared(values: npt.NDArray[Any]) -> DeviceArray:
    """An array that other processes cannot map, so that nothing but staging can be done with it."""
    return DeviceArray.from_host(values, kind=POOL if values.size else DEVICE)


def unaligned(values: npt.NDArray[Any]) -> DeviceArray:
    """An array of the same values, three bytes into its memory."""
    array = DeviceArray(values.nbytes + 3, np.uint8)
    array.layout = array.layout[3:].view(values.dtype)
    array.later(lambda target: np.copyto(target, values))
    return array


def late(values: npt.NDArray[Any], kind: type[Array] = DeviceArray) -> Array:
    """An array that holds something else until its stream has come to two operations."""
    array = kind(values.shape, values.dtype)
    array.fill_later(77)
    array.later(lambda target: np.copyto(target, values), "late values")
    return array


def values_of(found: Any) -> Any:
    """Values of an array, or of a list of them, on the host."""
    if isinstance(found, list):
        return [values_of(each) for each in found]
    return found.get() if isinstance(found, Array) else np.array(found)


# Calls ------------------------------------------------------------------------------------------------------------


def check_collectives(comm: Any, do: Do, make: Make, lengths: Sequence[int]) -> None:
    """Every collective gives what it gives on NumPy arrays."""
    for length in lengths:
        for name, case in CASES.items():
            wanted = values_of(case(comm, do, np.array, length))
            found = values_of(case(comm, do, make, length))
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_equal(one, other, err_msg=f"{name} of {length}")


def refused(call: Callable[[], Any], error_class: int, text: str = "") -> None:
    """A call raises an error of a class, whose message matches `text`."""
    with pytest.raises(MPI.Exception, match=text) as caught:
        call()
    assert caught.value.Get_error_class() == error_class


def check_calls_that_differ(comm: Any, array: DeviceArray, more: Sequence[tuple[Callable[[Any], Any], int]] = ()) -> None:
    """Ranks that make different calls on a communicator, with `array` or as in `more`, are all told."""
    calls: list[tuple[Callable[[Any], Any], int]] = [
        *more,
        (lambda comm: comm.Bcast(array, root=comm.rank), MPI.ERR_ROOT),
        (lambda comm: comm.Bcast(array[comm.rank :], root=0), MPI.ERR_TRUNCATE),
        (lambda comm: comm.Bcast(array) if comm.rank else comm.Allreduce(MPI.IN_PLACE, array), MPI.ERR_OTHER),
        (lambda comm: comm.Bcast(array) if comm.rank else comm.Allreduce(MPI.IN_PLACE, np.zeros(5)), MPI.ERR_OTHER),
    ]
    for call, error_class in calls:
        other = comm.Dup()
        refused(lambda call=call, other=other: call(other), error_class)  # type: ignore[misc]
        other.Free()
