"""Every kind of call with more elements than 32 bits count, on memory that is there only once.

A block is 2 GiB of addresses at which the same 8 MiB lie again and again, and behind them a page of its own. Whatever order its parts
arrive in, all that are there hold the same in the end; and what is counted in 32 bits never comes to the last page.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ncclx_mpi import MPI

PAGE = mmap.PAGESIZE
PERIOD = 8 << 20
REPEATED = 1 << 31
BLOCK = REPEATED + PAGE
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def values_of(factor: int, first: int) -> list[npt.NDArray[np.uint8]]:
    """What a block is filled with."""
    return [(np.arange(length) * factor + first).astype(np.uint8) for length in (PERIOD, PAGE)]


class Blocks:
    """So many blocks, one behind the other: the array of all, and of each what is there."""

    def __init__(self, count: int, fill: int = 0) -> None:
        self.nbytes = count * BLOCK
        self._fd = os.memfd_create("blocks")
        os.ftruncate(self._fd, count * (PERIOD + PAGE))
        self.address = self._map(0, self.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
        for block in range(count):
            start, place = self.address + block * BLOCK, block * (PERIOD + PAGE)
            for offset in range(0, REPEATED, PERIOD):
                self._map(start + offset, PERIOD, mmap.MAP_SHARED | _MAP_FIXED, self._fd, place)
            self._map(start + REPEATED, PAGE, mmap.MAP_SHARED | _MAP_FIXED, self._fd, place + PERIOD)
        memory = (ctypes.c_char * self.nbytes).from_address(self.address)
        self.array = np.frombuffer(memory, np.uint8)
        for block in range(count):
            self.fill(block, fill, block)

    def _map(self, address: int, nbytes: int, flags: int, fd: int, offset: int) -> int:
        found = libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
        assert found and found != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
        return int(found)

    def parts(self, block: int) -> list[npt.NDArray[np.uint8]]:
        """What is repeated in a block, and the page at its end."""
        mine = self.array[block * BLOCK : (block + 1) * BLOCK]
        return [mine[:PERIOD], mine[REPEATED:]]

    def fill(self, block: int, factor: int, first: int) -> None:
        for part, values in zip(self.parts(block), values_of(factor, first), strict=True):
            part[...] = values

    def has(self, block: int, *wanted: npt.NDArray[np.uint8]) -> bool:
        return all(np.array_equal(*pair) for pair in zip(self.parts(block), wanted, strict=True))

    def close(self) -> None:
        self.array = np.zeros(0, np.uint8)
        libc.munmap(self.address, self.nbytes)
        os.close(self._fd)


class Job:
    """Two ranks: what each gives, a block for all or one for each, and where it receives."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.other = comm, comm.rank, 1 - comm.rank
        self.one, self.each = Blocks(1, comm.rank + 1), Blocks(2, comm.rank + 3)
        self.got, self.many = Blocks(1), Blocks(2)
        self.all = self.one, self.each, self.got, self.many

    def reset(self) -> None:
        self.got.fill(0, 0, 0)
        for block in range(2):
            self.many.fill(block, 0, 0)

    def is_from(self, rank: int) -> bool:
        """What a rank has for all is what was received."""
        return self.got.has(0, *values_of(rank + 1, 0))

    def are_blocks_for_me(self) -> bool:
        """What all ranks have for this one is what was received."""
        return all(self.many.has(rank, *values_of(rank + 3, self.rank)) for rank in range(2))

    def is_reduced(self, function: Any) -> bool:
        return self.got.has(0, *map(function, values_of(1, 0), values_of(2, 0)))


def send(job: Job) -> bool:
    if job.rank == 0:
        job.comm.Send(job.one.array, 1)
        return True
    status = MPI.Status()
    job.comm.Recv(job.got.array, 0, status=status)
    assert status.Get_count(MPI.BYTE) == status.Get_elements(MPI.BYTE) == status.count == BLOCK
    return job.is_from(0)


def bcast(job: Job) -> bool:
    array = job.one.array if job.rank == 1 else job.got.array
    job.comm.Bcast([array, BLOCK, MPI.BYTE], 1)
    return job.rank == 1 or job.is_from(1)


def derived(job: Job) -> bool:
    """One element of so many bytes, or as many elements as a 32-bit number counts and 4,097 more; probed for and received by requests."""
    whole, column = MPI.BYTE.Create_contiguous(BLOCK).Commit(), MPI.BYTE.Create_hvector(1, 1, REPEATED).Commit()
    assert whole.Get_size() == whole.extent == BLOCK and MPI.BYTE.Create_hvector(3, REPEATED, BLOCK).Get_size() == 3 * REPEATED
    assert MPI.BYTE.Create_hvector(3, REPEATED, BLOCK).extent == 2 * BLOCK + REPEATED
    if job.rank == 0:
        job.comm.Isend([job.one.array, 1, whole], 1).Wait()
        return True
    status, message = MPI.Status(), job.comm.Mprobe(0)
    message.Irecv([job.got.array, BLOCK, column]).Wait(status)
    assert (status.Get_count(whole), status.Get_count(column), status.Get_elements(whole)) == (1, BLOCK, BLOCK)
    return job.is_from(0)


def persistent(job: Job) -> bool:
    requests = [job.comm.Send_init(job.one.array, job.other), job.comm.Recv_init(job.got.array, job.other)]
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    return job.is_from(job.other)


