"""Device arrays in every communicating call, staged through the host: on the driver double, whose memory the CPU cannot touch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi.testing.driver_double import DEVICE, POOL, DeviceArray, Double
from tests.device.cases import CASES, FLAVOURS, doing

KINDS = ("device", "mixed", "unaligned")


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


def values_of(found: Any) -> Any:
    """Values of an array, or of a list of them, on the host."""
    if isinstance(found, list):
        return [values_of(each) for each in found]
    return found.get() if isinstance(found, DeviceArray) else np.array(found)


def check_collectives(comm: Any, kind: str, flavour: str, lengths: tuple[int, ...]) -> None:
    do = doing(comm, flavour)
    with Double(1 + comm.rank):
        for length in lengths:
            for name, case in CASES.items():
                wanted = values_of(case(comm, do, np.array, length))
                found = values_of(case(comm, do, maker(kind, comm.rank), length))
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_equal(one, other, err_msg=f"{name} of {length}")


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("kind", KINDS)
def test_blocking_collectives(comm: Any, kind: str) -> None:
    check_collectives(comm, kind, "blocking", (0, 1, 1000, 20_000) if comm.size == 2 else (0, 1001))


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("flavour", FLAVOURS[1:])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_started_collectives(comm: Any, kind: str, flavour: str) -> None:
    check_collectives(comm, kind, flavour, (0, 1001))
