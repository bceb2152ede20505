"""Classes whose objects have memory that compiled code reads, though they are not Python's own: those of other libraries, and subclasses.

An object of another class (of Torch, ctypes, whatever speaks the buffer protocol, DLPack or the CUDA array interface) takes the slow path
once. Where it turns out to be in the host's memory, its class is learned, with the way in which its objects are read from then on:

==============  ===================================================  =====================
what it is      how it is read                                       what keeps the memory
==============  ===================================================  =====================
`LIKE_ARRAY`    by the fields of the object, a subclass of arrays    the object
`VIEWED`        by the buffer protocol                               a memoryview
`TENSOR`        by DLPack, on the CPU                                a capsule
`BY_NUMPY`      by its method ``numpy``, if ``is_cpu``, as Torch's   the array that it makes
`ASKED`         by a function of Python (:func:`introduce_opener`)   what that returns
`REFUSED`       not here, but on the slow path
==============  ===================================================  =====================

The first two take as long as for arrays of NumPy, a tensor half a microsecond and its library's time (Torch's is 4 to 6 for DLPack, 0.7 for
an array), what is asked 10. A whole call takes 20 to 50 on the slow path, which also meets all that is not as compiled code wants it, and
says what is wrong.

Up to 495 classes are learned (arrays of ctypes are of one for each length), and kept alive: an address must not become another class's.
"""

from __future__ import annotations

import threading
from typing import Any

from numba_kernels import symbols, types
from numba_kernels.atomics import load8, load64, store64
from numba_kernels.calls import make_symbol
from numba_kernels.jit import c_address, kernel
from numba_kernels.layout import WORD, zeroed
from numba_kernels.pyobject import (
    EXPORTERS,
    FIELDS,
    FORMATS,
    NONE,
    OB_TYPE,
    TUPLE_ITEMS,
    VIEW_FORMAT,
    VIEW_ITEMSIZE,
    format_elements,
    item_sizes,
    open_learned_at,
    read_any_array,
    read_array,
    read_buffer,
    true_object,
    tuple_type,
)
from numba_kernels.pyslots import as_integer, decrease, increase
from numba_kernels.pytensors import ADDRESS, ELEMENT, ask_for_capsule, call_method, is_on_cpu, put_off, read_capsule

LIKE_ARRAY, VIEWED, TENSOR, TENSOR_OF_OLD, BY_NUMPY, ASKED, REFUSED = range(1, 8)
"""How objects of a class are read; a tensor of old is one whose library knows version 0 of DLPack only."""
_BUCKETS, _MOST = 1024, 500
_NATIVE = tuple(map(ord, "<=@"))
"""What a format may begin with that says what holds anyway."""

_classes, _classes_at = zeroed(2 * _BUCKETS * WORD)
"""Open-addressing table: the address of a class, and how its objects are read."""
_opener, _opener_at = zeroed(WORD)
"""The address of the function that is asked."""
_kept: dict[Any, int] = dict.fromkeys(EXPORTERS.values(), REFUSED)
"""What has been said of classes. Python's own are read in another way."""
_lock = threading.Lock()
"""Held by the thread that writes a row, whose words belong together."""

symbols.add("ncclx_mpi_learned_classes", _classes_at)
symbols.add("ncclx_mpi_opener", _opener_at)
_NAMES = ("is_cpu", "numpy")
for _name in _NAMES:
    symbols.add(f"ncclx_mpi_learned_{_name}", id(_name))

_learned_classes = make_symbol("ncclx_mpi_learned_classes")
_address_of_opener = make_symbol("ncclx_mpi_opener")
_is_cpu = make_symbol("ncclx_mpi_learned_is_cpu")
_numpy = make_symbol("ncclx_mpi_learned_numpy")

_attribute = types.external("PyObject_GetAttr", types.intp(types.intp, types.intp))
_ask = types.external("PyObject_CallOneArg", types.intp(types.intp, types.intp))


def learn(kind: type, how: int) -> None:
    """Have compiled code read objects of a class; what was said of it before counts no more."""
    function = c_address(open_learned)
    with _lock:
        if len(_kept) >= _MOST and kind not in _kept:
            return
        slot = (id(kind) >> 4) % _BUCKETS
        while _classes[2 * slot] not in (0, id(kind)):
            slot = (slot + 1) % _BUCKETS
        _kept[kind] = how
        _classes[2 * slot + 1] = how
        _classes[2 * slot] = id(kind)
        open_learned_at[0] = function


def is_decided(kind: type) -> bool:
    """Whether it has been said how objects of a class are read, or no more classes are learned."""
    return kind in _kept or len(_kept) >= _MOST


