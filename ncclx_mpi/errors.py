"""Error codes, error strings and the one exception class of MPI errors.

Every MPI error is raised through :func:`fail`. Its code carries the error class in the low byte and a serial number
above it, so codes differ from classes, as they do in real MPI libraries: clients compare ``Get_error_class()``.
"""

from __future__ import annotations

import itertools
from typing import Any, NoReturn

SUCCESS = 0
ERR_BUFFER = 1
ERR_COUNT = 2
ERR_TYPE = 3
ERR_TAG = 4
ERR_COMM = 5
ERR_RANK = 6
ERR_ROOT = 7
ERR_GROUP = 8
ERR_OP = 9
ERR_TOPOLOGY = 10
ERR_DIMS = 11
ERR_ARG = 12
ERR_UNKNOWN = 13
ERR_TRUNCATE = 14
ERR_OTHER = 15
ERR_INTERN = 16
ERR_IN_STATUS = 17
ERR_PENDING = 18
ERR_REQUEST = 19
ERR_ACCESS = 20
ERR_AMODE = 21
ERR_BAD_FILE = 22
ERR_CONVERSION = 23
ERR_DUP_DATAREP = 24
ERR_FILE_EXISTS = 25
ERR_FILE_IN_USE = 26
ERR_FILE = 27
ERR_INFO = 28
ERR_INFO_KEY = 29
ERR_INFO_VALUE = 30
ERR_INFO_NOKEY = 31
ERR_IO = 32
ERR_NAME = 33
ERR_NO_MEM = 34
ERR_NOT_SAME = 35
ERR_NO_SPACE = 36
ERR_NO_SUCH_FILE = 37
ERR_PORT = 38
ERR_QUOTA = 39
ERR_READ_ONLY = 40
ERR_SERVICE = 41
ERR_SPAWN = 42
ERR_UNSUPPORTED_DATAREP = 43
ERR_UNSUPPORTED_OPERATION = 44
ERR_WIN = 45
ERR_BASE = 46
ERR_LOCKTYPE = 47
ERR_KEYVAL = 48
ERR_RMA_CONFLICT = 49
ERR_RMA_SYNC = 50
ERR_SIZE = 51
ERR_DISP = 52
ERR_ASSERT = 53
ERR_RMA_RANGE = 55
ERR_RMA_ATTACH = 56
ERR_RMA_SHARED = 57
ERR_RMA_FLAVOR = 58
ERR_SESSION = 75
ERR_PROC_ABORTED = 76
ERR_VALUE_TOO_LARGE = 77
ERR_ERRHANDLER = 80
ERR_ABI = 81
ERR_PROC_FAILED = 101
ERR_PROC_FAILED_PENDING = 102
ERR_REVOKED = 103
ERR_LASTCODE = 0x3FFFFFFF

NO_MEMORY = "there is no memory left to work in; look at `ulimit -v` and at the memory that the job may use"
"""Why something of class ERR_NO_MEM failed."""

CODES = {name: value for name, value in list(globals().items()) if name.startswith(("SUCCESS", "ERR_"))}
"""Every class by the name of its constant."""

