"""Pictures show what they are said to: the messages of a plan, in an order in which they can be sent."""

import re
import sys
from pathlib import Path

import pytest

from ncclx_mpi.algorithms import PLAN, ROWS, Algorithm, row_of

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import house
import pictures
import plots
import svg

PLANS = pytest.mark.parametrize("row", [row for row in ROWS if row.kind == PLAN], ids=lambda row: f"{row.collective}-{row.name}")


@PLANS
def test_everybody_who_needs_something_gets_it(row: Algorithm) -> None:
    messages = pictures.traced(row).messages
    everybody = set(range(pictures.RANKS))
    needs = {"gather": {0}, "reduce": {0}, "bcast": everybody - {0}, "scatter": everybody - {0}, "scan": everybody - {0}}
    assert {message.target for message in messages} >= needs.get(row.collective, everybody)
    assert all(message.source != message.target and message.turn >= 0 for message in messages)


def test_nobody_passes_on_what_has_not_come() -> None:
    messages = pictures.traced(row_of("bcast", "binomial")).messages
    came = {0: -1} | {message.target: message.turn for message in messages}
    assert len(messages) == pictures.RANKS - 1
    assert all(came[message.source] < message.turn for message in messages)


def test_a_ring_takes_a_turn_for_each_step() -> None:
    drawing = pictures.traced(row_of("allreduce", "ring"))
    n = pictures.RANKS
    assert sorted((m.source, m.turn) for m in drawing.messages) == [
        (rank, turn) for rank in range(n) for turn in range(2 * (n - 1))
    ]
    assert all((m.source + 1) % n == m.target for m in drawing.messages)
    assert len(drawing.reductions) == n * (n - 1)


def test_every_import_of_the_house_leads_down() -> None:
    graph = house.imports()
    rows = house.rows(graph)
    level = {part: number for number, row in enumerate(rows) for part in row}
    assert level.keys() == graph.keys() >= {"MPI", "api", "p2p", "cli", "transports", "numba_kernels"}
    assert "bootstrap" in graph["runtime"], "runtime imports it inside functions, too"
    assert all(level[part] < level[used] for part in graph for used in graph[part])


def test_a_line_that_is_left_out_follows_from_others() -> None:
    graph = house.imports()
    drawn = house.without_shortcuts(graph)
    assert sum(map(len, drawn.values())) < sum(map(len, graph.values()))
    assert all(house.reached(drawn, part) == house.reached(graph, part) for part in graph)


def test_a_case_has_a_dot_for_each_placement_that_came_up() -> None:
    row = {"case": "bcast", "bytes": 8, "ranks": 2, "ratio": 0.5, "placement": "near"}
    rows = [row, {**row, "placement": "far"}, {**row, "case": "barrier"}, {**row, "case": "startup", "placement": "any"}]
    drawn = plots.placements(rows)
    assert "startup" not in drawn
    assert drawn.count("<circle") == 3 + len(plots.PLACED)


def test_a_case_between_hosts_has_a_dot_for_each_kind_that_ran() -> None:
    forced = {"what": "mpi bcast 8", "best": {"ours": 1.0, "flat": 3.0, "mpich": 2.0, "impi": 4.0}}
    unforced = {"what": "mpi barrier 0", "best": {"ours": 1.0, "mpich": 2.0}}
    drawn = plots.between_hosts([forced, unforced])
    assert drawn.count("<circle") == 2 + 1 + len(plots.PLANS)
    assert ">bcast 8 B<" in drawn and ">barrier<" in drawn


def test_large_messages_are_drawn_as_a_rate() -> None:
    placed = [{"case": "pingpong", "bytes": 1 << 20, "placement": where, "us": {"ncclx_mpi": 100.0}} for where in plots.PLACED]
    hosts = [{"what": f"mpi ping-pong {1 << 20}", "best": {"ours": 1000.0, "mpich": 500.0}}]
    drawn = plots.pingpong(1 << 20, placed, hosts)
    assert "GB/s" in drawn and drawn.count("<circle") == 4 + len(plots.COLOURS)


def test_every_colour_of_a_picture_has_one_for_dark_pages() -> None:
    """But those of the plate, whose colours mean something."""
    for name, drawn in pictures.all_of_them():
        used = set(re.findall(r'(?:fill|stroke)="(#\w+)"', drawn))
        assert used <= svg.DARK.keys() or "prefers-color-scheme" not in drawn, name


def test_the_newest_file_of_a_day_is_the_one_with_the_highest_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("2026-01-02-start.json", "2026-01-02-start-2.json", "2026-01-02-start-10.json", "2026-01-01-start-11.json"):
        (tmp_path / name).touch()
    (tmp_path / "2026-01-03-start-of-hosts.json").touch()
    monkeypatch.setattr(plots, "RESULTS", tmp_path)
    assert plots.newest_file("start").name == "2026-01-02-start-10.json"
