"""Fill the pages of this folder and the README: snippets from their files, the table of settings from the code.

python docs/build.py [--check]
"""

import re
import sys
from pathlib import Path

from ncclx_mpi import rc

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- file: (\S+) -->\n)```python\n.*?```\n", re.DOTALL)
TABLE = re.compile(r"(<!-- settings: begin -->\n).*?(<!-- settings: end -->)", re.DOTALL)


def snippet(match: re.Match[str]) -> str:
    """Return the block with the file's text, without the lines that are meant for the tests."""
    lines = (DOCS / match[2]).read_text().splitlines(keepends=True)
    return f"{match[1]}```python\n{''.join(line for line in lines if not line.startswith(('# ranks:', '# ends with:')))}```\n"


def settings(match: re.Match[str]) -> str:
    """Return the table of all settings."""
    rows = ["| `rc.` | variable | default | choices | meaning |", "|---|---|---|---|---|"]
    for name, setting in rc.SETTINGS.items():
        choices = ", ".join(map(str, setting.choices))
        rows.append(f"| `{name}` | `{setting.variable}` | `{setting.default!r}` | {choices} | {setting.doc} |")
    return match[1] + "\n".join(rows) + "\n" + match[2]


def filled(page: Path) -> str:
    """Return what a page should be."""
    return TABLE.sub(settings, BLOCK.sub(snippet, page.read_text()))


def main() -> int:
    """Write the pages, or say with ``--check`` which are out of date."""
    stale = [page for page in [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"] if filled(page) != page.read_text()]
    for page in stale:
        print(f"{page.name} {'is out of date' if '--check' in sys.argv else 'written'}")
        if "--check" not in sys.argv:
            page.write_text(filled(page))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
