"""What a process learns of its place: its rank in the job, and in its node."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ncclx_mpi.bootstrap.membership import Membership
from transports.shm.arena import Arena


@pytest.mark.parametrize(("near", "local_rank"), [(range(6), 3), ((2, 3), 1), ((3,), 0)])
def test_ranks_in_the_node(near: Sequence[int], local_rank: int) -> None:
    member = Membership(3, Arena.create(len(near), near, 6), "test", "")
    assert (member.local_rank, member.size) == (local_rank, 6)
