"""A workload's emulated workers as files for a live fleet."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from benchmarks.live_experiment.emulation import (
    Emulation,
    configuration_numbers,
    number_configurations,
)
from benchmarks.live_experiment.live import run_live
from profiler.dictionary.files import load_dictionary
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from profiler.simulator.workload import EXPERIMENTS, Profile, draw
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from worker_agent.backends.emulated import EmulatedBackend

X86, NX = WorkerClass("x86"), WorkerClass("nx")
MOBILENET = EngineName("onnx_mobilenet_op11")
SCALE = 60.0


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile(load_dictionary(RECONSTRUCTED_PROFILE))


@pytest.fixture
def emulation(profile: Profile, tmp_path: Path) -> Emulation:
    workload = draw(
        number_configurations(profile), EXPERIMENTS["DH-FH"], seed=1, sessions="prewarmed"
    )
    made = Emulation(workload, SCALE, tmp_path / "run")
    made.write()
    return made


def test_numbering_configurations_changes_only_names(profile: Profile) -> None:
    same = number_configurations(profile)
    assert (same.engines, same.classes) == (profile.engines, profile.classes)
    for worker_class in profile.classes:
        for engine in profile.engines:
            before, after = (p.entries(engine, worker_class) for p in (profile, same))
            assert [structs.replace(e, configuration=Configuration()) for e in after] == [
                structs.replace(e, configuration=Configuration()) for e in before
            ]


def test_modes_are_numbered_in_numeric_order(profile: Profile) -> None:
    numbers = configuration_numbers(profile, NX)
    assert (numbers[Configuration.parse("mode=5")], max(numbers.values())) == (5, 9)


def test_model_directories_are_valid(emulation: Emulation) -> None:
    for worker_class in emulation.workload.profile.classes:
        definitions = ModelDirectory(emulation.models(worker_class)).engines()
        assert [definition.name for definition in definitions] == emulation.engines()
        assert {(d.backend, d.fault) for d in definitions} == {("emulated", "")}


def test_engines_run_at_profiled_times_divided_by_the_scale(emulation: Emulation) -> None:
    name = emulation.engines()[0]
    folder = emulation.models(NX) / name
    job = next(job for job in emulation.workload.jobs if job.engine == name)
    emulation.write_pace(job, "f00d")
    entry = emulation.workload.profile.best(name, NX)
    now, sleeps = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        sleeps.append(seconds)

    engine = EmulatedBackend(
        folder / "model.toml",
        entry.configuration.threads,
        clock=lambda: now,
        sleep=sleep,
        age_s=lambda: 0.0,
    )
    assert sleeps == [pytest.approx(entry.t_pre_s / SCALE)]
    inputs = {"x": np.zeros(1, np.float32)}
    now += 60.0  # not the job it was loaded for
    started = now
    engine.begin_job("f00d")
    for _ in range(1000):
        engine.run(inputs, ["y"])
    expected = 1000 * emulation.workload.per_query_s(job, NX, entry.configuration) / SCALE
    assert now - started == pytest.approx(expected, abs=0.002)


def test_dictionary_is_scaled(emulation: Emulation) -> None:
    believed = {
        (e.engine, e.worker_class, e.configuration): e
        for e in load_dictionary(emulation.dictionary)
    }
    for entry in emulation.workload.scheduler_dictionary():
        found = believed[entry.engine, entry.worker_class, entry.configuration]
        assert found.qps == pytest.approx(entry.qps * SCALE)
        assert found.t_pre_s == pytest.approx(entry.t_pre_s / SCALE)
        assert found.label == "emulated"


def test_fastest_configuration_is_pinned(emulation: Emulation) -> None:
    best = emulation.workload.profile.best(MOBILENET, X86).configuration
    assert emulation.pin_options(X86)[MOBILENET] == str(best)


def test_live_experiment_rejects_cold_sessions(emulation: Emulation, tmp_path: Path) -> None:
    cold = replace(emulation.workload, sessions="cold")
    with pytest.raises(InvalidInput, match="keep sessions loaded"):
        run_live(cold, "synergai", SCALE, tmp_path / "other")
