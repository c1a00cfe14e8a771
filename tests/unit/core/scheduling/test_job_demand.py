"""The rate that jobs need is their queries over their time, at a cost that does not grow."""

import math

import pytest

from synergai.core.scheduling.state.jobs import JobRecord, Ranges
from synergai.core.scheduling.variants.demand import JOB_SHARE, JobDemand
from tests.cores import new_job

QUERIES = 70


class CountedRecord(JobRecord):
    """A job that counts how often it was looked at."""

    looks = 0

    @property
    def remaining(self) -> int:
        type(self).looks += 1
        return super().remaining


def a_job(number: int, deadline: float = 100.0) -> JobRecord:
    job = new_job(str(number), "fashion", QUERIES, deadline=deadline).job
    return CountedRecord(job, number, Ranges(), QUERIES)


def test_a_job_is_to_be_completed_in_a_share_of_its_time() -> None:
    demand = JobDemand()
    assert demand.per_s(0.0, 1.0) == 0.0
    demand.add(a_job(1))
    demand.add(a_job(2, math.inf))
    assert demand.per_s(90.0, 1.0) == pytest.approx(QUERIES / (JOB_SHARE * 10.0))
    assert demand.per_s(100.0, 1.0) == pytest.approx(QUERIES / JOB_SHARE)


def test_a_query_without_tensors_counts_as_much_as_it_costs() -> None:
    demand = JobDemand()
    demand.add(a_job(1))
    assert demand.per_s(90.0, 1.0, 0.1) == pytest.approx(0.1 * QUERIES / (JOB_SHARE * 10.0))


def test_jobs_that_have_left_do_not_count() -> None:
    demand = JobDemand()
    job = a_job(1)
    demand.add(job)
    demand.remove(job)
    demand.remove(job)
    assert demand.per_s(0.0, 1.0) == 0.0


def test_the_time_for_counting_does_not_grow_with_the_jobs() -> None:
    looks = []
    for jobs in (100, 10_000):
        demand = JobDemand()
        for number in range(jobs):
            demand.add(a_job(number))
        CountedRecord.looks = 0
        for event in range(10_000):
            demand.per_s(event * 1e-4, 1.0)
        looks.append(CountedRecord.looks)
    assert looks[1] <= 2 * looks[0]
