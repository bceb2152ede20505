"""Starting processes: what Spawn and Spawn_multiple are given, the launcher that they start, and how a started process finds its parents.

A launcher of ours runs the new processes as a job of its own. It is a child of the root, whose process it watches: when that ends, so do
they. A root that finalizes waits for those that it has started, as a launcher does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ncclx_mpi import errors, process, runtime
from ncclx_mpi.api import meeting
from ncclx_mpi.api.accessors import hints
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.errhandler import Errhandler
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.info import Info
from ncclx_mpi.bootstrap import handover, launcher, nursery
from ncclx_mpi.bootstrap.patience import Patience
from ncclx_mpi.bootstrap.port import Port
from ncclx_mpi.p2p.engine import Engine, NativeComm
from numba_kernels.late_numpy import is_imported
from numba_kernels.rows import NamedTuple

if TYPE_CHECKING:
    import subprocess

_LAUNCHER = "ncclx_mpi.launch.spawned"
_PLACES = ("host", "hostfile", "add-host", "add-hostfile")

_Running: TypeAlias = "subprocess.Popen[bytes] | nursery.Forked"
_started: list[_Running] = []


class Command(NamedTuple):
    """What some of the new processes run.

    Attributes
    ----------
    words
        A program and its arguments.
    maxprocs
        How many processes run it.
    keys
        Hints: ``wd`` is the folder that they start in, ``path`` one or several in which the program is looked for.
    """

    words: list[str]
    maxprocs: int
    keys: dict[str, str]


def command(program: Any, args: Any, maxprocs: Any, info: Info) -> Command:
    """What Spawn is given at its root.

    Raises
    ------
    Exception
        ERR_ARG: `maxprocs` is less than 1.
    """
    count = integer(maxprocs, "maxprocs")
    if count < 1:
        errors.fail(errors.ERR_ARG, f"maxprocs {count}: at least 1 process is to be started")
    words = [] if args is None else [args] if isinstance(args, str | bytes) else list(args)
    return Command([os.fsdecode(word) for word in [program, *words]], count, hints(info))


def commands(programs: Any, args: Any, maxprocs: Any, info: Any) -> list[Command]:
    """What Spawn_multiple is given at its root.

    Raises
    ------
    ValueError
        The arguments are no sequences of one length.
    Exception
        As :func:`command`.
    """
    if isinstance(programs, str | bytes | os.PathLike):
        raise ValueError("expecting a sequence of strings")
    if isinstance(args, str | bytes):
        raise ValueError("expecting a sequence of sequences of strings")
    count = len(programs)
    columns = [
        _each("args", [None] * count if args is None else args, count),
        _each("maxprocs", [1] * count if maxprocs is None else maxprocs, count),
        _each("info", info, count),
    ]
    return [command(*row) for row in zip(programs, *columns, strict=True)]


def counts(programs: Any, maxprocs: Any, total: int) -> list[int]:
    """How many processes run each command, as this rank was told, if it was: what others are given does not matter."""
    given = [maxprocs] * len(programs or ()) if isinstance(maxprocs, int) else list(maxprocs or [1] * len(programs or ()))
    return given if sum(given) == total else [total]


def _each(name: str, values: Any, count: int) -> Sequence[Any]:
    """One value for each command."""
    if isinstance(values, int | Info):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"{name}: expecting {count} items, got {len(values)}")
    return list(values)


def spawn(local: NativeComm, root: int, given: Callable[[], Sequence[Command]], what: str, errhandler: Errhandler) -> CommState:
    """Start processes, and make the intercommunicator with them. Collective over `local`; the root alone asks what is `given`.

    Raises
    ------
    Exception
        ERR_SPAWN, on all ranks: a program is not there, or ended before it called MPI, or something else went wrong at the root.
    """
    engine = local.engine

    def start(side: meeting.Side) -> tuple[Any, dict[str, Any]]:
        found = [_checked(engine, command, what) for command in given()]
        opened = Port(*engine.guests.identity(engine.rank))
        try:
            running = _launch(found, opened.name, engine, what)
            try:
                return meeting.at(opened, engine, what, errors.ERR_SPAWN, _why_in_vain(running, found))(side)
            except BaseException:
                running.kill()
                running.wait()
                raise
        finally:
            opened.close()

    return meeting.meet(local, root, start, what, errors.ERR_SPAWN, errhandler)


def _checked(engine: Engine, command: Command, what: str) -> Command:
    """A command whose program was found."""
    name, folder = command.words[0], command.keys.get("wd", "")
    places = [key for key in _PLACES if key in command.keys]
    if places:
        errors.fail(
            errors.ERR_SPAWN,
            f"rank {engine.rank}: {what}: info key {places[0]!r}: processes are started on this host only; leave the key out",
        )
    if folder and not os.path.isdir(folder):
        errors.fail(errors.ERR_SPAWN, f"rank {engine.rank}: {what}: info key 'wd': there is no folder {folder!r}")
    found = None
    if os.sep not in name and command.keys.get("path"):
        found = _which(name, command.keys["path"])
    elif os.path.isfile(os.path.join(folder, name)):
        found = os.path.join(folder, name) if folder else name
    found = found or _which(name)
    if found is None:
        errors.fail(errors.ERR_SPAWN, f"rank {engine.rank}: {what}: there is no program {name!r}")
    return Command([os.path.abspath(found), *command.words[1:]], command.maxprocs, command.keys)


def _which(name: str, path: str | None = None) -> str | None:
    import shutil  # which most that start this interpreter again do without

    return shutil.which(name, path=path)


def _launch(found: Sequence[Command], port_name: str, engine: Engine, what: str) -> _Running:
    """Have a launcher forked, or start one."""
    told = {
        "parent": os.getpid(),
        "port": port_name,
        "also": ["numpy"] if is_imported() else [],  # workers run functions of their parents, and import what these do
        "programs": [{"words": each.words, "count": each.maxprocs, "folder": each.keys.get("wd", "")} for each in found],
    }
    if not _started:
        runtime.after_leaving(_wait_for_all)
    _started[:] = [running for running in _started if running.poll() is None]
    running = nursery.ask(told) or _start_launcher(told, engine, what)
    _started.append(running)
    return running


def _start_launcher(told: dict[str, Any], engine: Engine, what: str) -> _Running:
    import subprocess

    environ = process.environment_of_helpers({**os.environ, launcher.PARENT: told["port"]})
    for name in (launcher.RANK, launcher.SIZE, launcher.LOCAL_RANK, launcher.JOB, launcher.NUMBER):
        environ.pop(name, None)
    try:
        running = subprocess.Popen([sys.executable, "-m", _LAUNCHER], stdin=subprocess.PIPE, env=environ)
        assert running.stdin is not None
        with running.stdin as pipe:
            pipe.write(json.dumps(told).encode())
    except OSError as error:
        raise errors.error(
            errors.ERR_SPAWN, f"rank {engine.rank}: {what}: the launcher of the new processes did not start: {error}"
        ) from None
    return running


def _why_in_vain(running: _Running, found: Sequence[Command]) -> Callable[[], str]:
    """Says why the processes will not come."""
    patience, names = Patience(handover.join_timeout()), " and ".join(repr(each.words[0]) for each in found)

    def why() -> str:
        status = running.poll()
        if status is not None:
            return f"{names} ended with status {status} before MPI began in all processes; look at what they have written"
        if patience.is_over:
            return f"{names} did not begin MPI within {patience.seconds:g} s (more time: {handover.TIMEOUT_VARIABLE})"
        return ""

    return why


def _wait_for_all() -> None:
    """A root that has finalized ends after those that it has started."""
    for running in _started:
        running.wait()


def meet_parent(name: str, world: NativeComm, errhandler: Errhandler) -> CommState:
    """The intercommunicator with those who have started this job, and wait for it at the port `name`. Collective over it.

    Raises
    ------
    Exception
        ERR_SPAWN: they are not there any more.
    """
    connect = meeting.towards(name, world.engine, "Init", errors.ERR_SPAWN)
    return meeting.meet(world, 0, connect, "Init", errors.ERR_SPAWN, errhandler)
