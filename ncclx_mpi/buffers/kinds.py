"""Kinds of devices that an object can say its memory is on, numbered as in DLPack."""

from __future__ import annotations

CPU, CUDA, CUDA_HOST, ROCM_HOST, CUDA_MANAGED = 1, 2, 3, 11, 13
ON_HOST = (CPU, CUDA_HOST, ROCM_HOST, CUDA_MANAGED)
"""What the CPU can read."""

ON_GPU = (CUDA, CUDA_MANAGED)
"""What the CUDA driver is asked about."""


def check_kind(device: int) -> None:
    """Raise BufferError for memory of devices that neither the CPU nor CUDA can reach."""
    if device != CUDA and device not in ON_HOST:
        raise BufferError(f"dlpack: memory of devices of type {device} cannot be communicated; copy it to the host first")
