"""The rules of the house, read from the sources: imports point downwards, ``import ncclx_mpi`` is light."""

import ast
import configparser
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ncclx_mpi", "numba_kernels", "transports")
NUMERIC = {"numpy", "numba", "llvmlite"}
ALLOWED_OUTSIDE = {
    "numba_kernels": NUMERIC | {"numba_kernels", "cuda"},
    "transports": NUMERIC | {"numba_kernels", "transports"},
    "ncclx_mpi": NUMERIC
    | {"numba_kernels", "transports", "ncclx_mpi", "mpi4py", "pytest", "_pytest", "hypothesis", "cloudpickle", "IPython"},
}

LAYERS = [
    {"nodes", "costs", "algorithms", "tuning", "late", "rc", "far_transport", "errors", "typing", "constants", "process", "state"},
    {"mpi4py_shim", "collector", "compile_cache", "locality"},
    {"p2p"},
    {"observe"},
    {"bootstrap"},
    {"runtime"},
    {"gpu_memory"},
    {"buffers"},
    {"arguments", "collectives"},
    {"simulate"},
    {"rma", "device"},
    {"operations"},
    {"extensions", "io"},
    {"api"},
    {"MPI"},
    {"launch", "testing", "bench"},
    {"notebook"},
    {"cli", "__main__"},
]
"""From the bottom up: a module imports from its own layer and from those below. A folder has one layer, with all that is in it."""


def level(parts: tuple[str, ...]) -> int:
    """The layer of ``ncclx_mpi.<parts>``."""
    return next(k for k, layer in enumerate(LAYERS) if parts[0] in layer)


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def imported(path: Path) -> list[str]:
    """Every module that a file imports when it runs, ``a.b`` for ``from a import b``."""
    return [*_imports(path, ast.parse(path.read_text()))]


def _imports(path: Path, tree: ast.Module) -> Iterator[str]:
    only_for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in set(ast.walk(tree)) - only_for_types:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_worker(path: Path) -> bool:
    """The timed program is a client like any user's: it imports ``mpi4py.MPI``."""
    return path.name == "worker.py" and path.parent.name == "bench"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_downwards(package: str) -> None:
    allowed = ALLOWED_OUTSIDE[package] | set(sys.stdlib_module_names)
    for path in sources(package):
        strangers = {name.split(".")[0] for name in imported(path)} - allowed
        assert not strangers, f"{path.relative_to(ROOT)} imports {strangers}"


def test_layers_of_ncclx_mpi_import_downwards() -> None:
    wrong = []
    for path in sources("ncclx_mpi"):
        inside = path.relative_to(ROOT / "ncclx_mpi").with_suffix("").parts
        if inside == ("__init__",):
            continue
        for name in imported(path):
            parts = tuple(name.split("."))
            if parts[0] == "ncclx_mpi" and parts[1:] and parts[1:] != ("__version__",) and level(parts[1:]) > level(inside):
                wrong.append(f"{'/'.join(inside)} imports {name}")
    assert not wrong, "\n".join(sorted(wrong))


def test_no_circle_between_folders() -> None:
    """Within a layer too: what two folders say of each other could not be understood one after the other."""
    uses: dict[str, set[str]] = {}
    for path in sources("ncclx_mpi"):
        place = path.relative_to(ROOT / "ncclx_mpi").with_suffix("").parts[0]
        found = {name.split(".")[1] for name in imported(path) if name.startswith("ncclx_mpi.")}
        uses.setdefault(place, set()).update(found - {place, "__version__"})
    while leaves := {place for place, used in uses.items() if not used & uses.keys()}:
        for place in leaves:
            del uses[place]
    assert not uses, f"circles, or what leads to them: {uses}"


def test_every_module_has_a_layer() -> None:
    known = set.union(*LAYERS)
    found = {path.relative_to(ROOT / "ncclx_mpi").parts[0].removesuffix(".py") for path in sources("ncclx_mpi")}
    assert found - {"__init__"} <= known


def test_only_one_module_defines_atomics() -> None:
    words = ("load_atomic", "store_atomic", "atomic_rmw", "cmpxchg")
    users = {path for package in PACKAGES for path in sources(package) if any(word in path.read_text() for word in words)}
    assert users == {ROOT / "numba_kernels" / "emit" / "atomics.py"}


def test_numba_is_imported_by_what_compiles_only() -> None:
    """Modules of kernels name what they are compiled with as deferred: a process that finds all it calls in the cache needs no compiler."""
    compilers = {"numba_kernels/compiling.py", "numba_kernels/types.py"}
    wrong = [
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in sources(package)
        if {name.split(".")[0] for name in imported(path)} & {"numba", "llvmlite"}
        and path.relative_to(ROOT).as_posix() not in compilers
        and path.parent not in (ROOT / "numba_kernels" / "emit", ROOT / "numba_kernels" / "cuda")
    ]
    assert not wrong


