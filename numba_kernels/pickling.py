"""Plain values as pickles, written and read by compiled code that holds the GIL.

A *plain value* is None, a bool, an int of 64 bits, a float, a str, bytes, a NumPy array (:mod:`numba_kernels.pickled_arrays` says which), or
a list, a tuple or a dictionary of plain values, whose keys have no parts; all of exactly these types. What is written is a pickle of
protocol 5, without frames and without a memo, which every unpickler reads; what is read here (:mod:`numba_kernels.unpickling`) is
only what was written here. Whatever else comes is left to Python's pickle, with nothing done.

Without a memo an object that occurs twice becomes two. That is no difference for values that cannot change. A list or dictionary inside
another value is written only if nothing else refers to it, or to a tuple that it is in, so it occurs once and in no cycle. Arrays, which
programs hold while they send them, are written if none occurs twice; so only as many as a room remembers.

Writing a dictionary of 36 floats takes a tenth of the time of ``pickle.dumps``: no table of what was seen, no attribute looked up.

No Python code runs while a value is written: whatever could raise, and so collect garbage, is found out before. While one is
read, making a container may collect garbage, which may run any: so whoever reads or writes has a *room* to itself, from
:func:`take_room` to :func:`give_room`.
"""

from __future__ import annotations

import pickle
from typing import Any

from numba_kernels import symbols, types
from numba_kernels.atomics import load8, load32, load64, store8, store32, store64
from numba_kernels.calls import call_four, make_symbol
from numba_kernels.jit import c_address, kernel
from numba_kernels.layout import words, zeroed
from numba_kernels.memory import allocate, copy
from numba_kernels.pickled_arrays import write_array
from numba_kernels.pyobject import (
    ASCII_TEXT,
    OB_SIZE,
    OB_TYPE,
    TEXT_ASCII,
    TEXT_COMPACT,
    TEXT_KIND_MASK,
    TEXT_KIND_SHIFT,
    TEXT_STATE,
    TEXT_UTF8,
    WIDE_TEXT,
    bytes_type,
    int_type,
    list_type,
    ndarray_type,
    none_object,
    true_object,
    tuple_type,
)
from numba_kernels.pysequence import items_of
from numba_kernels.pyslots import BYTES, as_any_integer, clear_error, references

LARGEST = 32768
"""Bytes of a pickle, at most."""
DEPTH = 16
"""Containers in each other, at most."""
ARRAYS = 8
"""Arrays in one value, at most."""
PROTOCOL = 5

PROTO, STOP, MARK = pickle.PROTO[0], pickle.STOP[0], pickle.MARK[0]
NONE, TRUE, FALSE = pickle.NONE[0], pickle.NEWTRUE[0], pickle.NEWFALSE[0]
BYTE, SHORT, INT, LONG, FLOAT = pickle.BININT1[0], pickle.BININT2[0], pickle.BININT[0], pickle.LONG1[0], pickle.BINFLOAT[0]
SHORT_TEXT, TEXT = pickle.SHORT_BINUNICODE[0], pickle.BINUNICODE[0]
SHORT_BYTES, LONG_BYTES = pickle.SHORT_BINBYTES[0], pickle.BINBYTES[0]
EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE = pickle.EMPTY_LIST[0], pickle.EMPTY_DICT[0], pickle.EMPTY_TUPLE[0]
APPENDS, SETITEMS, TUPLE = pickle.APPENDS[0], pickle.SETITEMS[0], pickle.TUPLE[0]

_SPARE = 64
"""Bytes kept free behind what is written: the largest number, or the ends of all open containers."""
_FLOAT_VALUE = float.__basicsize__ - 8
_HIGH, _LOW = 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF

FRAME = words("Frame", "container kind at length shared")
"""A container that is being written (``at``: index or position of the next item), or read (``at``: a key without a value yet)."""
ROOM = words(
    "Room",
    f"next at value size key is_flat fields*5 count arrays*{ARRAYS} frames*{DEPTH * FRAME.total // 8} data*{(LARGEST + _SPARE) // 8}",
)
"""What one writing or reading works with. ``is_flat``: the value that was written has no
containers inside and no arrays. ``arrays``: the ``count`` of them that were written; ``fields`` of one."""

