"""Choice among chains of stages for jobs."""

import asyncio
from collections.abc import Collection, Sequence
from typing import cast

import pytest
from msgspec.structs import replace

from gateway.dispatch.job_routes import REVIEW_S, REVIEWS, JobRoutes
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.routes import Routes
from gateway.fleet.worker import ConnectedWorker
from synergai.domain import Engine, EngineName, Exit, Session, TensorSpec, WorkerId
from synergai.errors import Unavailable
from synergai.jobs import JobSpec
from synergai.names import stage_name
from synergai.profiles.dictionary import OBSERVED, ProfileEntry
from synergai.wire.work_transport import SentOver
from tests.clocks import FakeClock
from tests.cores import new_entry
from tests.engines import new_whole, with_exit
from tests.unit.gateway.conftest import make_worker
from tests.unit.gateway.test_stages import places, stage
from tests.waiting import turns

NET = EngineName("net")
SEGMENT_S = 0.01
WHOLE = new_whole()


class Fleet:
    """Workers `a` and `b`, whose stages take 10 ms for each segment, times the worker's pace."""

    def __init__(self, *, a: Sequence[Engine] = (), b: Sequence[Engine] = ()) -> None:
        self.clock = FakeClock()
        self.catalogue = Catalogue()
        self.fleet = {name: make_worker(name) for name in ("a", "b")}
        self.pace = dict.fromkeys(self.fleet, 1.0)
        for worker in self.fleet.values():
            worker.engines = {}
        self.routes = JobRoutes(
            cast("dict[WorkerId, ConnectedWorker]", self.fleet),
            lambda worker_id: self.profiles(self.fleet[worker_id]),
            Routes(self.catalogue),
            self.load,
            self.clock,
        )
        self.routes.queries_left = lambda _, floor: iter([self.left] if floor <= self.floor else ())
        self.routes.on_changed = self.moved
        self.left = 10_000
        self.floor = 0.0
        self.loaded: list[tuple[str, ...]] = []
        self.moves: list[list[tuple[int, int]]] = []
        self.fails = False
        self.all_run = True
        self.are_profiled = True
        self.add("a", *a)
        self.add("b", *b)

    def profiles(self, worker: ConnectedWorker) -> list[tuple[ProfileEntry, float | None]]:
        return [
            (
                new_entry(name, "local", 1 / self.seconds(engine), model_load_s=0.1, label=label),
                None,
            )
            for name, engine in worker.engines.items()
            if (label := "" if self.are_profiled else OBSERVED) == "" or name in worker.computed
        ]

    async def load(self, engine: EngineName, on: Collection[str]) -> None:
        if self.fails:
            raise Unavailable("it cannot be loaded")
        self.loaded.append((engine, *on))

    def moved(self, engine: EngineName) -> None:
        self.moves.append(self.chain(engine))

    def add(self, name: str, *stages: Engine) -> None:
        worker = self.fleet[name]
        for each in stages:
            worker.engines[each.name] = each
            self.catalogue.update(worker.id, each)

    def seconds(self, engine: Engine) -> float:
        [(first, last)] = places((engine,)) if engine.stage_of else [(0, 9)]
        return SEGMENT_S * (last - first)

    def chain(self, engine: EngineName = NET) -> list[tuple[int, int]]:
        return places(self.routes.of_jobs(engine))

    def cut_at_4(self) -> None:
        """Add the stages of a cut that is better than the others."""
        self.add("a", stage(0, 4))
        self.add("b", stage(4, 9))

    def slow_down(self) -> list[tuple[int, int]]:
        """Slow the worker of the longer stage down; return the chain before."""
        before = self.chain()
        self.pace["a" if before == [(0, 6), (6, 9)] else "b"] = 3.0
        return before

    async def review(self, times: int = 1) -> None:
        """Run queries of all stages, or those of the chain, and review the chains."""
        for _ in range(times):
            running = self.chain()
            self.clock.now += REVIEW_S
            for name, worker in self.fleet.items():
                for each in worker.engines.values():
                    if not (self.all_run or places((each,))[0] in running):
                        continue
                    seconds, queries = worker.computed.get(each.name, (0.0, 0))
                    took = self.pace[name] * self.seconds(each)
                    worker.computed[each.name] = seconds + took, queries + 1
            self.routes.review()
            await turns()


