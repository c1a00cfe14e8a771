"""Routes of the fleet page: its files, and its events."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from gateway.calls.http.app import cancelled_on_disconnect
from gateway.calls.http.errors import json_response
from gateway.entry.passage.call_guard import peer_of
from synergai.errors import NotFound
from synergai.fleet_page.files import SCRIPTS, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import Receive, Scope, Send

    from gateway.monitoring.fleet_feed import FleetFeed
    from synergai.core.explanations.facts import Explanation

_SECURITY: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_FILES: Final = {"page.css": "text/css", **dict.fromkeys(SCRIPTS, "text/javascript")}
_UNREAD_BYTES: Final = 16 * 1024
"""What a viewer may leave unread before nothing more is encoded for it."""
_END_S: Final = 0.2
"""Time to send the end of the events at shutdown."""


def fleet_page_routes(
    feed: FleetFeed, explain: Callable[[str], Explanation]
) -> Sequence[BaseRoute]:
    """Return the routes; `explain` explains a job or request, and raises `NotFound`."""

    async def page(_request: Request) -> Response:
        return HTMLResponse(read_file("page.html"), headers=_SECURITY)

    async def file(request: Request) -> Response:
        name = request.path_params["file"]
        if name not in _FILES:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return Response(read_file(name), headers=_SECURITY, media_type=_FILES[name])

    async def events(request: Request) -> Response:
        return _EventStream(feed, request)

    async def explanation(request: Request) -> Response:
        sentences: Sequence[str] = ()
        # Most is in time, and so not kept: the page asks of everything.
        with suppress(NotFound):
            sentences = explain(request.path_params["id"]).sentences
        return json_response({"sentences": sentences}, headers=_SECURITY)

    return [
        Route("/fleet", page),
        Route("/fleet/events", events),
        Route("/fleet/explain/{id}", explanation),
        Route("/fleet/{file}", file),
    ]


class _EventStream(Response):
    """The messages of the feed, until the viewer leaves."""

    media_type = "text/event-stream"

    def __init__(self, feed: FleetFeed, request: Request) -> None:
        super().__init__(headers={**_SECURITY, "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._request = request

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async with cancelled_on_disconnect(self._request), aclosing(self._feed.messages()) as all_:
            message = await anext(all_)
            transport = peer_of(self._request.scope).transport
            transport.set_write_buffer_limits(_UNREAD_BYTES)
            head = {"type": "http.response.start", "status": HTTPStatus.OK}
            await send({**head, "headers": self.raw_headers})
            part = {"type": "http.response.body", "more_body": True}
            try:
                while True:
                    await send({**part, "body": message})
                    message = await anext(all_)
            except asyncio.CancelledError:
                # By the shutdown: a viewer that does not read would hold up the end.
                asyncio.get_running_loop().call_later(_END_S, transport.abort)
                await send({"type": "http.response.body"})
                raise
