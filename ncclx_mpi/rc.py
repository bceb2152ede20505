"""Run-time configuration: the names of ``mpi4py.rc``, and our own settings.

Set them before ``MPI`` is imported, in the program or in the environment (which wins for the names of mpi4py, as it does there):

>>> from ncclx_mpi import rc
>>> rc.errors = "exception"
>>> rc(thread_level="serialized", timeout=30.0)

The names of mpi4py are read from ``MPI4PY_RC_<NAME>``, ours from ``NCCLX_MPI_<NAME>``. A name that does not exist raises
TypeError here, and is warned about in the environment, with the closest name that does exist.

The module is its own configuration object, as ``mpi4py.rc`` is both.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ncclx_mpi.algorithms import ALGORITHMS, ORDER, ORDERS
from numba_kernels.rows import NamedTuple

_YES, _NO = ("1", "yes", "true", "on", "y"), ("0", "no", "false", "off", "n")


class Setting(NamedTuple):
    """One configurable name.

    Attributes
    ----------
    variable : str
        Environment variable.
    default : object
        Value if nothing is set; its type is the setting's type unless `kind` says otherwise.
    kind : type
        ``bool``, ``int``, ``float`` or ``str``.
    choices : tuple
        Allowed values; empty for any value of the type (numbers: not negative).
    doc : str
        What it does.
    """

    variable: str
    default: Any
    kind: type
    choices: tuple[Any, ...]
    doc: str


def _theirs(name: str, default: Any, kind: type, choices: tuple[Any, ...], doc: str) -> tuple[str, Setting]:
    return name, Setting(f"MPI4PY_RC_{name.upper()}", default, kind, choices, doc)


def _ours(name: str, default: Any, kind: type, choices: tuple[Any, ...], doc: str) -> tuple[str, Setting]:
    return name, Setting(f"NCCLX_MPI_{name.upper()}", default, kind, choices, doc)


SETTINGS: dict[str, Setting] = dict(
    [
        _theirs("initialize", True, bool, (), "initialize at import of MPI"),
        _theirs("threads", True, bool, (), "initialize with thread support"),
        _theirs("thread_level", "multiple", str, ("single", "funneled", "serialized", "multiple"), "thread support to ask for"),
        _theirs("finalize", None, bool, (), "finalize at exit; None: if MPI was initialized at import"),
        _theirs("fast_reduce", True, bool, (), "reduce Python objects along a tree instead of gathering them"),
        _theirs("recv_mprobe", True, bool, (), "receive objects by matched probes; always so here"),
        _theirs("irecv_bufsz", 32768, int, (), "bytes of the buffer of irecv() for messages that are not objects"),
        _theirs(
            "errors", "exception", str, ("exception", "default", "abort", "fatal"), "error handler of COMM_WORLD and COMM_SELF"
        ),
        _ours("timeout", 0.0, float, (), "seconds after which a wait raises and says who waits for whom; 0: never"),
        _ours("join_timeout", 60.0, float, (), "seconds that a rank waits at start for the others"),
        _ours(
            "stores",
            "auto",
            str,
            ("auto", "streamed", "plain"),
            "how bulk data is written for peers: past the caches or not; auto: as blocks are faster read and written",
        ),
        _ours(
            "copies",
            "auto",
            str,
            ("auto", "direct", "piped"),
            "how bulk data moves: copied once by the kernel where it may, or through shared memory; auto: by trying both",
        ),
        _ours(
            "report_tuning",
            False,
            bool,
            (),
            "each rank writes at Finalize which way its bulk data went, since when, and from which times, to its standard error",
        ),
        *(
            _ours(f"algo_{name}", "auto", str, (), f"algorithm of {name}: auto, {', '.join(names)}")
            for name, names in ALGORITHMS.items()
        ),
        _ours(
            ORDER,
            "auto",
            str,
            ORDERS,
            "how arrays are reduced: rank: ((0 op 1) op 2) ...; auto: as the algorithm does, with the same bits on all ranks and in all runs",
        ),
        _ours(
            "tuning_file",
            "",
            str,
            (),
            "file of measured times by which plans are chosen, from `ncclx bench --tune`, on all ranks the same; empty: by a model",
        ),
        _ours(
            "topology",
            "machine",
            str,
            (),
            "nodes of a job: machine: the machine is one; vnode:K: simulated nodes of K ranks; nolocal: of one",
        ),
        _ours(
            "topology_file",
            "",
            str,
            (),
            "file that says in which rack, zone and data centre hosts are; empty: what Slurm tells each task",
        ),
        _ours(
            "network",
            "",
            str,
            (),
            "what joins simulated nodes, as in credits=2,delay=50,jitter=200,shuffled,seed=7: packets under way, and how late (us) they are",
        ),
        _ours(
            "heartbeat",
            "0.5,3",
            str,
            (),
            "signs of life between the hosts of a job: one each period, and a host without one for the limit is lost; in seconds",
        ),
        _ours(
            "far_windows",
            "auto",
            str,
            ("auto", "direct", "messages"),
            "how windows of other hosts are accessed: direct: read and written by UCX; messages: by requests; auto: direct if UCX has RDMA",
        ),
        _ours(
            "far_transport",
            "auto",
            str,
            ("auto", "tcp", "ucx"),
            "by what other hosts are reached: sockets of this library, or UCX; auto: UCX if there is RDMA, or a setting asks for it",
        ),
        _ours(
            "interfaces",
            "",
            str,
            (),
            "interfaces by whose addresses the sockets are reached, as in eth0,ib0; empty: all but the loopback",
        ),
        _ours(
            "ucx_library",
            "",
            str,
            (),
            "path of the libucp.so by which ranks of other hosts are reached; empty: the first that is found",
        ),
        _ours(
            "lanes",
            "",
            str,
            (),
            "devices that large messages to other hosts share, as in eth1,eth2, or twice the same; small ones go by the first that lives",
        ),
        _ours(
            "lane_limits",
            "",
            str,
            (),
            "segments that a lane has at once, and their bytes, by how far the peer is, as in rack=4,zone=8,dc=16,world=32x256K",
        ),
        _ours(
            "progress_thread",
            "off",
            str,
            (),
            "thread that moves messages and collectives on while a rank computes: on: where the rank runs; processors such as 4-7: "
            "the ranks of a node take one each; off: they move in calls of MPI",
        ),
        _ours("cache_dir", "", str, (), "folder of the compiled-code cache; empty: the user's cache folder"),
        _ours("cubins", "", str, (), "folder of GPU kernels that `python -m numba_kernels.compile --output` made ahead"),
    ]
)

INTERNAL = ("JOB", "RANK", "SIZE", "LOCAL_RANK", "APPNUM", "PARENT", "TOKEN", "RSH")
"""``NCCLX_MPI_`` variables that the launcher hands to its children, or reads itself."""


class Configuration(ModuleType):
    """The class of this module: settings are attributes, unknown names raise TypeError.

    ``type(rc)(errors="fatal")`` makes another one, which nobody heeds, as ``mpi4py.Rc`` does.
    """

    def __init__(self, **kwargs: Any) -> None:
        self(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set one setting."""
        if name not in SETTINGS and not name.startswith("_"):
            raise TypeError(f"object has no attribute {name!r}{_suggest(name, SETTINGS)}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Return one setting: what was set, else the environment's value, else the default."""
        if name not in SETTINGS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_suggest(name, SETTINGS)}")
        setting = SETTINGS[name]
        text = os.environ.get(setting.variable)
        if text is None:
            return setting.default
        return _checked(setting.variable, setting, _parse(setting, text), text)

    def __dir__(self) -> list[str]:
        """Return the settings, and what every module has; the rest of this one is not for programs that set whatever they find."""
        return [*SETTINGS, *(name for name in vars(self) if name.startswith("_"))]

    def __call__(self, **kwargs: Any) -> None:
        """Set several settings."""
        for name in kwargs:
            if name not in SETTINGS:
                raise TypeError(f"unexpected argument {name!r}{_suggest(name, SETTINGS)}")
        for name, value in kwargs.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        """Return repr(self)."""
        return f"<{__name__}>"


