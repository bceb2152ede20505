"""What a launcher's MPI is asked for, in files of a folder: for machines that have no MPI, or none that crosses hosts."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

THREAD_SINGLE = 0
_SECONDS = 60.0


class World:
    """Ranks that write each other files."""

    def __init__(self, folder: str, rank: int, size: int) -> None:
        self._folder, self._rank, self._size = Path(folder), rank, size
        self._turn = 0

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size

    def bcast(self, what: Any, root: int) -> Any:
        return self.allgather(what)[root]

    def allgather(self, what: Any) -> list[Any]:
        self._turn += 1
        made = self._folder / f"made-{self._turn}-{self._rank}"
        made.write_bytes(pickle.dumps(what))
        made.rename(self._folder / f"{self._turn}-{self._rank}")
        return [self._read(self._folder / f"{self._turn}-{rank}") for rank in range(self._size)]

    def _read(self, file: Path) -> Any:
        end = time.monotonic() + _SECONDS
        while not file.exists():
            assert time.monotonic() < end, f"{file.name} never came"
            time.sleep(0.005)
        return pickle.loads(file.read_bytes())


class Module:
    """``mpi4py.MPI``, as far as it is used."""

    THREAD_SINGLE = THREAD_SINGLE

    def __init__(self, world: World) -> None:
        self.COMM_WORLD = world
        self.is_finalized = False

    def Is_initialized(self) -> bool:
        return True

    def Finalize(self) -> None:
        self.is_finalized = True

    def Get_library_version(self) -> str:
        return "A stand-in 1.0\nmore of it"
