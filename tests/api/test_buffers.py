"""The resolver: forms of specifications, kinds of objects, and what is refused."""

from __future__ import annotations

import array
import ctypes
import gc
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclx_mpi import arguments, errors
from ncclx_mpi.api.datatype import PREDEFINED, Datatype, Get_address
from ncclx_mpi.api.memory import buffer
from ncclx_mpi.buffers.sentinels import BOTTOM, IN_PLACE

INT, DOUBLE, BYTE = (PREDEFINED[name] for name in ("INT", "DOUBLE", "BYTE"))


class Interface:
    """An object with nothing but a CUDA array interface, over host memory."""

    def __init__(self, array: Any, /, **changes: Any) -> None:
        found = dict(array.__array_interface__)
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": found["data"],
            "typestr": found["typestr"],
            "shape": found["shape"],
            "strides": found["strides"],
            **changes,
        }


class Tensor:
    """An object with nothing but DLPack; of version 0 if it does not know the arguments of version 1."""

    def __init__(self, data: Any, *, is_old: bool = False) -> None:
        self.data = data
        self.is_old = is_old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()  # type: ignore[no-any-return]

    def __dlpack__(self, **options: Any) -> Any:
        options.pop("stream", None)
        if self.is_old and options:
            raise TypeError("unexpected argument")
        return self.data.__dlpack__(**options)


class Bfloat16(Tensor):
    """A tensor of bfloat16, as Torch gives it."""

    def __dlpack__(self, **options: Any) -> Any:
        capsule = super().__dlpack__(**options)
        name, code_at = (b"dltensor", 20) if self.is_old else (b"dltensor_versioned", 52)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
        ctypes.c_uint8.from_address(pointer(capsule, name) + code_at).value = 4
        return capsule


def resolved(spec: Any, *, writable: bool = True) -> tuple[int, int, str]:
    found = arguments.recv(spec) if writable else arguments.send(spec)
    return found.address, found.count, found.datatype.name


