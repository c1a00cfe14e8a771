"""The rules of ``synergai load``: requests on time, against the public protocol on loopback."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

PNG = b"\x89PNG"


@pytest.fixture
def asking(gateway: Any, tmp_path: Path) -> list[str]:
    """Whom to ask; a machine with other things to do may be late."""
    models = str(tmp_path / "models")
    return ["--target", gateway.address, "--models", models, "--late-ms", "1000", "--json"]


@pytest.fixture
def options(asking: list[str]) -> list[str]:
    """A short run."""
    return [*asking, "--rate", "100", "--duration", "0.5"]


async def test_a_run_sends_what_the_trace_says_and_tells_what_became_of_it(
    options: list[str], tmp_path: Path, gateway: Any, run: Any
) -> None:
    plot = tmp_path / "plots" / "run.png"
    trace = ("--trace", "constant", "--deadline-ms", "2000", "--plot", str(plot))
    ran = await run("load", "identity", *options, *trace)
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert report["requests"] == report["met"] == 50
    assert len(gateway.requests) == 50 + 5, "and the warm-up"
    assert (report["valid"], report["violations"], report["attainment"]) == (True, 0, 1.0)
    assert report["offered"] == 100
    assert 0 < report["goodput"] <= 100
    assert 0 < report["latency_s"]["50.0"] <= report["latency_s"]["99.0"] <= report["max_s"] * 1.01
    assert sum(second["offered"] for second in report["by_second"]) == 50
    assert plot.read_bytes().startswith(PNG)


async def test_a_recorded_trace_is_replayed(
    asking: list[str], tmp_path: Path, gateway: Any, run: Any
) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("second,rate\n0,30\n1,10\n")
    ran = await run("load", "identity", *asking, "--trace", "replay", "--replay", str(rates))
    report = json.loads(ran.out)
    assert [second["offered"] for second in report["by_second"]] == [30, 10]
    assert len(gateway.requests) == 40 + 5


async def test_a_machine_that_sends_late_says_so(options: list[str], run: Any) -> None:
    ran = await run("load", "identity", *options, "--late-ms", "0.0001")
    report = json.loads(ran.out)
    assert report["valid"] is report["send_delay"]["is_valid"] is False
    assert report["send_delay"]["late"] == report["requests"]
    assert report["send_delay"]["max_s"] > 0


async def test_requests_without_an_answer_expire_at_their_deadline(
    options: list[str], run: Any
) -> None:
    ran = await run("load", "stuck", *options, "--deadline-ms", "100", "--warm-up", "0")
    report = json.loads(ran.out)
    assert report["expired"] == report["violations"] == report["requests"]
    assert report["latency_s"] == {}


async def test_the_search_reports_every_trial(options: list[str], run: Any) -> None:
    # No gateway answers within a microsecond, so that no rate is found; and that is said.
    search = ("--find-goodput", "--trials", "1", "--trace", "constant", "--duration", "0.04")
    ran = await run("load", "identity", *options, *search, "--deadline-ms", "0.001")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert report["rate"] == 0
    assert [trial["rate"] for trial in report["trials"]] == [100, 50, 25]


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--trace", "linear"], "--trace linear needs the rate at its end: --to-rate"),
        (["--trace", "replay"], "--trace replay needs the file: --replay FILE"),
        (["--find-goodput"], "--find-goodput needs the deadline"),
        (["--rate", "0.001"], "the trace has no request"),
    ],
)
async def test_what_cannot_be_run_is_one_line_and_exit_code_1(
    more: list[str], complaint: str, asking: list[str], run: Any
) -> None:
    ran = await run("load", "identity", *asking, *more)
    assert (ran.code, ran.out) == (1, "")
    assert complaint in ran.err.splitlines()[-1]


async def test_an_engine_that_fails_is_told_before_the_run(options: list[str], run: Any) -> None:
    ran = await run("load", "broken", *options)
    assert ran.code == 1
    assert "the model file is truncated" in ran.err


async def test_requests_that_fail_make_the_command_fail_after_its_report(
    options: list[str], gateway: Any, run: Any
) -> None:
    gateway.unavailable = 3
    ran = await run("load", "identity", *options, "--trace", "constant", "--warm-up", "0")
    assert ran.code == 1
    assert json.loads(ran.out)["failed"] == 3
    assert ran.err == "error: 3 of 50 requests failed; the first: the gateway is going\n"


async def test_a_search_ends_when_the_gateway_is_gone(
    options: list[str], gateway: Any, start: Any, wait: Any
) -> None:
    search = ("--find-goodput", "--deadline-ms", "5000")
    async with start("load", "identity", *options, *search) as process:
        while len(gateway.requests) < 20:  # noqa: ASYNC110 - the fake gateway has no event
            await asyncio.sleep(0.01)
        await gateway.server.stop(None)
        ran = await wait(process)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: the search ended at 100 requests/s, where ")
    assert f"cannot connect to {gateway.address}" in ran.err


async def test_a_sample_set_is_sent_in_turn(
    options: list[str], tmp_path: Path, gateway: Any, run: Any
) -> None:
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=np.array([[1.5], [2.5]], np.float32))
    await run("load", "identity", *options, "--samples", str(samples))
    sent = [request.raw_input_contents[0] for request in gateway.requests]
    assert set(sent) == {np.float32(1.5).tobytes(), np.float32(2.5).tobytes()}
