"""PTX texts: assembled to machine code, and examined."""

from __future__ import annotations

import functools
import importlib.util
import os
import re

from numba_kernels.rows import NamedTuple


class CompilerMissing(RuntimeError):
    """A kernel has to be compiled, and what compiles is not installed."""

    def __init__(self, name: str, arch: tuple[int, int], reason: str) -> None:
        super().__init__(
            f"kernel {name} must be compiled for sm_{arch[0]}{arch[1]}, and there is no CUDA compiler ({reason}): "
            "`pip install 'ncclx-mpi[cuda13]'` (or [cuda12]), or make the kernels elsewhere by `python -m numba_kernels.compile`"
        )


class AssemblerTooOld(CompilerMissing):
    """There is a ptxas, but none that understands what the compiler writes."""

    def __init__(self, message: str) -> None:
        RuntimeError.__init__(self, message)


class Usage(NamedTuple):
    """What ptxas tells of a kernel: registers a thread, bytes of stack, bytes of spilled registers stored and loaded."""

    registers: int
    stack: int
    spills: int


def renamed(text: str, name: str) -> str:
    """Give the one entry of a PTX text another name."""
    return text.replace(_entry(text), name)


def _entry(text: str) -> str:
    (entry,) = re.findall(r"\.entry\s+([\w$]+)\s*\(", text)
    return str(entry)


def assemble(text: str, arch: tuple[int, int]) -> bytes:
    """Machine code, by nvJitLink where it is installed, else by ptxas.

    Raises
    ------
    CompilerMissing
        Neither is installed.
    """
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.core") and _has_jit_linker():
        from cuda.core import Linker, LinkerOptions, ObjectCode

        options = LinkerOptions(arch=f"sm_{arch[0]}{arch[1]}")
        return bytes(Linker(ObjectCode.from_ptx(text.encode()), options=options).link("cubin").code)
    return run_ptxas(text, arch)[0]


def _has_jit_linker() -> bool:
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        load_nvidia_dynamic_lib("nvJitLink")
    except DynamicLibNotFoundError:
        return False
    return True


def run_ptxas(text: str, arch: tuple[int, int]) -> tuple[bytes, Usage]:
    """Machine code by ptxas, and what it takes.

    Raises
    ------
    CompilerMissing
        There is no ptxas, or none that is new enough.
    ValueError
        ptxas refuses the text.
    """
    import subprocess
    import tempfile

    program = find_ptxas()
    if program is None:
        raise CompilerMissing(_entry(text), arch, "neither nvJitLink nor ptxas is there")
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "kernel.ptx"), os.path.join(folder, "kernel.cubin")
        with open(source, "w", encoding="ascii") as file:
            file.write(text)
        command = [program, "-v", f"-arch=sm_{arch[0]}{arch[1]}", "-o", target, source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if too_old := re.search(r"Unsupported \.version ([\d.]+); current version is '([\d.]+)'", done.stdout + done.stderr):
            raise _too_old(program, too_old[1], too_old[2])
        if done.returncode != 0:
            raise ValueError(f"ptxas refuses kernel {_entry(text)} for sm_{arch[0]}{arch[1]}: {done.stderr.strip()}")
        with open(target, "rb") as made:
            return made.read(), _usage(done.stdout + done.stderr)


def _too_old(program: str, wanted: str, known: str) -> AssemblerTooOld:
    return AssemblerTooOld(
        f"{program} (release {'.'.join(map(str, _release(program)))}) is too old: it takes PTX up to {known}, and the CUDA compiler that is "
        f"installed writes {wanted}. `pip install nvidia-cuda-nvcc` of the release of nvidia-nvvm, or put a newer ptxas on PATH"
    )


def find_ptxas() -> str | None:
    """Path of the newest ptxas: from the wheel of nvcc, or an installed toolkit."""
    return max(_assemblers(), key=_release, default=None)


def _assemblers() -> list[str]:
    """Each ptxas that is installed; those that belong to this Python come first."""
    import glob
    import shutil

    wheels = importlib.util.find_spec("nvidia")
    places = (wheels and wheels.submodule_search_locations) or ()
    found = [path for place in places for path in glob.glob(os.path.join(glob.escape(place), "*", "bin", "ptxas"))]
    toolkits = [os.path.join(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    on_path = [
        shutil.which("ptxas", path=folder) for folder in (*toolkits, *os.environ.get("PATH", "").split(os.pathsep)) if folder
    ]
    return [*found, *filter(None, on_path)]


@functools.cache
def _release(program: str) -> tuple[int, int]:
    """Release of the toolkit that a ptxas is from, 0.0 if it does not say."""
    import subprocess

    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0, 0
    match = re.search(r"release (\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _usage(log: str) -> Usage:
    def number(pattern: str) -> int:
        return sum(int(found) for found in re.findall(pattern, log))

    return Usage(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes spill (?:stores|loads)"),
    )
