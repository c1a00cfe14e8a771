"""An event log read back gives the same result as the simulation that wrote it."""

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.live_experiment.emulation import number_configurations
from benchmarks.live_experiment.recording import LogReader, read_recording
from profiler.dictionary.files import load_dictionary
from profiler.simulator.recording import ReplayStep
from profiler.simulator.simulation import SimulationRun, scheduling_settings, simulate, summarize
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from profiler.simulator.virtual_worker import BusySpan
from profiler.simulator.workload import EXPERIMENTS, Profile, Workload, draw
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.events import (
    AssignmentEnded,
    Command,
    Dispatch,
    Eject,
    Event,
    Finish,
    ProgressChecked,
    Revoke,
)
from synergai.domain import JobId, Outcome, WorkerId
from tests.cores import new_assignment

Simulated = tuple["Workload", "SimulationRun", "Path"]


@pytest.fixture(params=["synergai", "malleable"])
def simulated(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Simulated:
    path = tmp_path / "events.jsonl"
    workload = draw(
        number_configurations(Profile(load_dictionary(RECONSTRUCTED_PROFILE))),
        EXPERIMENTS["DH-FH"],
        seed=1,
        sessions="warm",
    )
    settings = scheduling_settings(request.param)
    with EventLog(path, settings, workload.scheduler_dictionary(), 0) as log:

        class Recorded(SchedulerCore):
            def handle(self, event: Event, now: float) -> list[Command]:
                commands = super().handle(event, now)
                log.record(event, now, commands)
                return commands

        monkeypatch.setattr("profiler.simulator.simulation.SchedulerCore", Recorded)
        run = simulate(workload, settings)
    return workload, run, path


def sorted_spans(run: SimulationRun) -> list[BusySpan]:
    """Return spans by time; spans stopped before their first query tie, except for rounding."""
    return sorted(
        run.spans,
        key=lambda s: (s.worker_id, round(s.started, 6), round(s.ended, 6), s.job_id, s.first),
    )


def test_recording_reproduces_spans_and_figures_of_the_run(simulated: Simulated) -> None:
    workload, run, path = simulated
    jobs = {str(job.id): job for job in workload.jobs}
    recording = read_recording(path, workload, run.policy, 1.0, jobs)
    assert recording.mismatches == 0
    for span, again in zip(sorted_spans(run), sorted_spans(recording.run), strict=True):
        assert (again.job_id, again.first, again.done) == (span.job_id, span.first, span.done)
        expected = (span.started, span.ready, span.ended)
        assert (again.started, again.ready, again.ended) == pytest.approx(expected)
    figures, expected_figures = asdict(summarize(recording.run)), asdict(summarize(run))
    compared = figures.keys() - {"decisions", "decision_p99_us"}
    assert {"violations", "e2e_mean_s"} < compared
    for name in compared:
        assert figures[name] == pytest.approx(expected_figures[name])


def test_scale_stretches_times_around_the_first_arrival(simulated: Simulated) -> None:
    workload, run, path = simulated
    jobs = {str(job.id): job for job in workload.jobs}
    recorded = read_recording(path, workload, run.policy, 10.0, jobs).run
    assert recorded.workload.jobs[0].arrival == workload.jobs[0].arrival
    last, stretched = workload.jobs[-1], recorded.workload.jobs[-1]
    first = workload.jobs[0].arrival
    assert stretched.arrival - first == pytest.approx(10 * (last.arrival - first))
    assert stretched.deadline - stretched.arrival == pytest.approx(
        10 * (last.deadline - last.arrival)
    )


def test_mismatching_commands_are_counted(simulated: Simulated) -> None:
    workload, run, path = simulated
    lines = path.read_text().splitlines(keepends=True)
    dispatch = next(i for i, line in enumerate(lines) if '"Dispatch"' in line)
    lines[dispatch] = lines[dispatch].replace('"first":0', '"first":1')
    path.write_text("".join(lines))
    jobs = {str(job.id): job for job in workload.jobs}
    assert read_recording(path, workload, run.policy, 1.0, jobs).mismatches == 1


def a_step(event: Event, at: float, commands: list[Command]) -> ReplayStep:
    return ReplayStep(at=at, event=event, recorded=commands, replayed=commands, decision_s=0.0)


def test_worker_that_was_ejected_works_again_afterwards() -> None:
    worker_id, job_id = WorkerId("w1"), JobId("stuck")
    stuck, again = (
        new_assignment(number, "net", worker_id, 20, job_id=job_id) for number in (1, 2)
    )
    log = LogReader()
    log.read(a_step(ProgressChecked(), 100.0, [Dispatch(stuck)]))
    log.read(
        a_step(ProgressChecked(), 130.0, [Revoke(stuck.id, worker_id), Eject(worker_id, 10.0)])
    )
    log.read(a_step(ProgressChecked(), 141.0, [Dispatch(again)]))
    ended = AssignmentEnded(again.id, 20, Outcome.COMPLETED)
    log.read(a_step(ended, 145.0, [Finish(job_id)]))
    assert [(each.started, each.ended, each.done) for each in log.spans] == [
        (100.0, 130.0, 0),
        (141.0, 145.0, 20),
    ]
