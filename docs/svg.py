"""What all pictures have in common: colours, words, the frame around them."""

from __future__ import annotations

import html

INK, ARROW, DOT, LINE, PAPER = "#1f2933", "#1f6feb", "#d9480f", "#c5ccd6", "#ffffff"
STYLE = f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}"'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(words)}</text>'


def picture(width: int, height: int, title: str, body: list[str]) -> str:
    """The whole file, on a light ground."""
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{ARROW}"/></marker>'
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" {STYLE}>',
        f"<title>{html.escape(title)}</title>",
        f"<defs>{head}</defs>",
        f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
