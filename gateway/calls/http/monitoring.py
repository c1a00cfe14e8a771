"""Routes for monitoring: metrics and health."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

_MAX_CONFLICTS: Final = 10
"""Most conflicts that the health lists."""


def monitoring_routes(
    metrics: Callable[[str], Awaitable[tuple[bytes, str]]],
    ready: Callable[[], bool],
    accepts_jobs: Callable[[], bool],
    store_fault: Callable[[], str],
    conflicts: Callable[[], Iterable[str]],
) -> Sequence[BaseRoute]:
    """Return the routes of the metrics, the health and the conflicts of engines."""

    async def render(request: Request) -> Response:
        text, content_type = await metrics(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def healthz(_request: Request) -> Response:
        if ready():
            full = "" if accepts_jobs() else "jobs are refused: the journal's disk is full\n"
            # Without the reason, which is in the log: anyone may read this.
            broken = "no engines are distributed: the store cannot be used\n"
            store = broken if store_fault() else ""
            differences = islice(conflicts(), _MAX_CONFLICTS)
            files = "".join(f"a worker's engine is not used: {each}\n" for each in differences)
            return PlainTextResponse(f"serving\n{full}{store}{files}")
        return PlainTextResponse("not serving\n", 503)

    return [Route("/metrics", render), Route("/healthz", healthz)]