@pytest.fixture
def fleet() -> Fleet:
    """Two cuts: after 3 and after 6 of 9 segments."""
    return Fleet(a=[stage(0, 3), stage(0, 6)], b=[stage(3, 9), stage(6, 9)])


def test_jobs_run_in_the_chain_whose_slowest_stage_is_the_fastest(fleet: Fleet) -> None:
    fleet.cut_at_4()
    assert fleet.chain() == [(0, 4), (4, 9)]
    assert fleet.routes.reason(JobSpec(engine=NET, queries=1)).startswith(
        "50 ms between queries are expected, 60 ms"
    )


def test_slow_link_makes_a_cut_with_a_smaller_tensor_better() -> None:
    large = (TensorSpec("t5", "FP32", (1, 400)),)
    cuts = replace(stage(0, 5), outputs=large), replace(stage(5, 9), inputs=large)
    for bytes_per_s, chain in ((1e6, [(0, 5), (5, 9)]), (1e4, [(0, 3), (3, 9)])):
        fleet = Fleet(a=[stage(0, 3), cuts[0]], b=[stage(3, 9), cuts[1]])
        for worker in fleet.fleet.values():
            worker.received_bytes_per_s = bytes_per_s
        assert fleet.chain() == chain


@pytest.mark.parametrize(
    ("replicas", "chain"), [("a", [(0, 4), (4, 9)]), ("ab", [])], ids=["one", "two"]
)
def test_split_has_to_be_faster_than_all_workers_that_have_the_engine_whole(
    replicas: str, chain: list[tuple[int, int]]
) -> None:
    fleet = Fleet(a=[stage(0, 4)], b=[stage(4, 9)])
    for name in replicas:
        fleet.add(name, WHOLE)
    assert fleet.chain() == chain


async def test_slower_worker_gives_a_segment_away_once_that_persists(fleet: Fleet) -> None:
    fleet.chain()
    await fleet.review(REVIEWS)
    assert not fleet.moves
    before = fleet.slow_down()
    await fleet.review(REVIEWS - 1)
    assert not fleet.moves, "it may pass"
    await fleet.review()
    [after] = fleet.moves
    assert after != before
    assert {stage_name("net", *cut) for cut in after} == {name for name, _ in fleet.loaded}


def test_stage_is_loaded_first_on_the_fastest_worker_or_one_that_has_it(fleet: Fleet) -> None:
    fleet.are_profiled = False
    for name, query_s in {"a": 0.03, "b": 0.01}.items():
        fleet.add(name, replace(stage(0, 3), query_s=query_s))
    assert fleet.routes._first_worker(stage(0, 3)) == ["b"]
    slower = fleet.fleet["a"]
    slower.sessions = {Session(stage(0, 3).name, slower.configurations[0])}
    assert fleet.routes._first_worker(stage(0, 3)) == ["a"]
    assert fleet.routes._first_worker(stage(1, 2)) == []


async def test_change_that_passes_moves_nothing(fleet: Fleet) -> None:
    fleet.chain()
    for _ in range(2 * REVIEWS):
        for pace in (3.0, 3.0, 1.0):
            fleet.pace = dict.fromkeys(fleet.fleet, 1.0)
            fleet.pace["a"] = pace
            await fleet.review()
    assert not fleet.moves


async def test_job_moves_back_once_a_slow_down_is_over(fleet: Fleet) -> None:
    fleet.cut_at_4()
    fleet.all_run = False
    assert fleet.chain() == [(0, 4), (4, 9)]
    await fleet.review(REVIEWS)
    for pace, cut in ((3.0, 6), (1.0, 4), (3.0, 6), (1.0, 4)):
        fleet.pace["b"] = pace
        await fleet.review(2 * REVIEWS)
        assert fleet.chain() == [(0, cut), (cut, 9)]


async def test_stages_that_have_not_run_are_compared_as_they_were_inspected(fleet: Fleet) -> None:
    fleet.cut_at_4()
    fleet.all_run = fleet.are_profiled = False
    for worker in fleet.fleet.values():  # idle machines are faster
        worker.engines = {
            name: replace(each, query_s=fleet.seconds(each) / 2)
            for name, each in worker.engines.items()
        }
    assert fleet.chain() == [(0, 4), (4, 9)]
    await fleet.review(3 * REVIEWS)
    assert not fleet.moves


