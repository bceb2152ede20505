"""The process that forks the ranks of a notebook: ``python -m ncclx_mpi.notebook.server FD RANK_FD ...``.

The first descriptor is the connection to the kernel, whose end is the end of all ranks; the others are for the ranks.
"""

from __future__ import annotations

import contextlib
import socket
import sys

from ncclx_mpi.launch import protocol
from ncclx_mpi.launch.job import Job, Outcome, Settings
from ncclx_mpi.launch.outlet import Outlet
from ncclx_mpi.launch.ready import make_ready
from ncclx_mpi.launch.relay import STDERR, STDOUT, LineRelay
from ncclx_mpi.notebook import rank as ranks
from ncclx_mpi.notebook.messages import Ended, Places, Start, Written
from ncclx_mpi.observe.describe import RankReport, reports

_READER_SECONDS = 4.0


class _Server:
    """One job, whose kernel is at the other end of `connection`."""

    def __init__(self, connection: socket.socket, ends: list[socket.socket]) -> None:
        self._connection = connection
        self._ends = ends
        self._outlet = Outlet(connection.sendall)

    def run(self, start: Start) -> None:
        """Fork the ranks, and see them to their end."""
        nranks = len(self._ends)
        make_ready(nranks)
        last_module = next(reversed(sys.modules))
        relay = LineRelay(False, {STDOUT: self._outlet, STDERR: self._outlet})
        settings = Settings(nranks, lifeline=self._connection.fileno(), on_question=self._say_places)
        try:
            job = Job(settings, relay, self._pass_on)
            rank = job.fork_ranks()
        except (ValueError, OSError) as error:
            return self._end(Ended(f"{nranks} ranks cannot be started: {error}", [], None))
        if rank is not None:
            self._be_rank(rank, start, last_module)
        for end in self._ends:
            end.close()
        return self._end(_ended(job.supervise()))

    def _be_rank(self, rank: int, start: Start, last_module: str) -> None:
        self._connection.detach()  # the job has closed it
        for other, end in enumerate(self._ends):
            if other != rank:
                end.close()
        ranks.live(rank, self._ends[rank], start, last_module)

    def _pass_on(self, rank: int, stream: int, data: bytes) -> None:
        if data:
            self._outlet.put(protocol.pack(Written(rank, stream, data)))

    def _say_places(self, job: Job) -> None:
        found = reports(job.nodes.arenas, 1)
        waiting = {report.rank: report.records[-1].seconds for report in found if report.records and report.records[-1].is_open}
        lines = [_place(report, job.pids[report.rank]) for report in found]
        self._outlet.put(protocol.pack(Places("\n".join(lines), waiting)))

    def _end(self, message: Ended) -> None:
        with contextlib.suppress(OSError):  # the kernel has gone
            self._outlet.put(protocol.pack(message))
            self._outlet.finish(_READER_SECONDS)


def _place(report: RankReport, pid: int) -> str:
    """A line on a rank; there is no communication before a cell imports it."""
    return f"  {report}" if report.pid else f"  rank {report.rank} (process {pid}): has not imported MPI"


def _ended(outcome: Outcome) -> Ended:
    return Ended("", [str(failure) for failure in outcome.failures], outcome.abort_code)


def main() -> None:
    """Entry point of ``python -m ncclx_mpi.notebook.server FD RANK_FD ...``."""
    connection, *ends = [socket.socket(fileno=int(word)) for word in sys.argv[1:]]
    for end in (connection, *ends):
        end.set_inheritable(False)
    try:
        start: Start = protocol.receive(connection)
    except (EOFError, OSError):
        return
    _Server(connection, ends).run(start)


if __name__ == "__main__":
    main()
