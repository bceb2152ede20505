"""How device memory is borrowed: whose it is, in which stream, what is refused, and the pinned memory that copies go through."""

from __future__ import annotations

import gc
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, arguments, runtime
from ncclx_mpi.gpu_memory import memory, staging, streams
from ncclx_mpi.gpu_memory.streams import LEGACY, Stream, facts_of, handle_of, stream_of
from ncclx_mpi.testing.driver_double import MANAGED, PINNED, POOL, DeviceArray, Double
from ncclx_mpi.testing.driver_double.arrays import InterfaceArray, TensorArray, using
from numba_kernels.cuda.driver import PER_THREAD_STREAM, DriverError
from tests.api.test_buffers import Interface, Tensor
from transports.shm.heap import Heap

HOST = np.arange(6.0)


# Whose memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [POOL, MANAGED])
def test_the_driver_knows_device_memory(kind: str) -> None:
    with Double(1):
        array = DeviceArray(10, kind=kind)
        found = arguments.send(array)
        assert (found.address, found.count, found.datatype) == (array.address, 10, MPI.DOUBLE)
        assert found.device is not None
        assert not found.is_direct


def test_host_memory_stays_the_hosts_whatever_offers_it() -> None:
    with Double(1):
        for array in (HOST, Interface(HOST), Tensor(HOST), memoryview(HOST)):
            found = arguments.send(array)
            assert (found.address, found.device, found.is_direct) == (HOST.ctypes.data, None, True)


def test_pinned_memory_is_the_hosts() -> None:
    with Double(1):
        assert arguments.send(DeviceArray(10, kind=PINNED)).device is None


def test_empty_arrays_are_nowhere() -> None:
    with Double(1):
        assert arguments.recv(DeviceArray(0)).count == 0


def test_freed_arrays_are_refused() -> None:
    with Double(1):
        array = DeviceArray(1 << 20, kind=POOL)
        array.free()
        with pytest.raises(BufferError, match="was the array freed"):
            arguments.send(array)


@pytest.mark.ranks(1)
def test_memory_that_is_freed_during_a_call_is_not_touched(comm: Any) -> None:
    with Double(1):
        array = DeviceArray(1 << 20, kind=POOL)
        arriving = comm.Irecv(array, 0)
        array.free()
        sending = comm.Isend(np.zeros(1 << 20), 0)
        with pytest.raises(MPI.Exception, match="freed since it was given") as caught:
            arriving.Wait()
        assert caught.value.Get_error_class() == MPI.ERR_BUFFER
        sending.Wait()
        array = DeviceArray(1 << 20, kind=POOL)
        request = comm.Send_init(array, MPI.PROC_NULL), comm.Send_init(array, 0)
        array.free()
        request[0].Start()
        with pytest.raises(MPI.Exception, match="keep the array until"):
            request[1].Start()


def test_scattered_arrays_are_refused() -> None:
    with Double(1), pytest.raises(BufferError, match="not contiguous"):
        arguments.send(DeviceArray(10)[::2])


def test_nothing_of_cuda_is_loaded_for_host_arrays() -> None:
    program = (
        "import sys, numpy as np\n"
        "from mpi4py import MPI\n"
        "class Fake:\n"
        "    def __init__(self, array): self.__cuda_array_interface__ = array.__array_interface__\n"
        "array, columns = np.zeros(100), MPI.DOUBLE.Create_vector(10, 1, 2).Commit()\n"
        "MPI.COMM_WORLD.Bcast([array, 2, columns])\n"
        "MPI.COMM_WORLD.Allreduce(Fake(array), array.copy())\n"
        "names = ('numba.cuda', 'cuda', 'cupy')\n"
        "print([name for name in names if name in sys.modules], 'libcuda' in open('/proc/self/maps').read())\n"
    )
    done = subprocess.run([sys.executable, "-m", "ncclx_mpi", "run", "-n", "1", "-c", program], capture_output=True, text=True)
    assert done.stdout == "[] False\n", done.stderr


# Streams ----------------------------------------------------------------------------------------------------------


def library(name: str, **contents: Any) -> tuple[type, SimpleNamespace]:
    """An array class of a library, and the library."""
    return type("Array", (), {"__module__": f"{name}._core"}), SimpleNamespace(**contents)


def test_cupy_arrays_are_used_in_cupys_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    by_device = {0: SimpleNamespace(ptr=0), 1: SimpleNamespace(ptr=77)}
    array, cupy = library("cupy", cuda=SimpleNamespace(get_current_stream=by_device.__getitem__))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert stream_of(array(), 1) == Stream(77, by_device[1])
    assert stream_of(array(), 0).handle == LEGACY.handle


