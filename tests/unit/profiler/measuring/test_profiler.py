"""LoadGen logs, messages, batch sizes and settings of the profiler."""

import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from profiler.measuring.cli import NOT_INSTALLED, choose_timer, used_by
from profiler.measuring.host_client import HostClient
from profiler.measuring.measuring_process import (
    MeasurementPlan,
    batch_sizes,
    measure_accuracy,
    measure_batches,
    measure_ranges,
)
from profiler.measuring.messages import DECODER, Measurement, MeasurementFailed, Message
from profiler.measuring.profiler_settings import ProfilerSettings
from profiler.measuring.single_stream import SingleStreamResult, read_result, time_queries
from profiler.report_pipe import send_report
from synergai.domain import Outcome
from synergai.errors import InternalError, InvalidSettings
from synergai.profiles.dictionary import BUILT_IN, LOADGEN
from synergai.runtime.paths import default_dictionary
from tests.cores import new_entry
from worker_agent.ipc import RunEnded, Tally

LOG = """\
some other line
:::MLLOG {"key": "result_validity", "value": "VALID", "time_ms": 1.0}
:::MLLOG {"key": "result_query_count", "value": 239, "time_ms": 1.0}
:::MLLOG {"key": "result_qps_without_loadgen_overhead", "value": 475.71, "time_ms": 1.0}
:::MLLOG {"key": "result_50.00_percentile_latency_ns", "value": 2095350, "time_ms": 1.0}
:::MLLOG {"key": "result_90.00_percentile_latency_ns", "value": 2120894, "time_ms": 1.0}
:::MLLOG {"key": "result_99.00_percentile_latency_ns", "value": 2225957, "time_ms": 1.0}
"""


@pytest.mark.parametrize(
    "message",
    [
        MeasurementFailed("engine 'e' has\nno model"),
        Measurement(
            entry=new_entry("e", "x86", 7 / 0.9, batch_qps=(11.5, 19.0)),
            single_stream=SingleStreamResult(
                validity="",
                queries=2,
                qps=3.5,
                latency_p50_s=0.25,
                latency_p90_s=0.5,
                latency_p99_s=0.5,
            ),
            logs="logs",
            background=0.01,
        ),
    ],
)
def test_message_round_trips_through_one_line(message: Message) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as lines:
        send_report(writing, message)
        os.close(writing)
        assert [DECODER.decode(line) for line in lines] == [message]


def written(folder: Path, log: str) -> Path:
    path = folder / "mlperf_log_detail.txt"
    path.write_text(log)
    return path


def test_detail_log_gives_loadgens_figures_in_seconds(tmp_path: Path) -> None:
    result = read_result(written(tmp_path, LOG))

    assert (result.validity, result.queries, result.qps) == ("VALID", 239, 475.71)
    assert result.latency_p50_s == pytest.approx(2.095350e-3)
    assert result.latency_p90_s == pytest.approx(2.120894e-3)
    assert result.latency_p99_s == pytest.approx(2.225957e-3)


