"""Device memory between the processes of a node: exported by handle, mapped at first use, kept mapped.

::

    owner                                            importer
      array -> allocation (base, buffer id)            handle -> address of the mapping, kept by (device, peer, GPU, base)
      handle of the allocation, kept by base           checked at each use: the same buffer id?  else close, open anew
      offset of the array in it              ------->  mapping + offset

Libraries carve many arrays out of one allocation, and opening a handle always maps the whole allocation: so what travels is a
:class:`Place`. A buffer id is never given twice in a process, so it tells memory that was freed, and allocated again at the same
address, from what a mapping shows. A mapping belongs to the device that was current when it was opened.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from numba_kernels.cuda.driver import HANDLE_BYTES, Driver, DriverError, Memory
from numba_kernels.layout import words
from numba_kernels.rows import NamedTuple

MAPPINGS = 256
"""Allocations of peers that a process keeps mapped. What is mapped stays allocated after its owner has freed it."""

PLACE = words("Place", f"base offset nbytes buffer_id handle*{HANDLE_BYTES // 8}")
"""A :class:`Place` in words, as ranks show it to each other."""


_Key = tuple[int | None, int, bytes, int]
"""The device that a mapping is for, the peer, its GPU, and where the allocation begins there."""


class Place(NamedTuple):
    """Where an array is, for the other processes of the node.

    Attributes
    ----------
    base, nbytes
        The allocation, as its owner sees it.
    offset
        Of the array in it.
    buffer_id
        The owner's number of the allocation.
    handle
        What maps it.
    """

    base: int
    offset: int
    nbytes: int
    buffer_id: int
    handle: bytes

    @property
    def address(self) -> int:
        """Where its owner has the array."""
        return self.base + self.offset


class Mapping:
    """An allocation of a peer, mapped in this process.

    Attributes
    ----------
    address
        Where it begins here.
    device
        Which of this process's GPUs can use it.
    place
        What was opened.
    users
        Operations under way that refer to it; it is not closed before they are through.
    is_retired
        It is closed, or will be: nothing new may refer to it.
    """

    __slots__ = ("address", "device", "is_retired", "place", "users")

    def __init__(self, address: int, device: int | None, place: Place) -> None:
        self.address = address
        self.device = device
        self.place = place
        self.users = 0
        self.is_retired = False

    def overlaps(self, place: Place) -> bool:
        """Whether two allocations of one owner share addresses: then the older one is gone."""
        return self.place.base < place.base + place.nbytes and place.base < self.place.base + self.place.nbytes


class Unreachable(Exception):
    """A peer's memory cannot be mapped here; the message says why."""


class CudaIpc:
    """Exports this process's device memory, and maps that of its peers. It moves no messages: it is no :class:`~transports.base.Transport`.

    Parameters
    ----------
    driver
        The driver functions. Handles are opened on its current device.
    mappings
        How many allocations of peers to keep mapped.
    """

    def __init__(self, driver: Driver, mappings: int = MAPPINGS) -> None:
        self._driver = driver
        self._most = mappings
        self._guard = threading.Lock()
        self._exported: dict[int, tuple[int, bytes]] = {}
        self._mapped: OrderedDict[_Key, Mapping] = OrderedDict()
        self._reasons: dict[int, str] = {}

    def why_not(self, peer: int) -> str:
        """Why memory of process `peer` could not be mapped when that was last tried, an empty string if it could."""
        return self._reasons.get(peer, "")

    def place(self, address: int, memory: Memory) -> Place | None:
        """The place of what lies at `address`, None for memory that cannot be exported.

        `memory` is what the driver says of the address now; the handle of an allocation is asked for once.
        """
        if not memory.is_exportable:
            return None
        buffer_id, handle = self._exported.get(memory.base, (0, b""))
        if buffer_id != memory.buffer_id or not handle:
            try:
                handle = self._driver.export(memory.base)
            except DriverError:
                return None
            self._exported[memory.base] = memory.buffer_id, handle
        return Place(memory.base, address - memory.base, memory.nbytes, memory.buffer_id, handle)

    def reach(self, peer: int, uuid: bytes, place: Place) -> Mapping:
        """The mapping for the current device of the allocation of `place` of process `peer`, whose memory is on GPU `uuid`.

        Raises
        ------
        Unreachable
            It cannot be mapped; asked again, the driver is asked again.
        """
        device = self._driver.current_device()
        key = device, peer, uuid, place.base
        with self._guard:
            found = self._mapped.get(key)
            if found is not None and found.place.buffer_id == place.buffer_id:
                self._mapped.move_to_end(key)
                return found
            self._retire([other for other in self._mapped if other[1:3] == key[1:3] and self._is_gone(other, place)])
            try:
                address = self._driver.open(place.handle)
            except DriverError as error:
                self._reasons[peer] = f"memory of process {peer} on GPU {uuid.hex()} cannot be mapped: {error}"
                raise Unreachable(self._reasons[peer]) from error
            self._reasons.pop(peer, None)
            unused = [other for other, mapping in self._mapped.items() if not mapping.users]
            self._retire(unused[: max(0, len(self._mapped) + 1 - self._most)])
            made = self._mapped[key] = Mapping(address, device, place)
            return made

    def borrow(self, mappings: Iterable[Mapping]) -> bool:
        """Keep mappings open until :meth:`give_back`; False, and nothing is kept, if one is retired."""
        mappings = tuple(mappings)
        with self._guard:
            if any(mapping.is_retired for mapping in mappings):
                return False
            for mapping in mappings:
                mapping.users += 1
        return True

    def give_back(self, mappings: Iterable[Mapping]) -> None:
        """Nothing under way refers to these mappings on behalf of the caller any more."""
        with self._guard:
            for mapping in mappings:
                mapping.users -= 1
                if mapping.is_retired and not mapping.users:
                    self._unmap(mapping)

    def close(self) -> None:
        """Unmap everything; nothing is in flight any more."""
        with self._guard:
            self._retire(list(self._mapped))

    def _is_gone(self, key: _Key, place: Place) -> bool:
        """Whether an allocation that is mapped is gone, as another one of its owner is where it was."""
        mapping = self._mapped[key]
        return mapping.place.buffer_id != place.buffer_id and mapping.overlaps(place)

    def _retire(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            mapping = self._mapped.pop(key)
            mapping.is_retired = True
            if not mapping.users:
                self._unmap(mapping)

    def _unmap(self, mapping: Mapping) -> None:
        before = self._driver.current_device()
        if mapping.device not in (None, before):
            self._driver.use(mapping.device)
        try:
            self._driver.close(mapping.address)
        finally:
            if before not in (None, mapping.device):
                self._driver.use(before)
