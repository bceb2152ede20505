"""Staged collectives that all ranks cut alike, piece by piece through bounded pinned memory, on the driver double."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.device import parts, pieces
from ncclx_mpi.gpu_memory import memory
from ncclx_mpi.gpu_memory.copying import Copies
from ncclx_mpi.testing.driver_double import POOL, DeviceArray, Double
from ncclx_mpi.testing.driver_double.arrays import using
from numba_kernels.cuda.driver import DriverError
from tests.device.cases import doing
from tests.device.doubles import ONE_NODE, check_calls_that_differ, check_collectives, maker, unshared, values_of
from tests.device.test_borrowing import Full, Registers

PIECE = 4096
"""Bytes of a piece in most tests: 512 integers of 8 bytes, or as many as there are ranks of a part of that."""


@contextmanager
def cutting(monkeypatch: pytest.MonkeyPatch, nbytes: int = PIECE) -> Iterator[list[int]]:
    """Cut into pieces of `nbytes`; the list gets the number of pieces of each call that is cut."""
    found: list[int] = []
    carry_out = pieces.carry_out

    def noted(*arguments: Any) -> None:
        found.append(arguments[-1].pieces)
        carry_out(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(parts, "PIECE", nbytes)
        patched.setattr(pieces, "carry_out", noted)
        yield found


@pytest.mark.ranks(1, 2, 3, 5, timeout=300, topology=ONE_NODE)
def test_collectives(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (0, 1, 511, 512, 513, 1537) if comm.size < 5 else (0, 1537)
    with Double(comm.rank), cutting(monkeypatch) as found:
        check_collectives(comm, doing(comm, "blocking"), unshared, lengths)
        assert max(found) >= 4
        assert len({tuple(each) for each in comm.allgather(found)}) == 1


@pytest.mark.ranks(2, 3, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("kind", ["mixed", "unaligned"])
def test_a_rank_with_host_arrays_keeps_all_calls_whole(comm: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unaligned arrays are all on devices: what kernels do not take of them is cut."""
    with Double(comm.rank), cutting(monkeypatch) as found:
        check_collectives(comm, doing(comm, "blocking"), maker(kind, comm.rank), (513,))
        assert bool(found) == (kind == "unaligned")


