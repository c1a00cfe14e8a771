"""Simulations of any fleet, and of arrivals from a file."""

from pathlib import Path

import pytest

from profiler.dictionary.files import load_dictionary
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE, SimulatorSettings
from profiler.simulator.sweep import make_workload, read_arrivals, run, run_count, sweep
from profiler.simulator.workload import EXPERIMENTS, Profile, draw
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.events import JobArrived, JobCancelled
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import EngineName, JobId, WorkerClass
from synergai.errors import InvalidInput, SynergaiError
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import new_job


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile(load_dictionary(RECONSTRUCTED_PROFILE))


def settings(**fields: object) -> SimulatorSettings:
    return SimulatorSettings.load({"seeds": "0", "experiments": ("DH-FH",), **fields})


# --- fleets -----------------------------------------------------------------------------


def test_fleet_without_a_choice_is_one_worker_of_each_class(profile: Profile) -> None:
    workload = make_workload(settings(), profile, "DH-FH", 0)
    assert workload.workers == {"x86": "x86", "agx": "agx", "nx": "nx"}
    assert workload.jobs == draw(profile, EXPERIMENTS["DH-FH"], 0).jobs


def test_workers_of_a_class_are_numbered(profile: Profile) -> None:
    workload = make_workload(settings(fleet={"x86": 2, "nx": 1}), profile, "DH-FH", 0)
    assert workload.workers == {"x86-1": "x86", "x86-2": "x86", "nx": "nx"}


@pytest.mark.parametrize("policy", ["malleable", "synergai", "rr"])
def test_jobs_of_a_fleet_run_on_all_of_its_workers(profile: Profile, policy: str) -> None:
    chosen = settings(fleet={"x86": 2, "agx": 2, "nx": 2}, jobs=40, load_factor=2, sessions="warm")
    ran = run(chosen, make_workload(chosen, profile, "DH-FH", 0), policy)
    assert len(ran.finished) == 40
    assert len({span.worker_id for span in ran.spans}) == 6


def test_load_is_relative_to_the_capacity_of_the_fleet(profile: Profile) -> None:
    def last(**fields: object) -> float:
        workload = make_workload(settings(**fields), profile, "DH-FH", 0)
        return workload.jobs[-1].arrival

    one = last()
    assert last(fleet={"x86": 16, "agx": 16, "nx": 16}) == pytest.approx(one / 16)
    assert last(fleet={"x86": 16, "agx": 16, "nx": 16}, load_factor=2) == pytest.approx(one / 32)
    assert last(load_factor=2) == pytest.approx(one / 2)
    assert one < last(fleet={"nx": 1})  # which is slower than all three


def test_deadlines_do_not_depend_on_the_fleet(profile: Profile) -> None:
    workloads = [
        make_workload(settings(fleet=fleet), profile, "DH-FH", 0)
        for fleet in ({}, {"nx": 1}, {"x86": 16})
    ]
    qos = [[job.deadline - job.arrival for job in each.jobs] for each in workloads]
    assert qos[1] == pytest.approx(qos[0])
    assert qos[2] == pytest.approx(qos[0])


def test_fleet_of_an_unknown_class_is_refused_with_the_known_ones(profile: Profile) -> None:
    with pytest.raises(InvalidInput, match="no worker class 'tpu'; there are: x86, agx, nx"):
        make_workload(settings(fleet={"tpu": 1}), profile, "DH-FH", 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"fleet": {"x86": 0}},
        {"fleet": {"x86": -1}},
        {"fleet": {"x86": 10**9}},
        {"jobs": 0},
        {"load_factor": 0},
        {"load_factor": -1},
        {"load_factor": 1e-320},
        {"load_factor": float("nan")},
    ],
)
def test_impossible_fleets_and_loads_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(SynergaiError):
        settings(**fields)


# --- arrivals from a file ---------------------------------------------------------------


def a_log(path: Path, *jobs: JobArrived) -> Path:
    with EventLog(path, SchedulingSettings(), ConfigurationDictionary(), 1) as log:
        for arrived in jobs:
            log.record(arrived, arrived.job.arrival, [])
    return path


def test_jobs_of_an_event_log_are_simulated_as_they_are(profile: Profile, tmp_path: Path) -> None:
    first, second = profile.engines[:2]
    jobs = (
        new_job("a", first, 10, 5.0, deadline=105.0),
        new_job("b", second, 20, 9.0, deadline=59.0),
    )
    path = a_log(tmp_path / "gateway.jsonl", *jobs)
    workload = make_workload(settings(arrivals=path, load_factor=2), profile, "DH-FH", 0)
    assert [(job.engine, job.queries, job.arrival, job.deadline) for job in workload.jobs] == [
        (first, 10, 0.0, 100.0),
        (second, 20, 2.0, 52.0),
    ]
    with pytest.raises(InvalidInput, match="has only 2 jobs, not 4"):
        make_workload(settings(arrivals=path, jobs=4), profile, "DH-FH", 0)


def test_cancelled_jobs_of_an_event_log_are_left_out(profile: Profile, tmp_path: Path) -> None:
    path, engine = tmp_path / "gateway.jsonl", profile.engines[0]
    with EventLog(path, SchedulingSettings(), ConfigurationDictionary(), 1) as log:
        log.record(new_job("later", engine, 10, 9.0), 9.0, [])
        log.record(new_job("cancelled", engine, 10, 1.0), 9.0, [])
        log.record(new_job("first", engine, 10, 5.0), 9.0, [])
        log.record(JobCancelled(JobId("cancelled")), 10.0, [])
    assert [(job.id, job.arrival) for job in read_arrivals(path)] == [
        ("first", 0.0),
        ("later", 4.0),
    ]


def test_given_jobs_are_simulated_in_one_experiment(tmp_path: Path) -> None:
    chosen = settings(
        arrivals=tmp_path / "log", experiments=tuple(EXPERIMENTS), policies=("malleable",)
    )
    assert run_count(chosen) == 1


def test_log_without_jobs_or_with_an_unknown_engine_is_refused(
    profile: Profile, tmp_path: Path
) -> None:
    empty = a_log(tmp_path / "empty.jsonl")
    with pytest.raises(InvalidInput, match="has no jobs"):
        read_arrivals(empty)
    unknown = a_log(tmp_path / "unknown.jsonl", new_job("a", "nothing", 1, 0.0))
    with pytest.raises(InvalidInput, match="engine nothing has no profile"):
        make_workload(settings(arrivals=unknown), profile, "DH-FH", 0)


def test_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*absent\.jsonl"):
        read_arrivals(tmp_path / "absent.jsonl")


def test_jobs_and_requests_of_an_event_log_are_simulated(profile: Profile, tmp_path: Path) -> None:
    engine, path = profile.engines[0], tmp_path / "gateway.jsonl"
    a_log(
        path,
        new_job("a", engine, 50, 100.0),
        # Its deadline passes while it waits, so that it is dropped.
        new_job("b", engine, 1, 101.0, deadline=101.1, perishable=True),
    )
    chosen = settings(arrivals=path, policies=("malleable",), fleet={WorkerClass("nx"): 1})
    workload = make_workload(chosen, profile, "DH-FH", 0)
    assert [(job.engine, job.arrival) for job in workload.jobs] == [
        (EngineName(engine), 0.0),
        (EngineName(engine), 1.0),
    ]
    [result] = sweep(chosen, profile)
    assert (result.jobs, result.violations) == (2, 1)
