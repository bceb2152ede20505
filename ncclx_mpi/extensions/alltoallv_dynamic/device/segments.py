"""All-to-all with counts read at execution, on devices: what ranks show each other once, and the tables that the kernel works on.

::

    executor's memory   | CALL: source 0, 1, ... | rooms: source 0, 1, ... | PAIRING: pair 0, 1, ... |  uploaded when the plan is made
                        | WORKSPACE: piece 0 of pair 0, 1, ... | piece 1 of pair 0, 1, ... | ...     |  written by the kernel

Nothing in it depends on a count: a table serves as long as the arrays are where they are. The executor of a GPU has a pair for each
source and each target on that GPU, and cuts it into pieces by what there is room for: a block each. Kernel and structures:
:mod:`numba_kernels.alltoallv.plan_and_copy`, :mod:`numba_kernels.alltoallv.layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ncclx_mpi.device.executor import LEAST_PIECE
from ncclx_mpi.device.members import PLACE_WORDS, Words, put, put_place, read_place
from ncclx_mpi.extensions.alltoallv_dynamic.device.reports import INCOMING, OUTGOING, fault_offset
from ncclx_mpi.extensions.alltoallv_dynamic.operands import Operands
from ncclx_mpi.gpu_memory.peers import Place
from numba_kernels.alltoallv.layout import CALL, PAIRING, workspace_bytes
from numba_kernels.layout import LINE, WORD, words
from numba_kernels.rows import NamedTuple

_NUMBERS = (
    "segments", "form", "itemsize", "splits_kind", "row_step", "indices_kind", "most_indices", "blocklengths_kind", "first",
    "first_step", "taken",
)  # fmt: skip
"""Words of ``CALL`` that are the same wherever it is read."""

_MOST_WORKSPACES = 16 << 20
"""Bytes of workspaces up to which pairs are cut: they should stay in the GPU's cache."""

ARRAYS = ("send", "recv", "splits", "indices", "blocklengths", "all_splits")

SHOWN = words("Shown", f"pid uuid*2 report {' '.join(_NUMBERS)} {' '.join(f'{name}*{PLACE_WORDS}' for name in ARRAYS)}")
"""What precedes the rooms: int64[4, ranks], capacities and byte offsets of what is sent to each rank, then of what is received."""

At = Callable[[int, str], int]
"""Address in this process of an array of a rank; 0 if it is not there."""


class Shown(NamedTuple):
    """One rank's part, as the others know it.

    Attributes
    ----------
    pid, uuid
        Its process, and the GPU that its arrays are on.
    report
        Where it has room for faults, as an offset in the arena.
    numbers
        Words of ``CALL``.
    places
        Its arrays.
    rooms
        See :data:`SHOWN`.
    """

    pid: int
    uuid: bytes
    report: int
    numbers: dict[str, int]
    places: dict[str, Place | None]
    rooms: npt.NDArray[np.int64]


