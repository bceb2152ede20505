"""Layouts of derived datatypes for compiled code."""

from __future__ import annotations

from numba_kernels.layout import words

LAYOUT = words("Layout", "key blocks nblocks size extent run step")
"""What is known of a layout: the address of its Python object, of its typemap (:mod:`numba_kernels.pack`) and how many blocks it has, its
size and extent in bytes, and if its blocks are equal and at equal distances, their bytes and how far apart they are; 0 bytes if not."""