_TABLE = words("Table", "rooms write read")
_table, _table_at = zeroed(_TABLE.total)
symbols.add("ncclx_mpi_pickling", _table_at)
symbols.add("ncclx_mpi_float_type", id(float))
symbols.add("ncclx_mpi_str_type", id(str))
symbols.add("ncclx_mpi_dict_type", id(dict))
symbols.add("ncclx_mpi_false", id(False))
_address_of_table = make_symbol("ncclx_mpi_pickling")
float_type = make_symbol("ncclx_mpi_float_type")
_str_type = make_symbol("ncclx_mpi_str_type")
dict_type = make_symbol("ncclx_mpi_dict_type")
false_object = make_symbol("ncclx_mpi_false")

_as_text = types.external("PyUnicode_AsUTF8AndSize", types.intp(types.intp, types.intp))
_dict_size = types.external("PyDict_Size", types.intp(types.intp))
_dict_next = types.external("PyDict_Next", types.int32(types.intp, types.intp, types.intp, types.intp))


def introduce(read: Any) -> None:
    """Make :func:`write_pickle` and `read` (that of :mod:`numba_kernels.unpickling`) ready: kernels call them by address, once they are."""
    if not _table[_TABLE.read // 8]:
        _table[_TABLE.write // 8] = c_address(write)
        _table[_TABLE.read // 8] = c_address(read)


# Rooms ------------------------------------------------------------------------------------------------------------


@kernel("int64()")
def take_room():  # type: ignore[no-untyped-def]
    """A room that is the caller's until :func:`give_room`; 0 if there is no memory for one."""
    room = load64(_address_of_table() + _TABLE.rooms)
    if room == 0:
        return allocate(ROOM.total)
    store64(_address_of_table() + _TABLE.rooms, load64(room + ROOM.next))
    return room


@kernel("void(int64)")
def give_room(room):  # type: ignore[no-untyped-def]
    """Put a room back."""
    store64(room + ROOM.next, load64(_address_of_table() + _TABLE.rooms))
    store64(_address_of_table() + _TABLE.rooms, room)


@kernel("int64(int64, int64, int64, int64)")
def write_pickle(obj, room, target, limit):  # type: ignore[no-untyped-def]
    """Write the pickle of a plain value to `target`: its bytes, 0 if it is none, or needs more than `limit` bytes."""
    return call_four(load64(_address_of_table() + _TABLE.write), obj, room, target, limit)


@kernel("int64(int64, int64)")
def read_pickle(address, nbytes):  # type: ignore[no-untyped-def]
    """The plain value of a pickle, as a new object; 0 if it was not written here, or there is no memory to find out."""
    room = take_room()
    if room == 0:
        return 0
    is_ours = call_four(load64(_address_of_table() + _TABLE.read), room, address, nbytes, room + ROOM.key)
    found = load64(room + ROOM.key)
    give_room(room)
    return found if is_ours != 0 else 0


# Writing ----------------------------------------------------------------------------------------------------------


@kernel("int64(int64)")
def swapped(word):  # type: ignore[no-untyped-def]
    """A word with its bytes in the other order: floats are the only big-endian part of a pickle."""
    word = ((word & _HIGH) << 8) | ((word >> 8) & _HIGH)
    word = ((word & _LOW) << 16) | ((word >> 16) & _LOW)
    return (word << 32) | ((word >> 32) & 0xFFFFFFFF)


@kernel("int64(int64, int64, int64)")
def _write_word(at, word, room):  # type: ignore[no-untyped-def]
    """Write eight bytes at any address; where they end."""
    store64(room + ROOM.value, word)
    copy(at, room + ROOM.value, 8)
    return at + 8


@kernel("int64(int64, int64, int64)")
def _write_integer(item, at, room):  # type: ignore[no-untyped-def]
    value = as_any_integer(item, room + ROOM.size)
    if load32(room + ROOM.size) != 0:
        return 0
    if 0 <= value < 1 << 8:
        store8(at, BYTE)
        store8(at + 1, value)
        return at + 2
    if 0 <= value < 1 << 16:
        store8(at, SHORT)
        store8(at + 1, value)
        store8(at + 2, value >> 8)
        return at + 3
    if -(1 << 31) <= value < 1 << 31:
        store8(at, INT)
        store32(at + 1, value)
        return at + 5
    store8(at, LONG)
    store8(at + 1, 8)
    return _write_word(at + 2, value, room)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _write_bytes(at, end, source, nbytes, short, long):  # type: ignore[no-untyped-def]
    if at + 5 + nbytes > end:
        return 0
    if nbytes < 1 << 8:
        store8(at, short)
        store8(at + 1, nbytes)
        at += 2
    else:
        store8(at, long)
        store32(at + 1, nbytes)
        at += 5
    copy(at, source, nbytes)
    return at + nbytes


@kernel("int64(int64, int64, int64)")
def _has_surrogates(characters, count, size):  # type: ignore[no-untyped-def]
    """Whether any of `count` characters of `size` bytes is one without UTF-8."""
    for index in range(count if size > 1 else 0):
        place = characters + size * index
        if load8(place + 1) & 0xF8 == 0xD8 and (size == 2 or load32(place) >> 16 == 0):
            return 1
    return 0


@kernel("int64(int64, int64, int64, int64)")
def _write_text(item, at, end, room):  # type: ignore[no-untyped-def]
    state, length = load32(item + TEXT_STATE), load64(item + OB_SIZE)
    if state & TEXT_COMPACT == 0 or at + length > end:
        return 0
    if state & TEXT_ASCII != 0:
        return _write_bytes(at, end, item + ASCII_TEXT, length, SHORT_TEXT, TEXT)
    size = state >> TEXT_KIND_SHIFT & TEXT_KIND_MASK
    if load64(item + TEXT_UTF8) == 0 and _has_surrogates(item + WIDE_TEXT, length, size) != 0:
        return 0
    text = _as_text(item, room + ROOM.size)
    if text == 0:  # no memory
        clear_error()
        return 0
    return _write_bytes(at, end, text, load64(room + ROOM.size), SHORT_TEXT, TEXT)


@kernel("int64(int64, int64, int64, int64)")
def _write_array(item, at, end, room):  # type: ignore[no-untyped-def]
    """As :func:`_write_atom`, for an array that has not been written yet."""
    count = load64(room + ROOM.count)
    for index in range(count):
        if load64(room + ROOM.arrays + 8 * index) == item:
            return 0
    if count == ARRAYS:
        return 0
    store64(room + ROOM.arrays + 8 * count, item)
    store64(room + ROOM.count, count + 1)
    store64(room + ROOM.is_flat, 0)
    return write_array(item, at, end, room + ROOM.fields)


@kernel("int64(int64, int64, int64, int64)")
def _write_atom(item, at, end, room):  # type: ignore[no-untyped-def]
    """Write a value without parts at `at`; where it ends, 0 if it is none or finds no room before `end`."""
    kind = load64(item + OB_TYPE)
    if kind == float_type():
        store8(at, FLOAT)
        return _write_word(at + 1, swapped(load64(item + _FLOAT_VALUE)), room)
    if kind == int_type():
        return _write_integer(item, at, room)
    if kind == _str_type():
        return _write_text(item, at, end, room)
    if kind == bytes_type():
        return _write_bytes(at, end, item + BYTES, load64(item + OB_SIZE), SHORT_BYTES, LONG_BYTES)
    if item == none_object():
        store8(at, NONE)
    elif item == true_object():
        store8(at, TRUE)
    elif item == false_object():
        store8(at, FALSE)
    else:
        return _write_array(item, at, end, room) if kind == ndarray_type() else 0
    return at + 1


@kernel("int64(int64, int64, int64, int64)")
def _open(item, at, frame, shared):  # type: ignore[no-untyped-def]
    """Begin to write a container, `shared` if what it is in may occur twice; where its beginning ends, 0 if it is none of ours."""
    kind = load64(item + OB_TYPE)
    if kind == dict_type():
        opener, length = EMPTY_DICT, _dict_size(item)
    elif kind == list_type():
        opener, length = EMPTY_LIST, load64(item + OB_SIZE)
    elif kind == tuple_type():
        opener, length = EMPTY_TUPLE, load64(item + OB_SIZE)
    else:
        return 0
    store64(frame + FRAME.container, item)
    store64(frame + FRAME.kind, kind)
    store64(frame + FRAME.at, 0)
    store64(frame + FRAME.length, length)
    store64(frame + FRAME.shared, shared)
    if length == 0 or kind != tuple_type():
        store8(at, opener)
        at += 1
    if length != 0 or kind != tuple_type():  # also of an empty one, so that the mark of a tuple behind it is not taken for its own
        store8(at, MARK)
        at += 1
    return at


@kernel("int64(int64, int64)")
def _close(frame, at):  # type: ignore[no-untyped-def]
    """Write the end of a container, which an empty tuple has not; where that ends."""
    kind = load64(frame + FRAME.kind)
    if kind == dict_type():
        store8(at, SETITEMS)
    elif kind == list_type():
        store8(at, APPENDS)
    elif load64(frame + FRAME.length) != 0:
        store8(at, TUPLE)
    else:
        return at
    return at + 1


@kernel("int64(int64, int64, int64, int64)")
def _next_item(frame, at, end, room):  # type: ignore[no-untyped-def]
    """Leave the next item of a container in ``room.value``, 0 if there is none, and write its key. Where the key ends, 0 if it cannot be."""
    index, container = load64(frame + FRAME.at), load64(frame + FRAME.container)
    store64(room + ROOM.value, 0)
    if load64(frame + FRAME.kind) == dict_type():
        if _dict_next(container, frame + FRAME.at, room + ROOM.key, room + ROOM.value) == 0:
            return at
        item = load64(room + ROOM.value)
        at = _write_atom(load64(room + ROOM.key), at, end, room)
        store64(room + ROOM.value, item)
    elif index < load64(frame + FRAME.length):
        store64(room + ROOM.value, load64(items_of(container) + 8 * index))
        store64(frame + FRAME.at, index + 1)
    return at


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def write(obj, room, target, limit):  # type: ignore[no-untyped-def]
    """As :func:`write_pickle`."""
    end, at, depth, item, frame = target + limit - _SPARE, target + 2, 0, obj, room + ROOM.frames - FRAME.total
    if limit < 2 * _SPARE:
        return 0
    store8(target, PROTO)
    store8(target + 1, PROTOCOL)
    store64(room + ROOM.is_flat, 1)
    store64(room + ROOM.count, 0)
    while item != 0:
        if at > end:
            return 0
        behind = _write_atom(item, at, end, room)
        if behind == 0:
            shared = 0
            if depth > 0:
                store64(room + ROOM.is_flat, 0)
                is_alone, is_tuple = references(item) == 1, load64(item + OB_TYPE) == tuple_type()
                if load64(frame + FRAME.shared) != 0 or not is_alone:
                    shared = 1
                if (shared != 0 and not is_tuple) or depth == DEPTH:
                    return 0
            frame += FRAME.total
            depth += 1
            behind = _open(item, at, frame, shared)
            if behind == 0:
                return 0
        at, item = behind, 0
        while depth > 0 and item == 0:
            if at > end:
                return 0
            at = _next_item(frame, at, end, room)
            if at == 0:
                return 0
            item = load64(room + ROOM.value)
            if item == 0:
                at = _close(frame, at)
                frame -= FRAME.total
                depth -= 1
    store8(at, STOP)
    return at + 1 - target
