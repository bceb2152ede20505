"""The routes of plain arrays: entry points bound once, and what is to be done when one does not return 0.

``entry_point(address of the communicator, ...)`` returns 0 when the call is complete. Anything else goes to :func:`settle`
(collectives), :func:`settle_send` or :func:`settle_receive`, which return True if the caller shall go the general way: it
resolves the arguments in Python, or says what is wrong with them. What starts a message returns its handle, or None for that.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ncclx_mpi import collectives, errors
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.op import NO_WORDS, Op, learn
from ncclx_mpi.api.operations import Operation, Ticket, Together, Transfer, blame
from ncclx_mpi.api.status import Status, check_status
from ncclx_mpi.collectives import fast as routes
from ncclx_mpi.collectives import fast_nonblocking as starts
from ncclx_mpi.collectives import fast_vector as vectors
from ncclx_mpi.collectives.allgather import shm_object as allgather_blob
from ncclx_mpi.collectives.alltoall import shm_object as alltoall_blob
from ncclx_mpi.collectives.bcast import shm_object as bcast_blob
from ncclx_mpi.collectives.gather import shm_object as gather_blob
from ncclx_mpi.collectives.scatter import shm_object as scatter_blob
from ncclx_mpi.p2p import completing, object_requests, objects, partial_results, request_pool
from ncclx_mpi.p2p import fast as messages
from ncclx_mpi.p2p.engine import NativeComm, from_whom
from numba_kernels import pickling, pyobject, unpickling
from numba_kernels.jit import entry

_KERNELS = {
    kernel.py_func.__name__: kernel
    for kernel in (
        messages.send_array,
        messages.receive_array,
        request_pool.start_send_array,
        request_pool.start_receive_array,
        completing.complete_one,
        completing.complete_all,
        completing.complete_some,
        request_pool.start_send_bytes,
        object_requests.start_send_plain,
        object_requests.start_receive_object,
        object_requests.complete_object,
        object_requests.complete_all_objects,
        request_pool.start_one,
        request_pool.start_all,
        messages.exchange_arrays,
        objects.send_bytes,
        objects.send_plain,
        objects.receive_plain,
        objects.match_message,
        objects.receive_taken,
        objects.exchange_plain,
        bcast_blob.bcast_plain,
        gather_blob.gather_plain,
        scatter_blob.scatter_plain,
        allgather_blob.allgather_plain,
        alltoall_blob.alltoall_plain,
        routes.barrier_now,
        routes.bcast_array,
        routes.allreduce_arrays,
        routes.reduce_arrays,
        routes.reduce_scatter_block_arrays,
        routes.allgather_arrays,
        routes.alltoall_arrays,
        routes.gather_arrays,
        routes.scatter_arrays,
        vectors.scan_arrays,
        vectors.exchange_vectors,
        vectors.allgatherv_arrays,
        vectors.reduce_scatter_arrays,
        starts.ibarrier,
        starts.ibcast_array,
        starts.iallreduce_arrays,
        starts.ireduce_arrays,
        starts.ireduce_scatter_block_arrays,
        starts.iscan_arrays,
        starts.iallgather_arrays,
        starts.ialltoall_arrays,
        starts.igather_arrays,
        starts.iscatter_arrays,
    )
}


@functools.cache
def can_read_objects() -> bool:
    """Whether compiled code may look into this interpreter's objects; if not, everything goes the general way."""
    return pyobject.verify()


def _binding(name: str, otherwise: Callable[..., Any] = lambda *_: routes.SLOW) -> Callable[..., Any]:
    """Return what takes the place of an entry point until its first call: importing this module compiles nothing.

    Where compiled code may not look into objects, it is `otherwise` from then on.
    """

    def bind_and_call(*args: Any) -> Any:
        bound = entry(_KERNELS[name]) if can_read_objects() else otherwise
        globals()[name] = bound
        return bound(*args)

    return bind_and_call


