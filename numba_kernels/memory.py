"""Copies between addresses: cached (libc's memcpy), streamed past the caches, and out of the caches of another core.

A plain store to a line that another core has cached must first take the line back. Between two core complexes
("far" placement) that costs 2 GB/s for a block that the reader reads again and again; 64-byte non-temporal stores
reach 16 GB/s in both placements, and reading the block back costs the same either way. In the near placement plain stores
are the faster ones for blocks that stay in cache, and some processors stream slowly in any placement, so callers measure both.

What goes from one core to another is not copied by memcpy: from some KiB on that is one instruction of the processor (``rep movsb``), which
on an EPYC of the fourth generation has a slow mode, where it takes 4.3 us to fetch 64 KiB out of another core's caches; a loop takes 1.7.
"""

from __future__ import annotations

from typing import Any

from numba_kernels import types
from numba_kernels.atomics import publish_streamed
from numba_kernels.deferred import emitted
from numba_kernels.jit import kernel

LINE = 64

copy = types.external("memcpy", types.intp(types.intp, types.intp, types.intp))
move = types.external("memmove", types.intp(types.intp, types.intp, types.intp))
fill = types.external("memset", types.intp(types.intp, types.int32, types.intp))
compare = types.external("memcmp", types.int32(types.intp, types.intp, types.intp))
"""0 where as many bytes are the same."""
allocate = types.external("malloc", types.intp(types.intp))
"""Memory, or 0: whoever allocates says what happens then. What is small and of one size is better on the stack (:func:`make_stack`)."""
release = types.external("free", types.void(types.intp))
_madvise = types.external("madvise", types.int32(types.intp, types.intp, types.int32))
_REMOVE, _POPULATE_READ = 9, 22
_aligned = types.external("aligned_alloc", types.intp(types.intp, types.intp))
end_without_memory = emitted("memory", "end_without_memory")
"""End the process, and say why on its stderr."""
copy_line = emitted("memory", "copy_line")
"""``copy_line(target, source)``: copy 64 bytes from any address to any other, through registers."""
stream_line = emitted("memory", "stream_line")
"""``stream_line(target, source)``: copy 64 bytes from any address to a 64-byte aligned one, past the caches."""


def make_stack(nwords: int) -> Any:
    """Return a function that gives the address of so many words, which are the calling function's until it returns."""
    return emitted("memory", "make_stack", nwords)


@kernel("int64(int64)")
def whole_lines(nbytes):  # type: ignore[no-untyped-def]
    """Bytes of the cache lines that hold `nbytes`: what stands behind them is aligned for any element."""
    return (nbytes + LINE - 1) & ~(LINE - 1)


@kernel("int64(int64)")
def allocate_lines(nbytes):  # type: ignore[no-untyped-def]
    """Memory, or 0, from the start of a line on: a vector register of elements that are computed with lies in one line then, not in two."""
    return _aligned(LINE, nbytes)


@kernel("void(int64, int64)")
def take_pages(address, nbytes):  # type: ignore[no-untyped-def]
    """Have this process map all pages of shared memory from `address` on, the beginning of one, at once.

    A kernel before 5.14 leaves them to their faults. As for reading: what another process has allocated is mapped in a quarter of the time
    then (110 us instead of 385 for 2 MiB), and what nobody has is allocated either way (1,280 us, in a virtual machine). Writing needs no
    fault afterwards.
    """
    _madvise(address, nbytes, types.int32(_POPULATE_READ))


@kernel("void(int64, int64)")
def remove_pages(address, nbytes):  # type: ignore[no-untyped-def]
    """Give pages of shared memory back to the kernel, whose bytes are 0 then."""
    _madvise(address, nbytes, types.int32(_REMOVE))


@kernel("int64(int64)")
def allocate_or_end(nbytes):  # type: ignore[no-untyped-def]
    """Memory for what is promised to a peer already, so that nobody can be told that there is none: the process ends then, and says why."""
    found = allocate(nbytes)
    if found == 0:
        end_without_memory()
    return found


@kernel("void(int64, int64, int64)")
def stream(target, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` to shared memory past the caches, ready for a release store. Any alignment."""
    head = min(nbytes, (-target) & (LINE - 1))
    if head:
        copy(target, source, head)
    lines = (nbytes - head) // LINE
    for i in range(lines):
        stream_line(target + head + i * LINE, source + head + i * LINE)
    done = head + lines * LINE
    if done < nbytes:
        copy(target + done, source + done, nbytes - done)
    publish_streamed()


_LINES_FROM = 4096
"""Bytes from which :func:`copy_lines` does without memcpy, which copies less in such a loop itself."""


@kernel("void(int64, int64, int64)")
def copy_lines(target, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy through registers, line by line. Any alignment; the two do not overlap."""
    if nbytes < _LINES_FROM:
        copy(target, source, nbytes)
        return
    head = (-target) & (LINE - 1)
    copy_line(target, source)
    last = nbytes - LINE
    for offset in range(head, last, LINE):
        copy_line(target + offset, source + offset)
    copy_line(target + last, source + last)


@kernel("void(int64, int64, int64)")
def move_lines(target, source, nbytes):  # type: ignore[no-untyped-def]
    """As :func:`copy_lines`, and the two may overlap."""
    if abs(target - source) >= nbytes:
        copy_lines(target, source, nbytes)
    else:
        move(target, source, nbytes)


STREAM_FROM = 1024
"""Bytes from which streaming pays; below it the fence and the write-combining buffers cost more."""


@kernel("void(int64, int64, int64, int64)")
def write_shared(target, source, nbytes, streamed):  # type: ignore[no-untyped-def]
    """Copy into memory that another core reads: streamed if the placement asks for it and the block is worth it."""
    if streamed and nbytes >= STREAM_FROM:
        stream(target, source, nbytes)
    else:
        copy_lines(target, source, nbytes)