_STRINGS = {
    SUCCESS: "No error",
    ERR_BUFFER: "Invalid buffer",
    ERR_COUNT: "Invalid count",
    ERR_TYPE: "Invalid datatype",
    ERR_TAG: "Invalid tag",
    ERR_COMM: "Invalid communicator",
    ERR_RANK: "Invalid rank",
    ERR_ROOT: "Invalid root",
    ERR_GROUP: "Invalid group",
    ERR_OP: "Invalid reduction operation",
    ERR_TOPOLOGY: "Invalid topology",
    ERR_DIMS: "Invalid dimension",
    ERR_ARG: "Invalid argument",
    ERR_UNKNOWN: "Unknown error",
    ERR_TRUNCATE: "Message truncated",
    ERR_OTHER: "Other error",
    ERR_INTERN: "Internal error",
    ERR_IN_STATUS: "The error codes are in the statuses",
    ERR_PENDING: "Pending request",
    ERR_REQUEST: "Invalid request",
    ERR_ACCESS: "Access to the file denied",
    ERR_AMODE: "Invalid file access mode",
    ERR_BAD_FILE: "Invalid file name",
    ERR_CONVERSION: "Error in a user's data conversion function",
    ERR_DUP_DATAREP: "Data representation is already registered",
    ERR_FILE_EXISTS: "File exists",
    ERR_FILE_IN_USE: "File is in use",
    ERR_FILE: "Invalid file handle",
    ERR_INFO: "Invalid info object",
    ERR_INFO_KEY: "Invalid info key",
    ERR_INFO_VALUE: "Invalid info value",
    ERR_INFO_NOKEY: "Info key is not defined",
    ERR_IO: "Input or output error",
    ERR_NAME: "Name is not published",
    ERR_NO_MEM: "Out of memory",
    ERR_NOT_SAME: "Arguments of a collective differ between ranks",
    ERR_NO_SPACE: "No space left for the file",
    ERR_NO_SUCH_FILE: "File does not exist",
    ERR_PORT: "Invalid port",
    ERR_QUOTA: "Quota exceeded",
    ERR_READ_ONLY: "Read-only file or file system",
    ERR_SERVICE: "Unknown service name",
    ERR_SPAWN: "Could not spawn processes",
    ERR_UNSUPPORTED_DATAREP: "Unsupported data representation",
    ERR_UNSUPPORTED_OPERATION: "Unsupported operation",
    ERR_WIN: "Invalid window",
    ERR_BASE: "Invalid base address",
    ERR_LOCKTYPE: "Invalid lock type",
    ERR_KEYVAL: "Invalid attribute key",
    ERR_RMA_CONFLICT: "Conflicting accesses to a window",
    ERR_RMA_SYNC: "Wrong synchronisation of one-sided calls",
    ERR_SIZE: "Invalid size",
    ERR_DISP: "Invalid displacement",
    ERR_ASSERT: "Invalid assertion",
    ERR_RMA_RANGE: "Target memory is outside of the window",
    ERR_RMA_ATTACH: "Memory cannot be attached",
    ERR_RMA_SHARED: "Memory cannot be shared",
    ERR_RMA_FLAVOR: "Wrong flavour of window",
    ERR_SESSION: "Invalid session",
    ERR_PROC_ABORTED: "Process aborted",
    ERR_VALUE_TOO_LARGE: "Value does not fit",
    ERR_ERRHANDLER: "Invalid error handler",
    ERR_ABI: "Invalid ABI",
    ERR_PROC_FAILED: "Process failed",
    ERR_PROC_FAILED_PENDING: "Process failed, request pending",
    ERR_REVOKED: "Communicator revoked",
    ERR_LASTCODE: "Last error code",
}

_CLASS_BITS = 8
_KEPT_MESSAGES = 1024
_messages: dict[int, str] = {}
_serials = itertools.count()


