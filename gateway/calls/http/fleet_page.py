"""The fleet page: the routes of its files, and the feed of its events."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.calls.http.app import cancelled_on_disconnect, json_response
from gateway.entry.call_guard import peer_of
from synergai.errors import NotFound, Overloaded
from synergai.fleet_page import SCRIPTS, read_file
from synergai.fleet_page.page_state import INTERVAL_S, Batch, PageRecord, PageState, encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from gateway.fleet.worker import ConnectedWorker
    from synergai.core.explanations import Explanation
    from synergai.core.routes.deployment import EngineDeployment

MAX_VIEWERS: Final = 64
_KEPT: Final = 80
"""Messages with changes that slow viewers can still get."""
_PART: Final = 100
"""Records in a message."""
_STAGGER_S: Final = 0.002
"""Time between two viewers that get the same changes, so that requests need not wait for all."""


class FleetFeed:
    """The state once, then the changes, as messages in the format of server-sent events.

    They are encoded once for all viewers, and not at all while nobody looks. A viewer that is too
    slow for the last changes gets the state again. The state is encoded in parts as the viewer
    reads them, so that it neither holds up the event loop nor stays in memory.

    Args:
        record: lets the page's state follow what the gateway has done until now.
    """

    def __init__(
        self,
        page: PageState,
        workers: Callable[[], Iterable[ConnectedWorker]],
        deployments: Callable[[], Iterable[EngineDeployment]],
        now: Callable[[], float],
        record: Callable[[], object],
    ) -> None:
        self._page = page
        self._workers = workers
        self._deployments = deployments
        self._now = now
        self._record = record
        self._viewers = 0
        self._messages: deque[bytes] = deque(maxlen=_KEPT)
        self._next = 0  # number of the message that comes next
        self._state: list[PageRecord] = []
        self._state_at = -1  # number of the first message that is not in the state
        self._timer: asyncio.TimerHandle | None = None
        self._published = asyncio.Event()

    async def messages(self) -> AsyncGenerator[bytes, None]:
        with self._counted() as place:
            position = -1
            while True:
                if position < self._next - len(self._messages):
                    position, state = self._current_state()
                    event = b"state"
                    for first in range(0, len(state) or 1, _PART):
                        yield self._message(event, state[first : first + _PART])
                        event = b"changes"
                        await asyncio.sleep(0)
                elif position < self._next:
                    message = self._messages[position - self._next]
                    position += 1
                    yield message
                else:
                    await self._published.wait()
                    await asyncio.sleep(place * _STAGGER_S)

    @contextmanager
    def _counted(self) -> Iterator[int]:
        """Count a viewer while the context is open; return how many there were before."""
        place = self._viewers
        if place >= MAX_VIEWERS:
            raise Overloaded(f"{MAX_VIEWERS} viewers have the fleet page open, the limit")
        self._viewers += 1
        if not place:
            self._page.watched = True
            self._publish()
        try:
            yield place
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._stop()

    def _publish(self) -> None:
        """Add what changed, and wake the viewers."""
        self._record()
        for worker in self._workers():
            self._page.power(worker.id, worker.power.mode, worker.power.watts)
        self._page.deploy(self._deployments())
        changed = self._page.take()
        for first in range(0, len(changed) or 1, _PART):
            self._messages.append(self._message(b"changes", changed[first : first + _PART]))
            self._next += 1
        # Who reads the state must get to its end before the changes after it are gone.
        if self._state_at < self._next - _KEPT // 2:
            self._state = []
        self._published.set()
        self._published = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(INTERVAL_S, self._publish)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._page.watched = False
        self._page.take()
        self._messages.clear()
        self._state = []

    def _current_state(self) -> tuple[int, list[PageRecord]]:
        if not self._state:
            # What changes until that message is in both, which does no harm.
            self._record()
            self._state, self._state_at = self._page.state(), self._next
        return self._state_at, self._state

    def _message(self, event: bytes, records: list[PageRecord]) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (event, encode(Batch(self._now(), records)))


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