def test_torch_tensors_are_used_in_torchs_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    current = SimpleNamespace(cuda_stream=88)
    array, torch = library("torch", cuda=SimpleNamespace(current_stream=lambda device: current if device == 1 else None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    subclass = type("Parameter", (array,), {"__module__": "program"})
    assert stream_of(subclass(), 1) == Stream(88, current)


def test_what_a_call_depends_on_is_read_from_arrays_of_every_library() -> None:
    """Whatever changes in an array, what is read changes; CuPy's are not asked for their interface, which they make anew each time."""
    cupy, _ = library("cupy")
    one = cupy()
    one.data, one.shape, one.dtype, one.strides = SimpleNamespace(ptr=64), (2, 3), np.dtype("f8"), (24, 8)
    facts = [facts_of(one)]
    for name, value in {"data": SimpleNamespace(ptr=128), "shape": (6,), "dtype": np.dtype("i8"), "strides": (8,)}.items():
        setattr(one, name, value)
        facts.append(facts_of(one))
    with Double(1):
        array = InterfaceArray(6)
        facts += [facts_of(each) for each in (array, array[3:], array[:3], array.reshape(2, 3).T, InterfaceArray(6, np.int64))]
        assert facts_of(array) == facts_of(array[:])
        assert facts_of(TensorArray(3)) is None
    assert len(set(facts)) == len(facts)
    assert facts_of([array, MPI.DOUBLE]) is None
    assert facts_of(SimpleNamespace(__cuda_array_interface__={"mask": array})) is None


def test_a_tensor_that_is_only_seen_conjugated_is_another_one() -> None:
    """It has the address, the shape and the type of what is in memory."""
    methods = {name: lambda self: False for name in ("is_conj", "is_neg")} | {
        "data_ptr": lambda self: 64,
        "stride": lambda self: (8,),
    }
    tensor = type(
        "Tensor", (), {"__module__": "torch", **methods, "shape": (6,), "dtype": "c64", "device": 0, "requires_grad": False}
    )
    as_it_is = facts_of(tensor())
    assert facts_of(tensor()) == as_it_is
    for name in ("is_conj", "is_neg"):
        assert facts_of(type("Tensor", (tensor,), {name: lambda self: True})()) != as_it_is
    assert facts_of(type("Tensor", (tensor,), {"requires_grad": True})()) != as_it_is


class Late(DeviceArray):
    """A tensor of a library that takes every stream for a handle, and answers with capsules of version 0."""

    __module__ = "jaxlib"

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None, copy: Any = None) -> Any:
        assert stream is None, "no stream is asked for"
        return super().__dlpack__()

    def block_until_ready(self) -> None:
        self.driver.finish(0)


def test_older_capsules_where_newer_ones_were_asked_for() -> None:
    with Double(1):
        array = Late(10)
        assert arguments.send(array).address == array.address


def test_arrays_of_a_library_that_tells_facts_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(DeviceArray):
        __module__ = "cupy"
        asked = 0

        @property
        def data(self) -> Any:
            return SimpleNamespace(ptr=self.address)

        def __dlpack__(self, **options: Any) -> Any:
            Told.asked += 1
            return super().__dlpack__(**options)

    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=0)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with Double(1):
        array = Told(10)
        found = [arguments.send(each) for each in (array, array, array[:], array[2:], array)]
        assert [each.nbytes for each in found] == [80, 80, 80, 64, 80]
        assert [each.address - array.address for each in found] == [0, 0, 0, 16, 0]
        assert Told.asked == 2
        array.free()
        with pytest.raises(BufferError, match="was the array freed"):
            arguments.send(array)


