"""The way from a method to the kernel that does its work can be read in the source: no name in it is made when the program runs.

Nothing is imported here: :class:`Reader` follows calls as an editor or a type checker does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
API = ROOT / "ncclx_mpi" / "api"
BINDERS = {"_at_first_call", "_with_pickles"}
ROUTES = ("fast", "fast_windows")

KERNELS = {
    "p2p.fast.send_array": "Send Ssend Rsend",
    "p2p.fast.receive_array": "Recv",
    "p2p.fast.exchange_arrays": "Sendrecv",
    "p2p.fast.replace_array": "Sendrecv_replace",
    "p2p.request_pool.start_send_array": "Isend Issend Irsend",
    "p2p.request_pool.start_receive_array": "Irecv",
    "p2p.fast.receive_matched_array": "Message.Recv",
    "p2p.objects.await_message": "Probe",
    "p2p.objects.look_for_message": "Iprobe",
    "p2p.completing.complete_one": "Wait Test",
    "p2p.completing.complete_some": "Waitany Testany Waitsome Testsome",
    "p2p.completing.complete_all": "Waitall Testall",
    "p2p.request_pool.start_one": "Start",
    "p2p.request_pool.start_all": "Startall",
    "collectives.fast.barrier_now": "Barrier",
    "collectives.fast.bcast_array": "Bcast",
    "collectives.fast.gather_arrays": "Gather",
    "collectives.fast.scatter_arrays": "Scatter",
    "collectives.fast.allgather_arrays": "Allgather",
    "collectives.fast.alltoall_arrays": "Alltoall",
    "collectives.fast.reduce_arrays": "Reduce",
    "collectives.fast.allreduce_arrays": "Allreduce",
    "collectives.fast.reduce_scatter_block_arrays": "Reduce_scatter_block",
    "collectives.fast_vector.scan_arrays": "Scan Exscan",
    "collectives.fast_vector.exchange_vectors": "Gatherv Scatterv Alltoallv Alltoallw",
    "collectives.fast_vector.allgatherv_arrays": "Allgatherv",
    "collectives.fast_vector.reduce_scatter_arrays": "Reduce_scatter",
    "collectives.fast_neighbor.exchange_neighbors": (
        "Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw"
    ),
    "collectives.fast_nonblocking.ibarrier": "Ibarrier",
    "collectives.fast_nonblocking.ibcast_array": "Ibcast",
    "collectives.fast_nonblocking.igather_arrays": "Igather",
    "collectives.fast_nonblocking.iscatter_arrays": "Iscatter",
    "collectives.fast_nonblocking.iallgather_arrays": "Iallgather",
    "collectives.fast_nonblocking.ialltoall_arrays": "Ialltoall",
    "collectives.fast_nonblocking.ireduce_arrays": "Ireduce",
    "collectives.fast_nonblocking.iallreduce_arrays": "Iallreduce",
    "collectives.fast_nonblocking.ireduce_scatter_block_arrays": "Ireduce_scatter_block",
    "collectives.fast_nonblocking.iscan_arrays": "Iscan Iexscan",
    "collectives.fast_nonblocking_neighbor.iexchange_neighbors": (
        "Ineighbor_allgather Ineighbor_allgatherv Ineighbor_alltoall Ineighbor_alltoallv Ineighbor_alltoallw"
    ),
    "collectives.fast_nonblocking_vector.iexchange_vectors": "Igatherv Iscatterv Ialltoallv Ialltoallw",
    "collectives.fast_nonblocking_vector.iallgatherv_arrays": "Iallgatherv",
    "collectives.fast_nonblocking_vector.ireduce_scatter_arrays": "Ireduce_scatter",
}
"""The first kernel that each method reaches, of those that have one of their own."""

OF_WINDOWS = {
    "rma.fast.put": "Put",
    "rma.fast.get": "Get Rget",
    "rma.fast.accumulate": "Accumulate",
    "rma.fast.get_accumulate": "Get_accumulate Rget_accumulate",
    "rma.fast.fetch_and_op": "Fetch_and_op",
    "rma.fast.compare_and_swap": "Compare_and_swap",
    "rma.fast.fence": "Fence",
    "rma.fast.lock_target": "Lock",
    "rma.fast.unlock_target": "Unlock",
    "rma.fast.lock_all": "Lock_all",
    "rma.fast.unlock_all": "Unlock_all",
    "rma.fast.flush": "Flush",
    "rma.fast.flush_all": "Flush_all",
    "rma.fast_epochs.start": "Start",
    "rma.fast_epochs.complete": "Complete",
    "rma.fast_epochs.post": "Post",
    "rma.fast_epochs.wait": "Wait",
    "rma.fast_epochs.test": "Test",
}
"""Likewise of windows. Their other methods go the general way at once, or call one of these."""

WITHOUT = {
    "Bsend", "Ibsend", "Isendrecv", "Isendrecv_replace", "Send_init", "Bsend_init", "Ssend_init", "Rsend_init",
    "Recv_init", "Mprobe", "Improbe", "Attach_buffer", "Detach_buffer", "Flush_buffer", "Iflush_buffer", "Get_status",
    "Get_status_any", "Get_status_all", "Get_status_some", "Cancel", "Free", "Complete", "Pready", "Pready_range", "Pready_list", "Parrived",
    "Neighbor_allgather_init", "Neighbor_allgatherv_init", "Neighbor_alltoall_init", "Neighbor_alltoallv_init", "Neighbor_alltoallw_init",
}  # fmt: skip
"""Methods that go the general way at once."""

CLASSES = {
    "comm_p2p": ("PointToPoint",),
    "comm_collective": ("Collectives", "Scans"),
    "comm_neighbor": ("NeighborCollectives",),
    "comm_nonblocking": ("NonBlockingCollectives", "NonBlockingScans"),
    "request": ("Request", "Prequest"),
    "message": ("Message",),
}
ELSEWHERE = {("Message", "Irecv")}
"""Methods of the same name as others that have a kernel, which go the general way."""

COMPUTED_NAMES = {
    "errhandler_dispatch": {"getattr", "setattr"},
    "datatype": {"getattr"},
    "fast": {"globals"},
    "fast_windows": {"globals"},
    "public": {"getattr", "globals"},
}
"""Where a name is made when the program runs: methods are wrapped once an error handler is set, a constructor is found by what a decoded
datatype says, and a kernel's entry point takes the place of what stood for it;
constants are named once, when the module is imported, and what few programs use when it is first asked for."""


class Entry(NamedTuple):
    """A kernel that Python calls."""

    path: str
    parameters: tuple[str, ...]


class Reader:
    """The source of one module."""

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(path.read_text())
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        self.classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        self.imports = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in (inner for outer in self.tree.body for inner in (outer, *getattr(outer, "body", ())))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def methods(self, cls: str) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in self.classes[cls].body if isinstance(node, ast.FunctionDef)}


@cache
def read(path: Path) -> Reader:
    return Reader(path)


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """Every call in a function, in the order of the source."""
    found = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))


def entry_of(module: str, name: str) -> Entry:
    """The kernel of a module that a name stands for, which Python may call."""
    function = read(ROOT / (module.replace(".", "/") + ".py")).functions[name]
    marks = [
        ast.unparse(each.func) == "kernel"
        and any(key.arg == "is_entry" and ast.unparse(key.value) == "True" for key in each.keywords)
        for each in function.decorator_list
        if isinstance(each, ast.Call)
    ]
    assert any(marks), f"{module}.{name} is no kernel that Python calls"
    return Entry(f"{module}.{name}", tuple(argument.arg for argument in function.args.args))


@cache
def bound() -> dict[str, Entry]:
    """The kernel that each name of :mod:`ncclx_mpi.api.fast` and of the module of windows stands for, with the name of the module."""
    found: dict[str, Entry] = {}
    for module in ROUTES:
        found |= bound_in(module)
    return found


def bound_in(module: str) -> dict[str, Entry]:
    fast, found = read(API / f"{module}.py"), {}
    for node in fast.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in BINDERS:
            kernel, (target,) = node.value.args[0], node.targets
            assert isinstance(target, ast.Name) and isinstance(kernel, ast.Attribute) and isinstance(kernel.value, ast.Name)
            found[f"{module}.{target.id}"] = entry_of(fast.imports[kernel.value.id], kernel.attr)
    return found


def first_kernel(reader: Reader, function: ast.FunctionDef, seen: tuple[str, ...] = ()) -> str | None:
    """The first kernel that a function calls, itself or through a function of its module."""
    for call in calls(function):
        target = ast.unparse(call.func)
        if target in bound():
            return bound()[target].path
        if target in reader.functions and target not in seen:
            found = first_kernel(reader, reader.functions[target], (*seen, target))
            if found is not None:
                return found
    return None


@pytest.mark.parametrize("module", CLASSES)
def test_methods_lead_to_their_kernels(module: str) -> None:
    reader = read(API / f"{module}.py")
    expected = {name: f"ncclx_mpi.{kernel}" for kernel, names in KERNELS.items() for name in names.split()}
    for cls in CLASSES[module]:
        for name, method in reader.methods(cls).items():
            if name[0].isupper():
                assert name in expected or name in WITHOUT, f"{cls}.{name}: which kernel does its work?"
                kernel = None if (cls, name) in ELSEWHERE else expected.get(f"{cls}.{name}", expected.get(name))
                assert first_kernel(reader, method) == kernel, f"{cls}.{name}"


def test_methods_of_windows_lead_to_their_kernels() -> None:
    reader = read(API / "window.py")
    expected = {name: f"ncclx_mpi.{kernel}" for kernel, names in OF_WINDOWS.items() for name in names.split()}
    found = {name: first_kernel(reader, method) for name, method in reader.methods("Win").items() if name[0].isupper()}
    assert {name: kernel for name, kernel in found.items() if kernel} == expected


def test_calls_give_kernels_what_they_take() -> None:
    called = set()
    for path in API.glob("*.py"):
        reader = read(path)
        for call in calls(reader.tree):
            module = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            if module in ROUTES and reader.imports.get(module) == f"ncclx_mpi.api.{module}":
                assert isinstance(call.func, ast.Attribute)
                name, where = f"{module}.{call.func.attr}", f"{path.name}:{call.lineno}: {module}.{call.func.attr}"
                called.add(name)
                assert name in bound() or call.func.attr in read(API / f"{module}.py").functions, where
                if name in bound():
                    assert not call.keywords and len(call.args) == len(bound()[name].parameters), where
    assert called >= set(bound()), "bound, but never called"


def test_no_name_is_made_when_the_program_runs() -> None:
    found: dict[str, set[str]] = {}
    for path in API.glob("*.py"):
        for call in calls(read(path).tree):
            function = ast.unparse(call.func)
            is_computed = function in ("getattr", "setattr", "delattr") and not isinstance(call.args[1], ast.Constant)
            if is_computed or function in ("globals", "eval", "exec", "importlib.import_module", "__import__"):
                found.setdefault(path.stem, set()).add(function)
    assert found == COMPUTED_NAMES