def test_python_calls_kernels_by_their_entry_points_only() -> None:
    """A kernel that Python calls as it is has no place in the cache: each process would compile it, and import Numba for that."""
    trees = {path: ast.parse(path.read_text()) for package in ("ncclx_mpi", "transports") for path in sources(package)}
    kernels = {(_module(path), each.name) for path, tree in trees.items() for each in tree.body if _is_kernel(each)}
    assert len(kernels) > 500
    called = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call.func)}"
        for path, tree in trees.items()
        for statement in tree.body
        if not _is_kernel(statement)
        for call in ast.walk(statement)
        if isinstance(call, ast.Call) and _meant(path, call.func) in kernels
    ]
    assert called == []


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _is_kernel(statement: ast.stmt) -> bool:
    """Whether a statement defines a kernel."""
    decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef) else []
    return any(isinstance(each, ast.Call) and ast.unparse(each.func) == "kernel" for each in decorators)


def _meant(path: Path, function: ast.expr) -> tuple[str, str]:
    """Module and name of what is called by its name, or by that of its module."""
    known = _known(path)
    if isinstance(function, ast.Name):
        return known.get(function.id, (_module(path), function.id))
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in known:
        return ".".join(known[function.value.id]), function.attr
    return "", ""


@functools.cache
def _known(path: Path) -> dict[str, tuple[str, str]]:
    """Module and name of what a file imports from somewhere, by the names that it has there."""
    found = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.ImportFrom)]
    return {name.asname or name.name: (each.module or "", name.name) for each in found for name in each.names}


def test_cuda_is_imported_where_kernels_are_compiled_only() -> None:
    users = {
        (path.relative_to(ROOT).as_posix(), name.split(".")[0])
        for package in PACKAGES
        for path in sources(package)
        for name in imported(path)
        if name.startswith(("numba.cuda", "cuda.")) or name == "cuda"
    }
    assert users == {("numba_kernels/cuda/compiler.py", "numba"), ("numba_kernels/cuda/ptx.py", "cuda")}


def test_matching_imports_no_transport() -> None:
    """But by the names of what any transport is, and of the one that is compiled in."""
    contract = {"transports.base", "transports.messages", "transports.inlined"}
    for path in sources("ncclx_mpi/p2p"):
        strangers = {name for name in imported(path) if name.startswith("transports.") and not name.startswith(tuple(contract))}
        assert not strangers, f"{path.name} imports {strangers}"


def test_collectives_know_shared_memory_in_files_that_say_so() -> None:
    users = {
        path.name
        for path in sources("ncclx_mpi/collectives")
        if any(name.startswith("transports.") for name in imported(path)) and not path.name.startswith(("shm_", "cma"))
    }
    assert not users


SHARED_BY_TRANSPORTS = ("base", "messages", "granted", "placed", "ends", "addresses")


def test_transports_import_no_other_transport() -> None:
    for path in sources("transports"):
        inside = path.relative_to(ROOT / "transports").parts
        others = {name.split(".")[1] for name in imported(path) if name.startswith("transports.")}
        others -= {*SHARED_BY_TRANSPORTS, inside[0]}
        assert not others or inside == ("inlined.py",), f"{'/'.join(inside)} imports {others}"


def test_real_mpi_is_imported_by_its_bootstrap_only() -> None:
    users = {
        path.relative_to(ROOT).as_posix() for path in sources("ncclx_mpi") if "mpi4py.MPI" in imported(path) and not is_worker(path)
    }
    assert users <= {"ncclx_mpi/bootstrap/mpi.py"}


def test_ipython_is_imported_by_the_extension_and_the_ranks_of_a_notebook_only() -> None:
    users = {
        path.relative_to(ROOT / "ncclx_mpi").as_posix()
        for path in sources("ncclx_mpi")
        if any(name.split(".")[0] == "IPython" for name in imported(path))
    }
    assert users == {"notebook/magics.py", "notebook/shell.py", "notebook/rank.py"}


def test_import_is_light() -> None:
    code = "import sys, ncclx_mpi; print([m for m in ('numba', 'llvmlite', 'numpy', 'mpi4py') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_files_stay_readable() -> None:
    long = {
        str(path): count for package in PACKAGES for path in sources(package) if (count := len(path.read_text().splitlines())) > 700
    }
    assert not long


def test_the_releases_of_python_that_install_it_are_those_that_are_tested() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    minors = [int(found) for found in re.findall(r"Python :: 3\.(\d+)", settings["metadata"]["classifiers"])]
    assert settings["options"]["python_requires"] == f">=3.{min(minors)},<3.{max(minors) + 1}"
    tested = re.findall(r"3\.(\d+)", (ROOT / ".ci" / "run").read_text())
    assert {int(found) for found in tested} == set(minors)
