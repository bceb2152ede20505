"""Device arrays in every communicating call, staged through the host: on the driver double, whose memory the CPU cannot touch."""

from __future__ import annotations

from typing import Any

import pytest

from ncclx_mpi.testing.driver_double import Double
from tests.device.cases import FLAVOURS, doing
from tests.device.doubles import KINDS, check_collectives, maker


def check(comm: Any, kind: str, flavour: str, lengths: tuple[int, ...]) -> None:
    with Double(1 + comm.rank):
        check_collectives(comm, doing(comm, flavour), maker(kind, comm.rank), lengths)


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("kind", KINDS)
def test_blocking_collectives(comm: Any, kind: str) -> None:
    check(comm, kind, "blocking", (0, 1, 1000, 20_000) if comm.size == 2 else (0, 1001))


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("flavour", FLAVOURS[1:])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_started_collectives(comm: Any, kind: str, flavour: str) -> None:
    check(comm, kind, flavour, (0, 1001))
