# ranks: none
import numpy as np
from datagrams import Datagrams

from ncclx_mpi.p2p.engine import Engine
from ncclx_mpi.p2p.layout import ANY_SOURCE, ANY_TAG
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory

transports = [Datagrams(rank, 2) for rank in range(2)]
endpoints = {"datagrams": [transport.endpoint() for transport in transports]}


def rank_on_its_own_node(rank: int):
    """The engine of a rank that shares memory with nobody, and its communicator of both ranks."""
    arena = Arena.create(1, [rank], 2)
    arena.join(0)
    engine = Engine(arena, [SharedMemory(arena, rank), transports[rank]], rank, timeout=20, endpoints=endpoints)
    return engine, engine.new_comm(4, [0, 1])


(left, its_comm), (right, comm) = (rank_on_its_own_node(rank) for rank in range(2))
for nbytes in (5, 1_000_000):
    data, room = np.full(nbytes, 7, np.uint8), np.zeros(1_000_000, np.uint8)
    sent = left.start_send(its_comm, data.ctypes.data, nbytes, 1, 3, 0)
    received = right.start_recv(comm, room.ctypes.data, room.size, ANY_SOURCE, ANY_TAG)
    while not (left.done(sent) and right.done(received)):
        left.progress()
        right.progress()
    print(right.result(received), int(room.sum()) // 7)
    left.free(sent)
    right.free(received)
print(left.way_to(1).name, left.way_to(0).name)
