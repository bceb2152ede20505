"""In which rack, zone and data centre this host is: as a file says (``NCCLX_MPI_TOPOLOGY_FILE``), or Slurm.

The file is one of three.

- About this host, each host having its own: ``rack = r12``, ``zone = z3``, ``dc = d1``, each of which may be left out. NCCLX's
  is understood, too: ``DEVICE_BACKEND_NETWORK_TOPOLOGY=dc/zone//switch``, ``DEVICE_RACK_SERIAL=number``.
- About all hosts by their number: what ``ncclx simulate --topology`` reads, ``node.ranks = 8``, ``rack.nodes = 16`` and so on. Ranks fill
  nodes in their order, nodes racks, racks zones. Prices are of no matter here.
- Slurm's ``topology.conf``, with all hosts by their names.

Where there is none, it is what Slurm tells each task.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclx_mpi import rc
from ncclx_mpi.locality import keys, switches
from ncclx_mpi.locality.levels import NETWORK
from numba_kernels.rows import NamedTuple

VARIABLE = "NCCLX_MPI_TOPOLOGY_FILE"
_MOST_BYTES = 64 << 20
_SLURM_NAME = "SLURMD_NODENAME"


class Whereabouts(NamedTuple):
    """Of this host.

    Attributes
    ----------
    names
        Of its rack, zone and data centre, as far as they are known, by ``levels.NETWORK``.
    source
        Who says so, in words.
    """

    names: dict[str, str]
    source: str


def find(first_rank: int = 0, environ: Mapping[str, str] = os.environ) -> Whereabouts:
    """Where this host is, on which `first_rank` is the first rank of the job.

    Raises
    ------
    ValueError
        The file, or Slurm, says nothing that could be understood. The message has the name of the file, line and key.
    OSError
        The file cannot be read.
    """
    name = str(getattr(rc, "topology_file")).strip()  # noqa: B009 - a setting, which mypy does not see
    if name:
        return Whereabouts(read(Path(name), first_rank, names_of_host(environ)), f"{VARIABLE}={name}")
    found = switches.names_for_task(environ)
    if found:
        return Whereabouts(found, f"{switches.ADDRESS}={environ[switches.ADDRESS]}")
    return Whereabouts({}, f"nobody says where hosts are: {VARIABLE} names no file, and there is no {switches.ADDRESS}")


def names_of_host(environ: Mapping[str, str]) -> list[str]:
    """What this host is called, by Slurm first."""
    full = os.uname().nodename
    return [name for name in dict.fromkeys((environ.get(_SLURM_NAME, ""), full, full.partition(".")[0])) if name]


def read(path: Path, first_rank: int, hosts: Sequence[str]) -> dict[str, str]:
    """What a file says of a host that has these names.

    Raises
    ------
    ValueError, OSError
        See :func:`find`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES >> 20} MiB")
        text = data.decode()
        if switches.is_about_switches(text):
            return switches.names_in(text.splitlines(), hosts)
        return _from_keys(text, first_rank)
    except ValueError as error:
        what = "no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise ValueError(f"{VARIABLE}={path}: {what}") from None


def _from_keys(text: str, first_rank: int) -> dict[str, str]:
    lines = {line.key: line for line in keys.lines_of(text.splitlines())}
    counted = _by_number(lines, first_rank)
    named = {level: lines[level].value for level in NETWORK if level in lines}
    theirs = _of_ncclx(lines)
    if len([found for found in (counted, named, theirs) if found]) > 1:
        raise ValueError(
            "it says where hosts are in several ways: use rack, zone and dc, or NCCLX's keys, or node.ranks, rack.nodes ..."
        )
    for level, name in named.items():
        if not name:
            raise ValueError(f"line {lines[level].number}: {level} has no name; leave out what is not known")
    if not lines:
        raise ValueError(f"no line says where a host is; keys are {', '.join((*keys.NAMES, *keys.PARTS, *keys.FOREIGN))}")
    return counted or named or theirs


def _by_number(lines: Mapping[str, keys.Line], first_rank: int) -> dict[str, str]:
    """The numbers of rack, zone and data centre of a host, where each has as many of the next smaller ones."""
    found: dict[str, str] = {}
    held = 1
    for part, level in zip(keys.PARTS, ("node", "rack", "zone", "dc"), strict=True):
        held *= keys.whole_number(lines[part]) if part in lines else 0
        if not held:
            break
        if level != "node":
            found[level] = str(first_rank // held)
    return found


def _of_ncclx(lines: Mapping[str, keys.Line]) -> dict[str, str]:
    """What NCCLX reads in its file; its data centre and zone, and what it calls the switch of the rack."""
    found = {}
    if keys.BACKEND in lines:
        line = lines[keys.BACKEND]
        words = line.value.split("/")
        if line.value and len(words) not in (3, 4):
            raise ValueError(f"line {line.number}: {keys.BACKEND} has to be dc/zone//switch, not {line.value!r}")
        found = {level: word for level, word in zip(("dc", "zone", "rack"), (*words[:2], *words[3:]), strict=False) if word}
    if keys.RACK in lines and lines[keys.RACK].value and "rack" not in found:
        found["rack"] = lines[keys.RACK].value
    return found
