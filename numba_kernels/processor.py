"""The processor that code is compiled for, told from others without asking the compiler."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable

_SAYS = (
    "vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
)  # fmt: skip
"""Lines of ``/proc/cpuinfo`` from which the compiler's choice of instructions follows."""
VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
"""With which a user has Numba compile for another processor."""
_ENOUGH = 16 << 10
"""Bytes of the file that are read: the first processors of it."""


@functools.cache
def name() -> str:
    """Return a text that is another one on processors with other instructions, or if the user has Numba compile for another one."""
    asked = [f"{variable}={os.environ.get(variable, '')}" for variable in VARIABLES]
    return "\n".join([os.uname().machine, *asked, *_description()])


def has(flags: Iterable[str]) -> bool:
    """Whether the system says that this processor has all of these instructions, and lets programs use them."""
    lines = [line.partition(":")[2].split() for line in _description() if line.startswith(("flags", "Features"))]
    return bool(lines) and set(flags) <= set(lines[0])


@functools.cache
def _description() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            text = file.read(_ENOUGH)
    except OSError:
        return [os.uname().version]
    first = text.split("\n\n", 1)[0].split("\n")
    return [line for line in first if line.split("\t")[0].split(":")[0].strip() in _SAYS]
