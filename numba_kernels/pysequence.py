"""Buffers with counts straight from Python objects into compiled code: ``[array, counts]`` and its longer forms.

What costs 0.5 us and more in Python (unpacking a specification, checking each count, keeping a copy in native memory) costs some
nanoseconds an item here. Everything is exact: lists and tuples (no subclasses) of ints (of Python or of NumPy), or a one-dimensional array
of int32 or int64, NumPy's or Python's own. Whatever else comes returns NONE, and the caller resolves it in Python, or says what is wrong
with it.

All functions take addresses of Python objects (:data:`numba_kernels.pyobject.object_argument`) and need the GIL.

Sequences of integers::

    [3, 1, 2]   (3, 1, 2)   np.array([3, 1, 2])   array("i", [3, 1, 2])

Vectors, blocks of one array, one for each rank (any of :data:`numba_kernels.pyobject.EXPORTERS` is as good as an array)::

    array                            equal blocks
    [array, counts]                  blocks one after another
    [array, (counts, offsets)]       offsets in elements
    ... with a registered element type as the last item: [array, counts, type], [array, counts, offsets, type]
    ... with None for what is not given

Typed vectors, where each block has an element type of its own and offsets are bytes::

    [array, (counts, offsets), types]   [array, counts, offsets, types]
"""

from __future__ import annotations

from numba_kernels.atomics import load32, load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.pyobject import (
    LIST_ITEMS,
    NONE,
    OB_SIZE,
    OB_TYPE,
    SCALAR_VALUE,
    TUPLE_ITEMS,
    TYPE_NUMBERS,
    WORDS_DATA,
    WORDS_DESCRIPTOR,
    element_named,
    int_type,
    item_sizes,
    list_type,
    none_object,
    read_array,
    read_exporter,
    scalar_types,
    tuple_type,
    words_type,
)
from numba_kernels.pyslots import as_any_integer, decrease, increase

VECTOR = words("Vector", "address nbytes element itemsize writable array")
"""What is known of memory, and the address of the object that has it; in a vector the bytes of each block follow, and then the byte offset of
each.

Whoever read it owns a reference to the object, the array or a memoryview of something else, until :func:`let_go`; there is none, and nothing
to let go, where what was read is not taken."""
MOST = 1 << 40
"""Integers beyond this are left to Python, so that products with item sizes fit a word."""
_OWN, _INT32, _INT64, _LONGLONG = -2, *(TYPE_NUMBERS[code] for code in "ilq")
"""The type number that stands for the one of the elements themselves, and those of integers."""
_CODE_I, _CODE_L, _CODE_Q = (ord(code) for code in "ilq")


@kernel("int64(int64)")
def items_of(sequence):  # type: ignore[no-untyped-def]
    """Address of the items of a list or tuple; 0 for anything else."""
    kind = load64(sequence + OB_TYPE)
    if kind == list_type():
        return load64(sequence + LIST_ITEMS)
    return sequence + TUPLE_ITEMS if kind == tuple_type() else 0


@kernel("void(int64)")
def let_go(vector):  # type: ignore[no-untyped-def]
    """Own nothing of a vector any more. Any Python code may run."""
    owner = load64(vector + VECTOR.array)
    store64(vector + VECTOR.array, 0)
    decrease(owner)


@kernel("int64(int64)")
def abandon(vector):  # type: ignore[no-untyped-def]
    """What has been read is not taken after all: NONE."""
    let_go(vector)
    return NONE


@kernel("int64(int64, int64)")
def _item(sequence, index):  # type: ignore[no-untyped-def]
    return load64(items_of(sequence) + 8 * index)


@kernel("int64(int64)")
def _is_pair(sequence):  # type: ignore[no-untyped-def]
    """Whether a specification has a tuple of two here, which is (counts, offsets)."""
    return 1 if load64(sequence + OB_TYPE) == tuple_type() and load64(sequence + OB_SIZE) == 2 else 0


@kernel("int64(int64, int64)")
def integer(item, overflow):  # type: ignore[no-untyped-def]
    """The value of an int of Python or NumPy, or one beyond `MOST`. `overflow`: a word to work in."""
    kind = load64(item + OB_TYPE)
    if kind == int_type():
        value = as_any_integer(item, overflow)
        return value if load32(overflow) == 0 else MOST
    if kind == load64(scalar_types()):
        return load64(item + SCALAR_VALUE)
    return load32(item + SCALAR_VALUE) if kind == load64(scalar_types() + 8) else MOST