class Options(NamedTuple):
    """The settings of ``mpi4py.rc`` as they were when MPI was imported, checked."""

    initialize: bool
    threads: bool
    thread_level: str
    finalize: bool
    fast_reduce: bool
    recv_mprobe: bool
    irecv_bufsz: int
    errors: str


def resolve() -> Options:
    """Return the settings of ``mpi4py.rc``: environment, else what the program set here or in ``mpi4py.rc``, else default."""
    _check_ours()
    values = {name: _resolve_one(name) for name in Options._fields}
    if values["finalize"] is None:
        values["finalize"] = values["initialize"]
    _resolved[:] = [Options(**values)]
    return _resolved[0]


_resolved: list[Options] = []


def options() -> Options:
    """Return what :func:`resolve` found when MPI was imported."""
    return _resolved[0] if _resolved else resolve()


def warn_unknown(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Warn about each ``NCCLX_MPI_`` variable that nobody reads; returns their names."""
    known = {setting.variable for setting in SETTINGS.values()} | {f"NCCLX_MPI_{name}" for name in INTERNAL}
    unknown = sorted(name for name in environ if name.startswith("NCCLX_MPI_") and name not in known)
    for name in unknown:
        warnings.warn(f"environment variable {name} is not known to ncclx_mpi{_suggest(name, known)}", stacklevel=2)
    return unknown


def _check_ours() -> None:
    """Take back what the program set of our own settings, where they do not allow it."""
    its = vars(sys.modules[__name__])
    for name, setting in SETTINGS.items():
        if name in its and name not in Options._fields:
            its[name] = _checked(f"mpi4py.rc.{name}", setting, its[name], its[name])


def _resolve_one(name: str) -> Any:
    setting = SETTINGS[name]
    text = os.environ.get(setting.variable)
    if text is not None:
        value = _parse(setting, text)
        setattr(sys.modules[__name__], name, value)
    elif name in vars(sys.modules[__name__]):
        value = text = vars(sys.modules[__name__])[name]
    else:
        value = text = getattr(getattr(sys.modules.get("mpi4py"), "rc", None), name, setting.default)
    return _checked(f"mpi4py.rc.{name}", setting, value, text)


def _parse(setting: Setting, text: str) -> Any:
    """Return the value of `text`, or `text` itself if it is no value of this setting."""
    word = text.strip().lower()
    if setting.kind is bool:
        return True if word in _YES else False if word in _NO else text
    if setting.kind is str:
        return word if setting.choices else text
    try:
        return setting.kind(word)
    except ValueError:
        return text


def _checked(label: str, setting: Setting, value: Any, given: Any) -> Any:
    """Return `value` if the setting allows it, else warn and return the default."""
    if setting.kind is bool and value in ("yes", "no"):
        value = value == "yes"
    if value is None and setting.default is None:
        return None
    kinds: Any = (int, float) if setting.kind is float else setting.kind
    number = setting.kind in (int, float)
    valid = isinstance(value, kinds) and not (number and (isinstance(value, bool) or value < 0))
    if valid and (not setting.choices or value in setting.choices):
        return value
    warnings.warn(f"{label}: unexpected value {given!r}", RuntimeWarning, stacklevel=3)
    return setting.default


def _suggest(name: str, known: Any) -> str:
    if name.startswith("__"):  # what Python asks every module for
        return ""
    import difflib  # for a misspelt name only

    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


rc = sys.modules[__name__]
rc.__class__ = Configuration
