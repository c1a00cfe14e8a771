"""Staged situations, each with what the core says about it."""

import math
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from synergai.core import explanations
from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.rules import history
from synergai.domain import Configuration, EngineName, Fault, Outcome, Session, Variant, WorkerId
from tests import cores
from tests.cores import dispatched, make_core, new_entry, new_job, new_request, new_worker

XEON, NANO = new_worker("xeon", "x86", ["m"]), new_worker("nano", "nano", ["m"])
FAST, SLOW = new_entry("m", "x86", 10.0), new_entry("m", "nano", 0.5)
LOADS = new_entry("m", "x86", 10.0, model_load_s=2.0)


def arrive(core: SchedulerCore, arrival: events.JobArrived) -> list[events.Assignment]:
    return dispatched(core.handle(arrival, arrival.job.arrival))


def end(
    core: SchedulerCore,
    assignment: events.Assignment,
    at: float,
    outcome: Outcome = Outcome.COMPLETED,
    **fields: Any,
) -> list[events.Assignment]:
    return dispatched(cores.end(core, assignment, at, outcome, **fields))


def explain(core: SchedulerCore, name: str, now: float) -> tuple[str, explanations.Explanation]:
    found = next(core.explain(name, now))
    return " ".join(explanations.sentences(found)), found


def test_stage_of_a_job_is_explained_although_it_was_in_time() -> None:
    core = make_core([FAST], [XEON])
    [stage] = arrive(core, new_job("job.1", "m", 2, deadline=2.0, client_id="job"))
    end(core, stage, 0.2)
    text, found = explain(core, "job", 3.0)
    assert found.id == "job.1"
    assert text.startswith("In time: it took 200 ms, and had 2.0 s.")


def test_request_behind_a_job_names_the_job_and_its_deadline() -> None:
    core = make_core([FAST], [XEON], policy="edf", strict=True)
    [job] = arrive(core, new_job("job-7", "m", 12, deadline=2.0))
    arrive(core, new_job("late", "m", 1, 0.2, deadline=1.2))
    [mine] = end(core, job, 1.4)
    text, _ = explain(core, "late", 1.45)
    assert "for xeon, which ran 12 queries of job job-7" in text
    end(core, mine, 1.5)
    text, found = explain(core, "late", 99.0)
    assert text.startswith("Late by 300 ms: it took 1.3 s, and had 1.0 s. Waited 1.2 s for xeon")
    assert "(deadline 800 ms later)" in text
    assert [each.seconds for each in found.ahead] == [1.2]


def test_requests_in_a_row_ahead_of_one_are_counted_together() -> None:
    core = make_core([FAST], [XEON], policy="fifo", strict=True, prefetch_count=1)
    [running] = arrive(core, new_request("r0", "m", deadline=9.0))
    for number in range(1, 4):
        assert not arrive(core, new_request(f"r{number}", "m", deadline=9.0))
    [running] = end(core, running, 0.1)
    [running] = end(core, running, 0.2)
    [running] = end(core, running, 0.3)
    end(core, running, 9.5)
    text, found = explain(core, "r3", 10.0)
    assert [(each.queries, round(each.seconds, 3)) for each in found.ahead] == [(3, 0.3)]
    assert "xeon took 9.2 s; 100 ms were estimated." in text


def test_worker_that_is_too_slow_is_named_with_what_is_too_many() -> None:
    core = make_core([SLOW], [NANO])
    [mine] = arrive(core, new_job("late", "m", deadline=1.0))
    end(core, mine, 2.0)
    text, _ = explain(core, "late", 3.0)
    assert "nano was not acceptable: it needs 2.0 s, 1.0 s too long." in text


def test_model_that_was_not_loaded_is_named_with_its_load_time() -> None:
    core = make_core([LOADS], [new_worker("xeon", "x86", ["m"], loaded=False)])
    [mine] = arrive(core, new_job("late", "m", deadline=1.0))
    assert "xeon needed 2.0 s to load m." in explain(core, "late", 0.5)[0]
    end(core, mine, 2.1)
    text, _ = explain(core, "late", 3.0)
    assert "xeon needed 2.0 s to load m." in text


