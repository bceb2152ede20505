"""What all pictures have in common: colours, words, the frame around them."""

from __future__ import annotations

import html

INK, ARROW, DOT, LINE, PAPER = "#1f2933", "#1f6feb", "#d9480f", "#c5ccd6", "#ffffff"
GREEN, VIOLET = "#2b8a3e", "#7048a8"
DARK = {INK: "#dfe5ec", ARROW: "#6ea8fe", DOT: "#ff8f52", LINE: "#4a5361", PAPER: "#14181e", GREEN: "#69db7c", VIOLET: "#b197fc"}
"""What each colour is on a dark page."""
STYLE = f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}"'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(words)}</text>'


def picture(width: int, height: int, title: str, body: list[str], *, is_plate: bool = False) -> str:
    """The whole file; its colours are those of a dark page on one, but for a plate, whose colours mean something."""
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{ARROW}"/></marker>'
    )
    dark = "".join(f'[fill="{day}"]{{fill:{night}}}[stroke="{day}"]{{stroke:{night}}}' for day, night in DARK.items())
    style = [] if is_plate else [f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>"]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" {STYLE}>',
        f"<title>{html.escape(title)}</title>",
        *style,
        f"<defs>{head}</defs>",
        f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
