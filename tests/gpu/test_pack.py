"""Packing on the GPU against its NumPy twin: planning, every width, parts of a stream; the same bodies on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numba_kernels.cuda import pack
from numba_kernels.cuda.pack import Typemap
from tests.gpu.machines import MACHINES, Machine


def blocks_of(starts: np.ndarray, nbytes: int) -> np.ndarray:
    return np.stack([starts.reshape(-1), np.full(starts.size, nbytes)], axis=1).astype(np.int64)


def face(nbytes: int, *levels: tuple[int, int]) -> np.ndarray:
    """Blocks of `nbytes` on (count, stride) levels, from the outside in."""
    starts = np.zeros(1, np.int64)
    for count, stride in levels:
        starts = (starts[:, None] + np.arange(count) * stride).reshape(-1)
    return blocks_of(starts, nbytes)


SHAPES: dict[str, tuple[np.ndarray, int, int]] = {
    "one block": (face(12), 12, 1),
    "contiguous elements": (face(8), 8, 100),
    "elements with gaps": (face(5), 9, 300),
    "column": (face(8, (50, 400)), 20_000, 1),
    "columns, one an element": (face(8, (50, 400)), 8, 50),
    "rows of elements": (face(4, (3, 8)), 24, 40),
    "face across rows": (face(8, (20, 1600), (20, 80)), 32_000, 1),
    "face of rows": (face(160, (20, 1600)), 32_000, 1),
    "three levels": (face(2, (4, 1000), (5, 100), (6, 10)), 4000, 1),
    "three levels and elements": (face(2, (4, 1000), (5, 100), (6, 10)), 5000, 3),
    "backwards": (face(4, (7, -12)), -100, 5),
    "16 bytes": (face(48, (9, 64)), 1000, 2),
    "struct": (np.array([[0, 8], [8, 4], [16, 1]]), 24, 200),
    "irregular": (np.array([[3, 1], [7, 4], [20, 9], [40, 2], [60, 17]]), 90, 11),
    "blocks out of order": (np.array([[64, 16], [0, 32], [128, 16]]), 256, 30),
    "nothing": (np.empty((0, 2), np.int64), 16, 5),
    "no elements": (face(8, (3, 16)), 48, 0),
}
LATTICES = {name for name in SHAPES if name not in ("three levels and elements", "struct", "irregular", "blocks out of order")}


@st.composite
def typemaps(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Blocks that do not overlap, in any order, at any offset, in any direction, of sizes that often share a width."""
    unit = draw(st.sampled_from([1, 2, 4, 8, 16]))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=9))
    gaps = draw(st.lists(st.integers(1, 4), min_size=len(sizes), max_size=len(sizes)))
    at, rows = draw(st.integers(-20, 20)), []
    for size, gap in zip(sizes, gaps, strict=True):
        rows.append((at * unit, size * unit))
        at += size + gap
    extent = (at * unit - rows[0][0] + unit * draw(st.integers(0, 20))) * draw(st.sampled_from([1, -1]))
    return np.array(draw(st.permutations(rows)), np.int64), extent, draw(st.integers(0, 12))


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    found = request.param()
    yield found
    found.free()


def check(machine: Machine, shape: tuple[np.ndarray, int, int], offset: int, first: int, nbytes: int, threads: int) -> None:
    """Pack and unpack a part of the stream at addresses `offset` off alignment; nothing else is written."""
    blocks, extent, count = shape
    typemap, where = Typemap(blocks, extent, count), pack.places(blocks, extent, count)
    assert typemap.nbytes == len(where)
    begin, end = (int(where.min()), int(where.max()) + 1) if len(where) else (0, 0)
    rng = np.random.default_rng(1)
    there, stream = rng.integers(0, 256, end - begin, np.uint8), rng.integers(0, 256, len(where), np.uint8)
    memory, packed = machine.place(there, (begin + offset) % 64), machine.place(stream, (first + offset) % 64)
    table = 0 if typemap.table is None else machine.place(typemap.table.reshape(-1)).address
    part = slice(first, first + nbytes)
    for unpacking in (False, True):
        launch = typemap.launch(
            memory.address - begin, packed.address + first, unpacking=unpacking, first=first, nbytes=nbytes, table=table
        )
        machine.run(launch.kernel, *launch.arguments, threads=threads)
        if not unpacking:
            stream[part] = there[where[part] - begin]
            assert (packed.read() == stream).all()
            assert (memory.read() == there).all()
            fresh = rng.integers(0, 256, len(there), np.uint8)
            there[:] = fresh
            machine.put(memory.address, fresh)
    there[where[part] - begin] = stream[part]
    assert (memory.read() == there).all()
    machine.free()


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(machine: Machine, name: str, offset: int) -> None:
    blocks, extent, count = shape = SHAPES[name]
    total = int(blocks[:, 1].sum()) * count
    for threads in (1, 7, 64):
        check(machine, shape, offset, 0, total, threads)
    for first, last in ((0, total // 2), (total // 3, total), (total // 4 // 16 * 16, total // 2 // 16 * 16)):
        check(machine, shape, offset, first, last - first, 32)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(shape=typemaps(), offset=st.integers(0, 16), cut=st.tuples(st.floats(0, 1), st.floats(0, 1)), threads=st.integers(1, 40))
def test_random_typemaps(
    machine: Machine, shape: tuple[np.ndarray, int, int], offset: int, cut: tuple[float, float], threads: int
) -> None:
    total = int(shape[0][:, 1].sum()) * shape[2]
    first, last = sorted(int(share * total) for share in cut)
    check(machine, shape, offset, first, last - first, threads)


@pytest.mark.parametrize("name", SHAPES)
def test_regular_shapes_need_no_table(name: str) -> None:
    assert (Typemap(*SHAPES[name]).table is None) == (name in LATTICES)


@pytest.mark.parametrize(
    ("memory", "nbytes", "stride", "width"),
    [(0, 48, 64, 16), (8, 48, 64, 8), (0, 8, 64, 8), (0, 48, 68, 4), (2, 48, 64, 2), (1, 48, 64, 1), (0, 6, 100, 2)],
)
def test_the_widest_access_that_everything_is_a_multiple_of(memory: int, nbytes: int, stride: int, width: int) -> None:
    typemap = Typemap(face(nbytes, (10, stride)), 1 << 20, 1)
    launch = typemap.launch(memory, 0, unpacking=False)
    assert launch.kernel.name == f"pack_lattice_{width}"
    assert launch.units == 10 * nbytes // width
    assert typemap.launch(memory, 0, unpacking=True).kernel.name == f"unpack_lattice_{width}"


@pytest.mark.parametrize(
    "levels", [((512, 512 * 512 * 8), (512, 512 * 8)), ((512, 512 * 512 * 8), (512, 8)), ((512, 512 * 8), (512, 8))]
)
def test_faces_touch_no_sector_twice(levels: tuple[tuple[int, int], ...]) -> None:
    """Of a 512 x 512 x 512 array of doubles: warps of 32 neighbours in the stream ask for as many sectors as there are."""
    blocks = face(8, *levels)
    assert Typemap(blocks, 1 << 30, 1).table is None
    where = pack.places(blocks, 0, 1).reshape(-1, 8)[:, 0] // 32
    asked = sum(len(set(where[first : first + 32].tolist())) for first in range(0, len(where), 32))
    assert asked == len(set(where.tolist()))
