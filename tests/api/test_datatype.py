"""Datatypes: every derived type packs and unpacks what a list of byte offsets says, and has the bounds that it says."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclx_mpi import arguments, errors
from ncclx_mpi import constants as mpi
from ncclx_mpi.api.datatype import DATATYPE_NULL, PREDEFINED, Datatype, _datatype_create, kind_of
from ncclx_mpi.api.memory import buffer
from ncclx_mpi.buffers import layout, packing
from ncclx_mpi.buffers.sentinels import BOTTOM
from ncclx_mpi.testing.guarded import guarded

INT, DOUBLE, BYTE, CHAR = (PREDEFINED[name] for name in ("INT", "DOUBLE", "BYTE", "CHAR"))


class OneRank:
    """As much of a communicator as Pack looks at."""

    def Get_size(self) -> int:
        return 1


COMM = OneRank()


class Model(NamedTuple):
    """What a datatype is: the offset of each byte in packing order, and its bounds."""

    offsets: list[int]
    lb: int
    ub: int

    @property
    def extent(self) -> int:
        return self.ub - self.lb

    def placed(self, lengths: list[int], starts: list[int]) -> Model:
        """Blocks of this type: `lengths[i]` elements from byte `starts[i]`."""
        origins = [start + k * self.extent for length, start in zip(lengths, starts, strict=True) for k in range(length)]
        if not origins:
            return Model([], 0, 0)
        offsets = [origin + offset for origin in origins for offset in self.offsets]
        return Model(offsets, min(origins) + self.lb, max(origins) + self.ub)


Typed = tuple[Datatype, Model]


PAIRS = {"SHORT_INT": [0, 1, 4, 5, 6, 7], "DOUBLE_INT": list(range(12))}
"""Offsets of the bytes that are no padding."""


def named(name: str) -> Typed:
    datatype = PREDEFINED[name]
    return datatype, Model(PAIRS.get(name, list(range(datatype.size))), 0, datatype.extent)


@st.composite
def derived(draw: Any, inner: Any) -> Typed:
    """One more constructor around a type."""
    old, model = draw(inner)
    few = st.integers(0, 3)
    reach = st.integers(-3, 5)
    match draw(st.sampled_from(["contiguous", "vector", "hvector", "indexed", "hindexed", "block", "hblock", "resized", "dup"])):
        case "contiguous":
            count = draw(few)
            return old.Create_contiguous(count), model.placed([count], [0])
        case "vector":
            count, length, stride = draw(few), draw(few), draw(reach)
            starts = [i * stride * model.extent for i in range(count)]
            return old.Create_vector(count, length, stride), model.placed([length] * count, starts)
        case "hvector":
            count, length, stride = draw(few), draw(few), draw(st.integers(-9, 20))
            starts = [i * stride for i in range(count)]
            return old.Create_hvector(count, length, stride), model.placed([length] * count, starts)
        case "indexed" | "hindexed" as how:
            lengths = draw(st.lists(few, max_size=4))
            places = [draw(reach) for _ in lengths]
            if how == "indexed":
                return old.Create_indexed(lengths, places), model.placed(lengths, [p * model.extent for p in places])
            return old.Create_hindexed(lengths, places), model.placed(lengths, places)
        case "block" | "hblock" as how:
            length = draw(few)
            places = draw(st.lists(reach, max_size=4))
            lengths = [length] * len(places)
            if how == "block":
                return old.Create_indexed_block(length, places), model.placed(lengths, [p * model.extent for p in places])
            return old.Create_hindexed_block(length, places), model.placed(lengths, places)
        case "resized":
            lb, extent = draw(st.integers(-5, 5)), draw(st.integers(-3, 40))
            return old.Create_resized(lb, extent), Model(model.offsets, lb, lb + extent)
        case _:
            return old.Dup(), model


types = st.recursive(
    st.sampled_from(["BYTE", "SHORT", "INT", "DOUBLE", *PAIRS]).map(named), lambda inner: derived(inner), max_leaves=4
)


@given(types, st.integers(0, 4))
@settings(max_examples=300, deadline=None)
def test_against_the_model(typed: Typed, count: int) -> None:
    check_against_model(typed, count)


@given(types, st.integers(0, 4), st.integers(1, 4), st.sampled_from([0, 3]))
@settings(max_examples=300, deadline=None)
def test_walked_against_the_model(typed: Typed, count: int, few: int, each: int) -> None:
    """Layouts of more blocks than are listed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_FEW", few)
        patch.setattr(layout, "_EACH", each)
        check_against_model(typed, count)


