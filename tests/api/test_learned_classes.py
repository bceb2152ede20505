"""Arrays of other libraries: compiled code reads them once their class has been learned, and leaves to the slow path what is not plain."""

import _thread
import ctypes
import gc
import subprocess
import sys
import tempfile
import weakref
from array import array

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.arguments.spec import format_datatype
from numba_kernels import pyclasses
from numba_kernels.pyobject import EXPORTERS

ENTRIES = 24


class Subclass(np.ndarray):
    pass


class Words(array):
    pass


class Tensor:
    """Speaks DLPack of both versions."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **asked):
        return self.values.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class OldTensor(Tensor):
    """Does not know of versions."""

    def __dlpack__(self, stream=None):
        return self.values.__dlpack__()


class TorchTensor(Tensor):
    """As Torch's: makes an array of NumPy over its memory, if that is the CPU's."""

    is_cpu, requires_grad, device = True, False, "cpu"

    def __init__(self, values):
        super().__init__(values)
        self.shape, self.dtype = values.shape, values.dtype

    def numpy(self):
        return self.values

    def is_conj(self):
        return False

    is_neg = is_conj

    def data_ptr(self):
        return self.values.ctypes.data

    def stride(self):
        return self.values.strides


TorchTensor.__module__ = "torch"


class Interface:
    """Speaks the CUDA array interface, over the host's memory."""

    def __init__(self, values):
        self.values = values

    @property
    def __cuda_array_interface__(self):
        values = self.values
        return {"version": 0, "data": (values.ctypes.data, False), "typestr": values.dtype.str, "shape": values.shape}


def make_ctypes(values):
    made = (ctypes.c_double * len(values))()
    np.frombuffer(made)[:] = values
    return made


def values_of(obj):
    """The values of an object of any of the makers."""
    if isinstance(obj, Tensor | Interface):
        return obj.values
    return np.asarray(obj) if isinstance(obj, np.ndarray) else np.frombuffer(obj)


MAKERS = {
    "subclass": (lambda values: values.view(Subclass), Subclass, pyclasses.LIKE_ARRAY),
    "memmap": (None, np.memmap, pyclasses.LIKE_ARRAY),
    "ctypes": (make_ctypes, ctypes.c_double * ENTRIES, pyclasses.VIEWED),
    "words": (lambda values: Words("d", values), Words, pyclasses.VIEWED),
    "tensor": (Tensor, Tensor, pyclasses.TENSOR),
    "old tensor": (OldTensor, OldTensor, pyclasses.TENSOR_OF_OLD),
    "torch tensor": (TorchTensor, TorchTensor, pyclasses.BY_NUMPY),
    "interface": (Interface, Interface, pyclasses.ASKED),
}


def make(name, values, tmp_path):
    maker, _, _ = MAKERS[name]
    if maker is not None:
        return maker(values)
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        mapped = np.memmap(file, "d", "w+", shape=values.shape)
    mapped[:] = values
    return mapped


def how(kind):
    """How objects of a class are read."""
    row = [int(word) for word in pyclasses._classes]
    return dict(zip(row[::2], row[1::2], strict=True)).get(id(kind))


@pytest.fixture(autouse=True)
def nothing_is_learned(monkeypatch):
    """What tests before have had this process learn must not leave too little room; what these learn goes with their classes."""
    before = list(pyclasses._classes)
    monkeypatch.setattr(pyclasses, "_kept", dict.fromkeys(EXPORTERS.values(), pyclasses.REFUSED))
    write_rows([0] * len(before))
    yield
    write_rows(before)