@pytest.mark.parametrize(("bound", "per_thread", "expected"), [(None, 0, 1), (None, 1, PER_THREAD_STREAM), (99, 1, 99)])
def test_numba_arrays_are_used_in_their_stream(
    bound: int | None, per_thread: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, numba = library("numba.cuda", config=SimpleNamespace(CUDA_PER_THREAD_DEFAULT_STREAM=per_thread))
    array.__cuda_array_interface__ = {"stream": bound}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numba.cuda", numba)
    assert stream_of(array(), 0).handle == expected


def test_jax_arrays_are_waited_for_and_never_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    array, _ = library("jaxlib")
    array.block_until_ready = lambda self: waited.append(self)  # type: ignore[attr-defined]
    one = array()
    assert stream_of(one, 0) is LEGACY
    assert waited == [one]
    with pytest.raises(BufferError, match="JAX arrays are immutable"):
        arguments.recv(one)


def test_arrays_of_other_libraries_are_asked_by_their_protocol() -> None:
    asked = []
    tensor = SimpleNamespace(__dlpack__=lambda **options: asked.append(options))
    assert stream_of(tensor, 0) is LEGACY
    assert asked == [{"stream": 1}]
    assert stream_of(SimpleNamespace(__cuda_array_interface__={"stream": 55}), 0).handle == 55
    assert stream_of(SimpleNamespace(__cuda_array_interface__={"stream": None}), 0) is LEGACY
    assert stream_of(None, 0) is LEGACY


def test_handles_of_streams() -> None:
    protocol = SimpleNamespace(__cuda_stream__=lambda: (0, 66))
    assert [handle_of(stream) for stream in (0, 5, protocol)] == [1, 5, 66]
    with pytest.raises(TypeError, match="__cuda_stream__"):
        handle_of("stream")


@pytest.mark.ranks(1)
def test_a_stream_that_is_captured_is_refused_and_stays_intact(comm: Any) -> None:
    with Double(1) as driver:
        array, stream = DeviceArray.from_host(np.zeros(100)), driver.create_stream()
        driver.synchronize(1)
        with using(stream):
            driver.begin_capture(stream, is_global=False)
            spec = SimpleNamespace(__cuda_array_interface__=array.__cuda_array_interface__)
            with pytest.raises(MPI.Exception, match="being captured"):
                comm.Bcast(spec)
            array.fill_later(3.0)
            graph = driver.end_capture(stream)
            driver.replay(graph, stream)
            assert (array.get() == 3).all()


# The driver -------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_each_array_is_used_on_its_device_and_the_programs_stays_current(comm: Any) -> None:
    with Double(comm.rank, devices=2) as driver:
        arrays = []
        for device in (0, 1):
            driver.use(device)
            arrays.append(DeviceArray.from_host(np.full(1000, 10.0 * comm.rank + device)))
        for current in (0, 1):
            driver.use(current)
            comm.Sendrecv(arrays[0], 1 - comm.rank, 0, arrays[1], 1 - comm.rank, 0)
            assert driver.current_device() == current
        driver.use(1)
        assert (arrays[1].get() == 10.0 * (1 - comm.rank)).all()


class Broken(Double):
    """Cannot copy."""

    def copy(self, *_: int) -> None:
        raise DriverError(700, "cuMemcpyAsync returned CUDA_ERROR_ILLEGAL_ADDRESS (700)")


@pytest.mark.ranks(1)
def test_what_the_driver_says_is_raised(comm: Any) -> None:
    with Broken(1):
        array = DeviceArray(10)
        with pytest.raises(MPI.Exception, match="between GPU 0 and the host failed: cuMemcpyAsync") as caught:
            comm.Bcast(array)
    assert caught.value.Get_error_class() == MPI.ERR_OTHER


# Pinned memory ----------------------------------------------------------------------------------------------------


class Registers(Double):
    """Notes what is pinned."""

    def __init__(self) -> None:
        super().__init__(1)
        self.pinned: dict[int, int] = {}

    def register_host(self, address: int, nbytes: int) -> None:
        super().register_host(address, nbytes)
        self.pinned[address] = nbytes

    def unregister_host(self, address: int) -> None:
        super().unregister_host(address)
        del self.pinned[address]


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 4097, 100_000, (1 << 20) - 1, (1 << 20) + 1, 5 << 20])
def test_leases_are_large_enough_aligned_and_not_wasteful(nbytes: int) -> None:
    with Registers() as driver:
        driver.use(0)
        pool = staging.Pool(driver)
        leases = [pool.lease(nbytes) for _ in range(5)]
        for lease in leases:
            assert nbytes <= lease.nbytes <= max(nbytes + 4096, 1.25 * nbytes)
            assert lease.address % 4096 == 0
            assert any(at <= lease.address and lease.address + lease.nbytes <= at + size for at, size in driver.pinned.items())
        spans = sorted((lease.address, lease.address + lease.nbytes) for lease in leases)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        pool.unpin()


def test_memory_is_lent_again_when_nothing_refers_to_it() -> None:
    with Registers() as driver:
        driver.use(0)
        pool = staging.Pool(driver)
        first = pool.lease(3 << 20)
        address = first.address
        assert pool.lease(3 << 20).address != address
        del first
        gc.collect()
        pinned = dict(driver.pinned)
        assert {pool.lease(3 << 20).address, address} <= set(pinned)
        assert driver.pinned == pinned
        pool.unpin()
        assert not driver.pinned


