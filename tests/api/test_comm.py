"""Communicators: making, comparing, freeing them; names, hints, attributes, error handlers; what handles are."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime
from ncclx_mpi.api import communicator
from transports.shm.layout import SLOTS


@pytest.mark.ranks(1, 2, 3)
def test_world_and_self(comm: Any) -> None:
    assert comm == MPI.COMM_WORLD and comm is not None
    assert MPI.COMM_SELF.size == 1 and MPI.COMM_SELF.rank == 0
    assert 0 <= comm.rank < comm.size
    assert comm.Is_intra() and not comm.is_inter and comm.topology == MPI.UNDEFINED and not comm.is_topo
    assert (comm.name, MPI.COMM_SELF.name, MPI.COMM_NULL.name) == ("MPI_COMM_WORLD", "MPI_COMM_SELF", "MPI_COMM_NULL")


@pytest.mark.ranks(1, 2, 3)
def test_dup_is_another_message_space(comm: Any) -> None:
    dup = comm.Dup()
    assert dup != comm and comm.Compare(dup) == MPI.CONGRUENT and comm.Compare(MPI.Comm(comm)) == MPI.IDENT
    request = comm.irecv(source=comm.rank)
    dup.send("dup", dest=dup.rank)
    assert dup.recv(source=dup.rank) == "dup"
    assert not request.test()[0]
    comm.send("comm", dest=comm.rank)
    assert request.wait() == "comm"
    dup.Free()
    assert dup == MPI.COMM_NULL


@pytest.mark.ranks(1, 2, 3, 5)
def test_split(comm: Any) -> None:
    half = comm.Split(comm.rank % 2, -comm.rank)
    members = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2][::-1]
    assert half.size == len(members) and members[half.rank] == comm.rank
    assert half.allgather(comm.rank) == members
    half.Free()
    alone = comm.Split(MPI.UNDEFINED if comm.rank else 0)
    assert (alone == MPI.COMM_NULL) == (comm.rank > 0) and type(alone) is MPI.Intracomm
    alone.free()
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert tuple(node.allgather(comm.rank)) == runtime.engine().near
    node.Free()
    with pytest.raises(MPI.Exception, match="negative"):
        comm.Split(-5)


@pytest.mark.ranks(2, 3)
def test_a_split_of_one_color_has_the_order_of_the_keys(comm: Any) -> None:
    turned, found = comm.Split(7, -comm.rank), np.zeros(1, np.int64)
    assert turned.rank == comm.size - 1 - comm.rank and turned.Compare(comm) == MPI.SIMILAR
    turned.Allreduce(np.array([comm.rank]), found)
    assert found[0] == sum(range(comm.size)) and turned.allgather(comm.rank) == list(reversed(range(comm.size)))
    turned.Free()


@pytest.mark.ranks(2, 3, topology="machine")  # ranks of several nodes have no slot
def test_splits_leave_no_slot_behind(comm: Any) -> None:
    for turn in range(2 * SLOTS):
        made = comm.Split(comm.rank % 2 if turn % 2 else MPI.UNDEFINED if comm.rank == 0 else 1)
        assert made == MPI.COMM_NULL or made._state.native.slot >= 0 or made.size == 1
        made.free()
    made = comm.Split()
    assert made._state.native.slot >= 0
    made.Free()


@pytest.mark.ranks(2, 3, 4)
def test_create_and_create_group(comm: Any) -> None:
    group = comm.Get_group()
    first = group.Incl([comm.size - 1, 0])
    made = comm.Create(first)
    is_member = comm.rank in (0, comm.size - 1)
    assert bool(made) == is_member
    if is_member:
        assert made.allgather(comm.rank) == [comm.size - 1, 0]
        small = comm.Create_group(first, tag=7)
        assert small.bcast(comm.rank if small.rank == 0 else None) == comm.size - 1
        small.Free()
        made.Free()


@pytest.mark.ranks(2, 3)
def test_what_keeps_all_ranks_is_made_and_left_in_compiled_code(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("the general way was taken")

    if comm._state.native.slot < 0:
        pytest.skip("ranks of several nodes have no slot")
    monkeypatch.setattr(communicator, "lead", refuse)
    monkeypatch.setattr(communicator.CommState, "leave", refuse)
    group = comm.Get_group()
    for make in (comm.Dup, lambda: comm.Split(3, comm.rank), lambda: comm.Create_group(group, 5)):
        made, again = make(), make()
        assert made.Compare(comm) == MPI.CONGRUENT
        if comm.rank == 0:
            made.send("made", 1)
            again.send("again", 1)
        elif comm.rank == 1:
            assert again.recv(source=0) == "again"
            assert made.recv(source=0) == "made"
        assert made.allreduce(1) + again.allreduce(2) == 3 * comm.size
        again.Free()
        made.Free()
        with pytest.raises(MPI.Exception) as failure:
            MPI.Comm.Barrier(made)
        assert failure.value.Get_error_class() == MPI.ERR_COMM


@pytest.mark.ranks(2, 3, 5)
def test_splits_alike_are_made_in_compiled_code(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if comm._state.native.slot < 0:
        pytest.skip("ranks of several nodes have no slot")
    color, other = comm.rank % 2, comm.rank // 2
    comm.Split(color).Free()
    kept = [comm.Split(color)]
    with monkeypatch.context() as compiled:
        compiled.setattr(type(runtime.engine()), "new_comm", lambda *_: pytest.fail("the general way was taken"))
        kept += [comm.Split(color, comm.rank) for _ in range(3)]
    kept += [comm.Split(color, -comm.rank), comm.Split(other), comm.Split(color), comm.Split(color)]
    kept += [comm.Split(color if comm.rank else MPI.UNDEFINED), comm.Split(color), comm.Split(9)]
    for number, made in enumerate(kept):
        if not made:
            continue
        mine = [rank for rank in range(comm.size) if (rank // 2 == other if number == 5 else number == 10 or rank % 2 == color)]
        mine = mine[::-1] if number == 4 else mine[1:] if number == 8 and color == 0 else mine
        assert (made.size, made.rank) == (len(mine), mine.index(comm.rank)), number
        assert (made._state.native.slot >= 0) == (made.size > 1), number
        assert made.allgather((comm.rank, number)) == [(rank, number) for rank in mine]
        made.Isend(np.array([number]), (made.rank + 1) % made.size)
        found = np.zeros(1, np.int64)
        made.Recv(found, (made.rank - 1) % made.size)
        assert found[0] == number
    assert len({made._state.native.context for made in kept if made}) == len([made for made in kept if made])
    for made in kept:
        made.free()


@pytest.mark.ranks(2)
def test_freeing_is_not_held_up_by_a_message_of_another_communicator(comm: Any) -> None:
    made = comm.Dup()
    if comm.rank == 0:
        comm.send("waits", 1, tag=9)
    comm.Barrier()
    made.Free()
    if comm.rank == 1:
        assert comm.recv(source=0, tag=9) == "waits"


@pytest.mark.ranks(2)
def test_a_communicator_with_pending_collectives_is_left_when_they_are_complete(comm: Any) -> None:
    for _ in range(40):  # more than there are slots, were none returned
        made = comm.Dup()
        request = made.Ibarrier()
        made.Free()
        request.Wait()


@pytest.mark.ranks(1, 3)
def test_idup(comm: Any) -> None:
    dup, request = comm.Idup()
    request.Wait()
    assert comm.Compare(dup) == MPI.CONGRUENT and dup.allreduce(1) == comm.size
    dup.Free()


@pytest.mark.ranks(2)
def test_ten_thousand_dups(comm: Any) -> None:
    for _ in range(1_000):
        comm.Dup().Free()
    before = _resident_kilobytes()
    for _ in range(9_000):
        comm.Dup().Free()
    assert _resident_kilobytes() - before < 2_000
    many = [comm.Dup() for _ in range(200)]
    assert all(dup.allreduce(1) == comm.size for dup in many)
    for dup in reversed(many):
        dup.Free()


def _resident_kilobytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.once  # when the engine looks through what it keeps depends on what it kept before
@pytest.mark.ranks(2)
def test_a_communicator_goes_after_its_pending_receives(comm: Any) -> None:
    """Freed and forgotten while messages are still to come, its native block is there for them, and not for ever."""
    count = 50
    boxes, blocks = [np.zeros(4) for _ in range(count)], []
    if comm.rank == 0:
        for box in boxes:
            dup = comm.Dup()
            blocks.append(weakref.ref(dup._state.native))
            dup.Irecv(box, 1)
            dup.Free()
        del dup
        gc.collect()
        assert all(block() is not None for block in blocks)
        comm.Barrier()
        comm.recv(source=1)  # behind the other messages, so these have been received
        assert all((box == index).all() for index, box in enumerate(boxes))
        for index in range(200):
            comm.Issend(boxes[0], 0, index)  # forgotten as well: the engine looks through what it keeps
        assert all(block() is None for block in blocks)
    else:
        dups = [comm.Dup() for _ in boxes]
        comm.Barrier()
        for index, dup in enumerate(dups):
            dup.Send(np.full(4, float(index)), 0)
            dup.Free()
        comm.send(None, 0)


@pytest.mark.ranks(2)
def test_a_forgotten_idup_writes_into_nobody_elses_memory(comm: Any) -> None:
    if comm.rank == 1:
        comm.Idup()
        gc.collect()
        others = [np.full(2, 7) for _ in range(10_000)]
        comm.send("go", 0)
        comm.Barrier()
        assert all((other == 7).all() for other in others)
    else:
        comm.recv(source=1)
        dup, request = comm.Idup()
        request.Wait()
        comm.Barrier()
        dup.Free()


@pytest.mark.ranks(1, 2)
def test_freed_and_null_handles_raise(comm: Any) -> None:
    dup = comm.Dup()
    other = MPI.Intracomm(dup)
    dup.Free()
    for bad in (dup, other, MPI.COMM_NULL, MPI.Comm()):
        for call in (bad.Get_size, bad.Barrier, bad.Dup, bad.Free, lambda bad=bad: bad.send(1, 0), lambda bad=bad: bad.bcast(1)):
            with pytest.raises(MPI.Exception) as failure:
                call()
            assert failure.value.Get_error_class() == MPI.ERR_COMM
    with pytest.raises(MPI.Exception):
        MPI.COMM_WORLD.Free()
    MPI.COMM_WORLD.free()
    assert MPI.COMM_WORLD.size == comm.size
    handle = MPI.Comm(MPI.COMM_WORLD)
    handle.free()
    assert handle == MPI.COMM_NULL and MPI.COMM_WORLD


def _subclass() -> Any:
    class Mine(MPI.Intracomm):
        extra = 1

    return Mine


@pytest.mark.ranks(2)
def test_handles(comm: Any) -> None:
    assert MPI.Comm.fromhandle(comm.handle) == comm and MPI.COMM_NULL.handle == 0
    assert pickle.loads(pickle.dumps(MPI.COMM_WORLD)) is MPI.COMM_WORLD
    copied = copy.copy(MPI.Intracomm(MPI.COMM_WORLD))
    assert copied == comm and copied is not MPI.COMM_WORLD
    dup = comm.Dup()
    with pytest.raises(ValueError, match="cannot serialize"):
        pickle.dumps(dup)
    with pytest.raises(TypeError):
        hash(dup)
    with pytest.raises(TypeError):
        _ = dup < comm
    with pytest.raises(TypeError):
        MPI.Comm((1, 2))
    assert weakref.ref(dup)() is dup
    mine = _subclass()(dup)
    again = mine.Dup()
    assert type(again) is type(mine) and type(mine.Split()) is MPI.Intracomm
    again.Free()
    mine.Free()
    assert dup != MPI.COMM_NULL and MPI.Comm.f2py(comm.py2f()) == comm


@pytest.mark.ranks(1, 2)
def test_attributes(comm: Any) -> None:
    calls: list[Any] = []

    def on_copy(handle: Any, keyval: int, value: Any) -> Any:
        calls.append(("copy", keyval, value))
        return NotImplemented if value == "drop" else value + 1

    def on_delete(handle: Any, keyval: int, value: Any) -> None:
        calls.append(("delete", keyval, value))

    key = MPI.Comm.Create_keyval(on_copy, on_delete)
    dup = comm.Dup()
    assert dup.Get_attr(key) is None
    dup.Set_attr(key, 5)
    second = dup.Dup()
    assert second.Get_attr(key) == 6
    second.Free()
    dup.Set_attr(key, "drop")
    third = dup.Dup()
    assert third.Get_attr(key) is None
    third.Free()
    assert MPI.Comm.Free_keyval(key) == MPI.KEYVAL_INVALID
    assert dup.Get_attr(key) == "drop"
    dup.Free()
    kinds = [(kind, value) for kind, _, value in calls]
    assert kinds == [("copy", 5), ("delete", 6), ("delete", 5), ("copy", "drop"), ("delete", "drop")]
    assert comm.Get_attr(MPI.TAG_UB) >= 1 << 24 and comm.Get_attr(MPI.UNIVERSE_SIZE) == comm.size
    with pytest.raises(MPI.Exception):
        comm.Get_attr(key)


@pytest.mark.ranks(1)
def test_attribute_callback_that_raises(comm: Any) -> None:
    def on_copy(handle: Any, keyval: int, value: Any) -> Any:
        raise ZeroDivisionError

    key = MPI.Comm.Create_keyval(on_copy)
    dup = comm.Dup()
    dup.Set_attr(key, 1)
    with pytest.raises(MPI.Exception) as failure:
        dup.Dup()
    assert failure.value.Get_error_class() == MPI.ERR_OTHER
    dup.Free()
    MPI.Comm.Free_keyval(key)


@pytest.mark.ranks(1, 2)
def test_names_and_hints(comm: Any) -> None:
    dup = comm.Dup()
    dup.name = "halo"
    assert dup.Get_name() == "halo"
    info = MPI.Info.Create({"key": "value"})
    dup.Set_info(info)
    assert dup.info.Get("key") == "value" and dup.Dup_with_info(MPI.INFO_NULL).info.Get("key") is None
    dup.Free()


@pytest.mark.ranks(1)
def test_error_handlers(comm: Any) -> None:
    assert comm.Get_errhandler() == MPI.ERRORS_RETURN
    seen: list[int] = []
    dup = comm.Dup()
    handler = MPI.Comm.Create_errhandler(lambda handle, code: seen.append(MPI.Get_error_class(code)))
    dup.Set_errhandler(handler)
    with pytest.raises(MPI.Exception):
        dup.Send(b"x", 99)
    dup.Call_errhandler(MPI.ERR_TAG)
    assert seen == [MPI.ERR_RANK, MPI.ERR_TAG]
    dup.Free()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("method", ["Wait", "wait", "Test", "test", "Waitany", "waitall", "Testsome"])
def test_error_handlers_in_waits(comm: Any, method: str) -> None:
    """The handler of the communicator that a request came from is called, once; a copy of it has inherited the handler."""
    seen: list[tuple[str, int]] = []
    dup = comm.Dup()
    dup.Set_errhandler(MPI.Comm.Create_errhandler(lambda handle, code: seen.append((handle.name, MPI.Get_error_class(code)))))
    other = dup.Dup()
    other.name = "other"
    request = other.Irecv(np.zeros(1), 0, 3)
    other.Isend(np.zeros(4), 0, 3)
    with pytest.raises(MPI.Exception, match="has 8 bytes, the message 32") as failure:
        if hasattr(MPI.Request, f"Get_status_{method[4:].lower()}"):
            getattr(MPI.Request, method)([request])
        else:
            getattr(request, method)()
    wanted = MPI.ERR_IN_STATUS if method in ("waitall", "Testsome") else MPI.ERR_TRUNCATE
    assert seen == [("other", wanted)] and not request
    assert "has 8 bytes" in str(pickle.loads(pickle.dumps(failure.value)))
    request = other.Irecv(np.zeros(1), 0, 3)
    other.Isend(np.zeros(4), 0, 3)
    other.Free()
    with pytest.raises(MPI.Exception, match="has 8 bytes, the message 32"):
        request.Wait()
    dup.Free()


@pytest.mark.ranks(3)
def test_bad_arguments(comm: Any) -> None:
    data = np.zeros(3)
    for call, error_class in (
        (lambda: comm.Send(data, comm.size), MPI.ERR_RANK),
        (lambda: comm.Send(data, -7), MPI.ERR_RANK),
        (lambda: comm.Recv(data, comm.size), MPI.ERR_RANK),
        (lambda: comm.Send(data, 0, -1), MPI.ERR_TAG),
        (lambda: comm.Send(data, 0, 1 << 40), MPI.ERR_TAG),
        (lambda: comm.Bcast(data, comm.size), MPI.ERR_ROOT),
        (lambda: comm.bcast(data, -1), MPI.ERR_ROOT),
        (lambda: comm.Allreduce(data, np.zeros(3), MPI.OP_NULL), MPI.ERR_OP),
        (lambda: comm.Bsend(data, 0), MPI.ERR_BUFFER),
    ):
        with pytest.raises(MPI.Exception) as failure:
            call()
        assert failure.value.Get_error_class() == error_class
    for call in (lambda: comm.Send(None, 0), lambda: comm.send(1, None), lambda: comm.Allreduce(data, data, max)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="mismatch"):
        comm.Allreduce(np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError):
        comm.Send([data, 4, MPI.DOUBLE], 0)
    with pytest.raises(BufferError):
        comm.Recv(b"abc", 0)
    comm.Barrier()


def test_a_class_in_place_of_an_object_stays_as_it_is() -> None:
    kinds = (MPI.Comm, MPI.Datatype, MPI.Errhandler, MPI.Group, MPI.Info, MPI.Message, MPI.Op, MPI.Request, MPI.Win)
    for kind in kinds:
        for free in [getattr(kind, name) for name in ("Free", "free") if hasattr(kind, name)]:
            for other in kinds:
                with contextlib.suppress(TypeError, AttributeError):
                    free(other)
    assert not any("_state" in vars(kind) for kind in kinds)


def test_predefined_attributes_are_numbers() -> None:
    for name in ("TAG_UB", "IO", "WTIME_IS_GLOBAL", "UNIVERSE_SIZE", "APPNUM", "LASTUSEDCODE"):
        assert type(MPI.COMM_WORLD.Get_attr(getattr(MPI, name))) is int, name
