"""MPI.Pickle: how Python objects become bytes, and the instance that all communicators use.

``pickle.__init__(dumps, loads, protocol)`` replaces it for the whole process, as programs do for dill or json. As long as it is
Python's own, large contiguous buffers (arrays) stay out of the pickle: they are sent from where they are.
"""

from __future__ import annotations

import os
import pickle as _pickle
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ncclx_mpi import late
from ncclx_mpi.api.handle import PUBLIC

if TYPE_CHECKING:
    from ncclx_mpi.api import memory
    from ncclx_mpi.api.memory import buffer
else:
    memory = late.module("ncclx_mpi.api.memory")

_THRESHOLD = 256 * 1024
_OUT_OF_BAND = 5
"""First protocol that leaves buffers out."""


class Pickle:
    """Turns Python objects into bytes and back."""

    __module__ = PUBLIC
    _is_standard: bool
    """Whether it is Python's own pickle, with a protocol that can leave buffers out."""

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[..., Any] | None = None,
        protocol: int | None = None,
        threshold: int | None = None,
    ) -> None:
        """Use other functions, another protocol, or another threshold; the defaults are Python's own."""
        self._dumps = _pickle.dumps if dumps is None else dumps
        self._loads = _pickle.loads if loads is None else loads
        self.PROTOCOL = protocol
        self.THRESHOLD = threshold

    def dumps(self, obj: Any) -> bytes:
        """Turn an object into bytes."""
        return self._dumps(obj) if self._protocol is None else self._dumps(obj, self._protocol)

    def loads(self, data: Any) -> Any:
        """Make the object again from its bytes."""
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[buffer]]:
        """Turn an object into bytes and the buffers in it that are not smaller than the threshold."""
        large: list[buffer] = []

        def is_in_band(found: _pickle.PickleBuffer) -> bool:
            view = memory.buffer(found)
            if view.nbytes < self._threshold:
                return True
            large.append(view)
            return False

        protocol = _default_protocol() if self._protocol is None else self._protocol
        return self._dumps(obj, max(protocol, _OUT_OF_BAND), buffer_callback=is_in_band), large

    def loads_oob(self, data: Any, buffers: Iterable[Any]) -> Any:
        """Make the object again from its bytes and its buffers."""
        return self._loads(data, buffers=buffers)

    @property
    def PROTOCOL(self) -> int | None:
        """Version of the pickle protocol; None leaves the choice to the function."""
        return self._protocol

    @PROTOCOL.setter
    def PROTOCOL(self, protocol: int | None) -> None:
        self._protocol = _default_protocol() if protocol is None and self._dumps is _pickle.dumps else protocol
        is_own = self._dumps is _pickle.dumps and self._loads is _pickle.loads
        self._is_standard = is_own and self._protocol is not None and not 0 <= self._protocol < _OUT_OF_BAND

    @property
    def THRESHOLD(self) -> int:
        """Bytes from which a buffer stays out of the pickle."""
        return self._threshold

    @THRESHOLD.setter
    def THRESHOLD(self, threshold: int | None) -> None:
        self._threshold = int(os.environ.get("MPI4PY_PICKLE_THRESHOLD", _THRESHOLD)) if threshold is None else threshold


def _default_protocol() -> int:
    return int(os.environ.get("MPI4PY_PICKLE_PROTOCOL", _pickle.HIGHEST_PROTOCOL))


def heed_environment() -> None:
    """Take the protocol and the threshold that the environment asks for: the program may have set it since `pickle` was made."""
    pickle.PROTOCOL = pickle.THRESHOLD = None


pickle = Pickle()
