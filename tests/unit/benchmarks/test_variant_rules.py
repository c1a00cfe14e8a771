"""Rules of others that choose variants: the thesis's controller, and INFaaS."""

import logging
from typing import cast

import pytest

from benchmarks.variants.chain import Chain
from benchmarks.variants.load import Load
from benchmarks.variants.scenarios import SCENARIOS
from benchmarks.variants.simulation import profile_entries, simulate
from synergai.core.scheduling.state.estimate import Estimate
from synergai.core.scheduling.state.workers import WorkerRecord
from synergai.core.scheduling.variants.allowance import ConvexFront, build_front
from synergai.core.scheduling.variants.margins import Margins, Query
from synergai.domain import EngineName, Session, WorkerClass, WorkerId

ONE, OTHER, CIFAR10 = map(EngineName, ("one", "other", "cifar10"))
VARIANTS = {"large": (0.2, 0.9), "medium": (0.1, 0.8), "small": (0.02, 0.6)}


class Worker:
    """The only part of a worker that rules look at."""

    id = WorkerId("worker")


def front_of(engine: EngineName) -> ConvexFront:
    entries = profile_entries({engine: VARIANTS}, WorkerClass("server"))
    estimates = [
        Estimate(
            each.configuration,
            setup_s=0.0,
            per_query_s=1.0 / each.qps,
            typical_s=1.0 / each.qps,
            transfer_s=0.0,
            input_s=0.0,
            joules=0.0,
            entry=each,
            planned_qps=each.planned_qps,
            session=Session(engine, each.configuration),
            accuracy=each.accuracy,
        )
        for each in reversed(entries)
    ]
    front = build_front(estimates, None, 0.0, with_tensors=False)
    assert front is not None
    return front


class Driver:
    """A controller under demand that a test sets, second by second."""

    def __init__(self, *engines: EngineName, by_throughput: bool = True) -> None:
        self.load = Load(dict.fromkeys(engines, 1), 0.4, by_throughput=by_throughput)
        self.chain = Chain(self.load)
        self.fronts = {engine: front_of(engine) for engine in engines}
        self.now = 0.0

    def pass_s(self, seconds: int, demand: dict[EngineName, int], cpu: float) -> list[str]:
        """Return the variants of the engines after some time of a demand and a CPU use."""
        for _ in range(seconds):
            for engine, count in demand.items():
                for number in range(count):
                    self.load.arrived(engine, self.now + number / count)
            self.load.runs(Worker.id, self.now, self.now + cpu)
            self.now += 1.0
            for engine in demand:
                self.choose(engine)
        return [list(VARIANTS)[2 - self.choose(engine)] for engine in demand]

    def choose(self, engine: EngineName) -> int:
        worker = cast("WorkerRecord", Worker())
        now, limits = self.now - 1e-6, cast("Margins", None)
        return self.chain.choose(
            Query(engine, worker, self.fronts[engine], now, now + 0.4, now, limits)
        )


def test_a_high_cpu_use_saves_two_fifths_of_the_cost_after_a_pause() -> None:
    driver = Driver(ONE)
    assert driver.pass_s(14, {ONE: 4}, cpu=0.8) == ["large"]
    assert driver.pass_s(2, {ONE: 4}, cpu=0.8) == ["medium"]


def test_a_low_cpu_use_allows_what_stays_below_its_goal() -> None:
    driver = Driver(ONE)
    driver.pass_s(32, {ONE: 30}, cpu=1.0)
    assert driver.pass_s(25, {ONE: 2}, cpu=0.04) == ["small"]
    assert driver.pass_s(10, {ONE: 2}, cpu=0.04) == ["large"]  # 40 % of the CPU


def test_other_measures_of_the_cost_allow_the_smallest_step() -> None:
    driver = Driver(ONE, by_throughput=False)
    driver.pass_s(32, {ONE: 30}, cpu=1.0)
    assert driver.pass_s(35, {ONE: 2}, cpu=0.04) == ["medium"]


def test_a_cpu_use_that_the_profile_does_not_explain_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = Driver(ONE)
    driver.pass_s(32, {ONE: 30}, cpu=1.0)
    with caplog.at_level(logging.INFO):
        driver.pass_s(35, {ONE: 3}, cpu=0.4)
    assert "explains 6% of a CPU use of 40%" in caplog.text


def test_a_shift_of_the_demand_moves_the_accuracy_at_the_same_cost() -> None:
    driver = Driver(ONE, OTHER)
    driver.pass_s(16, {ONE: 1, OTHER: 5}, cpu=0.9)
    assert driver.pass_s(35, {ONE: 1, OTHER: 5}, cpu=0.6) == ["large", "medium"]
    assert driver.pass_s(35, {ONE: 5, OTHER: 1}, cpu=0.6) == ["medium", "large"]


@pytest.mark.parametrize("name", ["co-located", "distributed"])
def test_the_maximal_metric_leaves_slow_variants_out_where_engines_run_together(name: str) -> None:
    scenario = SCENARIOS[name]
    arrivals = [(0.5 * number, sorted(scenario.fronts)[number % 3]) for number in range(12)]
    answers = simulate(scenario, arrivals, 0, rule="chain")
    assert {each.variant for each in answers} == {"medium-v1", "medium", "p100"}
    assert {each.variant for each in answers if each.engine == CIFAR10} == {"medium-v1"}


def test_infaas_chooses_the_fastest_variant_that_is_accurate_enough() -> None:
    scenario = SCENARIOS["single-server"]
    [engine] = scenario.fronts
    arrivals = [(0.5 * number, engine) for number in range(6)]
    assert {each.variant for each in simulate(scenario, arrivals, 0, rule="infaas")} == {"p50-int8"}
