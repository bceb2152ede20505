"""One kernel body, two machines: machine code for a GPU, or a loop over the threads on the CPU.

>>> from numba_kernels.cuda.intrinsics import load_u64, store_u64
>>> def body(thread, threads, target, source, count):
...     i = thread
...     while i < count:
...         store_u64(target + 8 * i, load_u64(source + 8 * i))
...         i += threads
>>> copy = Kernel("copy_u64", body, parameters=3)

A body is a plain function of thread number, number of threads, and the arguments, all int64: addresses are numbers. It strides over its
work by the number of threads, so it is right for any launch. It accesses memory by :mod:`numba_kernels.cuda.intrinsics` only, and may
call functions declared by :func:`helper` or :func:`numba_kernels.jit.kernel`. It cannot raise, and holds no arrays. Loops are written
with ``while``: a ``range`` with a step that is not constant makes the GPU divide.

Nothing of CUDA is imported before :meth:`Kernel.cubin` has to compile.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher

from numba_kernels import compiling, digests, jit
from numba_kernels.cuda import cache, ptx
from numba_kernels.cuda.intrinsics import block_barrier, thread_count, thread_index

Body = Callable[..., None]


class Kernel:
    """A kernel by name; implements :class:`numba_kernels.cuda.driver.Launchable`.

    Parameters
    ----------
    name
        Name of the entry in the machine code, a C identifier. Bodies of one factory share their source: the name must tell them apart.
    body
        ``body(thread, threads, *arguments)``.
    phases
        Further bodies with the same arguments. Each begins when all threads of the block have finished the one before, whatever other
        blocks do: only a block has a barrier that needs no other block to be running. Such a kernel is launched as one block, or as
        blocks of `launch_bounds` threads (:meth:`fits`), so that a body can tell the block of a thread by its number.
    parameters
        Number of arguments.
    launch_bounds
        Most threads a block that it will be launched with; fewer leave more registers to each.
    blocks_a_processor
        Blocks of so many threads that a multiprocessor can run at once at least, which leaves fewer registers to each.
    """

    def __init__(
        self,
        name: str,
        body: Body,
        *,
        phases: Sequence[Body] = (),
        parameters: int,
        launch_bounds: int = 512,
        blocks_a_processor: int = 1,
    ) -> None:
        self.name = name
        self.bodies = (body, *phases)
        self.parameters = parameters
        self.launch_bounds = launch_bounds
        self.blocks_a_processor = blocks_a_processor

    def __repr__(self) -> str:
        return f"<Kernel {self.name}>"

    def fits(self, blocks: int, threads: int) -> bool:
        """Whether it may be launched as so many blocks of so many threads."""
        is_whole = len(self.bodies) == 1 or blocks == 1 or threads == self.launch_bounds
        return is_whole and 1 <= threads <= self.launch_bounds

    @functools.cached_property
    def digest(self) -> str:
        """Names what the machine code is made from: the sources of the bodies and of all of ours that they import, and the settings."""
        total = hashlib.sha256()
        settings = self.parameters, self.launch_bounds, self.blocks_a_processor
        for part in (self.name, *map(str, settings), *map(_sources_digest, self.bodies)):
            total.update(part.encode() + b"\0")
        return total.hexdigest()[:20]

    def cubin(self, arch: tuple[int, int]) -> tuple[bytes, str]:
        """Machine code for compute capability `arch`, and the name of its entry.

        From the shipped or user's folders (:mod:`numba_kernels.cuda.cache`), else compiled, which needs no GPU.

        Raises
        ------
        CompilerMissing
            It must be compiled, and there is no CUDA compiler; the message says what to install.
        """
        code = cache.find(self.name, self.digest, arch)
        if code is None:
            code = self.compile(arch)
            cache.keep(self.name, self.digest, arch, code)
        return code, self.name

    def compile(self, arch: tuple[int, int]) -> bytes:
        """Compile for compute capability `arch`, whatever is cached."""
        return ptx.assemble(self.ptx(arch), arch)

    def ptx(self, arch: tuple[int, int]) -> str:
        """The kernel as PTX for compute capability `arch`."""
        return self.ptx_for_each([arch])[0]

    def ptx_for_each(self, arches: Sequence[tuple[int, int]]) -> list[str]:
        """The kernel as PTX for each of some compute capabilities, in a fraction of the time of one after the other."""
        from numba_kernels.cuda.compiler import compile_ptx

        bounds = self.launch_bounds, self.blocks_a_processor
        return compile_ptx(self.name, _gpu_entry(self.bodies, self.parameters), self.parameters, arches, bounds)

    def on_cpu(self, threads: int, *arguments: int) -> None:
        """Do on the CPU what `threads` threads would do. Compiled at first use; no GIL.

        Blocks of `launch_bounds` threads run one after another, each phase by phase, and a phase thread by thread.
        """
        if len(arguments) != self.parameters:
            raise TypeError(f"kernel {self.name} takes {self.parameters} arguments, got {len(arguments)}")
        self._c_function(threads, *arguments)

    @functools.cached_property
    def _c_function(self) -> Callable[..., None]:
        signature = f"void({', '.join(['int64'] * (self.parameters + 1))})"
        make = functools.partial(_cpu_entry, self.bodies, self.parameters, self.launch_bounds)
        native = jit.native(make, signature, self.name, self.digest, optimized=False)
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (self.parameters + 1))
        # The function lives as long as what compiled it.
        self._native = native
        return prototype(native.address)


def helper(function: Callable[..., Any]) -> Any:
    """Declare a function that bodies call; it is compiled into them, typed by what it is called with."""
    with compiling.pinned_configuration():
        return numba.njit(nogil=True, error_model="numpy", boundscheck=False)(function)


def _compiled_into(body: Body) -> Any:
    return body if isinstance(body, Dispatcher | jit.Kernel) else helper(body)


def _sources_digest(body: Any) -> str:
    return digests.sources_digest(getattr(body, "py_func", body).__code__.co_filename)


def _gpu_entry(bodies: Sequence[Body], parameters: int) -> Callable[..., None]:
    """What one GPU thread runs."""
    calls = [f"body_{k}(thread, threads, *arguments)" for k in range(len(bodies))]
    lines = ["thread, threads = thread_index(), thread_count()", *"\nblock_barrier()\n".join(calls).split("\n")]
    return _function("", lines, bodies, parameters)


def _cpu_entry(bodies: Sequence[Body], parameters: int, block: int) -> Callable[..., None]:
    """What the CPU runs for all threads, a block of them after another."""
    lines = [f"for first in range(0, threads, {block}):"]
    for k in range(len(bodies)):
        lines += [
            f"    for thread in range(first, min(first + {block}, threads)):",
            f"        body_{k}(thread, threads, *arguments)",
        ]
    return _function("threads, ", lines, bodies, parameters)


def _function(first: str, lines: list[str], bodies: Sequence[Body], parameters: int) -> Callable[..., None]:
    """A function with named parameters: kernels and C functions have no variable ones."""
    names = ", ".join(f"argument_{k}" for k in range(parameters))
    text = "\n    ".join([f"def entry({first}{names}):", *(line.replace("*arguments", names) for line in lines)])
    scope: dict[str, Any] = {"__name__": __name__} | {f"body_{k}": _compiled_into(body) for k, body in enumerate(bodies)}
    scope |= {"thread_index": thread_index, "thread_count": thread_count, "block_barrier": block_barrier}
    exec(compile(text, __file__, "exec"), scope)
    entry: Callable[..., None] = scope["entry"]
    return entry
