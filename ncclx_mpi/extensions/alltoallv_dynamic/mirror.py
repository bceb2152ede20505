"""Host memory that stands for a range of a GPU's memory, byte by byte; what is needed of it is copied.

For calls that find out when they execute which bytes they need; other ones pack what they send.
"""

from __future__ import annotations

from collections.abc import Iterable

from ncclx_mpi.arguments import bounce_buffers, gpu_packing
from ncclx_mpi.gpu_memory.memory import DeviceMemory

Range = tuple[int, int]
"""Address in the GPU's memory, and bytes."""


class Mirror:
    """The mirror of `nbytes` bytes of a GPU from address `first` on.

    Attributes
    ----------
    shift
        What to add to an address of the GPU to get that of its mirror.
    """

    def __init__(self, device: DeviceMemory, first: int, nbytes: int) -> None:
        self._device = device
        self._lease = gpu_packing.lease(device, nbytes)
        self.shift = self._lease.address - first

    def load(self, ranges: Iterable[Range]) -> None:
        """Copy from the GPU, after what the array's stream holds; complete on return."""
        bounce_buffers.read(self._device, self._runs(ranges), self._lease)

    def store(self, ranges: Iterable[Range]) -> None:
        """Copy to the GPU, after what the array's stream holds; complete on return."""
        bounce_buffers.write(self._device, self._runs(ranges), self._lease)

    def _runs(self, ranges: Iterable[Range]) -> list[gpu_packing.Piece]:
        return [bounce_buffers.run(address, address + self.shift, nbytes) for address, nbytes in ranges if nbytes]
