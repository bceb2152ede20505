"""What ranks waited in, and since when, as a picture, from a file of docs/snippets that a program wrote from what the trace saw."""

from __future__ import annotations

import json
from pathlib import Path

from svg import ARROW, DOT, LINE, picture, text

LEFT, WIDTH, TOP, ROW, BAR = 70, 720, 40, 44, 22
COLOURS = {"recv": DOT, "barrier": ARROW}
"""Of what a rank waits in; what it does between calls is grey."""


def timeline_picture(path: Path) -> str:
    """A line for each rank, time from left to right."""
    ranks = [json.loads(line) for line in path.read_text().splitlines()]
    end = max(call["to"] for rank in ranks for call in rank["calls"])
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if end / step <= 10)
    bottom = TOP + ROW * len(ranks)
    body = []
    for ms in range(0, int(end) + 1, step):
        x = LEFT + WIDTH * ms / end
        body += [
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}" stroke="{LINE}"/>',
            text(round(x), 22, f"{ms} ms", "middle"),
        ]
    for number, rank in enumerate(ranks):
        y = TOP + ROW * number
        body += [text(12, y + 20, f"rank {rank['rank']}"), _bar(0, end, end, y, LINE)]
        body += [_bar(call["from"], call["to"], end, y, COLOURS[call["in"]]) for call in rank["calls"]]
    words = {LINE: "works, or makes short calls", DOT: "waits for the message", ARROW: "waits in a barrier"}
    for number, (colour, meaning) in enumerate(words.items()):
        x = LEFT + 230 * number
        body += [f'<rect x="{x}" y="{bottom + 8}" width="14" height="14" fill="{colour}"/>', text(x + 22, bottom + 20, meaning)]
    return picture(LEFT + WIDTH + 30, bottom + 36, "what two ranks waited in", body)


def _bar(start: float, stop: float, end: float, y: int, colour: str) -> str:
    left, width = LEFT + WIDTH * start / end, max(1.5, WIDTH * (stop - start) / end)
    return f'<rect x="{left:.1f}" y="{y + 4}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
