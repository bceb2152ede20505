"""The reading half of :mod:`numba_kernels.pickling`: from a pickle of a plain value, as it is written there, to new objects.

Nothing is trusted: an opcode, a length or an end that is not as written there means that the pickle is somebody else's. What was made
by then is dropped, and Python's unpickler begins anew. Pickles of Python itself begin with a frame, which is seen at once.
"""

from __future__ import annotations

from numba_kernels import types
from numba_kernels.atomics import load8, load32, load64, store64
from numba_kernels.deferred import emitted
from numba_kernels.jit import kernel
from numba_kernels.memory import copy
from numba_kernels.pickled_arrays import FIRST as ARRAY
from numba_kernels.pickled_arrays import read_pickled
from numba_kernels.pickling import (
    APPENDS,
    BYTE,
    DEPTH,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    FALSE,
    FLOAT,
    FRAME,
    INT,
    LONG,
    LONG_BYTES,
    MARK,
    NONE,
    PROTO,
    PROTOCOL,
    ROOM,
    SETITEMS,
    SHORT,
    SHORT_BYTES,
    SHORT_TEXT,
    STOP,
    TEXT,
    TRUE,
    TUPLE,
    false_object,
    swapped,
)
from numba_kernels.pyobject import none_object, true_object
from numba_kernels.pyslots import clear_error, decrease, increase, new_bytes, new_integer, new_tuple

_new_float = types.external("PyFloat_FromDouble", types.intp(types.float64))
_new_text = types.external("PyUnicode_FromStringAndSize", types.intp(types.intp, types.intp))
_new_list = types.external("PyList_New", types.intp(types.intp))
_new_dict = types.external("PyDict_New", types.intp())
_append = types.external("PyList_Append", types.int32(types.intp, types.intp))
_set_item = types.external("PyDict_SetItem", types.int32(types.intp, types.intp, types.intp))
_as_float = emitted("bits", "as_float")
"""The float with these bits."""
_as_tuple = types.external("PyList_AsTuple", types.intp(types.intp))


@kernel("int64(int64)")
def _byte(at):  # type: ignore[no-untyped-def]
    return load8(at) & 0xFF


@kernel("int64(int64, int64)")
def _word(at, room):  # type: ignore[no-untyped-def]
    """Eight bytes at any address."""
    copy(room + ROOM.value, at, 8)
    return load64(room + ROOM.value)


@kernel("int64(int64, int64, int64, int64)")
def _make_atom(code, at, nbytes, room):  # type: ignore[no-untyped-def]
    """A new object from the `nbytes` that follow its opcode and length; 0 with an error set if there is none."""
    if code == FLOAT:
        return _new_float(_as_float(swapped(_word(at, room))))
    if code in (SHORT_TEXT, TEXT):
        return _new_text(at, nbytes)
    if code == BYTE:
        return new_integer(_byte(at))
    if code == SHORT:
        return new_integer(_byte(at) | _byte(at + 1) << 8)
    if code == INT:
        return new_integer(load32(at))
    if code == LONG:
        return new_integer(_word(at, room))
    if code in (SHORT_BYTES, LONG_BYTES):
        return new_bytes(at, nbytes)
    found = none_object()
    if code == TRUE:
        found = true_object()
    elif code == FALSE:
        found = false_object()
    increase(found)
    return found


@kernel("int64(int64, int64)")
def _read_array(room, end):  # type: ignore[no-untyped-def]
    """As :func:`_read_atom`, for an array."""
    made = read_pickled(load64(room + ROOM.at), end, room + ROOM.value)
    if made != 0:
        store64(room + ROOM.at, load64(room + ROOM.value))
    return made


@kernel("int64(int64, int64)")
def _read_atom(room, end):  # type: ignore[no-untyped-def]
    """The value without parts whose opcode is at ``room.at``, which moves behind it: a new object, 0 if it is none."""
    code, at, nbytes = _byte(load64(room + ROOM.at)), load64(room + ROOM.at) + 1, 0
    if code == ARRAY:
        return _read_array(room, end)
    if code == FLOAT:
        nbytes = 8
    elif code in (SHORT_TEXT, SHORT_BYTES):
        at, nbytes = at + 1, _byte(at)
    elif code in (TEXT, LONG_BYTES):
        if at + 4 > end:
            return 0
        at, nbytes = at + 4, load32(at)
    elif code == BYTE:
        nbytes = 1
    elif code == SHORT:
        nbytes = 2
    elif code == INT:
        nbytes = 4
    elif code == LONG:
        if _byte(at) != 8:
            return 0
        at, nbytes = at + 1, 8
    elif code not in (NONE, TRUE, FALSE):
        return 0
    if nbytes < 0 or at + nbytes > end:
        return 0
    store64(room + ROOM.at, at + nbytes)
    return _make_atom(code, at, nbytes, room)


