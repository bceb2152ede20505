"""Device arrays to and from ranks of other nodes, by way of pinned host memory: on the driver double, whose memory the CPU cannot touch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi.testing.driver_double import Double
from tests.device.cases import FLAVOURS, doing
from tests.device.doubles import check_collectives, maker, values_of
from tests.device.messages import MESSAGES

NODES = "vnode:2"


@pytest.mark.ranks(3, timeout=120, topology=NODES)
@pytest.mark.parametrize("kind", ["device", "mixed"])
def test_messages(comm: Any, kind: str) -> None:
    """Three ranks on two nodes: each sends to a near or a far one. The longest ones are announced, and go from pinned memory."""
    with Double(1 + comm.rank):
        for length in (1, 20_000):
            for name, message in MESSAGES.items():
                wanted = values_of(message(comm, np.array, length))
                found = values_of(message(comm, maker(kind, comm.rank), length))
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_equal(one, other, err_msg=f"{name} of {length}")


@pytest.mark.ranks(3, timeout=120, topology=NODES)
@pytest.mark.parametrize(
    ("flavour", "kind"), [("blocking", "device"), ("blocking", "mixed"), *((each, "mixed") for each in FLAVOURS[1:])]
)
def test_collectives(comm: Any, flavour: str, kind: str) -> None:
    with Double(1 + comm.rank):
        check_collectives(comm, doing(comm, flavour), maker(kind, comm.rank), (0, 1001))