def check_against_model(typed: Typed, count: int) -> None:
    """Sizes, bounds, and every byte that is packed and unpacked."""
    datatype, model = typed
    assert (datatype.size, datatype.Get_extent()) == (len(model.offsets), (model.lb, model.extent))
    if model.offsets:
        assert (datatype.true_lb, datatype.true_ub) == (min(model.offsets), max(model.offsets) + 1)
    places = [k * model.extent + offset for k in range(count) for offset in model.offsets]
    low, high = min(places, default=0), max(places, default=0) + 1
    memory = guarded(high - low, behind=count != 2)
    memory[:] = np.random.default_rng(0).integers(0, 256, high - low, dtype=np.uint8)
    spec = [BOTTOM, count, shifted(datatype, memory, low)]
    buffer = arguments.send(spec)
    assert buffer.nbytes == len(places)
    address, owner = buffer.packed()
    packed = bytes_at(address, len(places))
    assert packed.tolist() == [int(memory[place - low]) for place in places]
    if len(set(places)) == len(places):
        check_landing(datatype, memory, places, low, count)
    del owner


def strided_types() -> dict[str, tuple[Datatype, int, int]]:
    """Types of a thousand million blocks, with the size and the true extent that they should have."""
    many = 10**9
    vector = DOUBLE.Create_vector(many, 1, 2)
    spread = DOUBLE.Create_resized(0, 24)
    return {
        "vector": (vector, 8 * many, 16 * many - 8),
        "hvector": (INT.Create_hvector(many, 2, 100), 8 * many, 100 * (many - 1) + 8),
        "backwards": (DOUBLE.Create_vector(many, 1, -2), 8 * many, 16 * many - 8),
        "contiguous": (DOUBLE.Create_contiguous(many), 8 * many, 8 * many),
        "of gaps": (spread.Create_contiguous(many), 8 * many, 24 * many - 16),
        "of vectors": (DOUBLE.Create_vector(10, 1, 2).Create_contiguous(many), 80 * many, 152 * many),
        "resized": (vector.Create_resized(0, 8).Create_contiguous(4), 32 * many, 16 * many + 16),
        "subarray": (DOUBLE.Create_subarray([many, 4], [many, 2], [0, 1]), 16 * many, 32 * many - 16),
        "darray": (
            DOUBLE.Create_darray(2, 1, [many], [mpi.DISTRIBUTE_BLOCK], [mpi.DISTRIBUTE_DFLT_DARG], [2]),
            4 * many,
            4 * many,
        ),
        "struct": (Datatype.Create_struct([1, 1], [0, 8], [vector, INT]), 8 * many + 4, 16 * many - 8),
    }


def test_strided_types_stay_rules() -> None:
    tracemalloc.start()
    try:
        found = strided_types()
        for name, (datatype, size, true_extent) in found.items():
            datatype.Commit()
            assert (datatype.size, datatype.true_extent) == (size, true_extent), name
            assert datatype._state.contiguous == (name == "contiguous"), name
            assert arguments.send([np.zeros(1), 0, datatype]).nbytes == 0
            again = _datatype_create(*datatype.decode())
            assert (again.size, again.Get_true_extent()) == (size, datatype.Get_true_extent())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_first_bytes_of_a_strided_type_land() -> None:
    """A short message into a long type takes no memory for what might have come."""
    starts = {
        "vector": np.arange(2500) * 2,
        "of gaps": np.arange(2500) * 3,
        "of vectors": np.arange(2500) // 10 * 19 + np.arange(2500) % 10 * 2,
        "resized": np.arange(2500) * 2,
        "subarray": np.arange(2500) // 2 * 4 + np.arange(2500) % 2 + 1,
        "struct": np.arange(2500) * 2,
    }
    target, arriving, made = np.zeros(9000), np.arange(2500.0), strided_types()
    tracemalloc.start()
    try:
        for name, places in starts.items():
            target[:] = -1
            packing.unpack(made[name][0]._state, arriving.ctypes.data, arriving.nbytes, target.ctypes.data)
            expected = np.full(9000, -1.0)
            expected[places] = arriving
            assert (target == expected).all(), name
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_more_elements_than_there_is_memory_for() -> None:
    huge = DOUBLE.Create_vector(1 << 57, 1, 2).Commit()
    with pytest.raises(errors.Exception, match=f"no memory for {1 << 60} bytes") as refused:
        arguments.send([buffer.fromaddress(4096, 8), 1, huge]).packed()
    assert refused.value.Get_error_class() == errors.ERR_NO_MEM


