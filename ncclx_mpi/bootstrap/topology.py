"""Which ranks of a job share a node: all on a machine do, unless a setting makes several nodes of it.

A program that runs on ``vnode:2`` or ``nolocal`` communicates as it would between hosts: ranks of different nodes share no memory, and
know of each other only what a simulated network (:mod:`transports.virtual`) brings them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclx_mpi import late, rc

if TYPE_CHECKING:
    from transports.virtual import network as simulated
else:
    simulated = late.module("transports.virtual.network")

_VARIABLE, _NETWORK_VARIABLE = "NCCLX_MPI_TOPOLOGY", "NCCLX_MPI_NETWORK"
_NUMBERS = {"credits": "credits", "delay": "delay_us", "jitter": "jitter_us", "seed": "seed"}


def nodes(size: int, setting: str = "") -> list[range]:
    """World ranks of each node of a job of `size` ranks on this machine, as `setting`, else ``rc.topology``, has them.

    Raises
    ------
    ValueError
        The setting says nothing that there is.
    """
    setting = setting or _setting("topology")
    kind, _, number = setting.partition(":")
    ranks_of_node = {"nolocal": 1, "machine": max(size, 1)}.get(setting, _number(number) if kind == "vnode" else -1)
    if ranks_of_node < 1:
        raise ValueError(f"{_VARIABLE}={setting!r} is no topology; there are machine, vnode:2 (nodes of two ranks) and nolocal")
    return [range(first, min(first + ranks_of_node, size)) for first in range(0, size, ranks_of_node)]


def network() -> simulated.Settings:
    """How the network between simulated nodes behaves, as ``rc.network`` has it: ``"delay=50,jitter=200,credits=2,shuffled,seed=7"``.

    Raises
    ------
    ValueError
        A word of the setting is none of these.
    """
    found: dict[str, int] = {}
    is_shuffled = False
    for word in filter(None, _setting("network").split(",")):
        name, _, value = word.strip().partition("=")
        if name in _NUMBERS and _number(value) >= 0:
            found[_NUMBERS[name]] = _number(value)
        elif word.strip() == "shuffled":
            is_shuffled = True
        else:
            raise ValueError(
                f"{_NETWORK_VARIABLE}: {word!r} says nothing about a network; words are {', '.join(f'{known}=N' for known in _NUMBERS)} "
                "(delay and jitter in us) and shuffled"
            )
    return simulated.Settings(**found, is_shuffled=is_shuffled)


def _setting(name: str) -> str:
    return str(getattr(rc, name)).strip().lower()


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1
