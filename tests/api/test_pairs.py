"""Values with their location, as C structs: what travels, what is reduced, and that padding is the program's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.testing.guarded import guarded

PAIRS = {
    "SHORT_INT": "i2",
    "INT_INT": "i4",
    "LONG_INT": "i8",
    "FLOAT_INT": "f4",
    "DOUBLE_INT": "f8",
    "LONG_DOUBLE_INT": "g",
}
COUNT = 3
FILL = 0xA5


def struct_of(name: str) -> np.dtype[Any]:
    return np.dtype([("value", PAIRS[name]), ("index", "i4")], align=True)


def elements(name: str, seed: int) -> Any:
    found = np.zeros(COUNT, struct_of(name))
    found["value"], found["index"] = np.arange(COUNT) * 3 + seed, np.arange(COUNT) + 10 * seed
    return found


def cut(name: str) -> int:
    """Bytes of the elements without the padding of the last one."""
    datatype = getattr(MPI, name)
    return (COUNT - 1) * datatype.extent + datatype.true_extent  # type: ignore[no-any-return]


def sent(name: str, seed: int) -> list[Any]:
    """Elements that end where readable memory does."""
    memory = guarded(cut(name))
    memory[:] = elements(name, seed).view(np.uint8)[: len(memory)]
    return [memory, COUNT, getattr(MPI, name)]


def received(name: str) -> list[Any]:
    """Room that ends where writable memory does."""
    memory = guarded(cut(name))
    memory[:] = FILL
    return [memory, COUNT, getattr(MPI, name)]


def values(name: str, memory: Any) -> Any:
    whole = np.zeros(COUNT * struct_of(name).itemsize, np.uint8)
    whole[: len(memory)] = memory
    return whole.view(struct_of(name))


def is_field(name: str) -> Any:
    """Which bytes of the elements are no padding."""
    one = np.zeros(struct_of(name).itemsize, bool)
    for item in (struct_of(name).fields or {}).values():
        one[item[1] : item[1] + item[0].itemsize] = True
    return np.tile(one, COUNT)[: cut(name)]


def check(name: str, room: list[Any], expected: Any) -> None:
    """The fields came, and no byte between them was written."""
    assert values(name, room[0]).tolist() == expected.tolist()
    assert (room[0][~is_field(name)] == FILL).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", PAIRS)
def test_messages_end_with_the_last_element(comm: Any, name: str) -> None:
    peer, mine, theirs = 1 - comm.rank, sent(name, comm.rank), elements(name, 1 - comm.rank)
    rooms = [received(name) for _ in range(6)]
    comm.Sendrecv(mine, peer, 0, rooms[0], peer, 0)
    requests = [comm.Isend(mine, peer), comm.Irecv(rooms[1], peer)]
    MPI.Request.Waitall(requests)
    requests = [comm.Send_init(mine, peer), comm.Recv_init(rooms[2], peer)]
    for _ in range(2):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()
    datatype = mine[2]
    comm.Alltoallv([mine[0], ([COUNT * (k == peer) for k in range(2)], [0, 0]), datatype],
                   [rooms[3][0], ([COUNT * (k == peer) for k in range(2)], [0, 0]), datatype])  # fmt: skip
    comm.Alltoallw([mine[0], ([COUNT * (k == peer) for k in range(2)], [0, 0]), [datatype] * 2],
                   [rooms[4][0], ([COUNT * (k == peer) for k in range(2)], [0, 0]), [datatype] * 2])  # fmt: skip
    comm.Bcast(mine if comm.rank == 0 else rooms[5], root=0)
    for room in rooms[:5]:
        check(name, room, theirs)
    if comm.rank == 1:
        check(name, rooms[5], theirs)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", PAIRS)
def test_reductions_leave_the_padding(comm: Any, name: str) -> None:
    mine, fields = sent(name, comm.rank), is_field(name)
    for start in (comm.Allreduce, lambda *operands: comm.Iallreduce(*operands).Wait()):
        room = received(name)
        start(mine, room, MPI.MAXLOC)
        check(name, room, elements(name, 1))
        room[0][fields] = mine[0][fields]
        start(MPI.IN_PLACE, room, MPI.MAXLOC)
        check(name, room, elements(name, 1))
    MPI.MINLOC.Reduce_local(sent(name, 0), room)
    check(name, room, elements(name, 0))


@pytest.mark.ranks(2)
def test_a_pair_is_received_as_the_struct_that_it_is(comm: Any) -> None:
    """The signature is a double and an int, whatever each side calls it; the bytes are those of the fields."""
    struct = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Commit()
    if comm.rank == 0:
        comm.Send(sent("DOUBLE_INT", 2), 1)
        return
    room, status = received("DOUBLE_INT"), MPI.Status()
    comm.Recv([room[0], COUNT, struct], 0, status=status)
    check("DOUBLE_INT", room, elements("DOUBLE_INT", 2))
    assert (status.Get_count(MPI.BYTE), status.Get_count(MPI.DOUBLE_INT), status.Get_elements(MPI.DOUBLE_INT)) == (36, 3, 6)


@pytest.mark.parametrize("name", PAIRS)
def test_packed_pairs_have_no_padding(name: str) -> None:
    datatype, data = getattr(MPI, name), elements(name, 5)
    packed, back = guarded(COUNT * datatype.size), np.zeros_like(data)
    assert datatype.Pack_size(COUNT, MPI.COMM_SELF) == len(packed)
    assert datatype.Pack(data, packed, 0, MPI.COMM_SELF) == datatype.Unpack(packed, 0, back, MPI.COMM_SELF) == len(packed)
    assert back.tolist() == data.tolist()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", PAIRS)
def test_a_user_operation_gets_whole_structs(comm: Any, name: str) -> None:
    def add(low: Any, high: Any, datatype: Any) -> None:
        left, right = np.frombuffer(low, struct_of(name)), np.frombuffer(high, struct_of(name))
        for field in ("value", "index"):
            right[field] += left[field]

    op = MPI.Op.Create(add, commute=True)
    room, total = received(name), elements(name, 0)
    comm.Allreduce(sent(name, comm.rank), room, op)
    op.Free()
    for field in ("value", "index"):
        total[field] += elements(name, 1)[field]
    check(name, room, total)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", PAIRS)
def test_accumulations_leave_the_padding(comm: Any, name: str) -> None:
    datatype, fields = getattr(MPI, name), is_field(name)
    window = MPI.Win.Allocate(COUNT * datatype.extent, comm=comm)
    memory = np.frombuffer(window, np.uint8)
    memory[:] = FILL
    memory[: len(fields)][fields] = sent(name, 1)[0][fields]
    room = received(name)
    window.Fence()
    window.Get_accumulate(sent(name, 2 * comm.rank), room, 0, (0, COUNT, datatype), MPI.MAXLOC)
    window.Fence()
    check(name, [memory[: len(fields)]], elements(name, 2 if comm.rank == 0 else 1))
    check(name, room, elements(name, 1 if comm.rank == 1 or values(name, room[0])["index"][0] == 10 else 2))
    window.Free()
