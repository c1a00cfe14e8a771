"""What the choice of variants keeps between requests, compared with what it would compute."""

import math
from typing import TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.state.estimate import Limit
from synergai.core.scheduling.state.workers import WorkerRecord
from synergai.core.scheduling.variants.allowance import ConvexFront, build_front
from synergai.core.scheduling.variants.margins import Query
from synergai.core.scheduling.variants.pools import Family, Fronts, Pools, _Pool
from synergai.domain import EngineName
from tests.cores import end
from tests.unit.core.scheduling.test_variants import FAMILY, Fleet

FRESH_FOR_S = 0.02

Steps: TypeAlias = list[tuple[float, str, float, float]]
"""Gaps, actions, seconds until the deadline, and actual over expected time."""
steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.001, 0.003, 0.01, 0.05, 0.3]),
        st.sampled_from(["request", "request", "floor", "burst", "job", "end", "end", "join"]),
        st.sampled_from([0.05, 0.4, 0.4, 2.0, math.inf]),
        st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5]),
    ),
    min_size=5,
    max_size=60,
)


def drive(fleet: Fleet, drawn: Steps) -> None:
    """Apply random events."""
    workers = 1
    for gap, action, qos, slow in drawn:
        fleet.now += gap
        match action:
            case "request":
                fleet.submit(qos=qos)
            case "floor":
                fleet.submit(qos=qos, floor=0.85)
            case "burst":
                for _ in range(12):
                    fleet.submit(qos=qos)
            case "job":
                fleet.submit(qos=10 * qos, queries=20, perishable=False)
            case "join" if workers < 3:
                fleet.join(workers)
                workers += 1
            case _ if fleet.running:
                ended = fleet.running.pop(0)
                compute_s = slow * ended.count * ended.query_s
                fleet._note(end(fleet.core, ended, fleet.now, compute_s=compute_s))


class FreshFronts(Fronts):
    def of(
        self,
        engine: EngineName,
        worker: WorkerRecord,
        limit: Limit | None,
        now: float,
        *,
        with_tensors: bool,
    ) -> ConvexFront | None:
        estimates = self._estimator.estimates(engine, worker)
        return build_front(estimates, limit, now, with_tensors=with_tensors)


def fresh_pools(core: SchedulerCore) -> Pools:
    """Return pools that know the same of the engines, and have computed nothing yet."""
    known = core.state.variants._pools
    pools = Pools(
        core.state.estimator,
        core.state.workers,
        core.state.serving,
        core.state.queue,
        FreshFronts(core.state.estimator),
    )
    pools._engines, pools.families = known._engines, known.families
    pools._charged = known._charged
    return pools


@settings(max_examples=60, deadline=None)
@given(steps)
def test_allowances_are_those_of_a_moment_ago(drawn: Steps) -> None:
    fleet = Fleet()
    core = fleet.core
    pools = core.state.variants._pools
    kept = pools.allowance
    seen: list[tuple[float, int, float]] = []

    def checked(engine: EngineName, now: float) -> float:
        queued = len(core.state.queue)
        seen.append((now, queued, fresh_pools(core).allowance(engine, now)))
        found = kept(engine, now)
        assert any(
            now - at <= FRESH_FOR_S + 1e-9 and queued <= 2 * were + 4 and found == value
            for at, were, value in seen
        )
        return found

    pools.allowance = checked  # type: ignore[method-assign]
    # Fronts and fastest times are looked at less often.
    core.state.estimator.observe_queries = lambda *_: None  # type: ignore[method-assign]
    drive(fleet, drawn)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_an_engine_that_shares_no_workers_is_allowed_what_the_division_gives(drawn: Steps) -> None:
    fleet = Fleet()
    core = fleet.core
    pools = core.state.variants._pools
    short = pools._allow

    def checked(pool: _Pool, now: float) -> None:
        short(pool, now)
        [only] = pool.members
        idle = only._replace(engine=EngineName("idle"), family=Family())
        divided = _Pool([only, idle], pool.workers, now)
        fresh_pools(core)._allow(divided, now)
        assert pool.allowed == pytest.approx(divided.allowed)

    pools._allow = checked  # type: ignore[method-assign]
    drive(fleet, drawn)


