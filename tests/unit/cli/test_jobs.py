"""Output of ``synergai jobs`` on deadlines."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import cast

import pytest

from synergai.cli.jobs import (
    _reasons,
    deadline_text,
    print_status,
    progress_text,
    raise_unless_good,
    variants_text,
    watch_progress,
)
from synergai.client.jobs import JobHandle
from synergai.domain import Configuration, EngineName, JobId, WorkerId
from synergai.errors import InvalidInput, NotFound, SynergaiError, Unavailable
from synergai.jobs import Execution, JobSpec, JobState, JobStatus


def a_job(state: JobState = JobState.RUNNING, **fields: object) -> JobStatus:
    usual: dict[str, object] = {
        "id": JobId("a"),
        "spec": JobSpec(engine=EngineName("digits"), queries=10, qos=60.0),
        "state": state,
        "submitted_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return JobStatus(**(usual | fields))  # type: ignore[arg-type]  # a test's own fields


@pytest.mark.parametrize(
    ("seen", "error", "printed"),
    [
        ([], NotFound("there is no such job"), ""),
        ([], Unavailable("cannot connect"), ""),
        (
            [a_job()],
            Unavailable("the gateway is gone"),
            "the job continues; watch it with 'synergai jobs watch 0123'",
        ),
    ],
)
async def test_watch_that_fails_says_how_to_go_on_if_it_has_seen_the_job(
    capsys: pytest.CaptureFixture[str], seen: list[JobStatus], error: SynergaiError, printed: str
) -> None:
    class Handle:
        id = JobId("0123")

        async def watch(self) -> AsyncIterator[JobStatus]:
            for status in seen:
                yield status
            raise error

    with pytest.raises(type(error)):
        await watch_progress(cast("JobHandle", Handle()))
    found = capsys.readouterr().err
    assert (printed in found) if printed else (found == "")


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (a_job(expected_excess_s=0.0), ""),
        (a_job(expected_excess_s=12.04), "will miss its QoS by ~12 s"),
        (
            a_job(violated=True, excess_s=3.0, expected_excess_s=12.0),
            "violated by 3 s so far, ~12 s at its end",
        ),
        (a_job(violated=True, excess_s=3.0), "violated by 3 s"),
        (a_job(JobState.REJECTED, violated=True), "violated"),
        (a_job(JobState.SUCCEEDED), "met"),
        (a_job(), ""),
    ],
)
def test_deadline_is_told_before_and_after_the_end(job: JobStatus, text: str) -> None:
    assert deadline_text(job).plain == text


def test_watch_tells_that_a_running_job_will_be_late() -> None:
    assert progress_text(a_job(expected_excess_s=12.0)) == "running, will miss its QoS by ~12 s"
    assert progress_text(a_job()) == "running"
    assert progress_text(a_job(JobState.SUCCEEDED)) == "succeeded"


def test_a_job_of_which_all_inputs_failed_is_no_success() -> None:
    raise_unless_good(a_job(JobState.SUCCEEDED, failures=9))
    with pytest.raises(InvalidInput, match="all 10 inputs of job a failed"):
        raise_unless_good(a_job(JobState.SUCCEEDED, failures=10))


def test_status_tells_how_many_inputs_failed_and_how_many_may(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = JobSpec(engine=EngineName("digits"), queries=10, qos=60.0, upload_id="u", max_failures=5)
    print_status(a_job(JobState.SUCCEEDED, spec=spec, failures=2), as_json=False)
    assert "2 of 10 inputs; 5 may" in capsys.readouterr().out


def test_a_list_has_a_line_for_each_reason() -> None:
    jobs = [a_job(), a_job(JobState.FAILED, reason="more than 1\ninput failed")]
    assert _reasons(jobs) == ["a failed: more than 1 input failed"]


def test_status_tells_the_share_of_each_variant() -> None:
    executions = [
        Execution(
            worker_id=WorkerId("w"),
            configuration=Configuration(1, variant=variant),
            first=first,
            count=count,
            seconds=1.0,
        )
        for variant, first, count in (("full", 0, 1), ("int8", 1, 2), ("full", 3, 5))
    ]
    assert variants_text(a_job(executions=tuple(executions))) == "full 75%, int8 25%"
    assert variants_text(a_job()) == ""


def test_counts_agree_with_their_nouns(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Execution(
        worker_id=WorkerId("w"), configuration=Configuration(1), first=0, count=1, seconds=1.0
    )
    spec = JobSpec(engine=EngineName("digits"), queries=1, upload_id="u")
    job = a_job(JobState.SUCCEEDED, spec=spec, failures=1, executions=(ran,))
    print_status(job, as_json=False)
    shown = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    facts = {name: value.strip() for name, value in shown}
    assert facts["ran"] == "1 query from 0 on w (threads=1) in 1 s"
    assert facts["failures"] == "1 of 1 input"
    with pytest.raises(InvalidInput, match="the only input of job a failed"):
        raise_unless_good(job)
