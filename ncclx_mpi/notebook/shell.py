"""The IPython shell of a rank: what it shows goes to the kernel."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, ClassVar

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from ncclx_mpi import errors
from ncclx_mpi.notebook.messages import Cleared, Raised, Result, Shown
from ncclx_mpi.notebook.post import Post, Stream

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class RankShell(InteractiveShell):
    """Runs the cells of one rank.

    Attributes
    ----------
    post : Post
        To the kernel; set before the shell is made.
    streams : list of Stream
        What prints to the kernel; as well.
    """

    post: ClassVar[Post]
    streams: ClassVar[list[Stream]]

    def init_history(self) -> None:
        """Keep no history on disk: the kernel's has the cells."""
        self.config.HistoryManager.enabled = False
        super().init_history()

    def init_displayhook(self) -> None:
        """Show results by messages."""
        self.displayhook_class = _Results
        super().init_displayhook()

    def init_display_pub(self) -> None:
        """Show objects by messages."""
        self.display_pub_class = _Publisher
        super().init_display_pub()

    def enable_gui(self, gui: str | None = None) -> None:
        """A rank runs no event loop between cells."""
        if gui is not None:
            raise UsageError(f"ranks have no event loop for {gui!r}; `%matplotlib inline` shows figures")

    def ask_exit(self) -> None:
        """Say how ranks end: ``exit`` and ``quit`` come here."""
        raise UsageError("ranks live on between cells; `%ranks --stop` ends them")

    def _get_exc_info(self, exc_tuple: Any = None) -> Any:
        """The exception to show; of one that says it all, from the call in the user's code that raised it."""
        etype, value, trace = super()._get_exc_info(exc_tuple)
        if issubclass(etype, KeyboardInterrupt | errors.Exception):
            _cut_own_end(trace)
        return etype, value, trace

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        self.show(Raised(self.InteractiveTB.stb2text(stb)))

    def show(self, message: Any) -> None:
        """Send something to show, below what was printed before."""
        for stream in self.streams:
            stream.end_line()
        self.post.send(message)


def _cut_own_end(trace: TracebackType | None) -> None:
    """Take the frames of this package off the end of a traceback that begins elsewhere."""
    last_of_user = None
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            last_of_user = trace
        trace = trace.tb_next
    if last_of_user is not None:
        last_of_user.tb_next = None


class _Results(DisplayHook):
    """Sends the value of a last expression instead of printing it."""

    def write_output_prompt(self) -> None:
        """Print no prompt: the kernel says whose result it is."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        if format_dict:
            self.shell.show(Result(format_dict, md_dict or {}))


class _Publisher(DisplayPublisher):
    """Sends what ``display`` is called with."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: object = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        self.shell.show(Shown(data, metadata or {}, transient or {}, update))

    def clear_output(self, wait: bool = False) -> None:
        self.shell.show(Cleared(wait))
