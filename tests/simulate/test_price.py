"""Prices follow from a model that can be worked out by hand, ranks that stand for others cost what all cost, and GOAL text is read back."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ncclx_mpi.algorithms import PLAN, ROWS, Algorithm, row_of
from ncclx_mpi.cli import simulate
from ncclx_mpi.collectives.plan import FIELDS, SEND
from ncclx_mpi.costs import chain_segment
from ncclx_mpi.simulate import classes, goal, network, proof
from ncclx_mpi.simulate.calls import Call
from ncclx_mpi.simulate.price import estimate, price

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import textbook

PLANS = [row for row in ROWS if row.kind == PLAN]
HOSTS = """
node.ranks = 4      # of a node
rack.nodes = 2
zone.racks = 4
rack.latency = 2
zone.latency = 5
dc.latency = 20
rack.bandwidth = 5
zone.bandwidth = 5
dc.bandwidth = 5
eager = 8K
""".splitlines()
SHARED = [*HOSTS, "node.uplink = 10"]
NETWORKS = sorted((Path(__file__).parents[2] / "docs" / "snippets").glob("*.txt"))


def call_of(row: Algorithm, size: int, nbytes: int) -> Call:
    return Call(size, 0 if row.collective == "barrier" else nbytes, 8)


@pytest.mark.parametrize("row", PLANS, ids=lambda row: f"{row.collective}-{row.name}")
@pytest.mark.parametrize(("size", "nbytes"), [(16, 1024), (16, 128 << 10), (12, 12 * 640)])
def test_on_an_even_network_prices_are_those_of_the_textbook(row: Algorithm, size: int, nbytes: int) -> None:
    """Alpha a round, beta a byte, gamma a byte reduced, if copies take no time. Along a chain, all of it is done in every round, of the first
    segment; a root reduces what has come while more comes; a leader sends as many bytes as it has received before."""
    call, even = call_of(row, size, nbytes), network.read(["copy = 1000000"])
    formulas = textbook.NEEDS[row.collective, row.name].of(size)
    rounds, moved, reduced = formulas.values(size, call.nbytes)
    repeated = rounds if (row.collective, row.name) == ("scan", "chain") else 1
    is_twice = (row.collective, row.name) == ("allreduce", "leaders")
    moved *= 1 + is_twice
    if (row.collective, row.name) == ("bcast", "chain"):
        segment = chain_segment(call.nbytes)
        rounds, moved = rounds + call.nbytes // segment - 1, moved + (rounds - 1) * segment
    said = rounds * even.message + repeated * (moved * even.byte[0] + reduced * even.reduce)
    found = price(row, call, even)
    assert found.nbytes[1:] == (0, 0, 0, 0)
    if row.collective == "reduce":
        assert 0.65 * said < found.us <= said
    else:
        is_bound = is_twice or formulas is textbook.NEEDS[row.collective, row.name].otherwise
        assert found.us == pytest.approx(said, rel=0.1 if is_bound else 1e-4)


@pytest.mark.parametrize(
    "row", [row for row in textbook.PUBLISHED if row.ranks != 128], ids=lambda row: f"{row.source}-{row.ranks}"
)
def test_prices_are_near_what_others_have_published(row: textbook.Published) -> None:
    """A simulation of the same model to the last digit; what was measured by about half, since how it was done is not ours. The page has
    128 ranks, too, which are looked at one by one."""
    if row.network == "loggopsim.txt":
        assert row.priced() == pytest.approx(row.us)
    else:
        assert row.us / 2 < row.priced() < 1.5 * row.us


EXCHANGES = ("reduce_scatter_gather", "reduce_scatter_allgather", "pairwise")
SERIAL_THERE = (*EXCHANGES, "allgather_reduce")
"""Where all send and receive all the time, which one processor of a rank does there one after the other."""


@pytest.mark.parametrize("row", textbook.SIMULATED, ids=lambda row: f"{row.collective}-{row.algorithm}-{row.ranks}-{row.nbytes}")
def test_prices_are_those_of_another_simulator(row: textbook.Published) -> None:
    """The page says where it sees a rank otherwise: there, in a scatter, and where ranks are folded, it may be another price."""
    ratio = row.priced() / row.us
    is_folded = row.algorithm == "recursive_doubling" and row.ranks == 12
    if row.algorithm in SERIAL_THERE or row.collective == "scatter" or is_folded:
        assert 0.6 < ratio < 1.25
    else:
        assert 0.97 < ratio < 1.03


def test_what_a_tree_costs() -> None:
    """Of 8 ranks the last one has it after 3 hops: two within a node, one to the next node of the rack."""
    hosts = network.read(HOSTS)
    found = price(row_of("bcast", "binomial"), Call(8, 1000), hosts)
    assert found.us == pytest.approx((1 + 0.2 + 2) + 2 * (1 + 0.1))
    assert found.nbytes == (6000, 1000, 0, 0, 0) and found.messages == 7 and found.looked_at == 8


def test_ranks_of_a_node_share_its_link() -> None:
    """Four messages of 100 us each leave a node at once; by a link for one of them it takes as long as for all four."""
    lines = [*HOSTS, "message = 0", "rack.latency = 0", "eager = 0"]
    neighbours = row_of("allreduce", "recursive_doubling")
    apart, shared = (price(neighbours, Call(8, 500_000, 8), network.read([*lines, *more])) for more in ([], ["node.uplink = 5"]))
    assert shared.us == pytest.approx(apart.us + 3 * 100)
    assert shared.nbytes == apart.nbytes == (8_000_000, 4_000_000, 0, 0, 0)


FREE = ("message = 0", "copy = 1000000")


@pytest.mark.parametrize(("lines", "us"), [((), 100), (("node.core = 5",), 400), (("node.core = 5", "core.ranks = 2"), 800)])
def test_a_core_that_sends_and_receives_does_one_after_the_other(lines: tuple[str, ...], us: float) -> None:
    """1 MB of each of two ranks for the other: 100 us on its way, 200 of a core for what it sends, and for what it receives."""
    call = Call(2, 2_000_000)
    found = price(row_of("alltoall", "pairwise"), call, network.read([*FREE, *lines]))
    assert found.us == pytest.approx(us, rel=0.01)


@pytest.mark.parametrize(("sharing", "us"), [(1, 1000), (2, 2000)])
def test_ranks_that_share_a_core_reduce_one_after_the_other(sharing: int, us: float) -> None:
    modelled = network.read([*FREE, "reduce = 1", "node.bandwidth = 1000000", f"core.ranks = {sharing}"])
    found = price(row_of("allreduce", "recursive_doubling"), Call(2, 1_000_000, 8), modelled)
    assert found.us == pytest.approx(us, rel=0.01)


@pytest.mark.parametrize(
    "row",
    [row for row in textbook.SIMULATED if row.algorithm in EXCHANGES and row.nbytes < 2000],
    ids=lambda row: f"{row.collective}-{row.ranks}",
)
def test_with_a_processor_for_both_ways_prices_are_those_of_another_simulator(row: textbook.Published) -> None:
    """Of exchanges of small blocks, where :func:`test_prices_are_those_of_another_simulator` lets them be two thirds."""
    modelled = network.read([*(textbook.SNIPPETS / row.network).read_text().splitlines(), "node.core = 1000000"])
    found = price(row_of(row.collective, row.algorithm), Call(row.ranks, row.nbytes, 8), modelled)
    assert 0.95 < found.us / row.us < 1.05


def test_formulas_know_of_cores() -> None:
    for name, algorithm in (("alltoall", "pairwise"), ("allgather", "ring"), ("reduce_scatter", "pairwise")):
        for sharing in (1, 4):
            modelled = network.read([*FREE, "node.core = 2", f"core.ranks = {sharing}"])
            row, call = row_of(name, algorithm), Call(8, 1 << 20, 8)
            assert estimate(row, call, modelled) == pytest.approx(price(row, call, modelled).us, rel=0.15)


def test_large_messages_wait_for_their_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    eager, large = (price(row_of("scan", "chain"), Call(2, nbytes, 8), network.read(["eager = 1000"])) for nbytes in (1000, 1008))
    assert eager.us == pytest.approx(0.1 + 1 + 0.1 + 0.05) and large.us == pytest.approx(eager.us, rel=0.01)


@pytest.mark.parametrize("lines", [HOSTS, SHARED], ids=["apart", "shared"])
@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("barrier", "dissemination"),
        ("allreduce", "recursive_doubling"),
        ("allgather", "bruck"),
        ("alltoall", "bruck"),
        ("allreduce", "ring"),
        ("alltoall", "pairwise"),
    ],
)
def test_ranks_that_stand_for_all_cost_what_all_do(
    collective: str, name: str, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, where all of a class are as far apart; else its ways are as long as the longest one."""
    row, modelled = row_of(collective, name), network.read(lines)
    call = call_of(row, 64, 64 * 2000)
    of_all = price(row, call, modelled)
    monkeypatch.setattr(classes, "_FEW_RANKS", 1)
    of_few = price(row, call, modelled)
    assert (of_all.looked_at, of_few.looked_at) == (64, 4) and of_few.messages == of_all.messages
    assert sum(of_few.nbytes) == sum(of_all.nbytes)
    if name in ("recursive_doubling", "pairwise"):
        assert of_few == of_all._replace(looked_at=4, nbytes=of_few.nbytes)
    assert of_all.us * 0.9999 <= of_few.us <= 3 * of_all.us


