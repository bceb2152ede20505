"""What kernel bodies are written with: accesses to raw addresses, the thread's place, the barrier of a block.

Each compiles for the CPU and for the GPU. On the GPU, addresses are global memory: device memory, another process's, or pinned host
memory. A load is never dropped, repeated or moved across another access of this module by the compiler.

Addresses are int64. All but the 16-byte accesses come in the element types ``i8 u8 i16 u16 i32 u32 i64 u64 f32 f64``; an address
must be a multiple of the size, since the GPU cannot access others.

What they do is in :mod:`numba_kernels.emit.cuda`.
"""

from __future__ import annotations

from numba_kernels.deferred import emitted

VECTOR = 16
"""Bytes of the widest access."""

load_i8 = emitted("cuda", "load_i8")
load_u8 = emitted("cuda", "load_u8")
load_i16 = emitted("cuda", "load_i16")
load_u16 = emitted("cuda", "load_u16")
load_i32 = emitted("cuda", "load_i32")
load_u32 = emitted("cuda", "load_u32")
load_i64 = emitted("cuda", "load_i64")
load_u64 = emitted("cuda", "load_u64")
load_f32 = emitted("cuda", "load_f32")
load_f64 = emitted("cuda", "load_f64")
store_i8 = emitted("cuda", "store_i8")
store_u8 = emitted("cuda", "store_u8")
store_i16 = emitted("cuda", "store_i16")
store_u16 = emitted("cuda", "store_u16")
store_i32 = emitted("cuda", "store_i32")
store_u32 = emitted("cuda", "store_u32")
store_i64 = emitted("cuda", "store_i64")
store_u64 = emitted("cuda", "store_u64")
store_f32 = emitted("cuda", "store_f32")
store_f64 = emitted("cuda", "store_f64")
or_i64 = emitted("cuda", "or_i64")
load_vector = emitted("cuda", "load_vector")
store_vector = emitted("cuda", "store_vector")
thread_index = emitted("cuda", "thread_index")
thread_count = emitted("cuda", "thread_count")
block_barrier = emitted("cuda", "block_barrier")