def introduce_opener(function: Any) -> None:
    """Name the function, which is never gone, that opens an object of a class that is :data:`ASKED`.

    It returns address, bytes, type number, bytes of an element, whether the memory may be written (0 or 1), and what keeps it there; None
    leaves the object to the slow path.
    """
    _opener[0] = id(function)


@kernel("int64(int64)")
def _place_of(kind):  # type: ignore[no-untyped-def]
    """The address of the word that says how objects of a class are read, 0 if there is none."""
    slot = (kind >> 4) & (_BUCKETS - 1)
    while True:
        row = _learned_classes() + 2 * WORD * slot
        found = load64(row)
        if found == kind:
            return row + WORD
        if found == 0:
            return 0
        slot = (slot + 1) & (_BUCKETS - 1)


@kernel("int64(int64, int64)", is_entry=True, nogil=False)
def open_learned(obj, fields):  # type: ignore[no-untyped-def]
    """Read the memory of an object into int64[5], as :data:`numba_kernels.pyobject.read_array` does.

    Returns a new reference to what keeps the memory there, or 0. The caller holds the object: any Python code may run.
    """
    place = _place_of(load64(obj + OB_TYPE))
    how = load64(place) if place != 0 else REFUSED
    if how == LIKE_ARRAY:
        return _read_like_array(obj, fields)
    if how == VIEWED:
        return _read_view(obj, fields)
    if how in (TENSOR, TENSOR_OF_OLD):
        return _read_tensor(obj, fields, place)
    if how == BY_NUMPY:
        return _read_by_numpy(obj, fields, place)
    return _read_answer(obj, fields) if how == ASKED else 0


@kernel("int64(int64, int64)")
def _read_like_array(obj, fields):  # type: ignore[no-untyped-def]
    read_any_array(obj, fields)
    if load64(fields + ELEMENT) == NONE:
        return 0
    increase(obj)
    return obj


@kernel("int64(int64, int64)")
def _read_view(obj, fields):  # type: ignore[no-untyped-def]
    view = read_buffer(obj, fields)
    if view != 0 and load64(fields + ADDRESS) == 0:
        decrease(view)
        return 0
    if view != 0 and load64(fields + ELEMENT) == NONE:
        store64(fields + ELEMENT, _element_with_order(view))
    return view


@kernel("int64(int64)")
def _element_with_order(view):  # type: ignore[no-untyped-def]
    """The type number of the elements of a memoryview whose format says in which order bytes are, as those of ctypes do; or NONE."""
    text = load64(view + VIEW_FORMAT)
    code = load8(text + 1) if text != 0 and load8(text) in _NATIVE else 0
    if code == 0 or code >= FORMATS or load8(text + 2) != 0:
        return NONE
    element = load64(format_elements() + WORD * code)
    if element == NONE or load64(item_sizes() + WORD * element) != load64(view + VIEW_ITEMSIZE):
        return NONE
    return element


@kernel("int64(int64, int64, int64)")
def _read_tensor(obj, fields, place):  # type: ignore[no-untyped-def]
    """A tensor elsewhere has its class refused, `place` says so then: each look costs those that are there."""
    if is_on_cpu(obj, fields) == 0:
        store64(place, REFUSED)
        return 0
    capsule = ask_for_capsule(obj, load64(place) == TENSOR_OF_OLD, fields)
    if capsule == -1:
        store64(place, TENSOR_OF_OLD)
        capsule = ask_for_capsule(obj, True, fields)
    if capsule != 0 and read_capsule(capsule, fields) == 0:
        decrease(capsule)
        return 0
    return capsule


@kernel("int64(int64, int64, int64)")
def _read_by_numpy(obj, fields, place):  # type: ignore[no-untyped-def]
    """As :func:`_read_tensor`, of an object that makes an array of NumPy over its memory."""
    answer = _attribute(obj, _is_cpu())
    if answer == 0:
        put_off()
        return 0
    decrease(answer)
    if answer != true_object():
        store64(place, REFUSED)
        return 0
    store64(fields, obj)
    array = call_method(_numpy(), fields, 1, 0)
    if array == 0:
        put_off()
        return 0
    read_array(array, fields)
    if load64(fields + ELEMENT) == NONE:
        decrease(array)
        return 0
    return array


@kernel("int64(int64, int64)")
def _read_answer(obj, fields):  # type: ignore[no-untyped-def]
    answer = _ask(load64(_address_of_opener()), obj)
    if answer == 0:
        put_off()
        return 0
    if load64(answer + OB_TYPE) != tuple_type():
        decrease(answer)
        return 0
    for index in range(len(FIELDS)):
        store64(fields + WORD * index, as_integer(load64(answer + TUPLE_ITEMS + WORD * index)))
    return answer
