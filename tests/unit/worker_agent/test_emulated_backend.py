"""The emulated backend on a fake clock that only sleeping advances."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from synergai.domain import EngineName, TensorSpec
from synergai.errors import EngineUnusable
from synergai.models.directory import EngineDefinition
from tests.tiny_onnx import floats, new_model, save_model
from worker_agent.backends.emulated import PACES_FILE, PATIENCE_S, SLOWDOWN_FILE, EmulatedBackend
from worker_agent.host.loading import SelfCheck

MODEL = """
[[configurations]]
threads = 1
query_s = 0.004
setup_s = 2.0

[[configurations]]
threads = 2
query_s = 0.0003
setup_s = 0.0
"""
INPUTS = {"x": np.array([1.5], np.float32)}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.toml"
    path.write_text(MODEL)
    return path


def backend(model: Path, clock: Clock, threads: int = 1, age_s: float = 0.5) -> EmulatedBackend:
    return EmulatedBackend(model, threads, clock=clock, sleep=clock.sleep, age_s=lambda: age_s)


def preloaded(model: Path, clock: Clock) -> EmulatedBackend:
    engine = backend(model, clock)
    clock.now += 60.0
    return engine


def run(engine: EmulatedBackend, queries: int) -> None:
    for _ in range(queries):
        engine.run(INPUTS, ["y"])


def test_job_runs_at_the_pace_in_the_file(model: Path, clock: Clock) -> None:
    (model.parent / PACES_FILE).write_text("slow 1.5\nfast 0.5\n")
    engine = preloaded(model, clock)
    for job, factor in (("fast", 0.5), ("slow", 1.5)):
        began = clock.now
        engine.begin_job(job)
        run(engine, 10)
        assert clock.now - began == pytest.approx(10 * 0.004 * factor)


@pytest.mark.parametrize(("factor", "age_s"), [(1.5, 0.5), (0.9, 0.5), (1.0, 2.2), (1.2, 3.0)])
def test_setup_of_the_loading_job_is_scaled_by_its_pace(
    model: Path, clock: Clock, factor: float, age_s: float
) -> None:
    (model.parent / PACES_FILE).write_text(f"job {factor}\n")
    started = clock.now - age_s
    engine = backend(model, clock, age_s=age_s)
    engine.begin_job("job")
    run(engine, 500)
    assert clock.now - started == pytest.approx(factor * (2.0 + 500 * 0.004))


def test_file_slows_all_queries_down_while_it_exists(model: Path, clock: Clock) -> None:
    engine = preloaded(model, clock)
    file = model.parent / SLOWDOWN_FILE
    taken = []
    for text in ("", "3.0", "1"):
        file.write_text(text)
        began = clock.now
        engine.begin_job("job")
        run(engine, 10)
        taken.append(clock.now - began)
    assert taken == pytest.approx([0.04, 0.12, 0.04])


def test_tensors_have_the_declared_names_and_sizes(model: Path, clock: Clock) -> None:
    tensors = 'input = {name = "a", values = 2}\noutput = {name = "b", values = 3}\n'
    model.write_text(tensors + MODEL)
    engine = backend(model, clock)
    assert engine.inputs == (TensorSpec("a", "FP32", (-1, 2)),)
    assert engine.outputs == (TensorSpec("b", "FP32", (-1, 3)),)
    [answer] = engine.run({"a": np.ones((4, 2), np.float32)}, ["b"])
    assert answer.shape == (4, 3)
    assert answer.dtype == np.float32


def test_it_is_inspected_at_its_declared_time(model: Path, clock: Clock) -> None:
    engine = preloaded(model, clock)
    checked = SelfCheck(engine, clock).run(EngineDefinition(name=EngineName("e"), file=model))
    assert checked.query_s == pytest.approx(0.004)


def test_wait_for_a_missing_pace_is_bounded(model: Path, clock: Clock) -> None:
    (model.parent / PACES_FILE).write_text("other 2.0\n")
    engine = backend(model, clock)
    began = clock.now
    engine.begin_job("unknown")
    assert clock.now - began == pytest.approx(PATIENCE_S, abs=0.01)
    engine.begin_job("")
    run(engine, 1)
    assert clock.sleeps[-1] == pytest.approx(0.004)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "configurations = 3",
        'input = {name = "a"}',
        "not TOML",
        "[[configurations]]\nthreads = 1",
        "[[configurations]]\nthreads = 1\nquery_s = -1\nsetup_s = 0",
        "[[configurations]]\nthreads = 1\nquery_s = nan\nsetup_s = 0",
        "[[configurations]]\nthreads = 2\nquery_s = 1\nsetup_s = 0",
    ],
)
def test_invalid_model_file_is_refused(model: Path, clock: Clock, text: str) -> None:
    model.write_text(text)
    with pytest.raises(EngineUnusable, match=r"model\.toml"):
        backend(model, clock)


def test_invalid_paces_file_is_refused(model: Path, clock: Clock) -> None:
    (model.parent / PACES_FILE).write_text("job slowly\n")
    engine = backend(model, clock)
    with pytest.raises(EngineUnusable, match=PACES_FILE):
        engine.begin_job("job")


def test_answers_of_a_model_take_the_configured_time(tmp_path: Path, clock: Clock) -> None:
    save_negation(tmp_path / "negation.onnx")
    path = tmp_path / "model.toml"
    path.write_text('model = "negation.onnx"\n' + MODEL)
    engine = backend(path, clock)
    began = clock.now
    (answer,) = engine.run(INPUTS, [engine.outputs[0].name])
    assert answer.tolist() == [-1.5]
    assert clock.now - began == pytest.approx(0.004)


@pytest.mark.parametrize("model", ["'../negation.onnx'"])
def test_model_outside_the_folder_is_refused(tmp_path: Path, clock: Clock, model: str) -> None:
    path = tmp_path / "model.toml"
    path.write_text(f"model = {model}\n{MODEL}")
    with pytest.raises(EngineUnusable, match="in the same folder"):
        backend(path, clock)


def save_negation(path: Path) -> None:
    x, y = floats([1], "x", "y")
    save_model(path, new_model([helper.make_node("Neg", ["x"], ["y"])], [x], [y]))
