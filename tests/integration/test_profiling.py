"""Short runs of the real LoadGen on real engine hosts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from profiler.dictionary.files import load_dictionary
from profiler.installation import write_definition
from profiler.measuring.cli import profile
from profiler.measuring.conditions import DISTURBED_SHARE
from profiler.measuring.measurer import measure
from profiler.measuring.messages import MeasurementTask
from profiler.measuring.profiler_settings import ProfilerSettings
from profiler.zoo import recipes as zoo
from profiler.zoo.onnx_graph import OnnxGraph, ValueInfo, write_model
from synergai.domain import Configuration, EngineName, Session, WorkerClass
from synergai.models.samples import write_samples
from synergai.profiles.dictionary import BUILT_IN, LOADGEN, ProfileEntry
from tests.waiting import has_ended, wait_until

WORKER_CLASS = f"profiled-{os.getpid()}"
"""Of this run alone: a second profiler of a worker class on the machine is refused."""
IDENTITY = Session(EngineName("onnx_identity"), Configuration(threads=1))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    zoo.build("onnx_identity", path)
    return path


def command(models: Path, tmp_path: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "synergai", "profile", "--models", str(models)),
        *("--dictionary", str(tmp_path / "d.db"), "--output", str(tmp_path / "logs")),
        # Other tests have workers on this machine.
        *("--worker-class", WORKER_CLASS, *more),
    ]


def dry_run(models: Path, tmp_path: Path, *, search: bool = False) -> ProfilerSettings:
    return ProfilerSettings(
        models=models,
        dictionary=tmp_path / "d.db",
        output=tmp_path / "logs",
        worker_class=WORKER_CLASS,
        power="none",
        dry_run=True,
        search=search,
    )


def test_dry_run_says_how_long_it_would_take(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(dry_run(models, tmp_path))
    assert "1 measurement, about" in capsys.readouterr().err


def test_profile_writes_an_entry_and_keeps_loadgens_logs(models: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command(models, tmp_path, "--queries", "300", "--min-duration", "0.3", "--json"),
        capture_output=True,
        check=True,
    )

    (record,) = json.loads(done.stdout)
    (entry,) = load_dictionary(tmp_path / "d.db")
    assert entry.engine == "onnx_identity"
    assert entry.configuration == Configuration(threads=1)
    assert 0 <= record["background"] <= 1
    assert entry.timer == LOADGEN
    assert entry.label == ("disturbed" if record["background"] > DISTURBED_SHARE else "measured")
    assert entry.queries == record["single_stream"]["queries"] >= 300
    assert entry.backend_start_s > 0
    assert entry.model_load_s > 0
    assert record["single_stream"]["validity"] == "VALID"
    summary = (Path(record["logs"]) / "mlperf_log_summary.txt").read_text()
    assert "Scenario : SingleStream" in summary
    assert "Result is : VALID" in summary


def test_engine_that_cannot_be_measured_does_not_end_the_profile_of_all_with_their_batches(
    models: Path, tmp_path: Path
) -> None:
    shutil.copytree(models / "onnx_identity", tmp_path / "models" / "works")
    (tmp_path / "models" / "works" / "engine.toml").write_text("max_batch = 2\n")
    (tmp_path / "models" / "a_broken_one").mkdir()
    (tmp_path / "models" / "a_broken_one" / "model.onnx").write_bytes(b"no model")
    few = ("--queries", "1", "--min-duration", "0")

    done = subprocess.run(
        command(tmp_path / "models", tmp_path, *few), capture_output=True, check=True
    )
    assert b"cannot measure a_broken_one with threads=1" in b" ".join(done.stderr.split())
    (entry,) = load_dictionary(tmp_path / "d.db")
    assert (entry.engine, len(entry.batch_qps)) == ("works", 1)

    one = command(tmp_path / "models", tmp_path, *few, "--engines", "a_broken_one")
    assert subprocess.run(one, capture_output=True, check=False).returncode == 1


def test_variant_that_cannot_be_measured_costs_only_itself(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "family"
    put_family(folder)
    (folder / "broken.onnx").write_bytes(b"no model")
    few = ("--queries", "1", "--min-duration", "0", "--engines", "family")

    done = subprocess.run(
        command(tmp_path / "models", tmp_path, *few), capture_output=True, check=True
    )

    assert b"cannot measure family with threads=1,variant=broken" in b" ".join(done.stderr.split())
    said = [line for line in done.stderr.splitlines() if line.startswith(b"family, threads=1,")]
    assert len([line for line in said if b"disturbed" not in line]) == 1
    (entry,) = load_dictionary(tmp_path / "d.db")
    assert entry.configuration == Configuration(threads=1, variant="full")
    # The labels of samples 0 and 3 are wrong.
    assert (entry.accuracy, entry.accuracy_samples) == (0.6, 5)


def test_a_variant_without_its_file_is_named_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_family(tmp_path / "models" / "family")
    profile(dry_run(tmp_path / "models", tmp_path, search=True))
    err = capsys.readouterr().err
    assert "left out: variant broken of family: its file is missing" in err


def put_family(folder: Path) -> None:
    """Write an engine that returns its input, with labelled samples and a variant without file."""
    folder.mkdir(parents=True)
    graph = OnnxGraph("same", 11)
    graph.node("Identity", ["x"], "y")
    tensor = ValueInfo(shape=["n", 3])
    write_model(folder / "full.onnx", graph.model({"x": tensor}, {"y": tensor}))
    inputs = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]]
    write_samples(folder, {"x": inputs, "labels": np.array([1, 1, 2, 2, 1])})
    tables = [{"name": name, "file": f"{name}.onnx"} for name in ("full", "broken")]
    write_definition(folder, {"variants": tables})


@pytest.mark.parametrize("timer", [LOADGEN, BUILT_IN])
def test_entry_has_all_figures_names_its_timer_and_leaves_out_what_issuing_a_query_costs(
    models: Path, tmp_path: Path, timer: str
) -> None:
    task = MeasurementTask(
        models=models,
        session=IDENTITY,
        worker_class=WorkerClass("x"),
        queries=100,
        min_duration_s=0.2,
        output=tmp_path,
        timer=timer,
    )
    began = time.monotonic()
    measurement = measure(task)

    passed_s = time.monotonic() - began
    entry = measurement.entry
    assert entry.timer == timer
    assert entry.queries >= 100
    assert 0 < entry.latency_p50_s <= entry.latency_p90_s <= entry.latency_p99_s <= passed_s
    # A query of this engine takes microseconds, asking for it over a socket a hundred.
    assert entry.qps > measurement.single_stream.qps > 0
    assert any(tmp_path.glob("mlperf*")) is (timer == LOADGEN)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_profile_leaves_no_child_and_a_whole_dictionary(
    models: Path, tmp_path: Path, number: signal.Signals
) -> None:
    profile: subprocess.Popen[bytes] = subprocess.Popen(
        command(models, tmp_path, "--min-duration", "60"),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process = psutil.Process(profile.pid)
        # The measuring process and, once it has loaded, the engine host.
        wait_until(lambda: len(process.children(recursive=True)) == 2)
        children = process.children(recursive=True)
        profile.send_signal(number)
        code = profile.wait(60)
    finally:
        profile.kill()
        profile.wait()

    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    wait_until(lambda: all(has_ended(each) for each in children))
    assert len(load_dictionary(tmp_path / "d.db")) == 0


def test_search_continues_after_a_kill_with_what_it_had_measured(
    models: Path, tmp_path: Path
) -> None:
    few = ("--search", "--threads", "1,2", "--queries", "1", "--min-duration", "0")
    unlimited = command(models, tmp_path, *few, "--budget", "10")
    search: subprocess.Popen[bytes] = subprocess.Popen(unlimited, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: measured_in(tmp_path))
    finally:
        search.kill()
        search.wait()
    before = measured_in(tmp_path)
    # Time for one measurement: with more, noise may ask for one of a known configuration again.
    limited = command(models, tmp_path, *few, "--budget", "0.01")
    done = subprocess.run(limited, capture_output=True, check=True)
    after = measured_in(tmp_path)
    assert f"2 configurations of 1 engine, {len(before)} of them measured".encode() in done.stderr
    assert before <= after
    assert {entry.configuration for entry in after} == {Configuration(1), Configuration(2)}
    [digest] = {entry.digest for entry in after}
    assert len(digest) == 64
    assert all(entry.runtime.startswith("onnxruntime ") for entry in after)
    assert all(entry.repeats == 1 for entry in after - before)


def measured_in(tmp_path: Path) -> set[ProfileEntry]:
    path = tmp_path / "d.db"
    return set(load_dictionary(path)) if path.exists() else set()
