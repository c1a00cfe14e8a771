"""What completed jobs teach about further estimates."""

import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.entry.access.caller import UNRESTRICTED
from gateway.jobs import tracker
from gateway.journal.journal import Journal
from synergai.domain import EngineName
from synergai.jobs import JobSpec
from tests.unit.gateway.conftest import FakeClock, GatewayHarness

LOW, HIGH = tracker.PRIOR
SPEC = JobSpec(engine=EngineName("echo"), queries=1)


def learned(*ratios: float) -> tracker.EstimateErrors:
    errors = tracker.EstimateErrors()
    for ratio in ratios:
        errors.add(10.0, 10.0 * ratio)
    return errors


def prior(estimated_s: float) -> tracker.Interval:
    return tracker.Interval(estimated_s * LOW, estimated_s * HIGH + tracker.PRIOR_FIXED_S)


def test_prior_holds_until_enough_similar_jobs_have_completed() -> None:
    assert learned().around(10.0) == prior(10.0)
    assert learned(*[1.0] * (tracker.LEAST - 1)).around(10.0) == prior(10.0)
    assert learned(*[1.0] * tracker.LEAST).around(10.0) == (10.0, 10.0)


def test_fixed_time_is_what_short_jobs_take_longer_at_the_median() -> None:
    errors = tracker.EstimateErrors()
    for _ in range(tracker.WINDOW):
        errors.add(20.0, 31.0, 20.0)
    for number in range(tracker.LEAST_SHORT):
        assert errors.fixed_s == 0.0
        errors.add(0.002, 0.012 + number * 0.001, 0.002)
    assert errors.fixed_s == pytest.approx(0.012)
    for _ in range(tracker.LEAST):  # which are estimated with it
        errors.add(0.014, 0.014, 0.002)
    assert errors.fixed_s == pytest.approx(0.012)


async def test_short_jobs_teach_what_dispatching_and_recording_take(tmp_path: Path) -> None:
    """A query takes 10 ms, and each job takes 30 ms beyond that; the core learns a little."""
    journal, clock = Journal(tmp_path), FakeClock()
    harness = GatewayHarness(journal, clock=clock)
    worker = harness.add_worker()
    estimates = []
    for _ in range(tracker.LEAST_SHORT + 1):
        status = await harness.jobs.submit(UNRESTRICTED, SPEC)
        [assignment] = harness.assignments(worker)
        clock.time += 0.04
        harness.complete(worker, assignment, done=1)
        await harness.flush_journal()
        await harness.flush_journal()
        estimates.append((await harness.jobs.get(UNRESTRICTED, status.id)).estimated_s)
    harness.dispatcher.close()
    await journal.close()
    assert estimates == pytest.approx([0.01] * tracker.LEAST_SHORT + [0.04], rel=0.1)


@settings(max_examples=15, deadline=None)
@given(
    st.floats(0.5, 2.0), st.floats(0.02, 0.6), st.integers(0, 1 << 32), st.sampled_from([19, 200])
)
def test_interval_holds_nine_of_ten_further_jobs(
    median: float, deviation: float, seed: int, completed: int
) -> None:
    """The mean over gateways: that of a single one varies with the jobs it has learned from."""
    draw = random.Random(seed)

    def ratio() -> float:
        return median * math.exp(deviation * draw.gauss(0, 1))

    held = 0
    for _ in range(200):
        low, high = learned(*(ratio() for _ in range(completed))).around(10.0)
        held += sum(low <= 10.0 * ratio() <= high for _ in range(20))
    assert 0.85 <= held / 4000 <= 0.95


@pytest.mark.parametrize("seed", range(3))
def test_interval_holds_nine_of_ten_jobs_of_every_length_in_a_mixture(seed: int) -> None:
    """Fixed costs of tens of milliseconds dominate short jobs, those of the machine long ones."""
    draw = random.Random(seed)
    errors = tracker.EstimateErrors()
    held = dict.fromkeys(range(-3, 3), 0)
    jobs = dict.fromkeys(held, 0)
    widths = []
    for number in range(3000):
        decade = draw.randrange(-3, 3)
        queries_s = 10 ** (decade + draw.random())
        actual_s = queries_s * math.exp(0.15 * draw.gauss(0, 1))
        actual_s += 0.02 * math.exp(0.5 * draw.gauss(0, 1))
        estimated_s = queries_s + errors.fixed_s
        low, high = errors.around(estimated_s)
        errors.add(estimated_s, actual_s, queries_s)
        if number >= tracker.WINDOW:
            jobs[decade] += 1
            held[decade] += low <= actual_s <= high
            if decade >= 0:
                widths.append(high / low)
    assert all(0.85 <= held[decade] / jobs[decade] <= 0.98 for decade in jobs)
    assert statistics.median(widths) < 2.2  # exactly known, it would be 1.6
