"""What programs see of the classes, beside what mpi4py declares in the stub file that comes with it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

EXTENSIONS = {
    "Intracomm": {
        "prepare", "in_stream", "check",  # collectives in streams of GPUs
        "Alltoallv_dynamic", "Ialltoallv_dynamic", "Alltoallv_dynamic_init",
        "Alltoallv_dynamic_combine", "Ialltoallv_dynamic_combine", "Alltoallv_dynamic_combine_init",
    },
}  # fmt: skip
"""Public names that mpi4py does not have, each with a page in the documentation, by class."""


def stub() -> ast.Module:
    spec = importlib.util.find_spec("mpi4py")
    assert spec and spec.origin
    return ast.parse(Path(spec.origin).with_name("MPI.pyi").read_text())


CLASSES = {node.name: node for node in stub().body if isinstance(node, ast.ClassDef)}


def declared(node: ast.ClassDef) -> dict[str, list[ast.FunctionDef]]:
    """The names of a class with their functions: several if it is overloaded, none of what is no function."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in each.decorator_list)
            is_setter = any(isinstance(one, ast.Attribute) for one in each.decorator_list)
            found.setdefault(each.name, []).extend([] if is_property or is_setter else [each])
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found.setdefault(each.target.id, [])
        elif isinstance(each, ast.Assign):
            found.update({one.id: [] for one in each.targets if isinstance(one, ast.Name)})
    return found


def family(name: str) -> Iterator[str]:
    """A class of the module and those that it is derived from."""
    yield name
    for base in CLASSES[name].bases:
        if isinstance(base, ast.Name) and base.id in CLASSES:
            yield from family(base.id)


@pytest.mark.parametrize("name", CLASSES)
def test_public_names_are_those_of_mpi4py(name: str) -> None:
    wanted = set().union(*(set(declared(CLASSES[each])) | EXTENSIONS.get(each, set()) for each in family(name)))
    inherited = {"BottomType": int, "InPlaceType": int, "BufferAutomaticType": int, "Exception": RuntimeError}.get(name, object)
    found = set(dir(getattr(MPI, name))) - set(dir(inherited))
    assert {each for each in found ^ wanted if not each.startswith("_") and each not in dir(inherited)} == set()


def parameters(function: ast.FunctionDef) -> list[tuple[str, bool]]:
    """Names of parameters, and which have a default."""
    named = [*function.args.posonlyargs, *function.args.args]
    defaults = len(named) - len(function.args.defaults)
    positional = [(each.arg, k >= defaults) for k, each in enumerate(named)]
    keywords = [
        (each.arg, default is not None) for each, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    ]
    rest = [(each.arg, False) for each in (function.args.vararg, function.args.kwarg) if each]
    return [each for each in positional + keywords + rest if each[0] not in ("self", "cls")]


@pytest.mark.parametrize("name", CLASSES)
def test_signatures_are_those_of_mpi4py(name: str) -> None:
    for method, functions in declared(CLASSES[name]).items():
        if len(functions) != 1 or method.startswith("_"):
            continue
        found = inspect.signature(getattr(getattr(MPI, name), method)).parameters.values()
        have = [(each.name, each.default is not each.empty) for each in found if each.name not in ("self", "cls")]
        assert have == parameters(functions[0]), method


def test_a_subclass_may_use_any_other_name() -> None:
    class Mine(MPI.Intracomm):
        def kind(self) -> str:
            return "mine"

    class Type(MPI.Datatype):
        kind = contiguous = "mine"

    assert Mine(MPI.COMM_SELF).kind() == Type(MPI.INT).kind == "mine"
    assert Mine(MPI.COMM_SELF).allreduce(2) == 2
    data = np.ones(2, np.int32)
    MPI.COMM_SELF.Allreduce([data, 2, Type(MPI.INT)], [data.copy(), 2, Type(MPI.INT)])


def test_a_buffer_has_no_names_of_arrays() -> None:
    mem = MPI.buffer(bytearray(b"\1\2\3"))
    for name in ("shape", "dtype", "tolist", "T", "copy", "sum"):
        assert not hasattr(mem, name) and not hasattr(MPI.buffer, name) and name not in dir(mem)


def test_functions_of_numpy_take_a_buffer_as_bytes() -> None:
    mem, ones = MPI.buffer(bytearray(b"\3\1\2")), np.ones(3, np.uint8)
    for found, wanted in (
        (ones + mem, [4, 2, 3]),
        (mem + ones, [4, 2, 3]),
        (ones == mem, [False, True, False]),
        (mem == ones, [False, True, False]),
        (np.sort(mem), [1, 2, 3]),
        (np.concatenate([mem, ones]), [3, 1, 2, 1, 1, 1]),
        (np.add(mem, 1, out=np.zeros(3, np.uint8)), [4, 2, 3]),
    ):
        assert type(found) is np.ndarray and found.tolist() == wanted
    assert np.sum(mem) == 6 and np.array_equal(mem, [3, 1, 2])
    assert 2 in mem and 7 not in mem


@pytest.mark.parametrize(
    "use", ["mem + mem", "mem + 1", "mem < mem", "-mem", "int(mem)", "copy.copy(mem)", "mem @ mem", "operator.iadd(mem, 1)"]
)
def test_a_buffer_has_no_arithmetic(use: str) -> None:
    import copy
    import operator

    names: dict[str, Any] = {"mem": MPI.buffer(bytearray(1)), "copy": copy, "operator": operator}
    with pytest.raises((TypeError, ValueError)):  # int() reads the bytes, as digits
        eval(use, names)
