"""From a Python function to PTX, by Numba and NVVM; no GPU is needed.

The only module that imports :mod:`numba.cuda`, and only when a kernel has to be compiled, so that another compiler can take
its place.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
from numba import types

from numba_kernels import compiling
from numba_kernels.cuda.ptx import CompilerMissing, renamed


def compile_ptx(
    name: str, entry: Callable[..., None], parameters: int, arches: Sequence[tuple[int, int]], bounds: tuple[int, int]
) -> list[str]:
    """Compile `entry`, a function of int64 `parameters`, to a PTX for each compute capability, whose entry is called `name`.

    Numba, which takes most of the time, works once, for the oldest of `arches`: what that one has, the others have too. NVVM then
    makes the PTX of each from the same intermediate code.

    It runs with at most ``bounds[0]`` threads a block, and a multiprocessor has registers for ``bounds[1]`` such blocks.

    Multiplications and additions are not contracted, and subnormals are kept, so results have the bits that the CPU's have.

    Raises
    ------
    CompilerMissing
        numba-cuda or the libraries that it uses are not installed, or it is a release without what is used here.
    """
    oldest = min(arches)
    if importlib.util.find_spec("numba_cuda") is None:
        # What Numba itself still has under the name numba.cuda is older, and cannot.
        raise CompilerMissing(name, oldest, "numba-cuda is not installed")
    from numba.cuda import compiler

    compile_function = getattr(compiler, "_compile_pyfunc_with_fixup", None)
    if compile_function is None:
        raise CompilerMissing(name, oldest, f"numba-cuda {version('numba-cuda')} is installed, and 0.30 is needed")
    try:
        with compiling.pinned_configuration(), _numpy_of_numba_cuda(), _without_gpu(oldest):
            # Without the second bound ptxas spills registers to make room for more blocks.
            library, _ = compile_function(
                entry, (types.int64,) * parameters, device=False, abi="numba", cc=oldest, launch_bounds=bounds
            )
            library._nvvm_options["fma"] = False
            texts = [library.get_asm_str(cc=arch) for arch in arches]
    except RuntimeError as error:
        if type(error).__name__ != "DynamicLibNotFoundError":
            raise
        raise CompilerMissing(name, oldest, str(error).partition("\n")[0]) from error
    return [renamed(text, name) for text in texts]


@contextmanager
def _numpy_of_numba_cuda() -> Iterator[None]:
    """Let numba-cuda be imported beside NumPy 2.5, which no longer has a name that 0.30 registers and no kernel of ours calls."""
    if hasattr(np, "row_stack"):
        yield
        return
    np.row_stack = np.vstack  # type: ignore[attr-defined,unused-ignore]
    try:
        yield
    finally:
        del np.row_stack  # type: ignore[attr-defined,unused-ignore]


@contextmanager
def _without_gpu(arch: tuple[int, int]) -> Iterator[None]:
    """Let Numba compile for `arch`: for functions that a kernel calls, it asks the current GPU what to compile for."""
    from numba.cuda import dispatcher
    from numba.cuda.descriptor import cuda_target

    saved = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=arch)
    try:
        with compiling.typed_by(cuda_target.typing_context):
            yield
    finally:
        dispatcher.get_current_device = saved
