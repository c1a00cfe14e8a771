"""``synergai load`` against a fake gateway on loopback."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.integration.client.conftest import FakeGateway, RunCommand, StartCommand, WaitForExit
from tests.waiting import until

PNG = b"\x89PNG"


@pytest.fixture
def base_options(gateway: FakeGateway, tmp_path: Path) -> list[str]:
    """Options common to all runs; tolerates late sending on a busy machine."""
    models = str(tmp_path / "models")
    return ["--target", gateway.address, "--models", models, "--late-ms", "30000", "--json"]


@pytest.fixture
def options(base_options: list[str]) -> list[str]:
    return [*base_options, "--rate", "100", "--duration", "0.5"]


async def test_run_sends_the_trace_and_reports_outcomes(
    options: list[str], gateway: FakeGateway, run: RunCommand
) -> None:
    trace = ("--trace", "constant", "--deadline-ms", "30000")
    result = await run("load", "identity", *options, *trace)
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["requests"] == report["met"] == 50
    assert len(gateway.requests) == 50 + 5, "and the warm-up"
    assert (report["valid"], report["violations"], report["attainment"]) == (True, 0, 1.0)
    assert report["offered"] == 100
    assert 0 < report["goodput"] <= 100
    assert 0 < report["latency_s"]["50.0"] <= report["latency_s"]["99.0"] <= report["max_s"] * 1.01
    assert sum(second["offered"] for second in report["by_second"]) == 50


async def test_requests_without_an_answer_expire_at_their_deadline(
    options: list[str], run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNERGAI_LOAD_WARM_UP", "0")
    result = await run("load", "stuck", *options, "--deadline-ms", "100")
    report = json.loads(result.out)
    assert report["expired"] == report["violations"] == report["requests"]
    assert report["latency_s"] == {}


async def test_the_search_reports_every_trial(options: list[str], run: RunCommand) -> None:
    # No gateway answers within a microsecond, so that no rate is found; and that is said.
    search = ("--find-goodput", "--trace", "constant", "--duration", "0.04")
    more = ("--deadline-ms", "0.001")
    result = await run("load", "identity", *options, *search, *more)
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["rate"] == 0
    assert [trial["rate"] for trial in report["trials"]] == [100, 100, 50, 50, 25, 25]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--trace", "linear"], "--trace linear requires --to-rate, its rate at the end"),
        (["--trace", "replay"], "--trace replay requires --replay FILE"),
        (["--find-goodput"], "--find-goodput requires --deadline-ms"),
        (["--rate", "0.001"], "the trace has no request"),
    ],
)
async def test_invalid_run_prints_one_line_and_exits_1(
    more: list[str], message: str, base_options: list[str], run: RunCommand
) -> None:
    result = await run("load", "identity", *base_options, *more)
    assert (result.code, result.out) == (1, "")
    assert message in result.err.splitlines()[-1]


async def test_broken_engine_fails_before_the_run(options: list[str], run: RunCommand) -> None:
    result = await run("load", "broken", *options)
    assert result.code == 1
    assert "the model file is truncated" in result.err


async def test_requests_that_fail_make_the_command_fail_after_its_report(
    options: list[str], gateway: FakeGateway, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNERGAI_LOAD_WARM_UP", "0")
    gateway.unavailable = 3
    result = await run("load", "identity", *options, "--trace", "constant")
    assert result.code == 1
    assert json.loads(result.out)["failed"] == 3
    assert result.err == "error: 3 of 50 requests failed; the first: the gateway is stopping\n"


async def test_search_stops_when_the_gateway_is_unreachable(
    options: list[str], gateway: FakeGateway, start: StartCommand, wait: WaitForExit
) -> None:
    # Long enough for the first trial not to end before the gateway does.
    search = ("--find-goodput", "--deadline-ms", "5000", "--duration", "2")
    async with start("load", "identity", *options, *search) as process:
        await until(lambda: len(gateway.requests) >= 20, 0.01)
        await gateway.server.stop(0.0)
        result = await wait(process)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: the search was aborted at 100 requests/s: ")
    assert f"cannot connect to {gateway.address}" in result.err


async def test_samples_are_sent_in_turn(
    options: list[str], tmp_path: Path, gateway: FakeGateway, run: RunCommand
) -> None:
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=np.array([[1.5], [2.5]], np.float32))
    await run("load", "identity", *options, "--samples", str(samples))
    sent = [request.raw_input_contents[0] for request in gateway.requests]
    assert set(sent) == {np.float32(1.5).tobytes(), np.float32(2.5).tobytes()}
