"""``synergai loadgen``, with the real LoadGen, against a fake gateway on loopback."""

import asyncio
import json
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.integration.client.conftest import FakeGateway, RunCommand, StartCommand, WaitForExit
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    find_spec("mlperf_loadgen") is None, reason="LoadGen has no wheels for Python 3.14"
)


@pytest.fixture
def options(gateway: FakeGateway, tmp_path: Path) -> list[str]:
    return [
        *("--target", gateway.address, "--queries", "64", "--min-duration", "0.2"),
        *("--models", str(tmp_path / "models"), "--output", str(tmp_path / "logs")),
    ]


async def test_run_reports_figures_of_loadgen_and_synergai(
    options: list[str], tmp_path: Path, gateway: FakeGateway, run: RunCommand
) -> None:
    result = await run("loadgen", "identity", *options, "--qos-ms", "5000", "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["loadgen"]["result_validity"] == "VALID"
    assert report["loadgen"]["result_90.00_percentile_latency_ns"] > 0
    assert report["queries"] >= 64
    assert len(gateway.requests) == report["queries"] + 5, "and the warm-up"
    assert (report["violations"], report["failed"], report["late"]) == (0, 0, 0)
    assert 0 < report["goodput"] <= report["loadgen"]["result_qps_with_loadgen_overhead"] * 1.1
    written = {path.name for path in (tmp_path / "logs").iterdir()}
    assert {"mlperf_log_summary.txt", "mlperf_log_detail.txt"} <= written


@pytest.mark.parametrize(
    ("scenario", "engine", "more"),
    [
        ("MultiStream", "identity/2", []),
        ("Server", "identity", ["--rate", "300"]),
        ("Offline", "identity/2", []),
    ],
)
async def test_every_scenario_runs_to_its_end(
    scenario: str,
    engine: str,
    more: list[str],
    options: list[str],
    gateway: FakeGateway,
    run: RunCommand,
) -> None:
    result = await run("loadgen", engine, *options, "--scenario", scenario, *more, "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["scenario"] == scenario
    assert (report["failed"], report["late"]) == (0, 0)
    assert len(gateway.requests) == report["queries"] + 5, "and the warm-up"
    asked = {(each.model_name, each.model_version) for each in gateway.requests}
    assert asked == {("identity", engine.removeprefix("identity").removeprefix("/"))}
    rates = {"result_samples_per_second", "result_completed_samples_per_sec"}
    assert bool(rates & report["loadgen"].keys()) is (scenario != "MultiStream")


async def test_summary_of_loadgen_is_printed_without_its_parameters(
    options: list[str], run: RunCommand
) -> None:
    result = await run("loadgen", "identity", *options)
    assert result.code == 0, result.err
    assert "Result is : VALID" in result.out
    assert "99.00 percentile latency (ns)" in result.out
    assert "Test Parameters Used" not in result.out


@pytest.mark.parametrize("scenario", ["SingleStream", "Offline"])
async def test_accuracy_mode_sends_every_sample_once_and_judges_the_answers(
    scenario: str, options: list[str], tmp_path: Path, run: RunCommand
) -> None:
    samples = tmp_path / "samples.npz"
    # The engine gives back what it gets, and so "finds" the largest number's place.
    x = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]], np.float32)
    np.savez(samples, x=x, labels=np.array([0, 1, 2, 0]))
    accuracy = ("--mode", "accuracy", "--scenario", scenario, "--samples", str(samples))
    result = await run("loadgen", "identity", *options, *accuracy, "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert (report["measure"], report["accuracy"], report["evaluated"]) == ("top-1", 0.75, 4)
    assert report["queries"] == 4
    assert report["loadgen"] is None, "it measures no time then"
    logged = json.loads((tmp_path / "logs" / "mlperf_log_accuracy.json").read_text())
    assert {entry["qsl_idx"]: entry["data"] for entry in logged} == {
        index: np.float32(place).tobytes().hex().upper() for index, place in enumerate([0, 1, 2, 2])
    }


async def test_rejected_queries_are_counted_and_do_not_hang_the_run(
    options: list[str], tmp_path: Path, run: RunCommand
) -> None:
    # The fake gateway refuses negative numbers; a deadline or a full queue look the same.
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=np.array([[-1.0]], np.float32))
    result = await run("loadgen", "identity", *options, "--samples", str(samples), "--json")
    assert result.code == 0, "to refuse is what a gateway should do that has too much to do"
    report = json.loads(result.out)
    assert report["rejected"] == report["violations"] == report["queries"] >= 64
    assert (report["failed"], report["first_failure"]) == (0, "")


