"""The routes of plain arrays: entry points bound once, and what is to be done when one does not return 0.

``entry_point(address of the communicator, ...)`` returns 0 when the call is complete. Anything else goes to :func:`settle`
(collectives), :func:`settle_send` or :func:`settle_receive`, which return True if the caller shall go the general way: it
resolves the arguments in Python, or says what is wrong with them. What starts a message returns its handle, or None for that.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar, cast

from ncclx_mpi import collectives, errors
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.datatype import Datatype
from ncclx_mpi.api.op import NO_TABLE, Op
from ncclx_mpi.api.status import Status, check_status
from ncclx_mpi.buffers import fast_packing, known_layouts
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.collectives import fast as routes
from ncclx_mpi.collectives import fast_derived as laid_out
from ncclx_mpi.collectives import fast_derived_vector as laid_out_vectors
from ncclx_mpi.collectives import fast_neighbor as neighbors
from ncclx_mpi.collectives import fast_nonblocking as starts
from ncclx_mpi.collectives import fast_nonblocking_neighbor as neighbor_starts
from ncclx_mpi.collectives import fast_nonblocking_vector as vector_starts
from ncclx_mpi.collectives import fast_vector as vectors
from ncclx_mpi.collectives.allgather import shm_object as allgather_blob
from ncclx_mpi.collectives.alltoall import shm_object as alltoall_blob
from ncclx_mpi.collectives.bcast import shm_object as bcast_blob
from ncclx_mpi.collectives.gather import shm_object as gather_blob
from ncclx_mpi.collectives.scatter import shm_object as scatter_blob
from ncclx_mpi.operations.operation import Operation, Together, blame, started
from ncclx_mpi.operations.transfer import Ticket, Transfer
from ncclx_mpi.p2p import completing, object_requests, objects, partial_results, request_pool
from ncclx_mpi.p2p import fast as messages
from ncclx_mpi.p2p import fast_derived as derived
from ncclx_mpi.p2p.call_words import CallWords, leave_words, take_words
from ncclx_mpi.p2p.engine import NativeComm, from_whom
from numba_kernels import pickling, pylayouts, pyobject, round_trip, unpickling
from numba_kernels.jit import entry
from numba_kernels.late_numpy import at_import, is_imported

SLOW = messages.SLOW
"""What an entry point for messages returns that has done nothing: another one, or the general way, is to be tried."""

_SEQUENCES = (list, tuple)
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


@functools.cache
def can_read_objects() -> bool:
    """Whether compiled code may look into this interpreter's objects; if not, everything goes the general way."""
    if not _fits(pyobject.mismatch()):
        return False
    if not is_imported():
        at_import(pyobject.verify_arrays)
    return True


@functools.cache
def can_pickle() -> bool:
    """Whether compiled code may also write and read pickles of plain values; if not, Python's pickle does."""
    if not can_read_objects():
        return False
    pickling.introduce(unpickling.read)
    return _fits(round_trip.mismatch())


@functools.cache
def can_know_layouts() -> bool:
    """Whether compiled code may look into handles of datatypes; from now on it finds their layouts there."""
    if can_read_objects():
        pylayouts.introduce(Datatype, "_state")
    return can_read_objects()


def learns(*specs: Any) -> bool:
    """Whether compiled code knows more than before now: the layouts of the derived datatypes that these buffers name, each once.

    A call that has gone no other way is made again then: to learn a layout takes a tenth of what a message takes through Python.
    """
    found = [spec[-1]._state for spec in specs if type(spec) in _SEQUENCES and spec and type(spec[-1]) is Datatype]
    new = [layout for layout in found if layout is not None and layout.committed and not layout.is_plain]
    return bool(new) and can_know_layouts() and known_layouts.learn(new)


def meet(layout: Layout) -> None:
    """Let compiled code know the layout of a message."""
    if not layout.is_plain and can_know_layouts():
        known_layouts.learn((layout,))


def meet_all(layouts: Iterable[Layout]) -> None:
    """Let compiled code know layouts that are used together, plain ones too."""
    if can_know_layouts():
        known_layouts.learn(layouts)


def _fits(mismatch: str) -> bool:
    """Whether there is no mismatch; else the one warning of it in this process."""
    if mismatch:
        python = sys.implementation.cache_tag
        text = f"ncclx_mpi: {python} does not keep {mismatch} as compiled code assumes; what needs that goes through Python, and is slower"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return not mismatch


def _slow(*_: Any) -> int:
    """What an entry point that returns a code returns where it can do nothing."""
    return routes.SLOW


def _slow_note(*_: Any) -> bytearray:
    """What an entry point that returns an object returns where it can do nothing."""
    return bytearray([partial_results.SLOW])


def _unmatched(*_: Any) -> bytearray:
    """What one that receives an object returns where it cannot wait for it."""
    return _untaken(0, 0)


def _untaken(_: int, message: int, *__: Any) -> bytearray:
    """What one that receives the object of a message returns where it cannot."""
    return bytearray([partial_results.MATCHED]) + message.to_bytes(8, sys.byteorder)


