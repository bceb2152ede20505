"""Device arrays that come again: what one was resolved to is kept, by all that its library quickly tells of it.

To resolve an array costs 20 to 50 us: its library is asked for a protocol, the driver for what it knows of the address. A message of
some kilobytes takes less. What can have changed unseen is looked at in every call, as for collectives that are repeated
(:mod:`ncclx_mpi.device.repeats`): in which stream the array is used, and in one compiled call whether that is being captured, whether
the thread's context is the same, and whether the address still belongs to the same allocation. Arrays are not kept alive.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from ncclx_mpi.arguments.buffer import Buffer
from ncclx_mpi.gpu_memory.memory import DeviceMemory
from ncclx_mpi.gpu_memory.streams import are_quickly_told, facts_of, stream_of
from numba_kernels.cuda import driver as drivers
from numba_kernels.cuda.driver import Driver, Memory
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    from ncclx_mpi.api.datatype import Datatype
    from ncclx_mpi.buffers.layout import Layout

_KEPT = 1024
"""Arrays that a process keeps."""


class _Resolved(NamedTuple):
    """What an array was resolved to, and whether the driver still says the same of it."""

    driver: Driver
    known: Memory
    lent: int
    stream: int
    is_as_before: Callable[[], bool]
    address: int
    elements: int
    datatype: Datatype
    layout: Layout
    readonly: bool


_resolved: dict[Hashable, _Resolved] = {}


def find(spec: Any, writable: bool, blocks: int) -> Buffer | None:
    """What ``array``, or ``[array, datatype]``, was resolved to before; None if it was not, or something is not as it was."""
    if not _resolved:
        return None
    key, array = _key(spec, writable, blocks)
    found = _resolved.get(key)
    if found is None:
        return None
    driver, known, lent, handle, is_as_before, address, elements, datatype, layout, readonly = found
    if driver is not drivers.current() or datatype._state is not layout:
        return None
    stream = stream_of(array, known.device)
    if stream.handle != handle or not is_as_before():
        return None
    return Buffer(address, elements, datatype, layout, array, readonly, DeviceMemory(driver, known, lent, stream))


def keep(spec: Any, writable: bool, blocks: int, buffer: Buffer) -> None:
    """Keep what a specification was just resolved to, if it is one that :func:`find` knows."""
    memory = buffer.device
    if memory is None or not buffer.nbytes or not buffer.layout.is_plain:
        return
    key, _ = _key(spec, writable, blocks)
    if key is None or memory.driver.current_device() != memory.device:
        return
    if len(_resolved) >= _KEPT:
        _resolved.clear()
    handle = memory.stream.handle
    watch = memory.driver.watch([handle], [(memory.address, memory.known.buffer_id)])
    resolved = (buffer.origin, buffer.count, buffer.datatype, buffer.layout, buffer.readonly)
    _resolved[key] = _Resolved(memory.driver, memory.known, memory.address, handle, watch, *resolved)


def _key(spec: Any, writable: bool, blocks: int) -> tuple[Hashable, Any]:
    """What finds a specification, and its array; None and None for one that is not kept."""
    array, datatype = spec, None
    if isinstance(spec, list | tuple):
        if len(spec) != 2:
            return None, None
        array, datatype = spec
        if not hasattr(datatype, "_state"):
            return None, None
    kind = type(array)
    if not are_quickly_told(kind):
        return None, None
    try:
        facts = facts_of(array)
    except (AttributeError, RuntimeError):  # of the same library, and no array; or one of a layout that has no address
        return None, None
    return (kind, writable, blocks, datatype and id(datatype), facts), array
