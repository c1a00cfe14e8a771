import math
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from synergai.core.routes.deployment import EngineDeployment
from synergai.core.routes.problem import Leg, Route
from synergai.core.scheduling import events
from synergai.domain import AssignmentId, EngineName, JobId, Outcome, WorkerId
from synergai.fleet_page import page_state
from synergai.fleet_page.page_state import MAX_REQUESTS, Batch, PageRecord, PageState, encode
from tests.cores import new_job
from tests.staged_runs import staged_run


def shown(records: list[PageRecord], kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind as the browser gets them."""
    sent = msgspec.json.decode(encode(Batch(9.0, records)))["records"]
    return [record for record in sent if record["kind"] == kind]


def request(number: int, deadline: float = math.inf) -> events.JobArrived:
    return new_job(f"r{number}", "net", 1, 1.0, deadline=deadline, perishable=True)


def test_changes_on_top_of_a_state_make_the_later_state() -> None:
    page, steps = PageState(), list(staged_run(4, 40))
    middle = len(steps) // 2
    for step in steps[:middle]:
        page.record(*step)
    known = {(type(each), each.id): encode(each) for each in page.state()}
    page.watched = True
    for step in steps[middle:]:
        page.record(*step)
    known |= {(type(each), each.id): encode(each) for each in page.take()}
    assert known == {(type(each), each.id): encode(each) for each in page.state()}


def test_record_that_changes_twice_is_sent_once() -> None:
    page = PageState(watched=True)
    for step in staged_run(1, 1):
        page.record(*step)
    [assignment] = shown(page.take(), "assignment")
    assert (assignment["outcome"], assignment["done"]) == ("completed", 10)
    assert page.take() == []


def test_unwatched_page_collects_no_changes() -> None:
    page = PageState()
    for step in staged_run(2, 10):
        page.record(*step)
    assert page.take() == []


def test_what_has_ended_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_state, "KEPT", 5)
    page = PageState()
    for step in staged_run(2, 40):
        page.record(*step)
    state = page.state()
    ended = [each for each in shown(state, "assignment") if "ended" in each]
    assert len(ended) == 5
    assert len([each for each in shown(state, "job") if "ended" in each]) == 5


def test_surplus_requests_are_counted_without_a_record() -> None:
    page = PageState()
    for number in range(MAX_REQUESTS + 3):
        page.record(request(number), 1.0, [])
    for number in range(MAX_REQUESTS + 3):
        page.record(events.TimePassed(), 1.1, [events.Finish(JobId(f"r{number}"))])
    state = page.state()
    assert len(shown(state, "job")) == MAX_REQUESTS
    [second] = shown(state, "second")
    assert second == {
        "kind": "second",
        "id": "1",
        "at": 1,
        "met": MAX_REQUESTS + 3,
        "omitted": 3,
    }


def test_only_jobs_that_finish_in_time_are_goodput() -> None:
    page = PageState()
    for number in range(5):
        page.record(request(number, deadline=2.0), 1.0, [])
    page.record(events.TimePassed(), 1.5, [events.Finish(JobId("r0"))])
    page.record(events.TimePassed(), 1.5, [events.Reject(JobId("r1"), "no worker")])
    page.record(events.JobCancelled(JobId("r2")), 1.5, [])
    page.record(events.TimePassed(), 2.5, [events.Finish(JobId("r3")), events.Expire(JobId("r4"))])
    seconds = shown(page.state(), "second")
    assert [(each.get("met", 0), each.get("violated", 0)) for each in seconds] == [(1, 1), (0, 2)]


def test_worker_that_leaves_ends_its_assignments() -> None:
    page = PageState()
    for step in staged_run(1, 1):
        if not isinstance(step[0], events.AssignmentEnded):
            page.record(*step)
    page.record(events.WorkerLeft(WorkerId("edge-000")), 9.0, [])
    page.record(events.AssignmentEnded(AssignmentId(1), 10, Outcome.COMPLETED), 9.5, [])
    state = page.state()
    [assignment] = shown(state, "assignment")
    assert (assignment["outcome"], assignment["ended"]) == ("revoked", 9.0)
    assert shown(state, "worker") == []


def test_ejected_worker_serves_again_with_its_next_assignment() -> None:
    page = PageState(watched=True)
    steps = list(staged_run(1, 1))
    page.record(*steps[0])
    page.record(events.TimePassed(), 0.1, [events.Eject(WorkerId("edge-000"), 5.0)])
    [worker] = shown(page.take(), "worker")
    assert worker["state"] == "ejected"
    for step in steps[1:]:
        page.record(*step)
    [worker] = shown(page.take(), "worker")
    assert "state" not in worker


def test_deployment_is_sent_when_it_changes_and_forgotten_when_it_ends() -> None:
    page = PageState(watched=True)
    route = Route((Leg("a", 0, 4), Leg("b", 4, 9)))
    placing = EngineDeployment(engine=EngineName("net"), state="placing", wanted=(route,))
    page.deploy([placing])
    page.deploy([replace(placing, queries_per_s=5.0)])
    [sent] = shown(page.take(), "deployment")
    assert (sent["id"], sent["state"], sent["where"]) == (
        "net",
        "placing",
        "wanted: s0-4 on a, s4-9 on b",
    )
    page.deploy([placing])
    assert page.take() == []
    page.deploy([replace(placing, state="failed", deployed=(route,), fault="b is full")])
    [sent] = shown(page.take(), "deployment")
    assert (sent["where"], sent["why"]) == ("s0-4 on a, s4-9 on b", "b is full")
    assert shown(page.state(), "deployment") == [sent]
    page.deploy([])
    [sent] = shown(page.take(), "deployment")
    assert (sent["id"], sent["state"]) == ("net", "gone")
    assert page.state() == []


def test_power_is_sent_when_it_changes() -> None:
    page = PageState()
    page.record(*next(staged_run(1, 1)))
    page.watched = True
    page.power("edge-000", "15W", 12.5)
    page.power("edge-000", "15W", 12.5)
    page.power("unknown", "15W", 12.5)
    [worker] = shown(page.take(), "worker")
    assert (worker["mode"], worker["watts"]) == ("15W", 12.5)
