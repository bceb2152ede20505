"""Pickles of plain values: Python reads what compiled code writes, and compiled code what it has written, to the type."""

import copyreg
import ctypes
import gc
import math
import mmap
import pickle
import struct
import sys
from collections import OrderedDict
from enum import IntEnum

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from numba import types

from ncclx_mpi.p2p.partial_results import opened
from numba_kernels import jit, pickling, unpickling
from numba_kernels.pickling import DEPTH, LARGEST, ROOM, give_room, take_room, write_pickle
from numba_kernels.pyobject import object_argument, object_of
from numba_kernels.pyslots import BYTES, new_bytes, object_result, result


@jit.kernel(object_result(object_argument, types.int64), is_entry=True, nogil=False)
def write_kernel(argument, limit):
    room, data = take_room(), 0
    nbytes = write_pickle(object_of(argument), room, room + ROOM.data, limit)
    if nbytes != 0:
        data = new_bytes(room + ROOM.data, nbytes)
    give_room(room)
    return result(data)


@jit.kernel(object_result(object_argument, types.int64), is_entry=True, nogil=False)
def read_kernel(argument, nbytes):
    return result(opened(object_of(argument) + BYTES, nbytes, 1))


@jit.kernel(object_result(types.int64, types.int64), is_entry=True, nogil=False)
def read_at_kernel(address, nbytes):
    return result(opened(address, nbytes, 1))


def written(value, limit=LARGEST):
    """The pickle of a plain value, None of any other."""
    pickling.introduce(unpickling.read)
    return jit.entry(write_kernel)(value, limit)


def read(data):
    """The plain value of a pickle, or a bytearray if it is not one of ours."""
    pickling.introduce(unpickling.read)
    return jit.entry(read_kernel)(data, len(data))


