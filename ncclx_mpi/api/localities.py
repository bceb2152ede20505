"""Where the ranks of a communicator are, as all know alike: what each one finds of itself, brought together when a call asks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ncclx_mpi import collectives, errors
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.constants import UNDEFINED
from ncclx_mpi.locality import own
from ncclx_mpi.locality.levels import LEVELS, NOWHERE, RESOURCES, Row, strict_parts
from ncclx_mpi.locality.own import Locality
from ncclx_mpi.p2p.engine import Engine, NativeComm

_TEXT_BYTES = 1024


def of_this_rank(engine: Engine) -> Locality:
    """Where the calling thread is.

    Raises
    ------
    ValueError, OSError
        What is said of the network cannot be read or understood.
    """
    return own.find(engine.arena.job, engine.near[0])


def exchange(state: CommState, operation: str) -> Sequence[Row]:
    """A row of ``levels.LEVELS`` for each rank; of an intercommunicator, of both groups. Collective.

    Raises
    ------
    Exception
        ERR_OTHER, on all ranks: one of them cannot read what is said of the network.
    """
    native = state.everyone
    fault = ""
    try:
        row: Row = of_this_rank(native.engine).row
    except (ValueError, OSError) as error:
        row, fault = (0,) * len(LEVELS), str(error)
    table = collectives.gather_words(native, bool(fault), *row)
    failed = next((rank for rank, (is_wrong, *_) in enumerate(table) if is_wrong), None)
    if failed is not None:
        errors.fail(
            errors.ERR_OTHER,
            f"rank {native.rank}: {operation}: rank {failed} cannot say where it is: {_told(native, failed, fault)}",
        )
    state.localities = tuple(tuple(words) for _, *words in table)
    return state.localities


def _told(native: NativeComm, root: int, text: str) -> str:
    """What one rank says to all."""
    buffer = ctypes.create_string_buffer(text.encode()[: _TEXT_BYTES - 1], _TEXT_BYTES)
    collectives.bcast(native, ctypes.addressof(buffer), _TEXT_BYTES, root)
    return buffer.value.decode(errors="replace")


def resource_info() -> dict[str, str]:
    """For each kind of resource whether this process is restricted to one instance of it.

    Raises
    ------
    Exception
        ERR_OTHER: what is said of the network cannot be read or understood.
    """
    try:
        row = own.find(0, 0).row
    except (ValueError, OSError) as error:
        errors.fail(errors.ERR_OTHER, f"Get_hw_resource_info: {error}")
    return {name: str(row[LEVELS.index(level)] != NOWHERE).lower() for name, level in RESOURCES.items()}


def color_of_resource(state: CommState, name: str) -> int:
    """A number that those in the same resource of this kind have, and no others; UNDEFINED for who is in none, or in several. Collective."""
    level = RESOURCES.get(name)
    if level is None:
        return UNDEFINED
    number = exchange(state, f"Split_type by {name}")[state.everyone.rank][LEVELS.index(level)]
    return UNDEFINED if number == NOWHERE else number


def color_of_strict_part(state: CommState) -> tuple[int, str]:
    """Such a number for the largest resource that not all ranks are in, and the name of its kind; UNDEFINED if there is none. Collective."""
    found = strict_parts(exchange(state, "Split_type"))[state.everyone.rank]
    return (UNDEFINED, "") if found is None else (found[1], found[0])
