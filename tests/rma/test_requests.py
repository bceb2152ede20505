"""How accesses to a window are cut into requests, and what a request holds."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclx_mpi.buffers import layout, shapes
from ncclx_mpi.buffers.layout import Layout
from ncclx_mpi.buffers.memory import array_words
from ncclx_mpi.buffers.named import LAYOUTS
from ncclx_mpi.rma import requests
from ncclx_mpi.rma.reach import Mapped, Place

BYTES, BLOCKS = 64, 5
MEMORY = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
ORIGIN = 1 << 10


@pytest.fixture(autouse=True, scope="module")
def small_requests() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "MOST_BYTES", BYTES)
        patch.setattr(requests, "MOST_BLOCKS", BLOCKS)
        yield


ELEMENTS = st.sampled_from([LAYOUTS[name] for name in ("BYTE", "INT16_T", "DOUBLE", "SHORT_INT", "DOUBLE_INT", "C_DOUBLE_COMPLEX")])


def derived(old: Layout) -> st.SearchStrategy[Layout]:
    few = st.integers(1, 4)
    vectors = st.builds(
        lambda count, length, gap: shapes.vector(old, count, length, length + gap, in_bytes=False), few, few, st.integers(0, 3)
    )
    lists = st.lists(few, min_size=1, max_size=8).map(
        lambda lengths: shapes.indexed(old, array("q", lengths), array("q", range(0, 7 * len(lengths), 7)), in_bytes=False)
    )
    return st.one_of(st.just(old), vectors, lists)


LAYOUTS_DRAWN = ELEMENTS.flatmap(derived).flatmap(derived)


def packed(place: Place) -> list[int]:
    """The elements as the other end wants them."""
    found = np.empty(place.nbytes, np.uint8)
    Mapped(MEMORY.ctypes.data + ORIGIN).read(place, array_words(found)[0])
    return found.tolist()


def unit_of(made: Layout) -> int:
    element = requests.element_of(made)
    assert element is not None
    return element.size


@given(made=LAYOUTS_DRAWN, number=st.integers(1, 9), start=st.integers(0, 40))
def test_the_parts_of_an_access_are_all_of_it_in_packing_order(made: Layout, number: int, start: int) -> None:
    place = Place(made, number, start)
    parts = list(requests.parts(place))
    assert [byte for part in parts for byte in packed(part.place)] == packed(place)
    for part in parts:
        assert len(part.blocks) <= BLOCKS and 0 < part.nbytes <= BYTES
        assert part.nbytes % unit_of(made) == 0


@given(made=LAYOUTS_DRAWN, number=st.integers(1, 9))
def test_layouts_too_large_to_list_are_cut_alike(made: Layout, number: int) -> None:
    place = Place(shapes.vector(made, 3, 1, made.extent + 8, in_bytes=True), number, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_FEW", 2)
        patch.setattr(layout, "_MOST", 2)
        assert [byte for part in requests.parts(place) for byte in packed(part.place)] == packed(place)


def test_regular_elements_share_one_description() -> None:
    column = shapes.vector(LAYOUTS["DOUBLE"], 2, 1, 10, in_bytes=False)
    parts = list(requests.parts(Place(column, 8, 0)))
    assert [part.number for part in parts] == [4, 4] and all(len(part.blocks) == 2 for part in parts)


def test_a_request_reads_as_it_was_written() -> None:
    part = requests.Part(-5, 24, 3, np.array([[0, 8], [16, 4]]))
    made, room = requests.message(requests.COMBINE, 77, part, 9, 4, 36)
    view = made[room - made.ctypes.data :]
    found = requests.read(made)
    assert found[:4] == (requests.COMBINE, 77, 9, 4)
    assert found.part[:3] == part[:3] and found.part.blocks.tolist() == part.blocks.tolist()
    assert found.payload == room and view.size == 36 == part.nbytes
