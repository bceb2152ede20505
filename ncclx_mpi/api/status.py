"""MPI.Status: where a message came from, its tag, its length, and how it ended."""

from __future__ import annotations

import copyreg
from array import array
from typing import Any, Self

from ncclx_mpi.api.datatype import BYTE, Datatype
from ncclx_mpi.api.handle import PUBLIC, instance, integer
from ncclx_mpi.constants import ANY_SOURCE, ANY_TAG, UNDEFINED
from ncclx_mpi.errors import ERR_ARG, ERR_COUNT, SUCCESS, fail

# The five words of MPICH's structure, which tomemory() and Fortran see.
_COUNT_LOW, _COUNT_HIGH, _SOURCE, _TAG, _ERROR = range(5)
_EMPTY = array("i", (0, 0, ANY_SOURCE, ANY_TAG, SUCCESS))


class Status:
    """What is known about a message that was received, or a request that completed."""

    __module__ = PUBLIC
    __slots__ = ("__weakref__", "_words")
    __hash__ = None  # type: ignore[assignment]
    _words: array[int]

    def __new__(cls, status: Status | None = None) -> Self:
        """Make an empty status, or a copy of another one."""
        check_status(status)
        self = super().__new__(cls)
        self._words = (_EMPTY if status is None else status._words)[:]
        return self

    def _fill(self, source: int, tag: int, nbytes: int, cancelled: bool = False) -> None:
        """Set everything but the error, which only calls on several requests set."""
        words = self._words
        words[_SOURCE], words[_TAG] = source, tag
        low = nbytes & 0xFFFFFFFF
        words[_COUNT_LOW] = low - (low >> 31 << 32)
        words[_COUNT_HIGH] = nbytes >> 32 << 1 | cancelled

    def _bytes(self) -> int:
        words = self._words
        return words[_COUNT_HIGH] >> 1 << 32 | words[_COUNT_LOW] & 0xFFFFFFFF

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal."""
        if not isinstance(other, Status):
            return NotImplemented
        return self._words == other._words

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value."""
        return copyreg.__newobj__, (type(self),), self.__getstate__()  # type: ignore[attr-defined]

    def __getstate__(self) -> dict[str, int]:
        """The fields by name."""
        fields = {"source": self.source, "tag": self.tag, "error": self.error}
        return {**fields, "count": self._bytes(), "cancelled": self.cancelled}

    def __setstate__(self, state: dict[str, int]) -> None:
        """Set the fields by name."""
        self._fill(state["source"], state["tag"], state.get("count", 0), bool(state.get("cancelled", False)))
        self._words[_ERROR] = state["error"]

    def Get_source(self) -> int:
        """Rank of the sender."""
        return self._words[_SOURCE]

    def Set_source(self, source: int) -> None:
        """Set the rank of the sender."""
        self._words[_SOURCE] = integer(source, "source")

    def Get_tag(self) -> int:
        """Tag of the message."""
        return self._words[_TAG]

    def Set_tag(self, tag: int) -> None:
        """Set the tag of the message."""
        self._words[_TAG] = integer(tag, "tag")

    def Get_error(self) -> int:
        """Error code of the operation."""
        return self._words[_ERROR]

    def Set_error(self, error: int) -> None:
        """Set the error code of the operation."""
        self._words[_ERROR] = integer(error, "error")

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Number of whole elements received; UNDEFINED if they do not fill the message."""
        size, nbytes = instance(datatype, Datatype)._need("Get_count").size, self._bytes()
        if size == 0:
            return 0 if nbytes == 0 else UNDEFINED
        count, rest = divmod(nbytes, size)
        return UNDEFINED if rest else count

    def Get_elements(self, datatype: Datatype) -> int:
        """Number of basic elements received, those of a last partial element too."""
        layout = instance(datatype, Datatype)._need("Get_elements")
        elements = layout.elements(self._bytes())
        return UNDEFINED if elements < 0 else elements

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Set the length of the message, for generalized requests."""
        size, number = instance(datatype, Datatype)._need("Set_elements").size, integer(count, "count")
        if number < 0:
            fail(ERR_COUNT, f"Status.Set_elements: the count is {number}")
        if number * size >= 1 << 62:
            fail(ERR_ARG, f"Status.Set_elements: {number} elements of {size} bytes are more than a message can be")
        self._fill(self.source, self.tag, number * size, self.cancelled)

    def Is_cancelled(self) -> bool:
        """Whether the operation was cancelled."""
        return bool(self._words[_COUNT_HIGH] & 1)

    def Set_cancelled(self, flag: bool) -> None:
        """Set whether the operation was cancelled, for generalized requests."""
        self._fill(self.source, self.tag, self._bytes(), bool(flag))

    @property
    def source(self) -> int:
        """Rank of the sender."""
        return self._words[_SOURCE]

    @source.setter
    def source(self, value: int) -> None:
        self.Set_source(value)

    @property
    def tag(self) -> int:
        """Tag of the message."""
        return self._words[_TAG]

    @tag.setter
    def tag(self, value: int) -> None:
        self.Set_tag(value)

    @property
    def error(self) -> int:
        """Error code of the operation."""
        return self._words[_ERROR]

    @error.setter
    def error(self, value: int) -> None:
        self.Set_error(value)

    @property
    def count(self) -> int:
        """Length of the message in bytes."""
        return self._bytes()

    @count.setter
    def count(self, value: int) -> None:
        self.Set_elements(BYTE, value)

    @property
    def cancelled(self) -> bool:
        """Whether the operation was cancelled."""
        return self.Is_cancelled()

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self.Set_cancelled(value)

    def tomemory(self) -> memoryview:
        """The words of the status, as a writable view."""
        return memoryview(self._words)

    def py2f(self) -> list[int]:
        """The words of the status, as Fortran has them."""
        return self._words.tolist()

    @classmethod
    def f2py(cls, arg: list[int]) -> Self:
        """Make a status from the words that :meth:`py2f` gave."""
        self = cls.__new__(cls)
        self._words = array("i", arg)[: len(_EMPTY)]
        if len(self._words) != len(_EMPTY):
            raise ValueError(f"expecting {len(_EMPTY)} items, got {len(arg)}")
        return self


def check_status(status: Any) -> None:
    """Refuse what is no status, before a message is taken of which it would tell.

    Raises
    ------
    TypeError
        It is neither a Status nor None.
    """
    if status is not None and not isinstance(status, Status):
        raise TypeError(f"expected a Status or None, got {type(status).__name__}")


def check_statuses(statuses: Any) -> None:
    """Refuse a list of statuses, or None, of which one is no status, as :func:`check_status` does."""
    for status in () if statuses is None else statuses:
        if not isinstance(status, Status):
            raise TypeError(f"expected a Status in statuses, got {type(status).__name__}")