async def test_choice_for_a_floor_without_jobs_is_forgotten(fleet: Fleet) -> None:
    exits = Exit(output="t3", threshold=0.9, accuracy=0.95, whole_accuracy=0.96)
    first = replace(stage(0, 3), exit=exits)
    fleet.add("a", first)
    for percent in range(50):
        fleet.routes.of_jobs(NET, percent / 100)
    await fleet.review()
    assert {floor for _, floor in fleet.routes._choices} == {0.0}


async def test_few_queries_are_not_worth_the_loads(fleet: Fleet) -> None:
    fleet.left = 3
    fleet.slow_down()
    await fleet.review(2 * REVIEWS)
    assert not fleet.moves
    for worker in fleet.fleet.values():
        worker.sessions = {Session(e, worker.configurations[0]) for e in worker.engines}
    fleet.pace = dict.fromkeys(fleet.fleet, 1.0)
    await fleet.review(REVIEWS)
    fleet.slow_down()
    await fleet.review(REVIEWS)
    assert fleet.moves, "everything is loaded"


async def test_chain_serves_on_if_another_one_cannot_be_loaded(fleet: Fleet) -> None:
    before, fleet.fails = fleet.slow_down(), True
    await fleet.review(2 * REVIEWS)
    assert fleet.chain() == before


async def test_move_ends_with_its_last_load_although_an_earlier_one_has_failed(
    fleet: Fleet,
) -> None:
    loading = asyncio.Event()
    ended: list[EngineName] = []

    async def load(engine: EngineName, _on: Collection[str]) -> None:
        if not ended:
            ended.append(engine)
            raise Unavailable("it cannot be loaded")
        await loading.wait()
        ended.append(engine)

    fleet.routes._load = load
    before = fleet.slow_down()
    await fleet.review(2 * REVIEWS)
    assert fleet.routes._moves
    loading.set()
    await turns()
    assert (len(ended), len(fleet.routes._moves), fleet.chain()) == (2, 0, before)


async def test_chain_that_lost_a_stage_is_left_at_once(fleet: Fleet) -> None:
    before = fleet.chain()
    await fleet.review()
    name, lost = ("a", before[0])
    engine = stage_name("net", *lost)
    del fleet.fleet[name].engines[engine]
    fleet.catalogue.withdraw(fleet.fleet[name].id, engine)
    assert fleet.chain() not in (before, [])


async def test_workers_without_the_stages_are_not_looked_at(fleet: Fleet) -> None:
    fleet.fleet["idle"] = make_worker("idle")
    fleet.fleet["idle"].engines = {}
    asked: set[str] = set()

    def profiles(worker: ConnectedWorker) -> list[tuple[ProfileEntry, float | None]]:
        asked.add(worker.id)
        return Fleet.profiles(fleet, worker)

    fleet.profiles = profiles  # type: ignore[method-assign]
    fleet.chain()
    await fleet.review(REVIEWS)
    assert asked == {"a", "b"}


def test_workers_are_not_looked_at_where_there_is_no_choice(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "profiles", lambda _: pytest.fail("asked"))
    for name, cut in (("a", (0, 6)), ("b", (3, 9))):
        fleet.catalogue.withdraw(fleet.fleet[name].id, stage_name("net", *cut))
    assert fleet.chain() == []
    fleet.add("b", stage(3, 9))
    assert fleet.chain() == [(0, 3), (3, 9)]


async def test_paces_from_before_the_jobs_began_do_not_count(fleet: Fleet) -> None:
    worker = fleet.fleet["a"]
    for engine in worker.engines:
        worker.computed[engine] = (1000.0, 10)
    fleet.chain()
    await fleet.review(2 * REVIEWS)
    assert not fleet.moves


