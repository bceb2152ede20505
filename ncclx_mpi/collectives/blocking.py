"""Blocking collectives: compiled kernels on the communicator's slot where it has one, else a plan that is awaited.

Arguments and in-place rules as in :mod:`ncclx_mpi.collectives.prepare`.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from ncclx_mpi import errors
from ncclx_mpi.collectives import prepare, ready, select, shm_oneshot
from ncclx_mpi.collectives.allgather import shm_oneshot as allgather_small
from ncclx_mpi.collectives.allgather import shm_pipelined as allgather_large
from ncclx_mpi.collectives.allreduce import shm_oneshot as allreduce_small
from ncclx_mpi.collectives.allreduce import shm_pipelined as allreduce_large
from ncclx_mpi.collectives.alltoall import shm_oneshot as alltoall_small
from ncclx_mpi.collectives.alltoall import shm_pipelined as alltoall_large
from ncclx_mpi.collectives.alltoall import shm_vector as alltoall_vector
from ncclx_mpi.collectives.barrier import shm_oneshot as barrier_small
from ncclx_mpi.collectives.bcast import shm_oneshot as bcast_small
from ncclx_mpi.collectives.bcast import shm_pipelined as bcast_large
from ncclx_mpi.collectives.executor import Collective, broken, entry
from ncclx_mpi.collectives.gather import shm_oneshot as gather_small
from ncclx_mpi.collectives.gather import shm_pipelined as gather_large
from ncclx_mpi.collectives.neighbor_alltoall import shm_edges as neighbor_edges
from ncclx_mpi.collectives.neighborhood import NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL, Neighborhood, introduce, parts
from ncclx_mpi.collectives.plan import Numbers, as_numbers, offsets_of
from ncclx_mpi.collectives.reduce import shm_oneshot as reduce_small
from ncclx_mpi.collectives.reduce import shm_pipelined as reduce_large
from ncclx_mpi.collectives.reduce_scatter import shm_oneshot as reduce_scatter_small
from ncclx_mpi.collectives.reduce_scatter import shm_pipelined as reduce_scatter_large
from ncclx_mpi.collectives.scan import shm_oneshot as scan_small
from ncclx_mpi.collectives.scan import shm_pipelined as scan_large
from ncclx_mpi.collectives.scatter import shm_oneshot as scatter_small
from ncclx_mpi.collectives.scatter import shm_pipelined as scatter_large
from ncclx_mpi.collectives.select import LARGE, PLAN, SMALL
from ncclx_mpi.collectives.shm_leaving import parted
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import BROKEN, FAILED, OPERATIONS, PEER_LEFT
from numba_kernels.layout import WORD, zeroed

Counts = Sequence[int]
_ROW = 4 * WORD
"""Address and bytes of the block that goes to a rank, and of the one that comes from it."""


def barrier(comm: NativeComm) -> None:
    """Return when every rank has called it."""
    if select.algorithm(comm, shm_oneshot.BARRIER, 0) == PLAN:
        run(prepare.barrier(comm))
    else:
        check(comm, entry(barrier_small.barrier)(comm.address), "barrier")


def bcast(comm: NativeComm, address: int, nbytes: int, root: int) -> None:
    """Bytes of the root to everyone."""
    algorithm = select.algorithm(comm, shm_oneshot.BCAST, nbytes)
    _carry_out(comm, "bcast", algorithm, bcast_small.bcast, bcast_large.bcast, prepare.bcast, address, nbytes, root)


def gather(comm: NativeComm, send: int, nbytes: int, recv: int, root: int) -> None:
    """`nbytes` of each rank to the root's `recv`, in rank order. In place at the root: its block is in `recv`."""
    algorithm = select.algorithm(comm, shm_oneshot.GATHER, nbytes)
    _carry_out(comm, "gather", algorithm, gather_small.gather, gather_large.gather, prepare.gather, send, nbytes, recv, root)


def gatherv(comm: NativeComm, send: int, nbytes: int, recv: int, counts: Counts, offsets: Counts, root: int) -> None:
    """As gather, block i of ``counts[i]`` bytes at ``recv + offsets[i]``; both are read at the root only."""
    if select.algorithm(comm, shm_oneshot.GATHER, 0) == PLAN:
        return run(prepare.gatherv(comm, send, nbytes, recv, counts, offsets, root))
    table, rows = zeroed(_ROW * comm.size)
    if comm.rank == root:
        table[2::4], table[3::4] = _placed(recv, offsets), as_numbers(counts)
        table[4 * root] = send or table[4 * root + 2]
    else:
        table[4 * root], table[4 * root + 1] = send, nbytes
    _exchange(comm, shm_oneshot.GATHER, root, rows, "gatherv")


