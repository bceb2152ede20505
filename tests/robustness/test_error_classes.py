"""Each kind of wrong epoch, wrong view and wrong group has the MPI error class of its kind, and leaves things as they were."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

ONE, ROOM = np.ones(1, np.int64), np.zeros(1, np.int64)


def name_of(call: Callable[..., Any], *arguments: Any) -> str:
    """Name of the class of the error that a call raises; '' if it raises none."""
    try:
        call(*arguments)
    except MPI.Exception as error:
        code = error.Get_error_class()
        return next(name for name, value in vars(MPI).items() if name.startswith("ERR_") and value == code)
    return ""


OUTSIDE = {
    "Put": lambda win, peer: win.Put(ONE, peer),
    "Get": lambda win, peer: win.Get(ROOM, peer),
    "Accumulate": lambda win, peer: win.Accumulate(ONE, peer),
    "Get_accumulate": lambda win, peer: win.Get_accumulate(ONE, ROOM, peer),
    "Fetch_and_op": lambda win, peer: win.Fetch_and_op(ONE, ROOM, peer),
    "Compare_and_swap": lambda win, peer: win.Compare_and_swap(ONE, ONE, ROOM, peer),
    "Rput": lambda win, peer: win.Rput(ONE, peer),
    "Rget": lambda win, peer: win.Rget(ROOM, peer),
    "Raccumulate": lambda win, peer: win.Raccumulate(ONE, peer),
    "Rget_accumulate": lambda win, peer: win.Rget_accumulate(ONE, ROOM, peer),
}
"""Accesses, which need an epoch."""
UNBEGUN = {
    "Unlock": lambda win, peer: win.Unlock(peer),
    "Unlock_all": lambda win, _: win.Unlock_all(),
    "Flush": lambda win, peer: win.Flush(peer),
    "Flush_all": lambda win, _: win.Flush_all(),
    "Flush_local": lambda win, peer: win.Flush_local(peer),
    "Flush_local_all": lambda win, _: win.Flush_local_all(),
    "Complete": lambda win, _: win.Complete(),
    "Wait": lambda win, _: win.Wait(),
    "Test": lambda win, _: win.Test(),
}
"""Ends of epochs that nobody began."""


@pytest.mark.ranks(2)
def test_wrong_epochs(comm: Any) -> None:
    win, peer = MPI.Win.Allocate(64, 8, comm=comm), 1 - comm.rank
    for name, call in (OUTSIDE | UNBEGUN).items():
        assert name_of(call, win, peer) == "ERR_RMA_SYNC", name
    win.Lock(peer, MPI.LOCK_SHARED)
    for again in (lambda: win.Lock(peer), win.Lock_all, win.Unlock_all, lambda: win.Unlock(comm.rank), win.Free):
        assert name_of(again) == "ERR_RMA_SYNC"
    for name, call in OUTSIDE.items():  # the other target is not locked
        assert name_of(call, win, comm.rank) == "ERR_RMA_SYNC", name
    win.Unlock(peer)
    win.Lock_all()
    for again in (lambda: win.Lock(peer), win.Lock_all, lambda: win.Unlock(peer), win.Free):
        assert name_of(again) == "ERR_RMA_SYNC"
    win.Unlock_all()
    group = comm.Get_group().Incl([peer])
    win.Post(group)
    win.Start(group)
    for again in (lambda: win.Post(group), lambda: win.Start(group), lambda: win.Put(ONE, comm.rank), win.Free):
        assert name_of(again) == "ERR_RMA_SYNC"
    win.Complete()
    assert name_of(win.Complete) == "ERR_RMA_SYNC"
    win.Wait()
    assert name_of(win.Wait) == "ERR_RMA_SYNC"
    win.Fence()
    win.Put(ONE, peer)
    win.Fence(MPI.MODE_NOSUCCEED)
    for name, call in OUTSIDE.items():
        assert name_of(call, win, peer) == "ERR_RMA_SYNC", name
    assert np.frombuffer(win.tomemory(), np.int64)[0] == 1
    win.Free()


@pytest.mark.ranks(2)
def test_wrong_arguments_of_epochs(comm: Any) -> None:
    win, peer = MPI.Win.Allocate(64, 8, comm=comm), 1 - comm.rank
    own = MPI.Win.Allocate(64, 8)
    stranger = comm.Get_group().Incl([peer])
    for expected, call in (
        ("ERR_LOCKTYPE", lambda: win.Lock(peer, 7)),
        ("ERR_ASSERT", lambda: win.Lock(peer, MPI.LOCK_SHARED, 1 << 28)),
        ("ERR_ASSERT", lambda: win.Lock_all(1 << 28)),
        ("ERR_ASSERT", lambda: win.Fence(1 << 28)),
        ("ERR_ASSERT", lambda: win.Post(stranger, 1 << 28)),
        ("ERR_RANK", lambda: win.Lock(2)),
        ("ERR_RANK", lambda: win.Unlock(-3)),
        ("ERR_RANK", lambda: win.Flush(2)),
        ("ERR_RANK", lambda: win.Put(ONE, 2)),
        ("ERR_GROUP", lambda: own.Start(stranger)),
        ("ERR_GROUP", lambda: own.Post(stranger)),
        ("ERR_GROUP", lambda: win.Start(MPI.GROUP_NULL)),
        ("ERR_WIN", lambda: MPI.WIN_NULL.Lock(0)),
        ("ERR_WIN", MPI.WIN_NULL.Fence),
        ("ERR_DISP", lambda: MPI.Win.Allocate(8, 0)),
        ("ERR_SIZE", lambda: MPI.Win.Allocate(-8, 1)),
    ):
        assert name_of(call) == expected
    win.Lock(peer)
    for expected, call in (
        ("ERR_RMA_RANGE", lambda: win.Put(ONE, peer, 8)),
        ("ERR_RMA_RANGE", lambda: win.Get(ROOM, peer, -1)),
        ("ERR_RMA_RANGE", lambda: win.Fetch_and_op(ONE, ROOM, peer, 1 << 62)),
        ("ERR_TRUNCATE", lambda: win.Put(ONE, peer, [0, 2])),
        ("ERR_COUNT", lambda: win.Put(ONE, peer, [0, -1])),
        ("ERR_TYPE", lambda: win.Put(ONE, peer, [0, 1, MPI.DATATYPE_NULL])),
        ("ERR_TYPE", lambda: win.Accumulate(ONE, peer, [0, 1, MPI.DOUBLE])),
        ("ERR_OP", lambda: win.Accumulate(ONE, peer, op=MPI.OP_NULL)),
        ("ERR_OP", lambda: win.Accumulate(ONE, peer, op=MPI.MAXLOC)),
    ):
        assert name_of(call) == expected
    win.Unlock(peer)
    comm.Barrier()
    assert not np.frombuffer(win.tomemory(), np.int64).any()
    own.Free()
    win.Free()


def test_wrong_views() -> None:
    vector, backwards = MPI.INT.Create_vector(2, 1, 2), MPI.INT.Create_hindexed_block(1, [8, 0]).Commit()
    before, overlapping = MPI.INT.Create_hindexed_block(1, [-4]).Commit(), MPI.INT.Create_hindexed_block(1, [0, 2]).Commit()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "f")
        file = MPI.File.Open(MPI.COMM_SELF, path, MPI.MODE_RDWR | MPI.MODE_CREATE)
        for expected, arguments in (
            ("ERR_ARG", (-1,)),
            ("ERR_ARG", (MPI.DISPLACEMENT_CURRENT,)),
            ("ERR_ARG", (0, MPI.INT, MPI.SHORT)),
            ("ERR_TYPE", (0, MPI.DATATYPE_NULL)),
            ("ERR_TYPE", (0, MPI.INT, MPI.DATATYPE_NULL)),
            ("ERR_TYPE", (0, MPI.INT, vector)),
            ("ERR_TYPE", (0, MPI.INT, backwards)),
            ("ERR_TYPE", (0, MPI.INT, before)),
            ("ERR_TYPE", (0, MPI.INT, overlapping)),
            ("ERR_UNSUPPORTED_DATAREP", (0, MPI.INT, MPI.INT, "of nobody")),
        ):
            assert name_of(file.Set_view, *arguments) == expected, arguments
        assert file.Get_view()[:2] == (0, MPI.BYTE)
        file.Set_view(0, MPI.INT)
        assert name_of(file.Write, np.zeros(3, np.int8)) == "ERR_IO"  # no whole number of elements
        assert file.Get_size() == 0
        file.Close()
        assert name_of(file.Set_view) == "ERR_FILE"


@pytest.mark.ranks(2)
def test_wrong_groups(comm: Any) -> None:
    world, own = comm.Get_group(), MPI.COMM_SELF.Get_group()
    freed = world.Dup()
    freed.Free()
    for expected, call in (
        ("ERR_RANK", lambda: world.Incl([0, 2])),
        ("ERR_RANK", lambda: world.Incl([-1])),
        ("ERR_RANK", lambda: world.Incl([1, 1])),
        ("ERR_RANK", lambda: world.Excl([2])),
        ("ERR_RANK", lambda: world.Excl([0, 0])),
        ("ERR_ARG", lambda: world.Range_incl([(0, 1, 0)])),
        ("ERR_RANK", lambda: world.Range_incl([(0, 2, 1)])),
        ("ERR_RANK", lambda: world.Translate_ranks([2], own)),
        ("ERR_GROUP", lambda: world.Translate_ranks([0], MPI.GROUP_NULL)),
        ("ERR_GROUP", lambda: freed.Get_size()),
        ("ERR_GROUP", lambda: MPI.GROUP_NULL.Incl([0])),
        ("ERR_GROUP", lambda: MPI.Group.Union(world, MPI.GROUP_NULL)),
        ("ERR_GROUP", lambda: comm.Create(MPI.GROUP_NULL)),
        ("ERR_GROUP", lambda: comm.Create_group(MPI.GROUP_NULL)),
        ("ERR_GROUP", lambda: MPI.COMM_SELF.Create(world)),
        ("ERR_GROUP", lambda: MPI.COMM_SELF.Create_group(world)),
        ("ERR_GROUP", lambda: MPI.Intracomm.Create_from_group(MPI.GROUP_NULL)),
    ):
        assert name_of(call) == expected
    comm.Barrier()
