"""What is done with where ranks are: splits by resources, and communicators whose ranks are numbered so that neighbours are near."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime
from ncclx_mpi.locality import own
from ncclx_mpi.locality.levels import RESOURCES

GUIDED = (MPI.COMM_TYPE_HW_GUIDED, MPI.COMM_TYPE_RESOURCE_GUIDED)


def raises(error_class: int, match: str) -> Any:
    """Expect an MPI error of this class whose text says this."""
    return pytest.raises(MPI.Exception, match=match, check=lambda error: error.Get_error_class() == error_class)


@contextlib.contextmanager
def bound_to(cpus: set[int]) -> Iterator[None]:
    """Be on a machine of eight cores, two of which share a cache, and four a NUMA node."""
    with tempfile.TemporaryDirectory() as folder:
        system = Path(folder)
        for cpu in range(8):
            texts = {
                "topology/thread_siblings_list": f"{cpu}",
                "topology/package_cpus_list": "0-7",
                "cache/index3/level": "3",
                "cache/index3/shared_cpu_list": f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}",
            }
            for name, text in texts.items():
                (system / "cpu" / f"cpu{cpu}" / name).parent.mkdir(parents=True, exist_ok=True)
                (system / "cpu" / f"cpu{cpu}" / name).write_text(f"{text}\n")
            node = f"node{cpu // 4}"
            (system / "cpu" / f"cpu{cpu}" / node).mkdir()
            (system / "node" / node).mkdir(parents=True, exist_ok=True)
            (system / "node" / node / "cpulist").write_text("0-3\n" if cpu < 4 else "4-7\n")
        found = functools.partial(own.find, system=system)
        with mock.patch.object(own, "find", found), mock.patch.object(os, "sched_getaffinity", lambda _pid: cpus):
            yield


@contextlib.contextmanager
def file_that_says(text: str) -> Iterator[None]:
    """Name a file about the network, of the same text on all ranks."""
    with tempfile.NamedTemporaryFile("w") as file, mock.patch.dict(os.environ, NCCLX_MPI_TOPOLOGY_FILE=file.name):
        file.write(text)
        file.flush()
        yield


def by(comm: Any, name: str, kind: int = MPI.COMM_TYPE_HW_GUIDED, key: int = 0) -> list[int] | None:
    """The ranks with which this one shares a resource."""
    made = comm.Split_type(kind, key, MPI.Info.Create({"mpi_hw_resource_type": name}))
    return made.allgather(comm.rank) if made else None


# Splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(4, topology="machine")  # ranks of several nodes share no part
@pytest.mark.parametrize("kind", GUIDED)
def test_ranks_that_share_a_part_of_the_machine(comm: Any, kind: int) -> None:
    with bound_to({0: {0}, 1: {1}, 2: {2, 3}, 3: {3, 4}}[comm.rank]):
        assert by(comm, "mpi_shared_memory", kind) == by(comm, "hwloc://Package", kind) == [0, 1, 2, 3]
        assert by(comm, "hwloc://L3Cache", kind) == ([0, 1] if comm.rank < 2 else [2] if comm.rank == 2 else None)
        assert by(comm, "hwloc://NUMANode", kind) == ([0, 1, 2] if comm.rank < 3 else None)
        assert by(comm, "hwloc://Core", kind) == by(comm, "hwloc://PU", kind) == ([comm.rank] if comm.rank < 2 else None)
        assert by(comm, "hwloc://L2Cache", kind) is by(comm, "rack", kind) is None
        assert by(comm, "mpi_shared_memory", kind, -comm.rank) == [3, 2, 1, 0]
        assert by(comm, "hwloc://NUMANode", kind, -comm.rank) == ([2, 1, 0] if comm.rank < 3 else None)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("kind", GUIDED)
def test_without_a_name_that_means_something_there_is_no_part(comm: Any, kind: int) -> None:
    for info in (MPI.INFO_NULL, MPI.Info.Create(), MPI.Info.Create({"mpi_hw_resource_type": "hwloc://Fridge"})):
        made = comm.Split_type(kind, 0, info)
        assert made == MPI.COMM_NULL and type(made) is MPI.Intracomm


@pytest.mark.ranks(6, topology="vnode:2")
def test_racks_and_zones_of_a_file(comm: Any) -> None:
    with file_that_says("node.ranks = 2\nrack.nodes = 2\nzone.racks = 2\n"):
        assert by(comm, "rack") == ([0, 1, 2, 3] if comm.rank < 4 else [4, 5])
        assert by(comm, "zone") == list(range(6)) and by(comm, "datacenter") is None
        assert by(comm, "mpi_shared_memory") == [comm.rank // 2 * 2, comm.rank // 2 * 2 + 1]
        assert by(comm, "hwloc://NUMANode") in (by(comm, "mpi_shared_memory"), None, [comm.rank])


@pytest.mark.ranks(6, topology="vnode:2")
def test_unguided_splits_go_down_level_by_level(comm: Any) -> None:
    cpus = {0, 2} if comm.rank == 5 else {comm.rank % 2 * 4}
    levels = []
    with file_that_says("node.ranks = 2\nrack.nodes = 2\nzone.racks = 2\n"), bound_to(cpus):
        while comm:
            info = MPI.Info.Create()
            comm = comm.Split_type(MPI.COMM_TYPE_HW_UNGUIDED, -comm.rank, info)
            levels.append((info.Get("mpi_hw_resource_type"), comm.size if comm else 0))
    last = (None, 0)
    assert levels == {
        4: [("rack", 2), ("hwloc://L3Cache", 1), last],
        5: [("rack", 2), last],
    }.get(MPI.COMM_WORLD.rank, [("rack", 4), ("mpi_shared_memory", 2), ("hwloc://NUMANode", 1), last])


@pytest.mark.ranks(3, topology="machine")  # on several nodes a split by node comes first
def test_unguided_where_all_are_in_the_same(comm: Any) -> None:
    with bound_to({0}):
        assert comm.Split_type(MPI.COMM_TYPE_HW_UNGUIDED, 0) == MPI.COMM_NULL
        assert comm.Split_type(MPI.COMM_TYPE_HW_UNGUIDED, 0, MPI.INFO_ENV) == MPI.COMM_NULL
    with bound_to({4} if comm.rank == 1 else {0}):
        made = comm.Split_type(MPI.COMM_TYPE_HW_UNGUIDED, 0, MPI.INFO_ENV)
        assert made.allgather(comm.rank) == ([1] if comm.rank == 1 else [0, 2])


@pytest.mark.ranks(3)
def test_process_sets(comm: Any) -> None:
    for name, ranks in (("mpi://WORLD", [0, 1, 2]), ("mpi://self", [comm.rank])):
        info = MPI.Info.Create({"mpi_pset_name": name})
        assert comm.Split_type(MPI.COMM_TYPE_RESOURCE_GUIDED, 0, info).allgather(comm.rank) == ranks
        assert comm.Split_type(MPI.COMM_TYPE_HW_GUIDED, 0, info) == MPI.COMM_NULL
    assert comm.Split_type(MPI.COMM_TYPE_RESOURCE_GUIDED, 0, MPI.Info.Create({"mpi_pset_name": "mpi://MOON"})) == MPI.COMM_NULL


@pytest.mark.ranks(1, 3, topology="machine")  # all share memory, which needs no file to be known
def test_a_file_with_a_fault_is_said_on_all_ranks(comm: Any) -> None:
    """Also where others have a good one; those that do not need it do not look."""
    last = comm.size - 1
    with file_that_says("rack = r1\n" if comm.rank < last else "rock = r1\n"):
        expected = (
            rf"rank {comm.rank}: {{}}: rank {last} cannot say where it is: NCCLX_MPI_TOPOLOGY_FILE=/.*: line 1: 'rock = r1' says"
        )
        with raises(MPI.ERR_OTHER, expected.format("Split_type by rack")):
            by(comm, "rack")
        with raises(MPI.ERR_OTHER, expected.format("Split_type")):
            comm.Split_type(MPI.COMM_TYPE_HW_UNGUIDED)
        with raises(MPI.ERR_OTHER, expected.format("Create_cart")):
            comm.Create_cart([comm.size], reorder=True)
        with raises(MPI.ERR_OTHER, expected.format("Create_dist_graph_adjacent")):
            comm.Create_dist_graph_adjacent([], [], reorder=True)
        assert comm.Split_type(MPI.COMM_TYPE_SHARED).size == by(comm, "mpi_shared_memory").__len__() == comm.size
        assert comm.Create_cart([comm.size]).size == comm.size
        if comm.rank == last:
            with raises(MPI.ERR_OTHER, "Get_hw_resource_info: NCCLX_MPI_TOPOLOGY_FILE="):
                MPI.Get_hw_resource_info()
    with (
        mock.patch.dict(os.environ, NCCLX_MPI_TOPOLOGY_FILE="/no/such/file"),
        raises(MPI.ERR_OTHER, "rank 0 cannot say.*No such file"),
    ):
        by(comm, "rack")


def test_what_a_process_is_restricted_to() -> None:
    with bound_to({2, 3}), file_that_says("rack = r1\n"):
        found = dict(MPI.Get_hw_resource_info())
    assert set(found) == set(RESOURCES) and set(found.values()) == {"true", "false"}
    restricted = {name for name, value in found.items() if value == "true"}
    assert restricted == {"mpi_shared_memory", "hwloc://Package", "hwloc://NUMANode", "hwloc://L3Cache", "rack"}


@pytest.mark.ranks(2)
def test_between_groups(comm: Any) -> None:
    """A part has ranks of both groups."""
    alone = comm.Split(comm.rank)
    both = alone.Create_intercomm(0, comm, 1 - comm.rank)
    with bound_to({comm.rank}):
        made = both.Split_type(MPI.COMM_TYPE_HW_GUIDED, 0, MPI.Info.Create({"mpi_hw_resource_type": "hwloc://L3Cache"}))
        assert made.is_inter and made.remote_size == 1
        assert both.Split_type(MPI.COMM_TYPE_HW_UNGUIDED) == MPI.COMM_NULL


# Ranks that are numbered anew --------------------------------------------------------------------------------------


def faces(made: Any, of: Any) -> int:
    """Faces between neighbours on different nodes, if `of` says on which node each rank is; each has two sides."""
    edges = [(rank, peer) for rank, peers in enumerate(made.allgather(made.outedges)) for peer in peers if peer >= 0]
    return sum(of[one] != of[other] for one, other in edges) // 2


def nodes(comm: Any) -> list[int]:
    """On which node each rank is."""
    found: list[int] = comm.allgather(runtime.engine().near[0])
    return found


def is_sound(made: Any) -> None:
    """Neighbours exchange what they have to."""
    received = made.neighbor_alltoall([(made.rank, peer) for peer in made.outedges])
    assert [pair for pair in received if pair is not None] == [(peer, made.rank) for peer in made.inedges if peer >= 0]


@pytest.mark.ranks(4, 6, 8, topology="vnode:2")
@pytest.mark.parametrize("order", ["in order", "in turn"])
@pytest.mark.parametrize("periodic", [False, True])
def test_fewer_faces_of_a_grid_between_nodes(comm: Any, order: str, periodic: bool) -> None:
    """As few as any order of the ranks has; each rank is asked the same, and stays where nothing is gained."""
    if order == "in turn":
        comm = comm.Split(0, comm.rank % 2 * comm.size + comm.rank)
    dims = [2, comm.size // 2] if order == "in order" else [comm.size // 2, 2]
    plain, made = (comm.Create_cart(dims, periodic, reorder) for reorder in (False, True))
    before, after = faces(plain, nodes(plain)), faces(made, nodes(made))
    of = nodes(comm)
    assert (before, after) == {
        ("in order", False): {4: (2, 2), 6: (5, 4), 8: (6, 6)},
        ("in order", True): {4: (4, 4), 6: (10, 6), 8: (12, 8)},
        ("in turn", False): {4: (2, 2), 6: (7, 4), 8: (10, 6)},
        ("in turn", True): {4: (4, 4), 6: (12, 6), 8: (16, 8)},
    }[order, periodic][comm.size]
    if comm.size <= 6:
        assert after == min(faces(plain, each) for each in itertools.permutations(of))
    assert (after < before) or (made.rank == comm.rank and before == after)
    assert made.rank == comm.Cart_map(dims, periodic) and made.coords == made.Get_coords(made.rank)
    is_sound(made)


@pytest.mark.ranks(5, 6, topology="vnode:2")
def test_a_halo_program_computes_the_same(comm: Any) -> None:
    """Whoever has a place of the grid has its cell: after three steps all are what they are without reordering."""
    dims, cells = [2, comm.size // 2], []
    for reorder in (False, True):
        made = comm.Create_cart(dims, [True, False], reorder)
        if made == MPI.COMM_NULL:
            cells.append({})
            continue
        cell, around = np.array([float(3**made.rank)]), np.zeros(4)
        for _ in range(3):
            made.Neighbor_allgather(cell, around)
            cell += around.sum() / 4
        cells.append(dict(made.allgather((tuple(made.coords), cell[0]))))
    assert comm.allreduce(made != MPI.COMM_NULL and made.rank != comm.rank, op=MPI.LOR)
    plain, reordered = ({key: value for each in comm.allgather(one) for key, value in each.items()} for one in cells)
    assert len(plain) == comm.size // 2 * 2 and reordered == plain


@pytest.mark.ranks(8, topology="vnode:4")
def test_blocks_of_a_grid_on_nodes(comm: Any) -> None:
    made = comm.Create_cart([2, 4], reorder=True)
    assert faces(comm.Create_cart([2, 4]), nodes(comm)) == 4 and faces(made, nodes(made)) == 2
    array = np.full(1, made.rank)
    left, right = made.Shift(1, 1)
    made.Sendrecv_replace(array, right, source=left)
    assert array[0] == (made.rank if left == MPI.PROC_NULL else left)
    small = comm.Create_cart([2, 3], reorder=True)
    assert (small == MPI.COMM_NULL) == (comm.rank >= 6) == (comm.Cart_map([2, 3]) == MPI.UNDEFINED)


@pytest.mark.ranks(6, topology="vnode:2")
def test_graphs_whose_neighbours_come_together(comm: Any) -> None:
    """Pairs of ranks that are three apart."""
    peer = (comm.rank + 3) % 6
    made = comm.Create_graph(range(1, 7), [3, 4, 5, 0, 1, 2], reorder=True)
    assert faces(made, nodes(comm)) == 3 and faces(made, nodes(made)) == 0
    assert made.neighbors == [(made.rank + 3) % 6] and made.rank == comm.Graph_map(range(1, 7), [3, 4, 5, 0, 1, 2])
    is_sound(made)
    every = [
        comm.Create_dist_graph_adjacent([peer], [peer], reorder=True),
        comm.Create_dist_graph([comm.rank], [1], [peer], reorder=True),
    ]
    for each in every:
        assert faces(each, nodes(each)) == 0 and each.Get_dist_neighbors() == ([(each.rank + 3) % 6], [(each.rank + 3) % 6], None)
        is_sound(each)


@pytest.mark.ranks(6, topology="vnode:2")
def test_weights_say_which_neighbours_come_together(comm: Any) -> None:
    """A ring, and rank pairs three apart; whoever becomes a rank has the edges and weights that were given for it."""
    left, right, across = (comm.rank - 1) % 6, (comm.rank + 1) % 6, (comm.rank + 3) % 6
    ring, pairs = (comm.Create_dist_graph_adjacent([left, right, across], [left, right, across], weights, weights, reorder=True)
                   for weights in ([1, 1, 0], [1, 1, 100]))  # fmt: skip
    of = nodes(pairs)
    assert all(of[rank] == of[rank + 3] for rank in range(3)) and ring.rank == comm.rank
    around = [(pairs.rank - 1) % 6, (pairs.rank + 1) % 6, (pairs.rank + 3) % 6]
    assert pairs.Get_dist_neighbors() == (around, around, ([1, 1, 100], [1, 1, 100]))
    is_sound(pairs)


@pytest.mark.ranks(4, topology="vnode:2")
def test_edges_of_each_rank_stay_its_own(comm: Any) -> None:
    """Rank 0 and 2, 1 and 3 belong together; rank 3 alone gives no weights, and rank 1 has an edge to itself, twice."""
    peer = (comm.rank + 2) % 4
    more = [1, 1] if comm.rank == 1 else []
    edges = [peer] * 2 + more
    weights = None if comm.rank == 3 else [5 * comm.rank + index for index in range(len(edges))]
    made = comm.Create_dist_graph_adjacent(edges, edges, weights, weights, reorder=True)
    assert nodes(made)[0] == nodes(made)[2] != nodes(made)[1] == nodes(made)[3]
    expected = [(made.rank + 2) % 4] * 2 + ([1, 1] if made.rank == 1 else [])
    count = [5 * made.rank + index for index in range(len(expected))]
    assert made.Get_dist_neighbors() == (expected, expected, None if made.rank == 3 else (count, count))
    is_sound(made)


@pytest.mark.ranks(6, topology="machine")  # nodes come before caches
def test_caches_of_one_node(comm: Any) -> None:
    """Three caches for two ranks each; a row of the grid is three ranks."""
    with bound_to({comm.rank}):
        made = comm.Create_cart([2, 3], reorder=True)
        caches = made.allgather(MPI.COMM_WORLD.rank // 2)
        assert faces(made, caches) == 4 and faces(comm.Create_cart([2, 3]), [0, 0, 1, 1, 2, 2]) == 5
    assert comm.Create_cart([2, 3], reorder=True).rank == comm.rank


@pytest.mark.ranks(4, topology="vnode:2")
def test_a_map_communicates_nothing(comm: Any) -> None:
    """It is the order that ranks have, until they have told each other where they are; one rank may ask alone."""
    turned = comm.Split(0, comm.rank % 2 * 4 + comm.rank)
    if turned.rank == 1:
        assert turned.Cart_map([4]) == 1
    kept = turned.Cart_map([4])
    turned.Create_cart([4], reorder=True)
    assert kept == turned.rank and turned.Cart_map([4]) == {0: 0, 1: 2, 2: 1, 3: 3}[turned.rank]
    assert turned.Dup().Cart_map([4]) == turned.rank
