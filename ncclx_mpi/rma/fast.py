"""Accesses and locks of windows in one compiled call from the Python objects to the target's memory.

What each takes is what is usual and valid: a target whose memory is mapped here, that the kernel copies from and to, or that is asked
(:mod:`ncclx_mpi.rma.asking`, whose codes are returned then); plain arrays; an open epoch. Everything else returns SLOW
with nothing done, and the caller goes through :mod:`ncclx_mpi.rma.window`, which words every error. Both ways work on the same words
(:mod:`ncclx_mpi.rma.layout`), under the same lock and guard.

Short copies keep the GIL, so that no other thread of this process comes between what a call looks at and what it does. Who waits for a
lock or guard here looks some turns only, and leaves longer waits to Python: holders are short, and the wait that sees deaths and signals
is there.
"""

from __future__ import annotations

from ncclx_mpi.collectives.barrier.shm_oneshot import barrier
from ncclx_mpi.collectives.fast import ELEMENTS
from ncclx_mpi.collectives.fast_plans import barrier as planned_barrier
from ncclx_mpi.collectives.select import is_planned
from ncclx_mpi.collectives.shm_oneshot import BARRIER, KEEP_GIL, give_gil
from ncclx_mpi.constants import (
    LOCK_EXCLUSIVE,
    LOCK_SHARED,
    MODE_NOCHECK,
    MODE_NOPRECEDE,
    MODE_NOPUT,
    MODE_NOSTORE,
    MODE_NOSUCCEED,
)
from ncclx_mpi.p2p.fast import POLLS
from ncclx_mpi.p2p.gil import enter_gil
from ncclx_mpi.p2p.layout import COMM, ENGINE, PEER
from ncclx_mpi.p2p.progress import idle
from ncclx_mpi.rma.asking import SLOW as SLOW
from ncclx_mpi.rma.asking import ask_far, ask_word, flush_changed, flush_far, get_far
from ncclx_mpi.rma.combining import NOT_A_WORD, combine_words, is_word, operation_of
from ncclx_mpi.rma.layout import ASKED, CONTROL, EXCLUSIVE, FAR_TARGET, FREE, GENERAL, MAPPED, ROW, SHARED, TARGET, WINDOW
from ncclx_mpi.rma.locks import try_lock, unlock
from ncclx_mpi.rma.requests import COMBINE, LOCK, NO_REDUCTION, PUT, SWAP, UNLOCK
from ncclx_mpi.rma.requests import REPLACE as REPLACE_THERE
from numba_kernels import types
from numba_kernels.atomics import full_fence, load64, load_acquire, store64, ticks
from numba_kernels.calls import call_reduce
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import compare as differ
from numba_kernels.memory import make_stack, move, move_lines
from numba_kernels.pyobject import (
    NONE,
    OB_SIZE,
    OB_TYPE,
    address_of,
    array_argument,
    array_of,
    element_named,
    element_of,
    index_argument,
    index_of,
    int_type,
    item_sizes,
    itemsize_of,
    nbytes_of,
    none_object,
    object_argument,
    object_of,
    writable_of,
)
from numba_kernels.pysequence import items_of
from numba_kernels.pyslots import as_any_integer
from transports.messages import COMPARE_AND_SWAP
from transports.shm.cma import read_peer, write_peer
from transports.shm.lane import LANE

TAKEN_TWICE = -2
"""Another thread of this process has taken the lock meanwhile, and this call has it too: the caller gives it back, and raises."""
ASSERTIONS = MODE_NOCHECK | MODE_NOSTORE | MODE_NOPUT | MODE_NOPRECEDE | MODE_NOSUCCEED
"""All that a program can assert."""
_MOST = 1 << 40
"""Displacements and counts beyond this are left to Python, so that products with units and item sizes fit a word."""
_SCRATCH = 4096
"""Bytes of an accumulation to private memory that are combined here: few enough that the kernel copies all of them or none."""
_LARGEST_ALIGNMENT = 8
_ELEMENT = 16
"""Bytes of the largest element."""
_PLACE = 4
"""Words of a place: offset in the window and bytes there, type number of its elements, and one to work in."""

