"""What hands bytes from one core to another through a ring in shared memory, by the size of the ring: ``python benchmarks/ring_floor.py``.

Two processes on two cores, compiled, without anything of this library but its copies: a message goes there and back in chunks, each behind
the one before, also from message to message. Where the ring is smaller than the second-level cache of a core, a line that is written was
read by the other core a moment ago, and has to be taken out of its cache (``design/046-rings-larger-than-a-cache.md``).

The flag's trip is printed before and after, since a host may move the cores meanwhile.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from numba_kernels.atomics import load_acquire, pause, store_release, ticks
from numba_kernels.clock import ticks_per_us
from numba_kernels.jit import entry, kernel
from numba_kernels.layout import words
from numba_kernels.memory import copy, write_shared
from transports.shm.caches import l2_bytes
from transports.shm.store_kind import bounce

PIPE = words("Pipe", "posted | consumed | data")
_ROOM = 8 << 20
_RINGS = 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20
_MESSAGES, _REPEATS = 400, 9
_TRIPS = 1000
_SECONDS = 60
"""After which a process that waits for one that is gone ends."""


@kernel("void(int64, int64, int64, int64, int64, int64, int64)")
def send(pipe, first, address, nbytes, chunk, depth, streamed):  # type: ignore[no-untyped-def]
    """Write a message of which `first` is the number of the first chunk."""
    for k in range(nbytes // chunk):
        while first + k - load_acquire(pipe + PIPE.consumed) >= depth:
            pause()
        write_shared(pipe + PIPE.data + (first + k) % depth * chunk, address + k * chunk, chunk, streamed)
        store_release(pipe + PIPE.posted, first + k + 1)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def receive(pipe, first, address, nbytes, chunk, depth):  # type: ignore[no-untyped-def]
    """Read one."""
    for k in range(nbytes // chunk):
        while load_acquire(pipe + PIPE.posted) <= first + k:
            pause()
        copy(address + k * chunk, pipe + PIPE.data + (first + k) % depth * chunk, chunk)
        store_release(pipe + PIPE.consumed, first + k + 1)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def play(mine, theirs, is_first, address, nbytes, chunk, depth, streamed, begun):  # type: ignore[no-untyped-def]
    """Hand messages there and back, `begun` of which there were before; ticks of all of them."""
    start = ticks()
    for message in range(begun, begun + _MESSAGES):
        number = message * (nbytes // chunk)
        if is_first != 0:
            send(mine, number, address, nbytes, chunk, depth, streamed)
        receive(theirs, number, address, nbytes, chunk, depth)
        if is_first == 0:
            send(mine, number, address, nbytes, chunk, depth, streamed)
    return ticks() - start


def main() -> None:
    """Measure all sizes, and print them, or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=64 << 10, help="of a message (65536)")
    parser.add_argument("--chunk", type=int, default=16 << 10, help="bytes (16384)")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if not 0 < options.chunk <= _RINGS[0] // 2 or options.chunk % 64 or options.bytes < 1 or options.bytes % options.chunk:
        parser.error(f"--chunk is a multiple of 64 up to {_RINGS[0] // 2}, and --bytes one of it")
    rows = [trip()]
    for ring in _RINGS:
        rows += [half_a_round_trip(options.bytes, options.chunk, ring, streamed) for streamed in (0, 1)]
    rows.append(trip())
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        found = {"date": time.strftime("%Y-%m-%d"), "l2_bytes": l2_bytes(), "rows": rows}
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


Row = dict[str, float | str]


def trip() -> Row:
    """One way of a flag, the least of some."""

    def run(mine: int, theirs: int, is_first: int) -> int:
        return int(entry(bounce)(mine, theirs, 0, 1 - is_first, _TRIPS, int(_SECONDS * 1e6 * ticks_per_us())))

    return {"what": "flag", "us": round(_on_two_cores(run) / 2, 3)}


def half_a_round_trip(nbytes: int, chunk: int, ring: int, streamed: int) -> Row:
    """One way of a message, the least of some repetitions."""

    def run(mine: int, theirs: int, is_first: int) -> int:
        data = mmap.mmap(-1, nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        shape = nbytes, chunk, ring // chunk, streamed
        return min(entry(play)(mine, theirs, is_first, address, *shape, turn * _MESSAGES) for turn in range(_REPEATS))

    us = _on_two_cores(run) / _MESSAGES / 2
    return {"what": "streamed" if streamed else "plain", "ring KiB": ring >> 10, "us": round(us, 2)}


def _on_two_cores(run: Callable[[int, int, int], int]) -> float:
    """Have two processes do the same with a pipe each; what it took the first one, in microseconds."""
    shared = mmap.mmap(-1, 2 * (_ROOM + mmap.PAGESIZE))
    pipes = [ctypes.addressof(ctypes.c_char.from_buffer(shared)) + end * (_ROOM + mmap.PAGESIZE) for end in (0, 1)]
    cores = sorted(os.sched_getaffinity(0))
    other = os.fork()
    signal.alarm(_SECONDS)
    if other == 0:
        os.sched_setaffinity(0, {cores[-1]})
        run(pipes[1], pipes[0], 0)
        os._exit(0)
    try:
        os.sched_setaffinity(0, {cores[0]})
        return float(run(pipes[0], pipes[1], 1)) / ticks_per_us()
    finally:
        os.sched_setaffinity(0, set(cores))
        os.waitpid(other, 0)


if __name__ == "__main__":
    main()
