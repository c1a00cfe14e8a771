"""Invariants of the pipeline in any order of events, and what a loss leads to."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.core.pipeline import (
    Answer,
    Command,
    Drop,
    Fail,
    HeldTensors,
    Pipeline,
    Ready,
    Record,
    Visit,
)
from synergai.core.route import Route
from synergai.domain import WorkerId
from tests.engines import new_engine, new_stage

QUERIES, MOST_LOSSES = 12, 3


def route(*cuts: int, whole: bool = False) -> Route:
    """Return a route through stages, maybe with the whole engine behind them."""
    stages = tuple(map(new_stage, (0, *cuts), (*cuts, 9)))
    return Route((*stages[:-1], new_engine("net")) if whole else stages)


ROUTES = [route(4), route(2, 5), route(2, 5, whole=True), route(3, whole=True)]


class Workers:
    """Executes commands, and checks them against the invariants."""

    def __init__(self, route: Route, *, keeps_inputs: bool) -> None:
        self.keeps_inputs = keeps_inputs
        self.pipeline = Pipeline(route, MOST_LOSSES, keeps_inputs=keeps_inputs)
        self.routes = [route]
        self.visits: dict[int, tuple[Visit, int, int]] = {}
        self.ended: list[int] = []
        self.held: set[HeldTensors] = set()
        self.made = 0
        self.begun: list[int] = []
        self.recorded: list[int] = []
        self.done: set[int] = set()
        self.losses: Counter[int] = Counter()
        self.is_closed = False

    @property
    def next_query(self) -> int:
        return self.begun[-1] + 1 if self.begun else 0

    def execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Ready(number, position, visits):
                    for visit in visits:
                        self.check_ready(visit, number, position)
                        self.visits[visit.id] = visit, number, position
                case Record(first, count):
                    self.recorded += range(first, first + count)
                case Drop(tensors):
                    self.held.remove(tensors)
                case Fail(query, losses):
                    assert losses == self.losses[query]
                    self.is_closed = True
                    self.end_all()
        self.check()

    def check_ready(self, visit: Visit, number: int, position: int) -> None:
        running = {other.query for other, _, _ in self.visits.values()}
        assert visit.query not in running
        assert visit.query not in self.recorded
        assert visit.tensors is None or visit.tensors in self.held
        if position == 0:
            assert visit.tensors is None
            assert number == len(self.routes) - 1
        if self.routes[number].begins_again(position):
            assert visit.tensors is None

    def check(self) -> None:
        assert self.recorded == self.begun[: len(self.recorded)], "in order, and once"
        assert all(losses <= MOST_LOSSES + 1 for losses in self.losses.values())
        running = sorted(visit.query for visit, _, _ in self.visits.values())
        assert self.is_closed or running == sorted({*self.begun} - self.done), "one visit"
        if not self.keeps_inputs or not self.visits:
            waiting = {visit.tensors for visit, _, _ in self.visits.values()} - {None}
            assert self.held == waiting, "tensors are dropped as soon as no visit needs them"

    def end(self, visit: int) -> tuple[int, int]:
        ended, _, position = self.visits.pop(visit)
        self.ended.append(visit)
        return ended.query, position

    def end_all(self, *, first_stage: bool = False) -> None:
        for visit, (_, _, position) in list(self.visits.items()):
            if not (first_stage and position):
                self.end(visit)

    # --- what workers and owners do -------------------------------------------------------------

    def begin(self, count: int) -> None:
        first = self.next_query
        count = min(count, QUERIES - first)
        self.begun += range(first, first + count)
        self.execute(self.pipeline.begun(first, count))

    def change_route(self, route: Route) -> None:
        self.end_all(first_stage=True)
        self.routes.append(route)
        self.execute(self.pipeline.route_changed(route))

    def close(self) -> None:
        self.is_closed = True
        self.end_all()
        self.execute(self.pipeline.closed())

    def answer(self, visits: list[int], draw: random.Random) -> None:
        answers = []
        for visit in visits:
            _, number, position = self.visits[visit]
            query, _ = self.end(visit)
            is_final = draw.random() < 0.2
            if is_final or self.routes[number].is_last(position):
                self.done.add(query)
            answers.append(Answer(visit, is_final, self.hold(draw)))
        self.execute(self.pipeline.answered(answers))

    def answer_late(self, draw: random.Random) -> None:
        late = Answer(draw.choice(self.ended), is_final=False, tensors=self.hold(draw))
        self.execute(self.pipeline.answered([late]))

    def lose(self, visit: int) -> None:
        query, position = self.end(visit)
        self.losses[query] += 1
        commands = self.pipeline.lost(visit)
        assert self.pipeline.lost(visit) == [], "once"
        for command in commands:
            if isinstance(command, Ready):
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
    workers = Workers(draw.choice(ROUTES), keeps_inputs=keeps_inputs)
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
                workers.change_route(draw.choice(ROUTES))
            case _:
                pass
        if workers.is_closed:
            assert not workers.visits
            break
    else:
        workers.begin(QUERIES)
        while workers.visits:
            workers.answer(list(workers.visits), draw)
        assert workers.recorded == workers.begun == list(range(QUERIES))
    workers.close()
    assert not workers.held
    if workers.ended:
        workers.answer_late(draw)
        assert not workers.held


def at_second_stage(*, keeps_inputs: bool, tensors: HeldTensors | None) -> tuple[Pipeline, int]:
    """Return a pipeline of three stages with a query in the second one, and its visit there."""
    pipeline = Pipeline(route(2, 5), 1, keeps_inputs=keeps_inputs)
    [first] = pipeline.begun(0, 1)
    assert isinstance(first, Ready)
    [second] = pipeline.answered([Answer(first.visits[0].id, is_final=False, tensors=tensors)])
    assert isinstance(second, Ready)
    return pipeline, second.visits[0].id


HELD = HeldTensors(WorkerId("w"), "token", 1)
OTHER = HeldTensors(WorkerId("w"), "other", 1)


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


@pytest.mark.parametrize(("keeps_inputs", "position"), [(False, 0), (True, 1)])
def test_a_loss_in_the_third_stage_repeats_the_last_one_whose_inputs_there_are(
    keeps_inputs: bool, position: int
) -> None:
    pipeline, visit = at_second_stage(keeps_inputs=keeps_inputs, tensors=HELD)
    [third] = ready_in(pipeline.answered([Answer(visit, is_final=False, tensors=OTHER)])).visits
    again = ready_in(pipeline.lost(third.id))
    assert again.position == position
    assert again.visits[0].tensors == (HELD if keeps_inputs else None)


def test_queries_that_are_done_wait_for_those_before_them_and_for_gaps() -> None:
    pipeline = Pipeline(route(4), 0, keeps_inputs=False)
    visits = []
    for first, count in ((0, 2), (7, 1)):
        [ready] = pipeline.begun(first, count)
        assert isinstance(ready, Ready)
        visits += [visit.id for visit in ready.visits]
    assert pipeline.answered([Answer(visit, is_final=True) for visit in visits[1:]]) == []
    recorded = pipeline.answered([Answer(visits[0], is_final=True)])
    assert recorded == [Record(0, 2), Record(7, 1)]
