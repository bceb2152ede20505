"""Numba makes what its modules name: another name there, for a while, has it make something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.compiler_lock import global_compiler_lock


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Have an attribute of Numba's be `value` for what is compiled or loaded meanwhile; no other thread compiles."""
    with global_compiler_lock:
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, before)
