"""Tuning tables: what they choose, which files are refused, and what is measured for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime, tuning
from ncclx_mpi.algorithms import RANK, Case, candidates, choose, measured_us
from ncclx_mpi.bench import tune
from ncclx_mpi.bench.points import KIB, MIB, Point
from ncclx_mpi.bench.rounds import Effort
from ncclx_mpi.nodes import nodes_of
from ncclx_mpi.tuning import Table
from tests.collectives.test_forced import noted_rows

TWO_BY_TWO = (0, 0, 1, 1)
TIMES = [(8, {"ring": 1.0, "leaders": 2.0}), (1008, {"ring": 101.0, "leaders": 22.0, "full_lane": 3.0})]
TABLE = Table({TWO_BY_TWO: {"allreduce": TIMES}, (0, 0, 0): {"bcast": [(0, {"full_lane": 3.0, "binomial": 4.0})]}}, "here")


def case(nbytes: int, **more: Any) -> Case:
    return Case(4, nbytes, 4, nodes=nodes_of(TWO_BY_TWO), table=TABLE)._replace(**more)


@pytest.mark.parametrize(
    ("nbytes", "times"),
    [
        (0, {"ring": 1.0, "leaders": 2.0}),
        (8, {"ring": 1.0, "leaders": 2.0}),
        (508, {"ring": 51.0, "leaders": 12.0}),
        (1008, {"ring": 101.0, "leaders": 22.0, "full_lane": 3.0}),
        (1 << 30, {"ring": 101.0, "leaders": 22.0, "full_lane": 3.0}),
    ],
)
def test_times_lie_on_straight_lines_between_those_that_were_measured(nbytes: int, times: dict[str, float]) -> None:
    assert TABLE.times("allreduce", TWO_BY_TWO, nbytes) == times


def test_the_plan_that_took_least_is_chosen() -> None:
    names = [choose("allreduce", case(nbytes)).name for nbytes in (8, 508, 1008)]
    assert names == ["ring", "leaders", "full_lane"]
    assert choose("bcast", Case(3, 100, table=TABLE)).name == "full_lane"


def test_the_model_is_overruled_only_by_what_is_clearly_faster() -> None:
    for us, name in ((9.2, "leaders"), (9.0, "ring")):
        close = Table({TWO_BY_TWO: {"allreduce": [(8, {"ring": us, "leaders": 10.0})]}})
        assert choose("allreduce", case(8, table=close)).name == name


def test_what_cannot_carry_a_call_out_is_not_chosen() -> None:
    for refused in (case(8, commutes=False), case(8, order=RANK)):
        assert not measured_us("allreduce", refused)
        assert choose("allreduce", refused) is choose("allreduce", refused._replace(table=None))
    ranked = Table({TWO_BY_TWO: {"allreduce": [(8, {"ring": 1.0, "allgather_reduce": 9.0, "recursive_doubling": 3.0})]}})
    assert choose("allreduce", case(8, table=ranked, order=RANK)).name == "allgather_reduce"
    assert choose("allreduce", case(8, table=ranked, commutes=False)).name == "recursive_doubling"


@pytest.mark.parametrize(
    ("collective", "unknown"),
    [
        ("allreduce", Case(4, 8, 4, nodes=nodes_of((0, 1, 0, 1)), table=TABLE)),
        ("allreduce", Case(4, 8, 4, table=TABLE)),
        ("alltoall", Case(4, 8, nodes=nodes_of(TWO_BY_TWO), table=TABLE)),
        ("bcast", Case(3, 100, has_slot=True, table=TABLE)),
        ("bcast", Case(3, 0, has_counts=True, table=TABLE)),
    ],
)
def test_the_model_chooses_what_the_table_says_nothing_of(collective: str, unknown: Case) -> None:
    assert not measured_us(collective, unknown)
    assert choose(collective, unknown) is choose(collective, unknown._replace(table=None))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(tuning.text(TABLE.layouts, {"date": "today"}))
    found = tuning.read(path)
    assert found.layouts == TABLE.layouts and found.source == str(path)
    path.write_text(tuning.text(TABLE.layouts, {"date": "tomorrow"}))
    assert 1 < found.digest != tuning.read(path).digest


HEAD = {"format": tuning.FORMAT, "version": tuning.VERSION}


def layout(times: Any, size: str = "8", collective: str = "bcast", nodes: Any = (0, 1)) -> Any:
    return {**HEAD, "layouts": [{"nodes": nodes, "us": {collective: {size: times}}}]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is no JSON: "),
        ("[" * 100_000, "it is no JSON: "),
        (b"\xff{}", "it is no JSON: "),
        ("[1]", "it is no tuning table"),
        ({"format": "topology", "version": 1, "layouts": []}, "it is no tuning table"),
        ({**HEAD, "version": 2}, "of version 2, and this ncclx_mpi reads version 1"),
        ({**HEAD, "layouts": [{"nodes": []}]}, "layout 1 does not say the nodes"),
        (layout({"binomial": 1.0}, nodes=[1, 0]), r"in the order in which ranks meet them, \[0, 1\], not \[1, 0\]"),
        (layout({"binomial": 1.0}, nodes=[True, False]), "does not say the nodes"),
        ({**HEAD, "layouts": [{"nodes": [0, 1], "us": {}}] * 2}, r"layout 2: nodes \[0, 1\] come a second time"),
        (layout({"binomial": 1.0}, collective="broadcast"), "layout 1: broadcast: there is no such collective; there are barrier"),
        (layout({"binomial": 1.0}, size="8 B"), "layout 1: bcast: '8 B' is no number of bytes"),
        (layout({}), "layout 1: bcast of 8 B has no times"),
        (layout({"tree": 1.0}), "layout 1: bcast of 8 B: there is no algorithm 'tree'; there are shm_oneshot"),
        (layout({"binomial": 0}), "binomial cannot take 0 us"),
        (layout({"binomial": "1"}), "binomial cannot take '1' us"),
        ('{"layouts": NaN}', "NaN is no number of JSON"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused(tmp_path: Path, text: Any, said: str) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(text if isinstance(text, bytes) else (text if isinstance(text, str) else json.dumps(text)).encode())
    with pytest.raises(ValueError, match=said):
        tuning.read(path)


def test_the_setting_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tuning.VARIABLE, raising=False)
    assert tuning.find() is None
    monkeypatch.setenv(tuning.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"NCCLX_MPI_TUNING_FILE=.*/none: No such file or directory; `ncclx bench --tune FILE`"):
        tuning.find()


def test_points_fit_into_memory() -> None:
    points = tune.points(4)
    assert {point.case for point in points} == set(tune.CASES)
    assert Point("alltoall", 4 * MIB, 4) in points and Point("alltoall", 4 * MIB, 16) not in tune.points(16)
    assert [point.nbytes for point in tune.points(2, ["barrier", "bcast"], [8, 64 * KIB])] == [0, 8, 64 * KIB]
    with pytest.raises(ValueError, match="'gather' has no choice of plans that is measured; those that have are barrier"):
        tune.points(4, ["gather"])


def measured(nbytes: int, **us: list[float]) -> tune.Measured:
    return tune.Measured(Point("allreduce", nbytes, 4), case(nbytes, table=None), us)


def test_a_choice_is_judged_by_rounds_that_had_no_say_in_it() -> None:
    """At 8 B the model has leaders. The odd rounds have ring, which takes twice the best time in the even ones."""
    first = measured(8, leaders=[5.0, 4.0, 3.0, 4.0], ring=[6.0, 2.0, 8.0, 2.5])
    its = tune.verdict(first)
    assert its == tune.Verdict("leaders", "ring", 1.5, 2.0)
    once = tune.verdict(measured(8, leaders=[3.0], ring=[2.0]))
    assert once == tune.Verdict("leaders", "ring", 1.5, 0.0)
    lines = list(tune.report([first]))
    assert lines[1].split() == ["allreduce", "8", "B", "leaders", "3", "ring", "2", "1.50", "2.00"]
    assert lines[2:] == [
        "# regret of the model at most 1.15 in 0 of 1 points, 1.50 at worst",
        "# regret of the table at most 1.15 in 0 of 1 points, 2.00 at worst",
    ]


def test_a_table_has_the_least_times_and_keeps_what_was_not_measured_again() -> None:
    found = tune.layouts([measured(64, ring=[3.0, 1.23456]), measured(8, ring=[2.0])], TABLE.layouts)
    assert found[TWO_BY_TWO]["allreduce"] == [(8, {"ring": 2.0}), (64, {"ring": 1.235})]
    assert found[0, 0, 0] == TABLE.layouts[0, 0, 0]


@pytest.mark.ranks(4, topology="vnode:2")
def test_every_plan_is_measured_on_the_ranks_of_a_job(comm: Any) -> None:
    wanted = tune.points(comm.size, ["barrier", "reduce_scatter_block"], [8])
    with noted_rows() as rows:
        found = list(tune.measure(comm, wanted, Effort(rounds=2, seconds=0.001, blocks=1)))
    for each, name in zip(found, ("barrier", "reduce_scatter"), strict=True):
        plans = {row.name for row in candidates(name, each.case)}
        assert len(plans) > 1 and {row.name for row in rows if row.collective == name} == plans and each.wrong == 0
        assert set(each.us) == (plans if comm.rank == 0 else set())
        assert all(len(times) == 2 and min(times) > 0 for times in each.us.values())
    assert not any(comm.Dup()._state.native.forced)


@pytest.mark.ranks(4, topology="vnode:2")
def test_communicators_go_by_the_table(comm: Any) -> None:
    engine, mine = runtime.engine(), comm.Dup()
    engine.table = TABLE
    try:
        again = mine.Dup()
    finally:
        engine.table = None
    for nbytes, name in ((8, "ring"), (504, "leaders"), (2000, "full_lane")):
        data = np.ones(nbytes // 4, np.float32)
        with noted_rows() as rows:
            again.Allreduce(MPI.IN_PLACE, data)
        assert [row.name for row in rows] == [name] and (data == 4).all()
