"""Objects drawn at random, and whether two are alike: in value, in type, and in what is the same object as what."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import random
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

ALPHABETS = ("abcXYZ 09_\0\x7f", "éüß\xff\x80", "✓あ中\ud7ff\ue000", "😀𝄞\U0010ffff", "a\ud800z", "\udfff😀")
WHOLE = (0, 1, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200)
PARTIAL = (0.0, -0.0, 1.5, -1e300, 5e-324, float("inf"), float("nan"))
CODES = ("?", "b", "B", "h", "i", "l", "Q", "e", "f", "d", "g", "F", "D", ">f8", "M8[s]", "S3", "U2", "i4,f8")
_DEEPEST = 5


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Words(list[Any]):
    """A subclass of a plain type is no plain value."""


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


class Maker:
    """Makes objects from a seed: the same ones in every process."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.made: list[Any] = []

    def plain(self, depth: int = 0) -> Any:
        """A value that the compiled writer takes, as far as nothing in it is shared and it has room."""
        draw = self.random.random()
        if depth < _DEEPEST and draw < 0.4:
            return self._container(depth, self.plain, (list, tuple, dict))
        return self.array(CODES[:9]) if draw < 0.45 else self.atom()

    def anything(self, depth: int = 0) -> Any:
        """Any object: among others one that has been made before, or is in itself."""
        draw = self.random.random()
        if self.made and draw < 0.12:
            return self.random.choice(self.made)
        if depth < _DEEPEST and draw < 0.45:
            found = self._container(depth, self.anything, (list, tuple, dict, Words, deque, OrderedDict, Pair))
            self.made.append(found)
            if self.random.random() < 0.1 and isinstance(found, list):
                found.append(found)
            return found
        if draw < 0.55:
            self.made.append(self.array(CODES))
            return self.made[-1]
        return self.rare() if draw < 0.65 else self.atom()

    def atom(self) -> Any:
        draw = self.random.randrange(7)
        if draw < 2:
            return self.random.choice((None, True, False))
        if draw == 2:
            return self.random.choice((1, -1)) * self.random.choice(WHOLE) - self.random.randrange(2)
        if draw == 3:
            return self.random.choice(PARTIAL) if self.random.random() < 0.5 else self.random.random()
        return self.text() if draw < 6 else self.random.randbytes(self._length())

    def text(self) -> str:
        return "".join(self.random.choices(self.random.choice(ALPHABETS), k=self._length()))

    def array(self, codes: tuple[str, ...]) -> Any:
        """An array: of any order, perhaps a view with gaps, perhaps frozen, perhaps a scalar."""
        shape = [self.random.randrange(4) for _ in range(self.random.randrange(4))]
        if self.random.random() < 0.01:
            shape = [self.random.randrange(40_000)]
        dtype = np.dtype(self.random.choice(codes))
        data = self.random.randbytes(int(np.prod(shape, dtype=int)) * dtype.itemsize)
        if dtype.kind in "?bU":
            data = bytes(byte & 1 if dtype.kind == "b" else 0 for byte in data)
        found = np.frombuffer(data, dtype).reshape(shape).copy() if data else np.zeros(shape, dtype)
        if codes is not CODES:
            return found
        draw = self.random.randrange(8)
        if draw == 0:
            return found.T
        if draw == 1 and found.ndim:
            return found[::-1]
        if draw == 2:
            found.flags.writeable = False
        return found.flat[0] if draw == 3 and found.size else found

    def rare(self) -> Any:
        number = self.random.randrange(1000)
        makers: tuple[Callable[[], Any], ...] = (
            lambda: {number, "x", None, (1, 2.5)},
            lambda: frozenset((number, 1.5)),
            lambda: bytearray(self.random.randbytes(number)),
            lambda: complex(number, -0.0),
            lambda: decimal.Decimal(number) / 7,
            lambda: datetime.timedelta(seconds=number),
            lambda: range(0, number, 3),
            lambda: self.random.choice((Colour.RED, Level.LOW, int, np.dtype("f4"), len, Ellipsis)),
        )
        return self.random.choice(makers)()

    def _length(self) -> int:
        draw = self.random.random()
        return (
            self.random.randrange(40_000)
            if draw < 0.002
            else self.random.randrange(400)
            if draw < 0.05
            else self.random.randrange(9)
        )

    def _container(self, depth: int, each: Callable[[int], Any], kinds: tuple[Any, ...]) -> Any:
        kind, length = self.random.choice(kinds), self.random.randrange(5)
        if kind is Pair:
            return Pair(each(depth + 1), each(depth + 1))
        if kind in (dict, OrderedDict):
            return kind((self._key(), each(depth + 1)) for _ in range(length))
        return kind(each(depth + 1) for _ in range(length))

    def _key(self) -> Any:
        found = self.atom()
        return "nan" if found != found else found


class Likeness:
    """Whether two objects are alike. What can be changed must be one object in both wherever it is one in either."""

    def __init__(self) -> None:
        self._theirs: dict[int, int] = {}
        self._mine: dict[int, int] = {}

    def of(self, mine: Any, theirs: Any) -> bool:
        """Whether they are alike, given what was found alike before."""
        if type(mine) is not type(theirs):
            return False
        if isinstance(mine, float):
            return struct.pack("d", mine) == struct.pack("d", theirs)
        if isinstance(mine, list | dict | deque | bytearray | set | np.ndarray | Pair):
            known = self._theirs.get(id(mine)), self._mine.get(id(theirs))
            if known != (None, None):
                return known == (id(theirs), id(mine))
            self._theirs[id(mine)], self._mine[id(theirs)] = id(theirs), id(mine)
        return self._parts(mine, theirs)

    def _parts(self, mine: Any, theirs: Any) -> bool:
        if isinstance(mine, list | tuple | deque):
            return len(mine) == len(theirs) and all(map(self.of, mine, theirs))
        if isinstance(mine, dict):
            return len(mine) == len(theirs) and all(
                self.of(*keys) and self.of(mine[keys[0]], theirs[keys[1]]) for keys in zip(mine, theirs, strict=True)
            )
        if isinstance(mine, Pair):
            return self.of(mine.first, theirs.first) and self.of(mine.second, theirs.second)
        if isinstance(mine, np.ndarray | np.generic):
            flags = ("C_CONTIGUOUS", "F_CONTIGUOUS", "WRITEABLE", "ALIGNED")
            return bool(
                mine.dtype == theirs.dtype
                and mine.shape == theirs.shape
                and mine.tobytes() == theirs.tobytes()
                and all(mine.flags[flag] == theirs.flags[flag] for flag in flags)
            )
        return bool(mine == theirs)


def alike(mine: Any, theirs: Any) -> bool:
    """Whether two objects are alike: value, type, and which parts are the same object."""
    return Likeness().of(mine, theirs)