@kernel("int64(int64)")
def _closer_of(opener):  # type: ignore[no-untyped-def]
    """The opcode that ends what `opener` begins, 0 if it begins nothing."""
    if opener == EMPTY_DICT:
        return SETITEMS
    if opener == EMPTY_LIST:
        return APPENDS
    return TUPLE if opener == MARK else 0


@kernel("int64(int64, int64, int64)")
def _open(code, frame, room):  # type: ignore[no-untyped-def]
    """Begin a container, which goes to `frame`, at ``room.at``: 1, or 0 if that is not how one begins."""
    at = load64(room + ROOM.at) + 1
    if code != MARK:
        if _byte(at) != MARK:
            return 0
        at += 1
    made = _new_dict() if code == EMPTY_DICT else _new_list(0)
    store64(room + ROOM.at, at)
    store64(frame + FRAME.container, made)
    store64(frame + FRAME.kind, _closer_of(code))
    store64(frame + FRAME.at, 0)
    return 1 if made != 0 else 0


@kernel("int64(int64)")
def _close(frame):  # type: ignore[no-untyped-def]
    """The container of a frame that ends; 0 if it lacks a value."""
    made = load64(frame + FRAME.container)
    if load64(frame + FRAME.at) != 0:
        return 0
    if load64(frame + FRAME.kind) == TUPLE:
        listed = made
        made = _as_tuple(listed)
        decrease(listed)
    store64(frame + FRAME.container, 0)
    return made


@kernel("int64(int64, int64)")
def _add(frame, item):  # type: ignore[no-untyped-def]
    """Give an item to the container of a frame: 0, or -1 with an error set."""
    container = load64(frame + FRAME.container)
    if load64(frame + FRAME.kind) != SETITEMS:
        code = _append(container, item)
        decrease(item)
        return code
    key = load64(frame + FRAME.at)
    if key == 0:
        store64(frame + FRAME.at, item)
        return 0
    code = _set_item(container, key, item)
    store64(frame + FRAME.at, 0)
    decrease(key)
    decrease(item)
    return code


@kernel("int64(int64, int64, int64)")
def _read_items(room, end, found):  # type: ignore[no-untyped-def]
    """Read until the value is whole, and its object in the word at `found`: 0, or the containers that are open at the failure."""
    depth, frame = 0, room + ROOM.frames - FRAME.total
    while load64(room + ROOM.at) < end:
        code = _byte(load64(room + ROOM.at))
        if depth > 0 and code == load64(frame + FRAME.kind):
            store64(room + ROOM.at, load64(room + ROOM.at) + 1)
            item = _close(frame)
            if item == 0:
                return depth
            depth -= 1
            frame -= FRAME.total
        elif _closer_of(code) != 0:
            if depth == DEPTH or _open(code, frame + FRAME.total, room) == 0:
                return depth
            depth += 1
            frame += FRAME.total
            continue
        elif code == EMPTY_TUPLE:
            store64(room + ROOM.at, load64(room + ROOM.at) + 1)
            item = new_tuple(0)
        else:
            item = _read_atom(room, end)
        if item == 0:
            return depth
        if depth == 0:
            store64(found, item)
            return 0
        if _add(frame, item) != 0:
            return depth
    return depth


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def read(room, address, nbytes, found):  # type: ignore[no-untyped-def]
    """Read a pickle, in a `room`, into the word at `found`: 1 if it was written by us, else 0."""
    store64(found, 0)
    if nbytes < 4 or _byte(address) != PROTO or _byte(address + 1) != PROTOCOL or _byte(address + nbytes - 1) != STOP:
        return 0
    end = address + nbytes - 1
    store64(room + ROOM.at, address + 2)
    depth = _read_items(room, end, found)
    if load64(found) != 0 and load64(room + ROOM.at) == end:
        return 1
    for index in range(depth):
        frame = room + ROOM.frames + index * FRAME.total
        decrease(load64(frame + FRAME.container))
        decrease(load64(frame + FRAME.at))
    decrease(load64(found))
    clear_error()
    return 0
