"""How a rank can fail, in words and in exit statuses."""

from __future__ import annotations

import signal

from numba_kernels.rows import NamedTuple


class Failure(NamedTuple):
    """The end of a rank that did not succeed.

    Attributes
    ----------
    rank, pid
        Who.
    code
        Exit status, as :func:`os.waitstatus_to_exitcode` gives it: negative for a signal.
    where
        On which host, if it is another one.
    story
        What there is to say instead, where no process is known to have ended.
    """

    rank: int
    pid: int
    code: int
    where: str = ""
    story: str = ""

    @property
    def status(self) -> int:
        """What a shell would say: 128 + signal for a signal."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        if self.story:
            return self.story
        who = f"rank {self.rank} (process {self.pid}{' ' * bool(self.where)}{self.where})"
        if self.code < 0:
            return f"{who} died of {signal_name(-self.code)}"
        return f"{who} ended with status {self.code}"


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RankFailed(RuntimeError):
    """A rank of :func:`ncclx_mpi.launch.run` failed; the first one that did.

    Attributes
    ----------
    rank : int
        World rank.
    remote_traceback : str
        The traceback as the rank saw it; empty if it died without one.
    """

    def __init__(self, message: str, rank: int, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        text = str(self.args[0])
        return f"{text}\n\n{self.remote_traceback}" if self.remote_traceback else text

    def __reduce__(self) -> tuple[type[RankFailed], tuple[str, int, str]]:
        return type(self), (str(self.args[0]), self.rank, self.remote_traceback)
