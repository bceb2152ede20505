"""``ncclx info --ucx``: which UCX reaches ranks of other hosts, why that one, and what it can do here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ncclx_mpi import rc
from transports.ucx.library import Worker, find, settings

_VERBS = ("rc_", "ud_", "dc_")
_DEVICE_MEMORY = ("cuda", "rocm", "ze_")
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def facts() -> dict[str, Any]:
    """All of it, for the host that this runs on.

    Raises
    ------
    ImportError
        There is no UCX that can be used; says what to do.
    OSError
        It cannot be started.
    """
    library = find(getattr(rc, "ucx_library"))  # noqa: B009 - rc answers by its class
    worker = Worker(library)
    try:
        found = worker.resources()
    finally:
        worker.close()
    devices: dict[str, list[str]] = {}
    for transport, device in found:
        devices.setdefault(device, []).append(transport)
    transports = list(dict.fromkeys(transport for transport, _ in found))
    return {
        "ucx": library.name,
        "library": library.path,
        "why this one": library.reason,
        "RDMA": _having(transports, _VERBS, "this UCX offers no transport by verbs here"),
        "memory of GPUs": _having(transports, _DEVICE_MEMORY, "this UCX does not know it here; it goes through memory of the host"),
        **congestion_of_tcp(transports),
        "devices": {device: ", ".join(offered) for device, offered in devices.items()},
        "settings": settings(),
    }


def congestion_of_tcp(transports: list[str]) -> dict[str, str]:
    """By what the system controls congestion, where ranks are reached by TCP; with a warning of what suits short ways badly."""
    if "tcp" not in transports or not _CONGESTION.exists():
        return {}
    found = _CONGESTION.read_text().strip()
    slow = " (slow where packets overtake each other, as between virtual interfaces; cubic is not)" if "bbr" in found else ""
    return {"congestion control of TCP": found + slow}


def _having(transports: list[str], prefixes: tuple[str, ...], otherwise: str) -> str:
    """The transports that begin so."""
    return ", ".join(name for name in transports if name.startswith(prefixes)) or f"no: {otherwise}"
