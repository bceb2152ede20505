"""Groups: set operations, translation, comparison."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ncclx_mpi import MPI


@pytest.mark.ranks(1, 4)
def test_set_operations(comm: Any) -> None:
    group = comm.Get_group()
    size = group.size
    assert group.rank == comm.rank and size == comm.size
    evens = group.Incl(range(0, size, 2))
    odds = group.Excl(range(0, size, 2))
    assert evens.Translate_ranks(None, group) == list(range(0, size, 2))
    assert MPI.Group.Union(evens, odds).Compare(group) == (MPI.IDENT if size == 1 else MPI.SIMILAR)
    assert MPI.Group.Intersection(evens, odds) == MPI.GROUP_EMPTY
    assert MPI.Group.Difference(group, evens).Compare(odds) == MPI.IDENT
    assert group.Range_incl([(size - 1, 0, -1)]).Translate_ranks() == list(range(size))[::-1]
    assert group.Range_excl([(0, size - 1, 1)]) == MPI.GROUP_EMPTY
    assert evens.Get_rank() == (comm.rank // 2 if comm.rank % 2 == 0 else MPI.UNDEFINED)
    assert odds.Translate_ranks(range(odds.size), evens) == [MPI.UNDEFINED] * odds.size
    assert group.Translate_ranks([MPI.PROC_NULL, 0], group) == [MPI.PROC_NULL, 0]
    assert group.Dup().Compare(group) == MPI.IDENT and group.Dup() != group


@pytest.mark.ranks(2)
def test_errors_and_handles(comm: Any) -> None:
    group = comm.group
    for call in (lambda: group.Incl([2]), lambda: group.Incl([0, 0]), lambda: group.Excl([-1]), lambda: group.Translate_ranks([5])):
        with pytest.raises(MPI.Exception) as failure:
            call()
        assert failure.value.Get_error_class() == MPI.ERR_RANK
    with pytest.raises(MPI.Exception):
        group.Range_incl([(0, 1, 0)])
    assert pickle.loads(pickle.dumps(MPI.GROUP_EMPTY)) is MPI.GROUP_EMPTY
    with pytest.raises(ValueError):
        pickle.dumps(group)
    again = MPI.Group(group)
    group.Free()
    assert group == MPI.GROUP_NULL and not group
    with pytest.raises(MPI.Exception) as failure:
        again.Get_size()
    assert failure.value.Get_error_class() == MPI.ERR_GROUP
