"""The routes of windows (:mod:`ncclx_mpi.api.fast`): imported by programs that have any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ncclx_mpi.api.fast import at_first_call
from ncclx_mpi.rma import fast as windows
from ncclx_mpi.rma import fast_epochs as epochs

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def _at_first_call(kernel: _Kernel) -> _Kernel:
    return at_first_call(globals(), kernel)


put = _at_first_call(windows.put)
get = _at_first_call(windows.get)
accumulate = _at_first_call(windows.accumulate)
get_accumulate = _at_first_call(windows.get_accumulate)
fetch_and_op = _at_first_call(windows.fetch_and_op)
compare_and_swap = _at_first_call(windows.compare_and_swap)
fence = _at_first_call(windows.fence)
lock_target = _at_first_call(windows.lock_target)
unlock_target = _at_first_call(windows.unlock_target)
lock_all = _at_first_call(windows.lock_all)
unlock_all = _at_first_call(windows.unlock_all)
flush = _at_first_call(windows.flush)
flush_all = _at_first_call(windows.flush_all)
start_epoch = _at_first_call(epochs.start)
complete_epoch = _at_first_call(epochs.complete)
post_epoch = _at_first_call(epochs.post)
wait_epoch = _at_first_call(epochs.wait)
test_epoch = _at_first_call(epochs.test)
