"""A gateway under overload on a small scale, and the checks of the acceptance test."""

from pathlib import Path
from typing import Unpack

import pytest

from synergai.domain import EngineName, Job, JobId
from synergai.profiles.dictionary import ConfigurationDictionary
from synergai.scheduling.event_log import EventLog
from synergai.scheduling.events import Dispatch, Expire, JobArrived, TimePassed
from synergai.scheduling.settings import SchedulingSettings
from synergai.testing import LocalFleet
from tests.acceptance import overload
from tests.acceptance.overload import LoadReport
from tests.cores import new_assignment
from tests.emulated_engines import write_emulated_engines

LATE = JobId("r1-1")
DISPATCH = Dispatch(new_assignment(1, "slow", "one", job_id=LATE))


def a_log(path: Path, *, dispatched_at: float, expired_at: float | None = None) -> Path:
    """Write the event log of one request with a deadline at 1 s."""
    job = Job(
        id=LATE, engine=EngineName("slow"), queries=1, arrival=0.0, deadline=1.0, perishable=True
    )
    with EventLog(path, SchedulingSettings(), ConfigurationDictionary(), epoch=1) as log:
        log.record(JobArrived(job, 1), 0.0, [])
        if expired_at is not None:
            log.record(TimePassed(), expired_at, [Expire(LATE)])
        log.record(TimePassed(), dispatched_at, [DISPATCH])
    return path


def report(**figures: Unpack[LoadReport]) -> LoadReport:
    """Return a report of ``synergai load`` without errors, except for `figures`."""
    well: LoadReport = {
        "offered": 100.0,
        "goodput": 99.0,
        "rejection_s": {"99.0": 0.002},
        "failed": 0,
        "valid": True,
    }
    return well | figures


def test_a_dispatch_before_the_deadline_is_no_error(tmp_path: Path) -> None:
    assert overload.dispatched_expired(a_log(tmp_path / "log", dispatched_at=0.9)) == []


@pytest.mark.parametrize("at", [{"dispatched_at": 1.0}, {"dispatched_at": 0.9, "expired_at": 0.8}])
def test_a_dispatch_of_an_expired_request_is_an_error(at: dict[str, float], tmp_path: Path) -> None:
    [fault] = overload.dispatched_expired(a_log(tmp_path / "log", **at))
    assert fault == f"{LATE} was dispatched after its deadline"


@pytest.mark.parametrize(
    ("figures", "fault"),
    [
        ({"goodput": 94.0}, "6.0% of the requests were not answered in time, although 2.0%"),
        ({"rejection_s": {"99.0": 0.06}}, "rejections take 0.060 s"),
        ({"failed": 3, "first_failure": "no worker"}, "requests failed: no worker"),
        ({"valid": False}, "were sent late"),
    ],
)
def test_each_error_of_a_load_is_found(figures: LoadReport, fault: str, tmp_path: Path) -> None:
    log = a_log(tmp_path / "log", dispatched_at=0.5)
    points = [
        overload.LoadPoint(1, report(), 0.0),
        overload.LoadPoint(10, report(**figures), 0.02),
    ]
    [found] = overload.find_errors(points, log)
    assert found.startswith("at 10 times the capacity")
    assert fault in found


def test_requests_that_the_queue_has_no_time_for_are_unavoidable() -> None:
    assert overload.unavoidable(20.0, 10.0, 1, 0.025) == 0.0
    assert overload.unavoidable(80.0, 100.0, 1, 0.025) == pytest.approx(0.5, abs=0.02)
    assert overload.unavoidable(80.0, 100.0, 2, 0.025) < 0.1


def test_overload_is_served_up_to_the_capacity_without_expired_dispatches(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    write_emulated_engines(tmp_path, {overload.ENGINE: overload.QUERY_S})
    with LocalFleet(tmp_path / "run") as fleet:
        overload.start(fleet, tmp_path, log, workers=1, policy="malleable")
        found = overload.load(fleet.address, "--rate", str(2 / overload.QUERY_S), "--duration", "2")
    assert overload.dispatched_expired(log) == []
    assert found["rejected"] > 0
    # Half, for a busy machine; without any rejection it would be lower still.
    assert found["goodput"] > 0.5 / overload.QUERY_S
