"""Handles of device memory: asked for once, mapped once, checked by buffer id, closed when nothing refers to them any more."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ncclx_mpi.gpu_memory.peers import CudaIpc, Place, Unreachable
from numba_kernels.cuda.driver import HANDLE_BYTES, DriverError, Memory

GPU = bytes(range(16))
PEER = 4711


class Driver:
    """The functions that the transport calls; what was opened and not closed is in `open_now`."""

    def __init__(self) -> None:
        self.exports = 0
        self.opens = 0
        self.open_now: dict[int, bytes] = {}
        self.device: int | None = 0
        self.opened_on: dict[int, int | None] = {}
        self.refuses = False
        self._next = itertools.count(0x10000, 0x10000)

    def export(self, base: int) -> bytes:
        if self.refuses:
            raise DriverError(1, "no")
        self.exports += 1
        return base.to_bytes(HANDLE_BYTES, "little")

    def open(self, handle: bytes) -> int:
        if self.refuses:
            raise DriverError(217, "peer access is not supported")
        self.opens += 1
        address = next(self._next)
        self.open_now[address] = handle
        self.opened_on[address] = self.device
        return address

    def current_device(self) -> int | None:
        return self.device

    def use(self, device: int) -> None:
        self.device = device

    def close(self, address: int) -> None:
        assert self.opened_on[address] == self.device
        del self.open_now[address]


def make(**settings: Any) -> tuple[CudaIpc, Driver]:
    driver = Driver()
    return CudaIpc(driver, **settings), driver  # type: ignore[arg-type]


def place(base: int, nbytes: int = 0x1000, buffer_id: int = 1, offset: int = 0) -> Place:
    return Place(base, offset, nbytes, buffer_id, base.to_bytes(HANDLE_BYTES, "little"))


def test_a_place_is_an_allocation_and_an_offset() -> None:
    ipc, driver = make()
    memory = Memory(True, 0, 0x5000, 0x1000, 7, True)
    found = ipc.place(0x5123, memory)
    assert found == Place(0x5000, 0x123, 0x1000, 7, (0x5000).to_bytes(HANDLE_BYTES, "little"))
    assert found.address == 0x5123
    ipc.place(0x5200, memory)
    assert driver.exports == 1
    ipc.place(0x5200, memory._replace(buffer_id=8))
    assert driver.exports == 2


def test_memory_that_cannot_be_exported_has_no_place() -> None:
    ipc, driver = make()
    assert ipc.place(0x5000, Memory(True, 0, 0x5000, 0x1000, 7, False)) is None
    driver.refuses = True
    assert ipc.place(0x5000, Memory(True, 0, 0x5000, 0x1000, 7, True)) is None


def test_an_allocation_is_mapped_once() -> None:
    ipc, driver = make()
    first = ipc.reach(PEER, GPU, place(0x5000))
    assert ipc.reach(PEER, GPU, place(0x5000, offset=64)) is first
    assert ipc.reach(PEER + 1, GPU, place(0x5000)) is not first
    assert driver.opens == 2


def test_a_mapping_is_for_the_device_that_is_current() -> None:
    ipc, driver = make()
    on_first = ipc.reach(PEER, GPU, place(0x5000))
    driver.use(1)
    on_second = ipc.reach(PEER, GPU, place(0x5000))
    assert (on_first.device, on_second.device) == (0, 1)
    assert len(driver.open_now) == 2
    assert ipc.reach(PEER, GPU, place(0x5000)) is on_second
    assert not on_first.is_retired
    later = ipc.reach(PEER, GPU, place(0x5000, buffer_id=2))
    assert on_first.is_retired and on_second.is_retired
    assert set(driver.open_now) == {later.address}
    driver.device = None
    ipc.close()
    assert not driver.open_now


@pytest.mark.parametrize("later", [place(0x5000, buffer_id=2), place(0x4800, buffer_id=2), place(0x5800, buffer_id=2)])
def test_memory_that_took_the_place_of_other_memory_is_mapped_anew(later: Place) -> None:
    ipc, driver = make()
    first = ipc.reach(PEER, GPU, place(0x5000))
    elsewhere = ipc.reach(PEER, GPU, place(0x9000, buffer_id=9))
    second = ipc.reach(PEER, GPU, later)
    assert first.is_retired and not elsewhere.is_retired
    assert set(driver.open_now) == {second.address, elsewhere.address}


def test_what_is_in_use_is_closed_later() -> None:
    ipc, driver = make()
    first = ipc.reach(PEER, GPU, place(0x5000))
    assert ipc.borrow([first])
    ipc.reach(PEER, GPU, place(0x5000, buffer_id=2))
    assert first.is_retired and first.address in driver.open_now
    assert not ipc.borrow([first])
    ipc.give_back([first])
    assert first.address not in driver.open_now


def test_the_longest_unused_mappings_go_first() -> None:
    ipc, driver = make(mappings=3)
    found = [ipc.reach(PEER, GPU, place(base, buffer_id=base)) for base in (0x10000, 0x20000, 0x30000)]
    assert ipc.borrow(found[1:2])
    assert ipc.reach(PEER, GPU, place(0x10000, buffer_id=0x10000)) is found[0]
    for base in (0x40000, 0x50000):
        ipc.reach(PEER, GPU, place(base, buffer_id=base))
    assert [mapping.is_retired for mapping in found] == [True, False, True]
    assert len(driver.open_now) == 3
    ipc.give_back(found[1:2])
    ipc.close()
    assert not driver.open_now


def test_what_cannot_be_mapped_is_explained() -> None:
    ipc, driver = make()
    driver.refuses = True
    with pytest.raises(Unreachable, match="process 4711 .* cannot be mapped: peer access is not supported"):
        ipc.reach(PEER, GPU, place(0x5000))
    assert "peer access" in ipc.why_not(PEER)
    driver.refuses = False
    ipc.reach(PEER, GPU, place(0x5000))
    assert ipc.why_not(PEER) == ""