def _plain_binding(name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """As :func:`_binding`, for entry points that write and read pickles of plain values."""
    bind_and_call = _binding(name, otherwise)

    def introduce_and_call(*args: Any) -> Any:
        if can_read_objects():
            pickling.introduce(unpickling.read)
        return bind_and_call(*args)

    return introduce_and_call


def _slow(*_: Any) -> bytearray:
    """What an entry point that returns an object returns where it can do nothing."""
    return bytearray([partial_results.SLOW])


def _unmatched(*_: Any) -> bytearray:
    """What one that receives an object returns where it cannot wait for it."""
    return _untaken(0, 0)


def _untaken(_: int, message: int, *__: Any) -> bytearray:
    """What one that receives the object of a message returns where it cannot."""
    return bytearray([partial_results.MATCHED]) + message.to_bytes(8, sys.byteorder)


def _nothing(*_: Any) -> None:
    """What an entry point that returns a handle returns where it cannot start anything."""


send_array = _binding("send_array")
receive_array = _binding("receive_array")
start_send_array = _binding("start_send_array", _nothing)
start_receive_array = _binding("start_receive_array", _nothing)
complete_one = _binding("complete_one")
start_send_bytes = _binding("start_send_bytes", _nothing)
complete_all = _binding("complete_all")
complete_some = _binding("complete_some")
start_one = _binding("start_one")
start_all = _binding("start_all", lambda *_: 0)
exchange_arrays = _binding("exchange_arrays")
send_bytes = _binding("send_bytes")
start_send_plain = _plain_binding("start_send_plain", _nothing)
start_receive_object = _binding("start_receive_object", _nothing)
complete_object = _plain_binding("complete_object", _slow)
complete_all_objects = _plain_binding("complete_all_objects", _slow)
send_plain = _plain_binding("send_plain", lambda *_: messages.SLOW)
receive_plain = _plain_binding("receive_plain", _unmatched)
match_message = _binding("match_message", lambda *_: 0)
receive_taken = _plain_binding("receive_taken", _untaken)
exchange_plain = _plain_binding("exchange_plain", _slow)
bcast_plain = _plain_binding("bcast_plain", _slow)
gather_plain = _plain_binding("gather_plain", _slow)
scatter_plain = _plain_binding("scatter_plain", _slow)
allgather_plain = _plain_binding("allgather_plain", _slow)
alltoall_plain = _plain_binding("alltoall_plain", _slow)
barrier_now = _binding("barrier_now")
bcast_array = _binding("bcast_array")
allreduce_arrays = _binding("allreduce_arrays")
reduce_arrays = _binding("reduce_arrays")
reduce_scatter_block_arrays = _binding("reduce_scatter_block_arrays")
allgather_arrays = _binding("allgather_arrays")
alltoall_arrays = _binding("alltoall_arrays")
gather_arrays = _binding("gather_arrays")
scatter_arrays = _binding("scatter_arrays")
scan_arrays = _binding("scan_arrays")
exchange_vectors = _binding("exchange_vectors")
allgatherv_arrays = _binding("allgatherv_arrays")
reduce_scatter_arrays = _binding("reduce_scatter_arrays")
ibarrier = _binding("ibarrier", _nothing)
ibcast_array = _binding("ibcast_array", _nothing)
iallreduce_arrays = _binding("iallreduce_arrays", _nothing)
ireduce_arrays = _binding("ireduce_arrays", _nothing)
ireduce_scatter_block_arrays = _binding("ireduce_scatter_block_arrays", _nothing)
iscan_arrays = _binding("iscan_arrays", _nothing)
iallgather_arrays = _binding("iallgather_arrays", _nothing)
ialltoall_arrays = _binding("ialltoall_arrays", _nothing)
igather_arrays = _binding("igather_arrays", _nothing)
iscatter_arrays = _binding("iscatter_arrays", _nothing)

_NONE = NO_WORDS.ctypes.data


def table_of(op: Any) -> int:
    """Return the address of the table of reduction functions of `op`; of an empty one if it is no operation at all."""
    return op._state.table if isinstance(op, Op) else _NONE


def settle(state: CommState, code: int, name: str, op: Any = None, argument: Any = None) -> bool:
    """Whether a collective that returned `code` goes the general way; raises what any other code means."""
    if code != routes.SLOW:
        collectives.check(state.native, code, name)
        return False
    if op is not None:
        learn_from(op, argument)
    return True


def learn_from(op: Any, argument: Any) -> None:
    """Resolve `op` for the elements of `argument`, so that the next call with such elements finds it in its table."""
    if isinstance(op, Op):
        element = entry(pyobject.read_argument)(argument, _words().ctypes.data)
        if element != pyobject.NONE:
            learn(op, element)


def settle_send(state: CommState, code: int, dest: int, tag: int) -> bool:
    """Whether a send goes the general way; raises why it was given up."""
    if code == messages.SLOW:
        return True
    raise_given_up(state.native, code, f"send to rank {dest}, tag {tag}")


def settle_receive(state: CommState, code: int, buf: Any, source: int, tag: int, status: Status | None) -> bool:
    """Whether a receive goes the general way; raises why it was given up, or has failed."""
    if code == messages.SLOW:
        return True
    if code < 0:
        raise_given_up(state.native, code, f"receive {from_whom(source, tag)}")
    finish_waiting(Transfer(state.native, buf, request=code), status)
    return False


def settle_exchange(state: CommState, code: int, sendbuf: Any, recvbuf: Any, source: int, tag: int, status: Status | None) -> bool:
    """Whether a send and receive goes the general way; raises why it was given up, or the receive has failed."""
    if code == messages.SLOW:
        return True
    if code != messages.FAILED_PAIR:
        raise_given_up(state.native, code, f"send and receive {from_whom(source, tag)}")
    receiving, sending = status_words()[:2].tolist()
    parts = [Transfer(state.native, sendbuf, request=sending)] if sending else []
    finish_waiting(Together([*parts, Transfer(state.native, recvbuf, request=receiving)]), status)
    return False


def raise_given_up(comm: NativeComm, code: int, what: str) -> NoReturn:
    """Raise what GIVEN_UP less a code stands for."""
    try:
        comm.engine.fail(messages.GIVEN_UP - code, what)
    except errors.Exception as error:
        blame(error, comm)
        raise


def finish_waiting(operation: Operation, status: Status | None) -> None:
    """Wait for an operation and finish it."""
    operation.wait()
    if status is not None:
        operation.fill(status)
    operation.finish()


def fill(status: Status) -> None:
    """Write what the last call of this thread has said about its message to `status`."""
    source, tag, nbytes = status_words()[:3].tolist()
    status._fill(source, tag, nbytes)


def add_ticket(state: CommState, kind: type[Ticket] = Ticket) -> bool:
    """Whether there is a free ticket now and was none before; without one nothing starts natively."""
    engine = state.native.engine
    if engine.word(kind.HOME) or not can_read_objects():
        return False
    ticket = kind(engine)
    engine.add_ticket(ticket, ticket.request)
    return True


_scratch = threading.local()
_FEW_PLACES = 64


def status_words() -> npt.NDArray[np.int64]:
    """Return the words into which this thread's receives write their status; :func:`status_address` is where they are."""
    status_address()
    words: npt.NDArray[np.int64] = _scratch.status
    return words


def status_address() -> int:
    """Return the address of :func:`status_words`."""
    try:
        address: int = _scratch.address
    except AttributeError:
        _scratch.status = np.zeros(8, dtype=np.int64)
        _scratch.argument = np.zeros(8, dtype=np.int64)
        address = _scratch.address = _scratch.status.ctypes.data
    return address


def room_for(status: Status) -> int:
    """Return :func:`status_address`, for a call after which :func:`fill` has something to write to `status`."""
    check_status(status)
    return status_address()


def places(count: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return at least `count` words of this thread for the places of completed requests, and where they are."""
    pair: tuple[npt.NDArray[np.int64], int] | None = getattr(_scratch, "places", None)
    if pair is None or len(pair[0]) < count:
        words = np.zeros(max(count, _FEW_PLACES), dtype=np.int64)
        pair = _scratch.places = words, words.ctypes.data
    return pair


def _words() -> npt.NDArray[np.int64]:
    status_address()
    words: npt.NDArray[np.int64] = _scratch.argument
    return words
