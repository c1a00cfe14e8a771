"""A small experiment on a real gateway with agents and engine hosts."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.live_experiment.emulation import number_configurations
from benchmarks.live_experiment.live import run_live
from profiler.dictionary.files import load_dictionary
from profiler.simulator.recording import replay
from profiler.simulator.simulation import scheduling_settings, simulate, summarize
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from profiler.simulator.workload import EXPERIMENTS, Profile, Workload, draw
from synergai.core.scheduling.events import WorkerJoined

ENGINES = {"onnx_mobilenet_op11", "tf_mobilenet"}
SCALE = 100.0


@pytest.fixture
def workload() -> Workload:
    """Four jobs of two engines on two workers."""
    entries = (
        entry
        for entry in load_dictionary(RECONSTRUCTED_PROFILE)
        if entry.engine in ENGINES and entry.worker_class in {"x86", "agx"}
    )
    profile = number_configurations(Profile(entries))
    whole = draw(profile, EXPERIMENTS["DH-FH"], seed=2, sessions="prewarmed")
    return replace(whole, jobs=whole.jobs[:4])


def test_live_jobs_take_what_simulated_ones_take(workload: Workload, tmp_path: Path) -> None:
    recording = run_live(workload, "malleable", SCALE, tmp_path / "run")
    live = summarize(recording.run)
    simulated = summarize(simulate(workload, scheduling_settings("malleable")))
    assert recording.mismatches == 0
    assert recording.run.finished.keys() == {job.id for job in workload.jobs}
    # Half a second of wall time, to tolerate a loaded machine.
    assert live.e2e_mean_s == pytest.approx(simulated.e2e_mean_s, abs=0.5 * SCALE)
    events = [step.event for step in replay(tmp_path / "run" / "events.jsonl", time.thread_time)]
    joined = [event.worker for event in events if isinstance(event, WorkerJoined)]
    assert [{s.engine for s in worker.sessions} for worker in joined] == [ENGINES, ENGINES]
    done = {job.id: 0 for job in workload.jobs}
    for span in recording.run.spans:
        done[span.job_id] += span.done
    assert done == {job.id: job.queries for job in workload.jobs}
