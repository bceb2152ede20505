"""Plans as GOAL text, the language of schedules that LogGOPSim and others read; and back.

Comments have what GOAL lacks: the call, and where in which buffers bytes are. So what is read is the same plans, and can be proved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ncclx_mpi.algorithms import PLAN, Algorithm, rows_of
from ncclx_mpi.collectives.plan import COPY, FIELDS, JOIN, RECV, REDUCE, SEND, Plan, step_type
from ncclx_mpi.simulate.calls import Call
from ncclx_mpi.simulate.network import Network
from numba_kernels.rows import NamedTuple

_PLACES = ("kind", "nbytes", "buffer", "offset", "low_buffer", "low_offset", "high_buffer", "high_offset")
_CALL = re.compile(r"// call (\w+) (\w+)((?: \w+=[\d,]+)*)")
_RANK = re.compile(r"rank (\d+) \{")
_TEMP = re.compile(r"// temp (\d+)")
_PLACE = re.compile(rf"// at((?: -?\d+){{{len(_PLACES)}}})")
_MESSAGE = re.compile(r"l(\d+): (send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)")
_CALC = re.compile(r"l(\d+): calc \d+")
_REQUIRES = re.compile(r"l(\d+) requires l(\d+)")


class Schedule(NamedTuple):
    """What a file has."""

    row: Algorithm
    call: Call
    plans: list[Plan]


def text(schedule: Schedule, network: Network) -> Iterator[str]:
    """The lines of a file; copies and reductions take as many nanoseconds as on a network."""
    row, call, plans = schedule
    yield f"// call {row.collective} {row.name} {' '.join(_call_words(call))}"
    yield f"num_ranks {call.size}"
    for rank, plan in enumerate(plans):
        yield f"rank {rank} {{"
        yield f"// temp {plan.temp}"
        for index, values in enumerate(plan.steps.tolist()):
            step = dict(zip(FIELDS, values, strict=True))
            yield "// at " + " ".join(str(step[name]) for name in _PLACES)
            yield f"l{index}: {_operation(step, network)}"
            for other in dict.fromkeys((step["first"], step["second"])):
                if other >= 0:
                    yield f"l{index} requires l{other}"
        yield "}"


def _call_words(call: Call) -> Iterator[str]:
    for name, value in call._asdict().items():
        if value != call._field_defaults.get(name):
            yield f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else int(value)}"


def _operation(step: dict[str, int], network: Network) -> str:
    kind, nbytes = step["kind"], step["nbytes"]
    if kind in (SEND, RECV):
        return (
            f"{'send' if kind == SEND else 'recv'} {nbytes}b {'to' if kind == SEND else 'from'} {step['peer']} tag {step['number']}"
        )
    byte = {COPY: network.copy, REDUCE: network.reduce, JOIN: 0.0}[kind]
    return f"calc {round(1000 * nbytes * byte)}"


def read(lines: Iterable[str]) -> Schedule:
    """Read what :func:`text` has written.

    Raises
    ------
    ValueError
        A line is none of it.
    """
    found, plans, number = None, [], 0
    rest = ((number, line.strip()) for number, line in enumerate(lines, 1))
    for number, line in rest:
        if words := _CALL.fullmatch(line):
            found = _call(number, *words.groups())
        elif _RANK.fullmatch(line):
            plans.append(_plan(rest))
        elif line and not line.startswith("num_ranks "):
            raise _unexpected(number, line)
    if found is None or len(plans) != found[1].size:
        raise ValueError(f"line {number}: the file ends without the plans of all ranks of a call, which its first line names")
    return Schedule(*found, plans)


def _unexpected(number: int, line: str) -> ValueError:
    return ValueError(f"line {number}: {line[:60]!r} is no line of a schedule that ncclx simulate has written")


def _call(number: int, collective: str, name: str, words: str) -> tuple[Algorithm, Call]:
    row = next((row for row in rows_of(collective) if row.name == name and row.kind == PLAN), None)
    values: dict[str, int | tuple[int, ...]] = {}
    for key, _, value in (word.partition("=") for word in words.split()):
        values[key] = tuple(map(int, value.split(","))) if key in ("counts", "nodes") else int(value)
    if row is not None and {"size", "nbytes"} <= set(values) <= set(Call._fields):
        call = Call(**values)  # type: ignore[arg-type]  # by name
        if 0 <= call.root < call.size and call.itemsize > 0 and {len(call.counts), len(call.nodes)} <= {0, call.size}:
            return row, call
    raise ValueError(f"line {number}: {collective} {name}{words} is no call that goes by a plan")


def _plan(lines: Iterator[tuple[int, str]]) -> Plan:
    """The steps of a rank, up to its closing brace."""
    steps: list[dict[str, int]] = []
    temp, places = 0, ""
    for number, line in lines:
        if line == "}":
            return Plan.of(_table(steps), temp)
        if words := _TEMP.fullmatch(line):
            temp = int(words[1])
        elif words := _PLACE.fullmatch(line):
            places = words[1]
        elif (words := _MESSAGE.fullmatch(line) or _CALC.fullmatch(line)) and int(words[1]) == len(steps):
            step = dict(zip(_PLACES, map(int, places.split()), strict=True)) | {"first": -1, "second": -1}
            if words.re is _MESSAGE:
                kind = SEND if words[2] == "send" else RECV
                step |= {"kind": kind, "nbytes": int(words[3]), "peer": int(words[4]), "number": int(words[5])}
            steps.append(step)
        elif (words := _REQUIRES.fullmatch(line)) and int(words[1]) == len(steps) - 1 and steps[-1]["second"] < 0:
            steps[-1]["second" if steps[-1]["first"] >= 0 else "first"] = int(words[2])
        else:
            raise _unexpected(number, line)
    raise ValueError("the file ends within the plan of a rank")


def _table(steps: Sequence[dict[str, int]]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    return np.array([tuple(step.get(field, 0) for field in FIELDS) for step in steps], dtype=step_type())
