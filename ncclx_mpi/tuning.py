"""A tuning table: how long each algorithm took where a job ran, by which its plans are chosen instead of by the model.

``ncclx bench --tune`` writes the file, and the setting ``NCCLX_MPI_TUNING_FILE`` names it, on all ranks the same:

.. code-block:: json

    {"format": "ncclx_mpi tuning table", "version": 1, "made": {"date": "..."},
     "layouts": [{"nodes": [0, 0, 1, 1], "us": {"allreduce": {"8": {"leaders": 21.5, "ring": 80.2}}}}]}

A layout says which node each rank of a communicator is on, and holds for communicators of exactly this layout. Below it are times in us,
by collective, by bytes that a rank gives, and by algorithm. Between two sizes times are interpolated in a straight line, as costs
are linear in bytes; beyond the smallest and the largest one they are those there. All ranks compute the same numbers: reading them, and
the four operations of arithmetic, are exact to the last bit everywhere, which logarithms are not.

This module needs neither NumPy nor Numba.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ncclx_mpi import rc
from ncclx_mpi.algorithms import ALGORITHMS
from ncclx_mpi.nodes import nodes_of

FORMAT = "ncclx_mpi tuning table"
VERSION = 1
VARIABLE = "NCCLX_MPI_TUNING_FILE"
_MOST_BYTES = 64 << 20
_DIGEST_BYTES = 7
"""So that it is a positive word of memory."""

Times = Mapping[str, float]
"""Of each algorithm, in us."""
Sizes = Sequence[tuple[int, Times]]
"""Of each number of bytes, in their order."""
Layouts = Mapping[tuple[int, ...], Mapping[str, Sizes]]
"""Of the nodes of the ranks, and of each collective."""


class Table:
    """What was measured. Tables are compared, and hashed, as objects: a process has one.

    Attributes
    ----------
    source : str
        Where it is from, in words.
    digest : int
        Of its text, and not 0: ranks of the same digest choose alike.
    layouts : mapping
        What is in it.
    """

    def __init__(self, layouts: Layouts, source: str = "", digest: int = 1) -> None:
        self.layouts = layouts
        self.source = source
        self.digest = digest

    def times(self, collective: str, nodes: tuple[int, ...], nbytes: int) -> Times:
        """The time of each algorithm for so many bytes, in us; none where it has not measured this layout or collective."""
        sizes = self.layouts.get(nodes, {}).get(collective, ())
        if not sizes:
            return {}
        above = next((k for k, (size, _) in enumerate(sizes) if size >= nbytes), len(sizes) - 1)
        (high, slow), (low, fast) = sizes[above], sizes[max(above - 1, 0)]
        if nbytes >= high or low == high:
            return slow
        part = (nbytes - low) / (high - low)
        return {name: time + part * (slow[name] - time) for name, time in fast.items() if name in slow}


def find() -> Table | None:
    """The table that the setting names; None if it names none.

    Raises
    ------
    ValueError
        It cannot be read, or is no table of this version: says what is wrong, and what to do.
    """
    name = str(getattr(rc, "tuning_file")).strip()  # noqa: B009 - a setting, which mypy does not see
    if not name:
        return None
    try:
        return read(Path(name))
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"{VARIABLE}={name}: {what}; `ncclx bench --tune FILE`, under a launcher, makes one") from None


def read(path: Path) -> Table:
    """Read a file.

    Raises
    ------
    OSError, ValueError
        It cannot be read, or is no table of this version: says what is wrong.
    """
    if path.exists() and not path.is_file():  # nobody may ever write to a pipe
        raise ValueError("it is no file")
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    try:
        found = json.loads(data.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None
    digest = int.from_bytes(hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest(), "little") or 1
    return Table(_layouts(found), str(path), digest)


def text(layouts: Layouts, made: Mapping[str, Any]) -> str:
    """The text of a file, a line for each size."""
    head = f'"format": {json.dumps(FORMAT)}, "version": {VERSION}, "made": {json.dumps(made)}'
    return f'{{{head}, "layouts": [\n{_joined(map(_text_of_layout, layouts.items()))}\n]}}\n'


def _text_of_layout(layout: tuple[tuple[int, ...], Mapping[str, Sizes]]) -> str:
    nodes, collectives = layout
    return f' {{"nodes": {json.dumps(nodes)}, "us": {{\n{_joined(map(_text_of_sizes, collectives.items()))}}}}}'


def _text_of_sizes(collective: tuple[str, Sizes]) -> str:
    name, sizes = collective
    lines = (f'   "{nbytes}": {json.dumps(times)}' for nbytes, times in sizes)
    return f'  "{name}": {{\n{_joined(lines)}}}'


def _joined(lines: Iterable[str]) -> str:
    return ",\n".join(lines)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _layouts(found: Any) -> Layouts:
    match found:
        case {"format": str(name), "version": version, "layouts": list(layouts)} if name == FORMAT and version == VERSION:
            pass
        case {"format": str(name), "version": version} if name == FORMAT and version != VERSION:
            raise ValueError(f"it is a tuning table of version {version!r}, and this ncclx_mpi reads version {VERSION}")
        case _:
            raise ValueError(f"it is no tuning table, which has a 'format', {FORMAT!r}, a 'version', {VERSION}, and 'layouts'")
    made: dict[tuple[int, ...], Mapping[str, Sizes]] = {}
    for number, layout in enumerate(layouts, 1):
        where = f"layout {number}"
        nodes, collectives = _layout(where, layout)
        if nodes in made:
            raise ValueError(f"{where}: nodes {list(nodes)} come a second time")
        made[nodes] = collectives
    return made


def _layout(where: str, found: Any) -> tuple[tuple[int, ...], Mapping[str, Sizes]]:
    match found:
        case {"nodes": [*nodes], "us": dict(collectives)} if nodes and all(type(node) is int for node in nodes):
            pass
        case _:
            raise ValueError(f"{where} does not say the nodes of ranks, as in 'nodes': [0, 0, 1, 1], and times, 'us'")
    of = nodes_of(nodes).of
    if list(of) != nodes:
        raise ValueError(f"{where}: nodes are numbered in the order in which ranks meet them, {list(of)}, not {nodes}")
    return of, {collective: _sizes(f"{where}: {collective}", collective, sizes) for collective, sizes in collectives.items()}


def _sizes(where: str, collective: str, found: Any) -> Sizes:
    if collective not in ALGORITHMS:
        raise ValueError(f"{where}: there is no such collective; there are {', '.join(ALGORITHMS)}")
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{where} has no sizes, as in '65536': {{'{ALGORITHMS[collective][-1]}': 80.5}}")
    made = []
    for size, times in found.items():
        if not (size.isascii() and size.isdigit() and len(size) < 19):
            raise ValueError(f"{where}: {size!r} is no number of bytes")
        made.append((int(size), _times(f"{where} of {size} B", collective, times)))
    return sorted(made, key=lambda each: each[0])


def _times(where: str, collective: str, found: Any) -> Times:
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{where} has no times of algorithms")
    for name, us in found.items():
        if name not in ALGORITHMS[collective]:
            raise ValueError(f"{where}: there is no algorithm {name!r}; there are {', '.join(ALGORITHMS[collective])}")
        if type(us) not in (int, float) or not 0 < us < math.inf:
            raise ValueError(f"{where}: {name} cannot take {us!r} us")
    return {name: float(us) for name, us in found.items()}
