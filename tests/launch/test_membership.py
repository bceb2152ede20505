"""What a process learns of its place: its rank in the job, and in its node."""

from __future__ import annotations

import pytest

from ncclx_mpi.bootstrap.membership import Membership
from transports.shm.arena import Arena


@pytest.mark.parametrize(("near", "local_rank", "local_size"), [((), 3, 6), ((2, 3), 1, 2), ((3,), 0, 1)])
def test_ranks_in_the_node(near: tuple[int, ...], local_rank: int, local_size: int) -> None:
    member = Membership(3, 6, Arena.create(1), "test", "", node=1, near=near)
    assert (member.local_rank, member.local_size) == (local_rank, local_size)
