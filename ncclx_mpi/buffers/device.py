"""Whose memory an address is, where an object says that it is a GPU's.

The protocols cannot be trusted for that: objects over host memory speak them too. So the CUDA driver is asked, if the process
has loaded it; without it no address can be a GPU's. Reading one here would end the program.
"""

from __future__ import annotations

from numba_kernels.cuda import driver

CPU, CUDA, CUDA_HOST, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 11, 13
"""Device types, numbered as in DLPack."""

ON_HOST = (CPU, CUDA_HOST, ROCM_HOST, CUDA_MANAGED)


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
    using = driver.current()
    found = None if using is None else using.memory(address)
    return found is not None and found.is_device
