"""Intercommunicators: who is in which group, messages, and collectives in all flavours against what each rank of the other group gives."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

Array = np.ndarray[Any, Any]
LENGTHS = (0, 1, 3, 1000)


def groups_of(size: int) -> list[tuple[list[int], list[int]]]:
    """Ways to cut the world into two groups, which need not be equal, in order, or all of it."""
    ranks = list(range(size))
    found = [([0], ranks[1:]), (ranks[1:], [0]), (ranks[::2], ranks[1::2][::-1])]
    return [*found, ([size - 1], [0, 1][: size - 1])] if size > 2 else found


@contextmanager
def between(comm: Any, low: list[int], high: list[int]) -> Iterator[Any]:
    """The intercommunicator of two groups of the world; None on a rank that is in neither."""
    mine, theirs = (low, high) if comm.rank in low else (high, low)
    if comm.rank not in mine:
        comm.Split(MPI.UNDEFINED)
        yield None
        return
    local = comm.Split(int(comm.rank in low), mine.index(comm.rank))
    made = local.Create_intercomm(0, comm, theirs[0], tag=5)
    local.Free()
    yield made
    made.Free()


def over_groups(test: Callable[[Any, list[int], list[int]], None]) -> Callable[[Any], None]:
    """Run a test on every way to cut the world; it gets the intercommunicator, and the world ranks of the own and the other group."""

    @pytest.mark.ranks(2, 3, 5)
    @functools.wraps(test)
    def run(comm: Any) -> None:
        for low, high in groups_of(comm.size):
            with between(comm, low, high) as inter:
                if inter is not None:
                    test(inter, *((low, high) if comm.rank in low else (high, low)))

    del run.__wrapped__
    return run


def blocking(inter: Any, name: str, *arguments: Any, **options: Any) -> None:
    getattr(inter, name)(*arguments, **options)


def non_blocking(inter: Any, name: str, *arguments: Any, **options: Any) -> None:
    getattr(inter, f"I{name.lower()}")(*arguments, **options).Wait()


def persistent(inter: Any, name: str, *arguments: Any, **options: Any) -> None:
    request = getattr(inter, f"{name}_init")(*arguments, **options)
    for _ in range(3):
        request.Start()
        request.Wait()
    request.Free()


FLAVOURS = (blocking, non_blocking, persistent)


def values(rank: int, length: int, salt: int = 0) -> Array:
    """What world rank `rank` gives: every number its own."""
    return rank * 10_000.0 + salt * 100_000.0 + np.arange(length)


def roots(inter: Any, mine: list[int], theirs: list[int]) -> Iterator[tuple[int, int]]:
    """Each rank of both groups as the root: its world rank, and what this rank passes for it."""
    for world in sorted(mine + theirs):
        if world in theirs:
            yield world, theirs.index(world)
        else:
            yield world, MPI.ROOT if mine.index(world) == inter.rank else MPI.PROC_NULL


# What it is -------------------------------------------------------------------------------------------------------


@over_groups
def test_groups(inter: Any, mine: list[int], theirs: list[int]) -> None:
    world = MPI.COMM_WORLD.Get_group()
    assert type(inter) is MPI.Intercomm and inter.Is_inter() and inter.is_inter and not inter.Is_intra() and not inter.is_intra
    assert (inter.size, inter.Get_size(), inter.group.size) == (len(mine),) * 3
    assert (inter.remote_size, inter.Get_remote_size(), inter.remote_group.size) == (len(theirs),) * 3
    assert mine[inter.rank] == MPI.COMM_WORLD.rank and inter.Get_rank() == inter.Get_group().rank
    assert (
        inter.Get_group().Translate_ranks(None, world) == mine and inter.Get_remote_group().Translate_ranks(None, world) == theirs
    )
    assert inter.remote_group.rank == MPI.UNDEFINED and inter.topology == MPI.UNDEFINED
    assert type(MPI.Comm.fromhandle(inter.handle)) is MPI.Intercomm and type(MPI.Comm(inter)) is MPI.Intercomm
    assert MPI.Intercomm(inter) == inter and inter.toint() == inter.py2f() == inter.handle
    with pytest.raises(TypeError, match="expecting an intracommunicator"):
        MPI.Intracomm(inter)
    with pytest.raises(TypeError, match="expecting an intercommunicator"):
        MPI.Intercomm(MPI.COMM_SELF)


@pytest.mark.ranks(1, 2)
def test_no_parent(comm: Any) -> None:
    parent = comm.Get_parent()
    assert type(parent) is type(MPI.Comm.Get_parent()) is MPI.Intercomm and parent == MPI.COMM_NULL
    for method in (parent.Get_remote_size, parent.Merge, parent.Dup, parent.Barrier, lambda: parent.bcast(1, MPI.ROOT)):
        with pytest.raises(MPI.Exception) as raised:
            method()
        assert raised.value.Get_error_class() == MPI.ERR_COMM


@over_groups
def test_compare(inter: Any, mine: list[int], theirs: list[int]) -> None:
    dup, turned = inter.Dup(), inter.Split(0, -inter.rank)
    assert MPI.Comm.Compare(inter, MPI.Intercomm(inter)) == MPI.IDENT
    assert inter.Compare(dup) == dup.Compare(inter) == MPI.CONGRUENT
    assert inter.Compare(turned) == (MPI.CONGRUENT if len(mine) == len(theirs) == 1 else MPI.SIMILAR)
    assert inter.Compare(MPI.COMM_SELF) == MPI.COMM_SELF.Compare(inter) == MPI.UNEQUAL
    dup.Free()
    turned.Free()


@over_groups
def test_name_attributes_and_hints(inter: Any, mine: list[int], theirs: list[int]) -> None:
    copied = []
    keyval = MPI.Comm.Create_keyval(copy_fn=lambda comm, key, value: copied.append(type(comm)) or value + 1)
    inter.Set_name("bridge")
    inter.Set_attr(keyval, 7)
    inter.Set_info(MPI.Info.Create({"hint": "yes"}))
    dup, (other, request), informed = inter.Dup(), inter.Idup(), inter.Dup_with_info(MPI.Info.Create({"hint": "no"}))
    request.Wait()
    assert inter.name == "bridge" and dup.name == ""
    assert [each.Get_attr(keyval) for each in (inter, dup, other, informed)] == [7, 8, 8, 8] and copied == [MPI.Intercomm] * 3
    assert [each.info.Get("hint") for each in (dup, other, informed)] == ["yes", "yes", "no"]
    assert inter.Get_attr(MPI.TAG_UB) == MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    for each in (dup, other, informed):
        each.Free()
    MPI.Comm.Free_keyval(keyval)


@over_groups
def test_error_handlers(inter: Any, mine: list[int], theirs: list[int]) -> None:
    seen = []
    handler = MPI.Intercomm.Create_errhandler(lambda comm, code: seen.append((type(comm), MPI.Get_error_class(code))))
    inter.Set_errhandler(handler)
    for wrong in (lambda: inter.Send([None, 0, MPI.BYTE], inter.remote_size), lambda: inter.Bcast(np.zeros(1), inter.remote_size)):
        with pytest.raises(MPI.Exception):
            wrong()
    assert seen == [(MPI.Intercomm, MPI.ERR_RANK), (MPI.Intercomm, MPI.ERR_ROOT)]
    assert inter.Get_errhandler() == handler
    inter.Set_errhandler(MPI.ERRORS_RETURN)


# Making them ------------------------------------------------------------------------------------------------------


@over_groups
def test_dup_keeps_messages_apart(inter: Any, mine: list[int], theirs: list[int]) -> None:
    dup = inter.Dup()
    assert dup != inter and (dup.rank, dup.size, dup.remote_size) == (inter.rank, inter.size, inter.remote_size)
    requests = [each.isend((each is dup, mine[inter.rank]), to) for each in (inter, dup) for to in range(inter.remote_size)]
    for each in (dup, inter):
        assert [each.recv(source=rank) for rank in range(each.remote_size)] == [(each is dup, world) for world in theirs]
    MPI.Request.Waitall(requests)
    dup.Disconnect()
    assert dup == MPI.COMM_NULL


@over_groups
def test_split_and_create(inter: Any, mine: list[int], theirs: list[int]) -> None:
    most = min(len(mine), len(theirs))
    paired = inter.Split(inter.rank, 0)
    assert type(paired) is MPI.Intercomm and (paired != MPI.COMM_NULL) == (inter.rank < most)
    if paired:
        assert (paired.size, paired.rank, paired.remote_size) == (1, 0, 1)
        assert paired.allgather(mine[inter.rank]) == [theirs[inter.rank]]
        paired.Free()
    assert inter.Split(MPI.UNDEFINED) == MPI.COMM_NULL and type(inter.Split(int(mine < theirs))) is MPI.Intercomm
    last_first = inter.Create(inter.group.Incl(list(reversed(range(most)))))
    assert (last_first != MPI.COMM_NULL) == (inter.rank < most)
    if last_first:
        assert last_first.allgather(mine[inter.rank]) == theirs[:most][::-1]
        last_first.Free()
    assert inter.Create(MPI.GROUP_EMPTY if mine < theirs else inter.group) == MPI.COMM_NULL
    with pytest.raises(MPI.Exception) as raised:
        inter.Create(inter.remote_group)
    assert raised.value.Get_error_class() == MPI.ERR_GROUP


@over_groups
def test_merge(inter: Any, mine: list[int], theirs: list[int]) -> None:
    is_first = min(mine) < min(theirs)
    for low_is_high, high_is_high in itertools.product((False, True), repeat=2):
        merged = inter.Merge(low_is_high if is_first else high_is_high)
        low, high = (mine, theirs) if is_first else (theirs, mine)
        expected = high + low if (low_is_high, high_is_high) == (True, False) else low + high
        assert type(merged) is MPI.Intracomm and merged.allgather(MPI.COMM_WORLD.rank) == expected
        merged.Free()


@pytest.mark.ranks(3)
def test_merge_of_those_who_disagree(comm: Any) -> None:
    with between(comm, [0], [1, 2]) as inter:
        with pytest.raises(MPI.Exception, match="do not all pass the same value of high") as raised:
            inter.Merge(comm.rank == 2)
        assert raised.value.Get_error_class() == MPI.ERR_ARG
        inter.Barrier()


@pytest.mark.ranks(2, 3, 5)
def test_create_from_groups(comm: Any) -> None:
    world = comm.Get_group()
    for low, high in groups_of(comm.size):
        mine, theirs = (low, high) if comm.rank in low else (high, low)
        local, remote = world.Incl(mine), world.Incl(theirs)
        handler = MPI.Comm.Create_errhandler(lambda comm, code: None)
        inter = MPI.Intercomm.Create_from_groups(
            local, len(mine) - 1, remote, len(theirs) - 1, "one" if comm.rank % 2 else b"one", errhandler=handler
        )
        assert type(inter) is MPI.Intercomm and (inter != MPI.COMM_NULL) == (comm.rank in mine)
        if inter:
            assert inter.Get_errhandler() == handler
            assert inter.allgather(comm.rank) == theirs and (inter.rank, inter.size) == (mine.index(comm.rank), len(mine))
            inter.Free()
        comm.Barrier()


@pytest.mark.ranks(3)
def test_wrong_groups(comm: Any) -> None:
    world = comm.Get_group()
    cases = [
        (MPI.ERR_GROUP, lambda: MPI.Intercomm.Create_from_groups(world, 0, world.Incl([0]), 0)),
        (MPI.ERR_RANK, lambda: MPI.Intercomm.Create_from_groups(world.Incl([0]), 1, world.Incl([1]), 0)),
        (MPI.ERR_RANK, lambda: MPI.Intercomm.Create_from_groups(world.Incl([0]), 0, world.Incl([1]), -1)),
        (MPI.ERR_ARG, lambda: MPI.Intercomm.Create_from_groups(world.Incl([0]), 0, world.Incl([1, 2]), 0, "x" * 1000)),
        (MPI.ERR_RANK, lambda: comm.Create_intercomm(3, comm, 0)),
        (MPI.ERR_TAG, lambda: MPI.COMM_SELF.Create_intercomm(0, comm, 0, tag=-1)),
        (MPI.ERR_RANK, lambda: MPI.COMM_SELF.Create_intercomm(0, comm, 3)),
        (MPI.ERR_COMM, lambda: MPI.COMM_SELF.Create_intercomm(0, MPI.COMM_NULL, 0)),
        (MPI.ERR_COMM, lambda: MPI.COMM_SELF.Create_intercomm(0, comm, comm.rank)),
    ]
    for expected, call in cases:
        if comm.rank == 0 or expected != MPI.ERR_ARG:
            with pytest.raises(MPI.Exception) as raised:
                call()
            assert raised.value.Get_error_class() == expected


@pytest.mark.ranks(3)
def test_what_goes_wrong_at_a_leader_is_raised_on_all_of_its_group(comm: Any) -> None:
    with pytest.raises(MPI.Exception) as raised:
        comm.Create_intercomm(1, comm if comm.rank == 1 else MPI.COMM_NULL, 17)
    assert raised.value.Get_error_class() == MPI.ERR_RANK
    assert ("17" in str(raised.value)) == (comm.rank == 1) and ("rank 1" in str(raised.value))
    comm.Barrier()


@pytest.mark.ranks(3)
def test_hidden_communicators(comm: Any) -> None:
    with between(comm, [1, 2], [0]) as inter:
        dup, tag, local, is_low = MPI._commctx_inter(inter)
        assert (type(dup), type(local), tag) == (MPI.Intercomm, MPI.Intracomm, 0)
        assert dup.Compare(inter) == MPI.CONGRUENT and local.group.Compare(inter.group) == MPI.IDENT
        assert is_low == (comm.rank == 0) and MPI._commctx_inter(inter)[0] == dup
        with pytest.raises(MPI.Exception):
            MPI._commctx_inter(comm)


# Messages ---------------------------------------------------------------------------------------------------------


@over_groups
def test_messages_of_all_kinds(inter: Any, mine: list[int], theirs: list[int]) -> None:
    me, peers, status = mine[inter.rank], range(inter.remote_size), MPI.Status()
    for length, mode in itertools.product((0, 3, 100_000), ("send", "ssend", "bsend")):
        MPI.Attach_buffer(bytearray(8 * 100_000 * 8 + 10_000))
        got = np.full((inter.remote_size, length), -1.0)
        receives = [inter.Irecv(got[rank], rank, 3) for rank in peers]
        sends = [getattr(inter, f"I{mode}")(values(me, length), rank, 3) for rank in peers]
        MPI.Request.Waitall(receives + sends)
        MPI.Detach_buffer()
        np.testing.assert_array_equal(got, [values(world, length) for world in theirs])
    requests = [inter.isend({"from": me}, rank, tag=inter.rank) for rank in peers]
    for _ in peers:
        assert inter.probe(status=status)
        assert inter.recv(source=status.source, tag=status.tag, status=status) == {"from": theirs[status.source]}
        assert status.tag == status.source
    MPI.Request.waitall(requests)
    inter.Barrier()
    assert inter.sendrecv(me, 0, source=MPI.PROC_NULL) is None
    for rank in peers:
        if inter.rank == 0:
            assert inter.recv(source=rank) == theirs[rank]


@over_groups
def test_persistent_matched_and_partitioned_messages(inter: Any, mine: list[int], theirs: list[int]) -> None:
    me, peers = mine[inter.rank], range(inter.remote_size)
    got = np.full((inter.remote_size, 4), -1.0)
    requests = [inter.Recv_init(got[rank], rank, 9) for rank in peers] + [inter.Send_init(values(me, 4), rank, 9) for rank in peers]
    for _ in range(3):
        got[:] = -1
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        np.testing.assert_array_equal(got, [values(world, 4) for world in theirs])
    sends = [inter.isend(values(me, 50_000), rank) for rank in peers]
    for rank in peers:
        np.testing.assert_array_equal(inter.mprobe(rank).recv(), values(theirs[rank], 50_000))
    MPI.Request.waitall(sends)
    parts = np.full((inter.remote_size, 6), -1.0)
    receives = [inter.Precv_init(parts[rank], 3, rank, 1) for rank in peers]
    sends = [inter.Psend_init(values(me, 6), 2, rank, 1) for rank in peers]
    MPI.Prequest.Startall(receives + sends)
    for request in sends:
        request.Pready_list([1, 0])
    MPI.Request.Waitall(receives + sends)
    np.testing.assert_array_equal(parts, [values(world, 6) for world in theirs])


# Collectives on buffers -------------------------------------------------------------------------------------------


@over_groups
def test_barrier(inter: Any, mine: list[int], theirs: list[int]) -> None:
    for flavour in FLAVOURS:
        flavour(inter, "Barrier")


@over_groups
def test_bcast(inter: Any, mine: list[int], theirs: list[int]) -> None:
    for length, flavour in itertools.product((*LENGTHS, 100_000), FLAVOURS):
        for world, root in roots(inter, mine, theirs):
            given = values(world, length)
            buffer = given.copy() if root == MPI.ROOT else np.full(length, -1.0)
            flavour(inter, "Bcast", buffer if root != MPI.PROC_NULL else None, root)
            np.testing.assert_array_equal(buffer, given if root != MPI.PROC_NULL else np.full(length, -1.0))


@over_groups
def test_gather_and_scatter(inter: Any, mine: list[int], theirs: list[int]) -> None:
    me = mine[inter.rank]
    for length, flavour in itertools.product(LENGTHS, FLAVOURS):
        for world, root in roots(inter, mine, theirs):
            if root == MPI.ROOT:
                table = np.full((inter.remote_size, length), -1.0)
                flavour(inter, "Gather", None, table, root)
                np.testing.assert_array_equal(table, [values(each, length, world) for each in theirs])
                flavour(inter, "Scatter", np.array([values(each, length, world) for each in theirs]), None, root)
            elif root == MPI.PROC_NULL:
                flavour(inter, "Gather", None, None, root)
                flavour(inter, "Scatter", None, None, root)
            else:
                flavour(inter, "Gather", values(me, length, world), None, root)
                got = np.full(length, -1.0)
                flavour(inter, "Scatter", None, got, root)
                np.testing.assert_array_equal(got, values(me, length, world))


@over_groups
def test_gatherv_and_scatterv(inter: Any, mine: list[int], theirs: list[int]) -> None:
    counts = list(range(inter.remote_size))
    flat = np.concatenate([values(world, rank) for rank, world in enumerate(theirs)])
    for flavour in FLAVOURS:
        for _, root in roots(inter, mine, theirs):
            if root == MPI.ROOT:
                table = np.full(len(flat), -1.0)
                flavour(inter, "Gatherv", None, [table, counts], root)
                np.testing.assert_array_equal(table, flat)
                flavour(inter, "Scatterv", [flat, counts], None, root)
            elif root == MPI.PROC_NULL:
                flavour(inter, "Gatherv", None, None, root)
                flavour(inter, "Scatterv", None, None, root)
            else:
                flavour(inter, "Gatherv", values(mine[inter.rank], inter.rank), None, root)
                got = np.full(inter.rank, -1.0)
                flavour(inter, "Scatterv", None, got, root)
                np.testing.assert_array_equal(got, values(mine[inter.rank], inter.rank))


@over_groups
def test_allgather(inter: Any, mine: list[int], theirs: list[int]) -> None:
    for length, flavour in itertools.product(LENGTHS, FLAVOURS):
        is_low = min(mine) < min(theirs)  # the groups give blocks of different length
        give, take = (length, 2 * length + 1) if is_low else (2 * length + 1, length)
        table = np.full((inter.remote_size, take), -1.0)
        flavour(inter, "Allgather", values(mine[inter.rank], give), table)
        np.testing.assert_array_equal(table, [values(world, take) for world in theirs])
        counts = list(range(inter.remote_size))
        flat = np.full(sum(counts), -1.0)
        flavour(inter, "Allgatherv", values(mine[inter.rank], inter.rank), [flat, counts])
        np.testing.assert_array_equal(flat, np.concatenate([values(world, rank) for rank, world in enumerate(theirs)]))


@over_groups
def test_alltoall(inter: Any, mine: list[int], theirs: list[int]) -> None:
    me, here, there = mine[inter.rank], inter.size, inter.remote_size
    for length, flavour in itertools.product(LENGTHS, FLAVOURS):
        got = np.full((there, length), -1.0)
        flavour(inter, "Alltoall", np.array([values(me, length, world) for world in theirs]).reshape(there, length), got)
        np.testing.assert_array_equal(got, [values(world, length, me) for world in theirs])
    for flavour in FLAVOURS:  # from rank i of one group to rank j of the other i + 2 * j elements, and i * j back
        gives, takes = ([inter.rank + 2 * rank for rank in range(there)], [inter.rank * rank for rank in range(there)])
        if mine > theirs:
            gives, takes = [inter.rank * rank for rank in range(there)], [rank + 2 * inter.rank for rank in range(there)]
        sent = np.concatenate([values(me, count, world) for count, world in zip(gives, theirs, strict=True)])
        expected = np.concatenate([values(world, count, me) for count, world in zip(takes, theirs, strict=True)])
        got = np.full(len(expected), -1.0)
        flavour(inter, "Alltoallv", [sent, gives], [got, takes])
        np.testing.assert_array_equal(got, expected)
        got[:] = -1
        at = [8 * sum(takes[:rank]) for rank in range(there)]
        flavour(
            inter, "Alltoallw", [sent, (gives, [8 * sum(gives[:rank]) for rank in range(there)]), [MPI.DOUBLE] * there],
            [got, (takes, at), [MPI.DOUBLE] * there],
        )  # fmt: skip
        np.testing.assert_array_equal(got, expected)
    assert here == len(mine)


@over_groups
def test_reductions(inter: Any, mine: list[int], theirs: list[int]) -> None:
    me = mine[inter.rank]
    for length, flavour in itertools.product((*LENGTHS, 20_000), FLAVOURS):
        sums = np.sum([values(world, length) for world in theirs], axis=0)
        got = np.full(length, -1.0)
        flavour(inter, "Allreduce", values(me, length), got, op=MPI.SUM)
        np.testing.assert_array_equal(got, sums)
        for _, root in roots(inter, mine, theirs):
            got = np.full(length, -1.0)
            if root == MPI.ROOT:
                flavour(inter, "Reduce", None, got, op=MPI.SUM, root=root)
                np.testing.assert_array_equal(got, sums)
            else:
                flavour(inter, "Reduce", None if root == MPI.PROC_NULL else values(me, length), None, op=MPI.SUM, root=root)


@over_groups
def test_reduce_scatter(inter: Any, mine: list[int], theirs: list[int]) -> None:
    me = mine[inter.rank]
    for length, flavour in itertools.product((0, 1, 3, 500), FLAVOURS):
        total = length * len(mine) * len(theirs)
        block = total // len(mine)
        got, sums = np.full(block, -1.0), np.sum([values(world, total) for world in theirs], axis=0)
        flavour(inter, "Reduce_scatter_block", values(me, total), got, op=MPI.SUM)
        np.testing.assert_array_equal(got, sums[block * inter.rank :][:block])
        counts = [0] * (len(mine) - 1) + [total]  # all to the last one of one group, as equal as it goes in the other
        if mine < theirs:
            counts = [total // len(mine) + (rank < total % len(mine)) for rank in range(len(mine))]
        first = sum(counts[: inter.rank])
        for given in (counts, None):
            got = np.full(counts[inter.rank], -1.0)
            flavour(inter, "Reduce_scatter", values(me, total), got, given if mine < theirs else counts, op=MPI.SUM)
            np.testing.assert_array_equal(got, sums[first : first + len(got)])


@over_groups
def test_order_of_operands_that_do_not_commute(inter: Any, mine: list[int], theirs: list[int]) -> None:
    def first_then_second(low: Any, high: Any, datatype: Any) -> None:
        """Compose maps x -> a * x + b, modulo a prime."""
        left, right = np.frombuffer(low, dtype=np.int64).reshape(-1, 2), np.frombuffer(high, dtype=np.int64).reshape(-1, 2)
        right[:] = np.stack([left[:, 0] * right[:, 0], left[:, 1] * right[:, 0] + right[:, 1]], axis=1) % 10_007

    op, pair = MPI.Op.Create(first_then_second, commute=False), MPI.INT64_T.Create_contiguous(2).Commit()
    maps = {world: np.array([[world + 2, 7 * world + at] for at in range(10)], dtype=np.int64) for world in mine + theirs}
    expected = maps[theirs[0]].copy()
    for world in theirs[1:]:
        combined = maps[world].copy()
        first_then_second(expected, combined, None)
        expected = combined
    got = np.zeros((10, 2), dtype=np.int64)
    inter.Allreduce([maps[mine[inter.rank]], pair], [got, pair], op)
    np.testing.assert_array_equal(got, expected)
    pair.Free()
    op.Free()


@over_groups
def test_derived_types(inter: Any, mine: list[int], theirs: list[int]) -> None:
    every_other = MPI.DOUBLE.Create_vector(4, 1, 2).Create_resized(0, 8 * 8).Commit()
    sent = np.full(8, -5.0)
    sent[::2] = values(mine[inter.rank], 4)
    for flavour in FLAVOURS:
        got = np.full((inter.remote_size, 8), -1.0)
        flavour(inter, "Allgather", [sent, 1, every_other], [got, 1, every_other])
        np.testing.assert_array_equal(got[:, ::2], [values(world, 4) for world in theirs])
        assert (got[:, 1::2] == -1).all()
        for world, root in roots(inter, mine, theirs):
            buffer = np.full(8, -1.0)
            buffer[::2] = values(world, 4) if root == MPI.ROOT else -2
            flavour(inter, "Bcast", [buffer, 1, every_other] if root != MPI.PROC_NULL else None, root)
            np.testing.assert_array_equal(buffer[::2], np.full(4, -2) if root == MPI.PROC_NULL else values(world, 4))
            assert (buffer[1::2] == -1).all()
    every_other.Free()


@over_groups
def test_what_is_refused(inter: Any, mine: list[int], theirs: list[int]) -> None:
    one = np.zeros(inter.size * inter.remote_size)
    for call in (
        lambda: inter.Allgather(MPI.IN_PLACE, one),
        lambda: inter.Iallgatherv(MPI.IN_PLACE, one),
        lambda: inter.Alltoall(MPI.IN_PLACE, one),
        lambda: inter.Alltoallv_init(MPI.IN_PLACE, one),
        lambda: inter.Allreduce(MPI.IN_PLACE, one),
        lambda: inter.Allreduce(one, None),
        lambda: inter.Reduce_scatter_block(MPI.IN_PLACE, one),
        lambda: inter.Reduce_scatter(MPI.IN_PLACE, one),
        lambda: inter.Reduce(MPI.IN_PLACE, None, root=0),
        lambda: inter.Gather(MPI.IN_PLACE, None, root=0),
        lambda: inter.Scatter(None, MPI.IN_PLACE, root=0),
    ):
        with pytest.raises(MPI.Exception, match="IN_PLACE") as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_BUFFER
    for root in (-17, inter.remote_size):
        with pytest.raises(MPI.Exception, match="MPI.ROOT") as raised:
            inter.Bcast(one, root)
        assert raised.value.Get_error_class() == MPI.ERR_ROOT
    for name in ("Scan", "Exscan", "scan", "exscan", "Create_cart", "Create_group"):
        assert not hasattr(inter, name)
    with pytest.raises(TypeError):
        MPI.Win.Create(one, comm=inter)
    for dest in (inter.remote_size, -5):
        with pytest.raises(MPI.Exception, match="remote group") as raised:
            inter.send(0, dest)
        assert raised.value.Get_error_class() == MPI.ERR_RANK
    inter.Barrier()


@over_groups
def test_several_under_way(inter: Any, mine: list[int], theirs: list[int]) -> None:
    me = mine[inter.rank]
    tables, sums = [np.full((inter.remote_size, 5), -1.0) for _ in range(4)], [np.full(7, -1.0) for _ in range(4)]
    requests = []
    for turn in range(4):
        requests += [inter.Iallgather(values(me, 5, turn), tables[turn]), inter.Iallreduce(values(me, 7, turn), sums[turn])]
    requests.append(inter.Ibarrier())
    inter.Barrier()
    MPI.Request.Waitall(requests[::-1])
    for turn in range(4):
        np.testing.assert_array_equal(tables[turn], [values(world, 5, turn) for world in theirs])
        np.testing.assert_array_equal(sums[turn], np.sum([values(world, 7, turn) for world in theirs], axis=0))


@over_groups
def test_threads_on_duplicates(inter: Any, mine: list[int], theirs: list[int]) -> None:
    dups, failures = [inter.Dup() for _ in range(3)], []

    def work(comm: Any, salt: int) -> None:
        try:
            for turn in range(20):
                got = np.full(4, -1.0)
                comm.Allreduce(values(mine[inter.rank], 4, salt + turn), got)
                np.testing.assert_array_equal(got, np.sum([values(world, 4, salt + turn) for world in theirs], axis=0))
                assert comm.allgather((salt, turn, inter.rank)) == [(salt, turn, rank) for rank in range(comm.remote_size)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(dup, salt)) for salt, dup in enumerate(dups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for dup in dups:
        dup.Free()


# Collectives on objects -------------------------------------------------------------------------------------------


@over_groups
def test_objects(inter: Any, mine: list[int], theirs: list[int]) -> None:
    me = mine[inter.rank]
    for world, root in roots(inter, mine, theirs):
        found = inter.bcast({"root": world, "data": "x" * 10_000} if root == MPI.ROOT else None, root)
        assert found == ({"root": world, "data": "x" * 10_000} if root >= 0 else None)
        gathered = inter.gather((me, world), root)
        assert gathered == ([(each, world) for each in theirs] if root == MPI.ROOT else None)
        scattered = inter.scatter([(each, world) for each in theirs] if root == MPI.ROOT else None, root)
        assert scattered == ((me, world) if root >= 0 else None)
        for op in (MPI.SUM, lambda low, high: low + high):
            assert inter.reduce([me], op, root) == (theirs if root == MPI.ROOT else None)
    assert inter.allgather((me, "x" * me)) == [(world, "x" * world) for world in theirs]
    assert inter.alltoall([(me, world) for world in theirs]) == [(world, me) for world in theirs]
    assert inter.allreduce([me], MPI.SUM) == theirs and inter.allreduce(me, MPI.MAX) == max(theirs)
    inter.barrier()
    with pytest.raises(ValueError, match="expecting"):
        inter.alltoall([0] * (inter.remote_size + 1))
    with pytest.raises(MPI.Exception) as raised:
        inter.bcast(0, inter.remote_size)
    assert raised.value.Get_error_class() == MPI.ERR_ROOT


# Nodes, failures --------------------------------------------------------------------------------------------------


@pytest.mark.ranks(5, topology="vnode:2")
def test_across_nodes(comm: Any) -> None:
    for low, high in groups_of(5):
        with between(comm, low, high) as inter:
            if inter is None:
                continue
            mine, theirs = (low, high) if comm.rank in low else (high, low)
            got = np.full(20_000, -1.0)
            inter.Allreduce(values(comm.rank, 20_000), got)
            np.testing.assert_array_equal(got, np.sum([values(world, 20_000) for world in theirs], axis=0))
            assert inter.allgather(comm.rank) == theirs
            merged = inter.Merge(mine > theirs)
            assert merged.allreduce(comm.rank) == sum(mine + theirs)
            merged.Free()


@pytest.mark.once  # who waits hears of it when the others end
@pytest.mark.ranks(3)
def test_ranks_that_disagree_hear_of_it(comm: Any) -> None:
    with between(comm, [0], [1, 2]) as inter:
        dup = inter.Dup()
        with pytest.raises(MPI.Exception) as raised:
            dup.Allgather(np.zeros(1 if comm.rank else 2), np.zeros((dup.remote_size, 1)))
            dup.Barrier()
        assert raised.value.Get_error_class() in (MPI.ERR_TRUNCATE, MPI.ERR_OTHER, MPI.ERR_PROC_FAILED)
