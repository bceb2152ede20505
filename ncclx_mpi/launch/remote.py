"""``python -m ncclx_mpi.launch.remote``: what a remote shell starts on each host; the rest comes through standard input.

So neither the token nor any word of the program is on a command line, and nothing has to be quoted for a shell. The process becomes
``ncclx run`` for one node; its standard input stays the caller's, whose end ends the ranks.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from dataclasses import asdict, dataclass
from typing import NoReturn

_LENGTH = struct.Struct("!I")
_TOKEN = "NCCLX_MPI_TOKEN"


@dataclass
class Order:
    """What a host is to run.

    Attributes
    ----------
    cwd
        The folder.
    environ
        Variables to set.
    token
        The job's.
    words
        What follows ``ncclx run``.
    """

    cwd: str
    environ: dict[str, str]
    token: str
    words: list[str]

    def pack(self) -> bytes:
        """What the caller writes."""
        data = json.dumps(asdict(self)).encode()
        return _LENGTH.pack(len(data)) + data


def main() -> NoReturn:
    """Read the order, and become what it says."""
    (length,) = _LENGTH.unpack(_exactly(_LENGTH.size))
    order = Order(**json.loads(_exactly(length)))
    try:
        os.chdir(order.cwd)
    except OSError as error:
        sys.exit(f"ncclx run: this host has no folder {order.cwd!r} ({error.strerror}); start from one that all hosts have")
    words = [sys.executable, "-m", "ncclx_mpi", "run", *order.words]
    os.execve(sys.executable, words, {**os.environ, **order.environ, _TOKEN: order.token})


def _exactly(nbytes: int) -> bytes:
    """So many bytes of standard input, and none of what follows."""
    data = b""
    while len(data) < nbytes:
        part = os.read(0, nbytes - len(data))
        if not part:
            sys.exit("ncclx run: the caller has gone")
        data += part
    return data


if __name__ == "__main__":
    main()
