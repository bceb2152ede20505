"""Alltoallv_dynamic on device arrays, on the driver double: data and metadata may be a GPU's, and written by work still under way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.testing.driver_double import DeviceArray, Double
from tests.device.doubles import maker, values_of
from tests.extensions.tables import draw
from tests.extensions.test_alltoallv_dynamic import FLAVOURS, check


@pytest.mark.ranks(1, 2, 3, timeout=90)
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("kind", ["device", "mixed"])
def test_random_tables(comm: Any, kind: str, flavour: str) -> None:
    make = np.array if kind == "mixed" and comm.rank % 2 else DeviceArray.from_host
    with Double(1 + comm.rank):
        for seed in range(30):
            check(comm, draw(seed, comm.size), FLAVOURS[flavour], make, values_of)


@pytest.mark.ranks(2, 3)
def test_each_array_may_be_anywhere(comm: Any) -> None:
    with Double(1 + comm.rank):
        for seed in range(20):
            choices = np.random.default_rng((seed, comm.rank))

            def make(values: np.ndarray, choices: np.random.Generator = choices) -> Any:
                return DeviceArray.from_host(values) if choices.integers(0, 2) else np.array(values)

            check(comm, draw(seed, comm.size), FLAVOURS["blocking"], make, values_of)


@pytest.mark.ranks(2, 3)
def test_counts_that_a_kernel_writes_after_the_call_was_made(comm: Any) -> None:
    """A persistent request reads what stands in the array when all earlier work of its stream has run."""
    size, rank = comm.size, comm.rank
    with Double(1 + comm.rank):
        splits, send = DeviceArray.from_host(np.full(size, 4)), DeviceArray.from_host(np.arange(4.0 * size) + 100 * rank)
        recv = DeviceArray.from_host(np.full((size, 4), -1.0))
        request = comm.Alltoallv_dynamic_init(send, recv, splits)
        for length in (4, 2, 0, 1):
            splits.later(lambda target, length=length: np.copyto(target, length))
            recv.later(lambda target: np.copyto(target, -1))
            request.Start()
            request.Wait()
            expected = np.full((size, 4), -1.0)
            for source in range(size):
                expected[source, :length] = 100 * source + length * rank + np.arange(length)
            assert (recv.get() == expected).all()


@pytest.mark.ranks(2)
def test_a_pair_without_room(comm: Any) -> None:
    """Nothing of it is written on the device, everything else is."""
    with Double(1 + comm.rank):
        recv = DeviceArray.from_host(np.full(8, -1.0))
        capacities = [3 if comm.rank == 1 else 4, 4]
        with pytest.raises(MPI.Exception, match="from rank 0 to rank 1") as caught:
            comm.Alltoallv_dynamic(
                DeviceArray.from_host(np.arange(8.0)), [recv, (capacities, [0, 4])], DeviceArray.from_host(np.full(2, 4))
            )
        assert caught.value.error_class == MPI.ERR_TRUNCATE
        whole = np.arange(4.0) + 4 * comm.rank
        assert (recv.get()[4:] == whole).all()
        assert (recv.get()[:4] == (-1 if comm.rank else whole)).all()


@pytest.mark.ranks(1)
def test_only_what_is_there_is_copied(comm: Any) -> None:
    """Of room for a thousand, three elements go each way."""
    with Double(1) as driver:
        room, send = DeviceArray.from_host(np.zeros(1000)), DeviceArray.from_host(np.arange(1000.0))
        copied: list[int] = []
        copy = driver.copy
        driver.copy = lambda target, source, nbytes, stream: (copied.append(nbytes), copy(target, source, nbytes, stream))[1]
        comm.Alltoallv_dynamic(send, room, np.array([3]))
        assert sorted(copied) == [24, 24]


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
