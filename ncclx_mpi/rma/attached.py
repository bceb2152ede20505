"""The memory of a dynamic window: regions that its rank attaches and detaches by itself, at addresses that are displacements.

Each rank writes down its regions in a table in its part of the arena, so that near origins find out before they access it whether memory is
there; what far ones ask for is looked up by the rank that serves them.
"""

from __future__ import annotations

from ncclx_mpi import errors
from ncclx_mpi.buffers.memory import view
from ncclx_mpi.rma.reach import Place, Reach
from numba_kernels.late_numpy import np

MOST_REGIONS = 1024
TABLE_BYTES = 8 * (1 + 2 * MOST_REGIONS)
"""Words of the table: how many regions there are, and address and bytes of each."""


class Regions:
    """The regions of one rank.

    Parameters
    ----------
    rank
        Whose they are, for messages.
    table
        Address of the table, zeroed when nothing is attached.
    """

    def __init__(self, rank: int, table: int) -> None:
        words = view(table, TABLE_BYTES).view(np.int64)
        self._rank = rank
        self._count, self._pairs = words[:1], words[1:].reshape(-1, 2)

    def add(self, address: int, nbytes: int) -> None:
        """Attach a region.

        Raises
        ------
        Exception
            ERR_RMA_ATTACH: it overlaps another one, or there are too many.
        """
        count = int(self._count[0])
        known = self._pairs[:count]
        if ((known[:, 0] < address + nbytes) & (address < known.sum(1))).any():
            errors.fail(
                errors.ERR_RMA_ATTACH, f"rank {self._rank}: {nbytes} bytes at {address:#x} overlap memory that is attached already"
            )
        if count == MOST_REGIONS:
            errors.fail(
                errors.ERR_RMA_ATTACH,
                f"rank {self._rank} has attached {count} regions, all that there can be; detach some",
            )
        self._pairs[count] = address, nbytes
        self._count[0] = count + 1

    def remove(self, address: int) -> None:
        """Detach the region that begins at an address.

        Raises
        ------
        Exception
            ERR_RMA_ATTACH: there is none.
        """
        count = int(self._count[0])
        found = np.flatnonzero(self._pairs[:count, 0] == address)
        if not len(found):
            errors.fail(errors.ERR_RMA_ATTACH, f"rank {self._rank}: no memory that is attached begins at {address:#x}")
        self._pairs[found[0]] = self._pairs[count - 1]
        self._count[0] = count - 1

    def check(self, place: Place) -> None:
        """Raise ERR_RMA_RANGE unless elements lie within one region."""
        low, high = (place.start + bound for bound in place.layout.reach(place.number))
        known = self._pairs[: int(self._count[0])]
        if low < high and not ((known[:, 0] <= low) & (high <= known.sum(1))).any():
            errors.fail(
                errors.ERR_RMA_RANGE,
                f"bytes {low:#x} to {high:#x} are in none of {len(known)} regions that rank {self._rank} has attached",
            )


class Attached:
    """The way to attached memory: another way, where memory is attached.

    Parameters
    ----------
    reach
        The way to all memory of the rank, whose displacements are addresses.
    regions
        What is attached.
    """

    def __init__(self, reach: Reach, regions: Regions) -> None:
        self._reach = reach
        self._regions = regions

    def read(self, place: Place, packed: int) -> None:
        """Copy elements to packed bytes."""
        self._regions.check(place)
        self._reach.read(place, packed)

    def write(self, place: Place, packed: int) -> None:
        """Copy packed bytes to elements."""
        self._regions.check(place)
        self._reach.write(place, packed)
