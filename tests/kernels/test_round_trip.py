"""Whether compiled code fits an interpreter is found out before it runs there: with an interpreter that keeps things elsewhere."""

from __future__ import annotations

import copyreg
import gc
import pickle
import sys
import threading
import types
from statistics import median
from typing import Any

import numpy as np
import pytest

from numba_kernels import jit, pickling, pyobject, round_trip, unpickling
from numba_kernels.atomics import store8, store64


@pytest.fixture(autouse=True)
def introduced() -> None:
    pickling.introduce(unpickling.read)


@jit.kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def write_none(_obj, _room, target, _limit):  # type: ignore[no-untyped-def]
    """Write None, whatever the object."""
    store8(target, 0x80)
    store8(target + 1, 5)
    store8(target + 2, ord("N"))
    store8(target + 3, ord("."))
    return 4


@jit.kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def read_nothing(_room, _address, _nbytes, found):  # type: ignore[no-untyped-def]
    """Say that no pickle is ours."""
    store64(found, 0)
    return 0


def test_this_interpreter_fits() -> None:
    assert pyobject.mismatch() == "" == round_trip.mismatch()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OB_TYPE", 0, "list"),
        ("OB_TYPE", 16, "list"),
        ("OB_SIZE", 32, "tuple"),
        ("LIST_ITEMS", 16, "list"),
        ("LIST_ITEMS", 32, "list"),
        ("TUPLE_ITEMS", 16, "tuple"),
        ("TUPLE_ITEMS", 32, "tuple"),
        ("TEXT_STATE", 24, "str of 1 bytes a character"),
        ("ASCII_TEXT", 40, "str of 1 bytes a character"),
        ("WIDE_TEXT", 64, "str of 1 bytes a character"),
        ("TEXT_KIND_SHIFT", 3, "str of 1 bytes a character"),
        ("DATA", 24, "ndarray"),
        ("DESCRIPTOR", 48, "ndarray"),
    ],
)
def test_an_object_that_is_kept_otherwise_is_seen(monkeypatch: pytest.MonkeyPatch, name: str, value: int, expected: str) -> None:
    monkeypatch.setattr(pyobject, name, value)
    assert pyobject.mismatch() == expected


def test_an_interpreter_without_the_gil_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert pyobject.mismatch() == "the GIL"


def test_references_that_are_counted_otherwise_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyobject, "_word", lambda sample, offset: 1)
    assert pyobject.mismatch() == "numbers of references"


@pytest.mark.parametrize(("module", "name", "kernel"), [(pickling, "write", write_none), (unpickling, "read", read_nothing)])
def test_pickles_of_something_else_are_seen(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, kernel: Any) -> None:
    monkeypatch.setattr(module, name, kernel)
    assert round_trip.mismatch() == ("bool True" if kernel is write_none else "NoneType None")


def test_a_signal_handler_s_exception_is_no_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make every object of this process go the slow way, and the program would never see it."""
    calls: list[bytes] = []

    def loads(data: bytes) -> Any:
        calls.append(data)
        if len(calls) == 5:
            raise TimeoutError("rung")
        return pickle.loads(data)

    monkeypatch.setattr(round_trip, "pickle", types.SimpleNamespace(loads=loads))
    with pytest.raises(TimeoutError, match="rung"):
        round_trip.mismatch()
    assert round_trip.mismatch() == ""


@pytest.mark.parametrize("value", [1 << 64, {1, 2}, bytearray(b"x"), 1j, np.float64(1.5)])
def test_what_compiled_code_leaves_to_python_is_safe(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    monkeypatch.setattr(round_trip, "_plain_values", lambda: [1.5, value])
    assert round_trip.mismatch() == ""


def test_a_thread_that_looks_at_all_objects_is_no_mismatch() -> None:
    """It refers to parts of what is written, which compiled code then leaves to Python; else this rank would go another way."""
    is_over, interval = threading.Event(), sys.getswitchinterval()

    def walk() -> None:
        while not is_over.is_set():
            _ = [list(found) for found in gc.get_objects() if type(found) is list]

    walker = threading.Thread(target=walk)
    walker.start()
    sys.setswitchinterval(1e-5)
    try:
        assert [round_trip.mismatch() or pyobject.mismatch() for _ in range(50)] == [""] * 50
    finally:
        is_over.set()
        walker.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("value", [1, "text", [1.5], {"a": b"b"}])
def test_what_is_python_s_must_be_left_to_it(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    monkeypatch.setattr(round_trip, "_other_values", lambda: [1j, value])
    assert round_trip.mismatch() == type(value).__name__


def test_arrays_of_a_program_that_pickles_them_itself_are_not_asked_for() -> None:
    copyreg.pickle(np.ndarray, lambda array: (list, (array.tolist(),)))
    try:
        assert round_trip.mismatch() == ""
    finally:
        del copyreg.dispatch_table[np.ndarray]


def test_nothing_is_kept() -> None:
    def blocks() -> int:
        for _ in range(100):
            assert round_trip.mismatch() == "" == pyobject.mismatch()
        return sys.getallocatedblocks()

    blocks()
    kept = median(abs(blocks() - blocks()) for _ in range(5))  # other threads of the process take and give back now and then
    assert kept < 50
