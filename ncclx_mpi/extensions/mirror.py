"""Host memory that stands for a range of a GPU's memory, byte by byte; what is needed of it is copied.

For calls that find out when they execute which bytes they need; other ones pack what they send.
"""

from __future__ import annotations

from collections.abc import Iterable

from ncclx_mpi.buffers import passage, staged
from ncclx_mpi.device.memory import DeviceMemory

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
        self._lease = staged.lease(device, nbytes)
        self.shift = self._lease.address - first

    def load(self, ranges: Iterable[Range]) -> None:
        """Copy from the GPU, after what the array's stream holds; complete on return."""
        passage.read(self._device, self._runs(ranges), self._lease)

    def store(self, ranges: Iterable[Range]) -> None:
        """Copy to the GPU, after what the array's stream holds; complete on return."""
        passage.write(self._device, self._runs(ranges), self._lease)

    def _runs(self, ranges: Iterable[Range]) -> list[staged.Piece]:
        return [passage.run(address, address + self.shift, nbytes) for address, nbytes in ranges if nbytes]
