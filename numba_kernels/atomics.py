"""Shared words: the only functions that touch memory which another process or thread writes at the same time.

All take raw addresses (int64) of 8-byte aligned 64-bit words, in memory that is known to be mapped.
Names give the memory order: acquire, release, relaxed. Plain ``load64``/``store64`` are for private memory.
What they do is in :mod:`numba_kernels.emit.atomics`.
"""

from __future__ import annotations

from numba_kernels.deferred import emitted

load_acquire = emitted("atomics", "load_acquire")
load_relaxed = emitted("atomics", "load_relaxed")
load64 = emitted("atomics", "load64")
load32 = emitted("atomics", "load32")
load8 = emitted("atomics", "load8")
store_release = emitted("atomics", "store_release")
store_relaxed = emitted("atomics", "store_relaxed")
store64 = emitted("atomics", "store64")
store32 = emitted("atomics", "store32")
store8 = emitted("atomics", "store8")
fetch_add = emitted("atomics", "fetch_add")
exchange = emitted("atomics", "exchange")
compare_exchange = emitted("atomics", "compare_exchange")
pause = emitted("atomics", "pause")
full_fence = emitted("atomics", "full_fence")
publish_streamed = emitted("atomics", "publish_streamed")
ticks = emitted("atomics", "ticks")