@kernel("int64(int64, int64)")
def _open_integers(sequence, fields):  # type: ignore[no-untyped-def]
    """Have address, bytes and type number of the integers of an array in `fields`; the type number is NONE of anything else."""
    read_array(sequence, fields)
    if load64(sequence + OB_TYPE) == words_type():
        code = load32(load64(sequence + WORDS_DESCRIPTOR)) & 0xFF
        itemsize = 4 if code == _CODE_I else 8
        store64(fields + VECTOR.address, load64(sequence + WORDS_DATA))
        store64(fields + VECTOR.nbytes, load64(sequence + OB_SIZE) * itemsize)
        store64(fields + VECTOR.itemsize, itemsize)
        return _INT32 if code == _CODE_I else (_INT64 if code in (_CODE_L, _CODE_Q) else NONE)
    return load64(fields + VECTOR.element)


@kernel("int64(int64, int64, int64, int64)")
def read_integers(sequence, length, target, fields):  # type: ignore[no-untyped-def]
    """Write the `length` integers of a sequence to `target`: 1, or 0 if it is none of those above. `fields`: a `VECTOR` to work in.

    Runs no Python code.
    """
    items = items_of(sequence)
    itemsize = 8
    if items == 0:
        element, itemsize = _open_integers(sequence, fields), load64(fields + VECTOR.itemsize)
        if element not in (_INT32, _INT64, _LONGLONG) or load64(fields + VECTOR.nbytes) != length * itemsize:
            return 0
    elif load64(sequence + OB_SIZE) != length:
        return 0
    for index in range(length):
        if items != 0:
            value = integer(load64(items + 8 * index), fields)
        else:
            place = load64(fields) + itemsize * index
            value = load32(place) if itemsize == 4 else load64(place)
        if value < 0 or value >= MOST:
            return 0
        store64(target + 8 * index, value)
    return 1


