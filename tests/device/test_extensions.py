"""Alltoallv_dynamic on device arrays, the metadata too: as on NumPy arrays, and read when it executes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.testing.driver_double import DeviceArray, Double
from tests.device.test_staging import maker, values_of


def dispatch_and_combine(comm: Any, make: Any, flavour: str) -> list[Any]:
    """Tokens to two experts on each rank, by indices, and back; a persistent request is started with other splits each time."""
    size, segments, most = comm.size, 2 * comm.size, 30
    splits = make(np.zeros(segments, np.int64))
    tokens = make(np.arange(most * segments) + 10_000 * comm.rank)
    areas, every = make(np.full(size * most * segments, -1)), make(np.zeros((size, segments), np.int64))
    indices = make(np.arange(segments, dtype=np.int32)[::-1].copy())
    lengths = make(np.full(size, 2, np.int16))
    back = make(np.full(most * segments, -2))
    found = []
    if flavour == "persistent":
        request = comm.Alltoallv_dynamic_init(tokens, areas, splits, indices, lengths, every)
    for turn in range(3):
        new = np.random.default_rng(turn + comm.rank).integers(0, most, segments)
        if isinstance(splits, DeviceArray):
            splits.later(lambda target, new=new: np.copyto(target, new))
        else:
            splits[:] = new
        if flavour == "persistent":
            request.Start()
            request.Wait()
        elif flavour == "non-blocking":
            comm.Ialltoallv_dynamic(tokens, areas, splits, indices, lengths, every).Wait()
        else:
            comm.Alltoallv_dynamic(tokens, areas, splits, indices, lengths, every)
        mine = segments - 1 - np.arange(2 * comm.rank, 2 * comm.rank + 2)
        comm.Alltoallv_dynamic_combine(areas, back, every, make(np.tile(mine, size)), make(np.full(size, 2)))
        found += [values_of(areas), values_of(every), values_of(back)]
    return found


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("kind", ["device", "mixed"])
def test_dispatch_and_combine(comm: Any, kind: str) -> None:
    for flavour in ("blocking", "non-blocking", "persistent"):
        wanted = dispatch_and_combine(comm, np.array, flavour)
        with Double(comm.rank):
            found = dispatch_and_combine(comm, maker(kind, comm.rank), flavour)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=flavour)
        assert (wanted[0] >= 0).any()
        assert (wanted[0] == -1).any()


@pytest.mark.ranks(2)
def test_areas_with_displacements_and_what_does_not_fit(comm: Any) -> None:
    with Double(comm.rank):
        send, areas = DeviceArray.from_host(np.arange(20.0)), DeviceArray.from_host(np.full(20, -1.0))
        splits = DeviceArray.from_host(np.array([3, 4]))
        comm.Alltoallv_dynamic([send, ([5, 5], [2, 11])], [areas, ([4, 4], [10, 1])], splits)
        wanted = np.full(20, -1.0)
        first, length = ((2, 3), (11, 4))[comm.rank]
        wanted[10 : 10 + length] = wanted[1 : 1 + length] = np.arange(first, first + length)
        np.testing.assert_array_equal(values_of(areas), wanted)
        with pytest.raises(MPI.Exception, match="needs room for 4 elements"):
            comm.Alltoallv_dynamic([send, ([5, 5], [2, 11])], [areas, ([3, 4], [10, 1])], splits)
