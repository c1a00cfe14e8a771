"""LoadGen settings, query counter and accuracy logs, without LoadGen runs or a gateway."""

from pathlib import Path

import numpy as np
import pytest

from profiler.loadgen.async_system import QueryCounter
from profiler.loadgen.library import SampleSet, read_accuracy_log
from profiler.loadgen.loadgen_settings import LoadgenSettings, LoadSettings
from profiler.loadgen.mlperf import scenario_settings
from synergai.errors import DeadlineExceeded, InvalidInput, InvalidSettings, Overloaded, Unavailable
from synergai.models.samples import Samples
from synergai.runtime.settings import decode_config, encode_config
from tests.tiny_datasets import logged

FASTEST_S = 0.002


def settings(**given: object) -> LoadgenSettings:
    return LoadgenSettings.load({"engine": "identity", **given})


# --- LoadGen settings -------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"models": "elsewhere", "qos_ms": "50", "enforce": True}])
def test_settings_survive_json_with_the_set_of_given_fields(
    given: dict[str, object],
) -> None:
    given_settings = settings(**given)
    copied = decode_config(encode_config(given_settings), LoadgenSettings)
    assert copied == given_settings
    assert copied.given == {"engine", *given}


def test_loadgen_generates_enough_queries_for_the_duration() -> None:
    found = scenario_settings(settings(scenario="MultiStream"), FASTEST_S)
    assert found.multi_stream_expected_latency_ns == 1_000_000, "half of the fastest"
    assert found.multi_stream_samples_per_query == 8
    found = scenario_settings(settings(scenario="Offline"), FASTEST_S)
    assert found.offline_expected_qps == pytest.approx(2 / FASTEST_S)


def test_qos_is_loadgens_latency_bound_in_server() -> None:
    found = scenario_settings(settings(scenario="Server", rate=50.0, qos_ms=30.0), FASTEST_S)
    assert (found.server_target_qps, found.server_target_latency_ns) == (50.0, 30_000_000)


def test_user_conf_takes_precedence_over_options_and_mlperfs_own_settings(tmp_path: Path) -> None:
    conf = tmp_path / "user.conf"
    conf.write_text("*.Server.target_qps = 7\nidentity.Server.target_latency = 33\n")
    given = settings(scenario="Server", user_conf=conf, qos_ms=30.0)
    found = scenario_settings(given, FASTEST_S)
    assert (found.server_target_qps, found.server_target_latency_ns) == (7.0, 33_000_000)
    assert found.min_duration_ms == 600_000  # of mlperf.conf
    with pytest.raises(InvalidInput, match="LoadGen cannot read "):
        scenario_settings(settings(user_conf=tmp_path / "missing"), FASTEST_S)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"scenario": "Server"}, "--scenario Server requires --rate"),
        ({"rate": 5.0}, "--rate is for --scenario Server or Offline"),
        ({"enforce": True}, "--enforce requires --qos-ms"),
        ({"dataset": "coco"}, "--dataset requires --data"),
        ({"data": "here"}, "--data requires --dataset"),
        ({"dataset": "coco", "data": "here", "samples": "x.npz"}, "--samples and --dataset"),
    ],
)
def test_conflicting_options_are_rejected(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidSettings, match=complaint):
        settings(**given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"to_rate": 5.0}, "--to-rate is for --trace linear or exponential"),
        ({"replay": "rates.csv"}, "--replay is for --trace replay"),
        ({"trace": "replay", "replay": "rates.csv", "duration": 5.0}, "--duration is for --trace"),
    ],
)
def test_options_that_do_not_apply_to_a_trace_are_rejected(
    given: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidSettings, match=complaint):
        LoadSettings.load({"engine": "identity", **given})


@pytest.mark.parametrize("model", [LoadgenSettings, LoadSettings])
def test_target_defaults_to_that_of_other_commands(
    model: type[LoadgenSettings | LoadSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNERGAI_TARGET", "there:9000")
    assert model.load({"engine": "identity"}).target == "there:9000"
    assert model.load({"engine": "identity", "target": "here:1"}).target == "here:1"
    monkeypatch.setenv("SYNERGAI_TLS_CA", "ca.pem")
    assert model.load({"engine": "identity"}).connection()["tls_ca"] == Path("ca.pem")
    monkeypatch.setenv("SYNERGAI_TARGET", "nowhere")
    with pytest.raises(InvalidSettings, match="'nowhere' is not an address"):
        model.load({"engine": "identity"})


# --- query counter --------------------------------------------------------------------------


def test_violations_are_counted_by_outcome() -> None:
    counter = QueryCounter(qos_s=1e6)
    counter.record_issued(4)
    for error in (None, Overloaded("full"), DeadlineExceeded("late"), Unavailable("gone")):
        counter.record_end(0.0, error)
    counts = counter.counts("samples")
    assert (counts.queries, counts.failed, counts.late) == (4, 1, 0)
    assert (counts.rejected, counts.expired, counts.violations) == (1, 1, 3)
    assert counts.first_failure == "gone"


def test_warm_up_is_not_counted() -> None:
    counter = QueryCounter(qos_s=None)
    counter.record_issued(1)
    counter.record_end(0.0, Overloaded("full"))
    counter.reset()
    assert counter.counts("").queries == counter.counts("").failed == 0


def test_counter_is_not_stalled_without_queries_in_flight() -> None:
    counter = QueryCounter(qos_s=None)
    assert counter.stalled_s() == 0
    counter.record_issued(2)
    counter.record_end(0.0, None)
    assert counter.stalled_s() > 0
    counter.record_end(0.0, None)
    assert counter.stalled_s() == 0


# --- accuracy -------------------------------------------------------------------------------


def sample_set(labels: list[int] | None) -> SampleSet:
    inputs = [{"x": np.zeros(1, np.float32)}] * 3
    return SampleSet(Samples(inputs, None if labels is None else np.array(labels)), "here", "y")


def test_class_is_logged_and_compared_with_the_label(tmp_path: Path) -> None:
    samples = sample_set([1, 0, 2])
    outputs = [[0.1, 0.9, 0.0], [0.2, 0.7, 0.1], [0.0, 0.1, 0.9]]
    responses = {
        i: samples.encode_response(i, {"y": np.array([row])}) for i, row in enumerate(outputs)
    }
    assert responses[0] == np.float32(1).tobytes()
    accuracy = samples.evaluate(logged(tmp_path, responses))
    assert accuracy is not None
    assert (accuracy.measure, accuracy.samples) == ("top-1", 3)
    assert accuracy.value == pytest.approx(2 / 3)


def test_failed_sample_counts_as_wrong(tmp_path: Path) -> None:
    accuracy = sample_set([0, 0, 0]).evaluate(
        logged(tmp_path, {0: np.float32(0).tobytes(), 1: b""})
    )
    assert accuracy is not None
    assert accuracy.value == 0.5


def test_output_of_unlabelled_sample_is_logged_unchanged(tmp_path: Path) -> None:
    samples = sample_set(None)
    output = np.array([1.5, 2.5], np.float32)
    assert samples.encode_response(0, {"y": output}) == output.tobytes()
    assert samples.evaluate(tmp_path / "no log is read") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[\n]\n", "has no responses"),
        ("[{}]", "is not an accuracy log"),
        ("{", "is not an accuracy log"),
        ('[{"qsl_idx": 7, "data": "00"}]', "is of another sample set: this one has 3 samples"),
    ],
)
def test_malformed_accuracy_log_is_rejected(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=complaint):
        read_accuracy_log(path, 3)
    with pytest.raises(InvalidInput, match="cannot read"):
        read_accuracy_log(tmp_path / "nowhere", 3)