async def test_queries_that_fail_make_the_command_fail_after_its_report(
    options: list[str], tmp_path: Path, run: RunCommand
) -> None:
    # The warm-up sends the first sample only; the fake gateway fails of what is no number.
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=np.array([[1.0], [np.nan]], np.float32))
    more = ("--scenario", "Server", "--rate", "300", "--samples", str(samples), "--json")
    result = await run("loadgen", "identity", *options, *more)
    assert result.code == 1
    report = json.loads(result.out)
    assert 0 < report["failed"] == report["violations"] < report["queries"]
    assert result.err.splitlines()[-1] == (
        f"error: {report['failed']:,} of {report['queries']:,} requests failed; "
        "the first: NaN is not supported"
    )


async def test_enforced_qos_is_sent_to_the_gateway(
    options: list[str], gateway: FakeGateway, run: RunCommand
) -> None:
    await run("loadgen", "identity", *options, "--qos-ms", "250000", "--enforce")
    assert gateway.infer_within
    # gRPC rounds up to three digits.
    assert all(190 < (within or 0.0) <= 251 for within in gateway.infer_within), "what is left"


@pytest.mark.parametrize(
    ("engine", "more", "message"),
    [
        ("nothing", [], "no worker serves engine 'nothing'"),
        ("broken", [], "the model file is truncated"),
        ("stuck", [], "no response for 0.3 s"),
        ("identity", ["--samples", "/nowhere.npz"], "is not an .npz archive"),
        ("identity", ["--output", "/proc/nowhere"], "cannot create /proc/nowhere"),
    ],
)
async def test_invalid_run_prints_one_line_and_exits_1(
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    more: list[str],
    message: str,
    options: list[str],
    run: RunCommand,
) -> None:
    monkeypatch.setenv("SYNERGAI_LOADGEN_QUERY_TIMEOUT", "0.3")
    result = await run("loadgen", engine, *options, *more)
    assert (result.code, result.out) == (1, "")
    assert message in result.err.splitlines()[-1]


async def test_lost_gateway_ends_the_run_with_a_message(
    options: list[str], gateway: FakeGateway, start: StartCommand, wait: WaitForExit
) -> None:
    async with start("loadgen", "identity", *options, "--min-duration", "60") as process:
        await until(lambda: len(gateway.requests) >= 50, 0.01)
        await gateway.server.stop(0.0)
        result = await wait(process)
    assert result.code == 1
    last = result.err.splitlines()[-1]
    assert gateway.address in last
    # A query that is under way finds its connection lost, and the next one finds no server.
    assert re.search(r"(was lost|connection refused.*) \(after [0-9,]+ queries\)$", last)


async def test_interruption_ends_the_run(
    options: list[str], gateway: FakeGateway, start: StartCommand, wait: WaitForExit
) -> None:
    async with start("loadgen", "identity", *options, "--min-duration", "60") as process:
        await until(lambda: len(gateway.requests) >= 50, 0.01)
        process.send_signal(signal.SIGINT)
        result = await wait(process)
    assert result.code == 130
    sent = len(gateway.requests)
    await asyncio.sleep(0.1)
    assert len(gateway.requests) == sent, "no process sends requests any more"
