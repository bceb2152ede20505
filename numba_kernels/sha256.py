"""SHA-256 for names of files and folders, without OpenSSL: ``hashlib`` loads that at its import, which takes 3 ms of each start."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["sha256"]

_PROVIDERS = ("_sha2", "_sha256", "hashlib")
"""Python's own implementation, as its releases from 3.12 on and those before call it; a build may lack it."""


def _find() -> Any:
    for name in _PROVIDERS:
        try:
            return importlib.import_module(name).sha256
        except (ImportError, AttributeError):
            continue
    raise ImportError("this Python has no SHA-256")


if TYPE_CHECKING:
    from hashlib import sha256
else:
    sha256 = _find()
