"""The smallest example of each public name: pieces of the files of snippets/reference, each of which runs by itself.

ncclx run -n 2 docs/examples.py FILE

A piece begins with a comment that says of which names it is an example. The lines before the first one belong to all pieces of the file.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "snippets" / "reference"
MARK = re.compile(r"^# example: (.*)\n", re.MULTILINE)
FOR_TESTS = re.compile(r"^# (?:ranks|ends with): .*\n", re.MULTILINE)
COLLECTIVES = "ncclx run -n 6 every_collective.py"
"""What runs with each algorithm forced."""
MODULES = ("ncclx_mpi.MPI.", "ncclx_mpi.testing.")


class Piece(NamedTuple):
    """An example."""

    names: tuple[str, ...]
    text: str
    line: int
    """Of the file, before the text."""


class Program(NamedTuple):
    """A file of examples."""

    path: Path
    begin: str
    pieces: tuple[Piece, ...]

    def run(self) -> None:
        """Run each piece by itself."""
        for piece in self.pieces:
            space: dict[str, object] = {"__name__": "__main__"}
            try:
                exec(compile(self.begin, self.path, "exec"), space)
                exec(compile("\n" * piece.line + piece.text, self.path, "exec"), space)
            except BaseException as error:
                error.add_note(f"in the example of {', '.join(piece.names)}")
                raise


def read(path: Path) -> Program:
    """Take a file of examples apart."""
    text = path.read_text()
    begin, *parts = MARK.split(text)
    ends = [match.end() for match in MARK.finditer(text)]
    pieces = [
        Piece(tuple(names.split()), body.strip() + "\n", text.count("\n", 0, end))
        for names, body, end in zip(parts[::2], parts[1::2], ends, strict=True)
    ]
    return Program(path, FOR_TESTS.sub("", begin).strip() + "\n", tuple(pieces))


def programs() -> Iterator[Program]:
    """All of them."""
    return map(read, sorted(FOLDER.glob("*.py")))


def by_name() -> dict[str, str]:
    """The example of each name that has one."""
    return {name: piece.text for program in programs() for piece in program.pieces for name in piece.names}


def candidates(name: str, owner: type | None) -> list[str]:
    """Names under which the example of a documented one may be: its own, or for a method that of the class that it is inherited from."""
    short = next((name.removeprefix(module) for module in MODULES if name.startswith(module)), name)
    return [short, *(f"{base.__name__}.{short.rsplit('.', 1)[-1]}" for base in (owner.__mro__ if owner else ()))]


if __name__ == "__main__":
    read(Path(sys.argv[1])).run()
