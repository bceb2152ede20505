"""Pictures of the pages, as SVG, drawn from what is computed here and now, plans of collectives and blocks of a field, and from measurements.

``python docs/build.py`` writes them, and says with ``--check`` which are out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import house
import plots
import timeline
from svg import ARROW, DOT, INK, LINE, picture, text

from ncclx_mpi.algorithms import PLAN, ROWS, Algorithm
from ncclx_mpi.collectives.plan import RECV, REDUCE, SEND
from ncclx_mpi.simulate.calls import Call, plan_of

SNIPPETS = Path(__file__).parent / "snippets"
RANKS = 6
"""No power of two, so that what is done about that is seen."""
LEFT, TOP, COLUMN, ROW = 70, 34, 120, 44


class Message(NamedTuple):
    """Who sends to whom; after how many messages that follow from each other."""

    source: int
    target: int
    turn: int


class Drawing(NamedTuple):
    """What is to be drawn of the plans of all ranks."""

    messages: list[Message]
    reductions: set[tuple[int, int]]
    """Rank, turn."""


def all_of_them() -> Iterator[tuple[str, str]]:
    """Name and text of each picture."""
    for row in ROWS:
        if row.kind == PLAN:
            yield f"{row.collective}-{row.name}.svg", plan_picture(row)
    yield from plots.all_of_them()
    yield "house.svg", house.house_picture()
    yield "overlap.svg", timeline.timeline_picture(SNIPPETS / "overlap_timeline.json")
    yield "heat.svg", field_picture(json.loads((SNIPPETS / "heat.out").read_text()))


def plan_picture(row: Algorithm) -> str:
    """One line for each rank, time from left to right, an arrow for each message; a dot where something is reduced."""
    drawing = traced(row)
    turns = max((message.turn for message in drawing.messages), default=0) + 1
    width, height = LEFT + turns * COLUMN + 30, TOP + RANKS * ROW
    body = [text(LEFT + (turn + 0.5) * COLUMN, 18, str(turn + 1), "middle") for turn in range(turns)]
    for rank in range(RANKS):
        y = _y(rank)
        body.append(text(12, y + 4, f"rank {rank}"))
        body.append(f'<line x1="{LEFT}" y1="{y}" x2="{width - 20}" y2="{y}" stroke="{LINE}" stroke-width="1.5"/>')
    body += [_arrow(message) for message in drawing.messages]
    for rank, turn in sorted(drawing.reductions):
        body.append(f'<circle cx="{LEFT + turn * COLUMN}" cy="{_y(rank)}" r="5" fill="{DOT}"/>')
    return picture(width, height, f"{row.collective} by {row.name} on {RANKS} ranks" + " of two nodes" * bool(row.by_node), body)


def traced(row: Algorithm) -> Drawing:
    """Let the plans of all ranks take their course, with a message as the unit of time, and nothing else that takes any."""
    nodes = tuple(2 * rank // RANKS for rank in range(RANKS)) if row.by_node else ()
    call = Call(RANKS, 0 if row.collective == "barrier" else 4 * RANKS, 4, nodes=nodes)
    plans = [plan_of(row, call, rank).steps for rank in range(RANKS)]
    sends = {
        (rank, step["peer"], step["number"]): (rank, i)
        for rank, p in enumerate(plans)
        for i, step in enumerate(p)
        if step["kind"] == SEND
    }
    known: dict[tuple[int, int], int] = {}

    def begun(rank: int, index: int) -> int:
        step = plans[rank][index]
        return max((ended(rank, int(before)) for before in (step["first"], step["second"]) if before >= 0), default=0)

    def ended(rank: int, index: int) -> int:
        if (rank, index) not in known:
            step = plans[rank][index]
            turn = begun(rank, index)
            if step["kind"] == RECV:
                turn = max(turn, begun(*sends[int(step["peer"]), rank, int(step["number"])])) + 1
            known[rank, index] = turn
        return known[rank, index]

    messages, reductions = [], set()
    for rank, plan in enumerate(plans):
        for index, step in enumerate(plan):
            if step["kind"] == RECV:
                messages.append(Message(int(step["peer"]), rank, ended(rank, index) - 1))
            elif step["kind"] == REDUCE:
                reductions.add((rank, ended(rank, index)))
    return Drawing(messages, reductions)


def field_picture(found: dict[str, list[list[float]]]) -> str:
    """Squares in the colour of their temperature, and the blocks of the ranks around them."""
    field, owners = found["field"], found["owners"]
    cell, hottest = 14, max(max(row) for row in field)
    width, height = len(field[0]) * cell + 40, len(field) * cell + 40
    body = [
        f'<rect x="{20 + x * cell}" y="{20 + y * cell}" width="{cell}" height="{cell}" fill="{_heat(value / hottest)}"/>'
        for y, row in enumerate(field)
        for x, value in enumerate(row)
    ]
    body = ['<g shape-rendering="crispEdges">', *body, "</g>"]
    for y, row in enumerate(owners):
        for x, owner in enumerate(row):
            left, top = 20 + x * cell, 20 + y * cell
            if x and row[x - 1] != owner:
                body.append(_edge(left, top, left, top + cell))
            if y and owners[y - 1][x] != owner:
                body.append(_edge(left, top, left + cell, top))
    for rank in sorted({int(owner) for row in owners for owner in row}):
        places = [(x, y) for y, row in enumerate(owners) for x, owner in enumerate(row) if owner == rank]
        body.append(text(26 + places[0][0] * cell, 36 + places[0][1] * cell, f"rank {rank}"))
    return picture(width, height, "the plate, and the blocks of the ranks", body, is_plate=True)


def _heat(part: float) -> str:
    """From pale blue to red."""
    cold, hot = (226, 236, 250), (217, 72, 15)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(cold, hot, strict=True))


def _edge(x1: int, y1: int, x2: int, y2: int) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="2"/>'


def _y(rank: int) -> int:
    return TOP + rank * ROW + 14


def _arrow(message: Message) -> str:
    x = LEFT + message.turn * COLUMN
    start, end = (x + 8, _y(message.source)), (x + COLUMN - 8, _y(message.target))
    return (
        f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{ARROW}" stroke-width="1.5" '
        'marker-end="url(#head)"/>'
    )