def partitioned(job: Job) -> bool:
    requests = [
        job.comm.Psend_init([job.one.array, MPI.BYTE], 2, job.other, 1),
        job.comm.Precv_init([job.got.array, MPI.BYTE], 2, job.other, 1),
    ]
    MPI.Prequest.Startall(requests)
    requests[0].Pready_range(0, 1)
    MPI.Request.Waitall(requests)
    return job.is_from(job.other)


def gather(job: Job) -> bool:
    job.comm.Gather(job.one.array, job.many.array if job.rank == 0 else None)
    return job.rank == 1 or all(job.many.has(rank, *values_of(rank + 1, 0)) for rank in range(2))


def scatter(job: Job) -> bool:
    job.comm.Scatter(job.each.array if job.rank == 0 else None, job.got.array)
    return job.got.has(0, *values_of(3, job.rank))


def allgather(job: Job) -> bool:
    job.comm.Allgather(job.one.array, job.many.array)
    return all(job.many.has(rank, *values_of(rank + 1, 0)) for rank in range(2))


def allgatherv(job: Job) -> bool:
    job.comm.Allgatherv(job.one.array, [job.many.array, [BLOCK, BLOCK], [BLOCK, 0], MPI.BYTE])
    return all(job.many.has(rank, *values_of(2 - rank, 0)) for rank in range(2))


def alltoall(job: Job) -> bool:
    job.comm.Alltoall(job.each.array, job.many.array)
    return job.are_blocks_for_me()


def alltoallv(job: Job) -> bool:
    job.comm.Ialltoallv([job.each.array, [BLOCK, BLOCK]], [job.many.array, [BLOCK, BLOCK]]).Wait()
    return job.are_blocks_for_me()


def alltoallw(job: Job) -> bool:
    where = [BLOCK, BLOCK], [0, BLOCK], [MPI.BYTE] * 2
    job.comm.Alltoallw([job.each.array, *where], [job.many.array, *where])
    return job.are_blocks_for_me()


def neighbors(job: Job) -> bool:
    grid = job.comm.Create_cart([2], [True])  # either neighbour is the other rank
    grid.Neighbor_allgather(job.one.array, job.many.array)
    grid.Free()
    return all(job.many.has(block, *values_of(job.other + 1, 0)) for block in range(2))


def reduce(job: Job) -> bool:
    job.comm.Reduce(job.one.array, job.got.array, MPI.MAX, 1)
    return job.rank == 0 or job.is_reduced(np.maximum)


def allreduce(job: Job) -> bool:
    job.comm.Allreduce(job.one.array, job.got.array, MPI.SUM)
    return job.is_reduced(np.add)


def reduce_scatter(job: Job) -> bool:
    job.comm.Reduce_scatter(job.each.array, job.got.array, [BLOCK, BLOCK], MPI.MIN)
    return job.got.has(0, *map(np.minimum, values_of(3, job.rank), values_of(4, job.rank)))


def scan(job: Job) -> bool:
    job.comm.Scan([job.one.array, BLOCK, MPI.BYTE], [job.got.array, BLOCK, MPI.BYTE], MPI.BOR)
    return job.is_from(0) if job.rank == 0 else job.is_reduced(np.bitwise_or)


def window(job: Job) -> bool:
    win = MPI.Win.Create(job.many.array, comm=job.comm)
    win.Fence()
    win.Put(job.one.array, job.other, [BLOCK, BLOCK, MPI.BYTE])
    win.Fence()
    win.Get(job.got.array, job.other, BLOCK)
    win.Fence()
    is_what_was_put = job.is_from(job.rank) and job.many.has(1, *values_of(job.other + 1, 0))
    if job.rank == 0:
        win.Accumulate(job.one.array, 1, [BLOCK, BLOCK], MPI.MAX)
    win.Fence()
    win.Free()
    return is_what_was_put


def packing(job: Job) -> bool:
    whole = MPI.BYTE.Create_contiguous(BLOCK).Commit()
    assert whole.Pack(job.one.array, job.many.array, 0, job.comm) == whole.Pack_size(1, job.comm) == BLOCK
    assert whole.Unpack(job.many.array, 0, job.got.array, job.comm) == BLOCK
    return job.is_from(job.rank)


def file(job: Job) -> bool:
    """To where nothing is kept: the kernel takes fewer than 2 GiB at once."""
    null = MPI.File.Open(job.comm, "/dev/null", MPI.MODE_WRONLY)
    status = MPI.Status()
    null.Write_at(0, job.one.array, status)
    null.Close()
    return bool(status.Get_count(MPI.BYTE) == BLOCK)


@pytest.mark.ranks(2, timeout=600)
def test_counts_beyond_32_bits(comm: Any, full: bool) -> None:
    job = Job(comm)
    try:
        for call in QUICK if not full else ALL:
            job.reset()
            assert call(job), call.__name__
            comm.Barrier()
    finally:
        for each in job.all:
            each.close()


QUICK = send, bcast
ALL = (
    *QUICK, derived, persistent, partitioned, gather, scatter, allgather, allgatherv, alltoall, alltoallv, alltoallw, neighbors, reduce,
    allreduce, reduce_scatter, scan, window, packing, file,
)  # fmt: skip
