"""What all ranks can do, or none: each tries, and all hear why one could not."""

from __future__ import annotations

from types import TracebackType

import numpy as np
import numpy.typing as npt

from ncclx_mpi import collectives, errors
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.cuda.driver import DriverError
from numba_kernels.cuda.ptx import CompilerMissing
from numba_kernels.layout import WORD

_TEXT = 1024
"""Bytes of a reason."""

Words = npt.NDArray[np.int64]


class Attempt:
    """Something that each rank tries in ``with`` blocks, until :meth:`agree`: what the driver or the machine refuses is kept.

    Parameters
    ----------
    comm, name
        The communicator, and what the attempt is called in errors.
    """

    def __init__(self, comm: NativeComm, name: str) -> None:
        self._comm = comm
        self._name = name
        self._reason = b""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, DriverError | CompilerMissing | MemoryError):
            return False
        self._reason = str(error).encode()[:_TEXT] or b"out of memory"
        return True

    def agree(self, facts: Words) -> Words:
        """What all ranks tell each other, a row a rank, if none has failed. Collective; `facts` are as many on all ranks.

        Raises
        ------
        Exception
            ERR_OTHER: some rank failed; on all ranks.
        """
        reasons = _TEXT // WORD
        row = np.zeros(1 + reasons + len(facts), dtype=np.int64)
        row[0] = len(self._reason)
        row[1 : 1 + reasons].view(np.uint8)[: len(self._reason)] = np.frombuffer(self._reason, dtype=np.uint8)
        row[1 + reasons :] = facts
        table = np.empty((self._comm.size, len(row)), dtype=np.int64)
        collectives.allgather(self._comm, row.ctypes.data, row.nbytes, table.ctypes.data)
        for rank, (length, *_) in enumerate(table):
            if length:
                reason = table[rank, 1 : 1 + reasons].tobytes()[:length].decode(errors="replace")
                errors.fail(
                    errors.ERR_OTHER, f"rank {self._comm.rank}: {self._name}: rank {rank} of the communicator cannot: {reason}"
                )
        return table[:, 1 + reasons :]
