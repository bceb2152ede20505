"""Finds the one UCX of this process, and calls what starts and ends it.

Two copies of UCX in a process undo each other: both patch the same functions of libc, and one resolves symbols of the other. So one that
is there already is taken, whoever has loaded it (an MPI does); then the one that a setting names; then the system's, which may have been
built for the fabric of this cluster; then that of the package ``libucx``, which has no verbs.

Structures of UCX begin with a mask of the fields that are given, and grow at their end. Those that are given here are where they are
since :data:`OLDEST`, and structures have more room (:data:`_ROOM`) than any release reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numba_kernels.rows import NamedTuple

OLDEST, NEWEST = (1, 13), (1, 22)
"""Releases whose structures were compared with ours, the first and the last."""
_NEW_PROTOCOLS = (1, 16)
"""The first release that has, unless it is told otherwise, protocols without atomic operations for endpoints that handle errors."""
ADVICE = "install one with `pip install 'ncclx-mpi[ucx]'`, or name its libucp.so in NCCLX_MPI_UCX_LIBRARY"

_SONAME = "libucp.so.0"
_QUIET = {"UCX_LOG_LEVEL": "fatal", "UCX_ERROR_SIGNALS": "", "UCX_DEBUG_SIGNO": "0", "UCX_WARN_UNUSED_ENV_VARS": "n"}
_DEFAULTS = {
    **_QUIET,
    "UCX_TLS": "^sm,self",
    "UCX_ADAPTIVE_PROGRESS": "y",
    "UCX_KEEPALIVE_INTERVAL": "1s",
    "UCX_TCP_CONN_NB": "y",
    "UCX_TCP_KEEPIDLE": "1s",
    "UCX_TCP_KEEPINTVL": "1s",
    "UCX_TCP_RX_SEG_SIZE": "264K",
    "UCX_RC_TIMEOUT": "250ms",
    "UCX_RC_RETRY_COUNT": "4",
    "UCX_UD_TIMEOUT": "10s",
}
"""Read when the library is loaded, or a worker is made: ranks of this node are reached otherwise, what it would print of peers that end is
raised where somebody waits for them, signals stay Python's, interfaces without a peer are not polled, and a silent peer is noticed soon: by
verbs after four times a quarter of a second (UCX's own is seven times a second, and some devices take seven for endless). A socket connects
while the process goes on: for a host that is silent the system would wait for seconds, or minutes, with the engine's lock held.

The segment of a socket holds an eager message, or a piece of a large one, with what is in front of it. UCX cuts what is longer, and puts
it together in memory of its own before it hands it up, a copy more; its own segment is of 64 KiB."""
_RDMA_DEVICES = Path("/sys/class/infiniband")
AGREED = ("UCX_TCP_RX_SEG_SIZE",)
"""Settings that must be the same on all hosts: a sender cuts what it sends by its own segment, for which a smaller one has no room."""
_UNITS = {"": 0, "B": 0, "K": 10, "KB": 10, "M": 20, "MB": 20, "G": 30, "GB": 30}
_FUNCTIONS = (
    "ucp_config_read", "ucp_config_modify", "ucp_config_release", "ucp_init_version", "ucp_cleanup", "ucp_context_print_info",
    "ucp_worker_create", "ucp_worker_destroy", "ucp_worker_query", "ucp_worker_release_address", "ucp_worker_progress",
    "ucp_worker_get_efd", "ucp_worker_arm", "ucp_worker_set_am_recv_handler", "ucp_am_send_nbx", "ucp_am_recv_data_nbx",
    "ucp_am_data_release", "ucp_ep_create", "ucp_ep_flush_nbx", "ucp_ep_close_nbx", "ucp_ep_print_info",
    "ucp_mem_map", "ucp_mem_unmap", "ucp_rkey_pack", "ucp_rkey_buffer_release", "ucp_ep_rkey_unpack", "ucp_rkey_destroy",
    "ucp_put_nbx", "ucp_get_nbx", "ucp_atomic_op_nbx",
    "ucp_request_free", "ucp_request_check_status", "ucp_get_version", "ucs_status_string",
)  # fmt: skip
_ROOM = 256
_RESOURCE = re.compile(r"resource \d+ .*-- (\w+)/(\S+)")
_LANE = re.compile(r"lane\[\d+\]: +\d+:(\w+)/([^.\s]+)")
_FEATURE_RMA, _FEATURE_ATOMICS, _FEATURE_WAKEUP, _FEATURE_AM = 2, 8, 16, 64
_AM_ID, _AM_FLAGS, _AM_CALL, _AM_ARGUMENT = 1, 2, 4, 8
_WHOLE_MESSAGES = 1
_SERIALIZED = 1
_FORCE = 1
_WITH_FLAGS = 16
_IN_PROGRESS = 1


class _Structure(ctypes.Structure):
    """Some words of a structure of UCX."""


class _Params(_Structure):
    _fields_ = (("mask", ctypes.c_uint64), ("features", ctypes.c_uint64), ("rest", ctypes.c_char * _ROOM))


class _WorkerParams(_Structure):
    _fields_ = (("mask", ctypes.c_uint64), ("thread_mode", ctypes.c_int), ("rest", ctypes.c_char * _ROOM))


class _WorkerAttributes(_Structure):
    _fields_ = (
        ("mask", ctypes.c_uint64),
        ("thread_mode", ctypes.c_int),
        ("address_flags", ctypes.c_uint32),
        ("address", ctypes.c_void_p),
        ("address_length", ctypes.c_size_t),
        ("rest", ctypes.c_char * _ROOM),
    )


class _Handler(_Structure):
    _fields_ = (
        ("mask", ctypes.c_uint64),
        ("id", ctypes.c_uint),
        ("flags", ctypes.c_uint32),
        ("call", ctypes.c_void_p),
        ("argument", ctypes.c_void_p),
        ("rest", ctypes.c_char * _ROOM),
    )


class _RequestParams(_Structure):
    _fields_ = (("mask", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("rest", ctypes.c_char * _ROOM))


def has_rdma() -> bool:
    """Whether this host has devices for RDMA."""
    return _RDMA_DEVICES.is_dir() and any(_RDMA_DEVICES.iterdir())


class LibraryError(ImportError):
    """There is no UCX that can be used; says why, and what to do."""


class Library(NamedTuple):
    """The UCX of this process.

    Attributes
    ----------
    path
        Of its libucp.
    reason
        Why this one.
    version
        As the library says: major, minor, release.
    handle
        What its functions are called through.
    """

    path: str
    reason: str
    version: tuple[int, int, int]
    handle: Any

    @property
    def name(self) -> str:
        """Its version, as text."""
        return ".".join(map(str, self.version))

    @property
    def has_atomics(self) -> bool:
        """Whether there are atomic operations for endpoints that handle errors; else one is given up, or, in 1.16 and 1.17, never ends."""
        usual = "n" if self.version[:2] < _NEW_PROTOCOLS else "y"
        return os.environ.get("UCX_PROTO_ENABLE", usual).lower() in ("n", "no", "0", "off", "false")

    def address_of(self, function: str) -> int:
        """Where a function is, for compiled code."""
        return ctypes.cast(getattr(self.handle, function), ctypes.c_void_p).value or 0


def find(named: str | None = None) -> Library:
    """Find the UCX of this process, and load it unless it is there already.

    Parameters
    ----------
    named
        Path of a libucp.so; None: what the environment variable NCCLX_MPI_UCX_LIBRARY says.

    Raises
    ------
    LibraryError
        None is found, or the first one that is found cannot be used.
    """
    if named is None:
        named = os.environ.get("NCCLX_MPI_UCX_LIBRARY", "")
    with _in_the_environment(_DEFAULTS):
        for path, reason in _candidates(named):
            try:
                handle = _load(path, is_loaded=reason == _LOADED)
            except OSError as error:
                if reason == _NAMED:
                    raise LibraryError(f"NCCLX_MPI_UCX_LIBRARY names {path}, which cannot be loaded: {error}") from error
            else:
                return _checked(handle, path, reason)
    raise LibraryError(f"no UCX is found, by which ranks of other hosts are reached: {ADVICE}")


_LOADED = "it was loaded in this process already"
_NAMED = "NCCLX_MPI_UCX_LIBRARY names it"


def _candidates(named: str) -> Iterator[tuple[str, str]]:
    for path in loaded():
        yield path, _LOADED
    if named:
        yield named, _NAMED
    yield _SONAME, "it is the system's"
    folder = _wheel()
    if folder is not None:
        yield str(folder / "lib" / _SONAME), "it is that of the package libucx"


def loaded() -> list[str]:
    """Paths of each libucp that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = (line.split(maxsplit=5)[5].strip() for line in lines if "libucp" in line)
    return list(dict.fromkeys(path for path in paths if re.fullmatch(r"libucp\b.*\.so.*", os.path.basename(path))))


def _wheel() -> Path | None:
    """The folder of the package ``libucx``; it is not imported."""
    spec = importlib.util.find_spec("libucx")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def _load(path: str, is_loaded: bool) -> Any:
    """Load a libucp, which finds what it needs of UCX itself.

    Raises
    ------
    OSError
        It is not there, or cannot be loaded.
    """
    if is_loaded:
        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
    return ctypes.CDLL(path)


def _checked(handle: Any, path: str, reason: str) -> Library:
    """A library of a release that is known, with all that is called.

    Raises
    ------
    LibraryError
        It is another one.
    """
    if "/" not in path:
        path = next(iter(loaded()), path)
    missing = [name for name in _FUNCTIONS if not hasattr(handle, name)]
    if missing:
        raise LibraryError(f"{path} is no UCX that can be used ({reason}): it has no {missing[0]}; {ADVICE}")
    numbers = [ctypes.c_uint() for _ in range(3)]
    handle.ucp_get_version(*map(ctypes.byref, numbers))
    major, minor, release = (number.value for number in numbers)
    if not OLDEST <= (major, minor) <= NEWEST:
        known = " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise LibraryError(f"{path} is UCX {major}.{minor}.{release} ({reason}), and releases {known} are known here; {ADVICE}")
    return Library(path, reason, (major, minor, release), handle)


def quiet() -> contextlib.AbstractContextManager[None]:
    """While it lasts, a UCX that somebody else loads is told what it reads but once: to print nothing, and to leave signals alone."""
    return _in_the_environment(_QUIET)


@contextlib.contextmanager
def _in_the_environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Have UCX read `defaults` where the user has none, and children that the user starts not inherit them."""
    ours = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def settings() -> dict[str, str]:
    """What UCX is told by this library, and what the user tells it in the place of that, or besides."""
    users = {name: value for name, value in sorted(os.environ.items()) if name.startswith("UCX_")}
    return {**_DEFAULTS, **users}


def agreed_settings() -> dict[str, str]:
    """Those that must be the same on all hosts; numbers of bytes as such, however they are written."""
    found = settings()
    return {name: _in_bytes(found[name]) for name in AGREED}


def _in_bytes(text: str) -> str:
    parts = re.fullmatch(r"(\d+)([KMG]?B?)", text.strip().upper())
    return str(int(parts[1]) << _UNITS[parts[2]]) if parts else text


class Worker:
    """A context of UCX with its one worker: what a rank communicates through.

    Parameters
    ----------
    library
        The UCX.
    is_remote
        Whether memory of peers is accessed.
    device
        The one that it goes by, as UCX names it: ``eth1``, ``mlx5_0:1``; empty: those that UCX finds, or that ``UCX_NET_DEVICES`` names.

    Attributes
    ----------
    device : str
        As given.
    address : int
        The ``ucp_worker_h``.
    event : int
        Its event descriptor, for ``ucp_worker_arm``; -1: a transport that it uses has none, so it has to be polled.

    Raises
    ------
    OSError
        UCX cannot be started.
    """

    def __init__(self, library: Library, is_remote: bool = False, device: str = "") -> None:
        self._library = library
        self.device = device
        self._ucp = library.handle
        self._context = ctypes.c_void_p()
        worker = ctypes.c_void_p()
        params = _WorkerParams(mask=1, thread_mode=_SERIALIZED)
        with _in_the_environment(_DEFAULTS):
            self._start(_FEATURE_AM | _FEATURE_WAKEUP | (_FEATURE_RMA | _FEATURE_ATOMICS if is_remote else 0))
            status = self._ucp.ucp_worker_create(self._context, ctypes.byref(params), ctypes.byref(worker))
        self._check(status, "make a worker")
        self.address = worker.value or 0
        self.event = self._event()

    def _start(self, features: int) -> None:
        config = ctypes.c_void_p()
        self._check(self._ucp.ucp_config_read(None, None, ctypes.byref(config)), "read its settings")
        if self.device:
            self._check(self._ucp.ucp_config_modify(config, b"NET_DEVICES", self.device.encode()), f"use {self.device}")
        params = _Params(mask=1, features=features)
        major, minor, _ = self._library.version
        status = self._ucp.ucp_init_version(major, minor, ctypes.byref(params), config, ctypes.byref(self._context))
        self._ucp.ucp_config_release(config)
        of = f"start with the device {self.device} (`ncclx info --ucx` names those that there are)"
        self._check(status, of if self.device else "start")

    @property
    def context(self) -> int:
        """The ``ucp_context_h``."""
        return self._context.value or 0

    def _event(self) -> int:
        event = ctypes.c_int(-1)
        status = self._ucp.ucp_worker_get_efd(ctypes.c_void_p(self.address), ctypes.byref(event))
        return event.value if ctypes.c_int8(status & 0xFF).value == 0 else -1

    def handle(self, number: int, function: int, argument: int) -> None:
        """Have active messages of one number handled by a function, which is given `argument`, and whole messages only."""
        mask = _AM_ID | _AM_FLAGS | _AM_CALL | _AM_ARGUMENT
        handler = _Handler(mask=mask, id=number, flags=_WHOLE_MESSAGES, call=function, argument=argument)
        status = self._ucp.ucp_worker_set_am_recv_handler(ctypes.c_void_p(self.address), ctypes.byref(handler))
        self._check(status, "take messages")

    def endpoint(self) -> bytes:
        """The worker's address, by which others connect to it."""
        found = _WorkerAttributes(mask=2)
        self._check(self._ucp.ucp_worker_query(ctypes.c_void_p(self.address), ctypes.byref(found)), "say its address")
        address = ctypes.string_at(found.address, found.address_length)
        self._ucp.ucp_worker_release_address(ctypes.c_void_p(self.address), ctypes.c_void_p(found.address))
        return address

    def progress(self) -> None:
        """Move on what is under way."""
        self._ucp.ucp_worker_progress(ctypes.c_void_p(self.address))

    def begin_flush(self, endpoint: int) -> int:
        """Begin to send what an endpoint has to send. Returns what :meth:`is_over` is asked with."""
        return self._begin("ucp_ep_flush_nbx", endpoint, _RequestParams())

    def begin_closing(self, endpoint: int) -> int:
        """Begin to close an endpoint at once, whatever it has to send; as above."""
        return self._begin("ucp_ep_close_nbx", endpoint, _RequestParams(mask=_WITH_FLAGS, flags=_FORCE))

    def _begin(self, function: str, endpoint: int, params: _RequestParams) -> int:
        call = getattr(self._ucp, function)
        call.restype = ctypes.c_ssize_t
        return int(call(ctypes.c_void_p(endpoint), ctypes.byref(params)))

    def is_over(self, request: int) -> bool:
        """Whether what was begun has ended, well or not; then, it is not asked again."""
        if request <= 0:
            return True
        status = self._ucp.ucp_request_check_status(ctypes.c_void_p(request))
        if status & 0xFF == _IN_PROGRESS:
            return False
        self._ucp.ucp_request_free(ctypes.c_void_p(request))
        return True

    def describe(self) -> list[str]:
        """What UCX says of its context: devices and transports, one in a line."""
        text = _printed(lambda file: self._ucp.ucp_context_print_info(self._context, file))
        return [line.lstrip("# ").rstrip() for line in text.splitlines() if line.strip("# ")]

    def resources(self) -> list[tuple[str, str]]:
        """Each transport with a device that it may use, as UCX names them."""
        return [(found[1], found[2]) for line in self.describe() if (found := _RESOURCE.search(line))]

    def ways_of(self, endpoint: int) -> str:
        """The transports and devices by which an endpoint goes, as UCX names them: ``tcp/eth0``."""
        text = _printed(lambda file: self._ucp.ucp_ep_print_info(ctypes.c_void_p(endpoint), file))
        return ", ".join(dict.fromkeys("/".join(found) for found in _LANE.findall(text))) or "no way yet"

    def close(self) -> None:
        """End all of it. Endpoints are closed before."""
        if self.address:
            self._ucp.ucp_worker_destroy(ctypes.c_void_p(self.address))
            self._ucp.ucp_cleanup(self._context)
            self.address = 0

    def status(self, number: int) -> str:
        """What a status says."""
        words = self._ucp.ucs_status_string
        words.restype = ctypes.c_char_p
        return str(words(ctypes.c_int8(number)).decode())

    def _check(self, status: int, what: str) -> None:
        number = ctypes.c_int8(status & 0xFF).value  # an enumeration of one byte
        if number < 0:
            raise OSError(f"UCX {self._library.name} ({self._library.path}) cannot {what}: {self.status(number)}")


def _printed(call: Any) -> str:
    """What a function writes to the FILE that it is given."""
    libc = ctypes.CDLL(None)
    libc.open_memstream.restype = ctypes.c_void_p
    text, length = ctypes.c_void_p(), ctypes.c_size_t()
    file = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(length)))
    call(file)
    libc.fclose(file)
    written = ctypes.string_at(text.value or 0, length.value).decode(errors="replace")
    libc.free(text)
    return written
