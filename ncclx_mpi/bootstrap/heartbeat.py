"""How often hosts give a sign of life, and after how long a silence one counts as dead."""

from __future__ import annotations

from ncclx_mpi import rc
from numba_kernels.rows import NamedTuple


class Heartbeat(NamedTuple):
    """Two times in seconds."""

    period: float
    limit: float


def heartbeat() -> Heartbeat:
    """What ``rc.heartbeat`` says, as in ``"0.5,3"``.

    Raises
    ------
    ValueError
        These are no two times, or the limit leaves no room for a sign that is late.
    """
    text = str(rc.heartbeat)  # type: ignore[attr-defined]
    try:
        period, limit = map(float, text.split(","))
    except ValueError:
        period = limit = 0.0
    if not 0 < 2 * period <= limit < float("inf"):
        raise ValueError(
            f"NCCLX_MPI_HEARTBEAT={text!r} is not a period and a limit in seconds, as in 0.5,3; the limit is at least twice the period"
        )
    return Heartbeat(period, limit)
