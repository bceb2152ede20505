"""Named tuples of ours are what those of ``typing`` are."""

from __future__ import annotations

import pickle
import typing
from typing import Any

import pytest

from numba_kernels import rows
from numba_kernels.layout import words


class Theirs(typing.NamedTuple):
    """What one is."""

    first: int
    second: str = "b"
    third: tuple[int, ...] = ()

    @property
    def twice(self) -> int:
        """A member."""
        return 2 * self.first

    def with_first(self, first: int) -> Any:
        """A method."""
        return self._replace(first=first)


class Ours(rows.NamedTuple):
    """What one is."""

    first: int
    second: str = "b"
    third: tuple[int, ...] = ()

    @property
    def twice(self) -> int:
        """A member."""
        return 2 * self.first

    def with_first(self, first: int) -> Any:
        """A method."""
        return self._replace(first=first)


class Derived(Ours):
    """One with more methods."""

    def __str__(self) -> str:
        return f"derived {self.first}"


USES = {
    "by order": lambda kind: tuple(kind(1, "x", (2,))),
    "by name": lambda kind: tuple(kind(third=(2,), first=1)),
    "defaults": lambda kind: tuple(kind(1)),
    "compared": lambda kind: (kind(1) == kind(1), kind(1) != kind(2), kind(1) == (1, "b", ()), kind(1) < kind(2)),
    "hashed": lambda kind: hash(kind(1)),
    "attributes": lambda kind: (kind(1).first, kind(1).second, kind(1).twice, kind(1)[0], len(kind(1)), [*kind(1)]),
    "shown": lambda kind: repr(kind(1)).removeprefix(kind.__name__),
    "replaced": lambda kind: (tuple(kind(1)._replace(second="c")), tuple(kind(1).with_first(4))),
    "as a dictionary": lambda kind: kind(1)._asdict(),
    "made": lambda kind: tuple(kind._make([1, 2, 3])),
    "described": lambda kind: (kind._fields, kind._field_defaults, kind.__match_args__, kind.__doc__, [*kind.__annotations__]),
    "pickled": lambda kind: (pickle.loads(pickle.dumps(kind(1))) == kind(1), type(pickle.loads(pickle.dumps(kind(1)))) is kind),
    "without a dictionary": lambda kind: hasattr(kind(1), "__dict__"),
}
MISUSES = {
    "too few": lambda kind: kind(),
    "too many": lambda kind: kind(1, 2, 3, 4),
    "unknown": lambda kind: kind(1, fourth=1),
    "assigned": lambda kind: setattr(kind(1), "first", 2),
    "added": lambda kind: setattr(kind(1), "fourth", 2),
    "replaced": lambda kind: kind(1)._replace(fourth=2),
    "made of too few": lambda kind: kind._make([1]),
}


@pytest.mark.parametrize("use", USES)
def test_they_are_used_alike(use: str) -> None:
    assert USES[use](Ours) == USES[use](Theirs)


@pytest.mark.parametrize("misuse", MISUSES)
def test_they_refuse_alike(misuse: str) -> None:
    with pytest.raises(Exception) as expected:
        MISUSES[misuse](Theirs)
    with pytest.raises(expected.type):
        MISUSES[misuse](Ours)


def test_a_class_derived_from_one_is_made_first() -> None:
    found = Derived(3)
    assert type(found) is Derived
    assert (str(found), found.second, found._replace(first=4).first) == ("derived 3", "b", 4)
    assert type(Derived(third=(1,), first=1)) is Derived


def test_fields_may_have_names_that_keywords_have_elsewhere() -> None:
    kind = rows.row_type("Kind", ["new", "cls_", "self"])
    assert kind(1, cls_=2, self=3)._asdict() == {"new": 1, "cls_": 2, "self": 3}


def test_another_base_is_refused() -> None:
    with pytest.raises(TypeError, match="another base"):

        class _Two(rows.NamedTuple, typing.Generic[typing.TypeVar("T")]):  # type: ignore[misc]
            first: int


def test_words_are_offsets_by_name() -> None:
    found = words("Some", "first | second*3 third", start=8)
    assert found._asdict() == {"first": 8, "second": 64, "third": 88, "total": 96}
    assert found.second == 64