def scatter(comm: NativeComm, send: int, recv: int, nbytes: int, root: int) -> None:
    """Blocks of `nbytes` of the root's `send` to the ranks. In place at the root (`recv` = 0): it keeps its block."""
    algorithm = select.algorithm(comm, shm_oneshot.SCATTER, nbytes * comm.size)
    _carry_out(comm, "scatter", algorithm, scatter_small.scatter, scatter_large.scatter, prepare.scatter, send, recv, nbytes, root)


def scatterv(comm: NativeComm, send: int, counts: Counts, offsets: Counts, recv: int, nbytes: int, root: int) -> None:
    """As scatter, block i of ``counts[i]`` bytes at ``send + offsets[i]``; both are read at the root only."""
    if select.algorithm(comm, shm_oneshot.SCATTER, 0) == PLAN:
        return run(prepare.scatterv(comm, send, counts, offsets, recv, nbytes, root))
    table, rows = zeroed(_ROW * comm.size)
    if comm.rank == root:
        table[0::4], table[1::4] = _placed(send, offsets), as_numbers(counts)
        table[4 * root + 2], table[4 * root + 3] = recv or table[4 * root], counts[root]
    else:
        table[4 * root + 2], table[4 * root + 3] = recv, nbytes
    _exchange(comm, shm_oneshot.SCATTER, root, rows, "scatterv")


def allgather(comm: NativeComm, send: int, nbytes: int, recv: int) -> None:
    """`nbytes` of each rank to everyone's `recv`, in rank order. In place: the own block is in `recv`."""
    algorithm = select.algorithm(comm, shm_oneshot.ALLGATHER, nbytes)
    _carry_out(
        comm, "allgather", algorithm, allgather_small.allgather, allgather_large.allgather, prepare.allgather, send, nbytes, recv
    )


def gather_words(comm: NativeComm, *given: int) -> list[list[int]]:
    """Return the words that all ranks contribute, as many each, one row a rank."""
    own, (table, address) = array("q", given), zeroed(WORD * len(given) * comm.size)
    allgather(comm, own.buffer_info()[0], WORD * len(given), address)
    return in_rows(table, len(given))


def in_rows(words: array[int], count: int) -> list[list[int]]:
    """Cut words into rows of so many."""
    found = words.tolist()
    return [found[at : at + count] for at in range(0, len(found), count)]


def allgatherv(comm: NativeComm, send: int, nbytes: int, recv: int, counts: Counts, offsets: Counts) -> None:
    """As allgather, block i of ``counts[i]`` bytes at ``recv + offsets[i]``."""
    algorithm = select.algorithm(comm, shm_oneshot.ALLGATHER, max(counts))
    if algorithm == PLAN:
        return run(prepare.allgatherv(comm, send, nbytes, recv, counts, offsets))
    table, rows = zeroed(2 * WORD * comm.size)
    table[0::2], table[1::2] = _placed(recv, offsets), as_numbers(counts)
    source = send or table[2 * comm.rank]
    _on_slot(comm, "allgatherv", algorithm, allgather_small.allgatherv, allgather_large.spread, source, rows)


def alltoall(comm: NativeComm, send: int, recv: int, nbytes: int) -> None:
    """Block j of `send` to rank j, where it becomes block i of `recv`. In place: `recv` holds what is sent."""
    algorithm = select.algorithm(comm, shm_oneshot.ALLTOALL, nbytes * comm.size)
    if algorithm == PLAN:
        return run(prepare.alltoall(comm, send, recv, nbytes))
    _on_slot(comm, "alltoall", algorithm, alltoall_small.alltoall, alltoall_large.alltoall, send or recv, recv, nbytes)


def alltoallv(
    comm: NativeComm,
    send: int,
    send_counts: Counts,
    send_offsets: Counts,
    recv: int,
    counts: Counts,
    offsets: Counts,
) -> None:
    """As alltoall, with bytes and byte offsets of each block."""
    if select.algorithm(comm, shm_oneshot.ALLTOALL, 0) == PLAN:
        return run(prepare.alltoallv(comm, send, send_counts, send_offsets, recv, counts, offsets))
    table, rows = zeroed(_ROW * comm.size)
    table[2::4], table[3::4] = _placed(recv, offsets), as_numbers(counts)
    if send:
        table[0::4], table[1::4] = _placed(send, send_offsets), as_numbers(send_counts)
    else:
        table[0::4], table[1::4] = table[2::4], table[3::4]
    _exchange(comm, shm_oneshot.ALLTOALL, 0, rows, "alltoallv")