def _none(*_: Any) -> int:
    """What one that counts, or gives a handle as a number, returns where it can do nothing."""
    return 0


def _nothing(*_: Any) -> None:
    """What an entry point that returns a handle returns where it cannot start anything."""


def at_first_call(
    names: dict[str, Any],
    kernel: _Kernel,
    otherwise: Callable[..., Any] = _slow,
    fits: Callable[[], bool] = can_read_objects,
) -> _Kernel:
    """Return what takes the place of a kernel's entry point among the names of a module until its first call: importing it compiles nothing.

    Where compiled code does not fit this interpreter, `otherwise` is there from then on.
    """

    def bind_and_call(*args: Any) -> Any:
        bound = entry(kernel) if fits() else otherwise
        for name in [name for name, value in names.items() if value is bind_and_call]:
            names[name] = bound
        return bound(*args)

    return cast(_Kernel, bind_and_call)


def _at_first_call(kernel: _Kernel, otherwise: Callable[..., Any] = _slow, fits: Callable[[], bool] = can_read_objects) -> _Kernel:
    return at_first_call(globals(), kernel, otherwise, fits)


def _with_pickles(kernel: _Kernel, otherwise: Callable[..., Any]) -> _Kernel:
    """As :func:`_at_first_call`, for entry points that write and read pickles of plain values."""
    return _at_first_call(kernel, otherwise, can_pickle)


send_array = _at_first_call(messages.send_array)
receive_array = _at_first_call(messages.receive_array)
receive_matched_array = _at_first_call(messages.receive_matched_array)
send_derived = _at_first_call(derived.send_derived)
receive_derived = _at_first_call(derived.receive_derived)
exchange_derived = _at_first_call(derived.exchange_derived)
start_send_derived = _at_first_call(derived.start_send_derived, _nothing)
start_receive_derived = _at_first_call(derived.start_receive_derived, _nothing)
start_send_array = _at_first_call(request_pool.start_send_array, _nothing)
start_receive_array = _at_first_call(request_pool.start_receive_array, _nothing)
complete_one = _at_first_call(completing.complete_one)
start_send_bytes = _at_first_call(request_pool.start_send_bytes, _nothing)
complete_all = _at_first_call(completing.complete_all)
complete_some = _at_first_call(completing.complete_some)
start_one = _at_first_call(request_pool.start_one)
start_all = _at_first_call(request_pool.start_all, _none)
exchange_arrays = _at_first_call(messages.exchange_arrays)
replace_array = _at_first_call(messages.replace_array)
send_bytes = _at_first_call(objects.send_bytes)
start_send_plain = _with_pickles(object_requests.start_send_plain, _nothing)
start_receive_object = _at_first_call(object_requests.start_receive_object, _nothing)
complete_object = _with_pickles(object_requests.complete_object, _slow_note)
complete_all_objects = _with_pickles(object_requests.complete_all_objects, _slow_note)
send_plain = _with_pickles(objects.send_plain, _slow)
receive_plain = _with_pickles(objects.receive_plain, _unmatched)
await_message = _at_first_call(objects.await_message, _none)
look_for_message = _at_first_call(objects.look_for_message)
receive_taken = _with_pickles(objects.receive_taken, _untaken)
exchange_plain = _with_pickles(objects.exchange_plain, _slow_note)
bcast_plain = _with_pickles(bcast_blob.bcast_plain, _slow_note)
gather_plain = _with_pickles(gather_blob.gather_plain, _slow_note)
scatter_plain = _with_pickles(scatter_blob.scatter_plain, _slow_note)
allgather_plain = _with_pickles(allgather_blob.allgather_plain, _slow_note)
alltoall_plain = _with_pickles(alltoall_blob.alltoall_plain, _slow_note)
barrier_now = _at_first_call(routes.barrier_now)
bcast_array = _at_first_call(routes.bcast_array)
allreduce_arrays = _at_first_call(routes.allreduce_arrays)
reduce_arrays = _at_first_call(routes.reduce_arrays)
reduce_scatter_block_arrays = _at_first_call(routes.reduce_scatter_block_arrays)
allgather_arrays = _at_first_call(routes.allgather_arrays)
alltoall_arrays = _at_first_call(routes.alltoall_arrays)
gather_arrays = _at_first_call(routes.gather_arrays)
scatter_arrays = _at_first_call(routes.scatter_arrays)
move_elements = _at_first_call(fast_packing.move_elements)
exchange_laid_out = _at_first_call(laid_out.exchange_derived)
exchange_laid_out_vectors = _at_first_call(laid_out_vectors.exchange_derived_vectors)
scan_arrays = _at_first_call(vectors.scan_arrays)
exchange_vectors = _at_first_call(vectors.exchange_vectors)
allgatherv_arrays = _at_first_call(vectors.allgatherv_arrays)
reduce_scatter_arrays = _at_first_call(vectors.reduce_scatter_arrays)
exchange_neighbors = _at_first_call(neighbors.exchange_neighbors)
ibarrier = _at_first_call(starts.ibarrier, _nothing)
ibcast_array = _at_first_call(starts.ibcast_array, _nothing)
iallreduce_arrays = _at_first_call(starts.iallreduce_arrays, _nothing)
ireduce_arrays = _at_first_call(starts.ireduce_arrays, _nothing)
ireduce_scatter_block_arrays = _at_first_call(starts.ireduce_scatter_block_arrays, _nothing)
iscan_arrays = _at_first_call(starts.iscan_arrays, _nothing)
iallgather_arrays = _at_first_call(starts.iallgather_arrays, _nothing)
ialltoall_arrays = _at_first_call(starts.ialltoall_arrays, _nothing)
igather_arrays = _at_first_call(starts.igather_arrays, _nothing)
iscatter_arrays = _at_first_call(starts.iscatter_arrays, _nothing)
iexchange_neighbors = _at_first_call(neighbor_starts.iexchange_neighbors, _nothing)
iexchange_vectors = _at_first_call(vector_starts.iexchange_vectors, _nothing)
iallgatherv_arrays = _at_first_call(vector_starts.iallgatherv_arrays, _nothing)
ireduce_scatter_arrays = _at_first_call(vector_starts.ireduce_scatter_arrays, _nothing)


