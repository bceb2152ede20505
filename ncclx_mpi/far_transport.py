"""By what ranks of other hosts are reached: UCX where it has more to offer than TCP, or is asked for; else sockets of this library."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ncclx_mpi import rc

if TYPE_CHECKING:
    from transports.base import DeathNotice
    from transports.tcp.transport import Tcp
    from transports.ucx.transport import Lanes, Ucx

UCX, TCP = "ucx", "tcp"


def chosen() -> str:
    """What this host uses: as ``rc.far_transport`` says, or UCX where there are devices for RDMA, or a setting that only UCX has."""
    from transports.ucx.library import has_rdma

    wanted = str(getattr(rc, "far_transport", "auto"))
    if wanted != "auto":
        return wanted
    is_asked_for = (
        bool(getattr(rc, "lanes", "") or getattr(rc, "ucx_library", "")) or getattr(rc, "far_windows", "auto") == "direct"
    )
    return UCX if is_asked_for or any(name.startswith("UCX_") for name in os.environ) or has_rdma() else TCP


def make(
    rank: int,
    size: int,
    far: Collection[int],
    notice: DeathNotice,
    patience: float,
    windows: str = "messages",
    lanes: Callable[[], Lanes] | None = None,
) -> Tcp | Ucx:
    """The transport, for `rank` of `size`, to the ranks `far`.

    Parameters
    ----------
    notice, patience
        What is called when one of them is found dead; seconds in which a link that is down may come back.
    windows, lanes
        Of UCX: how memory of peers is reached, and by which devices; None: by those that it finds.

    Raises
    ------
    ImportError
        There is no UCX that can be used; says what to do.
    OSError
        It cannot be started, or there can be no socket.
    """
    if chosen() == TCP:
        from transports.tcp.transport import Tcp

        return Tcp(rank, size, far, notice, patience, str(getattr(rc, "interfaces", "")))
    from transports.ucx import library
    from transports.ucx.transport import ONE, Ucx

    found = library.find(str(getattr(rc, "ucx_library", "")))
    return Ucx(found, rank, size, far, notice, patience, windows, lanes() if lanes is not None else ONE)