def describe(operands: Operands, pid: int, uuid: bytes, report: int, places: Sequence[Place | None]) -> Words:
    """The descriptor of this rank; `places` are those of :data:`ARRAYS`."""
    send, recv, choice = operands.send, operands.recv, operands.choice
    rooms = np.array([send.capacities, send.addresses, recv.capacities, recv.addresses], np.int64)
    rooms[1::2] -= [[send.first], [recv.first]]
    found = nothing(len(send.capacities))
    numbers = (
        operands.segments, operands.form, send.itemsize, operands.splits.kind, operands.row_step, choice.indices.kind,
        choice.indices.length, choice.blocklengths.kind, choice.first, choice.step, choice.taken,
    )  # fmt: skip
    for name, value in zip(("pid", "report", *_NUMBERS), (pid, report, *numbers), strict=True):
        found[getattr(SHOWN, name) // WORD] = value
    put(found, SHOWN.uuid, np.frombuffer(uuid, np.int64))
    for name, place in zip(ARRAYS, places, strict=True):
        if place is not None:
            put_place(found, getattr(SHOWN, name), place)
    put(found, SHOWN.total, rooms.reshape(-1))
    return found


def nothing(size: int) -> Words:
    """A descriptor that says nothing, for `size` ranks."""
    return np.zeros(SHOWN.total // WORD + 4 * size, np.int64)


def read(descriptor: Words) -> Shown:
    """What a descriptor says."""
    first = SHOWN.uuid // WORD
    return Shown(
        pid=int(descriptor[SHOWN.pid // WORD]),
        uuid=descriptor[first : first + 2].tobytes(),
        report=int(descriptor[SHOWN.report // WORD]),
        numbers={name: int(descriptor[getattr(SHOWN, name) // WORD]) for name in _NUMBERS},
        places={name: read_place(descriptor, getattr(SHOWN, name)) for name in ARRAYS},
        rooms=descriptor[SHOWN.total // WORD :].reshape(4, -1).copy(),
    )


class Tables:
    """The tables of an executor.

    Parameters
    ----------
    ranks
        What all ranks have shown.
    targets
        The ranks on the executor's GPU.
    blocks
        How many blocks are best launched at most.

    Attributes
    ----------
    pairs, pieces
        How many pairs there are, and into how many pieces each is cut.
    nbytes
        Bytes of device memory that they take.
    """

    def __init__(self, ranks: Sequence[Shown], targets: Sequence[int], blocks: int) -> None:
        self._ranks, self._targets = ranks, targets
        self._segments = ranks[0].numbers["segments"]
        self.pairs = len(ranks) * len(targets)
        most = min(blocks, _MOST_WORKSPACES // workspace_bytes(self._segments))
        self.pieces = max(1, min(most // self.pairs, -(-self._capacity() // LEAST_PIECE)))
        self._places, self.nbytes = _places(len(ranks), self.pairs, self.pieces, self._segments)

    def _capacity(self) -> int:
        """Bytes that the largest pair can have."""
        return max(
            min(int(self._ranks[source].rooms[0, target]), int(self._ranks[target].rooms[2, source])) * shown.numbers["itemsize"]
            for source, shown in enumerate(self._ranks)
            for target in self._targets
        )

    def uploaded(self, base: int, at: At, report: int) -> npt.NDArray[np.int64]:
        """The words at the begin of the tables, for tables at `base` and a report at an address of this process."""
        size = len(self._ranks)
        calls = np.zeros((size, CALL.total // WORD), np.int64)
        rooms = np.zeros((size, 2, size), np.int64)
        for rank, shown in enumerate(self._ranks):
            arrays = {name: at(rank, name) for name in ("splits", "indices", "blocklengths")}
            words = shown.numbers | arrays | {"rank": rank, "size": size}
            words["send_places"] = base + self._places["rooms"] + rank * rooms[rank].nbytes
            for name, value in words.items():
                calls[rank, getattr(CALL, name) // WORD] = value
            rooms[rank] = shown.rooms[:2]
            rooms[rank, 1] += at(rank, "send")
        pairings = [self._pairing(base, index, at, report) for index in range(self.pairs)]
        return np.concatenate([calls.reshape(-1), rooms.reshape(-1), *pairings])

    def _pairing(self, base: int, index: int, at: At, report: int) -> npt.NDArray[np.int64]:
        size = len(self._ranks)
        source, target = index % size, self._targets[index // size]
        shown, every = self._ranks[target], at(target, "all_splits")
        capacity, offset = shown.rooms[2:, source].tolist()
        found = np.zeros(PAIRING.total // WORD, np.int64)
        for name, value in (
            ("capacity", capacity), ("itemsize", shown.numbers["itemsize"]), ("call", base + source * CALL.total), ("peer", target),
            ("target", at(target, "recv") + offset),
            ("outgoing", report + fault_offset(size, source, OUTGOING, target)),
            ("incoming", report + fault_offset(size, target, INCOMING, source)),
            ("all_splits", every and every + source * self._segments * WORD),
        ):  # fmt: skip
            found[getattr(PAIRING, name) // WORD] = value
        return found

    def arguments(self, base: int) -> tuple[int, ...]:
        """What the kernel takes."""
        workspaces = base + self._places["workspaces"]
        return base + self._places["pairings"], self.pairs, self.pieces, workspaces, workspace_bytes(self._segments)


def _places(size: int, pairs: int, pieces: int, segments: int) -> tuple[dict[str, int], int]:
    """Where each table begins, and bytes of all."""
    found, at = {}, 0
    for name, nbytes in (
        ("calls", size * CALL.total), ("rooms", 2 * size * size * WORD), ("pairings", pairs * PAIRING.total),
        ("workspaces", pairs * pieces * workspace_bytes(segments)),
    ):  # fmt: skip
        found[name] = -(-at // LINE) * LINE if name == "workspaces" else at
        at = found[name] + nbytes
    return found, at


def least_nbytes(size: int, segments: int) -> int:
    """Bytes of the tables if all ranks share a GPU, and no pair is cut."""
    return _places(size, size * size, 1, segments)[1]
