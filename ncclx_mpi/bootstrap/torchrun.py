"""Ranks that ``torchrun`` started, found through its variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ncclx_mpi import late

if TYPE_CHECKING:
    from ncclx_mpi.bootstrap import meet
    from ncclx_mpi.bootstrap.membership import Membership
else:
    meet = late.module("ncclx_mpi.bootstrap.meet")

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def is_present(environ: Mapping[str, str]) -> bool:
    """Are torchrun's variables set, all of them?"""
    return all(name in environ for name in _NEEDED)


def join() -> Membership:
    """Meet under the address and port that torchrun gave to the job."""
    environ = os.environ
    rank = meet.whole_number("RANK", environ["RANK"])
    size = meet.whole_number("WORLD_SIZE", environ["WORLD_SIZE"])
    local = meet.whole_number("LOCAL_WORLD_SIZE", environ.get("LOCAL_WORLD_SIZE", str(size)))
    address = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    job = f"torchrun {environ.get('TORCHELASTIC_RUN_ID', '')} {address} {attempt}"
    detail = f"RANK={rank} WORLD_SIZE={size} at {address}"
    if local == size:
        return meet.meet(rank, size, job, "torchrun", detail)
    from ncclx_mpi.bootstrap.meet_hosts import Place, meet_on_hosts

    node = meet.whole_number("GROUP_RANK", environ.get("GROUP_RANK", ""))
    nodes = meet.whole_number("GROUP_WORLD_SIZE", environ.get("GROUP_WORLD_SIZE", str(size // local)))
    local_rank = meet.whole_number("LOCAL_RANK", environ["LOCAL_RANK"])
    place = Place(rank, size, local_rank, local, node, nodes, environ["MASTER_ADDR"])
    return meet_on_hosts(place, job, "torchrun", f"{detail}, on {nodes} nodes")
