"""Memory that the library allocates for programs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ncclx_mpi import late, runtime
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.buffers.source import allocate
from ncclx_mpi.errors import ERR_ARG, ERR_NO_MEM, fail

if TYPE_CHECKING:
    from ncclx_mpi.api import memory
    from ncclx_mpi.api.memory import buffer
else:
    memory = late.module("ncclx_mpi.api.memory")

_allocated: dict[int, Any] = {}
"""What Free_mem releases: by address, the arena it came from, or private memory."""


def Alloc_mem(size: int, info: Info = INFO_NULL) -> buffer:
    """Allocate memory that the other ranks of the node can read without a copy."""
    nbytes = integer(size, "size")
    if nbytes < 0:
        fail(ERR_ARG, f"Alloc_mem: the size is negative: {nbytes}")
    try:
        address, source = _allocate(max(nbytes, 1))
    except MemoryError:
        fail(ERR_NO_MEM, f"Alloc_mem: no memory of {nbytes} bytes is left")
    _allocated[address] = source
    return memory.buffer._over(address, nbytes, False, None, address)


def Free_mem(mem: buffer) -> None:
    """Free memory that `Alloc_mem` returned."""
    if not isinstance(mem, memory.buffer):
        raise TypeError(f"expected a buffer from Alloc_mem, got {type(mem).__name__}")
    source = _allocated.pop(mem.address, None)
    if source is None and len(mem):
        fail(ERR_ARG, f"Free_mem: the memory at {mem.address:#x} did not come from Alloc_mem, or was freed")
    if callable(source):
        source(mem.address)
    mem.release()


def _allocate(nbytes: int) -> tuple[int, Any]:
    """Address and what frees it: in this rank's part of the arena, or private while there is none."""
    if runtime.is_active():
        heap = _heap()
        return heap.allocate(nbytes), heap.free
    return allocate(nbytes)


@functools.cache
def _heap() -> Any:
    engine = runtime.engine()
    return engine.arena.open_heap(engine.local_rank)
