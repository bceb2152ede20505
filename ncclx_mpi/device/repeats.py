"""Blocking collectives that are made again with the same arrays, found by what the program gives.

A loop makes the same calls again and again. To resolve their arguments costs several times what the GPU takes for small arrays: a library
is asked for a capsule, the driver for what it knows of an address, and an offer is made of that. What came of it is kept, by all that
it depends on. What can have changed unseen is looked at in each call: in which stream an array is used, whether it is being captured, and
whether the address still belongs to the same allocation.

The others notice nothing: each rank for itself shows the same descriptor as when the call was resolved. Arrays are not kept alive.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ncclx_mpi.device.collectives import cut_of
from ncclx_mpi.device.parts import Cut
from ncclx_mpi.device.process import current
from ncclx_mpi.device.station import Shown, Station, Work, station
from ncclx_mpi.gpu_memory.streams import facts_of, handles_of
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.cuda import driver as drivers
from numba_kernels.rows import NamedTuple

_KEPT = 1024
"""Calls that a communicator keeps."""


class _Repeat(NamedTuple):
    """A call that was carried out on devices.

    Attributes
    ----------
    is_as_before
        Whether the thread, the streams and the memory are what they were.
    arrays
        Which of the program's arguments are arrays.
    """

    station: Station
    work: Work
    shown: Shown
    is_as_before: Callable[[], bool]
    arrays: Sequence[int]


class Repeats:
    """The calls of one communicator that can be repeated; see the module's text."""

    def __init__(self, comm: NativeComm) -> None:
        self._comm = comm
        self._calls: dict[Hashable, _Repeat] = {}

    def keep(self, key: Hashable, work: Work, arguments: Sequence[Any]) -> None:
        """Keep a call that was just carried out, and depends on `key` only, and on the streams in which its arrays are used."""
        place, driver = station(self._comm, work.driver), work.driver
        with current(driver, work.device):
            descriptor = None if place.reason else place.describe(work)
            if descriptor is None:
                return
            known = [(array.address, array.memory.buffer_id) for array in work.arrays or () if array is not None]
            watch = driver.watch(work.streams, known)
        if len(self._calls) >= _KEPT:
            self._calls.clear()
        arrays = [k for k, argument in enumerate(arguments) if argument is not None and facts_of(argument) is not None]
        self._calls[key] = _Repeat(place, work, Shown(descriptor), watch, arrays)

    def carry_out(self, key: Hashable, arguments: Sequence[Any]) -> Cut | None:
        """Carry a call out as when it was kept; None if there is none, or something is not as it was: nothing has been done then.

        Returns and raises what :func:`ncclx_mpi.device.collectives.carry_out` does.
        """
        found = self._calls.get(key)
        if found is None:
            return None
        place, work, shown, is_as_before, arrays = found
        if place.reason or place.driver is not drivers.current():
            return None
        if handles_of([arguments[k] for k in arrays], work.device) != work.streams or not is_as_before():
            return None
        return cut_of(place.meet(work, shown))
