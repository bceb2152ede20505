"""Error codes, error strings and the one exception class of MPI errors.

Every MPI error is raised through :func:`fail`. Its code carries the error class in the low byte and a serial number
above it, so codes differ from classes, as they do in real MPI libraries: clients compare ``Get_error_class()``.
"""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any, NoReturn

_strings: dict[int, str] = {}
"""The text of every class."""


def _class(code: int, text: str) -> int:
    _strings[code] = text
    return code


SUCCESS = _class(0, "No error")
ERR_BUFFER = _class(1, "Invalid buffer")
ERR_COUNT = _class(2, "Invalid count")
ERR_TYPE = _class(3, "Invalid datatype")
ERR_TAG = _class(4, "Invalid tag")
ERR_COMM = _class(5, "Invalid communicator")
ERR_RANK = _class(6, "Invalid rank")
ERR_ROOT = _class(7, "Invalid root")
ERR_GROUP = _class(8, "Invalid group")
ERR_OP = _class(9, "Invalid reduction operation")
ERR_TOPOLOGY = _class(10, "Invalid topology")
ERR_DIMS = _class(11, "Invalid dimension")
ERR_ARG = _class(12, "Invalid argument")
ERR_UNKNOWN = _class(13, "Unknown error")
ERR_TRUNCATE = _class(14, "Message truncated")
ERR_OTHER = _class(15, "Other error")
ERR_INTERN = _class(16, "Internal error")
ERR_IN_STATUS = _class(17, "The error codes are in the statuses")
ERR_PENDING = _class(18, "Pending request")
ERR_REQUEST = _class(19, "Invalid request")
ERR_ACCESS = _class(20, "Access to the file denied")
ERR_AMODE = _class(21, "Invalid file access mode")
ERR_BAD_FILE = _class(22, "Invalid file name")
ERR_CONVERSION = _class(23, "Error in a user's data conversion function")
ERR_DUP_DATAREP = _class(24, "Data representation is already registered")
ERR_FILE_EXISTS = _class(25, "File exists")
ERR_FILE_IN_USE = _class(26, "File is in use")
ERR_FILE = _class(27, "Invalid file handle")
ERR_INFO = _class(28, "Invalid info object")
ERR_INFO_KEY = _class(29, "Invalid info key")
ERR_INFO_VALUE = _class(30, "Invalid info value")
ERR_INFO_NOKEY = _class(31, "Info key is not defined")
ERR_IO = _class(32, "Input or output error")
ERR_NAME = _class(33, "Name is not published")
ERR_NO_MEM = _class(34, "Out of memory")
ERR_NOT_SAME = _class(35, "Arguments of a collective differ between ranks")
ERR_NO_SPACE = _class(36, "No space left for the file")
ERR_NO_SUCH_FILE = _class(37, "File does not exist")
ERR_PORT = _class(38, "Invalid port")
ERR_QUOTA = _class(39, "Quota exceeded")
ERR_READ_ONLY = _class(40, "Read-only file or file system")
ERR_SERVICE = _class(41, "Unknown service name")
ERR_SPAWN = _class(42, "Could not spawn processes")
ERR_UNSUPPORTED_DATAREP = _class(43, "Unsupported data representation")
ERR_UNSUPPORTED_OPERATION = _class(44, "Unsupported operation")
ERR_WIN = _class(45, "Invalid window")
ERR_BASE = _class(46, "Invalid base address")
ERR_LOCKTYPE = _class(47, "Invalid lock type")
ERR_KEYVAL = _class(48, "Invalid attribute key")
ERR_RMA_CONFLICT = _class(49, "Conflicting accesses to a window")
ERR_RMA_SYNC = _class(50, "Wrong synchronisation of one-sided calls")
ERR_SIZE = _class(51, "Invalid size")
ERR_DISP = _class(52, "Invalid displacement")
ERR_ASSERT = _class(53, "Invalid assertion")
ERR_RMA_RANGE = _class(55, "Target memory is outside of the window")
ERR_RMA_ATTACH = _class(56, "Memory cannot be attached")
ERR_RMA_SHARED = _class(57, "Memory cannot be shared")
ERR_RMA_FLAVOR = _class(58, "Wrong flavour of window")
ERR_SESSION = _class(75, "Invalid session")
ERR_PROC_ABORTED = _class(76, "Process aborted")
ERR_VALUE_TOO_LARGE = _class(77, "Value does not fit")
ERR_ERRHANDLER = _class(80, "Invalid error handler")
ERR_ABI = _class(81, "Invalid ABI")
ERR_PROC_FAILED = _class(101, "Process failed")
ERR_PROC_FAILED_PENDING = _class(102, "Process failed, request pending")
ERR_REVOKED = _class(103, "Communicator revoked")
ERR_LASTCODE = _class(0x3FFFFFFF, "Last error code")

NO_MEMORY = "there is no memory left to work in; look at `ulimit -v` and at the memory that the job may use"
"""Why something of class ERR_NO_MEM failed."""

CODES = {name: value for name, value in list(globals().items()) if name.startswith(("SUCCESS", "ERR_"))}
"""Every class by the name of its constant."""

_CLASS_BITS = 8
_KEPT_MESSAGES = 1024
_messages: dict[int, str] = {}
_serials = itertools.count()


@functools.total_ordering
class Exception(RuntimeError):
    """An error of MPI: a number, with its class and its text."""

    __module__ = "ncclx_mpi.MPI"
    _text: str | None = None
    _origin: Any = None
    """The communicator whose pending operation ended with this error."""

    def __init__(self, ierr: int = SUCCESS, /) -> None:
        """Make the error with this code."""
        code = operator.index(ierr)
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

    def __lt__(self, other: Any, /) -> bool:
        """Return self<other."""
        return bool(int(self) < _code(other))

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
    code = operator.index(errorcode)
    if code in _user.classes:
        return _user.classes[code]
    if code in _strings:
        return code
    found = code & (1 << _CLASS_BITS) - 1
    return found if 0 <= code <= ERR_LASTCODE and found in _strings else ERR_UNKNOWN


def Get_error_string(errorcode: int) -> str:
    """The text of an error code or class."""
    code = operator.index(errorcode)
    if code in _user.strings:
        return _user.strings[code]
    text = _messages.get(code)
    return _strings[Get_error_class(code)] if text is None else text


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
    known = errorclass in _strings and errorclass != ERR_LASTCODE
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