def test_large_strided_types_pack() -> None:
    whole = np.arange(6_000_000.0)
    pairs = DOUBLE.Create_vector(2_000_000, 1, 3).Commit()
    tracemalloc.start()
    buffer = arguments.send([whole, 1, pairs])
    address, owner = buffer.packed()
    assert tracemalloc.get_traced_memory()[1] < pairs.size + (1 << 20)
    tracemalloc.stop()
    assert (bytes_at(address, pairs.size).view(np.float64) == whole[::3]).all()
    del owner


def check_landing(datatype: Datatype, memory: Any, places: list[int], low: int, count: int) -> None:
    """Bytes that arrive land where the model says, also if fewer come than there is room for."""
    arriving = np.arange(len(places), dtype=np.uint8)
    for nbytes in {len(places), len(places) // 2}:
        target = guarded(len(memory), behind=count != 2)
        target[:] = 255
        address, _owner, finish = arguments.recv([BOTTOM, count, shifted(datatype, target, low)]).landing()
        bytes_at(address, nbytes)[:] = arriving[:nbytes]
        finish(nbytes)
        expected = np.full_like(memory, 255)
        expected[[place - low for place in places[:nbytes]]] = arriving[:nbytes]
        assert target.tolist() == expected.tolist()


def shifted(datatype: Datatype, memory: Any, low: int) -> Datatype:
    """The same type relative to BOTTOM, so that negative offsets lie in `memory`."""
    at = Datatype.Create_struct([1], [memory.ctypes.data - low], [datatype])
    return at.Create_resized(datatype.lb, datatype.extent).Commit()


def bytes_at(address: int, nbytes: int) -> Any:
    from ncclx_mpi.buffers.memory import view

    return view(address, nbytes)


@given(types)
@settings(max_examples=100, deadline=None)
def test_decode_and_pickle_make_the_same_type(typed: Typed) -> None:
    datatype, _ = typed
    again = datatype if datatype.is_named else _datatype_create(*datatype.decode())
    for other in (again, pickle.loads(pickle.dumps(_describe(datatype)))):
        found = other if isinstance(other, tuple) else _describe(other)
        assert found == _describe(datatype)
    integers, addresses, counts, inner = datatype.contents if not datatype.is_named else ([], [], [], [])
    lengths = (len(integers), len(addresses), len(counts), len(inner))
    assert datatype.envelope[:4] == lengths


def _describe(datatype: Datatype) -> tuple[Any, ...]:
    return datatype.size, datatype.Get_extent(), datatype.Get_true_extent(), datatype._state.blocks.tolist()


def test_struct_is_padded_like_c() -> None:
    assert Datatype.Create_struct([1, 1], [0, 4], [INT, CHAR]).extent == 8
    assert Datatype.Create_struct([1, 2], [0, 8], [CHAR, DOUBLE]).Get_extent() == (0, 24)
    bounded = Datatype.Create_struct([1, 1], [0, 4], [INT, CHAR.Create_resized(0, 1)])
    assert bounded.Get_extent() == (4, 1)


def test_subarray_is_the_box() -> None:
    whole = np.arange(5 * 6 * 7, dtype=np.int32).reshape(5, 6, 7)
    box = INT.Create_subarray([5, 6, 7], [2, 3, 4], [1, 2, 3]).Commit()
    _address, owner = arguments.send([whole, 1, box]).packed()
    assert np.frombuffer(owner[-1], np.int32).tolist() == whole[1:3, 2:5, 3:7].ravel().tolist()
    turned = INT.Create_subarray([7, 6, 5], [4, 3, 2], [3, 2, 1], mpi.ORDER_F).Commit()
    _address, owner = arguments.send([whole, 1, turned]).packed()
    assert np.frombuffer(owner[-1], np.int32).tolist() == whole[1:3, 2:5, 3:7].ravel().tolist()


@pytest.mark.parametrize("distribution", [mpi.DISTRIBUTE_BLOCK, mpi.DISTRIBUTE_CYCLIC])
@pytest.mark.parametrize("order", [mpi.ORDER_C, mpi.ORDER_F])
def test_darray_parts_are_disjoint_and_cover(distribution: int, order: int) -> None:
    seen: list[int] = []
    whole = np.arange(7 * 10, dtype=np.int32)
    for rank in range(6):
        part = INT.Create_darray(6, rank, [7, 10], [distribution] * 2, [mpi.DISTRIBUTE_DFLT_DARG] * 2, [2, 3], order)
        assert part.extent == whole.nbytes
        seen += np.frombuffer(arguments.send([whole, 1, part.Commit()]).packed()[1][-1], np.int32).tolist()
    assert sorted(seen) == whole.tolist()


def test_packing_again_and_again() -> None:
    """Of a layout that compiled code knows by now: the same bytes, and the same errors."""
    step, narrow = INT.Create_vector(3, 1, 4).Commit(), INT.Create_vector(3, 1, 4).Create_resized(0, 4).Commit()
    grid, packed = np.arange(18, dtype="i4"), np.zeros(64, "u1")
    for _ in range(4):
        back = np.full(18, -1, "i4")
        assert step.Pack(grid, packed, np.int64(4), COMM) == 28
        assert packed[4:28].view("i4").tolist() == [0, 4, 8, 9, 13, 17]
        assert step.Unpack(packed, 4, back, COMM) == 28
        assert back.tolist() == [value if value in (0, 4, 8, 9, 13, 17) else -1 for value in range(18)]
        for wrong in (-1, 41, 64, 1 << 40, 1 << 62):
            with pytest.raises(errors.Exception):
                step.Pack(grid, packed, wrong, COMM)
            with pytest.raises(errors.Exception):
                step.Unpack(packed, wrong, back, COMM)
        with pytest.raises((BufferError, ValueError)):
            step.Pack(grid, bytes(64), 0, COMM)
        with pytest.raises((BufferError, ValueError)):
            step.Unpack(packed, 0, bytes(72), COMM)
        with pytest.raises(errors.Exception, match="not in buffer"):
            narrow.Pack(grid, packed, 0, COMM)


def test_pack_and_unpack_any_position() -> None:
    column = INT.Create_vector(3, 1, 4).Create_resized(0, 4).Commit()
    given_, packed, back = np.arange(12, dtype="i4"), np.zeros(64, "u1"), np.zeros(12, "i4")
    position = INT.Pack(given_, packed, 5, COMM)
    assert position == 5 + INT.Pack_size(12, COMM)
    assert INT.Unpack(packed, 5, back, COMM) == position
    assert back.tolist() == given_.tolist()
    with pytest.raises(errors.Exception, match="not in buffer"):
        column.Pack(given_, packed, 0, COMM)
    with pytest.raises(errors.Exception) as caught:
        DOUBLE.Pack(np.zeros(9), packed, 0, COMM)
    assert caught.value.Get_error_class() == errors.ERR_TRUNCATE
    with pytest.raises(errors.Exception):
        INT.Unpack(packed, -1, back, COMM)


def test_external_is_big_endian() -> None:
    pair = PREDEFINED["DOUBLE_INT"]
    packed, back = np.zeros(64, "u1"), np.zeros(2, "c16")
    assert PREDEFINED["C_DOUBLE_COMPLEX"].Pack_external("external32", np.array([1 + 2j, 3]), packed, 0) == 32
    assert packed[:32].view(">f8").tolist() == [1, 2, 3, 0]
    PREDEFINED["C_DOUBLE_COMPLEX"].Unpack_external("external32", packed, 0, back)
    assert back.tolist() == [1 + 2j, 3]
    struct = np.array([(1.5, 7), (2.5, 8)], dtype=np.dtype([("a", "f8"), ("b", "i4")], align=True))
    pair.Pack_external("external32", struct, packed, 0)
    assert packed[:8].view(">f8")[0] == 1.5 and packed[8:12].view(">i4")[0] == 7
    with pytest.raises(errors.Exception):
        INT.Pack_external_size("native", 1)


@pytest.mark.parametrize(
    ("make", "error_class"),
    [
        (lambda: INT.Create_contiguous(-1), errors.ERR_COUNT),
        (lambda: INT.Create_vector(1, -1, 1), errors.ERR_COUNT),
        (lambda: INT.Create_indexed([-1], [0]), errors.ERR_COUNT),
        (lambda: INT.Create_subarray([4], [5], [0]), errors.ERR_ARG),
        (lambda: INT.Create_subarray([4], [2], [3]), errors.ERR_ARG),
        (lambda: INT.Create_subarray([4], [2], [0], 3), errors.ERR_ARG),
        (lambda: INT.Create_darray(4, 4, [8], [mpi.DISTRIBUTE_BLOCK], [mpi.DISTRIBUTE_DFLT_DARG], [4]), errors.ERR_ARG),
        (lambda: INT.Create_darray(4, 0, [8], [mpi.DISTRIBUTE_BLOCK], [1], [4]), errors.ERR_ARG),
        (lambda: INT.Create_vector(2, 1, 1 << 61), errors.ERR_ARG),
        (lambda: INT.Free(), errors.ERR_TYPE),
        (lambda: DATATYPE_NULL.Commit(), errors.ERR_TYPE),
        (lambda: Datatype().Dup(), errors.ERR_TYPE),
        (lambda: Datatype.Match_size(1, 3), errors.ERR_ARG),
        (lambda: arguments.send([np.zeros(4, "i4"), 1, INT.Create_contiguous(2)]), errors.ERR_TYPE),
    ],
)
def test_bad_arguments(make: Any, error_class: int) -> None:
    with pytest.raises(errors.Exception) as caught:
        make()
    assert caught.value.Get_error_class() == error_class


def test_bad_python_arguments() -> None:
    with pytest.raises(ValueError, match="expecting 2 items, got 1"):
        INT.Create_indexed([1, 2], [3])
    with pytest.raises(ValueError):
        Datatype.Create_struct([1], [0], [INT, INT])
    with pytest.raises(TypeError):
        INT.Create_contiguous("a")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        INT.Create_indexed(3, [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Datatype(3)  # type: ignore[arg-type]


def test_handles() -> None:
    first = INT.Create_contiguous(3)
    copy = Datatype(first)
    assert first == copy and first is not copy and first != INT
    first.Free()
    assert not first and first == DATATYPE_NULL
    assert copy.size == 12
    with pytest.raises(errors.Exception):
        first.Get_size()
    with pytest.raises(TypeError):
        hash(copy)
    with pytest.raises(TypeError):
        copy < copy  # type: ignore[operator]  # noqa: B015
    assert Datatype.fromhandle(INT.handle) is INT
    assert Datatype.fromhandle(copy.handle) == copy
    INT.free()
    assert INT


def test_names_and_codes() -> None:
    assert (INT.name, INT.typechar, INT.typestr, INT.tocode()) == ("MPI_INT", "i", "i4", "i")
    assert Datatype.fromcode("f8") is DOUBLE
    with pytest.raises(ValueError, match="zz"):
        Datatype.fromcode("zz")
    made = INT.Create_contiguous(2)
    made.name = "two"
    assert made.name == "two" and made.typechar == "V" and made.typestr == "V8"
    with pytest.raises(ValueError):
        made.tocode()


@pytest.mark.parametrize("code", "?bhilqBHILQefdgFDG")
def test_numpy_types_are_found_and_have_the_right_size(code: str) -> None:
    array = np.zeros(3, code)
    buffer = arguments.send(array)
    assert (buffer.count, buffer.nbytes) == (3, array.nbytes)
    assert kind_of(buffer.datatype) is not None


def test_attributes() -> None:
    calls: list[Any] = []
    keyval = Datatype.Create_keyval(lambda _type, _key, value: value + 1, lambda _type, _key, value: calls.append(value))
    first = INT.Dup()
    first.Set_attr(keyval, 5)
    second = first.Dup()
    assert (first.Get_attr(keyval), second.Get_attr(keyval)) == (5, 6)
    second.Delete_attr(keyval)
    first.Free()
    assert calls == [6, 5]
    Datatype.Free_keyval(keyval)


def test_what_decode_returns_is_the_callers() -> None:
    made = INT.Create_subarray([4, 5], [2, 2], [1, 1])
    for _ in range(2):
        params = made.decode()[2]
        assert params["sizes"] == [4, 5]
        params["sizes"].append(6)
    made.Free()