def table_of(op: Any) -> int:
    """Return the address of the table of reduction functions of `op`; of an empty one if it is no operation at all."""
    return op._state.table if isinstance(op, Op) else NO_TABLE


def settle(state: CommState, code: int, name: str) -> bool:
    """Whether a collective that returned `code` goes the general way; raises what any other code means."""
    if code != routes.SLOW:
        collectives.check(state.native, code, name)
    return code == routes.SLOW


def settle_send(state: CommState, code: int, dest: int, tag: int) -> bool:
    """Whether a send goes the general way; raises why it was given up."""
    if code == messages.SLOW:
        return True
    raise_given_up(state.native, code, f"send to rank {dest}, tag {tag}")


def settle_receive(state: CommState, code: int, buf: Any, source: int, tag: int, status: Status | None) -> bool:
    """Whether a receive goes the general way; raises why it was given up, or has failed."""
    if code == messages.SLOW:
        return True
    _settle_failed(state.native, code, f"receive {from_whom(source, tag)}", buf, status)
    return False


def settle_matched(comm: NativeComm, code: int, buf: Any, status: Status | None) -> None:
    """Raise why the receive of a matched message was given up, or has failed."""
    _settle_failed(comm, code, "receive of a matched message", buf, status)


def _settle_failed(comm: NativeComm, code: int, what: str, buf: Any, status: Status | None) -> None:
    """Raise why a receive was given up; one that is complete and has failed raises what it does in Python."""
    if code < 0:
        raise_given_up(comm, code, what)
    finish_waiting(lambda _: Transfer(comm, buf, request=code), status)


def settle_exchange(state: CommState, code: int, sendbuf: Any, recvbuf: Any, source: int, tag: int, status: Status | None) -> bool:
    """Whether a send and receive goes the general way; raises why it was given up, or the receive has failed."""
    if code == messages.SLOW:
        return True
    if code < 0:
        raise_given_up(state.native, code, f"send and receive {from_whom(source, tag)}")
    sending = state.native.engine.paired(code)
    parts = [Transfer(state.native, sendbuf, request=sending)] if sending else []
    finish_waiting(lambda _: Together([*parts, Transfer(state.native, recvbuf, request=code)]), status)
    return False


def raise_given_up(comm: NativeComm, code: int, what: str) -> NoReturn:
    """Raise what GIVEN_UP less a code stands for."""
    try:
        comm.engine.ended.check(comm, what)
        comm.engine.fail(messages.GIVEN_UP - code, what)
    except errors.Exception as error:
        blame(error, comm)
        raise


def finish_waiting(start: Callable[[list[Operation]], Operation], status: Status | None) -> None:
    """Begin an operation (:func:`~ncclx_mpi.operations.operation.started`), wait for it and finish it."""
    operation = started(start, is_waited=True)
    if status is not None:
        operation.fill(status)
    operation.finish()


def room_for(status: Status) -> CallWords:
    """Return words for a call after which :func:`fill` has something to write to `status`."""
    check_status(status)
    return take_words()


def fill(status: Status, said: CallWords) -> None:
    """Write what a call has said about its message to `status`."""
    source, tag, nbytes = said.words[:3]
    leave_words(said)
    status._fill(source, tag, nbytes)


def add_ticket(state: CommState, kind: type[Ticket] = Ticket) -> bool:
    """Whether there is a free ticket now and was none before; without one nothing starts natively."""
    engine = state.native.engine
    if engine.word(kind.HOME) or not can_read_objects():
        return False
    ticket = kind(engine)
    engine.add_ticket(ticket, ticket.request)
    return True
