"""Every kind of access, with random views and random types in memory, against a model of the file in NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.io.model import HOLE, Typemap, content_of, data, opened, tiled, typemap

Access = Callable[[Any, int, list[Any], Any], None]


def _split(file: Any, name: str, buffer: list[Any], status: Any, *offset: int) -> None:
    getattr(file, f"{name}_begin")(*offset, buffer)
    getattr(file, f"{name}_end")(buffer, status)


def _at(name: str) -> Access:
    return lambda file, at, buffer, status: getattr(file, name)(at, buffer, status)


def _started_at(name: str) -> Access:
    return lambda file, at, buffer, status: getattr(file, name)(at, buffer).Wait(status)


def _pointed(name: str) -> Access:
    def access(file: Any, at: int, buffer: list[Any], status: Any) -> None:
        file.Seek(at)
        getattr(file, name)(buffer, status)

    return access


def _started(name: str) -> Access:
    def access(file: Any, at: int, buffer: list[Any], status: Any) -> None:
        file.Seek(at)
        getattr(file, name)(buffer).Wait(status)

    return access


def _split_pointed(name: str) -> Access:
    def access(file: Any, at: int, buffer: list[Any], status: Any) -> None:
        file.Seek(at)
        _split(file, name, buffer, status)

    return access


def _split_at(name: str) -> Access:
    return lambda file, at, buffer, status: _split(file, name, buffer, status, at)


WAYS: dict[str, tuple[Access, Access]] = {
    "at": (_at("Write_at"), _at("Read_at")),
    "at_all": (_at("Write_at_all"), _at("Read_at_all")),
    "started_at": (_started_at("Iwrite_at"), _started_at("Iread_at")),
    "started_at_all": (_started_at("Iwrite_at_all"), _started_at("Iread_at_all")),
    "pointed": (_pointed("Write"), _pointed("Read")),
    "all": (_pointed("Write_all"), _pointed("Read_all")),
    "started": (_started("Iwrite"), _started("Iread")),
    "started_all": (_started("Iwrite_all"), _started("Iread_all")),
    "split_at": (_split_at("Write_at_all"), _split_at("Read_at_all")),
    "split": (_split_pointed("Write_all"), _split_pointed("Read_all")),
}


def memory_of(kind: Typemap, count: int, packed: Any) -> Any:
    """An array in which `count` elements of a type are these packed bytes."""
    room = np.full(count * kind.extent, HOLE, np.uint8)
    room[kind.places(count)] = packed
    return room


def places_of(view: Typemap, displacement: int, first: int, nbytes: int) -> Any:
    """Offsets in the file of bytes of data from byte `first` on."""
    whole = view.places(-(-(first + nbytes) // view.size))
    return np.array(whole[first : first + nbytes], np.int64) + displacement


def run(comm: Any, way: str, seed: int, hints: dict[str, str], atomic: bool = False) -> None:
    """Write at random places of a random view and read it again, by one way; what is not written stays as it was."""
    from ncclx_mpi import MPI

    write, read = WAYS[way]
    rng = random.Random(seed)
    base, kind = typemap(rng), typemap(rng)
    displacement, at = rng.randrange(20), rng.randrange(8)
    counts = [rng.choice([0, 1, 2, 5, 40]) for _ in range(comm.size)]
    view = tiled(base, comm.size)
    written = {}
    for rank, count in enumerate(counts):
        packed = data((seed, rank), count * kind.size)
        written[rank] = places_of(view, displacement + rank * base.extent, at * 4, len(packed)), packed
    end = max((int(places.max()) + 1 for places, _ in written.values() if len(places)), default=0)
    before = np.full(end // 2, HOLE, np.uint8)
    info = MPI.Info.Create(hints)
    with opened(comm, before.tobytes(), info=info) as (file, path):
        file.Set_atomicity(atomic)
        file.Set_view(displacement + comm.rank * base.extent, MPI.INT, view.datatype)
        places, packed = written[comm.rank]
        count, status = counts[comm.rank], MPI.Status()
        given = memory_of(kind, count, packed)
        write(file, at, [given, count, kind.datatype], status)
        assert status.Get_count(kind.datatype) == (count if kind.size else 0)
        file.Sync()
        comm.Barrier()
        expected = np.zeros(max(end, len(before)), np.uint8)
        expected[: len(before)] = before
        for theirs, bytes_ in written.values():
            expected[theirs] = bytes_
        assert content_of(path).tobytes() == expected.tobytes()
        found = np.full(count * kind.extent, HOLE, np.uint8)
        read(file, at, [found, count, kind.datatype], status)
        assert status.Get_count() == len(packed)
        assert found.tobytes() == given.tobytes()
        comm.Barrier()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.ranks(1, 2, 3, 5)
def test_views_and_types_at_random(comm: Any, way: str) -> None:
    for seed in range(6):
        run(comm, way, seed + 100 * len(way), {})


@pytest.mark.parametrize("way", ["at", "all", "split_at", "started"])
@pytest.mark.ranks(5, topology="vnode:2")
def test_on_several_nodes(comm: Any, way: str) -> None:
    for seed in range(4):
        run(comm, way, seed, {})


@pytest.mark.parametrize("way", ["at", "all", "started_all"])
@pytest.mark.ranks(3)
def test_in_atomic_mode(comm: Any, way: str) -> None:
    for seed in range(3):
        run(comm, way, seed, {}, atomic=True)


@pytest.mark.parametrize(
    "hints",
    [
        {"romio_cb_write": "enable", "romio_cb_read": "enable", "cb_buffer_size": "4096", "cb_nodes": "2", "striping_unit": "64"},
        {"romio_cb_write": "disable", "romio_cb_read": "disable", "romio_ds_read": "enable", "ind_rd_buffer_size": "7"},
        {"romio_cb_read": "disable", "romio_ds_read": "disable"},
    ],
    ids=["small_windows", "small_sieve", "block_by_block"],
)
@pytest.mark.ranks(1, 3, 5)
def test_with_hints(comm: Any, hints: dict[str, str]) -> None:
    for seed in range(12):
        run(comm, "all", seed, hints)


@pytest.mark.ranks(1, 2)
def test_reading_ends_with_the_file(comm: Any) -> None:
    from ncclx_mpi import MPI

    content = np.arange(25, dtype=np.uint8)
    for hints in ({}, {"romio_cb_read": "enable"}, {"romio_ds_read": "disable"}):
        with opened(comm, content.tobytes(), info=MPI.Info.Create(hints)) as (file, _):
            pair = MPI.BYTE.Create_vector(2, 3, 5).Create_resized(0, 10).Commit()
            file.Set_view(1, MPI.BYTE, pair)
            seen = content[1:][[k for k in range(24) if k % 10 in (0, 1, 2, 5, 6, 7)]]
            for way in ("Read_at", "Read_at_all"):
                found, status = np.full(40, HOLE, np.uint8), MPI.Status()
                getattr(file, way)(0, found, status)
                assert status.Get_count() == len(seen) == 15
                assert found[:15].tolist() == seen.tolist()
                assert set(found[15:].tolist()) == {HOLE}
                getattr(file, way)(100, found, status)
                assert status.Get_count() == 0


@pytest.mark.ranks(2)
def test_non_contiguous_reads_of_a_short_file_leave_the_rest_alone(comm: Any) -> None:
    from ncclx_mpi import MPI

    with opened(comm, b"abcde") as (file, _):
        every_other = MPI.BYTE.Create_vector(4, 1, 2).Commit()
        found = np.full(8, HOLE, np.uint8)
        file.Read_at_all(2, [found, 1, every_other])
        assert found.tolist() == [99, HOLE, 100, HOLE, 101, HOLE, HOLE, HOLE]


@pytest.mark.ranks(1, 2)
def test_files_that_are_only_read_may_be_seen_twice(comm: Any) -> None:
    from ncclx_mpi import MPI

    content = np.arange(200, dtype=np.uint8)
    twice = MPI.BYTE.Create_indexed([20, 5, 10], [0, 3, 20]).Create_resized(0, 8).Commit()
    seen = np.concatenate([content[8 * k :][[*range(20), *range(3, 8), *range(20, 30)]] for k in range(4)])
    for hints in ({}, {"romio_cb_read": "enable"}, {"romio_ds_read": "enable", "ind_rd_buffer_size": "8"}):
        with opened(comm, content.tobytes(), MPI.MODE_RDONLY, MPI.Info.Create(hints)) as (file, _):
            file.Set_view(0, MPI.BYTE, twice)
            for way in ("Read_at", "Read_at_all"):
                found = np.zeros(4 * 35, np.uint8)
                getattr(file, way)(0, found)
                assert found.tolist() == seen.tolist()


@pytest.mark.ranks(1)
def test_large_offsets_and_sparse_files(comm: Any) -> None:
    from ncclx_mpi import MPI

    far = 5 << 30
    with opened(comm) as (file, path):
        file.Write_at(far, b"end")
        assert file.Get_size() == far + 3
        file.Set_view(far - 1, MPI.BYTE)
        found = bytearray(4)
        file.Read_at(0, found)
        assert found == b"\0end"
        sparse = MPI.BYTE.Create_hvector(3, 1, 3 << 30).Commit()
        file.Set_view(0, MPI.BYTE, sparse)
        file.Write_at(0, b"xyz")
        file.Set_view(0, MPI.BYTE)
        file.Read_at(6 << 30, found)
        assert found[:1] == b"z"


@pytest.mark.ranks(2)
def test_filetypes_of_more_blocks_than_are_listed(comm: Any) -> None:
    """Their extents are made as they are needed."""
    from ncclx_mpi import MPI

    count = (1 << 20) + 100
    view = MPI.INT.Create_vector(count, 1, 2).Create_resized(0, count * 8).Commit()
    with opened(comm) as (file, path):
        file.Set_view(4 * comm.rank, MPI.INT, view)
        given = np.arange(1000, dtype=np.int32) + 10000 * comm.rank
        file.Write_at_all(count - 500, given)
        assert file.Get_byte_offset(count - 500) == 4 * comm.rank + 8 * (count - 500)
        assert file.Get_byte_offset(count + 3) == 4 * comm.rank + 8 * (count + 3)
        found = np.zeros_like(given)
        file.Read_at_all(count - 500, found)
        assert found.tolist() == given.tolist()
        file.Seek(0, MPI.SEEK_END)
        assert file.Get_position() == count + 500
        file.Sync()
        comm.Barrier()
        table = np.fromfile(path, np.int32).reshape(-1, 2)
        assert table[count - 500 :, comm.rank].tolist() == given.tolist()


@pytest.mark.ranks(2)
def test_several_accesses_are_under_way_at_once(comm: Any) -> None:
    from ncclx_mpi import MPI

    block = 100_000
    with opened(comm) as (file, path):
        given = [np.full(block, 10 * comm.rank + k, np.uint8) for k in range(5)]
        requests = [file.Iwrite_at((2 * k + comm.rank) * block, each) for k, each in enumerate(given)]
        MPI.Request.Waitall(requests)
        file.Iwrite_at(10 * block, np.zeros(block, np.uint8)).Free()
        file.Sync()
        comm.Barrier()
        table = content_of(path)[: 10 * block].reshape(5, 2, block)
        assert (table == np.arange(5)[:, None, None] + 10 * np.arange(2)[None, :, None]).all()
        found = [np.zeros(block, np.uint8) for _ in range(5)]
        statuses = [MPI.Status() for _ in range(5)]
        requests = [file.Iread_at((2 * k + 1) * block, each) for k, each in enumerate(found)]
        MPI.Request.Waitall(requests, statuses)
        assert [set(each.tolist()) for each in found] == [{10 + k} for k in range(5)]
        assert [status.Get_count() for status in statuses] == [block] * 5
        comm.Barrier()
