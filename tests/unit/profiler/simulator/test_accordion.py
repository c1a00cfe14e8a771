"""Accordion, its baselines, and the execution places that they run on."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.violation_bounds import violations_at_least
from profiler.simulator.pipelines import comparison
from profiler.simulator.pipelines.places import (
    PLACES,
    SLOS,
    STREAMS,
    BatchQuery,
    Places,
    Widths,
    draw_stream,
    measured_widths,
    widths_of,
)
from synergai.domain import EngineName

if TYPE_CHECKING:
    from profiler.simulator.pipelines.places import Scheduler

ENGINE = EngineName("even")
EVEN = Widths(8.0, tuple(8.0 / width for width in range(1, PLACES + 1)))
TABLES = {ENGINE: EVEN}


def a_query(
    number: int, *, at: float = 0.0, batch: int = 1, slo_s: float, high: bool = False
) -> BatchQuery:
    return BatchQuery(
        number=number, engine=ENGINE, batch=batch, high=high, arrival=at, deadline=at + slo_s
    )


def run_accordion(*queries: BatchQuery) -> Places:
    places = Places(TABLES)
    places.run(queries, comparison.accordion)
    return places


def watched(schedule: Scheduler, places: Places) -> None:
    """Check after a decision that each place is free or taken by one pipeline."""
    schedule(places)
    assert places.free >= 0
    assert places.free + sum(each.width for each in places.running) == PLACES


# --- widths -----------------------------------------------------------------------------


@given(st.lists(st.floats(0.01, 1.0), min_size=PLACES, max_size=20))
def test_slowest_stage_is_the_least_of_all_partitions(segments: list[float]) -> None:
    heads = [sum(segments[: end + 1]) for end in range(len(segments))]
    table = widths_of(heads)
    two = min(max(heads[cut], heads[-1] - heads[cut]) for cut in range(len(heads) - 1))
    assert table.slowest_s[1] == pytest.approx(two)
    assert list(table.slowest_s) == sorted(table.slowest_s, reverse=True)
    assert table.slowest_s[-1] >= max(segments) - 1e-9


def test_batch_takes_the_fill_and_one_slowest_stage_for_each_further_sample() -> None:
    assert EVEN.seconds(1, 4) == 8.0
    assert EVEN.seconds(5, 4) == 8.0 + 4 * 2.0


# --- places -----------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", comparison.SCHEDULERS)
@given(st.sampled_from(STREAMS), st.sampled_from(list(SLOS)), st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_every_query_ends_once_and_every_place_is_free_afterwards(
    scheduler: str, stream: str, slo: str, seed: int
) -> None:
    tables = measured_widths()
    queries = draw_stream(stream, slo, seed, tables)
    places = Places(tables)
    places.run(queries, partial(watched, comparison.SCHEDULERS[scheduler]))
    assert sorted(places.ended) == [query.number for query in queries]
    assert places.free == PLACES
    assert not places.waiting
    for query in queries:
        alone_s = tables[query.engine].seconds(query.batch, PLACES)
        assert places.ended[query.number] >= query.arrival + alone_s - 1e-9


def test_query_alone_runs_at_its_fastest_width() -> None:
    assert run_accordion(a_query(0, batch=9, slo_s=100)).ended == {0: 8.0 + 8 * 1.0}


def test_pipeline_with_slack_gives_places_to_a_query_that_needs_them() -> None:
    places = run_accordion(a_query(0, batch=9, slo_s=100), a_query(1, at=0.5, batch=9, slo_s=24))
    assert places.ended[1] <= 24.5
    assert places.ended[0] <= 100


def test_pipeline_without_slack_keeps_its_places() -> None:
    places = run_accordion(a_query(0, batch=9, slo_s=16), a_query(1, at=0.5, batch=9, slo_s=20))
    assert places.ended[0] == 16.0


def test_query_of_high_priority_starts_first() -> None:
    places = run_accordion(
        a_query(0, batch=9, slo_s=16),
        a_query(1, at=1, batch=9, slo_s=16),
        a_query(2, at=2, batch=9, slo_s=32, high=True),
    )
    assert places.ended[2] < places.ended[1]


def test_pipeline_grows_into_places_that_nobody_waits_for() -> None:
    places = run_accordion(a_query(0, batch=1, slo_s=8), a_query(1, at=0.1, batch=9, slo_s=90))
    assert places.ended[1] < 0.1 + EVEN.seconds(9, PLACES - 1)


def test_buffered_query_waits_for_one_of_its_kind() -> None:
    places = Places(TABLES)
    queries = [a_query(0, batch=9, slo_s=100), a_query(1, at=0.5, batch=1, slo_s=100)]
    places.run(queries, comparison.SCHEDULERS["bbs"])
    assert places.ended[1] == pytest.approx(places.ended[0] + EVEN.seconds(1, 1))


# --- the core ---------------------------------------------------------------------------


def test_same_seed_gives_the_same_queries_under_every_slo() -> None:
    tables = measured_widths()
    strict, relaxed = (draw_stream(STREAMS[0], slo, 7, tables) for slo in ("strict", "relaxed"))
    assert [each.arrival for each in strict] == [each.arrival for each in relaxed]
    assert all(a.deadline < b.deadline for a, b in zip(strict, relaxed, strict=True))


def test_no_scheduler_has_fewer_violations_than_the_bound() -> None:
    tables = measured_widths()
    queries = draw_stream("small-heavy", "moderate", 0, tables)[:30]
    workload = comparison.as_workload(queries, tables, 0)
    least = violations_at_least(workload)
    runs = {"malleable": comparison.run_whole_engines(workload)}
    for name, schedule in comparison.SCHEDULERS.items():
        places = Places(tables)
        places.run(queries, schedule)
        runs[name] = places.ended
    late = {n: sum(e[q.number] > q.deadline + 1e-9 for q in queries) for n, e in runs.items()}
    assert min(late.values()) >= least


def test_all_schedulers_run_the_same_stream() -> None:
    results = list(islice(comparison.compare([0]), len(comparison.SCHEDULERS) + 1))
    assert {each.scheduler for each in results} == {*comparison.SCHEDULERS, comparison.MALLEABLE}
    assert {each.queries for each in results} == {120}