class Exception(RuntimeError):
    """An error of MPI: a number, with its class and its text."""

    __module__ = "ncclx_mpi.MPI"
    _text: str | None = None
    _origin: Any = None
    """The communicator whose pending operation ended with this error."""

    def __init__(self, ierr: int = SUCCESS, /) -> None:
        """Make the error with this code."""
        code = ierr.__index__()
        super().__init__(code if code >= SUCCESS else ERR_UNKNOWN)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle code and text; the communicator means nothing elsewhere."""
        return type(self), self.args, {name: value for name, value in vars(self).items() if name != "_origin"}

    def __int__(self) -> int:
        """Return ``int(self)``."""
        code: int = self.args[0]
        return code

    def __bool__(self) -> bool:
        """Return ``bool(self)``."""
        return int(self) != SUCCESS

    def __hash__(self) -> int:
        """Return ``hash(self)``."""
        return hash(int(self))

    def __eq__(self, other: object, /) -> bool:
        """Return ``self == other``."""
        return bool(int(self) == _code(other))

    def __ne__(self, other: object, /) -> bool:
        """Return self!=other."""
        return bool(int(self) != _code(other))

    def __lt__(self, other: Any, /) -> bool:
        """Return self<other."""
        return bool(int(self) < _code(other))

    def __le__(self, other: Any, /) -> bool:
        """Return self<=other."""
        return bool(int(self) <= _code(other))

    def __gt__(self, other: Any, /) -> bool:
        """Return self>other."""
        return bool(int(self) > _code(other))

    def __ge__(self, other: Any, /) -> bool:
        """Return self>=other."""
        return bool(int(self) >= _code(other))

    def __repr__(self) -> str:
        """Return ``repr(self)``."""
        return f"MPI.Exception({int(self)})"

    def __str__(self) -> str:
        """Return ``str(self)``."""
        return self.Get_error_string()

    def Get_error_code(self) -> int:
        """The error code: its class, made distinct for this error."""
        return int(self)

    def Get_error_class(self) -> int:
        """The error class, one of the ``ERR_`` constants."""
        return Get_error_class(int(self))

    def Get_error_string(self) -> str:
        """The text that says what went wrong."""
        return self._text if self._text is not None else Get_error_string(int(self))

    @property
    def error_code(self) -> int:
        """The error code: its class, made distinct for this error."""
        return self.Get_error_code()

    @property
    def error_class(self) -> int:
        """The error class, one of the ``ERR_`` constants."""
        return self.Get_error_class()

    @property
    def error_string(self) -> str:
        """The text that says what went wrong."""
        return self.Get_error_string()


def _code(other: Any) -> Any:
    return int(other) if isinstance(other, Exception) else other


def error(error_class: int, message: str) -> Exception:
    """Return an exception of `error_class` whose text is `message`, with a code of its own."""
    code = (next(_serials) % 0x3FFFFE + 1) << _CLASS_BITS | error_class
    if len(_messages) >= _KEPT_MESSAGES:
        _messages.pop(list(_messages)[0], None)  # noqa: RUF015 - an iterator would notice what other threads add meanwhile
    _messages[code] = message
    exception = Exception(code)
    exception._text = message
    return exception


def fail(error_class: int, message: str) -> NoReturn:
    """Raise an exception of `error_class` whose text is `message`."""
    raise error(error_class, message)


class _UserErrors:
    """Error classes and codes that the program added: each above ERR_LASTCODE, numbered in one row."""

    def __init__(self) -> None:
        self.last = ERR_LASTCODE
        self.classes: dict[int, int] = {}
        self.strings: dict[int, str] = {}

    def add(self, error_class: int | None) -> int:
        """Number a new code of `error_class`, or a new class, which is a code of its own class."""
        self.last += 1
        self.classes[self.last] = self.last if error_class is None else error_class
        self.strings[self.last] = ""
        return self.last

    def in_use(self, error_class: int) -> bool:
        """Whether a code of this class is left."""
        return any(found == error_class and code != error_class for code, found in self.classes.items())

    def remove(self, code: int) -> None:
        """Forget a code or class."""
        if self.strings[code]:
            fail(ERR_OTHER, f"error code {code} still has a string: remove it first with Remove_error_string")
        del self.classes[code], self.strings[code]


_user = _UserErrors()


def last_used_code() -> int:
    """Value of the attribute LASTUSEDCODE."""
    return _user.last


def Get_error_class(errorcode: int) -> int:
    """The class to which an error code belongs."""
    code = errorcode.__index__()
    if code in _user.classes:
        return _user.classes[code]
    if code in _STRINGS:
        return code
    found = code & (1 << _CLASS_BITS) - 1
    return found if 0 <= code <= ERR_LASTCODE and found in _STRINGS else ERR_UNKNOWN


def Get_error_string(errorcode: int) -> str:
    """The text of an error code or class."""
    code = errorcode.__index__()
    if code in _user.strings:
        return _user.strings[code]
    text = _messages.get(code)
    return _STRINGS[Get_error_class(code)] if text is None else text


def Add_error_class() -> int:
    """Make a new error class and return it."""
    return _user.add(None)


def Remove_error_class(errorclass: int) -> None:
    """Forget an error class that the program added."""
    if _user.classes.get(errorclass) != errorclass:
        fail(ERR_ARG, f"{errorclass} is not an error class that Add_error_class returned")
    if _user.in_use(errorclass):
        fail(ERR_OTHER, f"error class {errorclass} still has error codes: remove them first with Remove_error_code")
    _user.remove(errorclass)


def Add_error_code(errorclass: int) -> int:
    """Make a new error code of a class and return it."""
    known = errorclass in _STRINGS and errorclass != ERR_LASTCODE
    if not known and _user.classes.get(errorclass) != errorclass:
        fail(ERR_ARG, f"{errorclass} is not an error class")
    return _user.add(errorclass)


def Remove_error_code(errorcode: int) -> None:
    """Forget an error code that the program added."""
    if errorcode not in _user.classes or _user.classes[errorcode] == errorcode:
        fail(ERR_ARG, f"{errorcode} is not an error code that Add_error_code returned")
    _user.remove(errorcode)


def Add_error_string(errorcode: int, string: str) -> None:
    """Give a text to an error code or class that the program added."""
    if errorcode not in _user.strings:
        fail(ERR_ARG, f"{errorcode} is not an error class or code that this program added")
    _user.strings[errorcode] = str(string)


def Remove_error_string(errorcode: int) -> None:
    """Take the text from an error code or class that the program added."""
    if not _user.strings.get(errorcode):
        fail(ERR_ARG, f"error code {errorcode} has no string that this program added")
    _user.strings[errorcode] = ""