def test_switch_of_the_power_mode_is_named() -> None:
    mode = Configuration(1, "MAXN")
    board = new_worker("agx", "agx", ["m"], (mode,), power_mode="15W")
    core = make_core([new_entry("m", "agx", 10.0, mode)], [board], mode_switch_s=3.0)
    [mine] = arrive(core, new_job("late", "m", deadline=1.0))
    end(core, mine, 3.1)
    text, _ = explain(core, "late", 4.0)
    assert "agx needed 3.0 s to switch to mode MAXN" in text


def test_job_that_runs_as_planned_is_on_time() -> None:
    core = make_core([FAST], [XEON])
    arrive(core, new_job("job", "m", 5, deadline=1.0))
    assert explain(core, "job", 0.2)[0] == "It arrived 200 ms ago. Its deadline is in 800 ms."


def test_wrong_estimate_is_compared_with_what_was_measured() -> None:
    core = make_core([FAST], [XEON])
    [mine] = arrive(core, new_job("late", "m", deadline=1.0))
    end(core, mine, 1.5)
    text, _ = explain(core, "late", 2.0)
    assert "xeon took 1.5 s; 100 ms were estimated." in text


def test_engine_that_no_worker_has_is_said_to_be_missing() -> None:
    core = make_core([FAST], [new_worker("xeon", "x86", ["other"])])
    arrive(core, new_request("r1", "m", deadline=0.5))
    text, _ = explain(core, "r1", 0.2)
    assert text == (
        "It arrived 200 ms ago. Its deadline is in 300 ms. Waited 200 ms. No worker has m."
    )
    core.handle(events.TimePassed(), 0.5)
    assert "No worker has m." in explain(core, "r1", 1.0)[0]


def test_impossible_deadline_is_refused_with_every_workers_excess() -> None:
    core = make_core([FAST, SLOW], [XEON, NANO], infeasible="reject")
    arrive(core, new_job("late", "m", 20, deadline=1.0))
    core.handle(events.TimePassed(), 0.0)
    text, _ = explain(core, "late", 0.0)
    assert text.startswith("Refused: no worker can meet the deadline")
    assert "xeon was not acceptable: it needs 2.0 s, 1.0 s too long." in text
    assert "nano was not acceptable: it needs 40 s, 39 s too long." in text


def test_request_refused_on_arrival_is_remembered_with_its_reason() -> None:
    core = make_core([FAST], [XEON])
    [job] = arrive(core, new_job("job", "m", 100))
    request = new_request("r1", "m", 0.0, deadline=0.5, client_id="frame-7").job
    core.refused(request, "a response would take about 10 s", 0.0, infeasible=True)
    text, found = explain(core, "frame-7", 5.0)
    assert found.id == "r1"
    assert "xeon was busy for 10 s; with the 100 ms that it needs, 9.6 s too long." in text
    core.refused(request, "the quota of tenant 'lab' is used up", 0.0, infeasible=False)
    assert explain(core, "r1", 5.0)[0] == "Refused: the quota of tenant 'lab' is used up."
    assert job.count == 100


def test_worker_that_left_in_the_middle_is_named() -> None:
    core = make_core([FAST, SLOW], [XEON, NANO])
    arrive(core, new_job("late", "m", 10, deadline=1.2))
    [again] = dispatched(core.handle(events.WorkerLeft(WorkerId("xeon")), 0.9))
    end(core, again, 20.9)
    text, _ = explain(core, "late", 21.0)
    assert "xeon left after 900 ms." in text


def test_retry_after_a_crash_is_named_with_its_reason() -> None:
    core = make_core([FAST], [XEON])
    [mine] = arrive(core, new_request("r1", "m"))
    [again] = end(
        core, mine, 3.0, Outcome.FAILED, done=0, detail="segmentation fault", fault=Fault.HOST_DIED
    )
    end(core, again, 3.1)
    text, _ = explain(core, "r1", 4.0)
    assert "It failed on xeon after 3.0 s: segmentation fault." in text


def test_reason_of_a_failure_is_told_once() -> None:
    core = make_core([FAST], [XEON])
    [mine] = arrive(core, new_request("r1", "m"))
    end(core, mine, 3.0, Outcome.FAILED, done=0, detail="segmentation fault", fault=Fault.BAD_INPUT)
    text, found = explain(core, "r1", 4.0)
    assert found.state == "failed"
    assert text.count("segmentation fault") == 1
    assert "It failed on xeon after 3.0 s." in text


