"""``ncclx bench --tune``: times of all plans on the ranks of this very job, for a tuning table, and the regret of choosing by it.

Each plan is forced on a duplicate of COMM_WORLD, and in each round every one has its turn, so that what changes on the machine meets all of
them alike. A choice is judged by rounds that had no say in it: what would be chosen by the even rounds by its times in the odd ones, and the
other way round. So regret is not 1 by definition, and noise that a table would follow shows. A time is the least of its rounds: what disturbs
a round only adds to it. Plans that are far behind after two rounds are not measured again.

Each call begins when all ranks have come. In a loop of calls ranks run ahead into the next ones, which programs that compute in between do
not, and a tree of few messages then looks better than it is: 114 us where it takes 215 (allreduce of 16 KiB, two hosts of four ranks).
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclx_mpi import runtime
from ncclx_mpi.algorithms import Algorithm, Case, candidates, choose, preferred
from ncclx_mpi.bench.points import EXCHANGED, KIB, MIB, SCATTERED, Point, buffer_bytes, size_text
from ncclx_mpi.bench.regret import LIMIT, collective_of
from ncclx_mpi.bench.rounds import Effort
from ncclx_mpi.p2p import forced
from ncclx_mpi.tuning import Layouts, Sizes
from numba_kernels.rows import NamedTuple

EFFORT = Effort(rounds=6, seconds=0.03, blocks=5)
CASES = ("barrier", "bcast", "reduce", "allreduce", "allgather", "alltoall", "reduce_scatter_block")
"""Those that can go by several plans."""
BYTES = (8, 256, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB)
_MOST_GIVEN = 16 * MIB
_MOST_MEMORY = 256 * MIB
_ROUNDS_OF_ALL, _FAR_BEHIND = 2, 2.0
"""In so many rounds every plan is measured; later only those that take less than so many times the best one's time."""
_ITEMSIZE = 4
"""Of a float32, which is what the worker sends."""


class Measured(NamedTuple):
    """A point, and the times of each algorithm, one a round, in us; none on ranks other than 0.

    Attributes
    ----------
    wrong
        Elements that did not hold what they should.
    """

    point: Point
    case: Case
    us: Mapping[str, Sequence[float]]
    wrong: int = 0

    @property
    def collective(self) -> str:
        """As the table of algorithms has it."""
        return collective_of(self.point)


class Verdict(NamedTuple):
    """What would be chosen for a point: by the model, and by the table; and the times of both over that of the best, 0 if not known."""

    model: str
    table: str
    regret_of_model: float
    regret_of_table: float


def points(size: int, cases: Sequence[str] = CASES, nbytes: Sequence[int] = ()) -> list[Point]:
    """What is measured on so many ranks, of these bytes from one rank to one other.

    Raises
    ------
    ValueError
        There is no choice of plans for a case.
    """
    for case in cases:
        if case not in CASES:
            raise ValueError(f"{case!r} has no choice of plans that is measured; those that have are {', '.join(CASES)}")
    wanted = [Point(case, each, size) for case in cases for each in (nbytes or BYTES if case != "barrier" else (0,))]
    return [point for point in wanted if buffer_bytes(point) <= _MOST_MEMORY and (nbytes or _given(point) <= _MOST_GIVEN)]


def _given(point: Point) -> int:
    """What each rank gives."""
    return point.nbytes * (point.nranks if point.case in (*EXCHANGED, *SCATTERED) else 1)


def measure(comm: Any, wanted: Sequence[Point], effort: Effort) -> Iterator[Measured]:
    """Yield the times of each point, on all ranks together."""
    nodes = comm._state.native.nodes
    for point in wanted:
        case = Case(comm.size, _given(point), _ITEMSIZE, nodes=nodes)
        rows = candidates(collective_of(point), case)
        duplicates = {row.name: _forced_duplicate(comm, row) for row in rows}
        us: dict[str, list[float]] = {name: [] for name in duplicates}
        wrong = 0
        for number in range(effort.rounds):
            for name in duplicates if number < _ROUNDS_OF_ALL else comm.bcast(_near_the_best(us)):
                answer = _timed(duplicates[name], point, effort)
                us[name].append(answer.get("us", 0.0))
                wrong += answer.get("wrong", 0)
        for duplicate in duplicates.values():
            duplicate.Free()
        yield Measured(point, case, us if comm.rank == 0 else {}, wrong)