_scratch, _element_words, _place_words = make_stack(_SCRATCH // 8), make_stack(_ELEMENT // 8), make_stack(_PLACE)


# Where -----------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64)")
def target_of(window, rank):  # type: ignore[no-untyped-def]
    """What is known of a rank, or 0 if there is none of that number."""
    return window + WINDOW.total + rank * TARGET.total if 0 <= rank < load64(window + WINDOW.size) else 0


@kernel("int64(int64, int64)")
def _is_open(window, target):  # type: ignore[no-untyped-def]
    """Whether this rank may access the memory of a target now."""
    held = load64(target + TARGET.held) != FREE or load64(target + TARGET.started) != 0
    return 1 if held or load64(window + WINDOW.fenced) != 0 or load64(window + WINDOW.all) != 0 else 0


@kernel("int64(int64, int64)")
def _reach(window, rank):  # type: ignore[no-untyped-def]
    """The target, if its memory is reached here and may be accessed now; else 0."""
    target = target_of(window, rank)
    if target == 0 or load64(target + TARGET.kind) == GENERAL or _is_open(window, target) == 0:
        return 0
    return target


@kernel("int64(int64, int64)")
def integer_at(item, scratch):  # type: ignore[no-untyped-def]
    """The value of an int that is no subclass, or `_MOST` for anything that Python looks at. `scratch`: a word to work in."""
    if load64(item + OB_TYPE) != int_type():
        return _MOST
    store64(scratch, 0)
    value = as_any_integer(item, scratch)
    return value if load64(scratch) == 0 and 0 <= value < _MOST else _MOST


@kernel("int64(int64, int64, int64, int64)")
def _read_items(spec, nbytes, element, place):  # type: ignore[no-untyped-def]
    """Read ``[displacement, count, type]``, or the beginning of it, into a place: 1, or 0 if Python has to look at it."""
    items = items_of(spec)
    given = load64(spec + OB_SIZE) if items != 0 else 0
    if given < 1 or given > 3:
        return 0
    store64(place, integer_at(load64(items), place + 24))
    if given == 3:
        element = element_named(load64(items + 16))
    if element == NONE:
        return 0
    there = nbytes
    if given > 1:
        there = integer_at(load64(items + 8), place + 24) * load64(item_sizes() + 8 * element)
    store64(place + 8, there)
    store64(place + 16, element)
    return 1 if there == nbytes else 0


@kernel("int64(int64, int64, int64, int64, int64)")
def _find_place(target, spec, nbytes, element, place):  # type: ignore[no-untyped-def]
    """Find where in a target's memory `nbytes` of elements go: 1, or 0 if that is not valid, or not usual."""
    store64(place, 0)
    store64(place + 8, nbytes)
    store64(place + 16, element)
    if spec != none_object():
        if load64(spec + OB_TYPE) == int_type():
            store64(place, integer_at(spec, place + 24))
        elif _read_items(spec, nbytes, element, place) == 0:
            return 0
    return _fits(target, place)


@kernel("int64(int64, int64)")
def _fits(target, place):  # type: ignore[no-untyped-def]
    """Turn the displacement of a place into bytes: 1, or 0 if it is not within the target's memory."""
    displacement, nbytes, unit = load64(place), load64(place + 8), load64(target + TARGET.unit)
    if displacement < 0 or displacement >= _MOST or unit >= 1 << 20:
        return 0
    start = displacement * unit
    store64(place, start)
    return 1 if start + nbytes <= load64(target + TARGET.nbytes) else 0


@kernel("int64(int64, int64)")
def _first_bad(rows, size):  # type: ignore[no-untyped-def]
    """1 + the first rank that could not make its part of a window, 0 if all could."""
    for rank in range(size):
        if load64(rows + rank * ROW.total + ROW.error) != 0:
            return 1 + rank
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def fill_targets(window, rows, arena, first, last, own_address):  # type: ignore[no-untyped-def]
    """Note what rows say of all targets. World ranks from `first` to `last` share the memory at `arena` with this one.

    Returns 1 + the first rank that could not make its part, with nothing noted; 0 if all could.
    """
    comm, far, bad = load64(window + WINDOW.comm), 0, _first_bad(rows, load64(window + WINDOW.size))
    if bad != 0:
        return bad
    for rank in range(load64(window + WINDOW.size)):
        row, target = rows + rank * ROW.total, target_of(window, rank)
        world = load64(load64(comm + COMM.world) + 8 * rank)
        store64(target + TARGET.nbytes, load64(row + ROW.size))
        store64(target + TARGET.unit, load64(row + ROW.unit))
        if world < first or world > last:
            far += 1
            continue
        control, is_own = arena + load64(row + ROW.control), rank == load64(comm + COMM.rank)
        store64(target + TARGET.lock, control + CONTROL.lock)
        store64(target + TARGET.guard, control + CONTROL.guard)
        if load64(row + ROW.size) != 0 and (is_own or load64(row + ROW.is_mapped) != 0):
            store64(target + TARGET.base, own_address if is_own else arena + load64(row + ROW.where))
            store64(target + TARGET.kind, MAPPED)
    store64(window + WINDOW.far, far)
    store64(window + WINDOW.arena, arena)
    store64(window + WINDOW.access, target_of(window, 0) + load64(window + WINDOW.size) * TARGET.total)
    store64(window + WINDOW.exposure, load64(window + WINDOW.access) + load64(window + WINDOW.size) * WORD)
    return 0


# Copies -----------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64)")
def _control(window, rank):  # type: ignore[no-untyped-def]
    """The control block of a rank, which says what process it is and whether it lives."""
    comm = load64(window + WINDOW.comm)
    world = load64(load64(comm + COMM.world) + 8 * rank)
    return load64(load64(load64(comm + COMM.engine) + ENGINE.peers) + world * PEER.total + LANE.control)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _write(window, rank, target, start, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy to a target's memory: 1, or 0 if the kernel refused some of it."""
    there = load64(target + TARGET.base) + start
    if load64(target + TARGET.kind) == MAPPED:
        move_lines(there, source, nbytes)
        return 1
    return write_peer(_control(window, rank), there, source, nbytes)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _read(window, rank, target, start, landing, nbytes):  # type: ignore[no-untyped-def]
    """Copy from a target's memory: 1, or 0 if the kernel refused some of it."""
    there = load64(target + TARGET.base) + start
    if load64(target + TARGET.kind) == MAPPED:
        move_lines(landing, there, nbytes)
        return 1
    return read_peer(_control(window, rank), there, landing, nbytes)


@kernel(types.int64(types.int64, array_argument, index_argument, object_argument), is_entry=True, nogil=False)
def put(window, origin, target_rank, spec):  # type: ignore[no-untyped-def]
    """Copy a plain array to a target: 0, or SLOW."""
    rank, place, element = index_of(target_rank), _place_words(), element_of(origin)
    target = _reach(window, rank)
    if target == 0 or element == NONE or _find_place(target, object_of(spec), nbytes_of(origin), element, place) == 0:
        return SLOW
    if load64(target + TARGET.kind) == ASKED:
        return ask_far(window, target, PUT, load64(place), nbytes_of(origin), 0, 0, address_of(origin), 0, 0, none_object())
    state = give_gil(nbytes_of(origin))
    is_done = _write(window, rank, target, load64(place), address_of(origin), nbytes_of(origin))
    enter_gil(state)
    return 0 if is_done != 0 else SLOW


@kernel(types.int64(types.int64, array_argument, index_argument, object_argument), is_entry=True, nogil=False)
def get(window, origin, target_rank, spec):  # type: ignore[no-untyped-def]
    """Copy from a target to a plain array: 0, or SLOW."""
    rank, place, element = index_of(target_rank), _place_words(), element_of(origin)
    target = _reach(window, rank)
    if target == 0 or element == NONE or writable_of(origin) == 0:
        return SLOW
    if _find_place(target, object_of(spec), nbytes_of(origin), element, place) == 0:
        return SLOW
    if load64(target + TARGET.kind) == ASKED:
        return get_far(window, target, load64(place), nbytes_of(origin), address_of(origin), array_of(origin))
    state = give_gil(nbytes_of(origin))
    is_done = _read(window, rank, target, load64(place), address_of(origin), nbytes_of(origin))
    enter_gil(state)
    return 0 if is_done != 0 else SLOW


# Accumulations ----------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64, int64)")
def _take(window, word, exclusive):  # type: ignore[no-untyped-def]
    """Take a lock or guard, perhaps after some turns: 1, or 0 if it is left to Python to wait for it."""
    engine = load64(load64(window + WINDOW.comm) + COMM.engine)
    owner = load64(engine + ENGINE.rank)
    if try_lock(word, exclusive, owner) != 0:
        return 1
    started = ticks()
    for turn in range(min(POLLS, load64(engine + ENGINE.spins))):
        if idle(engine, turn, started) != 0:
            return 0
        if try_lock(word, exclusive, owner) != 0:
            return 1
    return 0


@kernel("int64(int64, int64, int64)")
def _take_guard(window, target, nbytes):  # type: ignore[no-untyped-def]
    """Keep other accumulations away from a target's memory: 1, or 0 if it is left to Python to wait; 2 if nobody else can come.

    Under an exclusive lock other ranks stay away, and other threads of this process as long as this one keeps the GIL: those that are
    in an accumulation already have taken the guard.
    """
    guard = load64(target + TARGET.guard)
    if load64(target + TARGET.held) == EXCLUSIVE and nbytes <= KEEP_GIL and load_acquire(guard) == 0:
        return 2
    return _take(window, guard, 1)


@kernel("void(int64, int64)")
def _give_guard(target, taken):  # type: ignore[no-untyped-def]
    """End what :func:`_take_guard` has begun, which returned `taken`."""
    if taken == 1:
        unlock(load64(target + TARGET.guard), 1)


@kernel("int64(int64, int64, int64)")
def _is_aligned(first, second, itemsize):  # type: ignore[no-untyped-def]
    """Whether elements at both addresses can be computed with."""
    return 1 if (first | second) & (min(itemsize, _LARGEST_ALIGNMENT) - 1) == 0 else 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _combine_private(window, rank, target, start, origin, nbytes, combining):  # type: ignore[no-untyped-def]
    """Combine elements into memory of another process, under its guard: 1, or 0 if nothing was written.

    `combining`: the reduction function, and bytes of its elements; a function of 0 replaces.
    """
    function, itemsize, held = load64(combining), load64(combining + 8), _scratch()
    if function == 0:
        return _write(window, rank, target, start, origin, nbytes)
    if _read(window, rank, target, start, held, nbytes) == 0:
        return 0
    call_reduce(function, held, origin, held, nbytes // itemsize)
    return _write(window, rank, target, start, held, nbytes)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _combine(window, rank, target, start, origin, nbytes, combining):  # type: ignore[no-untyped-def]
    """As :func:`_combine_private`, wherever the memory is."""
    if load64(target + TARGET.kind) != MAPPED:
        return _combine_private(window, rank, target, start, origin, nbytes, combining)
    there, function = load64(target + TARGET.base) + start, load64(combining)
    if function == 0:
        move_lines(there, origin, nbytes)
    else:
        call_reduce(function, there, origin, there, nbytes // load64(combining + 8))
    return 1


@kernel("int64(int64, int64, int64, int64)")
def _choose(window, functions, element, combining):  # type: ignore[no-untyped-def]
    """Find how elements of a type are combined: function, bytes of an element, number of both; 1, or 0 if Python has to say."""
    is_replacing = functions == load64(window + WINDOW.replace)
    store64(combining, 0 if is_replacing else load64(functions + 8 * element))
    store64(combining + 8, load64(item_sizes() + 8 * element))
    store64(combining + 16, load64(functions + 8 * (ELEMENTS + element)))
    if functions == load64(window + WINDOW.no_op):
        return 0
    return 1 if is_replacing or load64(combining) != 0 else 0


@kernel("int64(int64, int64, int64, int64)")
def _can_combine(target, place, origin, combining):  # type: ignore[no-untyped-def]
    """Whether the elements at an address can be combined here into those of a place."""
    nbytes, kind = load64(place + 8), load64(target + TARGET.kind)
    if kind == ASKED:
        return 1
    if kind != MAPPED:
        return _is_aligned(origin, 0, load64(combining + 8)) if nbytes <= _SCRATCH else 0
    return _is_aligned(origin, load64(target + TARGET.base) + load64(place), load64(combining + 8))


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _ask(window, target, place, origin, landing, combining, owner):  # type: ignore[no-untyped-def]
    """Have a far target do what :func:`_exchange` does; `owner`: the object to whose memory `landing` belongs."""
    start, nbytes = load64(place), load64(place + 8)
    if origin == 0:
        return ask_far(window, target, COMBINE, start, nbytes, NO_REDUCTION, 1, 0, 0, landing, owner)
    if load64(combining) == 0:
        return ask_far(window, target, REPLACE_THERE, start, nbytes, 0, 0, origin, 0, landing, owner)
    return ask_far(window, target, COMBINE, start, nbytes, load64(combining + 16), load64(combining + 8), origin, 0, landing, owner)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _exchange(window, rank, target, place, origin, landing, combining):  # type: ignore[no-untyped-def]
    """Under the guard, copy what a place holds to `landing`, and combine elements into it, each unless its address is 0: 0, or SLOW."""
    start, nbytes = load64(place), load64(place + 8)
    taken = _take_guard(window, target, nbytes)
    if taken == 0:
        return SLOW
    state = give_gil(nbytes)
    is_done = 1 if landing == 0 else _read(window, rank, target, start, landing, nbytes)
    if is_done != 0 and origin != 0:
        is_done = _combine(window, rank, target, start, origin, nbytes, combining)
    _give_guard(target, taken)
    enter_gil(state)
    return 0 if is_done != 0 else SLOW


@kernel(types.int64(types.int64, array_argument, index_argument, object_argument, types.int64), is_entry=True, nogil=False)
def accumulate(window, origin, target_rank, spec, functions):  # type: ignore[no-untyped-def]
    """Combine a plain array into a target's memory, by a table of reduction functions: 0, or SLOW."""
    rank, place, combining, element = index_of(target_rank), _place_words(), _place_words(), element_of(origin)
    target = _reach(window, rank)
    if target == 0 or element == NONE or _choose(window, functions, element, combining) == 0:
        return SLOW
    if _find_place(target, object_of(spec), nbytes_of(origin), element, place) == 0 or load64(place + 16) != element:
        return SLOW
    operation = operation_of(window, target, functions, element, load64(place))
    if operation != NOT_A_WORD:
        return combine_words(window, target, rank, load64(place), nbytes_of(origin), operation, address_of(origin), 0, 0)
    if _can_combine(target, place, address_of(origin), combining) == 0:
        return SLOW
    if load64(target + TARGET.kind) == ASKED:
        return _ask(window, target, place, address_of(origin), 0, combining, none_object())
    return _exchange(window, rank, target, place, address_of(origin), 0, combining)


@kernel(types.int64(array_argument, array_argument))
def _are_alike(origin, result):  # type: ignore[no-untyped-def]
    """Whether both arrays are of as many elements of one type, and the second can be written."""
    same = element_of(origin) == element_of(result) and nbytes_of(origin) == nbytes_of(result)
    return 1 if same and element_of(origin) != NONE and writable_of(result) != 0 else 0


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64, types.int64, types.int64))
def _fetch(window, origin, result, rank, spec, functions):  # type: ignore[no-untyped-def]
    """Copy what a target's memory holds to an array, and combine another one into it: 0, or SLOW."""
    place, combining, element = _place_words(), _place_words(), element_of(origin)
    target, given = _reach(window, rank), address_of(origin)
    if target == 0 or _find_place(target, spec, nbytes_of(result), element, place) == 0:
        return SLOW
    operation = operation_of(window, target, functions, element, load64(place))
    if operation != NOT_A_WORD and load64(place + 16) == element:
        return combine_words(window, target, rank, load64(place), nbytes_of(result), operation, given, 0, address_of(result))
    if functions == load64(window + WINDOW.no_op):
        given = 0
    elif (
        _choose(window, functions, element, combining) == 0
        or load64(place + 16) != element
        or _can_combine(target, place, given, combining) == 0
    ):
        return SLOW
    if load64(target + TARGET.kind) == ASKED:
        return _ask(window, target, place, given, address_of(result), combining, array_of(result))
    return _exchange(window, rank, target, place, given, address_of(result), combining)


@kernel(
    types.int64(types.int64, array_argument, array_argument, index_argument, object_argument, types.int64),
    is_entry=True,
    nogil=False,
)
def get_accumulate(window, origin, result, target_rank, spec, functions):  # type: ignore[no-untyped-def]
    """Fetch as many elements as are combined into the target, plain arrays of one type: 0, or SLOW."""
    if _are_alike(origin, result) == 0:
        return SLOW
    return _fetch(window, origin, result, index_of(target_rank), object_of(spec), functions)


@kernel(
    types.int64(types.int64, array_argument, array_argument, index_argument, object_argument, types.int64),
    is_entry=True,
    nogil=False,
)
def fetch_and_op(window, origin, result, target_rank, displacement, functions):  # type: ignore[no-untyped-def]
    """Fetch one element and combine another into it: 0, or SLOW."""
    spec = object_of(displacement)
    if _are_alike(origin, result) == 0 or nbytes_of(origin) != itemsize_of(origin) or load64(spec + OB_TYPE) != int_type():
        return SLOW
    return _fetch(window, origin, result, index_of(target_rank), spec, functions)


@kernel(
    types.int64(types.int64, array_argument, array_argument, array_argument, index_argument, object_argument),
    is_entry=True,
    nogil=False,
)
def compare_and_swap(window, origin, compare, result, target_rank, displacement):  # type: ignore[no-untyped-def]
    """Fetch one element, and replace it if it was what is expected: 0, or SLOW."""
    rank, spec, place, nbytes = index_of(target_rank), object_of(displacement), _place_words(), nbytes_of(origin)
    target = _reach(window, rank)
    if target == 0 or load64(spec + OB_TYPE) != int_type() or nbytes != itemsize_of(origin):
        return SLOW
    if (
        nbytes > _ELEMENT
        or _are_alike(origin, result) == 0
        or element_of(compare) != element_of(origin)
        or nbytes_of(compare) != nbytes
    ):
        return SLOW
    if _find_place(target, spec, nbytes, element_of(origin), place) == 0:
        return SLOW
    given, other = address_of(origin), address_of(compare)
    if is_word(window, target, element_of(origin), load64(place)) != 0:
        return combine_words(window, target, rank, load64(place), nbytes, COMPARE_AND_SWAP, other, given, address_of(result))
    if load64(target + TARGET.kind) == ASKED:
        return ask_far(window, target, SWAP, load64(place), nbytes, 0, 0, given, other, address_of(result), array_of(result))
    taken = _take_guard(window, target, nbytes)
    if taken == 0:
        return SLOW
    held, start = _element_words(), load64(place)
    is_done = _read(window, rank, target, start, held, nbytes)
    if is_done != 0 and differ(held, address_of(compare), nbytes) == 0:
        is_done = _write(window, rank, target, start, address_of(origin), nbytes)
    _give_guard(target, taken)
    if is_done == 0:
        return SLOW
    move(address_of(result), held, nbytes)
    return 0


# Synchronisation --------------------------------------------------------------------------------------------------


@kernel(types.int64(types.int64, index_argument), is_entry=True, nogil=False)
def fence(window, assertion):  # type: ignore[no-untyped-def]
    """Complete what was asked, wait for all ranks, and open access to all unless nothing follows: 0, SLOW, or the code of a failure."""
    comm, asserted = load64(window + WINDOW.comm), index_of(assertion)
    if load64(window + WINDOW.size) == 0 or asserted & ~ASSERTIONS != 0:
        return SLOW
    code = 0 if load64(window + WINDOW.far) == 0 else flush_changed(window)
    if code != 0:
        return code
    full_fence()
    code = planned_barrier(comm) if is_planned(comm, BARRIER) != 0 else barrier(comm)
    if code == 0:
        store64(window + WINDOW.fenced, 1 if asserted & MODE_NOSUCCEED == 0 else 0)
    return code


@kernel("int64(int64, int64)")
def _is_lockable(window, target):  # type: ignore[no-untyped-def]
    """Whether this rank may take the lock of a target, and reaches it."""
    has = load64(target + TARGET.held) != FREE or load64(window + WINDOW.all) != 0
    return 0 if has or (load64(target + TARGET.lock) == 0 and load64(target + TARGET.far) == 0) else 1


@kernel("int64(int64, int64, int64)")
def _lock_far(window, target, exclusive):  # type: ignore[no-untyped-def]
    """Take the lock of a far target: 0, SLOW, what :func:`ncclx_mpi.rma.asking.ask_word` says, or TAKEN_TWICE."""
    code = ask_word(window, target, LOCK, exclusive)
    if code != 0:
        return code
    return 0 if note_lock(window, target, EXCLUSIVE if exclusive != 0 else SHARED) == 0 else TAKEN_TWICE


@kernel(types.int64(types.int64, index_argument, index_argument, index_argument), is_entry=True, nogil=False)
def lock_target(window, target_rank, lock_type, assertion):  # type: ignore[no-untyped-def]
    """Take the lock of a target: 0, SLOW, or as :func:`_lock_far`."""
    target, kind = target_of(window, index_of(target_rank)), index_of(lock_type)
    if target == 0 or index_of(assertion) & ~ASSERTIONS != 0 or (kind != LOCK_EXCLUSIVE and kind != LOCK_SHARED):
        return SLOW
    exclusive = 1 if kind == LOCK_EXCLUSIVE else 0
    if _is_lockable(window, target) == 0:
        return SLOW
    if load64(target + TARGET.far) != 0:
        return _lock_far(window, target, exclusive)
    if _take(window, load64(target + TARGET.lock), exclusive) == 0:
        return SLOW
    return note_lock(window, target, EXCLUSIVE if exclusive != 0 else SHARED)


@kernel("int64(int64, int64, int64)", is_entry=True, nogil=False)
def note_lock(window, target, held):  # type: ignore[no-untyped-def]
    """Note that this rank has the lock of a target: 0; SLOW if another thread was faster, and then it is given back."""
    if load64(target + TARGET.held) != FREE or load64(window + WINDOW.all) != 0:
        if load64(target + TARGET.lock) != 0:
            unlock(load64(target + TARGET.lock), 1 if held == EXCLUSIVE else 0)
        return SLOW
    store64(target + TARGET.held, held)
    store64(window + WINDOW.held, load64(window + WINDOW.held) + 1)
    return 0


@kernel("int64(int64, int64)", is_entry=True, nogil=False)
def forget_lock(window, target):  # type: ignore[no-untyped-def]
    """Note that this rank has the lock of a target no more: what it had."""
    held = load64(target + TARGET.held)
    if held != FREE:
        store64(target + TARGET.held, FREE)
        store64(window + WINDOW.held, load64(window + WINDOW.held) - 1)
    return held


@kernel("int64(int64, int64)")
def _unlock_far(window, target):  # type: ignore[no-untyped-def]
    """Complete what was asked of a far target, and give its lock back, in one message."""
    if load64(load64(target + TARGET.far) + FAR_TARGET.fetches) != 0:
        return SLOW
    held = forget_lock(window, target)
    if held == FREE:
        return SLOW
    code = ask_word(window, target, UNLOCK, 0)
    if code == SLOW:
        note_lock(window, target, held)
    return code


@kernel(types.int64(types.int64, index_argument), is_entry=True, nogil=False)
def unlock_target(window, target_rank):  # type: ignore[no-untyped-def]
    """Give the lock of a target back: 0, SLOW, or why a far one could not be asked, which may have it still."""
    target = target_of(window, index_of(target_rank))
    if target != 0 and load64(target + TARGET.far) != 0:
        return _unlock_far(window, target)
    if target == 0 or load64(target + TARGET.lock) == 0:
        return SLOW
    held = forget_lock(window, target)
    if held == FREE:
        return SLOW
    unlock(load64(target + TARGET.lock), 1 if held == EXCLUSIVE else 0)
    return 0


@kernel("int64(int64, int64)")
def _unlock_first(window, count):  # type: ignore[no-untyped-def]
    for rank in range(count):
        unlock(load64(target_of(window, rank) + TARGET.lock), 0)
    return 0


@kernel(types.int64(types.int64, index_argument), is_entry=True, nogil=False)
def lock_all(window, assertion):  # type: ignore[no-untyped-def]
    """Take the locks of all targets, shared: 0, or SLOW."""
    size, has = load64(window + WINDOW.size), load64(window + WINDOW.all) + load64(window + WINDOW.held)
    if has != 0 or size == 0 or load64(window + WINDOW.far) != 0 or index_of(assertion) & ~ASSERTIONS != 0:
        return SLOW
    for rank in range(size):
        if try_lock(load64(target_of(window, rank) + TARGET.lock), 0, 0) == 0:
            _unlock_first(window, rank)
            return SLOW
    return note_all(window)


@kernel("int64(int64)", is_entry=True, nogil=False)
def note_all(window):  # type: ignore[no-untyped-def]
    """Note that this rank has the locks of all targets: 0; SLOW if another thread has taken some meanwhile."""
    if load64(window + WINDOW.all) != 0 or load64(window + WINDOW.held) != 0:
        return SLOW
    store64(window + WINDOW.all, 1)
    return 0


@kernel("int64(int64)", is_entry=True, nogil=False)
def forget_all(window):  # type: ignore[no-untyped-def]
    """Note that this rank has the locks of all targets no more: whether it had them."""
    had = load64(window + WINDOW.all)
    store64(window + WINDOW.all, 0)
    return had


@kernel("int64(int64)", is_entry=True, nogil=False)
def unlock_all(window):  # type: ignore[no-untyped-def]
    """Give the locks of all targets back: 0, or SLOW."""
    if load64(window + WINDOW.far) != 0 or forget_all(window) == 0:
        return SLOW
    return _unlock_first(window, load64(window + WINDOW.size))


@kernel(types.int64(types.int64, index_argument), is_entry=True, nogil=False)
def flush(window, target_rank):  # type: ignore[no-untyped-def]
    """Complete what was done to a locked target: 0, or SLOW."""
    target = target_of(window, index_of(target_rank))
    if target == 0 or (load64(target + TARGET.lock) == 0 and load64(target + TARGET.far) == 0):
        return SLOW
    if load64(target + TARGET.held) == FREE and load64(window + WINDOW.all) == 0:
        return SLOW
    full_fence()
    return 0 if load64(target + TARGET.far) == 0 else flush_far(window, target)


@kernel("int64(int64)", is_entry=True, nogil=False)
def flush_all(window):  # type: ignore[no-untyped-def]
    """Complete what was done to all locked targets: 0, SLOW, or why a far one could not be asked."""
    if load64(window + WINDOW.held) == 0 and load64(window + WINDOW.all) == 0:
        return SLOW
    full_fence()
    return 0 if load64(window + WINDOW.far) == 0 else flush_changed(window)
