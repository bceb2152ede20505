"""The conformance class of transports: subclass it, give it a pair of ends, and pytest proves the flags."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from transports.base import Transport


class TransportTests:
    """What every transport must do; a flag that is not set skips its tests, one that is set must be true.

    A subclass gives the fixture ``pair``: the transport's ends at ranks 0 and 1, and ``shared_memory``, memory of a rank that
    ``register`` accepts, allocated past the code under test.
    """

    def shared_memory(self, rank: int, nbytes: int) -> int:
        """Address of `nbytes` zeroed bytes that `rank` can register."""
        raise AssertionError("a subclass that sets rma, atomics or direct must provide memory")

    def test_reaches_its_peers_and_itself(self, pair: tuple[Transport, Transport]) -> None:
        for end in pair:
            assert [end.why_not(peer) for peer in (0, 1)] == ["", ""]
            assert end.why_not(2)

    def test_lanes_meet(self, pair: tuple[Transport, Transport]) -> None:
        zero, one = pair
        assert zero.connect(1).outbox == one.connect(0).inbox
        assert zero.connect(1).inbox == one.connect(0).outbox
        assert zero.connect(1) == zero.connect(1)

    def test_unreachable_peer_is_an_error_that_says_why(self, pair: tuple[Transport, Transport]) -> None:
        with pytest.raises(ConnectionError, match="rank 7"):
            pair[0].connect(7)

    def test_private_memory_is_not_registered(self, pair: tuple[Transport, Transport]) -> None:
        private = np.zeros(100)
        assert pair[0].register(private.ctypes.data, private.nbytes) is None

    @pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 4097])
    def test_put_and_get(self, pair: tuple[Transport, Transport], nbytes: int) -> None:
        zero, one = pair
        self._need(zero.caps.rma, "rma")
        memory = self.shared_memory(1, 8192)
        key = one.register(memory, 8192)
        assert key is not None
        data, back = np.arange(nbytes, dtype=np.uint8), np.zeros(nbytes, np.uint8)
        zero.put(1, key, 5, data.ctypes.data, nbytes)
        assert ctypes.string_at(memory + 5, nbytes) == data.tobytes()
        assert ctypes.string_at(memory, 5) == bytes(5)
        zero.get(1, key, 5, back.ctypes.data, nbytes)
        np.testing.assert_array_equal(back, data)

    def test_put_outside_of_the_peers_memory_is_refused(self, pair: tuple[Transport, Transport]) -> None:
        zero, one = pair
        self._need(zero.caps.rma, "rma")
        key = one.register(self.shared_memory(1, 64), 64)
        assert key is not None
        source = np.zeros(8)
        for offset, nbytes in ((-1 << 50, 8), (1 << 50, 8), (0, -1)):
            with pytest.raises(ValueError, match="rank 1"):
                zero.put(1, key, offset, source.ctypes.data, nbytes)

    def test_fetch_add_from_both_ends(self, pair: tuple[Transport, Transport]) -> None:
        zero, one = pair
        self._need(zero.caps.atomics, "atomics")
        key = one.register(self.shared_memory(1, 64), 64)
        assert key is not None
        assert [zero.fetch_add(1, key, 8, 3), one.fetch_add(1, key, 8, 4), zero.fetch_add(1, key, 8, 0)] == [0, 3, 7]
        with pytest.raises(ValueError, match="multiple"):
            zero.fetch_add(1, key, 4, 1)

    def _need(self, flag: bool, name: str) -> None:
        if not flag:
            pytest.skip(f"the transport does not claim {name}")
