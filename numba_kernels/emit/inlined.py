"""Kernels that only other kernels call: kept as LLVM's bitcode, which becomes a part of its callers' machine code.

Numba would make machine code of each for itself as well, and a wrapper by which Python could call it: together
a fifth of the time in which a cold cache is filled.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from numba.core.codegen import JITCodeLibrary, JITCPUCodegen

from numba_kernels.emit.replaced import replaced


class _Inlined(JITCodeLibrary):  # type: ignore[misc]
    """A library without addresses."""

    @property
    def codegen(self) -> Any:
        """What makes libraries, but for the environments that machine code looks for: who takes this in has them."""
        return _WithoutEnvironments(super().codegen)

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """0: there is none."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """What the disk cache keeps."""
        self._ensure_finalized()
        return self.name, "bitcode", self._get_module_for_linking().as_bitcode()


class _WithoutEnvironments:
    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """There is no machine code that would look for it."""


def inlined(is_inlined: bool) -> AbstractContextManager[None]:
    """Have what is compiled or loaded meanwhile be for other kernels only, or not."""
    return replaced(JITCPUCodegen, "_library_class", _Inlined if is_inlined else JITCodeLibrary)
