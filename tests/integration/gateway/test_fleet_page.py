"""The fleet page on the HTTP port: its files, its events, and shutdown."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.server import Gateway
from synergai.fleet_page import SCRIPTS
from tests.http1 import connected
from tests.integration.gateway.conftest import ECHO, Caller, FakeAgent, config_in, infer_request
from tests.staged_runs import staged_run


@asynccontextmanager
async def asked(
    gateway: Gateway, path: str, host: str = "localhost", limit: int = 1 << 24
) -> AsyncGenerator[asyncio.StreamReader]:
    async with connected(gateway.http_address, limit=limit) as connection:
        connection.send_head(path, method="GET", host=host)
        yield connection.reader


async def head(reader: asyncio.StreamReader) -> str:
    return (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode().lower()


async def records(reader: asyncio.StreamReader) -> list[dict[str, Any]]:
    """Return the records of the next message, which is in one piece."""
    message = await asyncio.wait_for(reader.readuntil(b"\n\n\r\n"), 30)
    found: list[dict[str, Any]] = json.loads(message.split(b"data: ", 1)[1])["records"]
    return found


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/fleet", "text/html"),
        *((f"/fleet/{name}", "text/javascript") for name in SCRIPTS),
        ("/fleet/page.css", "text/css"),
    ],
)
async def test_files_allow_no_foreign_script(gateway: Gateway, path: str, kind: str) -> None:
    async with asked(gateway, path) as reader:
        answer = await head(reader)
    assert answer.startswith("http/1.1 200")
    assert f"content-type: {kind}" in answer
    assert "default-src 'none'; script-src 'self'" in answer
    assert "unsafe" not in answer


async def test_work_that_waits_is_explained_to_the_page(
    gateway: Gateway, agent: FakeAgent, caller: Caller
) -> None:
    agent.answer = agent.hold
    call = caller.oip.ModelInfer(infer_request(id="frame-7"))
    await agent.until(lambda: len(agent.assignments) == 1)
    sentences = []
    for name in ("frame-7", "nobody"):
        async with asked(gateway, f"/fleet/explain/{name}") as reader:
            assert (await head(reader)).startswith("http/1.1 200")
            sentences.append(json.loads(await reader.readuntil(b"}"))["sentences"])
    assert sentences[0][0].endswith("It has no deadline.")
    assert sentences[1] == []
    async with asked(gateway, "/fleet/explain/frame-7", "elsewhere.example") as reader:
        assert (await head(reader)).startswith("http/1.1 421")
    call.cancel()


@pytest.mark.parametrize("name", ["page_state.py", "page.html", "..%2Fpage.js"])
async def test_other_files_are_not_served(gateway: Gateway, name: str) -> None:
    async with asked(gateway, f"/fleet/{name}") as reader:
        assert (await head(reader)).startswith("http/1.1 404")


@pytest.mark.usefixtures("agent")
async def test_request_appears_in_the_events(gateway: Gateway, caller: Caller) -> None:
    async with asked(gateway, "/fleet/events") as reader:
        assert "content-type: text/event-stream" in await head(reader)
        [worker] = [each for each in await records(reader) if each["kind"] == "worker"]
        assert worker["engines"] == [ECHO]
        await caller.oip.ModelInfer(infer_request())
        seen: dict[str, dict[str, Any]] = {}
        while seen.get("assignment", {}).get("outcome") != "completed":
            seen |= {each["kind"]: each for each in await records(reader)}
    assert seen["job"]["state"] == "finished"
    assert seen["assignment"]["worker"] == worker["id"]
    assert seen["second"]["met"] == 1


async def test_viewers_that_leave_free_their_place(gateway: Gateway) -> None:
    for _ in range(3):
        async with AsyncExitStack() as stack:
            for _ in range(30):
                reader = await stack.enter_async_context(asked(gateway, "/fleet/events"))
                assert (await head(reader)).startswith("http/1.1 200")


async def test_gateway_stops_with_open_pages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        async with Gateway(config_in(tmp_path)) as gateway:
            reader = await stack.enter_async_context(asked(gateway, "/fleet/events"))
            await records(reader)
        await asyncio.wait_for(reader.read(), 30)
    assert not re.search("Traceback|ERROR", caplog.text)


async def test_gateway_stops_with_viewers_that_do_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack, Gateway(config_in(tmp_path)) as gateway:
        for step in staged_run(100, 10_000):
            gateway.app.fleet.page.record(*step)
        reader = await stack.enter_async_context(asked(gateway, "/fleet/events", limit=1024))
        await head(reader)
    assert not re.search("Traceback|ERROR", caplog.text)
