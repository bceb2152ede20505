"""MPI.Pickle: in-band and out-of-band, replaced and not."""

from __future__ import annotations

import json
import marshal
from typing import Any

import numpy as np
import pytest

from ncclx_mpi.api.memory import buffer
from ncclx_mpi.api.pickle import Pickle

OBJECTS = [None, True, 7, 1 << 40, 1.5, 2j, "text", (0, 1), [0, {"a": b"b"}]]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5, -1, None])
def test_round_trip(protocol: int | None) -> None:
    pickle = Pickle(protocol=protocol)
    assert pickle.loads(buffer(pickle.dumps(OBJECTS))) == OBJECTS


def test_large_buffers_stay_outside() -> None:
    pickle = Pickle()
    large, small = np.arange(100_000), np.arange(10)
    data, found = pickle.dumps_oob([large, small, bytearray(10)])
    assert len(data) < 1000
    assert [view.address for view in found] == [large.ctypes.data]
    copied, *rest = pickle.loads_oob(data, [bytearray(view.tobytes()) for view in found])
    assert copied.tolist() == large.tolist() and rest[0].tolist() == small.tolist()
    pickle.THRESHOLD = 1
    assert len(pickle.dumps_oob([large, small])[1]) == 2
    pickle.THRESHOLD = None  # type: ignore[assignment]
    assert pickle.THRESHOLD == Pickle().THRESHOLD


def test_buffers_that_are_not_contiguous_are_pickled() -> None:
    pickle = Pickle(threshold=0)
    data, found = pickle.dumps_oob(np.arange(10)[::2])
    assert pickle.loads_oob(data, found).tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("dumps", "loads"),
    [(marshal.dumps, marshal.loads), (lambda obj: json.dumps(obj).encode(), lambda data: json.loads(bytes(data)))],
)
def test_replaced(dumps: Any, loads: Any) -> None:
    pickle = Pickle()
    assert pickle._is_standard
    pickle.__init__(dumps, loads)  # type: ignore[misc]
    assert not pickle._is_standard and pickle.PROTOCOL is None
    assert pickle.loads(buffer(pickle.dumps([1, "a"]))) == [1, "a"]
    pickle.__init__()  # type: ignore[misc]
    assert pickle._is_standard and pickle.PROTOCOL is not None
