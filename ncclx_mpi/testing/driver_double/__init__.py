"""A stand-in for the CUDA driver and for an array library on it: GPU code is tested where there is no GPU."""

from ncclx_mpi.testing.driver_double.arrays import DeviceArray, InterfaceArray, SendOnlyArray, TensorArray
from ncclx_mpi.testing.driver_double.double import Double, Violation
from ncclx_mpi.testing.driver_double.memory import DEVICE, MANAGED, PINNED, POOL

__all__ = [
    "DEVICE",
    "MANAGED",
    "PINNED",
    "POOL",
    "DeviceArray",
    "Double",
    "InterfaceArray",
    "SendOnlyArray",
    "TensorArray",
    "Violation",
]
