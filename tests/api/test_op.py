"""Operations: on Python objects, on arrays of every kind, of the user."""

from __future__ import annotations

import gc
import mmap
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

CODES = "?bBhHiIlLefdgFDG"


def matmul(low: Any, high: Any, datatype: Any) -> None:
    """Multiply 2 x 2 matrices: associative, not commutative."""
    if datatype is None:
        return None
    a = np.frombuffer(low, dtype="d").reshape(-1, 2, 2)
    b = np.frombuffer(high, dtype="d").reshape(-1, 2, 2)
    b[:] = a @ b
    return None


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("code", CODES)
def test_sum_and_max_of_every_type(comm: Any, code: str) -> None:
    data = np.arange(1, 7).astype(code)
    result = np.zeros_like(data)
    if code != "?":
        comm.Allreduce(data, result, MPI.SUM)
        assert np.array_equal(result, (np.arange(1, 7) * comm.size).astype(code))
    if code not in "FDG":
        comm.Allreduce(data, result, MPI.MAX if code != "?" else MPI.LOR)
        assert np.array_equal(result, data)


@pytest.mark.ranks(2, 3)
def test_bfloat16(comm: Any) -> None:
    """Every step is rounded to 8 bits: what is added to 256 is lost when it comes one by one."""
    bits = (np.array([256.0 if comm.rank == 0 else 1.0, comm.rank + 1.5], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    result = np.zeros_like(bits)
    comm.Allreduce([bits, 2, MPI.BFLOAT16_T], [result, 2, MPI.BFLOAT16_T], MPI.SUM)
    values = (result.astype(np.uint32) << 16).view(np.float32)
    assert values.tolist() == [256.0, sum(rank + 1.5 for rank in range(comm.size))]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("has_count", [False, True])
def test_bytes_have_bits_but_no_value(comm: Any, has_count: bool) -> None:
    """The type alone tells them from unsigned integers: by the compiled route and by the general one, after these were reduced."""

    def make(array: Any) -> list[Any]:
        return [array, len(array), MPI.BYTE] if has_count else [array, MPI.BYTE]

    bits, result = np.array([200, 100 + comm.rank], np.uint8), np.zeros(2, np.uint8)
    for op in (MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX, MPI.LAND, MPI.LOR, MPI.LXOR):
        comm.Allreduce(bits, result, op)
        for call in (comm.Allreduce, comm.Scan, comm.Exscan, comm.Iallreduce, comm.Allreduce_init):
            with pytest.raises(MPI.Exception, match=f"MPI.{op._state.name} is not defined for elements of type MPI_BYTE") as caught:
                call(make(bits), make(result), op)
            assert caught.value.Get_error_class() == MPI.ERR_OP
        with pytest.raises(MPI.Exception, match="convert them before"):
            op.Reduce_local(make(bits), make(result))
    for op, ufunc in ((MPI.BAND, np.bitwise_and), (MPI.BOR, np.bitwise_or), (MPI.BXOR, np.bitwise_xor)):
        for _ in range(2):
            result[:] = 0
            comm.Allreduce(make(bits), make(result), op)
            assert result.tolist() == ufunc.reduce([[200, 100 + rank] for rank in range(comm.size)], axis=0).tolist()
    comm.Bcast(make(bits), root=comm.size - 1)
    assert bits.tolist() == [200, 99 + comm.size]


@pytest.mark.ranks(2, 3)
def test_maxloc(comm: Any) -> None:
    kinds = [(MPI.DOUBLE_INT, "f8"), (MPI.FLOAT_INT, "f4"), (MPI.LONG_INT, "i8"), (MPI.TWOINT, "i4"), (MPI.SHORT_INT, "i2")]
    for datatype, code in kinds:
        pair = np.dtype([("value", code), ("index", "i4")], align=True)
        mine, best = np.array([(comm.rank % 2, comm.rank)], dtype=pair), np.zeros(1, dtype=pair)
        comm.Allreduce([mine, 1, datatype], [best, 1, datatype], MPI.MAXLOC)
        assert best[0].tolist() == (1, 1)


@pytest.mark.ranks(1, 2, 3, 5)
def test_user_operation_in_rank_order(comm: Any) -> None:
    op = MPI.Op.Create(matmul, commute=False)
    mine = np.array([[1.0, comm.rank + 1], [0.5, 1.0]])
    whole, expected = np.zeros((2, 2)), np.eye(2)
    for rank in range(comm.size):
        expected = expected @ np.array([[1.0, rank + 1], [0.5, 1.0]])
    block = MPI.DOUBLE.Create_contiguous(4).Commit()
    comm.Allreduce([mine, 1, block], [whole, 1, block], op)
    assert np.allclose(whole, expected)
    comm.Scan([mine, 1, block], [whole, 1, block], op)
    if comm.rank == comm.size - 1:
        assert np.allclose(whole, expected)
    op.Free()
    block.Free()


@pytest.mark.ranks(2)
def test_user_operation_on_a_datatype_with_gaps(comm: Any) -> None:
    strided = MPI.INT.Create_vector(3, 1, 2).Commit()

    def add(low: Any, high: Any, datatype: Any) -> None:
        np.frombuffer(high, dtype="i")[::2] += np.frombuffer(low, dtype="i")[: len(high) // 4 : 2]

    op = MPI.Op.Create(add, commute=True)
    mine, total = np.arange(5, dtype="i"), np.full(5, -1, dtype="i")
    comm.Allreduce([mine, 1, strided], [total, 1, strided], op)
    assert total.tolist() == [0, -1, 4, -1, 8]
    op.Free()
    strided.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("first", "extent"), [(0, 8), (0, 24), (1 << 28, None), (16, 8), (-24, 8), (-(1 << 28), 16), (8, -8), (0, 0)], ids=str
)
def test_user_operation_reaches_all_that_its_elements_cover(comm: Any, first: int, extent: int | None) -> None:
    """Wherever the bytes of an element lie about its origin: the work areas of an operation hold them all."""
    count = 1 if extent == 0 else 3
    made = MPI.DOUBLE.Create_hindexed([1], [first])
    datatype = (made if extent is None else made.Create_resized(0, extent)).Commit()
    step = datatype.extent

    def add(low: Any, high: Any, given: Any) -> None:
        number = len(low) // step if step > 0 else count
        assert len(low) == len(high) == max(number * step, 0) and given.Get_extent() == datatype.Get_extent()
        for k in range(number):
            left, right = (np.frombuffer(MPI.memory.fromaddress(area.address + first + k * step, 8), "d") for area in (low, high))
            right += left

    op = MPI.Op.Create(add, commute=True)
    start = (count - 1) * max(-step, 0)
    nbytes = (count - 1) * abs(step) + 8
    mine, total = np.frombuffer(mmap.mmap(-1, 2 * nbytes), np.uint8).reshape(
        2, nbytes
    )  # a heap may begin below the origin's distance
    places = [slice(start + k * step, start + k * step + 8) for k in range(count)]
    for k, place in enumerate(places):
        mine[place] = np.array([k + comm.rank + 0.5]).view(np.uint8)
    origins = (MPI.memory.fromaddress(MPI.Get_address(array) + start - first, 0) for array in (mine, total))
    comm.Allreduce(*([origin, count, datatype] for origin in origins), op)
    assert [float(total[place].view("d")[0]) for place in places] == [2 * k + 2.0 for k in range(count)]
    op.Free()


@pytest.mark.ranks(1)
def test_not_defined(comm: Any) -> None:
    for op, code in ((MPI.BAND, "d"), (MPI.MAX, "D"), (MPI.MAXLOC, "i")):
        with pytest.raises(MPI.Exception) as failure:
            comm.Allreduce(np.zeros(2, dtype=code), np.zeros(2, dtype=code), op)
        assert failure.value.Get_error_class() == MPI.ERR_OP


@pytest.mark.ranks(1)
def test_handles_and_limits(comm: Any) -> None:
    assert MPI.MAXLOC((1, 2), (1, 0)) == (1, 0) and MPI.LXOR(2, 0) is True and MPI.REPLACE(1, 2) == 2
    assert pickle.loads(pickle.dumps(MPI.SUM)) is MPI.SUM
    ops = [MPI.Op.Create(matmul) for _ in range(32)]
    with pytest.raises(RuntimeError):
        MPI.Op.Create(matmul)
    for op in ops:
        op.Free()
        assert op == MPI.OP_NULL
    with pytest.raises(MPI.Exception):
        MPI.SUM.Free()
    with pytest.raises(TypeError):
        MPI.Op.Create(3)  # type: ignore[arg-type]


@pytest.mark.ranks(1, 3)
def test_reduce_local_and_in_place(comm: Any) -> None:
    low, both = np.array([1, 5, 3]), np.array([4, 4, 4])
    MPI.MIN.Reduce_local(low, both)
    assert both.tolist() == [1, 4, 3]
    comm.Allreduce(MPI.IN_PLACE, both, MPI.SUM)
    assert both.tolist() == [comm.size, 4 * comm.size, 3 * comm.size]


def test_exception_in_a_user_operation_ends_the_job(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from ncclx_mpi import MPI\nimport numpy as np\n"
        "op = MPI.Op.Create(lambda a, b, t: 1 / 0)\n"
        "MPI.COMM_WORLD.Allreduce(np.ones(1), np.ones(1), op)\n"
    )
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr and "user-defined reduction operation" in done.stderr


def test_a_user_operation_imports_nothing_when_it_is_called(tmp_path: Path) -> None:
    """A finalizer's progress may call it in the middle of that very import, which would then find half a module."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport numpy as np\nfrom ncclx_mpi import MPI\n"
        "op = MPI.Op.Create(lambda a, b, t: np.copyto(np.frombuffer(b), np.frombuffer(a) + np.frombuffer(b)))\n"
        "class NoMore:\n"
        "    def find_spec(self, name, *others):\n"
        "        raise ImportError(f'{name} is imported in the reduction')\n"
        "found, pending = np.zeros(3), MPI.COMM_WORLD.Iallreduce(np.ones(3), np.zeros(3))\n"
        "MPI.COMM_WORLD.Allreduce(np.ones(3), found)\n"
        "pending.Wait()\n"
        "sys.meta_path.insert(0, NoMore())\n"
        "MPI.COMM_WORLD.Allreduce(np.ones(3), found, op)\n"
        "assert found.tolist() == [2.0] * 3\n"
    )
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("count", [4, 60_000])
def test_an_operation_can_be_freed_while_a_reduction_needs_it(comm: Any, count: int) -> None:
    """As MPI allows: a pending or persistent reduction keeps the user's function, though its handle and its last copy are gone."""

    def add(low: Any, high: Any, datatype: Any) -> None:
        np.frombuffer(high, "d")[:] += np.frombuffer(low, "d")

    sent, received, total = np.full(count, comm.rank + 1.0), np.zeros(count), comm.size * (comm.size + 1) / 2
    operation = MPI.Op.Create(add, commute=True)
    request = comm.Iallreduce(sent, received, operation)
    operation.Free()
    gc.collect()
    request.Wait()
    assert (received == total).all()
    operation = MPI.Op.Create(add, commute=True)
    persistent = comm.Allreduce_init(sent, received, operation)
    operation.Free()
    gc.collect()
    for _ in range(3):
        received[:] = 0
        persistent.Start()
        persistent.Wait()
        assert (received == total).all()
    persistent.Free()


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("op", [MPI.REPLACE, MPI.NO_OP], ids=["REPLACE", "NO_OP"])
def test_operations_of_windows_reduce_nothing(comm: Any, op: Any) -> None:
    """A collective refuses them, a second time too, and a window still does what they say: to a plain array, and to a pair."""
    data, result = np.arange(3.0), np.full(3, 7.0)
    pair = np.zeros(1, "d,i"), np.ones(1, "d,i")
    for call in (
        lambda: comm.Allreduce(data, result, op),
        lambda: comm.Allreduce(data, result, op),
        lambda: comm.Reduce([data, 3, MPI.DOUBLE], [result, 3, MPI.DOUBLE], op),
        lambda: comm.Iscan(data, result, op),
        lambda: op.Reduce_local(data, result),
        lambda: op.Reduce_local([pair[0], 1, MPI.DOUBLE_INT], [pair[1], 1, MPI.DOUBLE_INT]),
    ):
        with pytest.raises(MPI.Exception, match="windows only") as caught:
            call()
        assert caught.value.Get_error_class() == MPI.ERR_OP
    assert (result == 7).all() and op(1, 2) == (2 if op == MPI.REPLACE else 1)
    win = MPI.Win.Create(result, result.itemsize, comm=comm)
    win.Fence()
    if comm.rank == 0:
        win.Accumulate(data, comm.size - 1, op=op)
    win.Fence()
    assert (result == (data if comm.rank == comm.size - 1 and op == MPI.REPLACE else 7)).all()
    win.Free()