def test_newest_is_explained_without_an_id() -> None:
    core = make_core([FAST], [XEON])
    for name in ("r1", "r2"):
        core.refused(new_request(name, "m", deadline=0.01).job, "late", 0.0, infeasible=True)
    assert [each.id for each in core.explain("", 1.0)] == ["r2", "r1"]


def test_pinned_version_names_the_version_that_a_faster_worker_has() -> None:
    profiles = [FAST, new_entry("m/2", "nano", 0.5)]
    core = make_core(profiles, [XEON, new_worker("nano", "nano", ["m/2"])])
    [mine] = arrive(core, new_job("late", "m/2", deadline=1.0))
    end(core, mine, 2.0)
    text, _ = explain(core, "late", 3.0)
    assert "xeon was not acceptable: it has another version, m." in text


def test_session_that_crashed_is_named_where_a_slower_one_is_left() -> None:
    fast, slow = Configuration(1, variant="a"), Configuration(1, variant="b")
    profiles = [new_entry("m", "x86", 10.0, fast), new_entry("m", "x86", 0.5, slow)]
    variants = {EngineName("m"): (Variant(name="a"), Variant(name="b"))}
    loaded = [Session(EngineName("m"), each) for each in (fast, slow)]
    worker = new_worker("xeon", "x86", ["m"], variants=variants, loaded=loaded)
    core = make_core(profiles, [worker])
    [mine] = arrive(core, new_job("late", "m", deadline=1.0))
    end(core, mine, 0.1, Outcome.FAILED, done=0, detail="segmentation fault", fault=Fault.CRASHED)
    text, _ = explain(core, "late", 0.2)
    assert "xeon is not acceptable: m crashed or lacked memory there" in text


def test_job_that_yielded_to_a_request_says_so() -> None:
    profiles = [FAST, new_entry("live", "x86", 1.0)]
    core = make_core(profiles, [new_worker("xeon", "x86", ["m", "live"])], policy="synergai")
    [mine] = arrive(core, new_job("job", "m", 20))
    core.handle(events.QueriesDone(mine.id, 9, 0.9), 0.9)
    [request] = arrive(core, new_request("r1", "live", 1.0, deadline=9.0))
    end(core, mine, 1.1, Outcome.STOPPED, done=11)
    [rest] = end(core, request, 4.1)
    end(core, rest, 5.0)
    text, _ = explain(core, "job", 6.0)
    assert "It yielded to a request on xeon after 1.1 s." in text
    assert "xeon, which ran 1 request of live for 3.0 s" in text


def test_job_in_many_assignments_waited_only_where_others_are_known_to_have_run() -> None:
    profiles = [FAST, new_entry("live", "x86", 10.0)]
    core = make_core(profiles, [new_worker("xeon", "x86", ["m", "live"])], policy="synergai")
    [first] = arrive(core, new_request("r0", "live"))
    assert not arrive(core, new_job("job", "m", 100, deadline=0.5))
    [mine] = end(core, first, 2.0)
    for turn in range(40):
        at = 2.0 + turn * 0.4
        [request] = arrive(core, new_request(f"r{turn + 1}", "live", at, deadline=at + 9.0))
        end(core, mine, at + 0.2, Outcome.STOPPED, done=2)
        [mine] = end(core, request, at + 0.4)
    end(core, mine, 20.0)
    found = explain(core, "job", 21.0)[1]
    assert found.runs[0].given_s == 2.0
    # Two seconds at first, and 0.2 s after each of the newest but the last.
    assert round(found.waited_s, 3) == round(2.0 + 0.2 * (len(found.runs) - 2), 3)


def test_stage_that_waits_for_the_one_before_it_waits_for_no_worker() -> None:
    core = make_core([FAST], [XEON])
    stage = new_job("job.2", "m", 20, deadline=1.0).job
    assert not arrive(core, events.JobArrived(stage, ready=0))
    [other] = arrive(core, new_job("other", "m", 10))
    assert explain(core, "job.2", 1.0)[1].starved_s == 1.0
    end(core, other, 1.0)
    [mine] = dispatched(core.handle(events.QueriesReady(stage.id, 10), 2.0))
    assert not end(core, mine, 3.0)
    [mine] = dispatched(core.handle(events.QueriesReady(stage.id, 20), 3.5))
    end(core, mine, 4.5)
    text, found = explain(core, "job.2", 5.0)
    assert (found.starved_s, found.waited_s, found.ahead) == (2.5, 0.0, ())
    assert "Had nothing to run for 2.5 s: its inputs came later." in text


