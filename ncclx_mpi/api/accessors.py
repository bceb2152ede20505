"""What communicators, windows and datatypes have in common: names, cached attributes, hints, error handlers.

Mixins of handles. A handle whose state was freed, or that is null, raises the MPI error of its kind when any of them is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from ncclx_mpi.api import attributes, errhandler_dispatch
from ncclx_mpi.api.errhandler import Errhandler
from ncclx_mpi.api.handle import Handle, instance, integer, text
from ncclx_mpi.api.info import Info
from ncclx_mpi.constants import MAX_OBJECT_NAME


class Named(Handle):
    """Methods of handles of objects that have a name for people to read."""

    __slots__ = ()
    _NULL_NAME: ClassVar[str]

    def _need(self, what: str) -> Any:
        """The state, for the method `what`; raises the MPI error of a handle that is null or was freed."""
        self._state.name  # noqa: B018
        return self._state

    def Get_name(self) -> str:
        """Get the print name for this object."""
        return str(self._state.name) if self else self._NULL_NAME

    def Set_name(self, name: str) -> None:
        """Set the print name for this object."""
        self._need("Set_name").name = text(name)[: MAX_OBJECT_NAME - 1]

    @property
    def name(self) -> str:
        """Print name."""
        return self.Get_name()

    @name.setter
    def name(self, value: str) -> None:
        self.Set_name(value)


class Attributed(Handle):
    """Methods of handles of objects that cache attributes under keys (:mod:`ncclx_mpi.api.attributes`).

    ``_KIND`` says whose keys; ``_PREDEFINED`` makes the values of those that MPI defines.
    """

    __slots__ = ()
    _KIND: ClassVar[str]
    _PREDEFINED: ClassVar[Mapping[int, Callable[[Any], Any]]] = {}

    def _table(self, what: str) -> attributes.Table:
        """The attributes, for the method `what`."""
        table: attributes.Table = self._state.attributes
        return table

    def Get_attr(self, keyval: int) -> int | Any | None:
        """Retrieve attribute value by key."""
        table, keyval = self._table("Get_attr"), integer(keyval, "keyval")
        if keyval in self._PREDEFINED:
            return self._PREDEFINED[keyval](self)
        return attributes.get_attr(self._KIND, table, keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        """Store attribute value associated with a key."""
        attributes.set_attr(self._KIND, self, self._table("Set_attr"), keyval, attrval)

    def Delete_attr(self, keyval: int) -> None:
        """Delete attribute value associated with a key."""
        attributes.delete_attr(self._KIND, self, self._table("Delete_attr"), keyval)

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: Callable[[Self, int, Any], Any] | None = None,
        delete_fn: Callable[[Self, int, Any], None] | None = None,
        nopython: bool = False,
    ) -> int:
        """Create a new attribute key for objects of this kind."""
        return attributes.create_keyval(cls._KIND, copy_fn, delete_fn, nopython)

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Free an attribute key; attributes that are set under it keep working."""
        return attributes.free_keyval(cls._KIND, keyval)


class Hinted(Handle):
    """Methods of handles of objects that take hints."""

    __slots__ = ()
    _FIXED_HINTS: ClassVar[frozenset[str]] = frozenset()
    """Those that are heeded only where an object is made: others given later are not."""

    def Set_info(self, info: Info) -> None:
        """Set new values for the hints associated with this object."""
        self._state.info.update((key, value) for key, value in hints(info).items() if key not in self._FIXED_HINTS)

    def Get_info(self) -> Info:
        """Return the current hints for this object."""
        return Info.Create(self._state.info)

    @property
    def info(self) -> Info:
        """Info hints."""
        return self.Get_info()

    @info.setter
    def info(self, value: Info) -> None:
        self.Set_info(value)


class ErrorHandled(Handle):
    """Methods of handles of objects that have an error handler of their own; ``_KIND`` says for what it was made."""

    __slots__ = ()
    _KIND: ClassVar[str]

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[Self, int], None]) -> Errhandler:
        """Create a new error handler for objects of this kind."""
        return Errhandler._create(cls._KIND, errhandler_fn)

    def Get_errhandler(self) -> Errhandler:
        """Get the error handler for this object."""
        return Errhandler(self._state.errhandler)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        """Set the error handler for this object."""
        self._state.errhandler  # noqa: B018  (raises if it is null or was freed)
        self._state.errhandler = Errhandler._usable(self._KIND, errhandler)
        self._heed(errhandler)

    def Call_errhandler(self, errorcode: int) -> None:
        """Call the error handler installed on this object."""
        self._state.errhandler._call(self, integer(errorcode, "errorcode"))

    @classmethod
    def _heed(cls, errhandler: Errhandler) -> None:
        """See to it that methods call error handlers from now on, if this one is a reason to."""
        errhandler_dispatch.use(errhandler, cls._ROOT[0])


def hints(info: Info) -> dict[str, str]:
    """The hints of an info object, none for a null one."""
    instance(info, Info)
    return dict(info.items()) if info else {}