def reduce(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool, root: int) -> None:
    """Reduction of all ranks' `count` elements to the root. In place at the root: its contribution is in `recv`."""
    algorithm = _reduction(shm_oneshot.REDUCE, comm, count, itemsize)
    if algorithm == PLAN:
        return run(prepare.reduce(comm, send, recv, count, itemsize, fn, commutative, root))
    _on_slot(comm, "reduce", algorithm, reduce_small.reduce, reduce_large.reduce, send or recv, recv, count, itemsize, fn, root)


def allreduce(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> None:
    """Reduction of all ranks' `count` elements to everyone. In place: the contribution is in `recv`."""
    algorithm = _reduction(shm_oneshot.ALLREDUCE, comm, count, itemsize)
    if algorithm == PLAN:
        return run(prepare.allreduce(comm, send, recv, count, itemsize, fn, commutative))
    small, large = allreduce_small.allreduce, allreduce_large.allreduce
    _on_slot(comm, "allreduce", algorithm, small, large, send or recv, recv, count, itemsize, fn)


def reduce_scatter(comm: NativeComm, send: int, recv: int, counts: Counts, itemsize: int, fn: int, commutative: bool) -> None:
    """Reduction of all ranks' elements, block i of ``counts[i]`` elements to rank i.

    In place: the contribution is in `recv`, and the result replaces its start.
    """
    firsts = array("q", offsets_of(counts))
    total, first = firsts[-1], firsts[comm.rank]
    algorithm = _reduction(shm_oneshot.REDUCE_SCATTER, comm, total, itemsize)
    if algorithm == SMALL:
        code = entry(reduce_scatter_small.reduce_scatter)(
            comm.address, send or recv, recv, total, first, counts[comm.rank], itemsize, fn
        )
    elif algorithm == LARGE:
        code = entry(reduce_scatter_large.reduce_scatter)(comm.address, send or recv, recv, firsts.buffer_info()[0], itemsize, fn)
    else:
        return run(prepare.reduce_scatter(comm, send, recv, counts, itemsize, fn, commutative))
    check(comm, code, "reduce_scatter")


def reduce_scatter_block(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> None:
    """As reduce_scatter, with `count` elements for each rank."""
    total = count * comm.size
    algorithm = _reduction(shm_oneshot.REDUCE_SCATTER, comm, total, itemsize)
    if algorithm == SMALL:
        code = entry(reduce_scatter_small.reduce_scatter)(
            comm.address, send or recv, recv, total, count * comm.rank, count, itemsize, fn
        )
    elif algorithm == LARGE:
        code = entry(reduce_scatter_large.reduce_scatter_block)(comm.address, send or recv, recv, count, itemsize, fn)
    else:
        return run(prepare.reduce_scatter_block(comm, send, recv, count, itemsize, fn, commutative))
    check(comm, code, "reduce_scatter_block")


def scan(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> None:
    """Reduction of ranks 0 to r at rank r. In place: the contribution is in `recv`."""
    _scan(comm, send, recv, count, itemsize, fn, commutative, False)


def exscan(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool) -> None:
    """Reduction of ranks 0 to r - 1 at rank r; `recv` of rank 0 stays as it is. In place: the contribution is in `recv`."""
    _scan(comm, send, recv, count, itemsize, fn, commutative, True)


def _scan(comm: NativeComm, send: int, recv: int, count: int, itemsize: int, fn: int, commutative: bool, exclusive: bool) -> None:
    algorithm = _reduction(shm_oneshot.SCAN, comm, count, itemsize)
    if algorithm == PLAN:
        plan = prepare.exscan if exclusive else prepare.scan
        return run(plan(comm, send, recv, count, itemsize, fn, commutative))
    name, arguments = "exscan" if exclusive else "scan", (send or recv, recv, count, itemsize, fn, int(exclusive))
    _on_slot(comm, name, algorithm, scan_small.scan, scan_large.scan, *arguments)


def neighbor_allgather(
    comm: NativeComm, edges: Neighborhood, send: int, nbytes: int, recv: int, counts: Counts, offsets: Counts
) -> None:
    """`nbytes` to every destination; block i of ``counts[i]`` bytes from source i to ``recv + offsets[i]``."""
    sent, received = parts(send, [nbytes], [0]), parts(recv, counts, offsets)
    if not _along_edges(comm, NEIGHBOR_ALLGATHER, edges, sent, received):
        run(prepare.neighbor_allgather(comm, edges, send, nbytes, recv, counts, offsets))


def neighbor_alltoall(
    comm: NativeComm,
    edges: Neighborhood,
    send: int,
    send_counts: Counts,
    send_offsets: Counts,
    recv: int,
    counts: Counts,
    offsets: Counts,
) -> None:
    """Block j of `send` to destination j, and what comes from source i to block i of `recv`: bytes and byte offsets of each."""
    sent, received = parts(send, send_counts, send_offsets), parts(recv, counts, offsets)
    if not _along_edges(comm, NEIGHBOR_ALLTOALL, edges, sent, received):
        run(prepare.neighbor_alltoall(comm, edges, send, send_counts, send_offsets, recv, counts, offsets))


def _along_edges(comm: NativeComm, kind: int, edges: Neighborhood, sent: Numbers, received: Numbers) -> bool:
    """Whether a neighbourhood collective needed no plan."""
    introduce(comm, edges)
    code = entry(neighbor_edges.exchange)(comm.address, kind, sent.buffer_info()[0], received.buffer_info()[0])
    if code != ready.SLOW:
        check(comm, code, OPERATIONS[kind])
    return bool(code != ready.SLOW)


def _carry_out(
    comm: NativeComm, name: str, algorithm: str, small: Any, large: Any, plan: Callable[..., Collective], *arguments: int
) -> None:
    """Call one of three that take the same arguments: the kernel on lines, the one on streams, or what makes a plan."""
    if algorithm == PLAN:
        run(plan(comm, *arguments))
    else:
        _on_slot(comm, name, algorithm, small, large, *arguments)


def _on_slot(comm: NativeComm, name: str, algorithm: str, small: Any, large: Any, *arguments: int) -> None:
    """Call the kernel on lines, or the one on streams, which takes the same arguments."""
    check(comm, entry(small if algorithm == SMALL else large)(comm.address, *arguments), name)


def check(comm: NativeComm, code: int, name: str) -> None:
    """Raise what the code of a slot kernel means, if it is not 0."""
    if code == 0:
        return
    if code == ready.UNFINISHED:
        ready.raise_failure(comm, name)
    if code == BROKEN:
        raise broken(comm, name)
    if code == PEER_LEFT:
        raise parted(comm, name)
    if code == FAILED + errors.ERR_NO_MEM:
        raise errors.error(errors.ERR_NO_MEM, f"rank {comm.rank}: {name} was given up because {errors.NO_MEMORY}")
    if code >= FAILED:
        raise _mismatch(comm, code - FAILED)
    comm.engine.fail(code, name)


def _reduction(kind: int, comm: NativeComm, count: int, itemsize: int) -> str:
    """The algorithm of a reduction; elements too large to be cut into chunks are left to plans."""
    algorithm = select.algorithm(comm, kind, count * itemsize)
    return PLAN if algorithm == LARGE and itemsize > select.LARGEST_ITEM else algorithm


def _exchange(comm: NativeComm, kind: int, root: int, rows: int, name: str) -> None:
    check(comm, entry(alltoall_vector.exchange)(comm.address, kind, root, rows), name)


def _placed(address: int, offsets: Counts) -> Numbers:
    """Addresses of blocks."""
    return array("q", [address + int(offset) for offset in offsets])


def _mismatch(comm: NativeComm, error_class: int) -> errors.Exception:
    scratch = shm_oneshot.SCRATCH
    other, own, its = (
        ctypes.c_int64.from_address(comm.address + word).value
        for word in (scratch.offender, scratch.own_signature, scratch.its_signature)
    )
    kind, _, nbytes = shm_oneshot.read_signature(own)
    if kind in (NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL) and error_class == errors.ERR_TRUNCATE:
        return errors.error(
            error_class,
            f"rank {comm.rank}: {OPERATIONS[kind]}: {nbytes} bytes are expected of rank {other}, which sent "
            f"{shm_oneshot.read_signature(its)[2]} bytes; counts and datatypes must agree between the ranks",
        )
    if _called(own) == _called(its):
        return errors.error(
            error_class,
            f"rank {comm.rank}: called {_called(own)}, and so did rank {other} of the communicator, but an earlier collective was "
            "another one there, or had another root, or one of both gives arrays and the other objects; all ranks must call the same "
            "collectives in the same order, with the same root",
        )
    return errors.error(
        error_class,
        f"rank {comm.rank}: called {_called(own)}, but rank {other} of the communicator called {_called(its)}; "
        "all ranks must call the same collectives in the same order, with the same root and the same number of bytes, and all "
        "give objects (bcast) or all arrays (Bcast)",
    )


def _called(signature: int) -> str:
    kind, root, nbytes = shm_oneshot.read_signature(signature)
    given = " of objects" if signature & shm_oneshot.OBJECTS else ""
    return f"{OPERATIONS[kind]}{given} with root {root} and {nbytes} bytes"


def run(collective: Collective) -> None:
    """Start a plan, and wait for it; what is to be ready for the next such call is kept."""
    try:
        collective.start().wait()
    except BaseException:
        if collective.running:
            collective.abandon()
        raise
    ready.keep(collective)