def test_stage_of_many_assignments_waited_for_workers_as_far_as_is_known() -> None:
    core = make_core([FAST], [XEON])
    stage = new_job("job.2", "m", 40, deadline=1.0).job
    arrive(core, events.JobArrived(stage, ready=0))
    now = 0.0
    for ready in range(1, 31):  # each gets ready a second after the one before it
        now += 1.0
        [mine] = dispatched(core.handle(events.QueriesReady(stage.id, ready), now))
        now += 0.1
        end(core, mine, now)
    core.handle(events.WorkerLeft(WorkerId("xeon")), now)
    core.handle(events.QueriesReady(stage.id, 31), now + 1.0)
    found = explain(core, "job.2", now + 3.0)[1]
    assert round(found.starved_s, 3) == 31.0
    assert round(found.waited_s, 3) == 2.0


def test_deadline_of_work_ahead_may_be_the_same() -> None:
    core = make_core([FAST], [XEON], policy="edf", strict=True)
    [job] = arrive(core, new_job("job-7", "m", 12, deadline=1.0))
    arrive(core, new_job("late", "m", 1, deadline=1.0))
    [mine] = end(core, job, 1.2)
    end(core, mine, 1.3)
    assert "(same deadline)" in explain(core, "late", 2.0)[0]


def test_request_in_time_is_not_kept_and_the_number_of_others_is_bounded() -> None:
    core = make_core([FAST], [XEON])
    [mine] = arrive(core, new_request("r1", "m", deadline=1.0))
    end(core, mine, 0.1)
    assert not list(core.explain("r1", 1.0))
    core.refused(new_request("q", "m", 1.0, deadline=1.5).job, "late", 1.0, infeasible=True)
    assert core.explained_since == math.inf  # none has been dropped
    for number in range(history.KEPT + 5):
        request = new_request(f"q{number}", "m", 2.0, deadline=2.5).job
        core.refused(request, "late", 2.0, infeasible=True)
    assert not list(core.explain("q4", 3.0))
    assert core.explained_since == 2.0
    assert next(core.explain("q5", 3.0)).has_details
    assert not next(core.explain(f"q{history.KEPT}", 3.0)).has_details


def test_explanations_change_no_decision() -> None:
    arrivals = [new_job(f"j{n}", "m", 5, n / 4, deadline=n / 4 + 0.6) for n in range(8)]
    watched, other = (make_core([FAST, SLOW], [XEON, NANO]) for _ in range(2))
    for arrival in arrivals:
        assert watched.handle(arrival, arrival.job.arrival) == other.handle(
            arrival, arrival.job.arrival
        )
        list(watched.explain(arrival.job.id, arrival.job.arrival))


SECONDS = st.floats(0, 1e6)
UNKNOWN = st.none() | SECONDS
RUNS = st.builds(
    explanations.Run,
    worker=st.sampled_from("ab"),
    configuration=st.just(""),
    queries=st.integers(1, 9),
    done=st.integers(0, 9),
    given_s=SECONDS,
    began_s=UNKNOWN,
    ended_s=UNKNOWN,
    end=st.sampled_from(get_args(explanations.End)),
    setup_s=SECONDS,
    switched_to=st.sampled_from(["", "mode"]),
    estimated_s=UNKNOWN,
)
VERDICTS = st.builds(
    explanations.Verdict,
    worker=st.sampled_from("ab"),
    obstacle=st.sampled_from(get_args(explanations.Obstacle)),
    needed_s=UNKNOWN,
    setup_s=SECONDS,
    too_many_s=UNKNOWN,
    seconds=UNKNOWN,
)
EXPLANATIONS = st.builds(
    explanations.Explanation,
    id=st.just("1"),
    engine=st.just("net"),
    queries=st.integers(1, 9),
    state=st.sampled_from(["queued", "running", "succeeded", "failed", "expired", "rejected"]),
    budget_s=UNKNOWN,
    total_s=SECONDS,
    waited_s=SECONDS,
    held_s=SECONDS,
    runs=st.lists(RUNS, max_size=3).map(tuple),
    workers=st.lists(VERDICTS, max_size=3).map(tuple),
    has_details=st.booleans(),
)


@given(EXPLANATIONS)
def test_every_explanation_has_sentences(facts: explanations.Explanation) -> None:
    assert explanations.worded(facts).sentences
