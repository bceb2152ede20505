"""Device arrays in messages between two ranks, with plain and with derived datatypes, on the driver double."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.arguments import gpu_packing
from ncclx_mpi.buffers import layout
from ncclx_mpi.testing.driver_double import DeviceArray, Double, SendOnlyArray
from ncclx_mpi.testing.driver_double.arrays import using
from numba_kernels.cuda.ptx import CompilerMissing
from tests.device.doubles import KINDS, maker, values_of
from tests.device.messages import check_derived_datatypes

LENGTHS = (0, 1, 1000, 60_000)


class InterfaceArray(DeviceArray):
    """An array that speaks the CUDA array interface only."""

    @property
    def __dlpack__(self) -> Any:  # type: ignore[override]
        raise AttributeError


class Pickled(DeviceArray):
    """An array that its library pickles, as CuPy does."""

    def __reduce__(self) -> Any:
        return Pickled.from_host, (self.get(),)


def exchange(comm: Any, method: str, outgoing: Any, incoming: Any) -> None:
    """Send to the right by `method`, and receive from the left."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if method.endswith("replace"):
        done = getattr(comm, method)(incoming, right, 3, left, 3)
        return None if done is None else done.Wait()
    if "recv" in method:
        done = getattr(comm, method)(outgoing, right, 3, incoming, left, 3)
        return None if done is None else done.Wait()
    receive = comm.Recv_init(incoming, left, 3) if method.endswith("init") else comm.Irecv(incoming, left, 3)
    if not method.endswith("init"):
        done = getattr(comm, method)(outgoing, right, 3)
        if done is not None:
            done.Wait()
        return receive.Wait()
    send = getattr(comm, method)(outgoing, right, 3)
    for _ in range(3):
        MPI.Prequest.Startall([receive, send])
        MPI.Request.Waitall([receive, send])
    send.Free()
    receive.Free()
    return None


METHODS = (
    "Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend", "Send_init", "Ssend_init", "Bsend_init",
    "Sendrecv", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace",
)  # fmt: skip


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_send(comm: Any, kind: str) -> None:
    make, left = maker(kind, comm.rank), (comm.rank - 1) % comm.size
    comm.Attach_buffer(bytearray(4 << 20))
    with Double(comm.rank):
        for method in METHODS:
            for length in LENGTHS:
                incoming = make(np.arange(length) + 1_000_000 * comm.rank)
                exchange(comm, method, make(np.arange(length) + 1_000_000 * comm.rank), incoming)
                np.testing.assert_equal(values_of(incoming), np.arange(length) + 1_000_000 * left, err_msg=f"{method} of {length}")
    comm.Detach_buffer()


@pytest.mark.ranks(2)
def test_matched_messages_and_shorter_ones(comm: Any) -> None:
    with Double(comm.rank):
        if comm.rank:
            comm.Send(DeviceArray.from_host(np.arange(10.0)), 0, 5)
            comm.Send(DeviceArray.from_host(np.arange(3.0)), 0, 6)
            return
        whole, room, status = DeviceArray(10), DeviceArray.from_host(np.full(6, -1.0)), MPI.Status()
        comm.Mprobe(1, 5).Recv(whole)
        comm.Recv(room, 1, 6, status)
        np.testing.assert_equal(values_of(whole), np.arange(10.0))
        np.testing.assert_equal(values_of(room), [0, 1, 2, -1, -1, -1])
        assert status.Get_count(MPI.DOUBLE) == 3


@pytest.mark.ranks(2)
def test_a_persistent_send_takes_what_is_there_at_each_start(comm: Any) -> None:
    with Double(comm.rank):
        array = DeviceArray.from_host(np.zeros(1000))
        request = comm.Recv_init(array, 0) if comm.rank else comm.Send_init(array, 1)
        for value in (1.0, 2.0, 3.0):
            if comm.rank == 0:
                array.fill_later(value)
            request.Start()
            request.Wait()
            assert (values_of(array) == value).all()
        request.Free()


# Order ------------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", [DeviceArray, InterfaceArray])
def test_calls_come_after_what_the_current_stream_holds(comm: Any, kind: type[DeviceArray]) -> None:
    for seed in range(20):
        with Double(seed) as driver:
            array, stream = kind(5000), driver.create_stream()
            with using(stream):
                array.fill_later(-1.0)
                if comm.rank == 0:
                    array.fill_later(float(seed))
                    comm.Send(array, 1)
                else:
                    copy = kind(5000)
                    copy.later(np.copyto, "copy", array)  # reads what the message is about to replace
                    comm.Recv(array, 0)
                    assert (values_of(copy) == -1).all()
                with using(0):
                    assert (values_of(array) == seed).all()  # complete on return, for every stream
                total = kind(5000)
                array.later(lambda target: np.add(target, 1, out=target))
                comm.Allreduce(array, total)
                assert (values_of(total) == 2 * seed + 2).all()


# Derived datatypes ------------------------------------------------------------------------------------------------


class WithoutCompiler(Double):
    """A machine on which no kernel can be made."""

    def launch(self, kernel: Any, *_: Any) -> None:
        raise CompilerMissing(kernel.name, (9, 0), "for a test")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("machine", [Double, WithoutCompiler])
@pytest.mark.filterwarnings("ignore:derived datatypes of GPU arrays")
def test_derived_datatypes(comm: Any, machine: type[Double], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_packing._Compiler, "is_missing", False)
    with machine(comm.rank):
        check_derived_datatypes(comm, (1, 4))
    assert gpu_packing._Compiler.is_missing == (machine is WithoutCompiler)