def same(first, second):
    """Equal, of the same types, NaN and zeros with signs included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        return math.isnan(first) == math.isnan(second) and np.float64(first).tobytes() == np.float64(second).tobytes()
    if isinstance(first, np.ndarray):
        assert first.flags.writeable and second.flags.writeable and first.flags.c_contiguous and second.flags.aligned
        return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    if isinstance(first, dict):
        return list(map(type, first)) == list(map(type, second)) and same(list(first.items()), list(second.items()))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


class Level(IntEnum):
    LOW = 1


NUMBERS = [0, 1, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 63) - 1]
PLAIN = [
    None, True, False, *NUMBERS, *(-number for number in NUMBERS), -(1 << 63), 0.0, -0.0, 1.5, math.inf, math.nan, 5e-324,
    "", "a", "é" * 200, "\0", "x" * 70_00, b"", b"\0" * 255, b"y" * 256, [], (), {}, [[]], ((),), [{}, ()],
    {"a": 1, 2: None, b"k": 1.5, None: True, 1.5: "x"}, {"nested": [{"a": (1, (2.5, "z"))}]}, list(range(3000)), tuple("abc"),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: f"{str(value)[:20]!r}")
def test_plain_values_go_both_ways(value):
    data = written(value)
    assert same(pickle.loads(data), value)
    assert same(read(data), value)


@pytest.mark.parametrize("code", "?bBhHiIlLqQefdgFDG")
@pytest.mark.parametrize("shape", [(), (0,), (1,), (10,), (2, 3), (5, 1, 7), (3, 0, 2), (1,) * 20])
def test_arrays_go_both_ways(code, shape):
    array = (np.arange(math.prod(shape)) % 100 + 1).astype(code).reshape(shape)
    for value in (array, {"a": array}, [1, array, (array.copy(), "x")]):
        data = written(value)
        assert same(pickle.loads(data), value)
        assert same(read(data), value)
    assert not np.shares_memory(read(written(array)), array)


def test_arrays_that_python_pickles():
    base = np.arange(12.0).reshape(3, 4)
    frozen, named = np.zeros(3), np.dtype("f8", metadata={"unit": "m"})
    frozen.flags.writeable = False
    kind = type("Kind", (np.ndarray,), {})
    others = [
        base.T, base[:, ::2], base[::-1], frozen, base.astype(">f8"), base.astype(named), base.view(kind), np.array(["text"]),
        np.array([{}]), np.zeros(3, "i4,f8"), np.zeros(3, "M8[s]"), np.zeros(3, "S4"), np.empty((0, 1 << 31)), np.zeros(LARGEST),
        np.ma.zeros(3), [base, base], [base[0] for _ in range(pickling.ARRAYS + 1)], (base, [(base,)]),
    ]  # fmt: skip
    for other in others:
        assert written(other) is None, other
    assert written([base, base.copy(), base[0]]) is not None
    copyreg.pickle(np.ndarray, lambda array: (list, (array.tolist(),)))
    try:
        assert written(base) is None
    finally:
        del copyreg.dispatch_table[np.ndarray]
    assert written(base) is not None


def test_arrays_that_do_not_say_what_they_are():
    """Lengths, types and bytes that do not fit together, as nobody has written them."""
    data = written(np.arange(6, dtype=np.int32).reshape(2, 3))
    length, place = struct.pack("<i", 3), data.index(b"J\3\0\0\0") + 1
    for wrong in (0, 2, 4, -3, (1 << 31) - 1, -(1 << 31)):
        assert type(read(data[:place] + struct.pack("<i", wrong) + data[place + len(length) :])) is bytearray
    place = data.index(b"i\x96")
    for code in b"dO\0\xff":
        assert type(read(data[:place] + bytes([code]) + data[place + 1 :])) is bytearray
    many = data[:19] + b"J\1\0\0\0" * 200 + data[19:]
    assert type(read(many)) is bytearray
    for end in range(len(data) - 1):
        assert type(read(data[:end] + b".")) is bytearray


@pytest.mark.parametrize("limit", [100, 128, 200, 1000])
def test_limits_hold_for_arrays(limit):
    for count in range(200):
        value = {"a": np.arange(count), "b": 1.5}
        data = written(value, limit)
        assert data is None or (len(data) <= limit and same(read(data), value))


def test_references_to_arrays_are_as_before():
    array, dtype = np.arange(3.5), np.dtype("f8")
    data = written([array, 1, array[1:]])
    broken = data[:-3] + b"xx."
    counts = [sys.getrefcount(array), sys.getrefcount(dtype)]
    for _ in range(1000):
        written([array, array])
        written({"a": array})
        assert len(read(data)) == 3
        assert type(read(broken)) is bytearray
    after = [sys.getrefcount(array), sys.getrefcount(dtype)]
    assert all(abs(now - then) < 50 for now, then in zip(after, counts, strict=True))


arrays = some.lists(some.floats()).map(np.array)
atoms = (
    some.none() | some.booleans() | some.integers(-(1 << 63), (1 << 63) - 1) | some.floats() | some.text() | some.binary() | arrays
)
nested = some.recursive(
    atoms, lambda inner: some.lists(inner) | some.lists(inner).map(tuple) | some.dictionaries(some.text() | some.integers(), inner)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nested)
def test_any_plain_value(value):
    data = written(value)
    if data is None:  # a test value may hold one list twice, or be too deep
        return
    assert same(pickle.loads(data), value) and same(read(data), value)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nested, some.integers(0), some.integers(0, 255), some.integers(0, 40))
def test_what_was_damaged_is_never_half_read(value, place, byte, cut):
    """Whatever the bytes are: an object, as far as they are a pickle of ours, or a note with all of them."""
    data = bytearray(written(value) or b"\x80\x05N.")
    data[place % len(data)] = byte
    data = bytes(data[: max(1, len(data) - cut)])
    found = read(data)
    if type(found) is bytearray:
        assert found[1:] == data
    else:
        pickle.dumps(found)


def test_no_byte_behind_the_pickle_is_read():
    """Each cut of each kind of value stands right before memory that nobody may read, with an end and without."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    forbid = ctypes.CDLL(None).mprotect
    assert forbid(ctypes.c_void_p(address + page), page, 0) == 0  # PROT_NONE
    pickling.introduce(unpickling.read)
    read_at = jit.entry(read_at_kernel)
    for value in (1.5, 7, 300, 1 << 30, 1 << 40, "short", "x" * 300, b"y", b"z" * 300, {"a": [(1, "b"), "x" * 300]}):
        whole = written(value)
        for cut in range(len(whole)):
            for data in (whole[:cut], whole[:cut] + b"."):
                place = address + page - len(data)
                ctypes.memmove(place, data, len(data))
                found = read_at(place, len(data))
                assert same(found, value) if data == whole else found == bytearray(1) + data


