"""``ncclx run --output-dir``: what each rank writes goes into a file of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO


class RankFiles:
    """A file ``rank-N.out`` for each rank, with what it writes to both streams, line by line, in the order in which lines end.

    Parameters
    ----------
    folder
        Is made if it is not there.
    ranks
        World ranks of this host.
    size
        Ranks of the job: numbers have as many digits as the last one, so that files are listed in their order.

    Raises
    ------
    OSError
        A file cannot be made.
    """

    def __init__(self, folder: str, ranks: Sequence[int], size: int) -> None:
        os.makedirs(folder, exist_ok=True)
        digits = len(str(size - 1))
        self._files: dict[int, BinaryIO] = {}
        for rank in ranks:
            self._files[rank] = open(Path(folder) / f"rank-{rank:0{digits}}.out", "wb", buffering=0)  # noqa: SIM115 - until `close`
        self._partial: dict[tuple[int, int], bytes] = {}

    def __call__(self, rank: int, stream: int, data: bytes) -> None:
        """Take what `rank` wrote to `stream`; empty at its end.

        Raises
        ------
        OSError
            It cannot be written: the disk is full, for one.
        """
        held = self._partial.pop((rank, stream), b"") + data
        cut = held.rfind(b"\n") + 1 if data else len(held)
        left = memoryview(held[:cut])
        while left:
            left = left[self._files[rank].write(left) :]
        if held[cut:]:
            self._partial[rank, stream] = held[cut:]

    def close(self) -> None:
        """Close the files. What a stream that never ended has begun is written first.

        Raises
        ------
        OSError
            As above.
        """
        try:
            for rank, stream in list(self._partial):
                self(rank, stream, b"")
        finally:
            for file in self._files.values():
                file.close()
