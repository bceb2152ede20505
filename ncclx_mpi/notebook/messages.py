"""What the kernel, the fork server and the ranks of a notebook say to each other; each travels as :mod:`ncclx_mpi.launch.protocol` has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# To the fork server, once --------------------------------------------------------------------------------------------------


@dataclass
class Start:
    """How the ranks are to be.

    Attributes
    ----------
    path
        ``sys.path`` of the kernel.
    shell
        Traits of the ranks' IPython shells, and ``profile``, the folder of their profile.
    """

    path: list[str]
    shell: dict[str, Any] = field(default_factory=dict)


# From the fork server ------------------------------------------------------------------------------------------------------


@dataclass
class Written:
    """What a rank, or a process that it started, wrote to descriptor 1 or 2."""

    rank: int
    stream: int
    data: bytes


@dataclass
class Places:
    """Where all ranks are.

    Attributes
    ----------
    text
        A line for each rank.
    waiting
        Ranks that are in an operation, and for how many seconds.
    """

    text: str
    waiting: dict[int, float]


@dataclass
class Ended:
    """No rank is left.

    Attributes
    ----------
    refused
        Why none was started; empty if they were.
    failures
        How each rank ended that did not end well, the cause of the others first.
    abort_code
        A rank has ended the job with it; None if none has.
    """

    refused: str
    failures: list[str]
    abort_code: int | None


# To a rank -----------------------------------------------------------------------------------------------------------------


@dataclass
class Cell:
    """A cell to run.

    Attributes
    ----------
    source
        As it was typed.
    heading
        The line above it, which is not run.
    number
        Of the cell, as the notebook counts.
    pushed
        Pickle of variables to set before, by name; empty for none.
    pulled
        Names of variables to send back after.
    """

    source: str
    heading: str
    number: int
    pushed: bytes = b""
    pulled: tuple[str, ...] = ()


# From a rank ---------------------------------------------------------------------------------------------------------------


@dataclass
class Ready:
    """A rank that waits for its first cell."""

    pid: int


@dataclass
class Text:
    """What Python code printed, to stream 1 or 2."""

    stream: int
    text: str


@dataclass
class Shown:
    """An object to show, by MIME type; arguments as those of IPython's ``DisplayPublisher.publish``."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    transient: dict[str, Any]
    update: bool


@dataclass
class Cleared:
    """What was shown is to go, at once or with the next output."""

    wait: bool


@dataclass
class Result:
    """The value of a cell's last expression, by MIME type."""

    data: dict[str, Any]
    metadata: dict[str, Any]


@dataclass
class Raised:
    """The traceback of an exception that the cell did not catch."""

    text: str


@dataclass
class Done:
    """The end of a cell.

    Attributes
    ----------
    error
        What it raised, in one line; empty if nothing.
    is_interrupted
        That was a KeyboardInterrupt.
    pulled
        Pickle of the variables that were asked for, by name; empty for none.
    """

    error: str = ""
    is_interrupted: bool = False
    pulled: bytes = b""
