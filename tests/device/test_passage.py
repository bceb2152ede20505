"""Device arrays that are too long for pinned memory: their packed bytes pass through two pieces of it, on the driver double."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime
from ncclx_mpi.arguments import bounce_buffers, gpu_packing, host_view
from ncclx_mpi.gpu_memory import staging
from ncclx_mpi.gpu_memory.copying import Copies
from ncclx_mpi.testing.driver_double import DeviceArray, Double
from numba_kernels.cuda.driver import WAIT_AT_LEAST, DriverError, Step
from tests.device.cases import FLAVOURS, doing
from tests.device.doubles import check_collectives, maker, unshared, values_of
from tests.device.messages import check_derived_datatypes
from tests.device.test_borrowing import Full, Registers
from tests.device.test_messages import WithoutCompiler
from tests.extensions.tables import draw
from tests.extensions.test_alltoallv_dynamic import FLAVOURS as DYNAMIC_FLAVOURS
from tests.extensions.test_alltoallv_dynamic import check as check_dynamic

LIMIT, PIECE = 4096, 1021
"""Bytes that are pinned in these tests, and that pass at a time: no element ends where a piece does."""


@contextmanager
def passing(monkeypatch: pytest.MonkeyPatch, limit: int = LIMIT, piece: int = PIECE) -> Iterator[list[int]]:
    """Little is pinned; the list gets the bytes of each passage."""
    found: list[int] = []
    carry_out = bounce_buffers._Passage._pass

    def noted(work: Any, pieces: Any, **named: Any) -> None:
        found.append(sum(each.nbytes for each in pieces))
        carry_out(work, pieces, **named)

    with monkeypatch.context() as patched:
        patched.setattr(staging, "PINNED_MAX", limit)
        patched.setattr(bounce_buffers, "PIECE", piece)
        patched.setattr(bounce_buffers._Passage, "_pass", noted)
        yield found


@pytest.mark.ranks(1, 2, 3, timeout=300)
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("kind", ["mixed", "unaligned"])
def test_collectives(comm: Any, kind: str, flavour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Double(comm.rank), passing(monkeypatch) as found:
        check_collectives(comm, doing(comm, flavour), maker(kind, comm.rank), (1, 1537))
        assert comm.allreduce(len(found)) > 10 or (kind, comm.size) == ("mixed", 1)
        assert not found or max(found) > LIMIT


@pytest.mark.ranks(2, timeout=300)
@pytest.mark.parametrize("machine", [Double, WithoutCompiler])
@pytest.mark.filterwarnings("ignore:derived datatypes of GPU arrays")
def test_derived_datatypes(comm: Any, machine: type[Double], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_packing._Compiler, "is_missing", False)
    with machine(comm.rank), passing(monkeypatch) as found:
        check_derived_datatypes(
            comm, (1, 50 if machine is Double else 20)
        )  # without, each block is a copy of its own, as late as any
        assert len(found) >= 10
    assert gpu_packing._Compiler.is_missing == (machine is WithoutCompiler)


@pytest.mark.ranks(2, 3, timeout=300)
@pytest.mark.parametrize("flavour", DYNAMIC_FLAVOURS)
def test_tables_of_an_alltoallv_dynamic(comm: Any, flavour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of what a range spans stays as it is."""
    make = np.array if comm.rank % 2 else unshared
    with Double(comm.rank), passing(monkeypatch, 4000, 61) as found:
        for seed in range(10):
            check_dynamic(comm, draw(seed, comm.size), DYNAMIC_FLAVOURS[flavour], make, values_of)
        monkeypatch.setattr(staging, "PINNED_MAX", 64)
        for seed in range(10):
            check_dynamic(comm, draw(seed, comm.size), DYNAMIC_FLAVOURS[flavour], make, values_of)
        assert found or comm.rank % 2


