"""Ways of a blocking collective on device memory that are faster than through the host; without one it is staged.

A route is offered every such call on every rank that has device memory in it. It says no before it has done anything, and for
reasons that all ranks find alike.
"""

from __future__ import annotations

from collections.abc import Callable

from ncclx_mpi.buffers import Buffer, VBuffer, WBuffer
from ncclx_mpi.p2p.engine import NativeComm

Operand = Buffer | VBuffer | WBuffer | None
Route = Callable[[NativeComm, str, Operand, Operand, int, str | None], bool]
"""Communicator; name of the collective; what this rank gives and gets (None: in place, or nothing); root; name of the predefined
operation in lower case (None: the program's own, or none at all). Returns whether the call is complete."""

_routes: list[Route] = []


def add(route: Route) -> None:
    """Offer `route` every call from now on, after those that were added before."""
    _routes.append(route)


def take(comm: NativeComm, name: str, sent: Operand, received: Operand, root: int, op: str | None) -> bool:
    """Whether a route has carried the call out."""
    return any(route(comm, name, sent, received, root, op) for route in _routes)
