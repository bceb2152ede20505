"""Lanes to ranks of other hosts, from settings: their devices, and what each of them has of a large message at once, by how far a peer is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ncclx_mpi import rc
from ncclx_mpi.locality.levels import NETWORK, NOWHERE
from transports.ucx.layout import AHEAD, MOST_LANES
from transports.ucx.transport import Lanes, Share

WORLD = "world"
USUAL = {"rack": Share(0, 4), "zone": Share(0, 8), "dc": Share(0, 16), WORLD: Share(0, 32)}
"""The farther a peer is, the more has to be under way for a lane to be full; the more of it there is, the longer the tail of a slow lane."""
_SHARE = re.compile(r"(\d+)(?:x(\d+)([KM]?))?")
_LEAST = 4 << 10
_UNITS = {"": 0, "K": 10, "M": 20}


def lanes(own: tuple[int, ...]) -> Lanes:
    """What ``rc.lanes`` and ``rc.lane_limits`` say, for a rank that is in these instances of ``levels.NETWORK``.

    Raises
    ------
    ValueError
        They cannot be understood; says what is wrong, and how it is written.
    """
    devices = [name.strip() for name in str(getattr(rc, "lanes", "")).split(",")]
    if len(devices) > MOST_LANES or ("" in devices and len(devices) > 1):
        raise ValueError(
            f"NCCLX_MPI_LANES={','.join(devices)!r} is no list of 1 to {MOST_LANES} devices, as in eth1,eth2 (`ncclx info --ucx` names them)"
        )
    shares = _shares(str(getattr(rc, "lane_limits", "")))
    return Lanes(devices, own, lambda peer: shares[nearest(own, peer)])


def nearest(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """The smallest of ``levels.NETWORK`` that two ranks are both in, or the world; the smallest of all if nothing is known of one of them."""
    if all(each == NOWHERE for row in (one, other) for each in row):
        return NETWORK[-1]
    common = (level for level, mine, its in zip(NETWORK, one, other, strict=True) if mine == its != NOWHERE)
    return (WORLD, *common)[-1]


def _shares(text: str) -> Mapping[str, Share]:
    """What is said of some distances, and what is usual of the others."""
    found = dict(USUAL)
    for each in filter(None, text.split(",")):
        level, _, said = each.strip().partition("=")
        parts = _SHARE.fullmatch(said)
        share = Share(int(parts[2] or 0) << _UNITS[parts[3] or ""], int(parts[1])) if parts else None
        if level not in found or share is None or not 1 <= share.limit <= AHEAD or not _is_segment(share.segment):
            raise ValueError(
                f"NCCLX_MPI_LANE_LIMITS={text!r}: {each!r} is not one of {', '.join(found)} with the segments of a lane, 1 to {AHEAD}, "
                "and their bytes perhaps, a power of two from 4K on, as in rack=4,world=16x256K"
            )
        found[level] = share
    return found


def _is_segment(nbytes: int) -> bool:
    """Whether segments may have so many bytes: windows of arrays on devices have powers of two, across whose end none may go."""
    return nbytes == 0 or (nbytes >= _LEAST and nbytes & (nbytes - 1) == 0)
