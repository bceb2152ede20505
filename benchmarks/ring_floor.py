"""What hands bytes from one core to another through a ring in shared memory, by the size of the ring: ``python benchmarks/ring_floor.py``.

Two processes on two cores, compiled, without anything of this library but its copies: a message goes there and back in chunks, each behind
the one before, also from message to message. With ``--swap`` both send at once, and each copies a block of its own, as in an allgather or an
alltoall of two ranks. Where the ring is smaller than the second-level cache of a core, a line that is written was
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
from numba_kernels.memory import copy_lines, write_shared
from transports.shm.caches import l2_bytes
from transports.shm.store_kind import bounce

PIPE = words("Pipe", "posted | consumed | data")
_ROOM = 8 << 20
_RINGS = 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20
_MESSAGES, _REPEATS = 400, 9
_IN_FLIGHT = 4
"""Chunks of a swap."""
_TRIPS = 1000
_SECONDS = 60
"""After which a process that waits for one that is gone ends."""


@kernel("void(int64, int64, int64, int64, int64, int64, int64)")
def send(pipe, number, address, chunk, depth, in_flight, streamed):  # type: ignore[no-untyped-def]
    """Write chunk `number`."""
    while number - load_acquire(pipe + PIPE.consumed) >= in_flight:
        pause()
    write_shared(pipe + PIPE.data + number % depth * chunk, address, chunk, streamed)
    store_release(pipe + PIPE.posted, number + 1)


@kernel("void(int64, int64, int64, int64, int64)")
def receive(pipe, number, address, chunk, depth):  # type: ignore[no-untyped-def]
    """Read it."""
    while load_acquire(pipe + PIPE.posted) <= number:
        pause()
    copy_lines(address, pipe + PIPE.data + number % depth * chunk, chunk)
    store_release(pipe + PIPE.consumed, number + 1)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def play(mine, theirs, is_first, address, nbytes, chunk, depth, streamed, begun):  # type: ignore[no-untyped-def]
    """Hand messages there and back, `begun` of which there were before; ticks of all of them."""
    start, chunks = ticks(), nbytes // chunk
    for message in range(begun, begun + _MESSAGES):
        for part in range(2):
            for k in range(chunks):
                if part != is_first:
                    send(mine, message * chunks + k, address + k * chunk, chunk, depth, depth, streamed)
                else:
                    receive(theirs, message * chunks + k, address + k * chunk, chunk, depth)
    return ticks() - start


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def swap(mine, theirs, address, nbytes, chunk, depth, streamed, begun):  # type: ignore[no-untyped-def]
    """Swap blocks, `begun` of which there were before, and copy an own one; ticks of all of them. Four blocks lie at `address`."""
    start, chunks = ticks(), nbytes // chunk
    for message in range(begun, begun + _MESSAGES):
        for k in range(chunks + 1):
            number = message * chunks + k
            if k < chunks:
                send(mine, number, address + k * chunk, chunk, depth, _IN_FLIGHT, streamed)
            if k == 0:
                copy_lines(address + 3 * nbytes, address + nbytes, nbytes)
            else:
                receive(theirs, number - 1, address + 2 * nbytes + (k - 1) * chunk, chunk, depth)
    return ticks() - start


def main() -> None:
    """Measure all sizes, and print them, or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=64 << 10, help="of a message (65536)")
    parser.add_argument("--chunk", type=int, default=16 << 10, help="bytes (16384)")
    parser.add_argument("--swap", action="store_true", help="both processes send at once")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if not 0 < options.chunk <= _RINGS[0] // 2 or options.chunk % 64 or options.bytes < 1 or options.bytes % options.chunk:
        parser.error(f"--chunk is a multiple of 64 up to {_RINGS[0] // 2}, and --bytes one of it")
    rows = [trip()]
    for ring in _RINGS:
        rows += [message(options.bytes, options.chunk, ring, streamed, options.swap) for streamed in (0, 1)]
    rows.append(trip())
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        found = {
            "date": time.strftime("%Y-%m-%d"),
            "l2_bytes": l2_bytes(),
            "bytes": options.bytes,
            "swap": options.swap,
            "rows": rows,
        }
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


Row = dict[str, float | str]


def trip() -> Row:
    """One way of a flag, the least of some."""

    def run(mine: int, theirs: int, is_first: int) -> int:
        return int(entry(bounce)(mine, theirs, 0, 1 - is_first, _TRIPS, int(_SECONDS * 1e6 * ticks_per_us())))

    return {"what": "flag", "us": round(_on_two_cores(run) / 2, 3)}


def message(nbytes: int, chunk: int, ring: int, streamed: int, is_swap: bool) -> Row:
    """Half a round trip of a message, or a swap of two: the least of some repetitions."""

    def run(mine: int, theirs: int, is_first: int) -> int:
        data = mmap.mmap(-1, 4 * nbytes)
        data.write(bytes([1 + is_first]) * len(data))  # or all pages are the one page of zeros
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        shape = address, nbytes, chunk, ring // chunk, streamed
        if is_swap:
            return int(min(entry(swap)(mine, theirs, *shape, turn * _MESSAGES) for turn in range(_REPEATS)))
        return int(min(entry(play)(mine, theirs, is_first, *shape, turn * _MESSAGES) for turn in range(_REPEATS)))

    us = _on_two_cores(run) / _MESSAGES / (1 if is_swap else 2)
    return {
        "what": f"{'swap' if is_swap else 'message'}, {'streamed' if streamed else 'plain'}",
        "ring KiB": ring >> 10,
        "us": round(us, 2),
    }


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
