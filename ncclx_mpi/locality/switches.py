"""The network as Slurm describes it: ``topology.conf``, with a line for each switch, and what it tells each task of a job.

What is next to hosts is taken for a rack, what is next to that for a zone, and the switch above for a data centre; higher ones are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ncclx_mpi.locality.levels import NETWORK
from numba_kernels.rows import NamedTuple

ADDRESS, PATTERN = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"
_NODE = "node"
_SWITCH, _BLOCK = "switchname", "blockname"
_MOST_LEVELS = 64


class Switch(NamedTuple):
    """A line: a switch, or a block of nodes.

    Attributes
    ----------
    number
        Of the line.
    name
        Its own.
    nodes, switches
        The hosts, or the switches, that it joins, as in ``rack[07-12,15]n[1-2],login``.
    """

    number: int
    name: str
    nodes: str
    switches: str


def is_about_switches(text: str) -> bool:
    """Whether a file is a ``topology.conf``: its first line that says something names a switch, or a block."""
    first = next((line for line in map(_said, text.splitlines()) if line), "").lower()
    return first.startswith((f"{_SWITCH}=", f"{_BLOCK}=", "blocksizes="))


def _said(line: str) -> str:
    return line.partition("#")[0].strip()


def names_in(lines: Iterable[str], hosts: Sequence[str]) -> dict[str, str]:
    """The names of what the first one known of some names of one host is in; nothing if none is known.

    Raises
    ------
    ValueError
        A line describes no switch, or hosts and switches are in several.
    """
    switches = list(_switches(lines))
    chain: list[str] = []
    below, field = hosts, "nodes"
    while found := [switch for switch in switches if any(matches(getattr(switch, field), name) for name in below)]:
        if len(found) > 1 and field == "switches":
            raise ValueError(
                f"line {found[1].number}: switch {below[0]} is below {found[1].name}, and below {found[0].name} (line {found[0].number})"
            )
        if len(found) > 1:
            raise ValueError(
                f"line {found[1].number}: {hosts[0]} is a node of {found[1].name}, and of {found[0].name} (line {found[0].number})"
            )
        if found[0].name in chain or len(chain) == _MOST_LEVELS:
            raise ValueError(f"line {found[0].number}: switch {found[0].name} is above itself")
        chain.append(found[0].name)
        below, field = (found[0].name,), "switches"
    return dict(zip(reversed(NETWORK), chain, strict=False))


def _switches(lines: Iterable[str]) -> Iterable[Switch]:
    for number, line in enumerate(lines, 1):
        words = _said(line).split()
        said = dict(word.lower().partition("=")[::2] for word in words)
        if not words or words[0].lower().startswith("blocksizes="):
            continue
        written = {word.partition("=")[0].lower(): word.partition("=")[2] for word in words}
        name = written.get(_SWITCH) or written.get(_BLOCK, "")
        strangers = set(said) - {_SWITCH, _BLOCK, "nodes", "switches", "linkspeed"}
        if not name or strangers or not (said.get("nodes") or said.get("switches")):
            wrong = f"; {min(strangers)} is no key of it" if strangers else ""
            raise ValueError(
                f"line {number}: {' '.join(words)!r} describes no switch: SwitchName=s0 Nodes=host[01-16] or Switches=s[1-4]{wrong}"
            )
        yield Switch(number, name, written.get("nodes", ""), written.get("switches", ""))


def names_for_task(environ: Mapping[str, str]) -> dict[str, str]:
    """What Slurm tells a task of where its host is; nothing where it tells nothing.

    Raises
    ------
    ValueError
        The two variables do not fit each other.
    """
    address, pattern = environ.get(ADDRESS, ""), environ.get(PATTERN, "")
    if not address or not pattern:
        return {}
    kinds = pattern.split(".")
    words = address.split(".", len(kinds) - 1)  # a node's own name, which is last, may have dots
    if len(words) != len(kinds) or kinds[-1] != _NODE or not all(words):
        raise ValueError(f"{ADDRESS}={address!r} is no address of the form {PATTERN}={pattern!r}, which has to end with {_NODE}")
    return dict(zip(reversed(NETWORK), words[-2::-1], strict=False))


def matches(hosts: str, name: str) -> bool:
    """Whether a name is one of a list such as ``rack[07-12,15]n[1-2],login``."""
    return bool(hosts) and any(_fits(word, name) for word in _outside_brackets(hosts))


def _outside_brackets(text: str) -> list[str]:
    """The parts between commas that are not within brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


def _fits(word: str, name: str) -> bool:
    before, bracket, rest = word.partition("[")
    if not name.startswith(before):
        return False
    if not bracket:
        return name == before
    numbers, closing, rest = rest.partition("]")
    if not closing:
        return False
    left = name[len(before) :]
    digits = len(left) - len(left.lstrip("0123456789"))
    return any(_is_among(numbers, left[:count]) and _fits(rest, left[count:]) for count in range(1, digits + 1))


def _is_among(numbers: str, digits: str) -> bool:
    """Whether digits are one of ``07-12,15``, with as many leading zeros."""
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            continue
        if int(first) <= int(digits) <= int(last or first) and digits == str(int(digits)).zfill(len(first)):
            return True
    return False
