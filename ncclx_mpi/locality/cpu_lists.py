"""Sets of processors as Linux writes them: ``0-3,8``."""

from __future__ import annotations

from collections.abc import Iterable


def numbers(text: str) -> frozenset[int]:
    """Those of ``0-3,8``."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def ranges(found: Iterable[int]) -> str:
    """The inverse of that: ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(found):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][-1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
