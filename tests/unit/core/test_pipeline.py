"""Invariants of the pipeline in any order of events, and what a loss leads to."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.core.pipeline import (
    Answer,
    Close,
    Command,
    Drop,
    Fail,
    HeldTensors,
    Open,
    Pipeline,
    Ready,
    Record,
    Visit,
)
from synergai.core.route import Route
from synergai.domain import Engine, EngineName, WorkerId
from synergai.versions import stage_name

QUERIES, MOST_LOSSES = 12, 3


def engine(first: int, last: int) -> Engine:
    return Engine(
        name=stage_name("net", first, last),
        version="1",
        backend="onnxruntime",
        inputs=(),
        outputs=(),
        stage_of="a" * 64,
        stage_end=9,
    )


def route(*cuts: int, whole: bool = False) -> Route:
    """Return a route through stages, maybe with the whole engine behind them."""
    stages = tuple(map(engine, (0, *cuts), (*cuts, 9)))
    last = Engine(name=EngineName("net"), version="1", backend="onnxruntime", inputs=(), outputs=())
    return Route((*stages[:-1], last) if whole else stages)


ROUTES = [route(4), route(2, 5), route(2, 5, whole=True), route(3, whole=True)]


class Workers:
    """Executes commands, and checks them against the invariants."""

    def __init__(self, *, keeps_inputs: bool) -> None:
        self.keeps_inputs = keeps_inputs
        self.pipeline = Pipeline(QUERIES, MOST_LOSSES, keeps_inputs=keeps_inputs)
        self.open: dict[int, Open] = {}
        self.first_visits: Counter[int] = Counter()
        self.visits: dict[int, tuple[Visit, int, int]] = {}
        self.ended: list[int] = []
        self.held: set[HeldTensors] = set()
        self.made = 0
        self.begun: list[int] = []
        self.recorded: list[int] = []
        self.losses: Counter[int] = Counter()
        self.failed = False

    @property
    def next_query(self) -> int:
        return self.begun[-1] + 1 if self.begun else 0

    def execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Open(number, _, visits):
                    assert visits <= QUERIES - len(self.recorded)
                    self.open[number] = command
                case Ready(number, position, visits):
                    for visit in visits:
                        self.check_ready(visit, number, position)
                        self.visits[visit.id] = visit, number, position
                case Record(first, count):
                    self.recorded += range(first, first + count)
                case Drop(tensors):
                    self.held.remove(tensors)
                case Close(number, only_first):
                    for id_, (_, on, position) in list(self.visits.items()):
                        if on == number and (position == 0 or not only_first):
                            self.end(id_)
                    if not only_first:
                        del self.open[number]
                case Fail(query, losses):
                    assert losses == self.losses[query]
                    self.failed = True
        self.check()

    def check_ready(self, visit: Visit, number: int, position: int) -> None:
        running = {other.query for other, _, _ in self.visits.values()}
        assert visit.query not in running
        assert visit.query not in self.recorded
        assert visit.tensors is None or visit.tensors in self.held
        opened = self.open[number]
        if position == 0:
            self.first_visits[number] += 1
            assert visit.tensors is None
            assert number == max(self.open)
            assert self.first_visits[number] <= opened.visits
        if opened.route.begins_again(position):
            assert visit.tensors is None

    def check(self) -> None:
        assert self.recorded == self.begun[: len(self.recorded)], "in order, and once"
        assert all(losses <= MOST_LOSSES + 1 for losses in self.losses.values())
        used = {number for _, number, _ in self.visits.values()}
        assert used <= self.open.keys()
        if self.open:
            assert self.open.keys() <= used | {max(self.open)}, "former routes are closed"
        if not self.keeps_inputs or not self.visits:
            waiting = {visit.tensors for visit, _, _ in self.visits.values()} - {None}
            assert self.held == waiting, "tensors are dropped as soon as no visit needs them"

    def end(self, visit: int) -> tuple[int, Route, int]:
        """Forget a visit; return its query, route and position."""
        ended, number, position = self.visits.pop(visit)
        self.ended.append(visit)
        return ended.query, self.open[number].route, position

    # --- what workers and owners do -------------------------------------------------------------

    def begin(self, count: int) -> None:
        first = self.next_query
        count = min(count, QUERIES - first)
        self.begun += range(first, first + count)
        self.execute(self.pipeline.begun(first, count))

    def answer(self, visits: list[int], draw: random.Random) -> None:
        answers = []
        for visit in visits:
            self.end(visit)
            answers.append(Answer(visit, draw.random() < 0.2, self.hold(draw)))
        self.execute(self.pipeline.answered(answers))

    def answer_late(self, draw: random.Random) -> None:
        late = Answer(draw.choice(self.ended), is_final=False, tensors=self.hold(draw))
        self.execute(self.pipeline.answered([late]))

    def lose(self, visit: int) -> None:
        query, _, position = self.end(visit)
        self.losses[query] += 1
        commands = self.pipeline.lost(visit)
        for command in commands:
            if isinstance(command, Ready):
                [again] = [each for each in command.visits if each.query == query] or [None]
                if again is not None:
                    assert command.position == (max(0, position - 1) if self.keeps_inputs else 0)
        self.execute(commands)

    def hold(self, draw: random.Random) -> HeldTensors | None:
        if draw.random() < 0.5:
            return None
        self.made += 1
        tensors = HeldTensors(WorkerId("w"), str(self.made), 1)
        self.held.add(tensors)
        return tensors


@given(st.booleans(), st.randoms(use_true_random=False))
def test_no_order_of_events_breaks_the_invariants(keeps_inputs: bool, draw: random.Random) -> None:
    workers = Workers(keeps_inputs=keeps_inputs)
    workers.execute(workers.pipeline.route_changed(draw.choice(ROUTES)))
    for _ in range(draw.randrange(80)):
        running = list(workers.visits)
        match draw.choice(["begin", "answer", "answer", "answer", "lose", "late", "change"]):
            case "begin" if workers.next_query < QUERIES:
                workers.begin(draw.randrange(1, 5))
            case "answer" if running:
                workers.answer(draw.sample(running, draw.randint(1, len(running))), draw)
            case "lose" if running:
                workers.lose(draw.choice(running))
            case "late" if workers.ended:
                workers.answer_late(draw)
            case "change":
                workers.execute(workers.pipeline.route_changed(draw.choice(ROUTES)))
            case _:
                pass
        if workers.failed:
            assert not workers.visits
            break
    else:
        workers.begin(QUERIES)
        while workers.visits:
            workers.answer(list(workers.visits), draw)
        assert workers.recorded == workers.begun == list(range(QUERIES))
    workers.execute(workers.pipeline.closed())
    assert (workers.visits, workers.open, workers.held) == ({}, {}, set())
    if workers.ended:
        workers.answer_late(draw)
        assert not workers.held


def at_second_stage(*, keeps_inputs: bool, tensors: HeldTensors | None) -> tuple[Pipeline, int]:
    """Return a pipeline of three stages with a query in the second one, and its visit there."""
    pipeline = Pipeline(1, 1, keeps_inputs=keeps_inputs)
    pipeline.route_changed(route(2, 5))
    [first] = pipeline.begun(0, 1)
    assert isinstance(first, Ready)
    [second] = pipeline.answered([Answer(first.visits[0].id, is_final=False, tensors=tensors)])
    assert isinstance(second, Ready)
    return pipeline, second.visits[0].id


HELD = HeldTensors(WorkerId("w"), "token", 1)


def ready_in(commands: list[Command]) -> Ready:
    [ready] = [command for command in commands if isinstance(command, Ready)]
    return ready


@pytest.mark.parametrize("keeps_inputs", [False, True])
def test_the_pipeline_fails_with_the_loss_that_is_one_too_many(keeps_inputs: bool) -> None:
    pipeline, visit = at_second_stage(keeps_inputs=keeps_inputs, tensors=HELD)
    [again] = ready_in(pipeline.lost(visit)).visits
    [ready] = ready_in(pipeline.answered([Answer(again.id, is_final=False, tensors=HELD)])).visits
    *_, failed = pipeline.lost(ready.id)
    assert failed == Fail(0, 2)


def test_a_loss_of_tensors_that_no_worker_holds_begins_again_or_fails() -> None:
    pipeline, visit = at_second_stage(keeps_inputs=False, tensors=None)
    assert ready_in(pipeline.lost(visit)).position == 0
    pipeline, visit = at_second_stage(keeps_inputs=True, tensors=None)
    *_, failed = pipeline.lost(visit)
    assert failed == Fail(0, 1)


def test_queries_that_are_done_wait_for_those_before_them_and_for_gaps() -> None:
    pipeline = Pipeline(3, 0, keeps_inputs=False)
    pipeline.route_changed(route(4))
    visits = []
    for first, count in ((0, 2), (7, 1)):
        [ready] = pipeline.begun(first, count)
        assert isinstance(ready, Ready)
        visits += [visit.id for visit in ready.visits]
    assert pipeline.answered([Answer(visit, is_final=True) for visit in visits[1:]]) == []
    recorded = pipeline.answered([Answer(visits[0], is_final=True)])
    assert recorded == [Record(0, 2), Record(7, 1)]