def test_other_values_are_left_to_python():
    shared = [1]
    cycle = []
    cycle.append(cycle)
    numbers, deep = np.arange(3), 5
    for _ in range(DEPTH + 1):
        deep = [deep]
    others = [
        1 << 63, -(1 << 64), 1j, {1}, frozenset(), bytearray(2), np.float64(1), Level.LOW, OrderedDict(a=1), "\ud800",
        [shared, shared], ([shared], shared), cycle, (shared, 1, (shared,)), [numbers, numbers], {(1, 2): 3}, deep, print, "x" * LARGEST,
        list(range(LARGEST)), type("Kind", (dict,), {})(),
    ]  # fmt: skip
    for other in others:
        assert written(other) is None, type(other)


def test_what_is_shared_stays_so():
    """A tuple that is in use elsewhere may occur twice, so no list may be in it; one whose parts cannot change may be written twice."""
    inner = ([1], 2)
    assert written([inner, inner]) is None
    constant = (1, (2, "a"))
    data = written([constant, constant])
    assert read(data) == [constant, constant]


@pytest.mark.parametrize("limit", [0, 100, 128, 200, 1000])
def test_limits_hold(limit):
    for count in range(400):
        for value in ("x" * count, [1.5] * count, [[] for _ in range(count)], b"", {index: [] for index in range(count)}):
            data = written(value, limit)
            assert data is None or (len(data) <= limit and read(data) == value)


def test_pickles_of_python_are_not_ours():
    for value in ({"a": 1.5}, list(range(100)), "text" * 10):
        data = pickle.dumps(value, 5)
        assert read(data) == bytearray(1) + data
    assert read(b"") == bytearray(1)
    assert read(b"\x80\x05]((e.") == bytearray(1) + b"\x80\x05]((e."


def test_nothing_is_kept_or_dropped():
    value = {"a key of its own": ["text of its own", 1.25, 12345678], 7: (b"bytes of its own", None, True)}
    parts = [value, *value, *value["a key of its own"], *value[7]]
    data, broken = written(value), written(value)[:-20] + b"." * 20
    counts = [sys.getrefcount(part) for part in parts]
    for _ in range(100):
        written(value)
        written([value["a key of its own"], value])
        assert read(data) == value
        assert type(read(broken)) is bytearray
    after = [sys.getrefcount(part) for part in parts]
    assert all(abs(now - then) < 50 for now, then in zip(after, counts, strict=True))


@pytest.mark.ranks(1)
def test_collections_find_no_half_made_value():
    """Garbage is collected whenever a container is made while a value is read; who looks at all objects then finds whole ones."""

    def look(phase, info):
        for found in gc.get_objects():
            if type(found) in (list, tuple) and len(found) < 5:
                list(found)

    data = written([np.arange(24.0).reshape(1, 2, 3, 4), (1, (2.5, "x")), {"a": np.zeros((2, 3))}])
    no_free_ones = [tuple(range(size)) for size in (1, 2, 3, 4) for _ in range(3000)]
    read(data)  # now it is compiled: what Python does for that makes tuples whose items others could find missing
    gc.callbacks.append(look)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        found = read(data)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(look)
    assert same(found, pickle.loads(data)) and no_free_ones


@pytest.mark.ranks(1)
def test_values_of_other_kinds_are_found_out_without_an_exception():
    """An exception is an object of its own: making it may collect garbage, and run any Python code in the middle of the writing."""
    others = [
        1 << 63,
        -(1 << 63) - 1,
        1 << 200,
        "\ud800",
        "\u2713\udfff",
        "\U0001f600\ud800",
        "a" * (1 << 20),
        "\u2713" * (1 << 20),
    ]
    assert written(1j) is None
    write, runs, before = jit.entry(write_kernel), [], gc.get_threshold()

    def collections_while_writing(value):
        no_free_ones = [BaseException() for _ in range(50)]
        runs.clear()
        gc.set_threshold(1, 1, 1)
        assert write(value, LARGEST) is None and no_free_ones
        gc.set_threshold(*before)
        return len(runs)

    gc.callbacks.append(lambda phase, info: runs.append(phase))
    try:
        usual = collections_while_writing(1j)
        assert [collections_while_writing(other) for other in others] == [usual] * len(others)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.clear()
    assert written(-(1 << 63)) == pickle.PROTO + b"\5" + pickle.LONG1 + b"\x08" + b"\0" * 7 + b"\x80."
    for text in ("\ud7ff", "\ue000", "\U0001d800", "\U0001f600\u2713", "\xff" * 300, "\ud7ff" * 300):
        assert same(read(written(text)), text) and pickle.loads(written(text)) == text
        text.encode()
        assert same(read(written([text, text])), [text, text])