DATA = np.arange(6, dtype=np.float64)
AT = DATA.ctypes.data


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (DATA, (AT, 6)),
        ([DATA, DOUBLE], (AT, 6)),
        ((DATA, "d"), (AT, 6)),
        ([DATA, "f8"], (AT, 6)),
        ([DATA, 4], (AT, 4)),
        ([DATA, None], (AT, 6)),
        ([DATA, (3, 2)], (AT + 16, 3)),
        ([DATA, [3, 2]], (AT + 16, 3)),
        ([DATA, (None, 2)], (AT + 16, 4)),
        ([DATA, 3, DOUBLE], (AT, 3)),
        ([DATA, (3, 1), "d"], (AT + 8, 3)),
        ([DATA, 3, 1, DOUBLE], (AT + 8, 3)),
        ([DATA, None, 6, DOUBLE], (AT + 48, 0)),
        ([DATA, np.int32(3), np.uint8(1), DOUBLE], (AT + 8, 3)),
        ([BOTTOM, 0, BYTE], (0, 0)),
        ([None, 0, BYTE], (0, 0)),
        ([None, BYTE], (0, 0)),
    ],
)
def test_simple_forms(spec: Any, expected: tuple[int, int]) -> None:
    assert resolved(spec)[:2] == expected


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: arguments.send(None), TypeError, "expecting buffer or list/tuple"),
        (lambda: arguments.send(3), TypeError, "expecting buffer or list/tuple"),
        (lambda: arguments.send([DATA]), ValueError, "expecting 2 to 4 items"),
        (lambda: arguments.send([DATA, 1, 1, DOUBLE, 1]), ValueError, "expecting 2 to 4 items"),
        (lambda: arguments.send([None, 1, BYTE]), ValueError, "buffer is None but count is 1"),
        (lambda: arguments.send([DATA, -1]), ValueError, "negative count -1"),
        (lambda: arguments.send([DATA, (1, -1)]), ValueError, "negative displacement -1"),
        (lambda: arguments.send([DATA, (None, 7)]), ValueError, "displacement 7 out of bounds.* 6"),
        (lambda: arguments.send([DATA, 7]), ValueError, "byte 0 to 56, but the buffer has 48 bytes"),
        (lambda: arguments.send([DATA, (4, 3)]), ValueError, "byte 24 to 56, but the buffer has 48 bytes"),
        (lambda: arguments.send([DATA, "zz"]), KeyError, "cannot map 'zz'"),
        (lambda: arguments.send([DATA, 1.5]), TypeError, "integer"),
        (lambda: arguments.send([b"abc", INT]), ValueError, "length 3 is not a multiple of datatype extent 4"),
        (lambda: arguments.send(DATA, 4), ValueError, "number of entries 6 is not a multiple of required number of blocks 4"),
        (lambda: arguments.send([DATA, 2], 4), ValueError, "buffer has 48"),
        (lambda: arguments.send([DATA, PREDEFINED["INTEGER16"]]), ValueError, "cannot infer count, datatype is null"),
        (lambda: arguments.send([DATA, 1, 1, PREDEFINED["INTEGER16"]]), ValueError, "displacement, datatype is null"),
        (lambda: arguments.send([DATA, 1, PREDEFINED["INTEGER16"]]), errors.Exception, "null"),
        (lambda: arguments.recv(b"abc"), BufferError, "writable"),
        (lambda: arguments.recv(memoryview(b"abc")), BufferError, "writable"),
        (lambda: arguments.send(DATA[::2]), BufferError, "contiguous"),
        (lambda: arguments.send(memoryview(DATA)[::2]), BufferError, "contiguous"),
        (lambda: arguments.send(DATA.astype(">f8")), BufferError, "byte order"),
        (lambda: arguments.send(np.zeros(2, "i4,f8")), KeyError, "cannot map 'T{"),
        (lambda: arguments.send(np.array([object()])), KeyError, "cannot map 'O'"),
        (lambda: arguments.send_vector([DATA, [3, 4]], 2), ValueError, "byte 24 to 56, but the buffer has 48 bytes"),
        (lambda: arguments.send_vector([DATA, [1, 2, 3]], 2), ValueError, "expecting 2 items, got 3"),
        (lambda: arguments.send_vector([DATA, (1, 2, 3)], 2), ValueError, "unpack"),
        (lambda: arguments.send_vector([DATA, [1, -1]], 2), ValueError, "negative count -1"),
        (lambda: arguments.send_w([DATA, [INT]], 2), ValueError, "expecting 2 items, got 1"),
        (lambda: arguments.send_w([BOTTOM, [INT]], 1), ValueError, "BOTTOM requires counts"),
        (lambda: arguments.send_w([DATA, [7], [0], [DOUBLE]], 1), ValueError, "buffer has 48 bytes"),
        (lambda: arguments.send_w([DATA, ["d"]], 1), TypeError, "Datatype"),
    ],
)
def test_refused(make: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_read_only_array() -> None:
    frozen = DATA.copy()
    frozen.flags.writeable = False
    assert arguments.send(frozen).count == 6
    for _ in range(2):
        with pytest.raises(BufferError, match="read-only"):
            arguments.recv(frozen)


def test_derived_types_are_checked_against_the_memory() -> None:
    matrix = np.zeros((3, 4), np.int32)
    column = INT.Create_vector(3, 1, 4).Create_resized(0, 4).Commit()
    assert arguments.send([matrix, 4, column]).count == 4
    with pytest.raises(ValueError, match="48 bytes"):
        arguments.send([matrix, 5, column])
    with pytest.raises(ValueError, match="48 bytes"):
        arguments.send([matrix, column])
    before = INT.Create_hindexed([1], [-4]).Commit()
    with pytest.raises(ValueError, match="from byte -4 to 0"):
        arguments.send([matrix, 1, before])


def test_bottom_uses_addresses() -> None:
    data = np.arange(4, dtype=np.int32)
    absolute = Datatype.Create_struct([2], [Get_address(data) + 4], [INT]).Commit()
    found = arguments.send([BOTTOM, 1, absolute])
    assert (found.address, found.nbytes) == (data.ctypes.data + 4, 8)


@pytest.mark.parametrize("code", "?bhilBHILefdgFDG")
@pytest.mark.parametrize("kind", ["array", "interface", "tensor", "old tensor", "memoryview", "buffer"])
def test_kinds_of_objects(kind: str, code: str) -> None:
    data = np.arange(5).astype(code)
    if "tensor" in kind and code in "gG":
        pytest.skip("NumPy does not export long double through DLPack")
    makers: dict[str, Any] = {
        "array": lambda: data,
        "interface": lambda: Interface(data),
        "tensor": lambda: Tensor(data),
        "old tensor": lambda: Tensor(data, is_old=True),
        "memoryview": lambda: memoryview(data),
        "buffer": lambda: [buffer(data), code],
    }
    spec = makers[kind]()
    for resolve in (arguments.send, arguments.recv):
        found = resolve(spec)
        assert (found.address, found.count, found.nbytes) == (data.ctypes.data, 5, data.nbytes)
        assert found.datatype == arguments.send(data).datatype


@pytest.mark.parametrize("shape", [(0,), (), (0, 3), (2, 3), (1, 1, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_shapes(shape: tuple[int, ...], order: Any) -> None:
    data = np.zeros(shape, np.int16, order=order)
    for spec in (data, Interface(data, strides=data.strides), Tensor(data)):
        assert arguments.send(spec).count == data.size


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"mask": np.zeros(6)}, BufferError, "masked"),
        ({"strides": (16,)}, BufferError, "not contiguous"),
        ({"typestr": ">f8"}, BufferError, "byte order"),
        ({"typestr": "?f8"}, BufferError, "unrecognized byte order"),
        ({"shape": (-1,)}, BufferError, "negative size"),
        ({"data": (None, False)}, TypeError, "address"),
        ({"data": (AT, True)}, BufferError, "not writable"),
    ],
)
def test_bad_interfaces(changes: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        arguments.recv(Interface(DATA, **changes))


def test_other_devices_are_refused() -> None:
    class Elsewhere(Tensor):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 14, 0

    with pytest.raises(BufferError, match="type 14"):
        arguments.send(Elsewhere(DATA, is_old=True))


@pytest.mark.parametrize("is_old", [False, True])
def test_bfloat16_of_a_tensor(is_old: bool) -> None:
    """NumPy has no such type, and the CUDA array interface no name for it."""
    bits = np.arange(5, dtype=np.uint16)
    assert resolved(Bfloat16(bits, is_old=is_old)) == (bits.ctypes.data, 5, "MPI_BFLOAT16_T")


def test_interface_description_is_ignored_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="descr"):
        arguments.send(Interface(DATA, descr=[("a", "<f8"), ("b", "<f8")]))


