"""Output of ``synergai submit --inputs``."""

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from synergai.cli.options import JobTerms, OwnInputs
from synergai.cli.own_data import OwnDataJob
from synergai.client.client import Client
from synergai.data.items import JobResult
from synergai.data.result_directory import DirectoryMarker, ResultDirectory
from synergai.domain import EngineName, JobId
from synergai.jobs import JobSpec, JobState, JobStatus


def a_command(output: Path | None = None) -> OwnDataJob:
    own = OwnInputs(output=output)
    return OwnDataJob(cast("Client", None), "texts", ("photos/",), own, JobTerms())


def a_status(state: JobState = JobState.SUCCEEDED, failures: int = 0) -> JobStatus:
    return JobStatus(
        id=JobId("a"),
        spec=JobSpec(engine=EngineName("texts"), queries=10, upload_id="u"),
        state=state,
        submitted_at=datetime(2026, 1, 1, tzinfo=UTC),
        queries_done=10,
        failures=failures,
    )


@pytest.mark.parametrize(
    ("failures", "title"),
    [
        (8, "1 input failed, found while uploading:"),
        (1, "1 input failed:"),
    ],
)
def test_without_a_directory_the_listed_failures_are_those_found_while_uploading(
    capsys: pytest.CaptureFixture[str], failures: int, title: str
) -> None:
    command = a_command()
    command.unusable.add(3, "photos/empty.jpg", "the file is empty")
    command._print_end(a_status(failures=failures), None, as_json=False)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [title, "  photos/empty.jpg: the file is empty"]
    assert f"fetch the results ({failures} failed) with" in printed.out


def test_repeated_command_lists_the_failures_that_an_earlier_one_fetched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failed = JobResult(3, "photos/empty.jpg", {}, "the file is empty")
    with ResultDirectory(tmp_path) as directory:
        directory.claim(DirectoryMarker("a"))
        directory.write([JobResult(2, "photos/cat.jpg", {}), failed], 4)
        a_command(output=tmp_path)._print_end(a_status(failures=1), directory, as_json=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["1 input failed:", "  photos/empty.jpg: the file is empty"]


@pytest.mark.parametrize(
    ("state", "printed"),
    [
        (JobState.CANCELLED, "to run a new one, give another --key\n"),
        (JobState.FAILED, "to run a new one, give another --key\n"),
        (JobState.SUCCEEDED, ""),
    ],
)
def test_after_a_job_without_success_the_command_says_how_to_run_a_new_one(
    capsys: pytest.CaptureFixture[str], state: JobState, printed: str
) -> None:
    a_command()._print_end(a_status(state), None, as_json=False)
    found = capsys.readouterr().err
    assert found.endswith(printed)
    assert bool(found) == bool(printed)


def test_a_new_job_needs_another_directory_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with ResultDirectory(tmp_path) as directory:
        a_command(output=tmp_path)._print_end(a_status(JobState.CANCELLED), directory, as_json=True)
    assert capsys.readouterr().err.endswith("to run a new one, give another --key and --output\n")
