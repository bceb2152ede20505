"""By what other hosts are reached, as settings, variables of UCX and devices have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclx_mpi import far_transport, rc
from transports.base import DeathNotice
from transports.tcp.transport import Tcp
from transports.ucx import library


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in far_transport.os.environ if name.startswith("UCX_")]:
        monkeypatch.delenv(name)
    for name, value in (("far_transport", "auto"), ("lanes", ""), ("ucx_library", ""), ("far_windows", "auto"), ("interfaces", "")):
        monkeypatch.setattr(rc, name, value)
    monkeypatch.setattr(library, "_RDMA_DEVICES", tmp_path / "infiniband")


def test_sockets_are_what_there_is() -> None:
    assert far_transport.chosen() == "tcp"
    made = far_transport.make(0, 2, {1}, DeathNotice(0, 0, 0), 3.0)
    assert isinstance(made, Tcp) and not made.why_not(1)
    made.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("lanes", "eth1,eth2"), ("ucx_library", "/opt/libucp.so"), ("far_windows", "direct"), ("far_transport", "ucx")],
)
def test_a_setting_asks_for_ucx(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setattr(rc, name, value)
    assert far_transport.chosen() == "ucx"


def test_a_variable_of_ucx_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "eth0")
    assert far_transport.chosen() == "ucx"
    monkeypatch.setattr(rc, "far_transport", "tcp")
    assert far_transport.chosen() == "tcp"


def test_a_device_for_rdma_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "infiniband").mkdir()
    assert far_transport.chosen() == "tcp"
    (tmp_path / "infiniband" / "mlx5_0").mkdir()
    assert far_transport.chosen() == "ucx"


def test_interfaces_are_those_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rc, "interfaces", "none9")
    with pytest.raises(OSError, match="NCCLX_MPI_INTERFACES names 'none9'"):
        far_transport.make(0, 2, {1}, DeathNotice(0, 0, 0), 3.0)