def test_other_sources() -> None:
    assert resolved(array.array("h", [1, 2]))[1:] == (2, "MPI_SHORT")
    assert resolved(bytearray(3))[1:] == (3, "MPI_UNSIGNED_CHAR")
    assert resolved(b"abc", writable=False)[1:] == (3, "MPI_UNSIGNED_CHAR")
    assert resolved(np.array(["ab", "c"], "S1"))[1:] == (2, "MPI_CHAR")
    assert resolved(np.zeros(2, "M8[s]"))[1:] == (2, "MPI_INT64_T")
    assert resolved([np.zeros(2, "i4,f4"), BYTE])[1:] == (16, "MPI_BYTE")


def test_memory_stays_in_place_while_a_buffer_is_held() -> None:
    data = bytearray(8)
    found = arguments.recv(data)
    with pytest.raises(BufferError):
        data.append(1)
    del found
    gc.collect()
    data.append(1)


@pytest.mark.parametrize(
    ("spec", "counts", "displs"),
    [
        (DATA, [2, 2, 1, 1], [0, 2, 4, 5]),
        ([DATA, 1], [1, 1, 1, 1], [0, 1, 2, 3]),
        ([DATA, (1, 1)], [1, 1, 1, 1], [0, 1, 2, 3]),
        ([DATA, (1, None), "d"], [1, 1, 1, 1], [0, 1, 2, 3]),
        ([DATA, [0, 3, 1, 1]], [0, 3, 1, 1], [0, 0, 3, 4]),
        ([DATA, ([1, 1, 1, 1], [5, 4, 3, 0])], [1, 1, 1, 1], [5, 4, 3, 0]),
        ([DATA, [1, 1, 1, 1], [5, 4, 3, 0], DOUBLE], [1, 1, 1, 1], [5, 4, 3, 0]),
        ([DATA, np.array([1, 1, 1, 1]), np.array([5, 4, 3, 0]), DOUBLE], [1, 1, 1, 1], [5, 4, 3, 0]),
        ([DATA, "d"], [2, 2, 1, 1], [0, 2, 4, 5]),
    ],
)
def test_vector_forms(spec: Any, counts: list[int], displs: list[int]) -> None:
    found = arguments.send_vector(spec, 4)
    assert (found.counts, found.displs) == (counts, displs)
    assert found.is_direct
    address, offsets = found.address, found.offsets
    assert (address, offsets) == (AT, [8 * displ for displ in displs])
    assert found.sizes == [8 * count for count in counts]