@pytest.mark.parametrize("text", ["", LOG[:200], LOG.replace("2225957", "x"), None])
def test_incomplete_log_is_an_internal_fault(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "mlperf_log_detail.txt"
    if text is not None:
        path.write_text(text)

    with pytest.raises(InternalError, match="missing or incomplete"):
        read_result(path)


class Clock:
    """Fake clock in nanoseconds, which queries advance."""

    def __init__(self, latencies_ns: Iterable[int]) -> None:
        self.now = 1_000
        self.samples: list[int] = []
        self._latencies_ns = iter(latencies_ns)

    def issue(self, sample: int) -> None:
        self.samples.append(sample)
        self.now += next(self._latencies_ns)


def test_built_in_timer_computes_figures_as_loadgen_does() -> None:
    in_order = range(1_000_000, 101_000_000, 1_000_000)
    clock = Clock(reversed(in_order))

    result = time_queries(
        clock.issue,
        samples=7,
        queries=100,
        min_duration_s=0.0,
        clock=lambda: clock.now,
    )

    assert (result.validity, result.queries) == ("", 100)
    assert result.qps == pytest.approx(1e9 * 100 / sum(in_order))
    # LoadGen takes the latency at the index that is the share of their number, rounded down.
    assert result.latency_p50_s == in_order[50] / 1e9
    assert result.latency_p90_s == in_order[90] / 1e9
    assert result.latency_p99_s == in_order[99] / 1e9
    assert set(clock.samples) == set(range(7))


def test_built_in_timer_ends_after_minimum_queries_and_duration() -> None:
    def queries_of(clock: Clock, queries: int, min_duration_s: float) -> int:
        return time_queries(
            clock.issue,
            samples=3,
            queries=queries,
            min_duration_s=min_duration_s,
            clock=lambda: clock.now,
        ).queries

    assert queries_of(Clock([10**9] * 5), 5, 1.0) == 5
    assert queries_of(Clock([10**9] * 5), 1, 3.5) == 4


def test_profile_says_which_commands_use_its_dictionary() -> None:
    assert "without --state and --dictionary" in used_by(default_dictionary())
    assert "'synergai serve --dictionary own/d.db'" in used_by(Path("own/d.db"))


@pytest.mark.parametrize(("installed", "timer"), [(True, LOADGEN), (False, BUILT_IN)])
def test_built_in_timer_takes_the_place_of_a_missing_loadgen(
    installed: bool,
    timer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "profiler.measuring.cli.find_spec", lambda _: object() if installed else None
    )

    assert choose_timer() == timer
    said = capsys.readouterr().err
    assert said == ("" if installed else NOT_INSTALLED + "\n")


class SteadyHost:
    """Fake host that runs ranges at a constant pace on its own clock."""

    def __init__(self, per_query_s: float) -> None:
        self.now = 100.0
        self.ranges: list[tuple[int, int]] = []
        self._per_query_s = per_query_s

    def run_samples(self, first: int, count: int = 1, batch: int = 1) -> None:
        assert count % batch == 0
        self.ranges.append((first, count))
        self.now += count * self._per_query_s


class BatchingHost(SteadyHost):
    """Fake host whose time per query in a batch is given by the batch's size."""

    def __init__(self, seconds: dict[int, float]) -> None:
        super().__init__(0.0)
        self.sizes: list[int] = []
        self._seconds = seconds

    def run_samples(self, first: int, count: int = 1, batch: int = 1) -> None:
        super().run_samples(first, count, batch)
        self.now += count * self._seconds[batch]
        if batch not in self.sizes:
            self.sizes.append(batch)


@pytest.mark.parametrize(
    ("seconds", "measured"),
    [
        ({2: 0.008, 4: 0.005, 8: 0.004, 16: 0.003}, [2, 4, 8, 16]),
        ({2: 0.008, 4: 0.0085, 8: 0.004, 16: 0.004}, [2, 4, 8, 16]),
        ({2: 0.008, 4: 0.005, 8: 0.006}, [2, 4, 8]),
        ({2: 0.02}, [2]),
    ],
)
def test_batches_are_measured_until_the_rate_falls(
    seconds: dict[int, float], measured: list[int]
) -> None:
    host = BatchingHost(seconds)
    plan = MeasurementPlan(
        queries=10, min_duration_s=4.0, per_query_s=0.01, fastest_s=0.01, max_batch=16
    )

    rates = measure_batches(cast("HostClient", host), plan, 100.0, lambda: host.now)

    assert host.sizes == measured
    assert rates == pytest.approx([1 / seconds[size] for size in measured])


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("per_query_s", [5e-6, 0.01, 0.7])
def test_qps_is_measured_on_successive_ranges_as_in_jobs(per_query_s: float, batch: int) -> None:
    host = SteadyHost(per_query_s)
    # The latency of a query issued alone differs much from its share of a range.
    plan = MeasurementPlan(
        queries=10, min_duration_s=4.0, per_query_s=per_query_s + 1e-4, fastest_s=1e-4
    )

    queries, seconds, error = measure_ranges(
        cast("HostClient", host), plan, batch, clock=lambda: host.now
    )

    assert queries / seconds == pytest.approx(1 / per_query_s)
    assert error == pytest.approx(0.0, abs=1e-6)
    assert seconds >= plan.service_s == 2.0
    assert [first for first, _ in host.ranges] == [
        sum(count for _, count in host.ranges[:index]) for index in range(len(host.ranges))
    ]
    if per_query_s < 0.1:
        # From the second on, ranges are long enough to make the socket's overhead negligible.
        assert all(count * per_query_s > 0.2 for _, count in host.ranges[1:])


class LabelledHost:
    """Fake host whose sample 0, 3, 6 and so on is answered wrongly; some have labels."""

    def __init__(self, samples: int, labelled: int) -> None:
        self.ready = SimpleNamespace(samples=samples)
        self.labelled = labelled
        self.asked: list[int] = []

    def run_samples(self, first: int, count: int = 1, batch: int = 1) -> RunEnded:
        assert batch == 1
        asked = range(first, first + count)
        self.asked += asked
        labelled = [index for index in asked if index < self.labelled]
        right = sum(index % 3 != 0 for index in labelled)
        return RunEnded(1, Outcome.COMPLETED, Tally(count, len(labelled), right))


def accuracy_of(
    host: LabelledHost, plan: MeasurementPlan, per_query_s: float = 1e-3
) -> tuple[int, int]:
    return measure_accuracy(cast("HostClient", host), plan, per_query_s)


def test_accuracy_is_measured_on_each_labelled_sample_once() -> None:
    host = LabelledHost(samples=250, labelled=250)
    plan = MeasurementPlan.probe(cast("HostClient", host), 10, 1.0, 1)
    assert plan.labelled == 250
    host.asked.clear()
    assert accuracy_of(host, plan) == (250, 166)
    assert host.asked == list(range(250))


def test_accuracy_of_a_slow_engine_is_measured_on_samples_spread_evenly() -> None:
    host = LabelledHost(samples=1000, labelled=1000)
    plan = MeasurementPlan(10, 1.0, per_query_s=3.0, fastest_s=3.0, labelled=1000)
    labelled, correct = accuracy_of(host, plan, per_query_s=3.0)
    assert (labelled, host.asked) == (20, list(range(0, 1000, 50)))
    assert correct == sum(index % 3 != 0 for index in host.asked)


@pytest.mark.parametrize(("labelled", "accuracy"), [(0, True), (250, False)])
def test_accuracy_is_not_measured_without_labels_or_if_it_is_known(
    labelled: int, *, accuracy: bool
) -> None:
    host = LabelledHost(samples=250, labelled=labelled)
    plan = MeasurementPlan.probe(cast("HostClient", host), 10, 1.0, 1, accuracy=accuracy)
    host.asked.clear()
    assert (plan.labelled, accuracy_of(host, plan), host.asked) == (0, (0, 0), [])


def test_batch_sizes_are_powers_of_two_up_to_the_largest() -> None:
    assert batch_sizes(1) == []
    assert batch_sizes(8) == [2, 4, 8]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threads", "-1"),
        ("threads", ""),
        ("queries", "0"),
        ("min_duration", "-1"),
        ("min_duration", "nan"),
        ("worker_class", "a/b"),
        ("power", "nope"),
        ("objective", "nope"),
    ],
)
def test_setting_out_of_range_is_rejected(option: str, value: str) -> None:
    with pytest.raises(InvalidSettings, match=f"--{option.replace('_', '-')}"):
        ProfilerSettings.load({option: value})


def test_invalid_log_says_which_rule_was_not_met_and_what_to_do(tmp_path: Path) -> None:
    early = (
        ':::MLLOG {"key": "early_stopping_met", "value": false}\n'
        ':::MLLOG {"key": "early_stopping_result", "value": " * Only processed 11 queries.  '
        '* Need to process at least 64 queries for early stopping."}\n'
    )
    short = ':::MLLOG {"key": "result_min_duration_met", "value": false}\n'
    invalid = LOG.replace('"VALID"', '"INVALID"')

    assert read_result(written(tmp_path, LOG)).invalid_because == ""
    assert read_result(written(tmp_path, invalid + early)).invalid_because == (
        "there were 239 queries, and LoadGen's early stopping needs 64: "
        "raise --queries or --min-duration"
    )
    assert read_result(written(tmp_path, invalid + short)).invalid_because == (
        "LoadGen had no queries left before the minimum duration: measure it again"
    )
    assert read_result(written(tmp_path, invalid)).invalid_because == "its log has the reason"
