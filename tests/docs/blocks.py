"""The blocks of the pages. Needs nothing but Python: a fresh environment has no pytest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?(`{3,})([^\n]*)\n(.*?)^\2$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """What stands between two fences of a page, and in the comment above them."""

    page: Path
    mark: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.language}, {self.first_line}"

    @property
    def first_line(self) -> str:
        return self.text.strip().splitlines()[0].strip()

    @property
    def lines(self) -> list[str]:
        """Its lines, if they are for a shell, without what is said about them."""
        if self.language != "bash":
            return []
        found = [re.sub(r"(^|\s+)#\s.*", "", line).strip() for line in self.text.replace("\\\n", " ").splitlines()]
        return [re.sub(r"\s+", " ", line) for line in found if line]

    @property
    def commands(self) -> list[str]:
        """Its lines, if they are from no file, and CI does not run the block."""
        return [] if self.mark.startswith(("file: ", "ci: ")) else self.lines


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    found = [Block(page, match[1] or "", match[3], match[4]) for match in FENCE.finditer(page.read_text())]
    return [block for block in found if not block.language.startswith("{")]