def test_idle_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "IDLE_MAX", 20 << 20)
    with Registers() as driver:
        driver.use(0)
        pool = staging.Pool(driver)
        for megabytes in (2, 4, 8, 16, 3, 6):
            pool.lease(megabytes << 20)
        assert sum(driver.pinned.values()) <= 20 << 20
        pool.unpin()


class Full(Double):
    """Pins so many bytes at a time, none at first."""

    left = 0

    def register_host(self, address: int, nbytes: int) -> None:
        if nbytes > self.left:
            raise DriverError(2, "cuMemHostRegister_v2 returned CUDA_ERROR_OUT_OF_MEMORY (2)")
        super().register_host(address, nbytes)
        self.left -= nbytes

    def unregister_host(self, address: int) -> None:
        found = self.memory(address)
        super().unregister_host(address)
        self.left += found.nbytes if found is not None else 0


@pytest.mark.filterwarnings("ignore:copies of GPU arrays go through memory that is not pinned:RuntimeWarning")
def test_no_memory_is_an_error_of_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: Any) -> None:
        raise MemoryError("unable to allocate")

    with Full(1) as driver:
        driver.use(0)
        monkeypatch.setattr(staging, "np", SimpleNamespace(empty=none, uint8=np.uint8))
        with pytest.raises(MPI.Exception, match=r"no 4096 bytes of host memory for copies of a GPU array: .*not pinned") as caught:
            staging.Pool(driver).lease(100)
    assert caught.value.Get_error_class() == MPI.ERR_NO_MEM


def test_memory_that_cannot_be_pinned_is_lent_as_it_is() -> None:
    with Full(1) as driver:
        driver.use(0)
        pool = staging.Pool(driver)
        with pytest.warns(
            RuntimeWarning, match=r"not pinned, which is slow: no 4096 bytes can be pinned: cuMemHostRegister_v2"
        ) as told:
            leases = [pool.lease(nbytes) for nbytes in (100, 5000, 3 << 20)]
        assert len(told) == 1
        assert not any(lease.is_pinned or lease.address % 4096 for lease in leases)
        assert not pool.idle
        driver.left = 8 << 20
        assert pool.lease(100).is_pinned


def test_idle_memory_is_given_up_for_what_is_asked() -> None:
    with Full(1) as driver:
        driver.use(0)
        driver.left = 8 << 20
        pool = staging.Pool(driver)
        assert pool.lease(5 << 20).is_pinned
        assert pool.lease(6 << 20).is_pinned
        assert driver.left == 2 << 20
        pool.unpin()


@pytest.mark.ranks(1)
def test_a_full_arena_is_done_without(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(heap: Heap, nbytes: int) -> int:
        raise MemoryError(f"{nbytes} bytes of shared memory asked for")

    with Registers() as driver:
        driver.use(0)
        monkeypatch.setattr(Heap, "allocate", none)
        pool = staging.Pool(driver)
        assert pool.lease(3 << 20).is_pinned
        assert list(driver.pinned.values()) == [3 << 20]
        pool.unpin()


@pytest.mark.ranks(1)
def test_what_cannot_be_pinned_goes_back_to_the_arena(comm: Any) -> None:
    heap = runtime.engine().arena.open_heap(0)
    with Full(1) as driver, pytest.warns(RuntimeWarning, match="not pinned"):
        driver.use(0)
        before = list(heap._holes)
        assert not staging.Pool(driver).lease(100).is_pinned
        assert heap._holes == before


@pytest.mark.ranks(1)
def test_memory_of_a_copy_that_was_given_up_is_never_lent_again(comm: Any) -> None:
    class Stuck(Double):
        def is_idle(self, stream: int) -> bool:
            raise KeyboardInterrupt

    before = len(memory._unfinished)
    with Stuck(1), pytest.raises(KeyboardInterrupt):
        comm.Bcast(DeviceArray(10))
    assert len(memory._unfinished) == before + 1


@pytest.mark.ranks(1)
def test_memory_of_a_message_whose_copy_failed_is_never_lent_again(comm: Any) -> None:
    with Broken(1):
        arriving = comm.Irecv(DeviceArray(1 << 20, kind=POOL), 0)
        sending = comm.Isend(np.zeros(1 << 20), 0)
        before = len(memory._unfinished)
        with pytest.raises(MPI.Exception, match="cuMemcpyAsync"):
            arriving.Wait()
        assert len(memory._unfinished) == before + 1
        sending.Wait()


def test_known_libraries_only_have_rows() -> None:
    assert streams.library_of(np.ndarray) == streams.library_of(DeviceArray) == ""
