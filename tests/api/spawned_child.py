"""What the tests of started processes start."""

from __future__ import annotations

import os
import sys

import numpy as np
from mpi4py import MPI


def take_part_in_everything(inter: MPI.Intercomm) -> None:
    """The other side of the test of the same order."""
    comm = MPI.COMM_WORLD
    root = MPI.ROOT if comm.rank == 0 else MPI.PROC_NULL
    inter.bcast([os.getcwd(), sys.argv, MPI.COMM_WORLD.Get_attr(MPI.APPNUM)], root)
    data, room = np.full(300_000, comm.rank, dtype=np.float64), np.empty(300_000)
    sending = [inter.Isend(data, rank, comm.rank) for rank in range(inter.remote_size)]
    for rank in range(inter.remote_size):
        inter.Recv(room, rank)
        assert (room == rank).all()
    MPI.Request.Waitall(sending)
    total = np.zeros(2)
    inter.Allreduce(np.ones(2), total)
    assert total.tolist() == [2.0, 2.0]
    inter.allgather(f"child {comm.rank}")
    twin = inter.Dup()
    twin.barrier()
    twin.Free()
    merged = inter.Merge(True)
    merged.allgather(merged.rank)
    many = np.zeros(50_000)
    merged.Allreduce(np.full(50_000, merged.rank, dtype=np.float64), many)
    odd = merged.Split(merged.rank % 2, -merged.rank)
    odd.allgather(merged.rank)
    near = merged.Split_type(MPI.COMM_TYPE_SHARED)
    assert near.size == comm.size
    again = near.Create_intercomm(0, merged, 0)
    assert again.allgather(merged.rank) == [0, 1]
    window = MPI.Win.Create(np.zeros(8), comm=merged)
    window.Fence()
    window.Free()
    for each in (again, near, odd, merged):
        each.Disconnect()


def main() -> None:
    inter = MPI.Comm.Get_parent()
    if sys.argv[1] == "all":
        take_part_in_everything(inter)
    elif sys.argv[1] == "number":
        inter.allgather(MPI.COMM_WORLD.Get_attr(MPI.APPNUM))
    elif sys.argv[1] == "wait":
        inter.bcast(os.getpid(), MPI.ROOT)
        inter.recv(source=0)
    inter.Disconnect()
    assert MPI.Comm.Get_parent() == MPI.COMM_NULL


main()