def test_vectors_of_derived_types_pack_and_land() -> None:
    pairs = INT.Create_vector(2, 1, 2).Create_resized(0, 16).Commit()
    source, target = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    sending = arguments.send_vector([source, [1, 2], [3, 0], pairs], 2)
    packed = sending.copy()
    packed.load()
    assert np.frombuffer(packed.owner[-1], np.int32).tolist() == [12, 14, 0, 2, 4, 6]
    assert packed.offsets == [0, 8]
    landed = arguments.recv_vector([target, [1, 2], [3, 0], pairs], 2).copy()
    landed.owner[-1][:] = packed.owner[-1]
    landed.store()
    assert target.nonzero()[0].tolist() == [2, 4, 6, 12, 14]


def test_blocks_of_different_types() -> None:
    data = np.zeros(16, np.uint8)
    data[:8] = range(8)
    found = arguments.send_w([data, [2, 1], [4, 0], [PREDEFINED["SHORT"], INT]], 2)
    packed = found.copy()
    packed.load()
    assert ([*packed.owner[-1]], packed.offsets, found.sizes) == ([4, 5, 6, 7, 0, 1, 2, 3], [0, 4], [4, 4])
    assert [block.count for block in arguments.recv_w([data, [INT, BYTE]], 2).blocks] == [1, 1]


def test_targets() -> None:
    origin = arguments.send(DATA)
    assert arguments.target(None, origin) == (0, 6, DOUBLE)
    assert arguments.target(3, origin) == (3, 6, DOUBLE)
    assert arguments.target([3], origin) == (3, 6, DOUBLE)
    assert arguments.target((3, 2), origin) == (3, 2, DOUBLE)
    assert arguments.target([3, 2, "i"], origin) == (3, 2, INT)
    with pytest.raises(ValueError, match="3 items at most"):
        arguments.target([1, 2, INT, 4], origin)
    with pytest.raises(ValueError, match="integral or list/tuple"):
        arguments.target("x", origin)


def test_in_place() -> None:
    assert arguments.is_in_place(IN_PLACE) and arguments.is_in_place(None)
    assert not arguments.is_in_place(DATA) and not arguments.is_in_place(-1)


