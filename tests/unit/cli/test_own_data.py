"""Output of ``synergai submit --inputs``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest

from synergai.cli.own_data import OwnDataJob
from synergai.domain import EngineName, JobId, JobSpec, JobState
from synergai.jobs import JobStatus

if TYPE_CHECKING:
    from synergai.client.client import Client


def a_command(**options: Any) -> OwnDataJob:
    usual: dict[str, Any] = {
        "patterns": ("photos/",),
        "output": None,
        "shard_format": None,
        "outputs": (),
        "by_reference": False,
        "max_failures": None,
        "qos_s": None,
        "by": None,
        "priority": 0,
        "tenant": "",
        "version": "",
        "min_accuracy": 0.0,
        "key": "",
    }
    return OwnDataJob(cast("Client", None), "texts", **(usual | options))


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
    [(8, "1 input failed, found while uploading:"), (1, "1 input failed:")],
)
def test_without_a_directory_the_listed_failures_are_those_found_while_uploading(
    capsys: pytest.CaptureFixture[str], failures: int, title: str
) -> None:
    command = a_command()
    command.unusable.add(3, "photos/empty.jpg", "the file is empty")
    command._print_end(a_status(failures=failures), None, as_json=False)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [title, "  photos/empty.jpg: the file is empty"]
    assert f"fetch the results, {failures} of which are errors, with" in printed.out
