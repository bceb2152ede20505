"""The GIL, from compiled code that was entered with it.

Short operations keep the GIL: giving it away and taking it back costs 40 ns alone, and beside a Python thread that computes it
costs the 5 ms of the interpreter's switch interval. A wait that turns out to be long gives it away here, and so does whoever
finds the engine's lock taken: a thread that holds the lock may need the GIL for a user's reduction, so nobody may wait for the
lock with it.
"""

from __future__ import annotations

from numba_kernels import types
from numba_kernels.jit import kernel

_is_held = types.external("PyGILState_Check", types.int32())
_save_thread = types.external("PyEval_SaveThread", types.intp())
_restore_thread = types.external("PyEval_RestoreThread", types.void(types.intp))


@kernel("int64()")
def leave_gil():  # type: ignore[no-untyped-def]
    """Give the GIL away if this thread holds it; returns what :func:`enter_gil` needs."""
    return _save_thread() if _is_held() != 0 else 0


@kernel("void(int64)")
def enter_gil(state):  # type: ignore[no-untyped-def]
    """Take the GIL back if it was given away."""
    if state != 0:
        _restore_thread(state)
