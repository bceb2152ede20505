"""A token for jobs that nobody gave one: it follows from a key in the user's home, which the hosts of a cluster share."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

_KEY_BYTES = 32


def token_of(job: str) -> bytes:
    """What hosts know the job by that Slurm, or torchrun, calls `job`. Who cannot read the key cannot know it.

    Raises
    ------
    RuntimeError
        There is no key and none can be made, or others may read it.
    """
    return hmac.digest(_key(), job.encode(), hashlib.sha256).hex().encode()


def _key() -> bytes:
    path = Path(os.path.expanduser("~/.config/ncclx_mpi/key"))
    try:
        if not path.exists():
            _make(path)
        status = path.stat()
        if status.st_mode & 0o077 or status.st_uid != os.getuid():
            raise RuntimeError(f"{path}, by which hosts of a job know each other, is not yours alone: remove it, or chmod 600 it")
        return path.read_bytes()
    except OSError as error:
        raise RuntimeError(
            f"the hosts of a job know each other by a key in {path}, which cannot be read or made ({error.strerror}); "
            "or put a long random text into NCCLX_MPI_TOKEN before the ranks are started"
        ) from None


def _make(path: Path) -> None:
    """Make the key, once, whatever processes on whatever hosts try to: it gets its name when it is complete."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(fd, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)
