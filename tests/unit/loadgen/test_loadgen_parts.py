"""The rules of what stands between LoadGen and the gateway, without either of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synergai.errors import (
    DeadlineExceeded,
    InvalidInput,
    InvalidSettings,
    Overloaded,
    Unavailable,
)
from synergai.loadgen.accuracy_log import read_answers
from synergai.loadgen.query_counter import QueryCounter
from synergai.loadgen.sample_set import SampleSet
from synergai.loadgen.scenarios import scenario_settings
from synergai.loadgen.settings import LoadgenSettings
from synergai.loadgen.traces.settings import LoadSettings
from synergai.models.samples import Samples

FASTEST_S = 0.002


def settings(**given: Any) -> LoadgenSettings:
    return LoadgenSettings.load({"engine": "identity", **given})


# --- what LoadGen is told -------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"models": "elsewhere", "qos_ms": "50", "enforce": True}])
def test_a_runs_process_gets_its_settings_and_which_of_them_were_given(
    given: dict[str, object],
) -> None:
    packed = settings(**given)
    unpacked = LoadgenSettings.unpacked(packed.packed())
    assert unpacked == packed
    assert unpacked.model_fields_set == packed.model_fields_set


def test_loadgen_prepares_queries_enough_for_the_time() -> None:
    found = scenario_settings(settings(scenario="MultiStream", samples_per_query=4), FASTEST_S)
    assert found.multi_stream_expected_latency_ns == 1_000_000, "half of the fastest"
    assert found.multi_stream_samples_per_query == 4
    found = scenario_settings(settings(scenario="Offline"), FASTEST_S)
    assert found.offline_expected_qps == pytest.approx(2 / FASTEST_S)


def test_the_qos_is_loadgens_bound_in_server() -> None:
    found = scenario_settings(settings(scenario="Server", rate=50.0, qos_ms=30.0), FASTEST_S)
    assert (found.server_target_qps, found.server_target_latency_ns) == (50.0, 30_000_000)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"scenario": "Server"}, "--scenario Server needs its queries per second: --rate"),
        ({"rate": 5.0}, "--rate is for --scenario Server or Offline"),
        ({"scenario": "Server", "rate": 5.0, "window": 8}, "--window is for --scenario Offline"),
        ({"samples_per_query": 4}, "--samples-per-query is for --scenario MultiStream"),
        ({"enforce": True}, "--enforce needs --qos-ms"),
        ({"dataset": "coco"}, "--dataset needs --data"),
        ({"data": "here"}, "--data needs --dataset"),
        ({"mlperf_model": "resnet50"}, "--mlperf-model needs --user-conf"),
        ({"dataset": "coco", "data": "here", "samples": "x.npz"}, "--samples and --dataset"),
    ],
)
def test_options_that_do_not_fit_together_are_refused_before_anything_is_asked(
    given: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidSettings, match=complaint):
        settings(**given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"to_rate": 5.0}, "--to-rate is for --trace linear or exponential"),
        ({"replay": "rates.csv"}, "--replay is for --trace replay"),
        ({"trace": "replay", "replay": "rates.csv", "duration": 5.0}, "--duration is for --trace"),
        ({"find_goodput": True, "plot": "x.png"}, "--plot draws a run"),
    ],
)
def test_options_that_a_trace_does_not_know_are_refused(
    given: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidSettings, match=complaint):
        LoadSettings.load({"engine": "identity", **given})


def test_the_servers_rate_may_be_in_the_user_conf() -> None:
    assert settings(scenario="Server", user_conf="user.conf").rate is None


def test_what_is_no_user_conf_is_refused(tmp_path: Path) -> None:
    conf = tmp_path / "user.conf"
    conf.write_text("this is not one\n")
    with pytest.raises(InvalidInput, match=r"is no user\.conf of LoadGen"):
        scenario_settings(settings(user_conf=conf), FASTEST_S)
    with pytest.raises(InvalidInput, match="cannot be read"):
        scenario_settings(settings(user_conf=tmp_path / "nowhere"), FASTEST_S)


@pytest.mark.parametrize("model", [LoadgenSettings, LoadSettings])
def test_the_gateway_is_the_one_that_other_commands_ask(
    model: type[LoadgenSettings | LoadSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNERGAI_TARGET", "there:9000")
    assert model.load({"engine": "identity"}).target == "there:9000"
    assert model.load({"engine": "identity", "target": "here:1"}).target == "here:1"
    monkeypatch.setenv("SYNERGAI_TLS_CA", "ca.pem")
    assert model.load({"engine": "identity"}).tls_ca == Path("ca.pem")
    monkeypatch.setenv("SYNERGAI_TARGET", "nowhere")
    with pytest.raises(InvalidSettings, match="'nowhere' is not an address"):
        model.load({"engine": "identity"})


# --- our own count --------------------------------------------------------------------------


def test_violations_are_counted_by_what_became_of_the_query() -> None:
    board = QueryCounter(qos_s=1e6)
    board.issued(4)
    for error in (None, Overloaded("full"), DeadlineExceeded("late"), Unavailable("gone")):
        board.ended(0.0, error)
    counted = board.counted("samples")
    assert (counted.queries, counted.failed, counted.late) == (4, 1, 0)
    assert (counted.rejected, counted.expired, counted.violations) == (1, 1, 3)
    assert counted.first_failure == "gone"


def test_the_warm_up_is_not_counted() -> None:
    board = QueryCounter(qos_s=None)
    board.issued(1)
    board.ended(0.0, Overloaded("full"))
    board.begin()
    assert board.counted("").queries == board.counted("").failed == 0


def test_nobody_is_silent_while_nothing_is_asked() -> None:
    board = QueryCounter(qos_s=None)
    assert board.silent_s() == 0
    board.issued(2)
    board.ended(0.0, None)
    assert board.silent_s() > 0
    board.ended(0.0, None)
    assert board.silent_s() == 0


# --- accuracy -------------------------------------------------------------------------------


def log_of(path: Path, answers: dict[int, bytes]) -> Path:
    entries = [
        {"seq_id": number, "qsl_idx": index, "data": data.hex()}
        for number, (index, data) in enumerate(answers.items())
    ]
    path.write_text(json.dumps(entries))
    return path


def sample_set(labels: list[int] | None) -> SampleSet:
    inputs = [{"x": np.zeros(1, np.float32)}] * 3
    return SampleSet(Samples(inputs, None if labels is None else np.array(labels)), "here", "y")


def test_the_class_of_an_answer_is_logged_and_compared(tmp_path: Path) -> None:
    samples = sample_set([1, 0, 2])
    outputs = [[0.1, 0.9, 0.0], [0.2, 0.7, 0.1], [0.0, 0.1, 0.9]]
    answers = {i: samples.answer(i, {"y": np.array([row])}) for i, row in enumerate(outputs)}
    assert answers[0] == np.float32(1).tobytes()
    accuracy = samples.evaluate(log_of(tmp_path / "log", answers))
    assert accuracy is not None
    assert (accuracy.measure, accuracy.samples) == ("top-1", 3)
    assert accuracy.value == pytest.approx(2 / 3)


def test_a_sample_that_failed_is_wrong(tmp_path: Path) -> None:
    accuracy = sample_set([0, 0, 0]).evaluate(
        log_of(tmp_path / "log", {0: np.float32(0).tobytes(), 1: b""})
    )
    assert accuracy is not None
    assert accuracy.value == 0.5


def test_without_labels_the_output_itself_is_logged(tmp_path: Path) -> None:
    samples = sample_set(None)
    output = np.array([1.5, 2.5], np.float32)
    assert samples.answer(0, {"y": output}) == output.tobytes()
    assert samples.evaluate(tmp_path / "no log is read") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[\n]\n", "has no answers"),
        ("[{}]", "is no accuracy log"),
        ("{", "is no accuracy log"),
        ('[{"qsl_idx": 7, "data": "00"}]', "is of other samples: there are 3 here"),
    ],
)
def test_what_is_no_accuracy_log_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=complaint):
        read_answers(path, 3)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_answers(tmp_path / "nowhere", 3)
