"""A short run of an acceptance script, and what they report as an error."""

from pathlib import Path

import pytest

from synergai.v1 import jobs_pb2
from tests.acceptance import scripts
from tests.acceptance.crashes import find_errors
from tests.acceptance.power_loss import cut_all, record_workload


def test_fleet_withstands_a_short_run() -> None:
    scripts.run_script(*["crashes.py", "--kills", "3", "--jobs", "30"])


@pytest.mark.parametrize(("synchronous", "loses"), [("full", False), ("off", True)])
def test_power_cuts_lose_only_what_was_not_synced(
    tmp_path: Path, synchronous: str, *, loses: bool
) -> None:
    recording = record_workload(tmp_path, 30, 1, synchronous=synchronous)
    assert any(cut_all(recording, cuts=25, seed=2)) is loses


@pytest.mark.parametrize(
    ("ranges", "state", "fault"),
    [
        ([(5, 5), (0, 5)], "SUCCEEDED", ""),
        ([(0, 4), (5, 5)], "SUCCEEDED", "are lost"),
        ([(0, 9)], "SUCCEEDED", "are lost"),
        ([(0, 6), (5, 5)], "SUCCEEDED", "recorded twice"),
        ([(0, 10), (0, 10)], "SUCCEEDED", "recorded twice"),
        ([(0, 10)], "FAILED", "JOB_STATE_FAILED"),
    ],
)
def test_job_that_lost_or_repeated_queries_is_an_error(
    ranges: list[tuple[int, int]], state: str, fault: str
) -> None:
    job = jobs_pb2.Job(
        id="a",
        state=jobs_pb2.JobState.Value(f"JOB_STATE_{state}"),
        queries_done=sum(count for _, count in ranges),
        executions=[jobs_pb2.Execution(first=first, count=count) for first, count in ranges],
    )
    found = find_errors(job, 10)
    assert any(fault in line for line in found) if fault else not found
