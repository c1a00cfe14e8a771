"""The rules of the commands for jobs and workers, run as a user runs them."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

from synergai.testing import free_port


async def test_submit_prints_the_jobs_id_and_nothing_else(gateway: Any, run: Any) -> None:
    ran = await run(
        *("submit", "identity", "--queries", "5", "--qos", "2", "--priority", "3"),
        *("--tenant", "roof", "--key", "k", "--target", gateway.address),
    )
    assert (ran.code, ran.out, ran.err) == (0, "job-k\n", "")
    spec = gateway.jobs["job-k"].spec
    assert (spec.queries, spec.qos_s, spec.priority, spec.tenant) == (5, 2.0, 3, "roof")


async def test_submitting_a_job_that_is_rejected_at_once_is_exit_code_1(
    gateway: Any, run: Any
) -> None:
    ran = await run(
        *("submit", "identity", "--queries", "5", "--qos", "0.125", "--key", "k"),
        *("--target", gateway.address),
    )
    assert (ran.code, ran.out) == (1, "job-k\n")
    assert ran.err == "error: job job-k rejected: no worker would be done in time\n"


async def test_submit_and_watch_shows_the_finished_job(gateway: Any, run: Any) -> None:
    ran = await run("submit", "identity", "--queries", "10", "--watch", "--target", gateway.address)
    assert ran.code == 0
    assert "succeeded" in ran.out
    assert "10 queries from 0 on nano" in ran.out
    assert "90.00%" in ran.out


async def test_watching_a_job_that_fails_is_exit_code_1(gateway: Any, run: Any) -> None:
    ran = await run(
        *("submit", "broken", "--queries", "1", "--key", "k", "--watch", "--json"),
        *("--target", gateway.address),
    )
    assert ran.code == 1
    assert json.loads(ran.out)["state"] == "failed"
    assert ran.err.endswith("error: job job-k failed: the model file is truncated\n")


async def test_interrupting_a_watch_leaves_the_job_alone(
    gateway: Any, start: Any, wait: Any
) -> None:
    async with start(
        *("submit", "stuck", "--queries", "1", "--key", "k", "--watch"),
        *("--target", gateway.address),
    ) as process:
        while not gateway.stalled:  # noqa: ASYNC110 - the fake gateway's state has no event
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        ran = await wait(process)
    assert ran.code == 130
    assert "the job continues; cancel it with 'synergai jobs cancel job-k'" in ran.err


async def test_jobs_are_listed_as_a_table_and_as_json(gateway: Any, run: Any) -> None:
    await run("submit", "identity", "--queries", "1000", "--key", "k", "--target", gateway.address)
    table = await run("jobs", "--target", gateway.address)
    assert "job-k" in table.out
    assert "queued" in table.out
    [job] = json.loads((await run("jobs", "list", "--json", "--target", gateway.address)).out)
    assert job["spec"]["queries"] == 1000
    assert job["spec"]["qos"] is None
    none = await run("jobs", "list", "--state", "failed", "--json", "--target", gateway.address)
    assert json.loads(none.out) == []


async def test_a_job_is_shown_watched_and_cancelled_by_its_id(gateway: Any, run: Any) -> None:
    await run("submit", "identity", "--queries", "4", "--key", "k", "--target", gateway.address)
    assert "queued" in (await run("jobs", "show", "job-k", "--target", gateway.address)).out
    assert "succeeded" in (await run("jobs", "watch", "job-k", "--target", gateway.address)).out
    cancelled = await run("jobs", "cancel", "job-k", "--json", "--target", gateway.address)
    assert json.loads(cancelled.out)["state"] == "cancelled"


async def test_an_unknown_job_is_one_line(gateway: Any, run: Any) -> None:
    ran = await run("jobs", "show", "nothing", "--target", gateway.address)
    assert (ran.code, ran.out, ran.err) == (1, "", "error: there is no job 'nothing'\n")


async def test_workers_are_shown_as_a_table_and_as_json(gateway: Any, run: Any) -> None:
    table = await run("workers", "--target", gateway.address)
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
    [worker] = json.loads((await run("workers", "--json", "--target", gateway.address)).out)
    assert worker["state"] == "idle"
    assert worker["sessions"][0]["configuration"]["threads"] == 2


async def test_a_gateway_that_is_not_there_is_one_line(run: Any) -> None:
    target = f"127.0.0.1:{free_port()}"
    ran = await run("workers", "--target", target)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"error: cannot connect to {target} (connection refused); is it running?\n"