scraps: Any = st.one_of(
    st.none(),
    st.integers(-3, 9),
    st.floats(),
    st.text(max_size=2),
    st.binary(max_size=9),
    st.sampled_from([DATA, DATA[::2], INT, DOUBLE, PREDEFINED["LOGICAL16"], IN_PLACE, array.array("d", [1]), object()]),
)
nested: Any = st.recursive(scraps, lambda inner: st.lists(inner, max_size=5) | st.tuples(inner, inner), max_leaves=8)

buffers: Any = st.sampled_from([DATA, array.array("d", [1])]) | st.binary(max_size=20)
numbers, kinds = st.integers(-1, 14), st.sampled_from([INT, DOUBLE, BYTE])
each = st.lists(numbers, min_size=3, max_size=3)
shaped: Any = st.one_of(
    st.tuples(buffers, numbers, numbers, kinds),
    st.tuples(buffers, st.tuples(numbers, numbers), kinds),
    st.tuples(buffers, each, each, kinds),
    st.tuples(buffers, st.tuples(each, each), kinds),
    st.tuples(buffers, each, each, st.lists(kinds, min_size=3, max_size=3)),
)


def memory_in(spec: Any) -> list[range]:
    """Where the bytes of all buffers in a specification are."""
    if isinstance(spec, list | tuple):
        return [place for item in spec for place in memory_in(item)]
    if isinstance(spec, np.ndarray):
        return [range(AT, AT + DATA.nbytes)]  # it is DATA, or a view of it
    if not isinstance(spec, bytes | array.array) or not len(spec):
        return []
    start = np.frombuffer(spec, np.uint8).ctypes.data
    return [range(start, start + memoryview(spec).nbytes)]


def memory_of(found: Any) -> list[range]:
    """Where the elements are to which a specification was resolved."""
    sizes = getattr(found, "sizes", None)
    blocks = [found] if sizes is None else [found.block(rank) for rank in range(len(sizes))]
    return [
        range(block.origin + block.layout.true_lb, block.origin + (block.count - 1) * block.layout.extent + block.layout.true_ub)
        for block in blocks
        if block.nbytes
    ]


@given(nested | shaped)
def test_anything_is_resolved_or_refused_properly(spec: Any) -> None:
    """Whatever comes, it is memory inside of a known buffer, or one of the documented exceptions."""
    resolvers: list[Any] = [arguments.send, arguments.recv]
    resolvers += [lambda spec: arguments.send_vector(spec, 3), lambda spec: arguments.send_w(spec, 3)]
    for resolve in resolvers:
        try:
            found = resolve(spec)
        except (TypeError, ValueError, KeyError, BufferError, OverflowError, errors.Exception):
            continue
        for part in memory_of(found):
            assert any(whole.start <= part.start and part.stop <= whole.stop for whole in memory_in(spec)), (spec, part)
        found.copy().load()


@pytest.mark.parametrize(("kind", "extent"), [(BYTE, 1), (INT, 4), (DOUBLE, 8)])
def test_all_that_fits_is_resolved_and_no_more(kind: Datatype, extent: int) -> None:
    for count, displ in itertools.product(range(DATA.nbytes // extent + 3), repeat=2):
        if (displ + count) * extent <= DATA.nbytes:
            found = arguments.recv([DATA, count, displ, kind])
            assert (found.address, found.nbytes) == (AT + displ * extent, count * extent)
        elif count or displ * extent > DATA.nbytes:
            with pytest.raises(ValueError, match=r"the buffer has 48 bytes|out of bounds"):
                arguments.recv([DATA, count, displ, kind])


def test_none_with_a_count_is_refused_in_vector_forms() -> None:
    for counts in ([3, 0], ([3, 0], [1, -1])):
        with pytest.raises(ValueError, match="buffer is None but count is 3"):
            arguments.send_vector([None, counts, PREDEFINED["DOUBLE"]], 2)
    with pytest.raises(ValueError, match="buffer is None but count is 3"):
        arguments.send_w([None, ([3, 0], [0, 0]), [PREDEFINED["DOUBLE"]] * 2], 2)
