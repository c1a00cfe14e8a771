"""A short run of the crash test, and its checks."""

from pathlib import Path

import pytest

from synergai.v1 import jobs_pb2
from tests.acceptance.crashes import find_errors
from tests.acceptance.scripts import run_script


def a_job(*ranges: tuple[int, int], state: int = jobs_pb2.JOB_STATE_SUCCEEDED) -> jobs_pb2.Job:
    executions = [jobs_pb2.Execution(first=first, count=count) for first, count in ranges]
    done = sum(count for _, count in ranges)
    return jobs_pb2.Job(id="a", state=state, queries_done=done, executions=executions)  # type: ignore[arg-type]  # enum values are ints on the wire


def test_kills_lose_no_query_and_record_none_twice(tmp_path: Path) -> None:
    run_script("crashes.py", "--kills", "6", "--jobs", "60", "--directory", str(tmp_path))


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        (a_job((0, 4), (5, 5)), "are lost"),
        (a_job((0, 9)), "are lost"),
        (a_job((0, 6), (5, 5)), "recorded twice"),
        (a_job((0, 10), (0, 10)), "recorded twice"),
        (a_job((0, 10), state=jobs_pb2.JOB_STATE_FAILED), "JOB_STATE_FAILED"),
    ],
)
def test_check_finds_every_planted_fault(job: jobs_pb2.Job, fault: str) -> None:
    assert any(fault in line for line in find_errors(job, 10))


def test_check_accepts_a_job_recorded_once() -> None:
    assert find_errors(a_job((5, 5), (0, 5)), 10) == []
