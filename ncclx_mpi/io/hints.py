"""Hints of files, by the names that ROMIO gives them. What is not understood is kept and reported, and does nothing."""

from __future__ import annotations

from collections.abc import Mapping

ENABLE, DISABLE, AUTOMATIC = "enable", "disable", "automatic"
_CHOICES = ENABLE, DISABLE, AUTOMATIC
_BLOCK = 4096
_BUFFER = 4 << 20


class Hints:
    """The hints of one file.

    Attributes
    ----------
    cb_nodes, cb_buffer_size
        How many ranks access the file for all in a collective, and so many bytes at a time.
    cb_read, cb_write
        Whether collectives go that way; `automatic`: if the accesses of ranks are interleaved.
    ds_read
        Whether holes are read too where a rank reads by itself; `automatic`: small ones.
    sieve_bytes
        So many bytes at a time then.
    striping_unit
        Multiples of this many bytes begin the part of a file that one rank accesses for all.
    """

    def __init__(self, given: Mapping[str, str], nranks: int) -> None:
        self.given = dict(given)
        self.cb_nodes = min(_number(given, "cb_nodes", nranks), nranks)
        self.striping_unit = _number(given, "striping_unit", _BLOCK)
        size = _number(given, "cb_buffer_size", max(_BUFFER, self.striping_unit))
        self.cb_buffer_size = max(size, _BLOCK)
        self.sieve_bytes = _number(given, "ind_rd_buffer_size", _BUFFER)
        self.cb_read = _choice(given, "romio_cb_read")
        self.cb_write = _choice(given, "romio_cb_write")
        self.ds_read = _choice(given, "romio_ds_read")

    @property
    def items(self) -> dict[str, str]:
        """All hints, those in use with their values."""
        return {
            **self.given,
            "cb_nodes": str(self.cb_nodes),
            "cb_buffer_size": str(self.cb_buffer_size),
            "ind_rd_buffer_size": str(self.sieve_bytes),
            "romio_cb_read": self.cb_read,
            "romio_cb_write": self.cb_write,
            "romio_ds_read": self.ds_read,
            "striping_unit": str(self.striping_unit),
        }

    @property
    def words(self) -> list[int]:
        """What all ranks have to give alike."""
        choices = [_CHOICES.index(choice) for choice in (self.cb_read, self.cb_write)]
        return [self.cb_nodes, self.cb_buffer_size, self.striping_unit, *choices]


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "").strip()
    return int(text) if text.isdecimal() and 0 < int(text) < 1 << 31 else default


def _choice(given: Mapping[str, str], name: str) -> str:
    text = given.get(name, "").strip().lower()
    return text if text in _CHOICES else AUTOMATIC