@pytest.mark.ranks(2)
def test_derived_datatypes_of_more_blocks_than_are_listed(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_FEW", 3)
    monkeypatch.setattr(layout, "_EACH", 0)
    with Double(comm.rank):
        check_derived_datatypes(comm, (1, 4))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("few", [layout._FEW, 3])
def test_part_of_a_derived_datatype(comm: Any, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that ends inside of an element fills what came."""
    monkeypatch.setattr(layout, "_FEW", few)
    columns = MPI.INT.Create_vector(50, 1, 2).Commit()
    with Double(comm.rank):
        if comm.rank == 0:
            comm.Send(DeviceArray.from_host(np.arange(20, dtype="i")), 1)
        else:
            target = DeviceArray.from_host(np.full(100, -1, "i"))
            comm.Recv([target, 1, columns], 0)
            wanted = np.full(100, -1)
            wanted[:40:2] = np.arange(20)
            np.testing.assert_equal(values_of(target), wanted)
    columns.Free()


# Other calls ------------------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 2)
def test_objects_with_device_arrays(comm: Any) -> None:
    with Double(comm.rank):
        arrays = comm.allgather({"rank": comm.rank, "array": Pickled.from_host(np.full(50_000, comm.rank))})
        for rank, found in enumerate(arrays):
            assert found["rank"] == rank
            assert (values_of(found["array"]) == rank).all()


@pytest.mark.ranks(1)
def test_packing_and_local_reduction(comm: Any) -> None:
    with Double(3):
        packed = DeviceArray.from_host(np.zeros(48, np.uint8))
        place = MPI.INT.Pack(DeviceArray.from_host(np.arange(10, dtype="i")), packed, 4, comm)
        assert place == 44
        assert values_of(packed)[4:44].view("i").tolist() == list(range(10))
        back = DeviceArray(10, "i")
        assert MPI.INT.Unpack(packed, 4, back, comm) == 44
        assert values_of(back).tolist() == list(range(10))
        MPI.SUM.Reduce_local(np.full(10, 5, "i"), back)
        assert values_of(back).tolist() == list(range(5, 15))


@pytest.mark.ranks(2)
def test_windows_take_device_arrays_as_origins_only(comm: Any) -> None:
    with Double(comm.rank):
        with pytest.raises(MPI.Exception, match="windows are of host memory") as caught:
            MPI.Win.Create(DeviceArray(10), comm=MPI.COMM_SELF)
        assert caught.value.Get_error_class() == MPI.ERR_ARG
        window = MPI.Win.Allocate(80, 8, comm=comm)
        window.Fence()
        window.Put(DeviceArray.from_host(np.arange(10.0) + comm.rank), 1 - comm.rank)
        window.Fence()
        found = DeviceArray(10)
        window.Get(found, comm.rank)
        window.Fence()
        assert values_of(found).tolist() == (np.arange(10.0) + 1 - comm.rank).tolist()
        window.Free()


@pytest.mark.ranks(2)
def test_raw_addresses(comm: Any) -> None:
    with Double(comm.rank) as driver:
        array = DeviceArray.from_host(np.full(100, float(comm.rank)))
        driver.synchronize(1)
        raw = MPI.memory.fromaddress(array.address, array.nbytes)
        with pytest.raises(BufferError, match="not CPU-accessible"):
            raw.tobytes()
        shifted = MPI.DOUBLE.Create_hindexed([100], [MPI.Get_address(array)]).Commit()
        if comm.rank == 0:
            comm.Send([raw, MPI.DOUBLE], 1)
            comm.Send([MPI.BOTTOM, 1, shifted], 1)
        else:
            for spec in ([MPI.BOTTOM, 1, shifted], [raw, MPI.DOUBLE]):
                array.fill_later(-1.0)
                driver.synchronize(1)
                comm.Recv(spec, 0)
                assert (values_of(array) == 0).all()
        shifted.Free()


@pytest.mark.ranks(2)
def test_addresses_on_both_sides_in_one_call(comm: Any) -> None:
    with Double(comm.rank) as driver:

        def both(values: float) -> tuple[DeviceArray, Any]:
            return DeviceArray.from_host(np.full(40, values)), np.full(40, values + 4)

        sent, received = both(1.0 + comm.rank), both(-9.0)
        driver.synchronize(1)
        columns = MPI.DOUBLE.Create_vector(20, 1, 2).Commit()
        specs = [[MPI.BOTTOM, [1, 1], [MPI.Get_address(array) for array in arrays], [columns] * 2] for arrays in (sent, received)]
        comm.Alltoallw(*specs)
        for source, array in enumerate(received):
            found = values_of(array)
            assert (found[::2] == 1 + source + 4 * comm.rank).all()
            assert (found[1::2] == -9 + 4 * source).all()
        columns.Free()


@pytest.mark.ranks(2)
def test_immutable_arrays_can_be_sent(comm: Any) -> None:
    with Double(comm.rank):
        array = SendOnlyArray.from_host(np.arange(100.0))
        with pytest.raises(BufferError, match="JAX arrays are immutable"):
            comm.Irecv(array, 1 - comm.rank)
        total = DeviceArray(100)
        comm.Allreduce(array, total)
        assert (values_of(total) == 2 * np.arange(100.0)).all()
