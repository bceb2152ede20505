"""Sizes of the processor's caches, as Linux tells them."""

from __future__ import annotations

import os

_CPUS = "/sys/devices/system/cpu"


def l2_bytes(cpus: str = _CPUS) -> int:
    """Bytes of the second-level cache of a core, the smallest one of the cores that this process may run on; 0 if that is not known.

    Containers and virtual machines may hide the folder `cpus`, or parts of it.
    """
    sizes = []
    for cpu in os.sched_getaffinity(0):
        try:
            with open(os.path.join(cpus, f"cpu{cpu}", "cache", "index2", "size"), encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            return 0
        if not text.endswith("K") or not text[:-1].isdecimal():
            return 0
        sizes.append(int(text[:-1]) << 10)
    return min(sizes)