@kernel("int64(int64, int64)")
def _even_counts(length, vector):  # type: ignore[no-untyped-def]
    """Counts of the equal blocks of the whole array; 0 if it has no equal ones."""
    nbytes, itemsize = load64(vector + VECTOR.nbytes), load64(vector + VECTOR.itemsize)
    for index in range(length):
        store64(vector + VECTOR.total + 8 * index, nbytes // itemsize // length)
    return 1 if nbytes % (itemsize * length) == 0 else 0


@kernel("void(int64, int64)")
def one_after_another(length, vector):  # type: ignore[no-untyped-def]
    counts, offset = vector + VECTOR.total, 0
    for index in range(length):
        store64(counts + 8 * (length + index), offset)
        offset += load64(counts + 8 * index)


@kernel("int64(int64, int64, int64)")
def _as_bytes(length, vector, itemsize):  # type: ignore[no-untyped-def]
    """Turn counts and offsets, in elements, into bytes: 1, or 0 if a block does not lie in the array."""
    counts, nbytes = vector + VECTOR.total, load64(vector + VECTOR.nbytes)
    for index in range(length):
        count, place = load64(counts + 8 * index) * itemsize, load64(counts + 8 * (length + index)) * itemsize
        if place + count > nbytes:
            return 0
        store64(counts + 8 * index, count)
        store64(counts + 8 * (length + index), place)
    return 1


@kernel("int64(int64, int64, int64)")
def _open_as(obj, asked, vector):  # type: ignore[no-untyped-def]
    """Read memory, as elements of the type number `asked` unless that is `_OWN`: the type number, or NONE. May collect garbage."""
    store64(vector + VECTOR.array, 0)
    if asked == NONE:
        return NONE
    increase(obj)
    read_array(obj, vector)
    owner = obj
    if load64(vector + VECTOR.element) == NONE:
        owner = read_exporter(obj, vector)
        decrease(obj)
    store64(vector + VECTOR.array, owner)
    if load64(vector + VECTOR.element) == NONE:
        return abandon(vector)
    if asked != _OWN:
        store64(vector + VECTOR.element, asked)
        store64(vector + VECTOR.itemsize, load64(item_sizes() + 8 * asked))
    return load64(vector + VECTOR.element)


@kernel("int64(int64, int64)")
def open_memory(obj, vector):  # type: ignore[no-untyped-def]
    """Read the memory of an object into a `VECTOR`: the element type number, or NONE.

    May collect garbage: what a list holds that can be changed meanwhile is to be read before.
    """
    return _open_as(obj, _OWN, vector)


@kernel("int64(int64)")
def _given(item):  # type: ignore[no-untyped-def]
    """An item of a vector; 0 if it is None, which is as good as nothing."""
    return 0 if item == none_object() else item


@kernel("UniTuple(int64, 4)(int64)")
def split_vector(spec):  # type: ignore[no-untyped-def]
    """The objects in a vector: array, counts, offsets and type. What is not given is 0; so is all of what is no vector."""
    items = items_of(spec)
    array, counts, offsets, kind = spec, 0, 0, 0
    if items != 0:
        given = load64(spec + OB_SIZE)
        if given < 2 or given > 4:
            return 0, 0, 0, 0
        array, counts = load64(items), load64(items + 8)
        if given == 2 and element_named(counts) != NONE:
            kind, counts = counts, 0
        elif given < 4 and load64(counts + OB_TYPE) == tuple_type():
            if _is_pair(counts) == 0:
                return 0, 0, 0, 0
            offsets, counts = _item(counts, 1), _item(counts, 0)
        if given == 4:
            offsets = load64(items + 16)
        if given > 2:
            kind = load64(items + 8 * (given - 1))
    return array, _given(counts), _given(offsets), _given(kind)


@kernel("int64(int64, int64, int64)")
def read_vector(spec, length, vector):  # type: ignore[no-untyped-def]
    """Read `length` blocks of one array into `vector`, a `VECTOR` and two words a block.

    Returns the element type number, or NONE. Only what is valid is taken: every block lies in the array.
    """
    array, counts, offsets, kind = split_vector(spec)
    store64(vector + VECTOR.array, 0)
    if array == 0:
        return NONE
    places = vector + VECTOR.total
    if counts != 0 and read_integers(counts, length, places, vector) == 0:
        return NONE
    if offsets != 0 and read_integers(offsets, length, places + 8 * length, vector) == 0:
        return NONE
    element = _open_as(array, element_named(kind) if kind != 0 else _OWN, vector)
    if element == NONE:
        return NONE
    if counts == 0 and _even_counts(length, vector) == 0:
        return abandon(vector)
    if offsets == 0:
        one_after_another(length, vector)
    return element if _as_bytes(length, vector, load64(vector + VECTOR.itemsize)) != 0 else abandon(vector)


@kernel("int64(int64, int64, int64)")
def open_typed_vector(spec, length, vector):  # type: ignore[no-untyped-def]
    """Read an array, no other object, `length` counts, and as many offsets in bytes: the address of the items that are the types, or 0."""
    items = items_of(spec)
    given = load64(spec + OB_SIZE) if items != 0 else 0
    store64(vector + VECTOR.array, 0)
    if given != 3 and given != 4:
        return 0
    counts, offsets, kinds = load64(items + 8), load64(items + 16), load64(items + 8 * (given - 1))
    if given == 3:
        if _is_pair(counts) == 0:
            return 0
        offsets, counts = _item(counts, 1), _item(counts, 0)
    places, named, array = vector + VECTOR.total, items_of(kinds), load64(items)
    if read_integers(counts, length, places, vector) == 0 or read_integers(offsets, length, places + 8 * length, vector) == 0:
        return 0
    read_array(array, vector)  # which runs nothing that could change the list of types
    if named == 0 or load64(kinds + OB_SIZE) != length or load64(vector + VECTOR.element) == NONE:
        return 0
    increase(array)
    store64(vector + VECTOR.array, array)
    return named


@kernel("int64(int64, int64, int64)")
def read_typed_vector(spec, length, vector):  # type: ignore[no-untyped-def]
    """As :func:`read_vector`, for blocks with types of their own. Returns 0, or NONE."""
    places, named = vector + VECTOR.total, open_typed_vector(spec, length, vector)
    if named == 0:
        return NONE
    for index in range(length):
        element = element_named(load64(named + 8 * index))
        if element == NONE:
            return abandon(vector)
        store64(places + 8 * index, load64(places + 8 * index) * load64(item_sizes() + 8 * element))
    return 0 if _as_bytes(length, vector, 1) != 0 else abandon(vector)


@kernel("int64(int64, int64)")
def read_block(spec, vector):  # type: ignore[no-untyped-def]
    """Read ``array``, ``[array, type]``, ``[array, count]`` or ``[array, count, type]`` into a `VECTOR`: the element type number, or NONE."""
    items = items_of(spec)
    if items == 0:
        return open_memory(spec, vector)
    given = load64(spec + OB_SIZE)
    store64(vector + VECTOR.array, 0)
    if given != 2 and given != 3:
        return NONE
    asked, number = element_named(load64(items + 8 * (given - 1))), -1
    if given == 3 or asked == NONE:
        number = integer(load64(items + 8), vector)
        if number < 0 or number >= MOST:
            return NONE
    element = _open_as(load64(items), _OWN if given == 2 and asked == NONE else asked, vector)
    if element == NONE:
        return NONE
    nbytes, itemsize = load64(vector + VECTOR.nbytes), load64(vector + VECTOR.itemsize)
    if number * itemsize > nbytes or (number < 0 and nbytes % itemsize != 0):
        return abandon(vector)
    if number >= 0:
        store64(vector + VECTOR.nbytes, number * itemsize)
    return element