def with_large_cut(**links: SentOver | None) -> Fleet:
    """Return a fleet that has an engine whole, or in two fast stages with a large tensor between.

    Workers can be dialled. Their links to the gateway are named after them.
    """
    fleet = Fleet()
    large = (TensorSpec("t5", "FP32", (1, 10_000)),)
    fleet.add("a", replace(stage(0, 5), outputs=large))
    fleet.add("b", replace(stage(5, 9), inputs=large))
    fleet.add("a", WHOLE)
    for name, link in links.items():
        fleet.fleet[name].peer_address = "10.0.0.1:9000"
        fleet.fleet[name].measure_link = lambda link=link: link  # type: ignore[misc]
    return fleet


SLOW, FAST = SentOver(100e3, 0.01), SentOver(100e6, 0.001)


@pytest.mark.parametrize(
    ("a", "b", "is_fast"),
    [
        (SLOW, FAST, False),
        (FAST, SLOW, False),
        (None, SLOW, False),
        (SLOW, SLOW, True),
        (FAST, FAST, True),
        (None, None, True),
    ],
)
def test_unused_link_is_taken_for_fast_only_between_workers_that_may_be_at_the_same_site(
    a: SentOver | None, b: SentOver | None, *, is_fast: bool
) -> None:
    assert with_large_cut(a=a, b=b).chain() == ([(0, 5), (5, 9)] if is_fast else [])


def test_known_links_are_those_that_were_used_however_many_workers_there_are() -> None:
    fleet = Fleet()
    fleet.fleet.clear()
    fleet.fleet.update({f"w{number}": make_worker(f"w{number}") for number in range(100)})
    for name, worker in fleet.fleet.items():
        worker.engines, worker.peer_address = {}, f"{name}:9000"
        fleet.add(name, stage(0, 5), stage(5, 9))
    fleet.fleet["w0"].peer_links = {"w1": FAST}
    known = fleet.routes._known(fleet.catalogue.stages.candidates(NET), floor=0.0)
    assert [*known.links] == [("w1", "w0")]


# --- early exits --------------------------------------------------------------------------


def early(first: int, last: int, rate: float = 0.0, accuracy: float = 0.95) -> Engine:
    """Return a stage at whose end a share of the queries leaves."""
    return with_exit(stage(first, last), rate, accuracy, digest=f"{first}-{last}")


def test_stages_behind_an_exit_count_for_the_queries_that_continue() -> None:
    for rate, chain in ((0.0, [(0, 5), (5, 9)]), (0.6, [(0, 3), (3, 9)])):
        fleet = Fleet(a=[early(0, 3, rate), early(0, 5)], b=[stage(3, 9), stage(5, 9)])
        assert fleet.chain() == chain


def test_tensors_behind_an_exit_count_for_the_queries_that_continue() -> None:
    large = (TensorSpec("t6", "FP32", (1, 500)),)
    for rate, chain in ((0.0, []), (0.9, [(0, 6), (6, 9)])):
        fleet = Fleet(
            a=[replace(early(0, 6, rate), outputs=large), WHOLE],
            b=[replace(stage(6, 9), inputs=large)],
        )
        fleet.fleet["a"].received_bytes_per_s = 1e4
        assert fleet.chain() == chain


def test_the_whole_engine_may_follow_an_exit() -> None:
    fleet = Fleet(a=[early(0, 3, rate=0.9)], b=[WHOLE])
    assert [each.name for each in fleet.routes.of_jobs(NET)] == [stage(0, 3).name, NET]


async def test_jobs_move_once_more_queries_leave_than_at_calibration() -> None:
    fleet = Fleet(a=[early(0, 3), early(0, 5)], b=[stage(3, 9), stage(5, 9)])
    assert fleet.chain() == [(0, 5), (5, 9)]
    await fleet.review(REVIEWS)
    assert not fleet.moves
    for _ in range(200):
        fleet.routes.routes.rates.observe(early(0, 3), left=True)
    await fleet.review(REVIEWS)
    assert fleet.moves == [[(0, 3), (3, 9)]]


def test_queries_do_not_leave_where_the_floor_of_their_job_is_not_held() -> None:
    fleet = Fleet(a=[early(0, 3, 0.6, accuracy=0.9), early(0, 5)], b=[stage(3, 9), stage(5, 9)])
    assert fleet.chain() == [(0, 3), (3, 9)]
    assert places(fleet.routes.of_jobs(NET, 0.95)) == [(0, 5), (5, 9)]
    assert fleet.routes.of_jobs(NET, 0.97) == ()
