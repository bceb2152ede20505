"""The host's way of an all-to-all whose counts are read when it executes, on arrays of the host or mirrors of a GPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ncclx_mpi import collectives
from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW
from ncclx_mpi.collectives.executor import entry
from ncclx_mpi.extensions.alltoallv_dynamic import faults, on_host
from ncclx_mpi.extensions.alltoallv_dynamic.faults import Fault
from ncclx_mpi.extensions.alltoallv_dynamic.mirror import Mirror, Range
from ncclx_mpi.extensions.alltoallv_dynamic.operands import Integers, Operands
from ncclx_mpi.gpu_memory.memory import DeviceMemory
from ncclx_mpi.operations.collection import Collection
from numba_kernels.alltoallv import layout
from numba_kernels.alltoallv.layout import CALL, OFFER, PAIR, RUN
from numba_kernels.late_numpy import np, npt
from numba_kernels.layout import WORD

if TYPE_CHECKING:
    from ncclx_mpi.api.communicator import CommState


class Exchange:
    """One call: the words that compiled code reads, and what keeps all memory alive.

    Parameters
    ----------
    state
        The communicator.
    operands
        What this rank passes.
    """

    def __init__(self, state: CommState, operands: Operands) -> None:
        size, segments, choice = state.size, operands.segments, operands.choice
        self.rank, self.size = state.rank, size
        self._operands = operands
        self._metadata: list[tuple[Integers, Mirror | None]] = []
        self._send: Mirror | None = None
        self._recv: Mirror | None = None
        self._all_splits: Mirror | None = None
        self.offer_bytes = layout.offer_bytes(segments)
        tables = layout.tables(size, segments) | {"rows": size * ROW.total}
        self._words = np.empty((CALL.total + sum(tables.values())) // WORD, np.int64)
        self._words[: CALL.total // WORD] = 0
        self.address = at = self._words.ctypes.data
        at += CALL.total
        for name, nbytes in tables.items():
            self.set_word(name, at)
            at += nbytes
        for name, value in (
            ("rank", self.rank), ("size", size), ("segments", segments), ("form", operands.form),
            ("itemsize", operands.send.itemsize), ("splits_kind", operands.splits.kind), ("row_step", operands.row_step),
            ("most_runs", layout.most_runs(segments)),
            ("indices_kind", choice.indices.kind), ("most_indices", choice.indices.length),
            ("blocklengths_kind", choice.blocklengths.kind),
            ("first", choice.first), ("first_step", choice.step), ("taken", choice.taken),
        ):  # fmt: skip
            self.set_word(name, value)
        if not operands.is_on_device:
            self._attach()

    def _attach(self) -> None:
        """Write down where the arrays are, or what stands for them: pinned memory is taken when it is first needed."""
        operands = self._operands
        self._metadata = [(integers, _mirror_of(integers)) for integers in operands.metadata]
        self._send = _mirror(operands.send.device, operands.send.first, operands.send.nbytes)
        self._recv = _mirror(operands.recv.device, operands.recv.first, operands.recv.nbytes)
        self._all_splits = _mirror_of(operands.all_splits)
        for name, rooms, mirror in (("send_places", operands.send, self._send), ("recv_places", operands.recv, self._recv)):
            addresses = [address + _shift(mirror) for address in rooms.addresses]
            self._table(name, 2 * self.size)[:] = [*rooms.capacities, *addresses]
        for name, (integers, mirror) in zip(("splits", "indices", "blocklengths"), self._metadata, strict=True):
            self.set_word(name, integers.address + _shift(mirror))
        self.set_word("all_splits", operands.all_splits.address + _shift(self._all_splits))

    def __del__(self) -> None:
        if hasattr(self, "address") and self.word("packed"):
            entry(on_host.give_room_back)(self.address)

    def word(self, field: str) -> int:
        """A word of ``CALL``."""
        return int(self._words[getattr(CALL, field) // WORD])

    def set_word(self, field: str, value: int) -> None:
        """Set a word of ``CALL``."""
        self._words[getattr(CALL, field) // WORD] = value

    def _table(self, name: str, words: int) -> npt.NDArray[np.int64]:
        """A table that a word of ``CALL`` refers to."""
        first = (self.word(name) - self.address) // WORD
        return self._words[first : first + words]

    def prepare(self, state: CommState) -> Callable[[], Collection]:
        """Return what starts it, as often as it is complete."""
        collective, steps = on_host.prepare(state.native, self.address, self.word("offers"), self.word("answers"), self.offer_bytes)
        collective.owner = self
        self.set_word("steps", steps)

        def begin() -> Collection:
            if not collective.running:  # else the start below says what is wrong
                self.read()
            collective.start()
            return Collection(collective, self, self.finish)

        return begin

    def run(self, state: CommState) -> None:
        """Carry it out on the slot of the communicator."""
        if self._operands.is_on_device:
            self.read()
        collectives.check(state.native, entry(on_host.exchange)(state.address, self.address), faults.NAME)
        self.finish()

    def read(self) -> None:
        """Read the metadata, and what they say will be sent of a buffer on a GPU."""
        if not self._metadata:
            self._attach()
        for integers, mirror in self._metadata:
            if mirror is not None:
                mirror.load([(integers.address, integers.nbytes)])
        entry(on_host.offer)(self.address)
        if self._send is not None:
            offers = self._table("offers", self.size * self.offer_bytes // WORD).reshape(self.size, -1)
            lengths = offers[:, OFFER.total // WORD :][:, : self.word("segments")]
            send = self._operands.send
            used: dict[int, int] = {}
            for peer in np.flatnonzero(offers[:, OFFER.fault // WORD] == layout.FINE).tolist():
                elements = min(int(lengths[peer].sum()), send.capacities[peer])
                address = send.addresses[peer]
                used[address] = max(used.get(address, 0), elements * send.itemsize)
            self._send.load(used.items())

    def finish(self) -> None:
        """Copy what arrived for buffers on a GPU to them, then raise what went wrong with pairs of this rank, if anything did."""
        if self._recv is not None:
            self._recv.store(self._landed(self._recv.shift))
        if self._all_splits is not None:
            self._all_splits.store([(self._operands.all_splits.address, self._operands.all_splits.nbytes)])
        if self.word("faults"):
            faults.raise_if_any(self.rank, self._faults())

    def _landed(self, shift: int) -> list[Range]:
        """What the runs of all sources have filled, in a GPU's memory."""
        pairs = self._table("incoming", self.size * PAIR.total // WORD).reshape(self.size, -1)
        most_runs, width = self.word("most_runs"), RUN.total // WORD
        runs = self._table("incoming_runs", self.size * most_runs * width).reshape(self.size, most_runs, width)
        return [
            (int(pair[PAIR.target // WORD] + run[RUN.target // WORD]) - shift, int(run[RUN.nbytes // WORD]))
            for pair, rows in zip(pairs, runs, strict=True)
            for run in rows[: pair[PAIR.runs // WORD]]
        ]

    def _faults(self) -> list[Fault]:
        """Faults of the pairs with this rank."""
        found = []
        for name in ("outgoing", "incoming"):
            for peer, pair in enumerate(self._table(name, self.size * PAIR.total // WORD).reshape(self.size, -1).tolist()):
                words = [pair[getattr(PAIR, field) // WORD] for field in ("fault", "segment", "needed", "limit")]
                if words[0] != layout.FINE and not (name == "incoming" and peer == self.rank):
                    source, target = (self.rank, peer) if name == "outgoing" else (peer, self.rank)
                    found.append(Fault(source, target, *words))
        return found


def _mirror(device: DeviceMemory | None, first: int, nbytes: int) -> Mirror | None:
    """What stands for memory of a GPU; nothing does for the host's."""
    return None if device is None else Mirror(device, first, nbytes)


def _mirror_of(integers: Integers) -> Mirror | None:
    return _mirror(integers.device, integers.address, integers.nbytes)


def _shift(mirror: Mirror | None) -> int:
    return 0 if mirror is None else mirror.shift