def write_rows(words):
    for place, word in enumerate(words):
        pyclasses._classes[place] = word


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("name", MAKERS)
def test_calls_before_and_after_a_class_is_learned(comm, name, tmp_path):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for turn in range(3):
        sent = make(name, np.arange(ENTRIES) + 100.0 * rank + turn, tmp_path)
        got = make(name, np.full(ENTRIES, -1.0), tmp_path)
        expected = np.arange(ENTRIES) + 100.0 * left + turn
        comm.Sendrecv(sent, right, 1, got, left, 1)
        assert (values_of(got) == expected).all()
        comm.Sendrecv([sent, 8, MPI.DOUBLE], right, 1, [got, (8, 16), MPI.DOUBLE], left, 1)
        assert (values_of(got)[16:] == expected[:8]).all()
        request = comm.Isend(sent, right, 2)
        comm.Recv(got, left, 2)
        request.Wait()
        assert (values_of(got) == expected).all()
        comm.Allreduce(sent, got)
        assert (values_of(got) == sum(np.arange(ENTRIES) + 100.0 * k + turn for k in range(size))).all()
        comm.Bcast(got if rank else sent)
        assert (values_of(got if rank else sent) == np.arange(ENTRIES) + turn).all()
        counts = [ENTRIES // size] * size
        comm.Alltoallv([sent, counts], [got, counts])
        part = ENTRIES // size
        for k in range(size):
            wanted = np.arange(ENTRIES)[part * rank : part * (rank + 1)] + 100.0 * k + turn
            assert (values_of(got)[part * k : part * (k + 1)] == wanted).all()
    _, kind, wanted = MAKERS[name]
    assert how(kind) == wanted


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", MAKERS)
def test_types_are_those_of_the_elements(comm, name, tmp_path):
    for _ in range(3):
        sent, got = (make(name, np.arange(ENTRIES) * factor, tmp_path) for factor in (1.0, 0.0))
        comm.Sendrecv(sent, 0, 0, [got, MPI.DOUBLE], 0, 0, status := MPI.Status())
        assert status.Get_count(MPI.DOUBLE) == ENTRIES
        half = np.empty(ENTRIES // 2)
        comm.Isend(sent, 0)
        with pytest.raises(MPI.Exception) as caught:
            comm.Recv(half, 0)
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE


def test_what_is_not_plain_is_refused_with_its_reason():
    comm, target = MPI.COMM_SELF, np.empty(ENTRIES)
    values = np.arange(2.0 * ENTRIES)
    for _ in range(2):  # learns the classes
        comm.Sendrecv(values[:ENTRIES].view(Subclass), 0, 0, target, 0, 0)
        comm.Sendrecv(Tensor(values[:ENTRIES]), 0, 0, target, 0, 0)
    for wrong in (values[::2].view(Subclass), Tensor(values[::2])):
        with pytest.raises(BufferError, match="not contiguous"):
            comm.Sendrecv(wrong, 0, 0, target, 0, 0)
    values.flags.writeable = False
    for frozen in (values[:ENTRIES].view(Subclass), Tensor(values[:ENTRIES])):
        with pytest.raises(BufferError, match="not writable"):
            comm.Sendrecv(target, 0, 0, frozen, 0, 0)
    with pytest.raises((KeyError, BufferError, TypeError, ValueError)):
        comm.Sendrecv(np.array([None] * 3).view(Subclass), 0, 0, target, 0, 0)


class Claims(Interface):
    """Says that it is somewhere."""

    place = None

    @property
    def __cuda_array_interface__(self):
        said = super().__cuda_array_interface__
        return said | {"data": (self.place, False)} if self.place is not None else said


def test_what_no_word_holds_is_not_read():
    comm, target, obj = MPI.COMM_SELF, np.zeros(4), Claims(np.arange(4.0))
    for place in (None, None, 1 << 70, None, 1 << 63, None):
        obj.place = place
        if place is None:
            comm.Sendrecv(obj, 0, 0, target, 0, 0)
            assert (target == np.arange(4)).all()
            continue
        with pytest.raises((OverflowError, ValueError, BufferError, MPI.Exception)):
            comm.Sendrecv([obj, 1 << 40], 0, 0, target, 0, 0)
    assert not comm.Iprobe()


def test_fortran_order_and_dimensions():
    comm = MPI.COMM_SELF
    for _ in range(3):
        for order in "CF":
            cube = np.arange(24.0).reshape(2, 3, 4).copy(order)
            target = np.zeros((2, 3, 4), order=order)
            comm.Sendrecv(Tensor(cube), 0, 0, Tensor(target), 0, 0)
            assert (target == cube).all()
            target[:] = 0
            comm.Sendrecv(cube.view(Subclass), 0, 0, target.view(Subclass), 0, 0)
            assert (target == cube).all()
        scalar, nothing = np.array(7.0), np.empty((3, 0))
        comm.Sendrecv(Tensor(scalar), 0, 0, Tensor(got := np.array(0.0)), 0, 0)
        assert got == 7.0
        comm.Sendrecv(Tensor(nothing), 0, 0, Tensor(nothing), 0, 0)


@pytest.mark.parametrize("code", "?bhilBHILefdFD")
def test_all_types_of_elements(code):
    comm, values = MPI.COMM_SELF, (np.arange(ENTRIES) % 2).astype(code)
    for _ in range(3):
        for kind in (Tensor, OldTensor, lambda values: values.view(Subclass)):
            got = np.zeros(ENTRIES, code)
            comm.Sendrecv(kind(values), 0, 0, kind(got), 0, 0, status := MPI.Status())
            assert (got == values).all()
            assert status.Get_count(MPI.BYTE) == values.nbytes
        if code != "e":
            total = np.zeros(ENTRIES, code)
            comm.Allreduce(Tensor(values), Tensor(total), MPI.LOR if code == "?" else MPI.SUM)
            assert (total == values).all()


@pytest.mark.parametrize("order", [ctypes.c_double.__ctype_be__, ctypes.c_double.__ctype_le__])
def test_byte_orders_of_ctypes(order):
    comm, got = MPI.COMM_SELF, np.zeros(4)
    kind = order * 4
    for turn in range(3):
        made = kind(*(turn + k for k in range(4)))
        if order is ctypes.c_double:
            comm.Sendrecv(made, 0, 0, got, 0, 0)
            assert (got == turn + np.arange(4)).all()
        else:
            with pytest.raises(BufferError, match="byte order"):
                comm.Sendrecv(made, 0, 0, got, 0, 0)


def test_a_tensor_is_kept_until_its_request_ends():
    comm, target = MPI.COMM_SELF, np.zeros(200_000)
    for _ in range(3):
        values = np.arange(200_000.0)
        held = weakref.ref(values)
        request = comm.Isend(Tensor(values), 0)
        del values
        gc.collect()
        assert held() is not None
        comm.Recv(target, 0)
        request.Wait()
        del request
        gc.collect()
        assert held() is None
        assert (target == np.arange(200_000)).all()


def test_an_array_leaks_nothing():
    comm, target = MPI.COMM_SELF, np.zeros(4)
    tensor, subclass = Tensor(np.zeros(4)), np.zeros(4).view(Subclass)
    for obj in (tensor, subclass):
        comm.Sendrecv(obj, 0, 0, target, 0, 0)
        before = sys.getrefcount(obj), sys.getrefcount(getattr(obj, "values", obj))
        for _ in range(100):
            comm.Sendrecv(obj, 0, 0, target, 0, 0)
        assert (sys.getrefcount(obj), sys.getrefcount(getattr(obj, "values", obj))) == before


class Moody(Tensor):
    """Says no as it is told to."""

    mood: BaseException | None = None

    def __dlpack__(self, **asked):
        if self.mood is not None:
            raise self.mood
        return super().__dlpack__(**asked)


def test_errors_of_an_object_are_told():
    comm, target, obj = MPI.COMM_SELF, np.zeros(4), Moody(np.zeros(4))
    for mood in (None, RuntimeError("not today"), None, KeyboardInterrupt(), None, SystemExit(), None):
        obj.mood = mood
        if mood is None:
            comm.Sendrecv(obj, 0, 0, target, 0, 0)
            continue
        with pytest.raises(type(mood)):
            comm.Sendrecv(obj, 0, 0, target, 0, 0)
    assert how(Moody) == pyclasses.TENSOR


class Interrupting(Interface):
    """A signal arrives while it is asked."""

    @property
    def __cuda_array_interface__(self):
        if self.interrupts:
            _thread.interrupt_main()
        return super().__cuda_array_interface__


def test_an_interrupt_while_an_object_is_asked():
    comm, target, obj = MPI.COMM_SELF, np.zeros(4), Interrupting(np.zeros(4))
    for interrupts in (False, False, True, False):
        obj.interrupts = interrupts
        if not interrupts:
            comm.Sendrecv(obj, 0, 0, target, 0, 0)
            continue
        with pytest.raises(KeyboardInterrupt):
            comm.Sendrecv(obj, 0, 0, target, 0, 0)


def test_a_tensor_of_torch_that_makes_no_array():
    """One that requires gradients, of a type that NumPy has not, with gaps, or on a GPU."""

    class Other(TorchTensor):
        made = None

        def numpy(self):
            if isinstance(self.made, BaseException):
                raise self.made
            return self.made

    Other.__module__ = "torch"
    comm, target, values = MPI.COMM_SELF, np.zeros(4), np.arange(4.0)
    obj = Other(values)
    for made in (values, RuntimeError("requires grad"), values, np.arange(8.0)[::2], "no array", None, values):
        obj.made = made
        target[:] = -1
        comm.Sendrecv(obj, 0, 0, target, 0, 0)  # by DLPack, where there is no array
        assert (target == values).all()
    assert how(Other) == pyclasses.BY_NUMPY
    obj.made = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        comm.Sendrecv(obj, 0, 0, target, 0, 0)
    obj.made, obj.is_cpu = values, False
    comm.Sendrecv(obj, 0, 0, target, 0, 0)
    assert how(Other) == pyclasses.REFUSED


def test_a_format_may_say_that_it_is_the_machines():
    """As those of JAX's arrays do."""
    assert format_datatype("=f") == MPI.FLOAT
    assert format_datatype("@d") == MPI.DOUBLE
    with pytest.raises(BufferError, match="byte order"):
        format_datatype(">f")


def test_a_class_with_objects_elsewhere_is_left_to_the_slow_path():
    class Elsewhere(Tensor):
        """Is on a device of another kind at times."""

        device = (1, 0)

        def __dlpack_device__(self):
            return self.device

    comm, target, obj = MPI.COMM_SELF, np.zeros(4), Elsewhere(np.arange(4.0))
    comm.Sendrecv(obj, 0, 0, target, 0, 0)
    assert how(Elsewhere) == pyclasses.TENSOR
    obj.device = (8, 0)  # Metal
    with pytest.raises(Exception, match="."):
        comm.Sendrecv(obj, 0, 0, target, 0, 0)
    assert how(Elsewhere) == pyclasses.REFUSED
    obj.device = (1, 0)
    target[:] = 0
    comm.Sendrecv(obj, 0, 0, target, 0, 0)
    assert (target == np.arange(4)).all()


THREADS = """
import ctypes, sys, threading
import numpy as np
from ncclx_mpi import MPI
from ncclx_mpi.arguments.spec import format_datatype
from numba_kernels import pyclasses
sys.setswitchinterval(1e-6)
kinds = [[type(f"Array{turn}.{thread}", (np.ndarray,), {}) for turn in range(2)] + [ctypes.c_double * (9 + thread)] for thread in range(8)]
begin = threading.Barrier(8)
def learn(thread):
    begin.wait()
    for kind in kinds[thread]:
        make = kind if issubclass(kind, ctypes.Array) else lambda: np.zeros(9).view(kind)
        for _ in range(3):
            sent, got = make(), make()
            sent[:] = [float(thread)] * len(sent)
            MPI.COMM_SELF.Sendrecv(sent, 0, thread, got, 0, thread)
            assert list(got) == [thread] * len(got)
        done.append(kind)
done = []
threads = [threading.Thread(target=learn, args=(thread,)) for thread in range(8)]
[each.start() for each in threads]
[each.join() for each in threads]
assert len(done) == 24
rows = list(pyclasses._classes)
found = {kind: how for kind, how in zip(rows[::2], rows[1::2]) if kind}
assert found == {id(kind): pyclasses._kept[kind] for each in kinds for kind in each}
for kind in done:
    assert pyclasses._kept[kind] == (pyclasses.VIEWED if issubclass(kind, ctypes.Array) else pyclasses.LIKE_ARRAY)
"""


def test_threads_learn_classes_at_the_same_time():
    for _ in range(3):
        subprocess.run([sys.executable, "-c", THREADS], check=True, timeout=60)


MANY = """
import numpy as np
from ncclx_mpi import MPI
for turn in range(600):
    kind = type(f"Array{turn}", (np.ndarray,), {})
    for _ in range(3):
        sent, got = (np.full(9, float(k)).view(kind) for k in (turn, -1))
        MPI.COMM_SELF.Sendrecv(sent, 0, 0, got, 0, 0)
        assert (got == turn).all()
"""


def test_more_classes_than_are_learned():
    subprocess.run([sys.executable, "-c", MANY], check=True, timeout=60)
