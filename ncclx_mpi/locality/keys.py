"""The lines of a file about the network, ``key = value`` with ``#`` before comments, and which keys there are.

One file can say both what the simulator asks, how many of each are in the next larger one and what messages cost, and where this host is.
Each reader takes what it needs, and refuses keys that neither knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ncclx_mpi.locality.levels import NETWORK
from numba_kernels.rows import NamedTuple

LEVELS = ("node", "rack", "zone", "dc", "world")
"""How far a message goes: to the same node, rack, zone, data centre, or beyond."""
PARTS = ("node.ranks", "rack.nodes", "zone.racks", "dc.zones")
"""How many there are in each of the next larger ones; 0: one holds everything."""
PRICES = (
    *(f"{level}.{price}" for level in LEVELS for price in ("latency", "bandwidth", "core")),
    *(f"{level}.uplink" for level in LEVELS[:-1]),
    "core.ranks", "message", "eager", "copy", "reduce",
)  # fmt: skip
NAMES = NETWORK
"""Where the host that has the file is."""
DEVICE, RACK, BACKEND = "DEVICE_NAME", "DEVICE_RACK_SERIAL", "DEVICE_BACKEND_NETWORK_TOPOLOGY"
FOREIGN = (DEVICE, RACK, BACKEND)
"""Where it is, in the words of NCCLX, in whose file any number of other keys in capitals are."""


class Line(NamedTuple):
    """A line that says something."""

    number: int
    key: str
    value: str


def lines_of(text: Iterable[str]) -> Iterator[Line]:
    """The lines that say something.

    Raises
    ------
    ValueError
        A line has no ``=``, or a key that nobody knows.
    """
    for number, line in enumerate(text, 1):
        said = line.partition("#")[0].strip()
        key, is_there, value = (word.strip() for word in said.partition("="))
        if not said or (is_there and key.isidentifier() and key.isupper() and key not in FOREIGN):
            continue
        if not is_there or key not in _KNOWN:
            raise ValueError(f"line {number}: {said!r} says nothing about a network; keys are {', '.join(_KNOWN)}")
        yield Line(number, key, value)


_KNOWN = (*PARTS, *PRICES, *NAMES, *FOREIGN)


def whole_number(line: Line) -> int:
    """The value of a line that is a whole number, or so many times 1024, as in ``8K``.

    Raises
    ------
    ValueError
        It is none.
    """
    text = line.value
    digits, scale = (text[:-1], 1024) if text[-1:] in ("K", "k") else (text, 1)
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"line {line.number}: {line.key} has to be a whole number, not {text!r}")
    return int(digits) * scale
