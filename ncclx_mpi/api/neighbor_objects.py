"""Neighbourhood collectives on Python objects: the bytes of each pickle, and then the pickles, from every rank to its neighbours."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from ncclx_mpi import collectives
from ncclx_mpi.api import object_messages
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.neighbor_arguments import neighborhood_of
from ncclx_mpi.api.pickle import pickle
from ncclx_mpi.buffers.source import allocate
from ncclx_mpi.collectives import Neighborhood
from ncclx_mpi.constants import PROC_NULL
from numba_kernels.layout import WORD, zeroed
from numba_kernels.rows import NamedTuple

_LOCK = "neighbor_objects"


def allgather(state: CommState, obj: Any) -> list[Any]:
    """Return an object of each source, None of those that do not exist."""
    edges = neighborhood_of(state, "neighbor_allgather")
    return _exchange(state, edges, same_for_all(obj, edges.destinations))


def alltoall(state: CommState, objects: Sequence[Any] | None) -> list[Any]:
    """Send an object to each destination; return one of each source, None of those that do not exist."""
    edges = neighborhood_of(state, "neighbor_alltoall")
    return _exchange(state, edges, one_for_each(objects, edges.destinations))


class Parts(NamedTuple):
    """Pickles, and where in them is what each destination gets: bytes and offsets."""

    data: bytes
    lengths: list[int]
    starts: list[int]


def same_for_all(obj: Any, peers: Sequence[int]) -> Parts:
    """One object for all destinations that exist."""
    data = bytes(pickle.dumps(obj)) if peers else b""
    return Parts(data, [0 if peer == PROC_NULL else len(data) for peer in peers], [0] * len(peers))


def one_for_each(objects: Sequence[Any] | None, peers: Sequence[int]) -> Parts:
    """An object for each destination that exists."""
    items = object_messages.one_each(objects, len(peers))
    blobs = [b"" if peer == PROC_NULL else bytes(pickle.dumps(item)) for item, peer in zip(items, peers, strict=True)]
    lengths = [len(blob) for blob in blobs]
    return Parts(b"".join(blobs), lengths, list(accumulate(lengths, initial=0))[:-1])


def _exchange(state: CommState, edges: Neighborhood, sent: Parts) -> list[Any]:
    with state.lock(_LOCK):
        return exchange(functools.partial(collectives.neighbor_alltoall, state.native), edges, sent)


def exchange(move: Callable[..., None], edges: Neighborhood, sent: Parts) -> list[Any]:
    """Send a part to each destination; return the object of what each source sends.

    `move` exchanges bytes along edges; it takes what :func:`~ncclx_mpi.collectives.prepare.neighbor_alltoall` takes after the communicator.
    """
    given, (sizes, sizes_at) = array("q", sent.lengths), zeroed(WORD * len(edges.sources))
    move(edges, given.buffer_info()[0], *_words(edges.destinations), sizes_at, *_words(edges.sources))
    counts = sizes.tolist()
    *offsets, total = accumulate(counts, initial=0)
    address, (_export, brought) = allocate(total)
    move(edges, object_messages.address_of(sent.data), sent.lengths, sent.starts, address, counts, offsets)
    view, parts = memoryview(brought), zip(edges.sources, counts, offsets, strict=True)
    return [None if peer == PROC_NULL else object_messages.load(view[at : at + size]) for peer, size, at in parts]


def _words(peers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Counts and offsets of a word for each neighbour that exists."""
    return [0 if peer == PROC_NULL else WORD for peer in peers], [WORD * index for index in range(len(peers))]
