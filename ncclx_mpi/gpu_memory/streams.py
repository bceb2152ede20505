"""In which stream an array is used: one row for each array library.

Work on the array that its library has enqueued before the call comes first: copies go into the same stream. Where a library is
not known, its array is asked through the protocol that it speaks.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numba_kernels.cuda.driver import LEGACY_STREAM, PER_THREAD_STREAM
from numba_kernels.rows import NamedTuple


class Stream(NamedTuple):
    """A stream of the driver, and the object that keeps it alive."""

    handle: int
    owner: Any = None


LEGACY = Stream(LEGACY_STREAM)
"""The stream that waits for all others but those made as non-blocking."""


def handle_of(stream: Any) -> int:
    """The driver's handle of a stream: an integer, or an object of CuPy, Torch, or with ``__cuda_stream__``.

    Raises
    ------
    TypeError
        It is nothing of the kind.
    """
    if isinstance(stream, int):
        handle = stream
    elif hasattr(stream, "__cuda_stream__"):
        _version, handle = stream.__cuda_stream__()
    elif hasattr(stream, "cuda_stream"):
        handle = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        handle = stream.ptr
    else:
        raise TypeError(f"a stream of CuPy or Torch, an object with __cuda_stream__, or a handle is needed, not {stream!r}")
    return int(handle) or LEGACY_STREAM


def stream_of(array: Any, device: int) -> Stream:
    """The stream in which an array, of any library, is used now; `device` has its memory.

    An array of an unknown library that speaks DLPack is asked to let the legacy stream wait for it. Inside of :func:`using`, no array is
    asked.
    """
    given: Stream | None = getattr(_thread, "stream", None)
    if given is not None:
        return given
    row = _ROWS.get(library_of(type(array)))
    if row is not None:
        return row(array, device)
    if hasattr(array, "__dlpack__"):
        array.__dlpack__(stream=LEGACY_STREAM)
        return LEGACY
    return _named(array)


def handles_of(arrays: Sequence[Any], device: int) -> tuple[int, ...]:
    """Handles of the streams in which arrays of one device are used now, each once."""
    first, kind = arrays[0], type(arrays[0])
    if all(type(array) is kind for array in arrays[1:]) and library_of(kind) in _FACTS:  # it has one current stream
        return (stream_of(first, device).handle,)
    return tuple(dict.fromkeys(stream_of(array, device).handle for array in arrays))


def facts_of(array: Any) -> Hashable:
    """All that a call can depend on in an array but its stream and its values, None if it is not told quickly.

    The CUDA array interface is a dictionary that libraries make anew at each look, for some microseconds: theirs are asked by name.
    """
    kind = type(array)
    read = _READERS.get(kind)
    if read is None:
        read = _READERS[kind] = _FACTS.get(library_of(kind), _interface_facts)
    return read(array)


@contextmanager
def using(stream: Stream) -> Iterator[None]:
    """While the body runs, all arrays are used in `stream` by this thread, whatever their libraries would say."""
    _thread.stream = stream
    try:
        yield
    finally:
        _thread.stream = None


def are_quickly_told(kind: type) -> bool:
    """Whether :func:`facts_of` costs less for arrays of a class than to open one."""
    return library_of(kind) in _FACTS


def library_of(kind: type) -> str:
    """Name of the known array library that a class comes from, empty for others."""
    found = _library.get(kind)
    if found is None:
        roots = (base.__module__.partition(".")[0] for base in kind.__mro__)
        found = _library[kind] = next((_LIBRARIES[root] for root in roots if root in _LIBRARIES), "")
    return found


_thread = threading.local()
_library: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def _interface_facts(array: Any) -> Hashable:
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None or interface.get("mask") is not None:
        return None
    return interface["data"], tuple(interface["shape"]), interface["typestr"], tuple(interface.get("strides") or ())


def _cupy_facts(array: Any) -> Hashable:
    return array.data.ptr, array.shape, array.dtype, array.strides


def _torch_facts(tensor: Any) -> Hashable:
    """A view that is the conjugate, or the negative, of what is in memory has the same address."""
    as_it_is = tensor.is_conj(), tensor.is_neg(), tensor.requires_grad
    return tensor.data_ptr(), tensor.shape, tensor.dtype, tensor.stride(), tensor.device, as_it_is


def _named(array: Any) -> Stream:
    """The stream that the CUDA array interface of an object names, if it has one."""
    given = getattr(array, "__cuda_array_interface__", {}).get("stream")
    return LEGACY if given is None else Stream(given, array)


def _cupy(array: Any, device: int) -> Stream:
    stream = sys.modules["cupy"].cuda.get_current_stream(device)
    return Stream(int(stream.ptr) or LEGACY_STREAM, stream)


def _torch(array: Any, device: int) -> Stream:
    stream = sys.modules["torch"].cuda.current_stream(device)
    return Stream(int(stream.cuda_stream) or LEGACY_STREAM, stream)


def _numba(array: Any, device: int) -> Stream:
    """The stream that an array is bound to, else Numba's default one."""
    named = _named(array)
    per_thread = sys.modules["numba.cuda"].config.CUDA_PER_THREAD_DEFAULT_STREAM
    return Stream(PER_THREAD_STREAM) if named is LEGACY and per_thread else named


def _jax(array: Any, device: int) -> Stream:
    """JAX shows no stream: its array is waited for."""
    array.block_until_ready()
    return LEGACY


_ROWS: dict[str, Callable[[Any, int], Stream]] = {"cupy": _cupy, "torch": _torch, "numba": _numba, "jax": _jax}
_FACTS: dict[str, Callable[[Any], Hashable]] = {"cupy": _cupy_facts, "torch": _torch_facts}
_READERS: dict[type, Callable[[Any], Hashable]] = {}
"""By class; a dictionary with weak keys would cost as much as what is read."""
_LIBRARIES = {"cupy": "cupy", "torch": "torch", "numba": "numba", "numba_cuda": "numba", "jax": "jax", "jaxlib": "jax"}
"""Library by the package in which its array classes are."""
