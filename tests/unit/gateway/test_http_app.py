"""Responses of the HTTP port, without a server."""

import asyncio
from typing import NoReturn

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message

from gateway.calls.http.app import HttpApp
from synergai.errors import QuotaExceeded


async def test_refusal_that_is_delayed_is_answered_as_unavailable_when_the_gateway_stops() -> None:
    refused = asyncio.Event()

    async def refuse(_request: Request) -> NoReturn:
        refused.set()
        raise QuotaExceeded("lab", "requests_per_s", 1, delay_s=60.0)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    app = HttpApp([Route("/", refuse)], any_host=True)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    running = asyncio.create_task(app(scope, receive, send))
    await refused.wait()
    app.stop()
    await running
    assert sent[0]["status"] == 503
