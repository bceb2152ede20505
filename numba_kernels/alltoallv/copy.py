"""Moving the runs of a pair on the GPU, by as many teams as there are, when nobody knew beforehand how many bytes there would be.

::

    | run 0      | run 1 |   run 2            |        stream of its runs, cut into tiles whatever the runs are
    |  tile 0  |  tile 1  |  tile 2  | tile 3 |        team (warp) t takes tiles t, t + teams, ...,
                                                      finds the first run of a tile by halving, and goes on from there

Tiles are small enough that all teams have one, large enough that the search costs little. Lanes of a team access neighbouring 16
bytes where source and target lie alike with respect to them, else 4, else single bytes. Runs never overlap, so no two teams write
the same byte.

Bytes moved: each once read and once written, and 32 bytes for each step of the search. The CPU moves the same runs by ``memcpy``
(:mod:`ncclx_mpi.extensions.alltoallv_dynamic.on_host`). The NumPy twin is :func:`numba_kernels.alltoallv.twins.moved`.
"""

from __future__ import annotations

from typing import Any

from numba_kernels.alltoallv.layout import PAIR, RUN
from numba_kernels.cuda.intrinsics import VECTOR, load_i64, load_u8, load_u32, load_vector, store_u8, store_u32, store_vector
from numba_kernels.cuda.kernel import helper

_LEAST_TILE, _MOST_TILE = 1024, 16384


@helper
def _copy_bytes(lane, lanes, target, source, nbytes):  # type: ignore[no-untyped-def]
    i = lane
    while i < nbytes:
        store_u8(target + i, load_u8(source + i))
        i += lanes


def _copy_by(width: int, load: Any, store: Any) -> Any:
    """Return a copy by units of `width` bytes between two places that lie alike with respect to them."""

    @helper
    def copy(lane, lanes, target, source, nbytes):  # type: ignore[no-untyped-def]
        head = min(-source & (width - 1), nbytes)
        _copy_bytes(lane, lanes, target, source, head)
        units = (nbytes - head) // width
        here, there = source + head, target + head
        i = lane
        while i + lanes < units:
            value, following = load(here + i * width), load(here + (i + lanes) * width)
            store(there + i * width, value)
            store(there + (i + lanes) * width, following)
            i += 2 * lanes
        if i < units:
            store(there + i * width, load(here + i * width))
        done = head + units * width
        _copy_bytes(lane, lanes, target + done, source + done, nbytes - done)

    return copy


_copy_vectors = _copy_by(VECTOR, load_vector, store_vector)
_copy_words = _copy_by(4, load_u32, store_u32)


@helper
def _first_run(runs, count, position):  # type: ignore[no-untyped-def]
    """Index of the run that holds a position of the stream."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) >> 1
        if load_i64(runs + middle * RUN.total + RUN.packed) <= position:
            low = middle
        else:
            high = middle
    return low


@helper
def _copy_tile(lane, lanes, pair, runs, position, end):  # type: ignore[no-untyped-def]
    """Move the part of a pair's stream from `position` to `end`."""
    run = runs + _first_run(runs, load_i64(pair + PAIR.runs), position) * RUN.total
    while position < end:
        inside = position - load_i64(run + RUN.packed)
        nbytes = min(load_i64(run + RUN.nbytes) - inside, end - position)
        source = load_i64(pair + PAIR.source) + load_i64(run + RUN.source) + inside
        target = load_i64(pair + PAIR.target) + load_i64(run + RUN.target) + inside
        unlike = source ^ target
        if unlike & (VECTOR - 1) == 0:
            _copy_vectors(lane, lanes, target, source, nbytes)
        elif unlike & 3 == 0:
            _copy_words(lane, lanes, target, source, nbytes)
        else:
            _copy_bytes(lane, lanes, target, source, nbytes)
        position += nbytes
        run += RUN.total


@helper
def copy_tiles(lane, lanes, team, teams, pair, runs):  # type: ignore[no-untyped-def]
    """Move the tiles of a pair that fall to a team of `lanes` threads."""
    nbytes = load_i64(pair + PAIR.nbytes)
    tile = min(max(nbytes // teams & -_LEAST_TILE, _LEAST_TILE), _MOST_TILE)
    position = team * tile
    while position < nbytes:
        end = min(position + tile, nbytes)
        _copy_tile(lane, lanes, pair, runs, position, end)
        position += teams * tile