def reference_limit_s(core: SchedulerCore, query: Query) -> float:
    """Return the most seconds that a request may take, by the rule as it is documented."""
    worker, now, fastest_s = query.worker, query.now, query.front.fastest_s
    starts_at = query.starts_at
    spread = worker.spreads.get(query.engine, 1.3)
    head = worker.head
    late_s = (spread - 1.0) * head.expected_s if head is not None else 0.0
    starts_at += late_s if math.isfinite(late_s) else 0.0
    most_s = [(query.deadline - starts_at) / spread]
    behind = core.state.queue.latest_starts(worker.engines, 16, now)[1:]
    others = [each for each in core.state.fleet.serving(FAMILY) if each is not worker][:8]
    for ahead, latest_start in enumerate(behind):
        others_s = sum(latest_start - max(each.free_at(now), now) for each in others)
        helped_s = max(0.0, others_s)
        if helped_s < (ahead + 1) * fastest_s * spread:
            left_s = latest_start - starts_at + helped_s - ahead * fastest_s * spread
            most_s.append(left_s / spread)
    return min(most_s)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_no_request_gets_a_variant_that_makes_one_late(drawn: Steps) -> None:
    fleet = Fleet()
    core = fleet.core
    margins = core.state.variants.margins
    short = margins.slowest_in_time

    def checked(query: Query, at: int) -> int:
        found = short(query, at)
        front, fastest_s = query.front, query.front.fastest_s
        limit_s = reference_limit_s(core, query)
        for slack in (1e-9, -1e-9):
            fits = [n for n in range(at + 1) if front.costs[n] * fastest_s <= limit_s + slack]
            if found == max(fits, default=0):
                return found
        pytest.fail(f"chose {found} of {front.costs} within {limit_s / fastest_s}")

    margins.slowest_in_time = checked  # type: ignore[method-assign]
    drive(fleet, drawn)


@settings(max_examples=60, deadline=None)
@given(steps)
@example(  # to abort the request would save more than it is expected to take
    [
        (0.0, "request", 0.4, 0.0),
        (0.0, "job", 0.4, 0.0),
        (0.0, "join", 0.05, 0.0),
        (0.0, "request", 0.05, 0.0),
        (0.0, "floor", 0.05, 0.0),
    ]
)
def test_estimates_follow_what_is_observed(drawn: Steps) -> None:
    fleet = Fleet()
    core = fleet.core
    for step in drawn:
        drive(fleet, [step])
        for worker in core.state.fleet.workers.values():
            exact = core.state.estimator._compute(FAMILY, worker)
            for known, each in zip(
                core.state.estimator.estimates(FAMILY, worker), exact, strict=True
            ):
                assert known.configuration == each.configuration
                assert known.per_query_s == pytest.approx(each.per_query_s, rel=0.004)
                for off_s in (known.transfer_s - each.transfer_s, known.input_s - each.input_s):
                    assert abs(off_s) <= 0.004 * exact[0].per_query_s


def test_what_is_to_be_loaded_uses_the_front_of_the_choice() -> None:
    fleet = Fleet()
    fleet.submit()
    [worker] = fleet.core.state.fleet.workers.values()
    before = dict(worker.fronts[FAMILY])
    assert fleet.core.state.variants.wanted(FAMILY, worker, fleet.now)
    assert all(worker.fronts[FAMILY][key] is front for key, front in before.items())


def test_a_worker_that_joins_again_has_the_first_margin() -> None:
    fleet = Fleet()
    fleet.submit()
    fleet.end(fleet.running[0])
    [worker] = fleet.core.state.fleet.workers.values()
    assert worker.spreads
    fleet.join(0)
    [worker] = fleet.core.state.fleet.workers.values()
    assert not worker.spreads


def test_margin_of_an_engine_that_is_gone_costs_no_time() -> None:
    fleet = Fleet()
    for _ in range(3):
        fleet.submit()
    [worker] = fleet.core.state.fleet.workers.values()
    before = fresh_pools(fleet.core).allowance(FAMILY, fleet.now)
    worker.spreads[EngineName("gone")] = 3.0
    assert fresh_pools(fleet.core).allowance(FAMILY, fleet.now) == before < math.inf
    worker.spreads[FAMILY] = 3.0
    assert fresh_pools(fleet.core).allowance(FAMILY, fleet.now) < before