@pytest.mark.parametrize("row", PLANS, ids=lambda row: f"{row.collective}-{row.name}")
def test_on_several_nodes_no_price_is_less_than_what_ranks_and_links_need(row: Algorithm, full: bool) -> None:
    """Bytes are counted in the plans themselves, by who is on which node; nodes are filled, so that the last one may have fewer ranks."""
    layouts = [(size, 1 + size * 5 % 8) for size in range(1, 65)] if full else [(5, 2), (9, 8), (16, 3), (24, 4)]
    for size, nodes in layouts:
        each = -(-size // nodes)
        call = call_of(row, size, size * 4096)
        modelled = network.read([f"node.ranks = {each}", "node.uplink = 2", "rack.bandwidth = 5"])
        moved, out = [0, 0], [0] * nodes
        for rank, plan in enumerate(proof.plans_of(row, call)):
            for step in plan.steps[plan.steps["kind"] == SEND].tolist():
                peer, nbytes = step[FIELDS.index("peer")], step[FIELDS.index("nbytes")]
                is_far = rank // each != peer // each
                moved[is_far] += nbytes
                out[rank // each] += nbytes * is_far
        found = price(row, call, modelled)
        assert list(found.nbytes[:2]) == moved and sum(found.nbytes[2:]) == 0, (size, nodes)
        needs = row.figures(size, call.nbytes)
        least = max(max(out) * modelled.uplink[0], needs.moved * min(modelled.byte[:2]), needs.reduced * modelled.reduce)
        assert found.us >= least * 0.9999, (size, nodes)


def test_plans_without_ranks_that_do_the_same_are_looked_at_one_by_one() -> None:
    found = price(row_of("bcast", "binomial"), Call(200, 8), network.read(HOSTS))
    assert found.looked_at == 200 and found.messages == 199


@pytest.mark.parametrize(("collective", "name"), [("allreduce", "recursive_doubling"), ("barrier", "dissemination")])
def test_131072_ranks_are_priced_by_their_classes(collective: str, name: str) -> None:
    row = row_of(collective, name)
    found = price(row, call_of(row, 131_072, 1 << 20), network.read(SHARED))
    assert found.looked_at == 4 and found.messages == 17 * 131_072


def test_more_steps_than_can_be_looked_at_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "MOST_STEPS", 500)
    with pytest.raises(ValueError, match=r"steps, and no ranks that do the same"):
        price(row_of("allreduce", "reduce_scatter_allgather"), Call(60, 480, 8), network.read(HOSTS))
    with pytest.raises(ValueError, match=r"steps for the ranks of one node"):
        price(row_of("allreduce", "ring"), Call(400, 3200, 8), network.read(HOSTS))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rack.speed = 3", "line 1: 'rack.speed = 3' says nothing about a network; keys are node.ranks"),
        ("node.ranks", "says nothing"),
        ("node.ranks = 2.5", "node.ranks has to be a whole number, not '2.5'"),
        ("message = -1", "message has to be a number from 0 on"),
        ("rack.bandwidth = 0", "rack.bandwidth has to be a number above 0"),
        ("copy = inf", "copy has to be a number above 0"),
    ],
)
def test_a_line_that_says_nothing_is_named(line: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        network.read([line])
    assert said in str(caught.value)


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_networks_of_the_page_are_read(path: Path) -> None:
    found = network.read(path.read_text().splitlines())
    assert price(row_of("allreduce", "ring"), Call(16, 1 << 20, 8), found).us > 0


def test_how_far_it_is() -> None:
    hosts = network.read(HOSTS)
    assert [hosts.level(0, other) for other in (3, 4, 7, 8, 31, 32)] == [0, 1, 1, 2, 2, 3]
    assert network.read(["node.ranks = 2"]).level(0, 99) == 1 and network.read().level(0, 99) == 0
    far = network.read([*HOSTS, "dc.zones = 2"])
    assert [far.level(0, other) for other in (31, 32, 63, 64)] == [2, 3, 3, 4]


@pytest.mark.parametrize("row", PLANS, ids=lambda row: f"{row.collective}-{row.name}")
def test_plans_are_read_back_from_goal_text(row: Algorithm) -> None:
    """All of them, places included, so that what was read is proved, or refuted."""
    call = call_of(row, 5, 5 * 800)._replace(root=2, in_place=True)
    written = goal.Schedule(row, call, proof.plans_of(row, call))
    lines = list(goal.text(written, network.read()))
    found = goal.read(lines)
    assert found.row is row and found.call == call
    for plan, original in zip(found.plans, written.plans, strict=True):
        assert plan.temp == original.temp and (plan.steps == original.steps).all()
    assert not proof.faults(found.row, found.call, found.plans)
    without = [line for line in lines if not line.startswith("//")]
    assert without[:2] == ["num_ranks 5", "rank 0 {"] and without[-1] == "}"


def test_a_file_that_was_changed_is_refuted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plans.goal"
    arguments = ["allreduce", "--ranks", "4", "--bytes", "1K", "--algorithm", "ring", "--goal", str(path), "--prove"]
    assert simulate.main(arguments) == 0 and "ring: proved" in capsys.readouterr().out
    text = path.read_text()
    assert simulate.main(["--read", str(path)]) == 0
    path.write_text(re.sub(r"l\d+ requires l\d+\n", "", text))
    assert simulate.main(["--read", str(path)]) == 1
    assert "race: rank 0, step" in capsys.readouterr().out
    path.write_text(text.replace("calc", "think", 1))
    with pytest.raises(SystemExit):
        simulate.main(["--read", str(path)])
    assert "is no line of a schedule that ncclx simulate has written" in capsys.readouterr().err


@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_a_file_that_ends_early_is_named(cut: int) -> None:
    row, call = row_of("scan", "chain"), Call(3, 80, 8)
    lines = list(goal.text(goal.Schedule(row, call, proof.plans_of(row, call)), network.read()))
    with pytest.raises(ValueError, match=r"the file ends with"):
        goal.read(lines[:cut])
    with pytest.raises(ValueError, match=r"is no call that goes by a plan"):
        goal.read([lines[0].replace("size=3", "size=0"), *lines[1:]])


def test_the_command_prices_every_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "network"
    path.write_text("\n".join(SHARED))
    assert simulate.main(["allreduce", "--ranks", "16", "--bytes", "64K", "--topology", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[2:].split()[0] for line in lines[3:]] == [row.name for row in PLANS if row.collective == "allreduce"]
    assert all(float(line[2:].split()[1].replace(",", "")) > 0 for line in lines[3:])
    assert [line[2:].split()[0] for line in lines[3:] if line[0] == "+"] == ["full_lane"]


@pytest.mark.parametrize(("collective", "name"), [("allreduce", "reduce_scatter_allgather"), ("alltoall", "pairwise")])
@pytest.mark.parametrize("nbytes", [64 * 64, 64 << 14])
def test_formulas_charge_what_plans_cost_if_all_are_far(collective: str, name: str, nbytes: int) -> None:
    """On nodes of one rank they are nearly the price; on larger ones, where some messages are near, more."""
    row, call = row_of(collective, name), Call(16, nbytes, 8)
    lines = ["copy = 1000000", "node.uplink = 5", "rack.bandwidth = 8"]
    alone, together = (network.read([*lines, f"node.ranks = {ranks}"]) for ranks in (1, 4))
    assert price(row, call, alone).us <= estimate(row, call, alone) < 1.1 * price(row, call, alone).us
    assert price(row, call, together).us < estimate(row, call, together) < 1.5 * price(row, call, together).us


def test_the_command_says_what_is_no_price(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(classes, "MOST_STEPS", 100)
    assert simulate.main(["alltoall", "--ranks", "200", "--bytes", "200K", "--algorithm", "pairwise"]) == 0
    header, line = capsys.readouterr().out.splitlines()[2:]
    assert header.split()[:4] == ["algorithm", "us", "messages", "GB,"] and header.count("GB") == 1
    us = 199 * 1.0 + 199 / 200 * 200 * 1024 * 1e-4
    assert line.split()[:4] == ["+", "pairwise", "~", f"{us:,.1f}"] and "as formulas have it: some" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "which collective?"),
        (["bcast", "--algorithm", "ring"], "bcast has no plan ring"),
        (["bcast", "--ranks", "0"], "there is at least one rank"),
        (["bcast", "--bytes", "many"], "'many' is no size"),
        (["bcast", "--topology", "/nowhere"], "No such file"),
        (["alltoall", "--goal", "x"], "say --algorithm pairwise, or bruck"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        simulate.main(arguments)
    assert caught.value.code == 2 and said in capsys.readouterr().err


def test_plans_that_know_of_nodes_are_priced_as_such() -> None:
    """What leaves a node is less than by any other plan, and the formulas say about what the steps do."""
    hosts = network.read([*HOSTS, "node.uplink = 10"])
    assert hosts.nodes(8) == (0, 0, 0, 0, 1, 1, 1, 1) and hosts.nodes(4) == ()
    call = Call(16, 1 << 20, 4, nodes=hosts.nodes(16))
    row, flat = row_of("allreduce", "full_lane"), row_of("allreduce", "ring")
    by_node, around = price(row, call, hosts), price(flat, call, hosts)
    assert by_node.us < around.us and sum(by_node.nbytes[1:]) < sum(around.nbytes[1:])
    assert 0.5 < estimate(row, call, hosts) / by_node.us < 2