@pytest.mark.ranks(1)
def test_packing(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Double(3), passing(monkeypatch) as found:
        packed = DeviceArray.from_host(np.zeros(20_000, np.uint8))
        assert MPI.INT.Pack(DeviceArray.from_host(np.arange(4000, dtype="i")), packed, 8, comm) == 16_008
        assert values_of(packed)[8:16_008].view("i").tolist() == list(range(4000))
        back = DeviceArray(4000, "i")
        assert MPI.INT.Unpack(packed, 8, back, comm) == 16_008
        assert values_of(back).tolist() == list(range(4000))
        assert sorted(set(found)) == [16_000, 20_000]


@pytest.mark.ranks(2, timeout=300)
def test_pinned_memory_is_bounded(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pieces at a time, and a slab for small things, whatever the length, and whoever has a host array."""
    elements, piece = 3 << 20, 1 << 20
    with Registers() as driver, passing(monkeypatch, 2 << 20, piece) as found:
        make = np.array if comm.rank else unshared
        send, recv = make(np.arange(elements) + comm.rank), make(np.zeros(elements, int))
        comm.Allreduce(send, recv)
        request = comm.Iallreduce(MPI.IN_PLACE, send)
        request.Wait()
        assert sum(driver.pinned.values()) <= (0 if comm.rank else 4 * piece + (4 << 20) + 4096) < 8 * elements
        for array in (send, recv):
            np.testing.assert_array_equal(values_of(array), 2 * np.arange(elements) + 1)
        assert found == ([] if comm.rank else [8 * elements] * 4)


@pytest.mark.ranks(1)
def test_copies_of_the_gpu_and_of_the_cpu_overlap(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pieces are under way while the CPU copies the one before them."""
    events: list[str] = []
    begin, wait = Copies.begin_all, Copies.wait

    def begun(copies: Copies, moves: list[tuple[int, int, int]]) -> None:
        begin(copies, moves)
        events.append(f"begin {moves[0][2]}")

    def waited(copies: Copies) -> None:
        wait(copies)
        events.append("end")

    with Double(1), passing(monkeypatch, piece=4000):
        array, result = unshared(np.arange(1400)), np.empty(1400, int)
        request = comm.Iallreduce(array, result)
        monkeypatch.setattr(Copies, "begin_all", begun)
        monkeypatch.setattr(Copies, "wait", waited)
        request.Wait()
        comm.Iallreduce(array, result).Wait()
        np.testing.assert_array_equal(result, np.arange(1400))
    assert events == ["begin 4000", "begin 4000", "end", "begin 3200", "end", "end"]


@pytest.mark.ranks(1)
def test_it_comes_after_what_the_stream_holds(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream waits for a word, which is written when copies that do not wait for the stream are long over."""
    word = np.zeros(1, np.int64)

    def hold_up(driver: Double, number: int) -> None:
        driver.batch(0, [Step(WAIT_AT_LEAST, word.ctypes.data, number)])
        threading.Timer(0.1, np.maximum, (word, number, word)).start()  # whichever comes first

    with Double(1, patience=60) as driver, passing(monkeypatch) as found:
        driver.use(0)
        driver.register_host(word.ctypes.data, word.nbytes)
        array, result, before = (unshared(np.zeros(3000)) for _ in range(3))
        comm.Iallreduce(array, result).Wait()
        hold_up(driver, 1)
        array.fill_later(5)
        request = comm.Iallreduce(array, result)
        hold_up(driver, 2)
        before.later(np.copyto, "copy", result)  # reads what the call is about to replace
        request.Wait()
        assert (values_of(before) == 0).all()
        assert (values_of(result) == 5).all()
        assert found == [24_000] * 4


@pytest.mark.ranks(1)
def test_a_copy_that_fails_keeps_its_memory(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second piece cannot be copied: memory that the first one may still be written to is never lent again."""

    class Breaks(Double):
        left = 1

        def copy(self, *arguments: Any) -> None:
            if not self.left:
                raise DriverError(719, "cuMemcpyAsync returned CUDA_ERROR_LAUNCH_FAILED (719)")
            self.left -= 1
            super().copy(*arguments)

    with Breaks(1), passing(monkeypatch):
        array = unshared(np.arange(1400))
        with pytest.raises(MPI.Exception, match="CUDA_ERROR_LAUNCH_FAILED") as caught:
            comm.Iallreduce(array, np.empty(1400, int)).Wait()
        assert caught.value.Get_error_class() == MPI.ERR_OTHER
        del caught  # its traceback refers to what is to be kept
        gc.collect()
        pool = staging._Process.pool
        assert pool is not None
        assert not pool.idle


@pytest.mark.ranks(1)
def test_who_gives_up_a_wait_may_use_the_array(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream comes after the copies that are still under way: they wait for a word, which is written later."""
    word = np.zeros(1, np.int64)

    class Interrupted(Double):
        def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
            self.batch(stream, [Step(WAIT_AT_LEAST, word.ctypes.data, 1)])
            super().copy(target, source, nbytes, stream)

        def is_idle(self, stream: int) -> bool:
            raise KeyboardInterrupt

    with Interrupted(1, patience=60) as driver, passing(monkeypatch):
        driver.use(0)
        driver.register_host(word.ctypes.data, word.nbytes)
        result = unshared(np.zeros(3000))
        request = comm.Iallreduce(np.ones(3000), result)
        with pytest.raises(KeyboardInterrupt):
            request.Wait()
        result.fill_later(9)
        threading.Timer(0.1, word.fill, (1,)).start()
        assert (values_of(result) == 9).all()
        driver.synchronize_device()
        assert (values_of(result) == 9).all()


def test_nobody_s_messages_have_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the job has begun, and after it has ended."""
    monkeypatch.setattr(runtime, "is_active", lambda: False)
    with Double(3), passing(monkeypatch) as found:
        array, wanted = DeviceArray.from_host(np.arange(3000)), np.arange(3000)
        with host_view.writing(array) as copy:
            assert ctypes.string_at(copy.address, copy.nbytes) == wanted.tobytes()
            ctypes.memset(copy.address, 1, copy.nbytes)
        assert (values_of(array).view(np.uint8) == 1).all()
        assert found == [24_000] * 2


@pytest.mark.ranks(2)
def test_arrays_that_were_freed_are_not_touched(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Double(comm.rank), passing(monkeypatch):
        send, recv = unshared(np.arange(3000)), unshared(np.zeros(3000, int))
        request = comm.Iallreduce(send, recv)
        recv.free()
        with pytest.raises(MPI.Exception, match="freed since it was given") as caught:
            request.Wait()
        assert caught.value.Get_error_class() == MPI.ERR_BUFFER


@pytest.mark.ranks(2)
def test_nothing_can_be_pinned(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver copies then; a warning says that this is slow."""
    with Full(comm.rank), passing(monkeypatch) as found, pytest.warns(RuntimeWarning, match="not pinned, which is slow"):
        send, recv = unshared(np.arange(3000)), np.zeros(3000, int)
        comm.Iallreduce(send, recv).Wait()
        np.testing.assert_array_equal(recv, 2 * np.arange(3000))
        assert found == []
