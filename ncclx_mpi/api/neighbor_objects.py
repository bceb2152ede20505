"""Neighbourhood collectives on Python objects: the bytes of each pickle, and then the pickles, from every rank to its neighbours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ncclx_mpi import collectives
from ncclx_mpi.api import object_messages
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.neighbor_arguments import neighborhood_of
from ncclx_mpi.api.pickle import pickle
from ncclx_mpi.collectives import Neighborhood
from ncclx_mpi.constants import PROC_NULL
from numba_kernels.layout import WORD

_LOCK = "neighbor_objects"


def allgather(state: CommState, obj: Any) -> list[Any]:
    """Return an object of each source, None of those that do not exist."""
    edges, blob = neighborhood_of(state, "neighbor_allgather"), bytes(pickle.dumps(obj))
    lengths = [0 if peer == PROC_NULL else len(blob) for peer in edges.destinations]
    return _exchange(state, edges, blob, lengths, [0] * len(lengths))


def alltoall(state: CommState, objects: Sequence[Any] | None) -> list[Any]:
    """Send an object to each destination; return one of each source, None of those that do not exist."""
    edges = neighborhood_of(state, "neighbor_alltoall")
    peers = edges.destinations
    items = [None] * len(peers) if objects is None else list(objects)
    if len(items) != len(peers):
        raise ValueError(f"expecting {len(peers)} items, got {len(items)}")
    blobs = [b"" if peer == PROC_NULL else bytes(pickle.dumps(item)) for item, peer in zip(items, peers, strict=True)]
    lengths = [len(blob) for blob in blobs]
    return _exchange(state, edges, b"".join(blobs), lengths, list(accumulate(lengths, initial=0))[:-1])


def _exchange(state: CommState, edges: Neighborhood, data: bytes, lengths: Sequence[int], starts: Sequence[int]) -> list[Any]:
    with state.lock(_LOCK):
        return exchange(functools.partial(collectives.neighbor_alltoall, state.native), edges, data, lengths, starts)


def exchange(
    move: Callable[..., None], edges: Neighborhood, data: bytes, lengths: Sequence[int], starts: Sequence[int]
) -> list[Any]:
    """Send a part of `data` to each destination; return the object of what each source sends.

    `move` exchanges bytes along edges; it takes what :func:`~ncclx_mpi.collectives.prepare.neighbor_alltoall` takes after the communicator.
    """
    given, sizes = np.array(lengths, dtype=np.int64), np.zeros(len(edges.sources), dtype=np.int64)
    move(edges, given.ctypes.data, *_words(edges.destinations), sizes.ctypes.data, *_words(edges.sources))
    ends = np.cumsum(sizes)
    counts, offsets = sizes.tolist(), (ends - sizes).tolist()
    brought = np.empty(sum(counts), dtype=np.uint8)
    move(edges, object_messages.address_of(data), lengths, starts, brought.ctypes.data, counts, offsets)
    parts = zip(edges.sources, counts, offsets, strict=True)
    return [None if peer == PROC_NULL else object_messages.load(brought[at : at + size].data) for peer, size, at in parts]


def _words(peers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Counts and offsets of a word for each neighbour that exists."""
    return [0 if peer == PROC_NULL else WORD for peer in peers], [WORD * index for index in range(len(peers))]