def _near_the_best(us: Mapping[str, Sequence[float]]) -> list[str]:
    least = _least(us)
    return [name for name, time in least.items() if time <= _FAR_BEHIND * min(least.values())]


def _timed(comm: Any, point: Point, effort: Effort) -> dict[str, Any]:
    from ncclx_mpi.bench import worker  # imports mpi4py.MPI, which has to be ours by then

    return worker.measure(comm, point.case, point.nbytes, effort.seconds, effort.blocks, is_apart=True)


def _forced_duplicate(comm: Any, row: Algorithm) -> Any:
    with _forced(row):
        return comm.Dup()


@contextlib.contextmanager
def _forced(row: Algorithm) -> Iterator[None]:
    """Communicators that are made meanwhile go by this algorithm."""
    engine = runtime.engine()
    before = engine.forced
    engine.force(forced.numbers({row.collective: row.name}))
    try:
        yield
    finally:
        engine.force(before)


def layouts(measured: Sequence[Measured], earlier: Layouts) -> Layouts:
    """What a table has that was measured now, with what an earlier one has of other layouts and collectives."""
    made = {nodes: dict(collectives) for nodes, collectives in earlier.items()}
    for nodes in {each.case.layout for each in measured}:
        found: dict[str, Sizes] = made.setdefault(nodes, {})
        its = [each for each in measured if each.case.layout == nodes]
        for collective in dict.fromkeys(each.collective for each in its):
            sizes = {each.case.nbytes: _least(each.us) for each in its if each.collective == collective}
            found[collective] = sorted(sizes.items())
    return made


def _least(us: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The least time of each, to as many digits as it is worth."""
    return {name: float(f"{min(times):.4g}") for name, times in us.items()}


def verdict(measured: Measured) -> Verdict:
    """What would be chosen, and what that costs."""
    us = measured.us
    model = choose(measured.collective, measured.case).name
    halves = [{name: times[start::2] for name, times in us.items()} for start in (0, 1)]
    judged = [_regret(preferred(model, _least(halves[k])), halves[1 - k]) for k in (0, 1)] if all(halves[1].values()) else [0.0]
    return Verdict(model, preferred(model, _least(us)), _regret(model, us), statistics.mean(judged))


def _regret(name: str, us: Mapping[str, Sequence[float]]) -> float:
    least = _least(us)
    return least[name] / min(least.values())


def report(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield a line for each point, and how many are above the limit."""
    yield f"{'a rank gives':<28}{'model chooses':<26}{'us':>10}  {'table chooses':<26}{'us':>10}{'regret: model':>15}{'table':>8}"
    found = [(each, verdict(each)) for each in measured]
    for each, its in found:
        least = _least(each.us)
        name = f"{each.collective} {size_text(each.case.nbytes)}"
        us = f"{least[its.model]:>10.5g}  {its.table:<26}{least[its.table]:>10.5g}"
        yield f"{name:<28}{its.model:<26}{us}{its.regret_of_model:>15.2f}{_text(its.regret_of_table):>8}"
    for who, regrets in (
        ("model", [its.regret_of_model for _, its in found]),
        ("table", [its.regret_of_table for _, its in found if its.regret_of_table]),
    ):
        if regrets:
            within = sum(regret <= LIMIT for regret in regrets)
            yield f"# regret of the {who} at most {LIMIT} in {within} of {len(regrets)} points, {max(regrets):.2f} at worst"


def _text(regret: float) -> str:
    return f"{regret:.2f}" if regret else "-"
