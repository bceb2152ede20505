"""Keeping Python's collector of cycles away from what an import makes.

Importing us makes some 30,000 objects that stay until the process ends. Meanwhile the collector would go over them several times, and the
interpreter, when it ends, would take each of them apart, which takes it 40 ms.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_FEW = 30_000
"""Objects up to which the import is at the start of a program: the interpreter makes 5,000, NumPy 13,000 more."""


@contextmanager
def at_rest() -> Iterator[None]:
    """Collect nothing meanwhile, and set what is there in the end aside for good.

    In a program that has made much before, nothing is set aside: objects of its own among them could never be collected.
    """
    was_enabled, is_start = gc.isenabled(), len(gc.get_objects()) < _FEW
    gc.disable()
    try:
        yield
    finally:
        if is_start:
            gc.freeze()
        if was_enabled:
            gc.enable()
