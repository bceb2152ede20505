"""Messages in small pieces, so that a few bytes are cut as megabytes are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest

from ncclx_mpi.algorithms import PLAN, ROWS
from ncclx_mpi.collectives import halving
from ncclx_mpi.collectives.select import function_of


@contextlib.contextmanager
def in_pieces_of(nbytes: int) -> Iterator[None]:
    """Have all plans cut what they move into segments and chunks of so many bytes."""
    modules = {sys.modules[function_of(row).__module__] for row in ROWS if row.kind == PLAN} | {halving}
    functions = [each for module in modules for each in vars(module).values() if hasattr(each, "cache_clear")]
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name in {"SEGMENT", "CHUNK"} & set(vars(module)):
                patch.setattr(module, name, nbytes)
        for function in functions:
            function.cache_clear()
        yield
    for function in functions:
        function.cache_clear()