@pytest.mark.ranks(2, 3, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("seed", range(3))
def test_kinds_that_change_from_call_to_call(comm: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array of each rank is NumPy's, one that can be mapped, or one that cannot; all conclude alike."""
    dice = random.Random(100 * seed + comm.rank)

    def make(values: npt.NDArray[Any]) -> Any:
        kind = dice.random()
        return np.array(values) if kind < 0.1 else unshared(values) if kind < 0.5 else DeviceArray.from_host(values)

    with Double(seed + comm.rank), cutting(monkeypatch) as found:
        check_collectives(comm, doing(comm, "blocking"), make, (3, 700, 1537))
        assert comm.allreduce(len(found))


@pytest.mark.ranks(3, timeout=300, topology=ONE_NODE)
def test_values_that_come_late_and_are_spoiled_at_once(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call comes after what the arrays' stream holds, and is complete on return."""
    with Double(comm.rank) as driver, cutting(monkeypatch) as found:
        driver.use(0)
        streams = [0, driver.create_stream(), driver.create_stream(is_blocking=True)]
        for turn in range(12):
            with using(streams[(turn + comm.rank) % 3]):
                send, recv = DeviceArray(2000, np.int64, kind=POOL), DeviceArray(2000, np.int64, kind=POOL)
                send.fill_later(turn + comm.rank)
                recv.fill_later(-1)
                comm.Allreduce(send, recv)
                send.fill_later(-9)
                recv.later(lambda values: values.__iadd__(1))
                np.testing.assert_array_equal(recv.get(), np.full(2000, 3 * turn + 4))
        assert found == [4] * 12


@pytest.mark.ranks(2, 3, timeout=300, topology=ONE_NODE)
def test_operations_and_elements_without_a_kernel(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the ranks, and elements as a whole: 16 bytes of long double, and blocks of three by an operation of the program."""

    def affine(low: Any, high: Any, datatype: Any) -> None:
        """Composition of x -> a x + b, which does not commute; the third number stays."""
        one, two = (np.frombuffer(each, np.int64).reshape(-1, 3) for each in (low, high))
        two[:, 1] = one[:, 1] * two[:, 0] + two[:, 1]
        two[:, 0] *= one[:, 0]

    rank, size = comm.rank, comm.size
    own, triple = MPI.Op.Create(affine), MPI.INT64_T.Create_contiguous(3).Commit()
    numbers = np.stack([1 + (np.arange(700) + rank) % 5, np.arange(700) % 7 - rank, np.arange(700)], axis=1)
    long = (np.arange(900) + rank).astype(np.longdouble) / 3
    with Double(rank), cutting(monkeypatch) as found:
        for name in ("Allreduce", "Scan", "Exscan", "Reduce_scatter_block"):
            blocks = size if name == "Reduce_scatter_block" else 1
            for values, datatype, op in (
                (numbers, triple, own),
                (long, MPI.LONG_DOUBLE, MPI.SUM),
                (long, MPI.LONG_DOUBLE, MPI.MAX),
            ):
                results = []
                for make in (np.array, unshared):
                    send, recv = (make(each.view(np.uint8)) for each in (np.concatenate([values] * blocks), np.zeros_like(values)))
                    getattr(comm, name)([send, len(values), datatype], [recv, len(values), datatype], op)
                    results.append(values_of(recv).view(values.dtype))
                np.testing.assert_array_equal(*results, err_msg=name)
        assert len(found) == 12
    triple.Free()
    own.Free()


@pytest.mark.ranks(2, 3, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("pins", [True, False])
@pytest.mark.filterwarnings("ignore:copies of GPU arrays go through memory that is not pinned:RuntimeWarning")
def test_elements_with_gaps(comm: Any, pins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few long elements are cut inside, many short ones anywhere; gaps stay as they are."""
    rank, size, many = comm.rank, comm.size, 300 if pins else 24
    vectors = [
        MPI.INT32_T.Create_vector(10 * many, 1, 2).Commit(),
        MPI.INT32_T.Create_vector(3, 1, 2).Create_resized(0, 28).Commit(),
    ]
    places = [20 * k + place for k in range(many // 6) for place in (0, 3, 9)]
    irregular = MPI.INT32_T.Create_indexed([1, 4, 2] * (many // 6), places).Commit()
    with (Double if pins else Full)(rank), cutting(monkeypatch, 8 * many) as found:
        for datatype, count in zip([*vectors, irregular], (1, 2 * many, 12), strict=True):
            length = count * datatype.extent // 4 + 8
            results = []
            for make in (np.array, unshared):
                one, all_ = make(np.arange(length, dtype=np.int32) + 1000 * rank), make(np.full(size * length, -rank, np.int32))
                comm.Bcast([one, count, datatype], root=size - 1)
                comm.Allgather([one, count, datatype], [all_, count, datatype])
                results += [values_of(one), values_of(all_)]
            np.testing.assert_array_equal(results[0], results[2])
            np.testing.assert_array_equal(results[1], results[3])
        assert len(found) == 6
    for datatype in (*vectors, irregular):
        datatype.Free()


@pytest.mark.ranks(2, timeout=300)
def test_arrays_of_one_rank_on_two_gpus(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Double(comm.rank, devices=2) as driver, cutting(monkeypatch) as found:
        driver.use(0)
        send = DeviceArray.from_host(np.arange(3000.0))
        driver.use(1)
        recv = DeviceArray(3000)
        comm.Allreduce(send, recv)
        np.testing.assert_array_equal(recv.get(), 2 * np.arange(3000.0))
        assert found == [6]


@pytest.mark.ranks(3, timeout=300, topology=ONE_NODE)
def test_after_an_executor_has_refused_calls_are_cut(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Double(comm.rank, devices=2, visible=[comm.rank % 2], has_peer_access=False), cutting(monkeypatch) as found:
        for turn in range(3):
            send, recv = DeviceArray.from_host(np.arange(2000) + comm.rank + turn), DeviceArray(2000, np.int64)
            comm.Allreduce(send, recv)
            np.testing.assert_array_equal(recv.get(), 3 * np.arange(2000) + 3 + 3 * turn)
        assert found == [4, 4]


@pytest.mark.ranks(2, timeout=300)
def test_only_the_root_knows_that_a_block_is_long(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rank gives one element, the first 3,000."""
    counts = [3000, *[1] * (comm.size - 1)]
    with Double(comm.rank), cutting(monkeypatch) as found:
        send = unshared(np.arange(counts[comm.rank]) + comm.rank)
        recv = unshared(np.zeros(sum(counts), np.int64)) if comm.rank == 0 else None
        comm.Gatherv(send, [recv, counts] if comm.rank == 0 else None)
        if recv is not None:
            np.testing.assert_array_equal(recv.get(), [*range(3000), *range(1, comm.size)])
        assert found == [12]


# Memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(2, timeout=300)
def test_pinned_memory_is_bounded_whatever_the_length(comm: Any) -> None:
    """Five pieces, and a slab for small things."""
    elements = 6 << 20
    with Registers() as driver:
        send, recv = DeviceArray(elements, np.int64, kind=POOL), DeviceArray(elements, np.int64, kind=POOL)
        send.later(lambda values: np.copyto(values, np.arange(elements) + comm.rank))
        comm.Allreduce(send, recv)
        comm.Scan(MPI.IN_PLACE, send)
        assert sum(driver.pinned.values()) <= 5 * parts.PIECE + (4 << 20) + 4096 < send.nbytes
        np.testing.assert_array_equal(recv.get(), 2 * np.arange(elements) + 1)
        np.testing.assert_array_equal(send.get(), (1 + comm.rank) * np.arange(elements) + comm.rank)


@pytest.mark.ranks(1)
def test_copies_and_engine_overlap(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is loaded before the one ahead of it is with the engine, and stored while the next one is there."""
    events: list[str] = []
    begin = Copies.begin_all

    def noted(copies: Copies, moves: list[tuple[int, int, int]]) -> None:
        begin(copies, moves)
        events.append("load" if moves[0][0] not in device else "store")

    def last(low: Any, high: Any, datatype: Any) -> None:
        raise AssertionError("one rank alone reduces nothing")

    with Double(1), cutting(monkeypatch):
        array, result = (unshared(np.arange(2048)) for _ in range(2))
        device = range(result.address, result.address + result.nbytes)
        monkeypatch.setattr(Copies, "begin_all", noted)
        own = MPI.Op.Create(last)
        comm.Allreduce(array, result, own)
        own.Free()
        np.testing.assert_array_equal(result.get(), np.arange(2048))
    assert events == ["load", "load", "store", "load", "store", "load", "store", "store"]


@pytest.mark.ranks(2, 3, timeout=300)
@pytest.mark.parametrize("kind", ["mixed", "unaligned"])
def test_memory_that_cannot_be_pinned(comm: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every collective as a whole and in pieces, and messages, through memory that is not pinned; a warning says so."""
    with Full(comm.rank), cutting(monkeypatch), pytest.warns(RuntimeWarning, match="not pinned, which is slow"):
        check_collectives(comm, doing(comm, "blocking"), maker(kind, comm.rank), (1, 513))
        peers = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for length in (10, 100_000):
            send, recv = unshared(np.arange(length) + comm.rank), DeviceArray(length, np.int64)
            comm.Sendrecv(send, peers[0], 0, recv, peers[1], 0)
            np.testing.assert_array_equal(recv.get(), np.arange(length) + peers[1])


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(2, timeout=300)
def test_calls_that_differ(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Double(comm.rank), cutting(monkeypatch):
        check_calls_that_differ(comm, unshared(np.zeros(4000, np.int32)))


@pytest.mark.ranks(2, timeout=300)
def test_counts_that_differ(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Double(comm.rank), cutting(monkeypatch):
        other = comm.Dup()
        send, recv = unshared(np.zeros(5000)), unshared(np.zeros(5000))
        sent = [2000 + (comm.rank == 1)] * comm.size
        sent[comm.rank] = 2000
        with pytest.raises(MPI.Exception, match=r"sends|interrupted or failed|bytes"):
            other.Alltoallv([send, sent], [recv, [2000] * comm.size])
            other.Barrier()
        other.Free()


@pytest.mark.ranks(3, timeout=300, topology=ONE_NODE)
@pytest.mark.parametrize("fails_at", [0, 3, 5])
def test_a_rank_whose_copies_fail_tells_the_others(comm: Any, fails_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Double):
        left = fails_at if comm.rank == 1 else -1

        def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
            self.left -= 1
            if self.left == -1:
                raise DriverError(700, "cuMemcpyAsync returned CUDA_ERROR_ILLEGAL_ADDRESS (700)")
            super().copy(target, source, nbytes, stream)

    other = comm.Dup()
    with cutting(monkeypatch):
        with Failing(comm.rank):
            array, before = unshared(np.arange(5000)), len(memory._unfinished)
            text = "between GPU 0 and the host failed: cuMemcpyAsync" if comm.rank == 1 else "interrupted or failed"
            with pytest.raises(MPI.Exception, match=text):
                other.Allreduce(MPI.IN_PLACE, array)
            assert comm.rank != 1 or len(memory._unfinished) == before + 1  # it may still be written to
            with pytest.raises(MPI.Exception, match="interrupted or failed"):
                other.Barrier()
        other.Free()


@pytest.mark.ranks(2, timeout=300)
def test_an_array_that_is_freed_during_a_call(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Double(comm.rank), cutting(monkeypatch):
        array, other = unshared(np.arange(5000)), comm.Dup()
        kept = [array]

        def free(low: Any, high: Any, datatype: Any) -> None:
            if kept and comm.rank == 0:
                kept.pop().free()

        own = MPI.Op.Create(free)
        with pytest.raises(MPI.Exception) as caught:
            other.Allreduce(MPI.IN_PLACE, array, own)
        assert caught.value.Get_error_class() == (MPI.ERR_BUFFER if comm.rank == 0 else MPI.ERR_OTHER)
        own.Free()
        other.Free()
