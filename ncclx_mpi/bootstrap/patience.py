"""How long a start may wait, and what ends it earlier."""

from __future__ import annotations

import select
import time

_SLICE_SECONDS = 0.2


class Gone(Exception):
    """Whoever started this process has gone, or wants it to end."""


class Patience:
    """A span of time that begins now.

    Parameters
    ----------
    seconds
        How long it is.
    lifeline
        Descriptor that becomes readable when the wait is to end: our caller has gone, or sends a signal. -1 for none.
    """

    def __init__(self, seconds: float, lifeline: int = -1) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._lifeline = lifeline

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.left == 0

    @property
    def slice(self) -> float:
        """Seconds to wait for something else before :meth:`check` is called again."""
        return min(self.left, _SLICE_SECONDS)

    def check(self, seconds: float = 0.0) -> None:
        """Sleep, unless the wait is to end.

        Raises
        ------
        Gone
            It is.
        """
        if self._lifeline < 0:
            time.sleep(min(seconds, self.left))
        elif select.select([self._lifeline], [], [], min(seconds, self.left))[0]:
            raise Gone("the caller has gone")
