"""Memory of an object as the CPU uses it for a while: what is in a GPU's is copied there and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ncclx_mpi.arguments import bounce_buffers, gpu_packing
from ncclx_mpi.buffers.kinds import CPU
from ncclx_mpi.buffers.source import Source, open_source
from ncclx_mpi.gpu_memory.memory import DeviceMemory
from ncclx_mpi.gpu_memory.staging import Lease


@contextmanager
def reading(obj: object) -> Iterator[Source]:
    """The memory of an object, to read from; a copy of a GPU's."""
    found = open_source(obj, writable=False, with_format=False)
    yield found if found.lent is None else _copied(found, found.lent, gpu_packing.lease(found.lent, found.nbytes))


@contextmanager
def writing(obj: object) -> Iterator[Source]:
    """The memory of an object, to write to; of a GPU's a copy, which is put back at the end."""
    found = open_source(obj, writable=True, with_format=False)
    if found.lent is None:
        yield found
        return
    room = gpu_packing.lease(found.lent, found.nbytes)
    yield _copied(found, found.lent, room)
    bounce_buffers.write(found.lent, [bounce_buffers.run(found.address, room.address, found.nbytes)], room)


def _copied(found: Source, memory: DeviceMemory, room: Lease) -> Source:
    """A copy in `room` of what is in a GPU's memory."""
    bounce_buffers.read(memory, [bounce_buffers.run(found.address, room.address, found.nbytes)], room)
    return found._replace(address=room.address, owner=room, device=CPU, lent=None)
