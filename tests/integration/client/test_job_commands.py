"""Commands for jobs and workers."""

import json
import signal

from tests.integration.client.conftest import FakeGateway, RunCommand, StartCommand, WaitForExit
from tests.waiting import until


async def test_submit_prints_nothing_but_the_jobs_id_to_stdout(
    gateway: FakeGateway, ask: RunCommand
) -> None:
    result = await ask(
        *("submit", "identity", "--queries", "5", "--qos", "2", "--priority", "3"),
        *("--tenant", "roof", "--key", "k"),
    )
    assert (result.code, result.out) == (0, "job-k\n")
    assert result.err == "watch it with 'synergai jobs watch job-k'\n"
    spec = gateway.jobs["job-k"].spec
    assert (spec.queries, spec.qos_s, spec.priority, spec.tenant) == (5, 2.0, 3, "roof")


async def test_rejected_submission_exits_1(ask: RunCommand) -> None:
    result = await ask(
        *("submit", "identity", "--queries", "5", "--qos", "0.125", "--key", "k"),
    )
    assert (result.code, result.out) == (1, "job-k\n")
    assert result.err == "error: job job-k rejected: no worker would be done in time\n"


async def test_submit_and_watch_shows_the_finished_job(ask: RunCommand) -> None:
    result = await ask("submit", "identity", "--queries", "10", "--watch")
    assert result.code == 0
    assert "succeeded" in result.out
    assert "10 queries from 0 on nano" in result.out
    assert "90.00%" in result.out


async def test_watching_a_failed_job_exits_1(ask: RunCommand) -> None:
    result = await ask(
        *("submit", "broken", "--queries", "1", "--key", "k", "--watch", "--json"),
    )
    assert result.code == 1
    assert json.loads(result.out)["state"] == "failed"
    assert result.err.endswith("error: job job-k failed: the model file is truncated\n")


async def test_interrupting_a_watch_does_not_cancel_the_job(
    gateway: FakeGateway, start: StartCommand, wait: WaitForExit
) -> None:
    async with start(
        *("submit", "stuck", "--queries", "1", "--key", "k", "--watch"),
        *("--target", gateway.address),
    ) as process:
        await until(lambda: gateway.stalled, 0.01)
        process.send_signal(signal.SIGINT)
        result = await wait(process)
    assert result.code == 130
    assert "the job continues; cancel it with 'synergai jobs cancel job-k'" in result.err


async def test_jobs_are_listed_as_a_table_and_as_json(ask: RunCommand) -> None:
    await ask("submit", "identity", "--queries", "1000", "--key", "k")
    table = await ask("jobs", "list")
    assert "job-k" in table.out
    assert "queued" in table.out
    [job] = json.loads((await ask("jobs", "list", "--json")).out)
    assert job["spec"]["queries"] == 1000
    assert job["spec"]["qos"] is None
    none = await ask("jobs", "list", "--state", "failed", "--json")
    assert json.loads(none.out) == []


async def test_unknown_job_prints_one_line(ask: RunCommand) -> None:
    result = await ask("jobs", "show", "nothing")
    assert (result.code, result.out, result.err) == (1, "", "error: there is no job 'nothing'\n")


async def test_workers_are_shown_as_a_table_and_as_json(ask: RunCommand) -> None:
    table = await ask("workers")
    assert table.code == 0
    for text in (
        "nano",
        "jetson-nano",
        "identity",
        "threads=2",
        "not profiled",
        "the model file is truncated",
    ):
        assert text in table.out
    [worker] = json.loads((await ask("workers", "--json")).out)
    assert worker["state"] == "idle"
    assert worker["sessions"][0]["configuration"]["threads"] == 2


async def test_unreachable_gateway_prints_one_line(run: RunCommand, unreachable: str) -> None:
    result = await run("workers", "--target", unreachable)
    assert (result.code, result.out) == (1, "")
    reason = f"cannot connect to {unreachable} (connection refused)"
    assert result.err == f"error: {reason}; is it running?\n"


async def test_cancel_tells_that_the_job_had_ended(ask: RunCommand) -> None:
    await ask("submit", "identity", "--queries", "4", "--key", "k")
    assert "ended" not in (await ask("jobs", "cancel", "job-k")).err
    again = await ask("jobs", "cancel", "job-k")
    assert again.code == 0
    assert again.err == "the job had already ended (cancelled)\n"
