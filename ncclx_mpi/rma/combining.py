"""Words of windows into which the network itself combines, in one compiled call: integers of eight bytes that are aligned.

::

    origin                                      the memory of a target, or of this rank itself
      combine: operation, operand ------------> read, combined and written by the network
               <------------------------------- what was there

All ranks of such a window do the same, for their own memory, too, as a network's operations are atomic among themselves alone. The processor
of the target has no part in it where a device does them (:mod:`transports.ucx.remote`). One word after the other is complete at both
ends; what was asked of the target before is done first, as the network would overtake it.

Cost: 2 alpha a word.
"""

from __future__ import annotations

from ncclx_mpi.p2p.fast import wait_complete
from ncclx_mpi.p2p.layout import COMM, REQUEST
from ncclx_mpi.p2p.progress import trace_end
from ncclx_mpi.p2p.remote_memory import start_combine
from ncclx_mpi.p2p.requests import give_back, trace_request
from ncclx_mpi.rma.asking import SLOW, flush_far
from ncclx_mpi.rma.layout import NETWORK, TARGET, WINDOW, WORD_OPERATIONS
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD
from numba_kernels.memory import make_stack
from numba_kernels.pyobject import none_object
from transports.messages import COMPARE_AND_SWAP, READ

NOT_A_WORD = -1

_held = make_stack(1)


@kernel("int64(int64, int64, int64, int64)")
def is_word(window, target, element, start):  # type: ignore[no-untyped-def]
    """Whether the network combines elements of a type number that begin at a byte of a target's memory; perhaps, if it is not known where."""
    network = load64(target + TARGET.network)
    if network == 0 or load64(window + WINDOW.word_types) >> element & 1 == 0:
        return 0
    return 1 if load64(network + NETWORK.handle) == 0 or (load64(network + NETWORK.base) + start) & (WORD - 1) == 0 else 0


@kernel("int64(int64, int64, int64, int64, int64)")
def operation_of(window, target, functions, element, start):  # type: ignore[no-untyped-def]
    """The network's number of what a table of reduction functions does to such elements; NOT_A_WORD if the network does not do it."""
    if is_word(window, target, element, start) == 0:
        return NOT_A_WORD
    table = load64(window + WINDOW.operations)
    for index in range(WORD_OPERATIONS):
        if load64(table + 2 * WORD * index) == functions:
            return load64(table + 2 * WORD * index + WORD)
    return NOT_A_WORD


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _combine(window, target, rank, start, operation, operand, held):  # type: ignore[no-untyped-def]
    """Do an operation on the word at byte `start` of a target, and write what was there to `held`, which gives what a swap writes.

    0; SLOW if the network does not reach the memory any more; or as :func:`ncclx_mpi.rma.asking.ask_word`.
    """
    network, comm = load64(target + TARGET.network), load64(window + WINDOW.comm)
    handle, engine = load64(network + NETWORK.handle), load64(comm + COMM.engine)
    function = load64(network + (NETWORK.get if operation == READ else NETWORK.combine))
    peer, there = load64(network + NETWORK.peer), load64(network + NETWORK.base) + start
    access = start_combine(comm, function, peer, rank, operation, operand, load64(held), there, handle)
    record = trace_request(engine, access)
    code = wait_complete(engine, access, none_object())
    if code != 0:
        return code
    trace_end(record)
    error = load64(access + REQUEST.error)
    store64(held, load64(access + REQUEST.passed))
    give_back(engine, access)
    return SLOW if error != 0 else 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def combine_words(window, target, rank, start, nbytes, operation, operands, swaps, landing):  # type: ignore[no-untyped-def]
    """Do an operation on all words of some bytes, and copy what was there to `landing`, unless that is 0.

    `operands`, `swaps`: addresses of as many words; a READ takes none, and the latter are what a COMPARE_AND_SWAP writes. 0; SLOW, and
    nothing is done if the network does not reach the memory yet; or as :func:`ncclx_mpi.rma.asking.flush_far`. A way that is lost stays
    lost: what is done again after SLOW is done to no word twice.
    """
    if load64(load64(target + TARGET.network) + NETWORK.handle) == 0:
        return SLOW
    held, code = _held(), 0 if load64(target + TARGET.far) == 0 else flush_far(window, target)
    if code != 0:
        return code
    for offset in range(0, nbytes, WORD):
        operand = load64(operands + offset) if operation != READ else 0
        store64(held, load64(swaps + offset) if operation == COMPARE_AND_SWAP else 0)
        code = _combine(window, target, rank, start + offset, operation, operand, held)
        if code != 0:
            return code
        if landing != 0:
            store64(landing + offset, load64(held))
    return 0
