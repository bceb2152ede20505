"""Whose memory an address is, where an object says that it is a GPU's.

The protocols cannot be trusted for that: objects over host memory speak them too. So the CUDA driver is asked, if the process
has loaded it; without it no address can be a GPU's. Reading one here would end the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

CPU, CUDA, CUDA_HOST, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 11, 13
"""Device types, numbered as in DLPack."""

ON_HOST = (CPU, CUDA_HOST, ROCM_HOST, CUDA_MANAGED)

_DRIVER = "libcuda.so.1"
_MEMORY_TYPE, _IS_MANAGED = 2, 8
_TYPE_HOST = 1


def check_host(address: int, device: int, what: str) -> None:
    """Raise BufferError if an object's memory cannot be read by the CPU.

    Parameters
    ----------
    address, device
        Where the memory is, and the type of device that its object says it has.
    what
        Name of the protocol, for the message.
    """
    if device in ON_HOST or not address:
        return
    if device != CUDA:
        raise BufferError(f"{what}: memory of devices of type {device} cannot be communicated; copy it to the host first")
    if is_device_memory(address):
        raise BufferError(
            f"{what}: address {address:#x} is GPU memory, which this version cannot communicate; "
            "copy it to the host first (cupy.asnumpy, tensor.cpu())"
        )


def is_device_memory(address: int) -> bool:
    """Whether the CUDA driver knows an address as GPU memory that the CPU cannot read."""
    driver = _driver()
    if driver is None:
        return False
    kind = _attribute(driver, _MEMORY_TYPE, address)
    return kind not in (None, _TYPE_HOST) and not _attribute(driver, _IS_MANAGED, address)


def _attribute(driver: Any, number: int, address: int) -> int | None:
    """An attribute of an address, None if the driver does not know it."""
    value = ctypes.c_uint(0)
    status = driver.cuPointerGetAttribute(ctypes.byref(value), ctypes.c_int(number), ctypes.c_ulonglong(address))
    return None if status else value.value


class _Library(ctypes.Structure):
    """The beginning of what ``dl_iterate_phdr`` tells of a loaded library."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("adds", ctypes.c_ulonglong),
    )


class _Search:
    """The CUDA driver as far as this process has loaded it, and how many libraries had been loaded when it was last looked for."""

    driver: Any = None
    adds = -1


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.POINTER(ctypes.c_ulonglong))
def _read_adds(library: Any, _size: int, found: Any) -> int:
    found[0] = library.contents.adds
    return 1


_iterate = ctypes.CDLL(None).dl_iterate_phdr


def _driver() -> Any:
    """The CUDA driver, if something in this process has loaded it: only then can there be GPU memory.

    A search for a library that is not there costs 40 us, so it is repeated only after others were loaded.
    """
    if _Search.driver is None:
        adds = ctypes.c_ulonglong(0)
        _iterate(_read_adds, ctypes.byref(adds))
        if adds.value != _Search.adds:
            with contextlib.suppress(OSError):
                _Search.driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            _Search.adds = adds.value
    return _Search.driver
